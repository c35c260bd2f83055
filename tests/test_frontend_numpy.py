"""Plain Python densities: derivatives, calls, processes, and exceptions that reach the user."""

import concurrent.futures
import dataclasses
import gc
import multiprocessing.pool
import os
import re
import signal
import subprocess
import sys
import threading
import time
import traceback
import weakref
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import whmc
from whmc.frontends import callback
from whmc.frontends.blackbox import BlackBox, density, from_numpy
from whmc.frontends.workers import Rows, WorkerDied, Workers
from whmc.kernels.local import LocalHMC
from whmc.kernels.settings import WALKS
from whmc.target.target import Target
from whmc.testing import gaussian_mixture, invariance_test

pytestmark = pytest.mark.models

POINTS = np.random.default_rng(0).normal(size=(100, 3))
SCALES = np.array([0.5, 1.0, 2.0])


def logp(x):
    """Curved: a Gaussian and a quartic term."""
    return -0.5 * np.sum((x / SCALES) ** 2) - 0.1 * x[0] ** 4 + x[0] * x[1]


def grad(x):
    return -x / SCALES**2 + np.array([-0.4 * x[0] ** 3 + x[1], x[0], 0.0])


def hessian(x):
    curvature = np.diag(-1 / SCALES**2)
    curvature[0, 0] -= 1.2 * x[0] ** 2
    curvature[0, 1] = curvature[1, 0] = 1.0
    return curvature


def both(x):
    return logp(x), grad(x)


def many(x):
    return np.array([logp(row) for row in x]), np.array([grad(row) for row in x])


FORMS = {
    "a function": lambda: from_numpy(logp, grad, dim=3),
    "together": lambda: from_numpy(both, True, dim=3),
    "vectorized": lambda: from_numpy(many, True, dim=3, vectorized=True),
    "vectorized, apart": lambda: from_numpy(lambda x: many(x)[0], lambda x: many(x)[1], dim=3, vectorized=True),
    "further arguments": lambda: from_numpy(lambda x, c: c * logp(x), lambda x, c: c * grad(x), dim=3, args=(1.0,)),
    "a pool": lambda: from_numpy(both, True, dim=3, parallel=multiprocessing.pool.ThreadPool(2)),
    "an executor": lambda: from_numpy(both, True, dim=3, parallel=concurrent.futures.ThreadPoolExecutor(2)),
    "a pool, vectorized": lambda: from_numpy(
        many, True, dim=3, vectorized=True, parallel=concurrent.futures.ThreadPoolExecutor(3)
    ),
    "futures": lambda: from_numpy(both, True, dim=3, parallel=Futures()),
}


class Futures:
    """A pool that gives futures, as dask does."""

    def map(self, function, rows):
        with concurrent.futures.ThreadPoolExecutor(2) as executor:
            return [executor.submit(function, row) for row in rows]


@pytest.mark.parametrize("form", FORMS)
def test_values_and_gradients_are_the_functions_own(form):
    target = FORMS[form]()
    values, scores = jax.jit(jax.vmap(jax.value_and_grad(target)))(jnp.asarray(POINTS))
    assert np.array_equal(values, [logp(x) for x in POINTS])
    assert np.array_equal(scores, [grad(x) for x in POINTS])
    assert np.array_equal(jax.vmap(target)(jnp.asarray(POINTS)), values)
    one, slope = jax.value_and_grad(target)(jnp.asarray(POINTS[7]))
    assert one == values[7] and np.array_equal(slope, scores[7])
    nested = jax.vmap(jax.vmap(jax.grad(target)))(jnp.asarray(POINTS.reshape(4, 25, 3)))
    assert np.array_equal(nested, scores.reshape(4, 25, 3))
    close = getattr(target.logdensity.box.table, "pool", None)
    if hasattr(close, "terminate"):
        close.terminate()
    elif hasattr(close, "shutdown"):
        close.shutdown()


class Counting(BlackBox):
    """Counts rows."""

    def __init__(self):
        self.scored, self.alone = [], []

    def evaluate(self, points):
        self.scored.append(len(points))
        return np.array([logp(x) for x in points]), np.array([grad(x) for x in points])

    def values(self, points):
        self.alone.append(len(points))
        return np.array([logp(x) for x in points])


def test_a_gradient_is_one_call_and_a_value_needs_no_gradient():
    box = Counting()
    target, points = Target(density(box, 3), dim=3), jnp.asarray(POINTS)
    jax.jit(jax.vmap(jax.value_and_grad(target)))(points)[1].block_until_ready()
    assert (box.scored, box.alone) == ([100], [])
    jax.jit(jax.vmap(target))(points).block_until_ready()
    assert (box.scored, box.alone) == ([100], [100])
    jax.jit(jax.vmap(jax.grad(target)))(points + 1).block_until_ready()
    assert (box.scored, box.alone) == ([100, 100], [100])
    # a trajectory of four steps of ten chains: forty rows, four calls
    library = whmc.ModeLibrary.from_charts(np.zeros((1, 3)), np.eye(3)[None], step_size=np.array([0.3]))
    states = jax.vmap(lambda x: whmc.init(x, target, library))(points[:10])
    jax.block_until_ready(states)
    box.scored.clear()
    keys = jax.random.split(jax.random.key(0), 10)
    moved, _ = jax.jit(jax.vmap(LocalHMC(4).step, (0, 0, None, None)))(keys, states, target, library)
    jax.block_until_ready(moved)
    assert box.scored == [10] * 4 and len(box.alone) == 1


def test_rows_that_stand_still_are_not_evaluated_again():
    box = Counting()
    score = jax.jit(jax.vmap(jax.grad(density(box, 3))))
    first = POINTS[:10]
    moved = np.concatenate([first[:7], POINTS[10:13]])
    for rows in (first, moved, moved, POINTS[:9]):
        assert np.array_equal(score(jnp.asarray(rows)), [grad(x) for x in rows])
    assert box.scored == [10, 3, 9]


def test_second_derivatives():
    target, points = from_numpy(both, True, dim=3), jnp.asarray(POINTS[:20])
    expected = np.array([hessian(x) for x in POINTS[:20]])
    assert np.allclose(jax.jit(jax.vmap(jax.hessian(target)))(points), expected, atol=1e-8)
    way = jnp.array([0.3, -2.0, 50.0])
    product = jax.vmap(lambda x: jax.jvp(jax.grad(target), (x,), (way,))[1])(points)
    assert np.allclose(product, expected @ np.asarray(way), rtol=1e-6, atol=1e-6)
    with pytest.warns(UserWarning, match="7 calls"):
        rough = from_numpy(logp, dim=3)
    assert np.allclose(jax.vmap(jax.hessian(rough))(points), expected, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("scale", [1e-9, 1e-5, 1.0, 1e5])
def test_second_differences_find_the_scale_of_the_density(scale):
    """Standard deviations from a millionth of the start box down to a share of a unit, values and scores."""

    def narrow(x):
        return -0.5 * np.sum(x**2) / scale**2 - 0.1 * np.sum(x**4) / scale**4

    starts = (-100 * scale, 100 * scale)
    with pytest.warns(UserWarning, match="5 calls"):
        rough = from_numpy(narrow, dim=2, starts=starts)
    exact = from_numpy(narrow, lambda x: -x / scale**2 - 0.4 * x**3 / scale**4, dim=2, starts=starts)
    for target, tolerance in ((exact, 1e-4), (rough, 1e-2)):
        found = np.asarray(jax.hessian(target)(jnp.zeros(2))) * scale**2
        assert np.allclose(found, -np.eye(2), atol=tolerance)


@pytest.fixture(params=["in place", "anywhere"])
def road(request, monkeypatch):
    """Both ways to call back; the second is for devices with a memory of their own."""
    if request.param == "anywhere":
        monkeypatch.setattr(callback, "_in_place", callback._anywhere)


def test_single_precision_where_jax_has_no_other(road):
    target = from_numpy(both, True, dim=3)
    with jax.enable_x64(False):
        value, score = jax.jit(jax.value_and_grad(target))(jnp.asarray(POINTS[0], jnp.float32))
        assert value.dtype == score.dtype == jnp.float32
        assert np.allclose(score, grad(POINTS[0]), rtol=1e-5)


def test_double_precision_survives_where_it_is_not_the_default(road):
    """A callback may run in a thread of its own, where the caller's `enable_x64` does not hold."""
    seen = []

    def remember(x):
        seen.append((threading.current_thread() is threading.main_thread(), x.copy()))
        return -0.5 * np.sum(x**2, axis=1), -x

    target = from_numpy(remember, True, dim=100, vectorized=True)
    points = np.random.default_rng(1).normal(size=(64, 100))
    jax.config.update("jax_enable_x64", False)
    try:
        with jax.enable_x64(True):
            matrix = jnp.asarray(np.random.default_rng(2).normal(size=(400, 400)) / 20)
            steps = jax.jit(
                lambda x: jax.lax.fori_loop(0, 20, lambda _, x: x + 1e-3 * jax.vmap(jax.grad(target))(x), x)
            )
            steps = steps.lower(jnp.asarray(points)).compile()  # before `late` begins, so that it is not done by then
            # JAX does not wait for what takes long: what needs it runs later, elsewhere
            late = jax.jit(lambda x: jax.lax.fori_loop(0, 300, lambda _, y: y @ x / 2, x))(matrix)[:64, :100]
            last = np.asarray(steps(jnp.asarray(points) + 0.0 * late))
    finally:
        jax.config.update("jax_enable_x64", True)
    assert not any(here for here, _ in seen)
    assert np.array_equal(seen[0][1], points)
    assert last.dtype == np.float64 and np.allclose(last, points * 0.999**20, rtol=1e-12)


def test_places_that_are_not_numbers_are_not_asked_about():
    def strict(x):
        assert np.all(np.isfinite(x))
        return both(x)

    target = from_numpy(strict, True, dim=3)
    points = jnp.asarray(POINTS[:3]).at[1, 0].set(jnp.inf)
    found = jax.vmap(target.evaluate)(points)
    assert np.isneginf(found.logdensity[1]) and np.all(found.score[1] == 0)
    assert np.array_equal(found.score[2], grad(POINTS[2]))
    assert np.isneginf(target(points[1]))


def test_outside_of_the_support_no_gradient_is_asked_for():
    def inside(x):
        return np.log(x[0]) if x[0] > 0 else (np.nan if x[0] < -5 else -np.inf)

    def slope(x):
        assert x[0] > 0
        return 1 / x

    found = jax.vmap(from_numpy(inside, slope, dim=1).evaluate)(jnp.array([[2.0], [-1.0], [-9.0]]))
    assert np.allclose(found.logdensity, [np.log(2), -np.inf, -np.inf])
    assert np.array_equal(found.score, [[0.5], [0.0], [0.0]])
    assert np.array_equal(found.failed, [False, False, True])


# differences


def test_differences_are_close_and_say_what_they_cost():
    calls = []

    def counted(x):
        calls.append(x)
        return logp(x)

    with pytest.warns(UserWarning, match=r"every gradient of the search is 7 calls of logp") as caught:
        target = from_numpy(counted, dim=3, starts=(-4.0, 4.0))
    assert len(caught) == 1
    values, scores = jax.vmap(jax.value_and_grad(target))(jnp.asarray(POINTS))
    assert len(calls) == 700
    assert np.array_equal(values, [logp(x) for x in POINTS])
    assert np.allclose(scores, [grad(x) for x in POINTS], rtol=1e-7, atol=1e-7)
    jax.vmap(target)(jnp.asarray(POINTS)).block_until_ready()
    assert len(calls) == 800


def test_differences_at_the_edge_of_the_support():
    """From the side that has density; nothing where neither has."""

    def wedge(x):
        return -3.0 * x[0] if x[0] >= 0 and x[1] == 0.5 else -np.inf

    with pytest.warns(UserWarning, match="5 calls"):
        target = from_numpy(wedge, dim=2)
    found = jax.vmap(target.evaluate)(jnp.array([[0.0, 0.5], [1.0, 0.5], [-1.0, 0.5]]))
    assert np.allclose(found.score, [[-3.0, 0.0], [-3.0, 0.0], [0.0, 0.0]], atol=1e-8)
    assert np.array_equal(np.isfinite(found.logdensity), [True, True, False])


def test_many_differences_are_made_in_parts(monkeypatch):
    monkeypatch.setattr("whmc.frontends.blackbox.AT_ONCE", 3 * 7 * 10)
    batches = []

    def counted(x):
        batches.append(len(x))
        return np.array([logp(row) for row in x])

    with pytest.warns(UserWarning, match="7 calls"):
        target = from_numpy(counted, dim=3, vectorized=True)
    scores = jax.vmap(jax.grad(target))(jnp.asarray(POINTS))
    assert np.allclose(scores, [grad(x) for x in POINTS], atol=1e-7) and batches == [70] * 10


@pytest.mark.parametrize("honest", [True, False])
def test_a_rough_gradient_does_not_bend_the_distribution(honest):
    """The force in steps and a third too weak: still invariant. Values that are wrong by a tenth are seen."""
    problem = gaussian_mixture([0.4, 0.6], [[-2.0, 0.0], [2.0, 1.0]], np.ones((2, 2)))
    value_and_score = jax.jit(jax.vmap(jax.value_and_grad(problem.target)))
    weights, means = np.array([0.4, 0.6]), np.array([[-2.0, 0.0], [2.0, 1.0]])

    def rough(x):
        gaps = x[:, None] - means
        heights = np.log(weights) - 0.5 * np.sum(gaps**2, axis=2)
        value = np.logaddexp(*heights.T)
        score = -np.einsum("nk,nkd->nd", np.exp(heights - value[:, None]), gaps)
        return value if honest else 0.9 * value, np.round(1.3 * score) / 2

    value, score = value_and_score(jnp.asarray(POINTS[:, :2]))
    assert np.std(np.asarray(value) - rough(POINTS[:, :2])[0]) < (1e-12 if honest else np.inf)
    assert np.max(np.abs(np.asarray(score) - rough(POINTS[:, :2])[1])) > 0.3
    bent = dataclasses.replace(problem, target=from_numpy(rough, True, dim=2, vectorized=True))
    report = invariance_test(LocalHMC(3), bent, num_steps=(1, 10), num_draws=20_000)
    assert report.passed == honest and report.moved > 0.8, report


# exceptions


class Trouble(Exception):
    """The user's own."""


def troubled(x):
    if x[0] > 0.5:
        raise Trouble("no solution", float(x[0]))  # the line to be shown
    return -0.5 * np.sum(x**2), -x


def shown(error):
    return "".join(traceback.format_exception(error))


@pytest.mark.parametrize("parallel", [None, 2])
def test_an_exception_reaches_the_user_as_it_is(parallel, caplog):
    target = from_numpy(troubled, True, dim=2, starts=(-1.0, 1.0), parallel=parallel)
    with pytest.raises(Trouble) as caught:
        whmc.sample(target, modes=[[0.0, 0.0], [0.75, 0.0]], progress=False)
    assert caught.value.args == ("no solution", 0.75)
    text = shown(caught.value)
    assert "# the line to be shown" in text and "Jax" not in text and "jax/_src" not in text
    assert ("RemoteTraceback" in text) == (parallel is not None)
    assert caplog.records == []  # JAX would log a traceback of its own
    assert target.logdensity.box.trouble is None
    if parallel:
        target.logdensity.box.table.close()


def test_an_exception_in_a_search_reaches_the_user():
    target = from_numpy(troubled, True, dim=2, starts=np.array([[0.0, 0.0], [0.9, 0.0]]))
    with pytest.raises(Trouble, match="no solution"):
        whmc.find_modes(target, finder=whmc.MultiStart(4))


def test_an_exception_in_mid_run_names_what_was_kept(tmp_path):
    calls = []

    def later(x):
        calls.append(1)
        if len(calls) > 400:
            raise Trouble("after a while")
        return -0.5 * np.sum(x**2), -x

    target = from_numpy(later, True, dim=1)
    with pytest.raises(Trouble, match="after a while") as caught:
        whmc.sample(target, modes=[[0.0]], chains=4, warmup=50, draws=1000, store=tmp_path / "run", progress=False)
    assert any("whmc.resume" in note for note in caught.value.__notes__)
    target = from_numpy(lambda x: (-0.5 * np.sum(x**2), -x), True, dim=1)
    assert whmc.resume(tmp_path / "run", target, progress=False).draws.shape == (4, 1000, 1)


def failing_after(num):
    """A density that raises after so many calls, and the list of its calls."""
    calls = []

    def function(x):
        calls.append(1)
        if len(calls) > num:
            raise Trouble("after a while")
        return -0.5 * np.sum(x**2), -x

    return function, calls


def test_an_exception_after_the_search_leaves_no_traceback_of_jax(caplog, monkeypatch):
    """A search inside of a run ends its own watch for exceptions; that of the run goes on."""
    monkeypatch.setattr(callback, "_in_place", callback._anywhere)  # the one that JAX writes to its log
    asked = {"finder": whmc.MultiStart(4), "seed": 3}
    function, calls = failing_after(10**9)
    whmc.search_modes(from_numpy(function, True, dim=1, starts=(-1.0, 1.0)), **asked)
    function, _ = failing_after(len(calls) + 500)
    target = from_numpy(function, True, dim=1, starts=(-1.0, 1.0))
    with pytest.raises(Trouble, match="after a while"):
        whmc.sample(target, **asked, chains=4, warmup=500, draws=1000, progress=False)
    assert caplog.records == []


def test_watches_for_exceptions_can_be_nested(caplog, monkeypatch):
    monkeypatch.setattr(callback, "_in_place", callback._anywhere)
    target = from_numpy(troubled, True, dim=2)

    def outer():
        with target.user_errors():
            with target.user_errors():
                pass
            jax.grad(target)(jnp.array([0.9, 0.0]))

    with pytest.raises(Trouble):
        outer()
    assert caplog.records == []


def test_a_check_shows_the_users_exception():
    lines = from_numpy(troubled, True, dim=2, starts=(0.6, 1.0)).check().lines
    assert [line[1] for line in lines if not line[0]] == ["starts"]
    assert lines[-1][2].startswith("Trouble: ('no solution', 0.")


@pytest.mark.parametrize("num", [100, 300, 513])
def test_a_check_shows_an_exception_whenever_it_comes(num):
    function, _ = failing_after(num)
    lines = from_numpy(function, True, dim=2, starts=(0.6, 1.0)).check().lines
    assert lines[-1][0] is False and lines[-1][2] == "Trouble: after a while"


def test_a_check_says_what_a_gradient_costs():
    """A millisecond a call, three calls a gradient; what was asked before must not count as quick."""

    def slow(x):
        time.sleep(1e-3)
        return -0.5 * np.sum(x**2)

    with pytest.warns(UserWarning, match="every gradient of the search is 3 calls"):
        report = str(from_numpy(slow, dim=1, starts=(-1.0, 1.0)).check())
    told = re.search(r"([\d.]+) ms a gradient \(3 calls\); search 18,000 gradients, ([\d.]+) (s|min|h),", report)
    assert told and 3 <= float(told[1]) < 300, report
    search = float(told[2]) * {"s": 1, "min": 60, "h": 3600}[told[3]]
    np.testing.assert_allclose(search, 18 * float(told[1]), rtol=0.01)


def test_an_old_exception_is_not_taken_for_a_new_error():
    target = from_numpy(troubled, True, dim=2)
    with pytest.raises(Exception, match="no solution"):
        jax.grad(target)(jnp.array([0.9, 0.0]))
    with pytest.raises(ValueError, match="modes has shape"):
        whmc.sample(target, modes=[[0.0, 0.0, 0.0]], progress=False)


@pytest.mark.filterwarnings("ignore:from_numpy without grad")
def test_without_a_gradient_chains_take_one_call_an_evaluation():
    """Two Gaussians at distance 8: the draws that one run has more than another cost as many calls as evaluations."""
    calls = 0

    def logp(x):
        nonlocal calls
        calls += 1
        return np.logaddexp(-0.5 * x @ x, -0.5 * (x - 4) @ (x - 4) - 1)

    target = from_numpy(logp, dim=4, starts=(-2.0, 6.0))
    assert not target.has_gradient and target.without_scores is target.without_scores
    spent = []
    for draws in (20, 220):
        before = calls
        result = whmc.sample(target, modes=[[0.0] * 4, [4.0] * 4], draws=draws, warmup=100, chains=4, progress=False)
        spent.append((calls - before, result.gradients.total, result.gradients.modes))
    more_calls, more, more_ascents = np.diff(spent, axis=0)[0]
    assert more - more_ascents == 200 * 4 * (WALKS + 2)
    # where a chain stands still nothing is called; the slopes that ascents follow are differences
    assert 0.98 * (more - more_ascents) < more_calls <= more + 2 * 4 * max(more_ascents, 0)
    assert [move for move in result.steps if move.startswith("LocalWalk")] == [f"LocalWalk[{n}]" for n in range(WALKS)]
    assert abs(result.modes.weight[0] - 1 / (1 + np.exp(-1))) < 5 * result.modes.weight_se[0]
    assert not any(move.startswith("LocalHMC") for move in result.steps)


@pytest.mark.parametrize(
    ("function", "gradient", "kind", "message"),
    [
        (lambda x: x, None, ValueError, "logp must return one real number, it returned ndarray of shape"),
        (lambda x: None, None, ValueError, "logp must return one real number, it returned None"),
        (lambda x: (1.0, x, "blob"), None, TypeError, "grad=True if the second"),
        (lambda x: 1.0, True, TypeError, r"logp returns \(value, gradient\), it returned 1.0"),
        (lambda x: 1.0, lambda x: 1.0, ValueError, r"the gradient must return real numbers of shape \(2,\)"),
        (lambda x: 1j, None, TypeError, "one real number"),
    ],
)
@pytest.mark.filterwarnings("ignore:from_numpy without grad")
def test_what_functions_return_is_checked(function, gradient, kind, message):
    target = from_numpy(function, gradient, dim=2)
    with pytest.raises(kind, match=message):
        whmc.sample(target, modes=[[0.0, 0.0]], progress=False)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"grad": False}, "grad must be a function, True"),
        ({"parallel": 0}, "number of processes"),
        ({"parallel": 1.5}, "number of processes"),
        ({"parallel": True}, "number of processes"),
        ({"bounds": (0.0, 1.0), "prior_transform": lambda u: u}, "leave bounds out"),
        ({"dim": 0}, "dim must be a positive integer"),
    ],
)
def test_what_is_given_is_checked(given, message):
    with pytest.raises((TypeError, ValueError), match=message):
        from_numpy(**{"logp": both, "grad": True, "dim": 3} | given)


# processes


@pytest.fixture
def two():
    """Two workers for a table; ended afterwards."""
    made = []

    def make(rows, num=2):
        made.append(Workers(rows, num))
        return made[-1]

    yield make
    for workers in made:
        workers.close()


def test_workers_give_what_the_function_gives_and_know_no_jax(two):
    def where(x):
        print("this goes to standard error")
        import os
        import sys

        return float(os.getpid()), np.array([float("jax" in sys.modules), float(os.environ["OMP_NUM_THREADS"]), x[0]])

    workers = two(Rows(where, True))
    assert workers._processes == []  # not before they are needed
    table = workers(POINTS, True)
    assert np.array_equal(np.unique(table[:, 0], return_counts=True)[1], [50, 50])
    assert os.getpid() not in table[:, 0]
    assert np.all(table[:, 1] == 0) and np.all(table[:, 2] == 1) and np.array_equal(table[:, 3], POINTS[:, 0])
    assert set(workers(POINTS, True)[:, 0]) == set(table[:, 0])  # they stay
    assert workers(POINTS[:1], False).shape == (1, 1)


def test_workers_agree_with_one_process():
    target = from_numpy(both, True, dim=3, parallel=2)
    values, scores = jax.jit(jax.vmap(jax.value_and_grad(target)))(jnp.asarray(POINTS))
    assert np.array_equal(values, [logp(x) for x in POINTS]) and np.array_equal(scores, [grad(x) for x in POINTS])
    target.logdensity.box.table.close()


def test_workers_end_with_their_target():
    target = from_numpy(lambda x: (0.0, x), True, dim=3, parallel=2)
    target.logdensity.box.evaluate(POINTS)
    processes, gone = list(target.logdensity.box.table._processes), weakref.ref(target)
    assert [process.poll() for process in processes] == [None, None]
    del target
    gc.collect()
    assert gone() is None and [process.returncode for process in processes] == [0, 0]


def test_a_worker_that_dies_is_told_and_others_take_its_place(two):
    def mortal(x):
        if x[0] > 100:
            import os
            import signal

            os.kill(os.getpid(), signal.SIGKILL)
        return 0.0

    workers = two(Rows(mortal))
    assert workers(POINTS, False).shape == (100, 1)
    began = time.monotonic()
    with pytest.raises(WorkerDied, match="was ended by SIGKILL"):
        workers(POINTS + 200 * (np.arange(100) == 99)[:, None], False)
    os.kill(_started(workers), signal.SIGKILL)
    time.sleep(0.2)
    with pytest.raises(WorkerDied, match="SIGKILL"):
        workers(POINTS, False)
    assert time.monotonic() - began < 60
    assert workers(POINTS, False).shape == (100, 1)


def _started(workers):
    workers(POINTS, False)
    return workers._processes[0].pid


def test_a_keyboard_interrupt_is_not_the_workers_business(two):
    workers = two(Rows(lambda x: 1.0))
    pid = _started(workers)
    os.kill(pid, signal.SIGINT)
    time.sleep(0.1)
    assert np.all(workers(POINTS, False) == 1.0) and workers._processes[0].pid == pid


def test_an_exception_that_cannot_travel_is_told(two):
    def stuck(x):
        import threading

        error = KeyError("own")
        error.lock = threading.Lock()
        raise error

    with pytest.raises(RuntimeError, match="in a worker process: KeyError: 'own'") as caught:
        two(Rows(stuck))(POINTS, False)
    assert "raise error" in str(caught.value.__cause__)


def test_what_cannot_be_pickled_is_said_at_once():
    lock = threading.Lock()

    def holding(x):
        with lock:
            return 0.0

    with pytest.raises(TypeError, match=r"parallel=2 sends logp to other processes, but it cannot be pickled.*lock"):
        from_numpy(holding, True, dim=1, parallel=2)


@pytest.mark.parametrize(
    ("code", "message"),
    [("def logp(x): return 0.0", "functions of the main script"), ("logp = lambda x: 0.0", "lambdas and functions")],
)
def test_without_cloudpickle_functions_of_a_script_are_refused(code, message):
    program = f"""
import importlib.util, sys
sys.modules["cloudpickle"] = None
found = importlib.util.find_spec
importlib.util.find_spec = lambda name: None if name == "cloudpickle" else found(name)
from whmc.frontends.workers import Rows, Workers
import operator
Workers(Rows(operator.length_hint), 2)  # what has an importable name needs no cloudpickle
{code}
try:
    Workers(Rows(logp), 2)
except TypeError as error:
    print(error)
assert "jax" not in sys.modules
"""
    done = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True)
    assert message in done.stdout and ".[parallel]" in done.stdout


def test_a_script_without_a_main_guard_can_use_processes(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(
        "import numpy as np\n"
        "from whmc.frontends.workers import Rows, Workers\n"
        "CENTRE = np.ones(2)\n"
        "def logp(x): return -np.sum((x - CENTRE) ** 2)\n"
        "print('once')\n"
        "print(Workers(Rows(logp), 2)(np.zeros((4, 2)), False).ravel())\n"
    )
    done = subprocess.run([sys.executable, str(script)], check=True, capture_output=True, text=True)
    assert done.stdout == "once\n[-2. -2. -2. -2.]\n" and done.stderr == ""


# runs


def banana(x):
    return -0.5 * x[0] ** 2 - 0.5 * ((x[1] - 0.3 * x[0] ** 2) / 0.7) ** 2


def banana_score(x):
    bend = (x[1] - 0.3 * x[0] ** 2) / 0.49
    return np.array([-x[0] + 0.6 * x[0] * bend, -bend])


def test_draws_agree_with_the_same_density_in_jax():
    settings = {"modes": [[0.0, 0.0]], "chains": 16, "draws": 500, "warmup": 300, "progress": False}
    plain = whmc.sample(from_numpy(banana, banana_score, dim=2), seed=1, **settings)
    in_jax = whmc.sample(Target(banana, dim=2), seed=2, **settings)
    for statistic in (lambda x: x, lambda x: x**2, lambda x: x[..., :1] * x[..., 1:]):
        first, second = (statistic(run.draws).mean(axis=1) for run in (plain, in_jax))
        gap = first.mean(axis=0) - second.mean(axis=0)
        error = np.sqrt(first.var(axis=0, ddof=1) / 16 + second.var(axis=0, ddof=1) / 16)
        assert np.all(np.abs(gap) < 5 * error)
        assert np.all(error < 0.2)
    assert abs(plain.log_evidence - np.log(2 * np.pi * 0.7)) < 5 * plain.log_evidence_se + 1e-3


def test_the_documented_example_runs_and_is_right(tmp_path):
    """The bounded model with two solutions, by bounds and by prior transform, against a sum over a grid."""
    text = (Path(__file__).parent.parent / "docs" / "models-numpy.md").read_text()
    blocks = re.findall(r"```python\n(.*?)```", text, flags=re.DOTALL)
    assert len(blocks) == 3
    checks = """
angle, speed = np.meshgrid(np.linspace(0, 90, 4001)[1:-1], np.linspace(8, 16, 801), indexing="ij")
mass = np.exp(-0.5 * ((distance(angle, speed) - 6.8) / 0.3) ** 2 - 0.5 * ((speed - 12) / 0.5) ** 2)
whole = mass.sum() * 90 / 4000 * 8 / 800
lob = mass[angle > 45].sum() / mass.sum()
for run, log_evidence in ((result, np.log(whole)), (answer, np.log(whole / (90 * 0.5 * 0.3 * 2 * np.pi)))):
    angles = run.constrained()["angle"]
    n = int(np.argmax([angles[run.chart == k].mean() for k in range(2)]))
    assert len(run.modes.weight) == 2 and run.alarms == ()
    assert abs(run.modes.weight[n] - lob) < 5 * run.modes.weight_se[n], (run.modes.weight, lob)
    assert abs(run.log_evidence - log_evidence) < 5 * run.log_evidence_se + 2e-3, (run.log_evidence, log_evidence)
    assert angles.min() > 0 and angles.max() < 90 and run.constrained()["speed"].min() > 0
    flat = angles[angles < 45]
    assert abs(flat.mean() - (mass * angle)[angle < 45].sum() / mass[angle < 45].sum()) < 0.1
assert costly.dim == 2 and target.check().passed
"""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-W", "ignore:from_numpy without grad", "-c", "\n".join(blocks) + checks],
        check=False,
        capture_output=True,
        text=True,
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("graded", [True, False])
def test_a_prior_transform_carries_gradients_to_the_cube(graded):
    turn = np.array([[1.0, 0.5, 0.0], [0.0, 2.0, 0.0], [0.3, 0.0, 1.0]])

    def transform(u):
        return turn @ np.log(u / (1 - u))

    if graded:
        target = from_numpy(logp, grad, dim=3, prior_transform=transform, names=["a", "b", "c"])
    else:
        with pytest.warns(UserWarning, match="7 calls"):
            target = from_numpy(logp, dim=3, prior_transform=transform, names=["a", "b", "c"])
    cube = np.random.default_rng(2).uniform(0.05, 0.95, (20, 3))

    def in_jax(u):
        x = jnp.asarray(turn) @ jnp.log(u / (1 - u))
        return -0.5 * jnp.sum((x / SCALES) ** 2) - 0.1 * x[0] ** 4 + x[0] * x[1]

    values, scores = jax.vmap(jax.value_and_grad(target.logdensity))(jnp.asarray(cube))
    expected, slopes = jax.vmap(jax.value_and_grad(in_jax))(jnp.asarray(cube))
    assert np.allclose(values, expected, rtol=1e-12)
    assert np.allclose(scores, slopes, rtol=1e-5, atol=1e-5)
    named = jax.jit(jax.vmap(target.constrain))(jnp.asarray(cube))
    assert list(named) == ["a", "b", "c"]
    assert np.allclose(np.stack(list(named.values()), axis=1), [transform(u) for u in cube])
    edge = jax.vmap(target.logdensity)(jnp.asarray([[0.5, 0.5, 1 - 1e-12]]))
    assert np.all(np.isfinite(edge))


def test_a_thousand_dimensions_and_sixty_four_chains():
    target = from_numpy(lambda x: (-0.5 * np.sum(x * x, axis=1), -x), True, dim=1000, vectorized=True)
    library = whmc.ModeLibrary.from_charts(np.zeros((1, 1000)), np.ones((1, 1000)), step_size=np.array([0.3]))
    rows = jnp.asarray(np.random.default_rng(0).normal(size=(64, 1000)))
    states = jax.vmap(lambda x: whmc.init(x, target, library))(rows)
    step = jax.jit(jax.vmap(LocalHMC(4).step, (0, 0, None, None)))
    for n in range(10):
        states, info = step(jax.random.split(jax.random.key(n), 64), states, target, library)
    assert np.mean(np.asarray(info.accepted)) > 0.3
    assert abs(np.asarray(states.position).var() - 1) < 0.05


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="needs a system that can keep to one core")
@pytest.mark.parametrize("road", ["_in_place", "_anywhere"])
def test_a_large_batch_on_one_core_does_not_wait_for_ever(road):
    """With one core JAX has one thread: a callback that waits for a copy of its arguments would wait for itself."""
    program = """
import os, sys
os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
import jax, jax.numpy as jnp, numpy as np
from whmc.frontends import callback
from whmc.frontends.blackbox import from_numpy
callback._in_place = getattr(callback, sys.argv[1])
target = from_numpy(lambda x: (-0.5 * np.sum(x**2, axis=1), -x), True, dim=1000, vectorized=True)
points = np.random.default_rng(0).normal(size=(2048, 1000))
with jax.enable_x64(True):
    matrix, points = jnp.asarray(np.eye(400)), jnp.asarray(points)
    slow = jax.jit(lambda x: jax.lax.fori_loop(0, 50, lambda _, y: y @ x, x)[0, 1])
    loop = jax.jit(lambda x, y: jax.lax.fori_loop(0, 3, lambda _, x: x + 1e-3 * jax.vmap(jax.grad(target))(x), x + y))
    loop(points, slow(matrix)).block_until_ready()  # all is compiled: now the loop has to wait, in JAX's own thread
    assert np.allclose(loop(points, slow(matrix)), 0.999**3 * points, rtol=1e-12)
"""
    subprocess.run([sys.executable, "-c", program, road], check=True, timeout=300)
