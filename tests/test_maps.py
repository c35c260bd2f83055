"""T1: the maps inside the kernels are involutions after the momentum flip, keep volume, and cross antisymmetrically."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import whmc
from contracts import CHARTS, only_these_at_every_change, problem
from whmc.kernels.leapfrog import Motion, leapfrog
from whmc.kernels.random import Noise
from whmc.kernels.trajectory import Flight, jump
from whmc.modes.chart import apply
from whmc.target.target import Evaluation

BENT_OR_BANDED = ("rotated, bent", "log-gamma, banded", "three, bent", "three, banded")
NAMES = only_these_at_every_change(
    ["two-scale", "diagonal", "rotated", "log-gamma", "many-well", "three", *BENT_OR_BANDED],
    ["two-scale", "diagonal", "rotated, bent"],
)


def _start(name: str, seed: int = 0):
    name, _, kind = name.partition(", ")
    case = problem(name)
    library = CHARTS[kind](case.library) if kind else case.library
    library = dataclasses.replace(library, step_size=library.step_size * jnp.linspace(0.3, 0.5, library.capacity))
    position = jnp.asarray(case.draw(np.random.default_rng(seed), 1)[0][0])
    momentum = jax.random.normal(jax.random.key(seed), position.shape)
    return case.target, library, whmc.init(position, case.target, library), momentum


@pytest.mark.parametrize("name", NAMES)
def test_leapfrog_retraces_and_keeps_volume(name):
    target, library, state, momentum = _start(name)
    chart = library.chart(0)

    @jax.jit
    def flow(x, p):
        displacement = apply(chart.scale, x)
        found = target.evaluate(chart.position(displacement))
        motion = Motion(displacement, apply(chart.scale, p), found.logdensity, found.score, jnp.zeros((), int))
        end = leapfrog(
            motion, target, chart, step_size=chart.step_size, num_steps=5, residual=lambda n: jnp.full((), 0.8)
        )
        return apply(chart.inverse_scale, end.displacement), apply(chart.inverse_scale, end.velocity)

    start = chart.whiten(state.position)
    x, p = flow(start, momentum)
    assert float(jnp.max(jnp.abs(x - start))) > 0.05
    back_x, back_p = flow(x, -p)
    np.testing.assert_allclose(back_x, start, atol=1e-9)
    np.testing.assert_allclose(-back_p, momentum, atol=1e-9)
    size = len(momentum)
    jacobian = jax.jit(jax.jacfwd(lambda xp: jnp.concatenate(flow(xp[:size], xp[size:]))))(
        jnp.concatenate([start, momentum])
    )
    assert abs(float(jnp.linalg.slogdet(jacobian)[1])) < 1e-8


@pytest.mark.parametrize("name", NAMES)
def test_local_flight_retraces_and_keeps_volume(name):
    """The leg that `LocalHMC` flies, in the coordinates of its chart."""
    target, library, _, momentum = _start(name)
    chart, kernel = library.chart(0), whmc.LocalHMC(num_steps=5)
    start = jax.random.normal(jax.random.key(1), momentum.shape)

    @jax.jit
    def flow(z, p):
        # the first uniform number takes the first chart, the second a factor of one for the step
        noise = Noise(jnp.array([1e-300, 0.45, 0.5]), p)
        here = whmc.init(chart.unwhiten(z), target, library)
        leg = kernel.fly(kernel.begin(noise, here, target, library), target, library)
        return apply(chart.inverse_scale, leg.motion.displacement), leg.momentum, leg.label

    z, p, label = flow(start, momentum)
    assert label == 0 and float(jnp.max(jnp.abs(z - start))) > 0.05
    back_z, back_p, _ = flow(z, -p)
    np.testing.assert_allclose(back_z, start, atol=1e-9)
    np.testing.assert_allclose(-back_p, momentum, atol=1e-9)
    size = len(momentum)
    jacobian = jax.jit(jax.jacfwd(lambda zp: jnp.concatenate(flow(zp[:size], zp[size:])[:2])))(
        jnp.concatenate([start, momentum])
    )
    assert abs(float(jnp.linalg.slogdet(jacobian)[1])) < 1e-8


@pytest.mark.parametrize("name", NAMES)
def test_wormhole_retraces_with_the_stated_jacobian(name):
    target, library, state, momentum = _start(name)
    origin, goal = jnp.asarray(0), jnp.asarray(library.capacity - 1)
    size = len(momentum)

    @jax.jit
    def travel(kernel, x, p, one, other):
        end, new_p = kernel.travel(whmc.init(x, target, library), p, one, other, target, library)
        return library.chart(other).position(end.displacement), new_p

    @jax.jit
    def log_stretch(kernel, x, p):
        def flow(xp):
            return jnp.concatenate(travel(kernel, xp[:size], xp[size:], origin, goal))

        return jnp.linalg.slogdet(jax.jacfwd(flow)(jnp.concatenate([x, p])))[1]

    for throat in (0, 1, 2, 7):
        kernel = whmc.Wormhole(throat=throat, stride=0.8)
        x, p = travel(kernel, state.position, momentum, origin, goal)
        back_x, back_p = travel(kernel, x, -p, goal, origin)
        np.testing.assert_allclose(back_x, state.position, atol=1e-9)
        np.testing.assert_allclose(-back_p, momentum, atol=1e-9)
        # (theta, p) -> (theta', p') stretches by |L_k|/|L_i|, or the volumes of bent charts
        stretch = library.chart(goal).log_volume(x) - library.chart(origin).log_volume(state.position)
        np.testing.assert_allclose(log_stretch(kernel, state.position, momentum), stretch, atol=1e-8)


@pytest.mark.parametrize("name", NAMES)
def test_jump_in_flight_is_symplectic(name):
    _, library, state, momentum = _start(name)
    zero = jnp.zeros((), int)

    def flight(x, p):
        found = Evaluation(jnp.zeros(()), jnp.zeros_like(x), jnp.zeros((), bool))
        return Flight(x, p, found, zero, zero, zero, jnp.zeros(()))

    end = jump(flight(state.position, momentum), library, jnp.asarray(0.4), jnp.asarray(0.6))
    size = len(momentum)

    def move(xp):
        end = jump(flight(xp[:size], xp[size:]), library, jnp.asarray(0.4), jnp.asarray(0.6))
        return jnp.concatenate([end.position, end.momentum])

    jacobian = jax.jit(jax.jacfwd(move))(jnp.concatenate([state.position, momentum]))
    form = jnp.block([[jnp.zeros((size, size)), jnp.eye(size)], [-jnp.eye(size), jnp.zeros((size, size))]])
    np.testing.assert_allclose(jacobian.T @ form @ jacobian, form, atol=1e-9)
    assert int(end.label) != int(end.proposed)


@pytest.mark.parametrize("name", NAMES)
def test_log_ratio_is_antisymmetric(name):
    """The ratio of a jump and of the jump back are one over the other; T = 0 is w'/w with self-jumps left out."""
    target, library, state, momentum = _start(name)
    origin, goal = 0, library.capacity - 1

    @jax.jit
    def log_ratio(state, p, i, k, throat):
        kernel = whmc.Wormhole(throat=throat, stride=0.8)
        return kernel.jump(state, p, jnp.asarray(i), jnp.asarray(k), target, library)

    for throat in (0, 5):
        there = log_ratio(state, momentum, origin, goal, throat)
        back = log_ratio(there.proposal, -there.momentum, goal, origin, throat)
        np.testing.assert_allclose(there.log_ratio, -back.log_ratio, atol=1e-8)
    direct = log_ratio(state, jnp.zeros_like(momentum), origin, goal, 0)
    weights = jnp.exp(library.log_weight)
    expected = direct.proposal.log_ratio - state.log_ratio + jnp.log1p(-weights[origin]) - jnp.log1p(-weights[goal])
    np.testing.assert_allclose(direct.log_ratio, expected, atol=1e-8)
