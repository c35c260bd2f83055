"""The baselines of section 5, DMC and RDMC: maps and ratios by hand, exactness with its controls, modes from draws."""

import dataclasses
import sys
from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.special import gammainc, kolmogorov
from scipy.stats import chi2, multivariate_normal

import whmc
from contracts import columns, problem, wrong_libraries
from whmc._pytree import pytree
from whmc.estimate.weights import occupancy
from whmc.kernels.base import AbstractKernel, StepInfo, make_state, metropolis
from whmc.kernels.independence import Independence, log_regeneration
from whmc.kernels.random import Noise, draw_noise
from whmc.kernels.settings import arrays
from whmc.modes.library import ModeLibrary
from whmc.modes.mixture import pick
from whmc.paper import dirichlet
from whmc.paper.adaptive import state_at
from whmc.paper.darting import TRIES, DartingMC, RegenerationDartingMC, darting_radius, log_volume, regions
from whmc.paper.dirichlet import DirichletSearch, components, gain, merged, modes_from_chains
from whmc.run.progress import Progress
from whmc.run.regeneration import adaptive_blocks, draw_restart, gather
from whmc.storage.draws_file import DrawsInMemory
from whmc.testing import Problem, gaussian_mixture, invariance_test, reversibility_test, two_scale_pair

pytestmark = pytest.mark.paper

OVERLAP = 2.0
"""Regions of this radius overlap on the two-scale pair: 2·1 + 2·4 > 6, its separation."""


@cache
def trio() -> tuple[whmc.Target, ModeLibrary]:
    """Three charts that overlap, in a library with an unused place whose filler lies on the first."""
    turn = np.array([[1.0, 0.0], [0.6, 0.8]])
    case = gaussian_mixture([0.5, 0.3, 0.2], [[0, 0], [2, 1], [9, 9]], [np.eye(2), turn @ turn.T, 0.3 * np.eye(2)])
    scales = np.array([np.eye(2), 1.5 * turn, 0.5 * np.eye(2)])
    library = ModeLibrary.from_charts(case.means, scales, log_weight=np.log([0.2, 0.5, 0.3]), capacity=4)
    return case.target, library


@cache
def near() -> Problem:
    """Two modes of different size that overlap; cached, so that tests share their compilation."""
    return two_scale_pair(2, separation=2.0)


def test_half_of_a_gaussian_mode_is_in_its_region():
    for dim in (1, 2, 20, 100):
        assert chi2.cdf(darting_radius(dim) ** 2, dim) == pytest.approx(0.5, abs=1e-12)
    assert chi2.cdf(darting_radius(7, 0.9) ** 2, 7) == pytest.approx(0.9, abs=1e-12)
    with pytest.raises(ValueError, match="share must be between 0 and 1"):
        darting_radius(2, 1.0)


def _by_hand(
    target: whmc.Target, library: ModeLibrary, position: np.ndarray, noise: np.ndarray, radius: float
) -> tuple[np.ndarray, float]:
    """Where a dart leads and its log ratio, in plain NumPy over the charts in use."""
    location, scale, _, _ = columns(library)

    def inside(x: np.ndarray) -> list[int]:
        return [k for k in range(len(location)) if np.linalg.norm(np.linalg.solve(scale[k], x - location[k])) <= radius]

    here = inside(position)
    if not here:
        return position, -np.inf
    i = here[int(noise[0] * len(here))]
    volume = np.cumsum([np.linalg.det(factor) for factor in scale])
    k = int(np.searchsorted(volume / volume[-1], noise[1]))
    there = location[k] + scale[k] @ np.linalg.solve(scale[i], position - location[i])
    pi, new_pi = (np.exp(float(target(jnp.asarray(x)))) for x in (position, there))
    return there, float(np.log(new_pi * len(here) / (pi * len(inside(there)))))


def test_darts_and_their_ratios_are_those_by_hand_where_regions_overlap():
    target, library = trio()
    kernel, radius = DartingMC(1.8), 1.8
    rng = np.random.default_rng(0)
    position = rng.uniform(-2.5, 4.0, (300, 2))
    noise = rng.uniform(size=(300, 3))
    noise[:, 2] = 1e-300  # accept whatever can be

    def one(x: jax.Array, uniform: jax.Array) -> tuple[jax.Array, StepInfo, jax.Array]:
        state = whmc.init(x, target, library)
        new, info = kernel.move(Noise(uniform, jnp.zeros(0)), state, target, library)
        return new.position, info, jnp.sum(regions(library, x, jnp.asarray(radius)))

    seen, info, counts = jax.jit(jax.vmap(one))(jnp.asarray(position), jnp.asarray(noise))
    assert set(np.asarray(counts).tolist()) == {0, 1, 2}
    for n in range(300):
        there, log_ratio = _by_hand(target, library, position[n], noise[n], radius)
        np.testing.assert_allclose(seen[n], there, atol=1e-12)
        np.testing.assert_allclose(info.log_ratio[n], log_ratio, atol=1e-10)
    assert np.array_equal(np.asarray(info.num_gradients), (np.asarray(counts) > 0).astype(int))


def test_regions_are_chosen_by_volume_and_relative_places_are_kept():
    """Two dimensions, scales 1 and 4: volumes 1 : 16, whatever the weights; unused places are never chosen."""
    case = two_scale_pair(2, weights=(0.8, 0.2), separation=40.0)
    library = case.library.padded(4)
    np.testing.assert_allclose(jax.nn.softmax(log_volume(library)), [1 / 17, 16 / 17, 0, 0], atol=1e-15)
    start, keys = jnp.array([0.5, -0.7]), jax.random.split(jax.random.key(0), 4000)

    def one(key: jax.Array) -> tuple[whmc.ChainState, StepInfo]:
        return DartingMC().step(key, whmc.init(start, case.target, library), case.target, library)

    new, info = jax.jit(jax.vmap(one))(keys)
    chosen = np.mean(np.asarray(info.proposed) == 1)
    assert abs(chosen - 16 / 17) < 5 * np.sqrt(16 / 17**2 / 4000)
    there = np.asarray(new.position)[np.asarray(info.accepted) & (np.asarray(info.proposed) == 1)]
    assert len(there) > 10
    np.testing.assert_allclose((there - case.means[1]) / 4.0, np.tile([0.5, -0.7], (len(there), 1)), atol=1e-12)
    # the ratio has neither volumes nor Jacobian: pi alone
    log_ratio = np.log(0.2 / 16 / 0.8)
    np.testing.assert_allclose(np.asarray(info.log_ratio)[np.asarray(info.proposed) == 1], log_ratio, atol=1e-10)


def test_a_truncated_gaussian_is_drawn_exactly():
    """Radii against the truncated chi law by Kolmogorov's test, charts by weight, failures (1 - Z)^TRIES of all."""
    target, library = trio()
    del target
    kernel, num, radius = RegenerationDartingMC(radius=1.1), 20_000, 1.1
    keys = jax.random.split(jax.random.key(1), num)

    def one(key: jax.Array) -> tuple[jax.Array, jax.Array]:
        return kernel.propose(draw_noise(key, *kernel.num_proposal(library)), library)

    position, drawn = map(np.asarray, jax.jit(jax.vmap(one))(keys))
    inside = gammainc(1.0, 0.5 * radius**2)
    lost = (1 - inside) ** TRIES
    assert abs(np.mean(~drawn) - lost) < 5 * np.sqrt(lost * (1 - lost) / num)
    location, scale, log_weight, _ = columns(library)
    far = np.linalg.norm(position[drawn] - location[2], axis=1) < 2  # the third chart's region is apart
    assert abs(far.mean() - np.exp(log_weight[2])) < 5 * np.sqrt(0.25 / drawn.sum())
    distance = np.sort(np.linalg.norm(np.linalg.solve(scale[2], (position[drawn][far] - location[2]).T), axis=0))
    law = gammainc(1.0, 0.5 * distance**2) / inside
    gap = np.max(np.abs(law - (np.arange(len(law)) + 0.5) / len(law)))
    assert distance[-1] <= radius + 1e-12 and kolmogorov(gap * np.sqrt(len(law))) > 1e-6


def _log_w(library: ModeLibrary, position: np.ndarray, logdensity: np.ndarray, radius: float) -> np.ndarray:
    """log pi - log sum_k omega_k N_k 1[inside], by SciPy; -inf in no region."""
    location, scale, log_weight, _ = columns(library)
    total = np.zeros(len(position))
    for k in range(len(location)):
        inside = np.linalg.norm(np.linalg.solve(scale[k], (position - location[k]).T), axis=0) <= radius
        density = multivariate_normal(location[k], scale[k] @ scale[k].T).pdf(position)
        total += inside * np.exp(log_weight[k]) * density
    with np.errstate(divide="ignore"):
        return np.where(total > 0, logdensity - np.log(total), -np.inf)


def test_the_ratio_counts_the_regions_that_a_place_is_in():
    target, library = trio()
    kernel = RegenerationDartingMC(radius=1.8)
    position = np.random.default_rng(2).uniform(-2.5, 4.0, (300, 2))

    @jax.jit
    @jax.vmap
    def one(x: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
        state = whmc.init(x, target, library)
        student = dataclasses.replace(library, dof=jnp.asarray(4.0))
        return state.logdensity, kernel.log_ratio(state, library), kernel.log_ratio(state, student)

    logdensity, seen, as_student = map(np.asarray, one(jnp.asarray(position)))
    expected = _log_w(library, position, logdensity, 1.8)
    assert np.any(np.isneginf(expected)) and np.any(np.isfinite(expected))
    np.testing.assert_allclose(seen, expected, atol=1e-10)
    np.testing.assert_array_equal(as_student, seen)  # the library's own base does not count


@pytree
class Dart(AbstractKernel):
    """The dart written out; `count` = 0 leaves n(theta) out."""

    radius: float = OVERLAP
    count: float = 1.0

    def num_noise(self, library):
        return 3, 0

    def move(self, noise, state, target, library):
        u_label, u_choice, u_accept = noise.uniform
        radius = jnp.asarray(self.radius)
        inside = regions(library, state.position, radius)
        i = pick(u_label, jnp.where(inside | ~jnp.any(inside), 0.0, -jnp.inf))
        k = pick(u_choice, log_volume(library))
        proposal, _ = make_state(library.unwhiten(k, library.whiten(i, state.position)), target, library)
        there = regions(library, proposal.position, radius)
        counts = jnp.sum(inside).astype(float) / jnp.maximum(jnp.sum(there), 1).astype(float)
        log_ratio = proposal.logdensity - state.logdensity + self.count * jnp.log(jnp.maximum(counts, 1e-9))
        log_ratio = jnp.where(jnp.any(inside) & there[k], log_ratio, -jnp.inf)
        new, accepted, log_ratio = metropolis(u_accept, log_ratio, state, proposal)
        zero = jnp.zeros((), int)
        return new, StepInfo(zero, zero, log_ratio, accepted, jnp.zeros((), bool), zero, zero)


@pytree
class Untruncated(RegenerationDartingMC):
    """Proposes truncated Gaussians, but compares with Gaussians that are not."""

    def log_ratio(self, state, library):
        inside = jnp.isfinite(RegenerationDartingMC.log_ratio(self, state, library))
        return jnp.where(inside, state.log_ratio, -jnp.inf)


@pytree
class NeverFails(RegenerationDartingMC):
    """Takes a draw outside of its own region, as long as it is in some other."""

    def propose(self, noise, library):
        return RegenerationDartingMC.propose(self, noise, library)[0], jnp.ones((), bool)


JUMPS = {"darting": DartingMC(OVERLAP), "regeneration": RegenerationDartingMC(radius=OVERLAP)}
SAMPLERS = JUMPS | {f"{name} cycle": whmc.Cycle((whmc.LocalHMC(), jump)) for name, jump in JUMPS.items()}
NUM_DRAWS = 20_000


@pytest.mark.parametrize("name", SAMPLERS)
def test_exact_with_right_and_wrong_libraries(name):
    case = problem("two-scale")
    libraries = {"right": case.library.padded(4)} | wrong_libraries(case.library)
    for which, library in libraries.items():
        report = invariance_test(SAMPLERS[name], case, library=library, num_steps=(1, 5), num_draws=NUM_DRAWS)
        assert report.passed, f"{which}: {report}"
        still = which == "missing" and name == "darting"  # one region: every dart returns
        assert (report.moved == 0) if still else (report.moved > 0.03), f"{which}: {report}"


@pytest.mark.parametrize("name", JUMPS)
def test_jumps_are_reversible_between_modes(name):
    case = problem("two-scale")
    flow = reversibility_test(JUMPS[name], case, library=case.library.padded(4), num_draws=NUM_DRAWS)
    assert flow.passed and flow.flow[0, 1] > 200, flow.flow


@pytest.mark.parametrize(
    ("kernel", "right"),
    [
        (Dart(count=0.0), Dart()),
        (Untruncated(radius=0.6), RegenerationDartingMC(radius=0.6)),
        (NeverFails(radius=0.6), RegenerationDartingMC(radius=0.6)),
    ],
    ids=["n(theta) dropped", "w not truncated", "failures taken"],
)
def test_fault_is_found(kernel, right):
    """Where regions overlap, and at radius .6 half of the draws fail; without the fault the same kernels pass."""
    case = near()
    assert invariance_test(right, case, num_steps=(1, 5), num_draws=NUM_DRAWS).passed
    report = invariance_test(kernel, case, num_steps=(1, 5), num_draws=NUM_DRAWS)
    assert not report.passed, str(report)


def _law_of_q(library: ModeLibrary, target: whmc.Target, radius: float, log_threshold: float, num: int) -> np.ndarray:
    """Draws of Q in NumPy: Gaussians that are in their own regions, kept with probability min(1, w/c)."""
    rng = np.random.default_rng(9)
    location, scale, log_weight, _ = columns(library)
    label, z = rng.choice(len(location), num, p=np.exp(log_weight)), rng.standard_normal((num, 2))
    position = (location[label] + np.einsum("nij,nj->ni", scale[label], z))[np.linalg.norm(z, axis=1) <= radius]
    logdensity = np.asarray(jax.vmap(target)(jnp.asarray(position)))
    log_w = _log_w(library, position, logdensity, radius)
    return position[np.log(rng.uniform(size=len(position))) < log_w - log_threshold]


def _p_value(first: np.ndarray, second: np.ndarray) -> float:
    order = np.concatenate([first, second])
    shares = [np.searchsorted(np.sort(part), order, side="right") / len(part) for part in (first, second)]
    gap = np.max(np.abs(shares[0] - shares[1]))
    return float(kolmogorov(gap * np.sqrt(len(first) * len(second) / (len(first) + len(second)))))


@pytest.mark.parametrize("right", [True, False])
def test_states_after_a_regeneration_have_law_q_and_forget_the_past(right):
    """From exact draws, whatever the charts. The control decides by the density instead of w."""
    case, radius, log_threshold, num = near(), 1.5, -0.5, 60_000
    library = wrong_libraries(case.library)["shifted"]
    kernel = RegenerationDartingMC(jnp.asarray(log_threshold), jnp.asarray(radius))
    start = case.draw(np.random.default_rng(0), num)[0]

    def one(key: jax.Array, x: jax.Array) -> tuple[jax.Array, jax.Array]:
        state = whmc.init(x, case.target, library)
        new, info = kernel.step(key, state, case.target, library)
        log_chance = log_regeneration(state.logdensity, new.logdensity, kernel.log_threshold)
        coin = jnp.log(draw_noise(jax.random.fold_in(key, 7), 1, 0).uniform[0])
        return new.position, info.regenerated if right else info.accepted & (coin < log_chance)

    new, flags = jax.jit(jax.vmap(one))(jax.random.split(jax.random.key(0), num), jnp.asarray(start))
    back = np.asarray(flags)
    seen, before = np.asarray(new)[back], start[back]
    expected = _law_of_q(library, case.target, radius, log_threshold, 4 * num)
    assert len(seen) > 1_000 and len(expected) > 10_000
    p_values = [_p_value(seen[:, d], expected[:, d]) for d in range(2)]
    assert (min(p_values) > 1e-6) == right, p_values
    if right:
        # the past in both modes, so that there is something to forget; 5 standard errors
        assert 0.05 < np.mean(before[:, 0] > 0.7) < 0.95
        assert abs(np.corrcoef(before[:, 0] > 0.7, seen[:, 0] > 0.7)[0, 1]) < 5 / np.sqrt(back.sum())


def test_restarts_have_law_q_too():
    case, radius = near(), 1.5
    library = wrong_libraries(case.library)["shifted"]
    kernel = RegenerationDartingMC(jnp.asarray(-0.5), jnp.asarray(radius))
    restart = draw_restart(jax.random.key(3), case.target, library, jnp.asarray(-0.5), kernel, num=400)
    assert np.all(np.asarray(restart.drawn))
    expected = _law_of_q(library, case.target, radius, -0.5, 100_000)
    for d in range(2):
        assert _p_value(np.asarray(restart.states.position)[:, d], expected[:, d]) > 1e-6


def test_a_run_that_adapts_by_the_residual_energy_ends_with_right_weights():
    """Independence's place in Algorithm 2 is taken by RDMC's jump; one mode is known at first."""
    case = problem("pair")
    kernel = whmc.Cycle((whmc.LocalHMC(), RegenerationDartingMC()))
    result = whmc.sample(case.target, modes=case.locations[:1], kernel=kernel, adapt="regeneration", seed=3, draws=800)
    assert result.library.size == 2 and result.num_updates > 0
    right = result.draws[..., 0] > 5
    error = occupancy(right.astype(int), 2).se[0]
    assert abs(right.mean() - 0.1) < 5 * error and error < 0.01


def test_independence_is_the_same_kind_of_kernel():
    """Its ratio is the state's own, and its noise the proposal's with two numbers more."""
    case = problem("pair")
    kernel = Independence()
    state = whmc.init(np.array([0.3, 0.1]), case.target, case.library)
    assert float(kernel.log_ratio(state, case.library)) == float(state.log_ratio)
    uniform, normal = kernel.num_proposal(case.library)
    assert kernel.num_noise(case.library) == (uniform + 2, normal)


def two_clusters(num: int, seed: int = 0) -> np.ndarray:
    """Draws of the pair, a third of them in its second mode."""
    case = problem("pair")
    draws, label = case.draw(np.random.default_rng(seed), 20 * num)
    return np.concatenate([draws[label == 0][: 2 * num], draws[label == 1][:num]])


def test_a_planted_cluster_is_found_and_what_is_covered_is_not():
    case = problem("pair")
    draws = two_clusters(300)
    known = case.library.padded(8)

    def looked(library, draws, search=DirichletSearch()):  # noqa: B008 - it is frozen
        return dirichlet.look(search, case.target, library, draws, np.zeros(len(draws)), jax.random.key(0))[1]

    found = looked(known.drop(1), draws)
    assert found.size == 2
    np.testing.assert_allclose(found.location[1], [10.0, 0.0], atol=5 / np.sqrt(300))
    np.testing.assert_allclose(found.covariance[1], np.eye(2), atol=5 * np.sqrt(2 / 300))
    assert looked(known, draws) is known
    assert looked(known.drop(1), draws, DirichletSearch(max_modes=1)).size == 1
    few = np.concatenate([draws[:600], draws[600:640]])  # forty are no chart
    assert looked(known.drop(1), few).size == 1


def test_dirichlet_mixtures_are_fitted_less_and_less_often():
    case = problem("pair")
    library, draws = case.library.padded(8).drop(1), two_clusters(300)
    search, sizes = DirichletSearch(), []
    for _ in range(8):
        search, found = dirichlet.look(search, case.target, library, draws, np.zeros(len(draws)), jax.random.key(0))
        sizes.append(found.size)
    assert sizes == [2, 2, 1, 2, 1, 1, 1, 2]


def test_gain_is_measured_on_draws_held_out():
    """Nothing for the mode's own draws even where they are few for the dimension; Kullback's divergence for others."""
    rng = np.random.default_rng(0)
    dim, num = 10, 400
    library = ModeLibrary.from_charts(np.zeros((1, dim)), np.eye(dim)[None])
    draws = rng.standard_normal((num, dim))
    assert gain(library, draws, 0.0) < 0
    # half of the mode is narrower than the mode, but it is not all of it
    half = draws[draws[:, 0] > 0]
    assert gain(library, half, 0.0) > 0 > gain(library, half, np.log(0.5))
    # 9 D/2, less what it costs to learn about D²/2 numbers from half of the draws: .17; the mean's own error is .7
    assert abs(gain(library, 3.0 + draws, 0.0) - 45.0) < 5 * 0.7


def test_slices_of_a_mode_are_put_together_and_modes_are_not():
    rng = np.random.default_rng(0)
    first, second = rng.standard_normal((300, 4)), rng.standard_normal((200, 4)) + np.array([7.0, 0, 0, 0])
    slices = [first[first[:, 0] < -0.5], first[np.abs(first[:, 0]) <= 0.5], first[first[:, 0] > 0.5], second]
    for prior in (np.eye(4), np.ones(4)):
        assert sorted(map(len, merged(slices, prior))) == [200, 300]


def test_components_do_not_blur_narrow_modes():
    """Modes a thousand standard deviations apart: the prior is a mode's own covariance, not that of all draws."""
    rng = np.random.default_rng(0)
    draws = np.concatenate([0.1 * rng.standard_normal((200, 3)), 100 + 0.1 * rng.standard_normal((200, 3))])
    parts = components(draws, 0.01 * np.eye(3), seed=0)
    assert all(np.ptp(part, axis=0).max() < 1 for part in parts)


def test_scikit_learn_is_asked_for_by_name(monkeypatch):
    monkeypatch.setitem(sys.modules, "sklearn.mixture", None)
    with pytest.raises(ImportError, match="pip install scikit-learn"):
        components(np.zeros((100, 2)), np.eye(2), seed=0)


def test_rdmc_whole_ends_with_right_weights():
    """Modes from parallel HMC chains, Dirichlet process mixtures at regenerations, weights by visits."""
    case = gaussian_mixture([0.7, 0.3], [[0, 0], [7, 3]], [np.eye(2), np.diag([2.0, 0.5])], "RDMC's pair")
    library = modes_from_chains(case.target, 12, step_size=0.4, num_steps=5, seed=1)
    distance = np.linalg.norm(case.means[:, None] - columns(library)[0], axis=-1).min(axis=1)
    assert np.all(distance < 0.5), columns(library)[0]
    # what the chains' starts say of the weights is not what they are
    library = dataclasses.replace(library, log_weight=jnp.full(library.size, -np.log(library.size))).padded(16)
    positions = library.location[np.arange(8) % library.size]
    kernel = arrays(whmc.Cycle((whmc.LocalHMC(), RegenerationDartingMC())))
    state, log = state_at(case.target, kernel, library, positions, 5), DrawsInMemory()
    state = dataclasses.replace(state, plan=dataclasses.replace(state.plan, draws=1200))
    *_, state = adaptive_blocks(state, case.target, log, Progress(False), dirichlet.look)
    trace, adaptation = gather(state, log), state.moment.adaptation
    assert adaptation.num_regenerations > 100 and np.all(adaptation.version > 0)
    right = np.swapaxes(trace.position[..., 0] > 3.8, 0, 1)
    truth = float(np.mean(case.draw(np.random.default_rng(0), 400_000)[0][:, 0] > 3.8))
    error = occupancy(right.astype(int), 2).se[0]
    assert abs(right.mean() - truth) < 5 * error and error < 0.02
