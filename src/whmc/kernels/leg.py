"""Legs: leapfrog steps in one chart, each with one evaluation of the target, of one chain or of many side by side."""

import dataclasses
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from whmc._pytree import pytree
from whmc._shapes import Array, Bool, Float, Int
from whmc.kernels.base import ChainState
from whmc.kernels.leapfrog import Motion, kicked, turn
from whmc.kernels.packing import Packing
from whmc.modes.band import Band
from whmc.modes.bend import Bend
from whmc.modes.chart import Matrix, apply, row
from whmc.modes.library import ModeLibrary
from whmc.modes.tail import Tail
from whmc.target.target import Target, made_safe


@pytree
class Schedule:
    """The steps of a leg, the same for all chains: how many, and 1 - beta of step n = `residual` + `rise` n.

    Or those of several legs in one.
    """

    num_steps: Int[Array, "*stages"] | int
    residual: Float[Array, "*stages"] | float
    rise: Float[Array, "*stages"] | float

    def half(self, n: Int[Array, ""] | int) -> Float[Array, ""]:
        """Half of 1 - beta of step n: what the kicks before and after it last, in steps. Zero for no step."""
        rate = jnp.asarray(self.residual + self.rise * jnp.asarray(n, jnp.result_type(float)))
        return 0.5 * jnp.where((jnp.asarray(n) >= 0) & (jnp.asarray(n) < self.num_steps), rate, 0.0)

    @property
    def kicks(self) -> Bool[Array, ""]:
        """Whether any of the steps has kicks."""
        return (jnp.asarray(self.num_steps) > 0) & (
            (jnp.asarray(self.residual) != 0) | (jnp.asarray(self.num_steps) > 1)
        )


LANDING = Schedule(1, 0.0, 0.0)
"""An evaluation, and no step."""

NOWHERE = Schedule(0, 0.0, 0.0)
"""No evaluation at all."""

Found = tuple[Float[Array, "*n"], Float[Array, "*n dim"]]
"""Log density and score as the target gives them."""


@pytree
class Leg:
    """One chain at the beginning of a leg, or at its end.

    label: the chart that it is in. other: that which it goes to or comes from. log_start: what the kernel has to
    remember of the start, for the Metropolis ratio; +inf where the flight must not be accepted. motion: between legs
    the momentum p is in the place of the velocity L p, so that a leg without kicks needs no matrices.
    """

    label: Int[Array, ""]
    other: Int[Array, ""]
    log_start: Float[Array, ""]
    location: Float[Array, " dim"]
    motion: Motion
    step_size: Float[Array, ""]

    def with_velocity(self, velocity: Float[Array, " dim"]) -> "Leg":
        return dataclasses.replace(self, motion=dataclasses.replace(self.motion, velocity=velocity))

    def position(self, bend: Bend | Band | Tail | None) -> Float[Array, " dim"]:
        """theta; `bend`: that of the chart, if there is any."""
        displacement = self.motion.displacement
        return self.location + (displacement if bend is None else bend.bent(displacement))

    @property
    def momentum(self) -> Float[Array, " dim"]:
        """p, between legs."""
        return self.motion.velocity

    @property
    def possible(self) -> Bool[Array, "*n"]:
        return self.log_start < jnp.inf

    @classmethod
    def land(cls, position: Float[Array, " dim"], log_start: Float[Array, ""]) -> "Leg":
        """Straight to a position, in no chart."""
        none, still, zero = jnp.zeros((), int), jnp.zeros_like(position), jnp.zeros_like(log_start)
        return cls(none, none, log_start, position, Motion(still, still, zero, still, none), zero)


def set_out(state: ChainState, label: Int[Array, ""], momentum: Float[Array, " dim"], library: ModeLibrary) -> Motion:
    """At the start of a flight in chart i."""
    displacement = library.chart(label).displacement(state.position)
    return Motion(displacement, momentum, state.logdensity, state.score, jnp.zeros((), int))


def set_off(leg: Leg, library: ModeLibrary) -> tuple[Leg, Matrix]:
    """The leg with velocity for momentum, and the covariance of its chart."""
    velocity = apply(row(library.scale, leg.label), leg.momentum)
    return leg.with_velocity(velocity), row(library.covariance, leg.label)


def glide(leg: Leg, library: ModeLibrary) -> tuple[Leg, Matrix]:
    """A leg without kicks, which needs no matrices."""
    return leg, jnp.zeros_like(library.covariance[0])


def look(leg: Leg, found: Found) -> Leg:
    """The leg with what was found where it is."""
    here = made_safe(*found)
    num_failed = leg.motion.num_failed + here.failed.astype(leg.motion.num_failed.dtype)
    motion = dataclasses.replace(leg.motion, logdensity=here.logdensity, score=here.score, num_failed=num_failed)
    return dataclasses.replace(leg, motion=motion)


def kick(leg: Leg, found: Found, covariance: Matrix, bend: Bend | Band | Tail | None, share: Float[Array, ""]) -> Leg:
    """The leg after the force that was found has acted for this share of a step."""
    leg = look(leg, found)
    return leg.with_velocity(kicked(leg.motion, covariance, share * leg.step_size, bend))


def rotate(
    leg: Leg,
    found: Found,
    covariance: Matrix,
    bend: Bend | Band | Tail | None,
    cos: Float[Array, ""],
    sin: Float[Array, ""],
    share: Float[Array, ""],
) -> Leg:
    """Kick and rotate: a step up to the evaluation at its end. share: of the step size, for the kick before it."""
    leg = kick(leg, found, covariance, bend, share)
    displacement, velocity = turn(leg.motion.displacement, leg.motion.velocity, cos, sin)
    return dataclasses.replace(
        leg, motion=dataclasses.replace(leg.motion, displacement=displacement, velocity=velocity)
    )


def arrive(
    leg: Leg,
    found: Found,
    covariance: Matrix,
    bend: Bend | Band | Tail | None,
    schedule: Schedule,
    library: ModeLibrary,
) -> Leg:
    """The leg after its last kick, with momentum for velocity."""
    leg = kick(leg, found, covariance, bend, schedule.half(schedule.num_steps - 1))
    return leg.with_velocity(apply(row(library.inverse_scale, leg.label), leg.motion.velocity))


def bends_of(legs: Leg, library: ModeLibrary) -> Bend | Band | Tail | None:
    """The bends of the charts that one chain is in, or many; None where all charts are straight."""
    bend_of = library.bend_of
    return bend_of(legs.label) if jnp.ndim(legs.label) == 0 else jax.vmap(bend_of)(legs.label)


def positions(legs: Leg, bend: Bend | Band | Tail | None) -> Float[Array, "*n dim"]:
    """Where one chain is, or many."""
    return legs.position(bend) if jnp.ndim(legs.label) == 0 else jax.vmap(Leg.position)(legs, bend)


def reached(legs: Leg, library: ModeLibrary) -> Float[Array, "*n dim"]:
    """Where one chain is at the end of a leg, or many."""
    return positions(legs, bends_of(legs, library))


def fly_leg(leg: Any, schedule: Schedule, target: Target, library: ModeLibrary, legs: Packing | None = None) -> Any:
    """The steps of a leg: of one chain, or of many whose legs are packed so.

    The kick after a step and that before the next are one. From step to step the density and its score are carried as
    the target gives them, and made safe in the next step: else XLA computes them anew for each of their uses, the whole
    target three times over.
    """

    def each(function: Callable[..., Any], *arguments: Any) -> Any:
        """The function of all chains."""
        if legs is None:
            return function(*arguments)
        first, *others = arguments
        made = jax.vmap(function)(legs.unpack(first), *others)
        return (legs.pack(made[0]), made[1]) if isinstance(made, tuple) else legs.pack(made)

    def unpacked(leg: Any) -> Leg:
        return leg if legs is None else legs.unpack(leg)

    evaluate = target.value_and_score if legs is None else jax.vmap(target.value_and_score)
    bend = bends_of(unpacked(leg), library)
    leg, covariance = jax.lax.cond(
        schedule.kicks,
        partial(each, partial(set_off, library=library)),
        partial(each, partial(glide, library=library)),
        leg,
    )
    # outside the loop: inside, XLA would compute them for every coordinate
    size = unpacked(leg).step_size
    cos, sin = jnp.cos(size), jnp.sin(size)

    def step(n: Int[Array, ""], carry: tuple[Any, Found]) -> tuple[Any, Found]:
        share = schedule.half(n - 1) + schedule.half(n)
        leg = each(partial(rotate, share=share), *carry, covariance, bend, cos, sin)
        return leg, evaluate(positions(unpacked(leg), bend))

    start = unpacked(leg).motion
    leg, found = jax.lax.fori_loop(0, schedule.num_steps, step, (leg, (start.logdensity, start.score)))
    return jax.lax.cond(
        schedule.kicks,
        partial(each, partial(arrive, schedule=schedule, library=library)),
        lambda leg, found, covariance, bend: each(look, leg, found),
        leg,
        found,
        covariance,
        bend,
    )
