"""BlackJAX both ways: our kernels in its loops, its algorithms as our local moves."""

import re
import subprocess
import sys
from functools import partial
from pathlib import Path

import blackjax
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from blackjax.util import run_inference_algorithm

import whmc
from broken import MoveWithoutResponsibility
from contracts import columns, problem, wrong_libraries
from whmc.testing import invariance_test

pytestmark = pytest.mark.models

Move = whmc.blackjax.Move
NUTS = Move(blackjax.nuts, {"max_num_doublings": 4})
# hmc is among the kernels of contracts.py, and so held to all that ours are
MOVES = {
    "nuts": NUTS,
    "mala": Move(blackjax.mala),
    "hmc": Move(blackjax.hmc, {"num_integration_steps": 3}),
    "dynamic hmc": Move(blackjax.dynamic_hmc),
    "barker": Move(blackjax.barker, step_size=0.8),
    "slice": Move(blackjax.slice_sampling, {"max_expansions": 4}),
}


def _scores(draws, case):
    """How many standard errors the mean of chains' means is from the truth, for each coordinate."""
    means = draws.mean(axis=1)
    truth = np.asarray(case.weights) @ np.asarray(case.means)
    return (means.mean(axis=0) - truth) / (means.std(axis=0, ddof=1) / np.sqrt(len(means)))


# our kernels in BlackJAX's loops


def test_blackjax_runs_our_kernel_in_its_own_loop():
    case = problem("pair")
    algorithm = whmc.blackjax.as_top_level_api(case.target, case.library)

    def chain(key, position):
        last, (states, infos) = run_inference_algorithm(key, algorithm, 500, initial_position=position)
        return last.position, states.position, [info.accepted for info in infos]

    starts = jnp.asarray(case.draw(np.random.default_rng(0), 32)[0])
    keys = jax.random.split(jax.random.key(0), 32)
    last, draws, accepted = jax.jit(jax.vmap(chain))(keys, starts)
    np.testing.assert_array_equal(last, draws[:, -1])
    assert [part.shape for part in accepted] == [(32, 500)] * 3
    assert np.max(np.abs(_scores(np.asarray(draws), case))) < 5
    assert abs(np.mean(np.asarray(draws)[..., 0] > 5) - 0.1) < 0.02  # both modes, by their weights


def test_a_state_goes_on_where_it_was_and_transform_is_obeyed():
    case = problem("pair")
    algorithm = whmc.blackjax.as_top_level_api(case.target, case.library, whmc.LocalHMC(2))
    state = jax.jit(algorithm.init)(case.means[0])
    run = partial(run_inference_algorithm, jax.random.key(1), algorithm, 7, transform=lambda s, _: s.position)
    _, one = run(initial_state=state)
    by_hand, step = [], jax.jit(algorithm.step)
    for key in jax.random.split(jax.random.key(1), 7):
        state, _ = step(key, state)
        by_hand.append(state.position)
    np.testing.assert_allclose(one, by_hand, rtol=1e-9, atol=1e-9)


def test_positions_may_be_like_the_template():
    target = whmc.Target(lambda p: -(p["a"] ** 2) / 2 - jnp.sum(p["b"] ** 2), template={"a": 0.0, "b": np.zeros(2)})
    library = whmc.ModeLibrary.from_charts(np.zeros((1, 3)), np.ones((1, 3)))
    algorithm = whmc.blackjax.as_top_level_api(target, library, whmc.LocalHMC())
    state = jax.jit(algorithm.init)({"a": 3.0, "b": np.array([1.0, 2.0])})
    np.testing.assert_array_equal(state.position, [3.0, 1.0, 2.0])


FLOAT32 = """
import blackjax, jax, jax.numpy as jnp, numpy as np, whmc
target = whmc.Target(lambda x: jnp.logaddexp(-x @ x / 2, -(x - 6) @ (x - 6) / 2), dim=2)
with jax.enable_x64(True):
    double = whmc.ModeLibrary.from_charts([[0.0, 0.0], [6.0, 6.0]], np.ones((2, 2)))
try:
    whmc.blackjax.as_top_level_api(target, double).init(np.zeros(2))
    raise SystemExit("a float64 library was taken in float32")
except TypeError as error:
    assert "enable_x64" in str(error)
moves = (whmc.blackjax.Move(blackjax.nuts, {"max_num_doublings": 4}), whmc.Wormhole(), whmc.Independence())
algorithm = whmc.blackjax.as_top_level_api(target, double.rebuilt(), whmc.Cycle((*moves, whmc.LocalHMC())))
run = jax.jit(jax.vmap(lambda key: blackjax.util.run_inference_algorithm(
    key, algorithm, 400, initial_position=jnp.zeros(2), transform=lambda state, info: state.position)[1]))
draws = np.asarray(run(jax.random.split(jax.random.key(0), 16)))
assert draws.dtype == np.float32 and np.isfinite(draws).all()
assert 0.45 < np.mean(draws[:, 100:] > 3) < 0.55, np.mean(draws > 3)
assert not jax.config.jax_enable_x64
"""


def test_float32_where_the_library_is():
    subprocess.run([sys.executable, "-W", "error", "-c", FLOAT32], check=True)


# its algorithms as our moves


@pytest.mark.parametrize("name", MOVES)
def test_move_is_invariant_with_wrong_charts(name):
    case = problem("two-scale")
    library = wrong_libraries(case.library)["saddle"]
    report = invariance_test(MOVES[name], case, library=library, num_steps=(1, 10), num_draws=20_000)
    assert report.passed, str(report)
    assert report.moved > 0.5, str(report)


def test_without_responsibilities_it_is_not():
    """The move that passes, run as if a label did not depend on the position, fails by far."""
    case = problem("two-scale")
    library = wrong_libraries(case.library)["saddle"]
    broken = MoveWithoutResponsibility(MOVES["hmc"])
    report = invariance_test(broken, case, library=library, num_steps=(1, 10), num_draws=20_000)
    assert not report.passed, str(report)
    assert report.worst.gap > 2 * report.worst.detectable, str(report)


@pytest.mark.parametrize("name", ["hmc", "nuts"])
def test_sampling_tunes_the_steps_and_finds_the_weights(name):
    case = problem("log-gamma")
    kernel = whmc.Cycle((MOVES[name], whmc.Wormhole(), whmc.Independence()))
    result = whmc.sample(case.target, modes=case.locations, kernel=kernel, draws=400, seed=0)
    assert 0.7 < result.acceptance["Move"] < 0.9
    assert np.all(np.abs(columns(result.library)[3] - 1) > 0.01)  # the steps were one
    assert np.all(np.abs(result.modes.weight - case.weights) < 5 * result.modes.weight_se)
    truth = np.asarray(case.draw(np.random.default_rng(1), 200_000)[0]).mean(axis=0)
    table = result.parameters
    assert np.max(np.abs(table.mean - truth) / (table.sd * np.sqrt(1 / table.ess + 1 / 200_000))) < 5
    spent = result.steps["Move"].num_gradients
    assert (spent.min() == spent.max() == 3) if name == "hmc" else (1 <= spent.min() < spent.max() <= 15)
    assert "Move" in result.summary() and all(name.startswith(("Wormhole", "Indep")) for name in result.tuned)


def test_known_densities_are_not_computed_again():
    """A step of MALA costs one evaluation, although BlackJAX's `init` makes one more."""
    calls = []

    def counted(x):
        calls.append(1)
        return np.asarray(-0.5 * np.sum(np.square(x)))

    @jax.custom_jvp
    def logdensity(x):
        return jax.pure_callback(counted, jax.ShapeDtypeStruct((), x.dtype), x)

    @logdensity.defjvp
    def slope(primals, tangents):
        return logdensity(primals[0]), -primals[0] @ tangents[0]

    target = whmc.Target(logdensity, dim=2)
    library = whmc.ModeLibrary.from_charts([[0.0, 0.0], [1.0, 1.0]], np.ones((2, 2)))
    state = jax.jit(whmc.init)(np.ones(2), target, library)
    step = jax.jit(Move(blackjax.mala).step)
    jax.block_until_ready(step(jax.random.key(0), state, target, library))
    calls.clear()
    new, info = jax.block_until_ready(step(jax.random.key(1), state, target, library))
    assert len(calls) == 1 == int(info.num_gradients)
    found = target.evaluate(new.position)
    np.testing.assert_allclose(new.logdensity, found.logdensity, rtol=1e-12)
    np.testing.assert_allclose(new.score, found.score, rtol=1e-12)


@pytest.mark.parametrize("name", ["mala", "nuts"])
def test_no_chain_enters_where_the_density_is_undefined(name):
    """NaN above one, where the gradient is NaN too; the rest is a normal cut off there."""
    target = whmc.Target(lambda x: -0.5 * x @ x + 0.0 * jnp.sum(jnp.sqrt(1.0 - x)), dim=2)
    library = whmc.ModeLibrary.from_charts([[0.0, 0.0], [1.0, 1.0]], np.ones((2, 2)), step_size=[0.8, 0.8])
    algorithm = whmc.blackjax.as_top_level_api(target, library, MOVES[name])

    def chain(key):
        return run_inference_algorithm(key, algorithm, 1000, initial_position=jnp.zeros(2))[1][0]

    states = jax.jit(jax.vmap(chain))(jax.random.split(jax.random.key(0), 64))
    draws = np.asarray(states.position)
    assert np.isfinite(np.asarray(states.logdensity)).all() and np.isfinite(np.asarray(states.score)).all()
    assert draws.max() < 1
    truth = -np.exp(-0.5) / np.sqrt(2 * np.pi) / 0.8413447460685429  # mean of a normal below one
    means = draws[:, 100:].mean(axis=1)
    assert np.max(np.abs(means.mean(axis=0) - truth) / (means.std(axis=0, ddof=1) / 8)) < 5


@pytest.mark.parametrize(
    ("algorithm", "settings", "error", "message"),
    [
        (blackjax.mclmc, {"L": 1.0}, ValueError, "mclmc does not leave"),
        (blackjax.elliptical_slice, {"mean": 0.0, "cov": 1.0}, ValueError, "elliptical_slice does not leave"),
        (blackjax.hmc, {}, TypeError, "hmc needs num_integration_steps"),
        (blackjax.nuts, {"num_integration_steps": 3}, TypeError, "takes no setting 'num_integration_steps'"),
        (blackjax.nuts, {"step_size": 0.1}, TypeError, "Move.nuts, step_size="),
    ],
    ids=["unadjusted", "a likelihood", "missing", "unknown", "step size"],
)
def test_what_cannot_be_a_move_is_refused(algorithm, settings, error, message):
    with pytest.raises(error, match=message):
        Move(algorithm, settings)


def test_an_algorithm_without_a_single_position_is_refused():
    case = problem("pair")
    state = whmc.init(case.means[0], case.target, case.library)
    settings = {"bijection": blackjax.mcmc.integrators.velocity_verlet, "period": 4}
    move = Move(blackjax.orbital_hmc, settings)
    with pytest.raises(TypeError, match="holds no single position"):
        jax.eval_shape(move.step, jax.random.key(0), state, case.target, case.library)


def test_moves_alike_are_one_to_the_compiler():
    def structure(number, step_size):
        return jax.tree.structure(Move(blackjax.hmc, {"num_integration_steps": number}, step_size))

    assert structure(3, 0.1) == structure(3, 0.2) and hash(structure(3, 0.1)) == hash(structure(3, 0.2))
    assert structure(3, 0.1) != structure(4, 0.1)
    assert structure(3, 0.1) != structure(3, None)
    assert structure(3, 0.1) != jax.tree.structure(Move(blackjax.mala, step_size=0.1))
    # nor does the text, by which a stored run knows its kernel, depend on the process
    integrator = blackjax.mcmc.integrators.yoshida
    text = str(jax.tree.structure(Move(blackjax.nuts, {"integrator": integrator})))
    assert "nuts(integrator=" in text and "0x" not in text


def test_a_stored_run_knows_its_move_again(tmp_path):
    case = problem("pair")
    kernel = whmc.Cycle((Move(blackjax.mala), whmc.Wormhole(), whmc.Independence()))
    options = {"modes": case.locations, "kernel": kernel, "chains": 4, "warmup": 40}
    whole = whmc.sample(case.target, draws=200, **options)
    whmc.sample(case.target, draws=100, store=tmp_path / "run", **options)
    with pytest.raises(whmc.StoreError, match="give it again"):
        whmc.resume(tmp_path / "run", case.target, draws=200)
    again = whmc.Cycle((Move(blackjax.mala), whmc.Wormhole(), whmc.Independence()))
    more = whmc.resume(tmp_path / "run", case.target, draws=200, kernel=again)
    np.testing.assert_array_equal(more.draws, whole.draws)


PAGES = {
    "models-blackjax": """
assert (abs(result.modes.weight - [0.7, 0.3]) < 5 * result.modes.weight_se).all() and report.passed
assert draws.shape == (16, 1000, 4) and abs(share - 0.7) < 0.05
""",
    "models-hierarchical": """
mu, tau = result.parameters.mean[:2]  # by NUTS: 4.4 and 3.6
assert abs(mu - 4.4) < 0.3 and abs(tau - 3.6) < 0.3
assert result.parameters.ess.min() > 5000 and result.alarms == ()
""",
}


@pytest.mark.parametrize("page", PAGES)
def test_the_page_runs(page, tmp_path):
    text = (Path(__file__).parent.parent / "docs" / f"{page}.md").read_text()
    blocks = re.findall(r"```python\n(.*?)```", text, flags=re.DOTALL)
    assert len(blocks) == {"models-blackjax": 4, "models-hierarchical": 1}[page]
    code = "\n".join([*blocks, PAGES[page]])
    subprocess.run([sys.executable, "-W", "error", "-c", code], check=True, cwd=tmp_path)
