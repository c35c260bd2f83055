"""Log evidence by the throat's work, where the charts alone are too poor for a bridge.

Draws are annealed into the throat, and draws of the throat's Gaussian (which is normalised) out of it; the work of both
gives the evidence by Bennett's acceptance ratio. On the extended target, with omega for the labels at the throat:

    start: pi(theta) r_i(theta) |d theta/d z| in (z, i),     end: omega_i N(z; 0, I).
"""

import dataclasses
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np

from whmc._shapes import Array, Float, Int
from whmc.estimate.evidence import Evidence, acceptance_ratio
from whmc.kernels.base import AbstractKernel, log_joint, make_state
from whmc.kernels.cycle import moves
from whmc.kernels.leapfrog import Motion, leapfrog
from whmc.kernels.wormhole import Wormhole
from whmc.keys import children
from whmc.modes.chart import apply, row
from whmc.modes.library import ModeLibrary
from whmc.modes.mixture import pick
from whmc.target.target import Target

GOOD_SE = 0.03
"""A standard error of the bridge that leaves nothing to improve."""

NUM_PATHS = 1024
"""Draws annealed each way, or a few less: as many of each chain."""

AT_ONCE = 64
"""Paths of one call at most: enough that a call costs little beside them, few enough to tell how far it is."""

MIN_THROAT = 32
"""Annealing steps at least; twice those of the jumps, if these take more."""


def needs_annealing(evidence: Evidence) -> bool:
    """Whether the evidence by bridge sampling is poor enough to be checked, and perhaps replaced, by work.

    Not where there is no bridge at all: then no proposal came near the target, or the kernel makes none.
    """
    return evidence.method != "none" and not evidence.se <= GOOD_SE  # NaN is not good either


def annealed_evidence(
    target: Target,
    library: ModeLibrary,
    kernel: AbstractKernel,
    draws: Float[np.ndarray, "chains draws dim"],
    key: Array,
    tell: Callable[[int, int], None] = lambda done, most: None,
) -> Evidence:
    """The evidence by work, from some of the draws and as many of the throat's own, and what it cost in gradients.

    tell: is given how many paths are annealed, and of how many.
    """
    wormholes = [move for move in moves(kernel) if isinstance(move, Wormhole)]
    throat = max([MIN_THROAT, *(2 * int(move.throat) for move in wormholes)])
    stride = min([1.0, *(float(move.stride) for move in wormholes)])
    some = _thinned(draws)
    size, dim = some.shape[:2], some.shape[2]
    keys = children(key, 2)
    num = size[0] * size[1]
    inward = (jnp.asarray(some.reshape(-1, dim)), jax.random.split(keys[0], num))
    ways = (_inward, inward), (_outward, (jax.random.split(keys[1], num),))
    num_calls = -(-num // AT_ONCE)
    at_once = -(-num // num_calls)  # as few as make calls of one size, whose last may repeat a path
    tell(0, 2 * num)
    # compiled first: what remains goes at one speed, from which the time left can be told
    compiled = [
        way.lower(target, library, *(_part(row, 0, at_once) for row in rows), throat, stride).compile()
        for way, rows in ways
    ]
    tell(0, 2 * num)
    works: list[list[np.ndarray]] = [[], []]
    for n, (_, rows) in enumerate(ways):
        for first in range(0, num, at_once):
            work = compiled[n](target, library, *(_part(row, first, at_once) for row in rows), throat, stride)
            works[n].append(np.asarray(work))
            tell(n * num + min(first + at_once, num), 2 * num)
    there, back = (np.concatenate(parts)[:num].reshape(size) for parts in works)
    found = acceptance_ratio(back, there)
    # a gradient a step and one at the start of each path; and one at the end of those that come out of the throat
    num_gradients = num_calls * at_once * (2 * (throat + 1) + 1)
    return dataclasses.replace(found, method="the throat's work", num_gradients=num_gradients)


def _thinned(draws: Float[np.ndarray, "chains draws dim"]) -> Float[np.ndarray, "chains few dim"]:
    """Evenly spaced draws of every chain, about `NUM_PATHS` in all."""
    chains, num, _ = draws.shape
    each = min(num, max(1, NUM_PATHS // chains))
    return np.asarray(draws[:, np.linspace(0, num - 1, each).astype(int)])


def _part(rows: Array, first: int, num: int) -> Array:
    """So many of the rows; the last of them again where there are not as many."""
    return rows[jnp.minimum(jnp.arange(first, first + num), len(rows) - 1)]


@jax.jit
def _inward(
    target: Target,
    library: ModeLibrary,
    positions: Float[Array, "n dim"],
    keys: Array,
    throat: Int[Array, ""] | int,
    stride: Float[Array, ""] | float,
) -> Float[Array, " n"]:
    """Work of annealing draws into the throat."""

    def one(position: Float[Array, " dim"], key: Array) -> Float[Array, ""]:
        key_label, key_momentum = jax.random.split(key)
        state, _ = make_state(position, target, library)
        label = state.draw_label(jax.random.uniform(key_label))
        momentum = jax.random.normal(key_momentum, position.shape)
        start = -log_joint(state, label, momentum, library)
        chart = library.chart(label)
        displacement, velocity = chart.displacement(position), apply(chart.scale, momentum)
        motion = Motion(displacement, velocity, state.logdensity, state.score, jnp.zeros((), int))
        end = leapfrog(
            motion,
            target,
            chart,
            step_size=stride * chart.step_size,
            num_steps=throat,
            residual=lambda n: 1 - (n + 1).astype(float) / throat,
        )
        z, p = apply(chart.inverse_scale, end.displacement), apply(chart.inverse_scale, end.velocity)
        return _throat_energy(library, label, z, p) - start

    return jax.vmap(one)(positions, keys)


@jax.jit
def _outward(
    target: Target,
    library: ModeLibrary,
    keys: Array,
    throat: Int[Array, ""] | int,
    stride: Float[Array, ""] | float,
) -> Float[Array, " n"]:
    """Work of annealing draws of the throat's Gaussian out of it: the same steps in reverse."""

    def one(key: Array) -> Float[Array, ""]:
        key_label, key_z, key_p = jax.random.split(key, 3)
        label = pick(jax.random.uniform(key_label), library.log_weight)
        chart = library.chart(label)
        z, p = (jax.random.normal(k, chart.location.shape) for k in (key_z, key_p))
        displacement = apply(chart.scale, z)
        found = target.evaluate(chart.position(displacement))
        end = leapfrog(
            Motion(displacement, apply(chart.scale, p), found.logdensity, found.score, jnp.zeros((), int)),
            target,
            chart,
            step_size=stride * chart.step_size,
            num_steps=throat,
            residual=lambda n: n.astype(float) / throat,
        )
        state, _ = make_state(chart.position(end.displacement), target, library)
        momentum = apply(chart.inverse_scale, end.velocity)
        return -log_joint(state, label, momentum, library) - _throat_energy(library, label, z, p)

    return jax.vmap(one)(keys)


def _throat_energy(
    library: ModeLibrary, label: Int[Array, ""], z: Float[Array, " dim"], p: Float[Array, " dim"]
) -> Float[Array, ""]:
    """-log of omega_i N(z; 0, I) and of the momentum."""
    return 0.5 * z @ z + 0.5 * library.dim * jnp.log(2 * jnp.pi) - row(library.log_weight, label) + 0.5 * p @ p
