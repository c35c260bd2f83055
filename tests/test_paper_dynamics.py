"""The paper's two exact dynamics: maps, Jacobians, invariance, and what happens without the checks."""

import dataclasses
from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import whmc
from whmc._pytree import pytree
from whmc.kernels.base import AbstractKernel
from whmc.modes.library import ModeLibrary
from whmc.paper.field import FieldWormhole, field_leapfrog, log_stretch
from whmc.paper.geometry import Network, hessian_metric, overall_metric, spanning_tree, vector_field
from whmc.paper.implicit import Flight, Solver, fly, settle
from whmc.paper.metric import MetricWormhole, RiemannianHMC, generalised_leapfrog, survey
from whmc.paper.plain_hmc import PlainHMC, leap, log_joint
from whmc.target.target import Target
from whmc.testing import gaussian_mixture, invariance_test, reversibility_test

pytestmark = pytest.mark.paper

NUM_DRAWS = 10_000  # a report sees gaps in a distribution function of about .034
MANY_DRAWS = 40_000  # and of about .017; where steps cost little
SOLVER = Solver(1e-13, 500)


@cache
def pair():
    """Two modes of different weight and shape, near enough for all kernels to move between them."""
    return gaussian_mixture([0.65, 0.35], [[0, 0], [3, 1]], [[[1.0, 0.3], [0.3, 0.7]], [[0.5, -0.1], [-0.1, 0.9]]])


@cache
def triple():
    return gaussian_mixture([0.4, 0.3, 0.3], [[0, 0, 0], [3, 1, 0], [1, 3, 1]], np.ones((3, 3))[:, :, None] * np.eye(3))


def _start(case, seed, local=None):
    position = jnp.asarray(case.draw(np.random.default_rng(seed), 1)[0][0])
    momentum = jax.random.normal(jax.random.key(seed), position.shape)

    @jax.jit
    def begin(position):
        state = whmc.init(position, case.target, case.library)
        return Flight.begin(state, momentum, None if local is None else local(position))

    return begin(position)


def _phase(flight: Flight) -> jax.Array:
    return jnp.concatenate([flight.position, flight.momentum])


def _log_det(step, flight, local=None):
    """log|det| of (θ, v) -> (θ', v') under one step, by automatic differentiation of the whole map."""
    size = len(flight.position)

    def whole(phase):
        found = step.target.evaluate(phase[:size])
        here = None if local is None else local(phase[:size])
        start = dataclasses.replace(flight, position=phase[:size], momentum=phase[size:], found=found, local=here)
        return _phase(step(start))

    return float(jnp.linalg.slogdet(jax.jit(jax.jacfwd(whole))(_phase(flight)))[1])


@dataclasses.dataclass(frozen=True)
class Step:
    """One step of a method on a target."""

    target: Target
    advance: object

    def __call__(self, flight: Flight) -> Flight:
        return self.advance(flight)


# --- the solver


def test_solver_finds_the_fixed_point_and_tells_when_it_does_not():
    good = Solver(1e-12, 200).solve(jnp.cos, jnp.zeros(2))
    assert bool(good.converged)
    np.testing.assert_allclose(good.value, 0.7390851332151607, atol=1e-11)
    assert not bool(Solver(1e-12, 5).solve(jnp.cos, jnp.zeros(2)).converged)  # too few iterations
    assert not bool(Solver(1e-12, 500).solve(lambda x: 3 * x + 1, jnp.zeros(2)).converged)  # runs away
    assert not bool(Solver(1e-12, 500).solve(lambda x: -x, jnp.ones(2)).converged)  # oscillates
    assert not bool(Solver(1e-12, 500).solve(lambda x: x * jnp.nan, jnp.ones(2)).converged)


def test_solver_can_meet_its_tolerance_in_single_precision():
    found = Solver(1e-12, 200).solve(jnp.cos, jnp.zeros(2, jnp.float32))
    assert bool(found.converged) and found.value.dtype == jnp.float32


# --- the maps


def _network(case, which):
    return Network.between(case.library, {"one": np.array([[0, 1]]), "all": None, "none": np.zeros((0, 2), int)}[which])


def _metric_step(case, which, base=None, step_size=0.05):
    network = _network(case, which)

    def metric(x):
        return overall_metric(x, network, 0.2, 0.8, base)

    step = Step(case.target, lambda flight: generalised_leapfrog(flight, case.target, metric, step_size, SOLVER))
    return step, lambda x: survey(x, metric)


METRIC_CASES = {
    "three wormholes": lambda: (triple(), *_metric_step(triple(), "all")),
    "Hessian base": lambda: (pair(), *_metric_step(pair(), "one", hessian_metric(pair().target, 0.5))),
}


@pytest.mark.parametrize("name", METRIC_CASES)
def test_generalised_leapfrog_retraces_and_keeps_volume(name):
    case, step, local = METRIC_CASES[name]()
    start = _start(case, 4, local)
    flight = jax.jit(lambda f: jax.lax.fori_loop(0, 6, lambda _, g: step(g), f))
    end = flight(start)
    assert bool(end.converged) and float(jnp.max(jnp.abs(end.position - start.position))) > 0.05
    back = flight(end.flipped())
    np.testing.assert_allclose(_phase(back.flipped()), _phase(start), atol=1e-9)
    # the forward derivative goes through the iterations, and converges as they do
    assert abs(_log_det(step, start, local)) < 1e-8


FIELD_CASES = {"one wormhole": (pair, "one"), "three wormholes": (triple, "all"), "none": (pair, "none")}


def _beyond(case):
    """A flight that starts beyond an end of a wormhole, where volume changes even with one."""
    start = _start(case, 1)
    position = jnp.asarray(case.means[1]) + 0.3 * jnp.asarray(case.means[1] - case.means[0]) / 3 + 0.1
    return dataclasses.replace(start, position=position, found=case.target.evaluate(position))


@pytest.mark.parametrize("name", FIELD_CASES)
def test_field_leapfrog_retraces_with_the_stated_jacobian(name):
    make, which = FIELD_CASES[name]
    case = make()
    network = _network(case, which)
    step = Step(case.target, lambda flight: field_leapfrog(flight, case.target, network, 0.8, 0.1, SOLVER))
    once = jax.jit(step)
    many = jax.jit(lambda f: jax.lax.fori_loop(0, 6, lambda _, g: step(g), f))
    for start in (_start(case, 2), _beyond(case)):
        end = once(start)
        assert bool(end.converged)
        np.testing.assert_allclose(float(end.log_volume), _log_det(step, start), atol=1e-9)
        back = many(many(start).flipped())
        np.testing.assert_allclose(_phase(back.flipped()), _phase(start), atol=1e-9)
        np.testing.assert_allclose(float(back.log_volume), 0.0, atol=1e-9)  # what was stretched is shrunk again
    assert (abs(float(end.log_volume)) > 1e-3) == (which != "none")


def test_rank_one_and_full_determinants_of_the_field_agree():
    x, v = jnp.array([3.5, 1.4, 0.3]), jnp.array([0.7, -0.4, 1.1])

    @jax.jit
    def both(network):
        matrix = jnp.eye(3) + 0.3 * jax.jacfwd(vector_field)(x, v, network, 0.8)
        return log_stretch(x, v, network, 0.8, 0.3), jnp.linalg.slogdet(matrix)[1]

    for which in ("one", "all"):
        lemma, full = both(_network(triple(), which))
        np.testing.assert_allclose(lemma, full, rtol=1e-10)


def _solutions(step_size, speed, length, influence, start):
    """How many s solve s = s0 + e/2 v m(s) on a line in two dimensions, s0 = `start`, by counting sign changes."""
    s = np.linspace(-3.0, length + 3.0, 100_001)
    v = np.where((s < 0) | (s > length), 2 * s * (s - length), 0.0)
    return int(np.sum(np.diff(np.sign(s - start - 0.5 * step_size * speed * np.exp(-v / (2 * influence)))) != 0))


def test_implicit_drift_has_one_solution_below_the_stated_step():
    """e |v| d < D F: always one solution. Above it there are starts before an end with three."""
    length, influence, speed = 4.0, 0.3, 1.5
    limit = 2 * influence / (speed * length)
    starts = np.linspace(-1.0, 0.2, 121) + 1e-5 / 3  # not on the grid
    assert {_solutions(0.99 * limit, speed, length, influence, s) for s in starts[::8]} == {1}
    assert 3 in {_solutions(4 * limit, speed, length, influence, s) for s in starts}
    # on the way out, past the far end, the solution stays the only one
    assert {_solutions(4 * limit, speed, length, influence, s) for s in length + starts[::8]} == {1}


def test_leapfrog_of_plain_hmc_is_the_field_without_wormholes():
    case = pair()
    start, none = _start(case, 3), _network(pair(), "none")
    field = field_leapfrog(start, case.target, none, 0.3, 0.2, SOLVER)
    np.testing.assert_allclose(_phase(leap(start, case.target, 0.2)), _phase(field), atol=1e-14)


# --- invariance

KERNELS = {
    "plain": PlainHMC(0.3, 5),
    "Riemannian": RiemannianHMC(0.3, 3, base=hessian_metric(pair().target, 0.5)),
    "metric": MetricWormhole(0.15, 4, shrink=0.2, influence=0.8),
    "metric, Hessian base": MetricWormhole(0.15, 3, shrink=0.2, influence=0.8, base=hessian_metric(pair().target, 0.5)),
    "field": FieldWormhole(0.15, 5, influence=0.8),
}


# an eigendecomposition for each iteration; the slow test has more draws
COSTLY = {"Riemannian": 2_000, "metric, Hessian base": 2_000, "metric": NUM_DRAWS}


@pytest.mark.parametrize("name", KERNELS)
def test_kernel_is_invariant_and_reversible(name):
    assert KERNELS[name].exact
    num_draws = COSTLY.get(name, MANY_DRAWS)
    report = invariance_test(KERNELS[name], pair(), num_steps=(1, 5), num_draws=num_draws)
    assert report.passed, str(report)
    assert report.moved > 0.7, str(report)
    assert reversibility_test(KERNELS[name], pair(), num_draws=num_draws).passed


@pytest.mark.slow
@pytest.mark.parametrize("name", KERNELS)
def test_kernel_is_invariant_over_many_steps(name):
    report = invariance_test(KERNELS[name], pair(), num_steps=(1, 10), num_draws=2 * NUM_DRAWS, seed=1)
    assert report.passed, str(report)


@pytree
class FieldWithoutJacobian(AbstractKernel):
    """`FieldWormhole` that takes its map for one that keeps volume."""

    kernel: FieldWormhole

    def num_noise(self, library):
        return self.kernel.num_noise(library)

    def move(self, noise, state, target, library):
        kernel, network = self.kernel, Network.between(library)
        solver = Solver(kernel.tolerance, kernel.max_iterations)
        start = Flight.begin(state, noise.normal)
        end, sound = fly(
            lambda flight: field_leapfrog(flight, target, network, kernel.influence, kernel.step_size, solver),
            start,
            solver,
            num_steps=kernel.num_steps,
            checked=kernel.checked,
        )
        log_ratio = log_joint(end) - log_joint(start)
        return settle(
            noise.uniform[0],
            log_ratio,
            state,
            end,
            library,
            sound=sound,
            num_steps=kernel.num_steps,
            checked=kernel.checked,
        )


def test_field_without_its_jacobian_is_found():
    report = invariance_test(FieldWithoutJacobian(KERNELS["field"]), pair(), num_steps=(1, 5), num_draws=MANY_DRAWS)
    assert not report.passed, str(report)


@pytest.mark.parametrize(
    "kernel",
    [
        FieldWormhole(0.15, 5, influence=0.8),
        MetricWormhole(0.15, 3, shrink=0.2, influence=0.8),
        pytest.param(
            MetricWormhole(0.15, 3, shrink=0.2, influence=0.8, wormholes=spanning_tree(triple().means)),
            marks=pytest.mark.slow,
        ),
    ],
    ids=["field", "metric", "metric, spanning tree"],
)
def test_network_of_wormholes_is_invariant_with_any_library(kernel):
    """Three modes; the charts shifted and one place unused, so the wormholes miss the modes."""
    case = triple()
    library = ModeLibrary.from_charts(case.means + 0.3, case.scales, capacity=4)
    report = invariance_test(kernel, case, library=library, num_steps=(1, 5), num_draws=NUM_DRAWS)
    assert report.passed, str(report)
    assert report.moved > 0.5, str(report)


# --- without the checks

COARSE = MetricWormhole(0.4, 3, shrink=0.05, influence=1.5, max_iterations=8)
COARSE_FIELD = FieldWormhole(1.0, 3, influence=0.3, max_iterations=4)


@pytest.mark.parametrize(
    ("kernel", "num_draws"), [(COARSE, NUM_DRAWS), (COARSE_FIELD, MANY_DRAWS)], ids=["metric", "field"]
)
def test_unsolved_steps_are_harmless_only_if_they_are_checked(kernel, num_draws):
    """The same settings, under which many equations are not solved: rejected they cost speed, taken they cost truth."""
    report = invariance_test(kernel, pair(), num_steps=(1, 10), num_draws=num_draws)
    assert report.passed, str(report)
    assert report.moved > 0.3, str(report)
    unchecked = dataclasses.replace(kernel, checked=False)
    damage = invariance_test(unchecked, pair(), num_steps=(1, 10), num_draws=num_draws)
    assert not damage.passed, str(damage)


def _chains(kernel, case, starts, num_steps, library=None):
    """Labels, positions and infos (chains, steps) of chains from these starts."""
    library = case.library if library is None else library

    @jax.jit
    def chain(kernel, key, position):
        def one(state, n):
            state, info = kernel.step(jax.random.fold_in(key, n), state, case.target, library)
            return state, (state.label, state.position, info)

        return jax.lax.scan(one, whmc.init(position, case.target, library), jnp.arange(num_steps))[1]

    keys = jax.random.split(jax.random.key(0), len(starts))
    return jax.vmap(chain, (None, 0, 0))(kernel, keys, jnp.asarray(starts))


def test_what_was_not_solved_is_counted_and_not_taken():
    starts = pair().draw(np.random.default_rng(0), 200)[0]
    _, _, info = _chains(COARSE, pair(), starts, 10)
    failed = np.asarray(info.num_failed) > 0
    assert 0.05 < failed.mean() < 0.95
    assert not np.any(np.asarray(info.accepted)[failed])
    assert np.all(np.asarray(info.num_gradients) == 2 * COARSE.num_steps)
    _, _, unchecked = _chains(dataclasses.replace(COARSE, checked=False), pair(), starts, 10)
    taken = np.asarray(unchecked.accepted)[np.asarray(unchecked.num_failed) > 0]
    assert taken.any() and np.all(np.asarray(unchecked.num_gradients) == COARSE.num_steps)


@pytest.mark.parametrize(
    "kernel",
    [PlainHMC(0.5, 4), MetricWormhole(0.1, 6), FieldWormhole(0.3, 4), RiemannianHMC(0.3, 4)],
    ids=lambda kernel: type(kernel).__name__,
)
def test_no_chain_enters_where_the_density_is_undefined(kernel):
    """NaN right of a line, and a start at a mode, where norms have no gradient."""
    case = pair()

    def logdensity(x):
        return jnp.where(x[0] > 1.0, jnp.nan, case.target(x))

    fenced = dataclasses.replace(case, target=Target(logdensity, dim=2))
    _, position, info = _chains(kernel, fenced, np.zeros((100, 2)), 50)
    assert np.all(np.isfinite(position)) and np.max(np.asarray(position)[..., 0]) <= 1.0
    assert np.asarray(info.accepted).mean() > 0.2 and np.asarray(info.num_failed).sum() > 0


def test_nonsense_settings_are_refused():
    with pytest.raises(ValueError, match=r"influence must be > 0, got -0\.3"):
        FieldWormhole(influence=-0.3)
    with pytest.raises(ValueError, match="shrink must be > 0"):
        MetricWormhole(shrink=0.0)


# --- what wormholes are for


def _ridge():
    """Two narrow modes on a low ridge, six apart: a way of 19 standard deviations, a barrier of 3.7 in log density."""
    narrow = 0.1 * np.eye(2)
    return gaussian_mixture(
        [0.45, 0.45, 0.1], [[0, 0], [6, 0], [3, 0]], [narrow, narrow, np.diag([2.56, 0.1])], "ridge"
    )


def _crossings(position, modes, reach):
    """Changes of the mode that a chain was last within `reach` of."""
    distance = np.linalg.norm(np.asarray(position)[:, :, None] - modes, axis=-1)
    visits = [row.argmin(axis=1)[row.min(axis=1) < reach] for row in distance]
    return sum(int(np.sum(np.diff(seen) != 0)) for seen in visits)


def test_wormhole_metric_crosses_where_plain_hmc_does_not():
    """The same step size and number of steps: HMC walks, a wormhole is 1/√ε as fast. Chains start at the modes."""
    case = _ridge()
    modes, library = case.means[:2], ModeLibrary.from_charts(case.means[:2], np.sqrt(0.1) * np.ones((2, 2)))
    starts = np.tile(modes, (100, 1))
    seen = {}
    for kernel in (PlainHMC(0.05, 10), MetricWormhole(0.05, 10)):
        _, position, info = _chains(kernel, case, starts, 40, library)
        assert np.asarray(info.accepted).mean() > 0.5
        assert np.all(np.any(np.asarray(position)[:, -1] != starts, axis=1))  # a mode's own place is no trap
        seen[type(kernel).__name__] = _crossings(position, modes, 4 * np.sqrt(0.1))
    # 8000 steps each: 0 and 37 when this was written
    assert seen["PlainHMC"] <= 5 and seen["MetricWormhole"] >= 20, seen
