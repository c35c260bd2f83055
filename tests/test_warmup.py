"""The warm-up as a whole: what a round learns, in which units."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import whmc
from contracts import columns
from whmc.kernels.base import StepInfo
from whmc.kernels.block import Trace
from whmc.kernels.settings import arrays
from whmc.modes.library import ModeLibrary
from whmc.modes.mixture import log_components_of, log_ratio_of
from whmc.storage.serialize import pack, unpack
from whmc.warmup import warmup as warming

DIM = 4


def heavy_trace(rng: np.random.Generator, acceptance: float) -> Trace:
    """Local moves on a Student-t with three degrees of freedom, 200 steps of 16 chains, all with one acceptance."""
    shape = (200, 16)
    z = rng.standard_normal((*shape, DIM)) * np.sqrt(3 / rng.chisquare(3, shape))[..., None]
    info = StepInfo(
        label=np.zeros(shape, int),
        proposed=np.zeros(shape, int),
        log_ratio=np.full(shape, np.log(acceptance)),
        accepted=np.ones(shape, bool),
        regenerated=np.zeros(shape, bool),
        num_gradients=np.ones(shape, int),
        num_failed=np.zeros(shape, int),
    )
    logdensity = -0.5 * (3 + DIM) * np.log1p(np.sum(z**2, axis=-1) / 3)
    return Trace(z, logdensity, np.zeros(shape), np.zeros(shape, int), (info,))


def test_a_step_that_is_right_stays_as_long_as_it_is_under_a_student_base():
    """At the acceptance aimed at, the absolute step does not change from round to round, whatever the base.

    It must not grow by sqrt(nu/(nu - 2)), 1.7 for three degrees of freedom, in every round under a Student-t.
    """
    rng = np.random.default_rng(0)
    library = ModeLibrary.from_charts(np.zeros((1, DIM)), np.eye(DIM)[None], step_size=[0.3], capacity=4)
    state = warming.begin(arrays(whmc.Cycle((whmc.LocalHMC(num_steps=5),))), library, fixed=True)
    lengths = []
    for _ in range(6):
        trials = warming.plan_round(state, 200)
        state, _ = warming.learn(state, trials, [heavy_trace(rng, 0.8)], left=4)
        scale = float(np.exp(np.mean(np.log(np.diagonal(columns(state.library).scale[0])))))
        lengths.append(float(columns(state.library).step_size[0]) * scale)
    assert float(state.library.dof) < 10  # the base is a Student-t
    # the scale is learned from 3200 draws with infinite fourth moment: it moves by some percent
    assert max(lengths) / min(lengths) < 1.4, lengths


def trace_of(state: warming.Warmup, z: np.ndarray, logdensity: np.ndarray) -> Trace:
    """Draws of 200 steps of 16 chains in two modes far apart, and local moves that are accepted as wanted."""
    shape = z.shape[:2]
    components = log_components_of(state.library, z.reshape(-1, 2))
    label = components.argmax(axis=0).reshape(shape)
    flag, ones = np.zeros(shape, bool), np.ones(shape, int)
    info = StepInfo(label, label, np.full(shape, np.log(0.8)), ~flag, flag, ones, 0 * ones)
    return Trace(z, logdensity, np.logaddexp.reduce(components, axis=0).reshape(shape), label, (info,))


def banana_trace(rng: np.random.Generator, state: warming.Warmup) -> Trace:
    """Exact draws of two bananas."""
    x, side = rng.standard_normal((200, 16, 2)), rng.integers(0, 2, (200, 16))
    z = np.stack([3 * x[..., 0], 0.3 * x[..., 1] + x[..., 0] ** 2 + 50 * side], axis=-1)
    return trace_of(state, z, -0.5 * np.sum(x**2, axis=-1) - np.log(2 * np.pi * 0.9 * 2))


def ring_trace(rng: np.random.Generator, state: warming.Warmup) -> Trace:
    """Exact draws of two rings."""
    angle, noise = rng.uniform(0, 2 * np.pi, (200, 16)), rng.standard_normal((200, 16))
    radius, side = 3 + 0.2 * noise, rng.integers(0, 2, (200, 16))
    z = np.stack([radius * np.cos(angle), radius * np.sin(angle) + 0.5 + 50 * side], axis=-1)
    return trace_of(state, z, -0.5 * noise**2 - np.log(radius * 0.2 * (2 * np.pi) ** 1.5 * 2))


def test_bananas_are_bent_from_the_last_round_but_two_on():
    rng = np.random.default_rng(1)
    library = ModeLibrary.from_charts([[0.0, 0.5], [0.0, 50.5]], [np.eye(2)] * 2, step_size=[0.3] * 2, capacity=16)
    state = warming.begin(arrays(whmc.Cycle((whmc.LocalHMC(),))), library, fixed=False)
    for left, bent in ((3, False), (2, True), (1, True), (0, True)):
        state, _ = warming.learn(state, warming.plan_round(state, 200), [banana_trace(rng, state)], left)
        np.testing.assert_array_equal(state.library.bent, bent)
        state = unpack(pack({"state": state}))["state"]  # as a checkpoint has it
        trace = banana_trace(rng, state)
    log_ratio = log_ratio_of(state.library, trace.position.reshape(-1, 2), trace.logdensity.ravel())
    assert state.library.size == 2 and np.std(log_ratio) < 0.15


def test_rings_get_charts_in_the_last_round_but_one_from_the_draws_of_three():
    rng = np.random.default_rng(1)
    library = ModeLibrary.from_charts([[0.0, 0.5], [0.0, 50.5]], [np.eye(2)] * 2, step_size=[0.3] * 2, capacity=16)
    state = warming.begin(arrays(whmc.Cycle((whmc.LocalHMC(),))), library, fixed=False)
    sizes, pooled = [], []
    for left in (3, 2, 1, 0):
        state, _ = warming.learn(state, warming.plan_round(state, 200), [ring_trace(rng, state)], left)
        sizes.append(state.library.size)
        pooled.append(0 if state.pool is None else len(state.pool.position))
        again = unpack(pack({"state": state}))["state"]  # as a checkpoint has it
        for one, other in zip(jax.tree.leaves(state.library), jax.tree.leaves(again.library), strict=True):
            np.testing.assert_array_equal(one, other)
        assert (state.pool is None) == (again.pool is None)
        assert state.pool is None or np.array_equal(state.pool.position, again.pool.position)
        state = again
    assert sizes[:2] == [2, 2] and sizes[2] == sizes[3] > 6
    assert pooled == [0, 3200, 6400, 0]
    assert state.library.num_modes == 2 and len(state.curvature.location) == sizes[3]
    np.testing.assert_allclose(np.bincount(state.library.mode_of, np.exp(columns(state.library).log_weight)), 0.5)


def test_modes_found_after_a_split_are_known_by_their_own_curvature():
    rng = np.random.default_rng(2)
    library = ModeLibrary.from_charts([[0.0, 0.5], [0.0, 50.5]], [np.eye(2)] * 2, step_size=[0.3] * 2, capacity=16)
    state = warming.begin(arrays(whmc.Cycle((whmc.LocalHMC(),))), library, fixed=False)
    for left in (2, 1):
        state, _ = warming.learn(state, warming.plan_round(state, 200), [ring_trace(rng, state)], left)
    grown = state.library.add([90.0, 90.0], 0.1 * np.eye(2))
    adopted = warming.adopt(state, grown)
    np.testing.assert_array_equal(adopted.curvature.location[-1], [90.0, 90.0])
    assert len(adopted.curvature.location) == grown.size == state.library.size + 1
    after, _ = warming.learn(adopted, warming.plan_round(adopted, 200), [ring_trace(rng, adopted)], 0)
    np.testing.assert_array_equal(columns(after.library).location[after.library.mode_of == 2], [[90.0, 90.0]])


@pytest.mark.ci
def test_chains_do_not_start_in_the_hollow_of_a_ring():
    """The home of a ring is centred where a hard edge leaves no density."""

    def logdensity(x):
        radius = jnp.sqrt(jnp.sum(x**2))
        return jnp.where(radius > 1, -0.5 * ((radius - 3) / 0.2) ** 2, -jnp.inf)

    angle = np.arange(4) * np.pi / 2
    arcs = 3 * np.stack([np.cos(angle), np.sin(angle)], axis=1)
    library = ModeLibrary.from_charts([[0.0, 0.0], *arcs], [2 * np.eye(2), *[np.eye(2)] * 4], mode=[0] * 5)
    result = whmc.sample(whmc.Target(logdensity, dim=2), modes=library, draws=50, warmup=50, chains=4, progress=False)
    assert np.all(np.linalg.norm(result.draws, axis=-1) > 1)


@pytest.mark.parametrize("far", [100.0, pytest.param(1e6, marks=pytest.mark.ci)])
def test_a_given_mode_far_from_everything_costs_its_own_weight_only(far):
    def logdensity(x):
        return jnp.logaddexp(-0.5 * jnp.sum((x - 4) ** 2), -1 - 0.5 * jnp.sum((x + 4) ** 2))

    target = whmc.Target(logdensity, dim=2, starts=(-8.0, 8.0))
    result = whmc.sample(target, modes=[[far, 4.0], [-4.0, -4.0], [4.0, 4.0]], draws=300, warmup=100, chains=8)
    heavy = 1 / (1 + np.exp(-1))
    assert np.all(np.isfinite(result.draws))
    near = int(np.argmin(np.linalg.norm(result.modes.location - 4.0, axis=1)))
    assert abs(result.modes.weight[near] - heavy) < 5 * result.modes.weight_se[near]
    assert np.mean(result.chart == 0) < 0.01
