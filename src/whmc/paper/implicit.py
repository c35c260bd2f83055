"""Implicit steps: a fixed-point solver that tells whether it converged, and flights that are checked by retracing them.

A step that is defined by an equation is a map only where the equation has been solved, and reversible only where the
way back leads to the same solution. So a flight of L steps counts as sound if every equation, there and back, was
solved to the tolerance and the way back ends where the flight began. Flipping the momentum then makes the flight an
involution on the set of sound starts, and rejecting all others is exact.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from whmc._pytree import pytree
from whmc._shapes import Array, Bool, Float, Int
from whmc.kernels.base import ChainState, StepInfo, metropolis, place
from whmc.modes.library import ModeLibrary
from whmc.target.target import Evaluation

Scalar = Float[Array, ""] | float
Count = Int[Array, ""] | int
Flag = Bool[Array, ""] | bool

SLACK = 1e3
"""A flight has returned if it misses its start by at most this many tolerances: the errors of its steps add up."""

ROUNDING = 16
"""No tolerance below this many rounding errors can be met: it keeps single precision possible."""


@pytree
class Solution:
    """The last iterate, and whether it moved by less than the tolerance."""

    value: Float[Array, " dim"]
    converged: Bool[Array, ""]


@pytree
class Solver:
    """x = g(x) by x ← g(x), from a start, until x moves by no more than `tolerance` · (1 + |x|)."""

    tolerance: Scalar
    max_iterations: Count

    def solve(self, update: Callable[[Array], Array], start: Float[Array, " dim"]) -> Solution:
        """Not converged: the iterations ran out, or the iterate stopped being finite."""
        tolerance = self._tolerance(start)

        def going_on(carry: tuple[Array, Array, Array]) -> Array:
            _, gap, n = carry
            return (n < self.max_iterations) & (gap > tolerance)  # false for NaN: nothing can come of it

        def again(carry: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
            old, _, n = carry
            new = update(old)
            return new, distance(new, old), n + 1

        first = (start, jnp.full((), jnp.inf, start.dtype), jnp.zeros((), int))
        value, gap, _ = jax.lax.while_loop(going_on, again, first)
        return Solution(value, gap <= tolerance)

    def same(self, first: Float[Array, " dim"], second: Float[Array, " dim"]) -> Bool[Array, ""]:
        """Whether two points agree as well as flights can."""
        return distance(first, second) <= SLACK * self._tolerance(first)

    def _tolerance(self, like: Float[Array, " dim"]) -> Float[Array, ""]:
        least = ROUNDING * float(jnp.finfo(like.dtype).eps)
        return jnp.maximum(jnp.asarray(self.tolerance, like.dtype), least)


def distance(first: Float[Array, " dim"], second: Float[Array, " dim"]) -> Float[Array, ""]:
    """max|x - y| / (1 + max|x|): absolute for small numbers, relative for large."""
    return jnp.max(jnp.abs(first - second)) / (1 + jnp.max(jnp.abs(first)))


@pytree
class Flight:
    """A point of phase space on its way.

    local: what else the method knows at the position. log_volume: log|det| of the map so far. converged: whether all
    equations were solved.
    """

    position: Float[Array, " dim"]
    momentum: Float[Array, " dim"]
    found: Evaluation
    local: Any
    log_volume: Float[Array, ""]
    converged: Bool[Array, ""]
    num_failed: Int[Array, ""]

    @classmethod
    def begin(cls, state: ChainState, momentum: Float[Array, " dim"], local: Any = None) -> "Flight":
        """Where a chain is, with a momentum."""
        found = Evaluation(state.logdensity, state.score, jnp.zeros((), bool))
        none = jnp.zeros_like(state.logdensity)
        return cls(state.position, momentum, found, local, none, jnp.ones((), bool), jnp.zeros((), int))

    def flipped(self) -> "Flight":
        """The same place, headed back."""
        return dataclasses.replace(self, momentum=-self.momentum)


def fly(
    advance: Callable[[Flight], Flight], start: Flight, solver: Solver, *, num_steps: Count, checked: Flag
) -> tuple[Flight, Bool[Array, ""]]:
    """`num_steps` steps and, if `checked`, the same number back; the end, and whether the flight was sound."""
    num_steps, checked = jnp.asarray(num_steps), jnp.asarray(checked)

    def choose(claim: Bool[Array, ""], first: Flight, second: Flight) -> Flight:
        return jax.tree.map(lambda one, other: jnp.where(claim, one, other), first, second)

    # one loop for both ways: a step takes long to compile
    def once(n: Int[Array, ""], carry: tuple[Flight, Flight]) -> tuple[Flight, Flight]:
        flight = advance(carry[0])
        there = n + 1 == num_steps
        return choose(there, flight.flipped(), flight), choose(there, flight, carry[1])

    back, end = jax.lax.fori_loop(0, num_steps * jnp.where(checked, 2, 1), once, (start, start))
    returned = solver.same(back.position, start.position) & solver.same(-back.momentum, start.momentum)
    return end, end.converged & (~checked | (back.converged & returned))


def settle(
    uniform: Float[Array, ""],
    log_ratio: Float[Array, ""],
    state: ChainState,
    end: Flight,
    library: ModeLibrary,
    *,
    sound: Bool[Array, ""],
    num_steps: Count,
    checked: Flag,
) -> tuple[ChainState, StepInfo]:
    """Accepts or rejects where a flight led; one that is not sound is counted as failed and, if `checked`, rejected."""
    proposal = place(end.position, end.found.logdensity, end.found.score, library)
    possible = sound | ~jnp.asarray(checked)
    new_state, accepted, log_ratio = metropolis(uniform, jnp.where(possible, log_ratio, -jnp.inf), state, proposal)
    info = StepInfo(
        label=state.label,
        proposed=proposal.label,
        log_ratio=log_ratio,
        accepted=accepted,
        regenerated=jnp.zeros((), bool),
        num_gradients=jnp.asarray(num_steps) * jnp.where(checked, 2, 1),
        num_failed=end.num_failed + (~sound).astype(int),
    )
    return new_state, info
