"""Regenerations, and adaptation at them."""

import dataclasses
import itertools
from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.special import kolmogorov

import whmc
from contracts import CYCLE, only_these_at_every_change, problem, wrong_libraries
from whmc.estimate.weights import occupancy
from whmc.kernels.independence import log_regeneration
from whmc.kernels.settings import arrays
from whmc.modes.library import ModeLibrary
from whmc.run import regeneration
from whmc.run.plan import Plan
from whmc.run.prepare import mover_of
from whmc.run.progress import Progress
from whmc.run.regeneration import adaptive_blocks, draw_restart
from whmc.run.state import Learned, RunState, behind
from whmc.search import ongoing
from whmc.storage.draws_file import DrawsInMemory
from whmc.testing import Problem, gaussian_mixture
from whmc.warmup.charts import ChartShapes
from whmc.warmup.warmup import Warmup


@cache
def six() -> Problem:
    """Six modes in six dimensions; cached, so that runs share their compilation."""
    rng = np.random.default_rng(4)
    means = rng.uniform(-8, 8, (6, 6))
    return gaussian_mixture([0.35, 0.25, 0.15, 0.1, 0.1, 0.05], means, rng.uniform(0.3, 1.5, (6, 6)), "six D=6")


def test_the_split_never_exceeds_the_kernel():
    """S(x) Q(y) <= T(y|x) for any c, and the regeneration chance is their ratio: Eqs (8)-(12)."""
    rng = np.random.default_rng(0)
    log_w, log_v, log_c = rng.normal(0, 3, (3, 10_000))
    log_s = np.minimum(0, log_c - log_w)
    log_q = np.minimum(0, log_v - log_c)  # over q(y)
    log_t = np.minimum(0, log_v - log_w)  # over q(y)
    assert np.all(log_s + log_q <= log_t + 1e-12)
    seen = jax.vmap(log_regeneration)(jnp.asarray(log_w), jnp.asarray(log_v), jnp.asarray(log_c))
    np.testing.assert_allclose(seen, log_s + log_q - log_t, atol=1e-12)


@pytest.mark.ci
@pytest.mark.parametrize("name", ["shifted", "wrong weights", "student"])
def test_states_after_a_regeneration_have_law_q_and_forget_the_past(name):
    """Against direct draws of Q by rejection, whatever the charts: both coordinates by Kolmogorov's test."""
    case = problem("pair")
    library = wrong_libraries(case.library)[name]
    kernel = arrays(whmc.Independence(log_threshold=0.3))
    num = 16_000
    start = case.draw(np.random.default_rng(1), num)[0]
    states = jax.vmap(lambda x: whmc.init(x, case.target, library))(jnp.asarray(start))
    keys = jax.random.split(jax.random.key(2), num)
    step = jax.jit(jax.vmap(lambda key, state: kernel.step(key, state, case.target, library)))
    new, info = step(keys, states)
    back = np.asarray(info.regenerated)
    seen, before = np.asarray(new.position)[back], start[back]
    direct = draw_restart(jax.random.key(3), case.target, library, jnp.asarray(0.3), num=4000)
    assert np.all(np.asarray(direct.drawn)) and back.sum() > 500
    expected = np.asarray(direct.states.position)
    for d in range(2):
        assert _p_value(seen[:, d], expected[:, d]) > 1e-6
    # independence: correlation of where it was with where it is, 5 standard errors
    assert abs(np.corrcoef(before[:, 0] > 5, seen[:, 0] > 5)[0, 1]) < 5 / np.sqrt(back.sum())


def _p_value(first: np.ndarray, second: np.ndarray) -> float:
    grid = np.sort(np.concatenate([first, second]))
    gap = np.max(
        np.abs(
            np.searchsorted(np.sort(first), grid, side="right") / len(first)
            - np.searchsorted(np.sort(second), grid, side="right") / len(second)
        )
    )
    return float(kolmogorov(gap * np.sqrt(len(first) * len(second) / (len(first) + len(second)))))


@cache
def many_short_runs() -> tuple[whmc.Result, float]:
    """400 runs of 4 chains x 250 draws, side by side; and the weight of the first chart."""
    case = problem("two-scale")
    found = whmc.sample(case.target, modes=case.locations, seed=1, chains=1600, draws=250, warmup=120)
    # .15 nats between the peaks: they would be one mode
    result = dataclasses.replace(found, basins=None, library=found.library.of_modes(np.arange(2)))
    draws = case.draw(np.random.default_rng(0), 400_000)[0]
    components = jax.jit(jax.vmap(lambda x: whmc.init(x, case.target, result.library).label))(jnp.asarray(draws))
    return result, float(np.mean(np.asarray(components) == 0))


@pytest.mark.ci
def test_tours_are_uncorrelated():
    result, _ = many_short_runs()
    tours = result.tours
    excess = (result.label == 0) - np.mean(result.label == 0)
    stretches = zip(tours.chain, tours.start, tours.length, strict=True)
    sums = np.array([excess[chain, start : start + num].sum() for chain, start, num in stretches])
    same = tours.chain[1:] == tours.chain[:-1]
    correlation = np.corrcoef(sums[1:][same], sums[:-1][same])[0, 1]
    assert abs(correlation) < 5 / np.sqrt(same.sum()), correlation


@pytest.mark.ci
@pytest.mark.parametrize("what", ["tours", "occupancy"])
def test_intervals_cover_in_91_to_98_per_cent_of_short_runs(what):
    result, truth = many_short_runs()
    hits = []
    for run in range(400):
        mine = slice(4 * run, 4 * run + 4)
        part = dataclasses.replace(
            result,
            draws=result.draws[mine],
            chart=result.chart[mine],
            logdensity=result.logdensity[mine],
            log_mixture=result.log_mixture[mine],
            steps={name: jax.tree.map(lambda rows, m=mine: rows[m], info) for name, info in result.steps.items()},
        )
        weights = part.weight_estimates[what]
        hits.append(abs(weights.weight[0] - truth) < 1.96 * weights.se[0])
    assert 0.91 <= np.mean(hits) <= 0.98, np.mean(hits)


def adaptation(known: list[int], *, draws: int = 600, capacity: int = 16) -> RunState:
    """A run of the six modes that knows some of them, before its first block."""
    case = six()
    scales = np.stack([np.diag(case.scales[k]) for k in known])
    library = ModeLibrary.from_charts(case.means[known], scales, capacity=capacity)
    warmup = Warmup(arrays(CYCLE), library, ChartShapes.of(library.charts()))
    plan = Plan(adapt="regeneration", chains=8, draws=draws, warmup=0)
    state = RunState(plan, learned=Learned(None, ongoing.begin(case.target, library, None, 256), warmup))
    chains, _ = mover_of(state, case.target).start(library, np.asarray(library.location)[np.arange(8) % len(known)])
    return regeneration.begin(state.at(chains=chains))


def finish(state: RunState) -> tuple[list[RunState], DrawsInMemory]:
    """The states after each block, and the draws."""
    log = DrawsInMemory()
    return [state, *adaptive_blocks(state, six().target, log, Progress(False))], log


def test_a_chain_changes_its_kernel_at_regenerations_only():
    """Between two changes of version every step is one of the version in force; each change is at a regeneration."""
    states, log = finish(adaptation([0, 1]))
    changes = []
    for before, after in itertools.pairwise(state.moment.adaptation for state in states):
        for c in np.flatnonzero(before.version != after.version):
            start, num = after.segments[c][-1]
            changes.append(num == 1 and bool(log.read(int(start), 1).info[2].regenerated[0]))
    assert len(changes) >= 8  # every chain took at least one update
    assert all(changes)
    assert states[-1].newest.library.size == 6


@pytest.mark.ci
def test_a_library_may_outgrow_its_room_while_chains_run():
    states, log = finish(adaptation([0, 1], draws=300, capacity=2))
    last = states[-1]
    assert last.newest.library.size == 6 and last.newest.library.capacity >= 6
    assert regeneration.gather(last, log).position.shape[:2] == (300, 8) and not behind(last).any()


def test_a_chain_without_an_update_waiting_never_stops():
    state, log = adaptation([0, 1, 2, 3, 4, 5]), DrawsInMemory()

    def blind(search, target, library, position, logdensity, key):
        return search, library

    state = regeneration.advance(state, six().target, log, np.ones(8, bool), 100, blind)
    assert np.all(state.chains.made == 100)
    assert state.moment.adaptation.num_regenerations > 8


def test_states_are_never_changed_in_place():
    """A run is data: the state before a block is the same after it, and gives the same block again."""
    state = adaptation([0, 1])
    first, second = (regeneration.advance(state, six().target, DrawsInMemory(), np.ones(8, bool), 50) for _ in range(2))
    assert state.moment.adaptation.period == 0 and len(state.knowledge.versions) == 1
    assert np.array_equal(first.chains.states.position, second.chains.states.position)
    assert first.knowledge.ongoing.num_gradients == second.knowledge.ongoing.num_gradients


@pytest.mark.ci
@pytest.mark.parametrize("known", [[0], [3, 5]])
def test_missing_modes_are_found_and_weighed_right(known):
    case = six()
    result = whmc.sample(case.target, modes=case.locations[known], seed=2, adapt="regeneration", draws=1000)
    assert result.library.size == 6 and result.num_updates > 0
    order = np.argmin(np.linalg.norm(result.modes.location[:, None] - case.means, axis=-1), axis=1)
    assert sorted(order) == list(range(6))
    assert np.all(np.abs(result.modes.weight - case.weights[order]) < 5 * result.modes.weight_se)
    assert np.all(result.modes.weight_se < 0.02)
    assert abs(result.log_evidence) < 5 * result.log_evidence_se + 0.01
    assert set(result.weight_estimates) == {"occupancy", "tours"}


@pytest.mark.ci
def test_no_regenerations_keep_exactness_and_are_said():
    """Charts so wrong that nothing regenerates: exact draws stay exact, and the alarm says why nothing was learned."""
    case, rng = six(), np.random.default_rng(5)
    kernel = whmc.Cycle((whmc.LocalHMC(), whmc.Wormhole(), whmc.Independence(log_threshold=-300.0)))
    library = ModeLibrary.from_charts(case.means[:2] + 30.0, np.tile(0.3 * np.eye(6), (2, 1, 1)))
    initial = case.draw(rng, 2000)[0]
    result = whmc.sample(
        case.target,
        modes=library,
        initial=initial,
        adapt="regeneration",
        kernel=kernel,
        chains=2000,
        draws=20,
        warmup=0,
    )
    assert result.num_regenerations == 0 and result.num_updates == 0
    last, fresh = result.draws[:, -1], case.draw(rng, 20_000)[0]
    assert np.mean(np.linalg.norm(last - initial, axis=1) > 0.3) > 0.3
    assert min(_p_value(last[:, d], fresh[:, d]) for d in range(6)) > 1e-6
    assert "few regenerations" in [alarm.name for alarm in result.alarms]


def test_adaptation_says_what_it_needs():
    case = six()
    with pytest.raises(ValueError, match="needs a kernel with Independence"):
        whmc.sample(case.target, modes=case.locations, adapt="regeneration", kernel=whmc.LocalHMC())
    nowhere = whmc.Target(case.target.logdensity, dim=6)
    with pytest.raises(ValueError, match="searches the start region"):
        whmc.sample(nowhere, modes=case.locations, adapt="regeneration")


@pytest.mark.ci
def test_adding_a_constant_changes_the_evidence_only():
    """+1000 on the log density: the same draws but for rounding, the evidence larger by 1000."""
    case = six()
    shifted = whmc.Target(lambda x: case.target.logdensity(x) + 1000.0, dim=6, starts=case.target.starts)
    first, second = (
        whmc.sample(target, seed=0, draws=300, finder=whmc.MultiStart(64)) for target in (case.target, shifted)
    )
    assert second.log_evidence - first.log_evidence == pytest.approx(1000.0, abs=1e-6)
    np.testing.assert_allclose(first.draws, second.draws, atol=1e-6)


@pytest.mark.parametrize(
    "name",
    only_these_at_every_change(
        ["duplicated", "saddle", "missing", "shifted", "scaled", "wrong weights", "student"], ["saddle"]
    ),
)
def test_bad_starting_libraries_end_right(name):
    """Whatever the library says at first, the weights are those of the target."""
    case = problem("pair")
    library = wrong_libraries(case.library)[name]
    finder = whmc.MultiStart(64) if name == "missing" else None
    result = whmc.sample(case.target, modes=library, finder=finder, seed=4, draws=1000)
    right = result.draws[..., 0] > 5
    error = occupancy(right.astype(int), 2).se[0]
    assert abs(right.mean() - 0.1) < 5 * error and error < 0.01


@pytest.mark.ci
def test_a_far_spurious_point_ends_right():
    case = problem("pair")
    library = case.library.add([60.0, -40.0], np.eye(2), log_weight=0.0)
    result = whmc.sample(case.target, modes=library, seed=4, draws=1000)
    right = result.draws[..., 0] > 5
    assert abs(right.mean() - 0.1) < 5 * occupancy(right.astype(int), 2).se[0]
    assert np.mean(result.chart == 2) < 1e-3
