"""Leapfrog in a chart, with the chart's own Gaussian solved exactly.

In chart coordinates z, with momentum p of unit mass, the potential is written as the chart's Gaussian plus a
residual, the residual turned down by beta (beta = 0: the target; beta = 1: the Gaussian, where all modes look alike):

    ½|z|² + (1 - beta) [ -log pi(mu + L z) - ½|z|² ]

One step is kick(e/2) ∘ rotate(e) ∘ kick(e/2): `kick` follows the residual's force, `rotate` the Gaussian's
flow (z cos e + p sin e, p cos e - z sin e). It is reversible and keeps volume for any density, and exact
where the mode is Gaussian in its chart, so the step size is limited by the shape of the mode and not by its scale.

The code works with displacement x = L z and velocity v = L p: one product with Sigma = L L^T a gradient. The kick at
the end of a step and that at the beginning of the next are one.

In a bent chart (`bend.py`) z is its straightened coordinate: theta is bent from mu + L z, the log of the volume adds to
log pi, and the score is pulled back to the straight.
"""

import dataclasses
from collections.abc import Callable

import jax
import jax.numpy as jnp

from whmc._pytree import pytree
from whmc._shapes import Array, Float, Int
from whmc.modes.band import Band
from whmc.modes.bend import Bend
from whmc.modes.chart import Chart, Matrix, apply
from whmc.modes.tail import Tail
from whmc.target.target import Target


@pytree
class Motion:
    """A point in flight: displacement from the chart's location, velocity, and what is known there."""

    displacement: Float[Array, " dim"]
    velocity: Float[Array, " dim"]
    logdensity: Float[Array, ""]
    score: Float[Array, " dim"]
    num_failed: Int[Array, ""]


def turn(
    first: Float[Array, " dim"], second: Float[Array, " dim"], cos: Float[Array, ""], sin: Float[Array, ""]
) -> tuple[Float[Array, " dim"], Float[Array, " dim"]]:
    """The flow of a unit harmonic oscillator, for a time with this cosine and sine."""
    return cos * first + sin * second, cos * second - sin * first


def kicked(
    motion: Motion, covariance: Matrix, time: Float[Array, ""], bend: Bend | Band | Tail | None
) -> Float[Array, " dim"]:
    """The velocity after the residual's force was followed for a time."""
    score = motion.score if bend is None else bend.pulled(motion.displacement, motion.score)
    return motion.velocity + time * (apply(covariance, score) + motion.displacement)


def leap(
    motion: Motion,
    target: Target,
    chart: Chart,
    cos: Float[Array, ""],
    sin: Float[Array, ""],
    time: Float[Array, ""],
) -> Motion:
    """Rotate, evaluate, kick."""
    displacement, velocity = turn(motion.displacement, motion.velocity, cos, sin)
    found = target.evaluate(chart.position(displacement))
    num_failed = motion.num_failed + found.failed.astype(motion.num_failed.dtype)
    here = Motion(displacement, velocity, found.logdensity, found.score, num_failed)
    return dataclasses.replace(here, velocity=kicked(here, chart.covariance, time, chart.bend))


def leapfrog(
    motion: Motion,
    target: Target,
    chart: Chart,
    *,
    step_size: Float[Array, ""],
    num_steps: Int[Array, ""] | int,
    residual: Callable[[Int[Array, ""]], Float[Array, ""]],
) -> Motion:
    """`num_steps` steps; `residual(n)` is 1 - beta of step n. One gradient a step."""

    # outside the loop: inside, XLA would compute them for every coordinate
    cos, sin = jnp.cos(step_size), jnp.sin(step_size)

    def half(n: Int[Array, ""]) -> Float[Array, ""]:
        """How long the kicks before and after step n are; none before and after all steps."""
        return 0.5 * step_size * jnp.where((n >= 0) & (n < num_steps), residual(n), 0.0)

    def step(n: Int[Array, ""], motion: Motion) -> Motion:
        return leap(motion, target, chart, cos, sin, half(n) + half(n + 1))

    velocity = kicked(motion, chart.covariance, half(jnp.asarray(0)), chart.bend)
    start = dataclasses.replace(motion, velocity=velocity)
    return jax.lax.fori_loop(0, num_steps, step, start)
