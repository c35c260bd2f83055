"""Local moves that need no gradient: random walks in the chart of a label."""

from typing import ClassVar

import jax.numpy as jnp

from whmc._pytree import pytree
from whmc._shapes import Array, Int
from whmc.kernels.base import ChainState, log_joint
from whmc.kernels.leapfrog import Motion, turn
from whmc.kernels.leg import LANDING, Leg, Schedule
from whmc.kernels.local import AbstractLocalFlight, jitter
from whmc.kernels.random import Noise
from whmc.modes.chart import apply, row
from whmc.modes.library import ModeLibrary
from whmc.target.target import Target


@pytree
class LocalWalk(AbstractLocalFlight):
    """Explores the mode that the chain is in by evaluations alone: a leapfrog step without its kicks.

    i ~ r(theta); p ~ N(0, I) in chart i; with the chart's own step size e, jittered,

        x' = x cos e + p sin e,     p' = p cos e - x sin e.

    The rotation keeps volume and retraces itself when p' is flipped, so with h = log pi + log|d theta/d x| accept with

        exp{[h(theta') - ½|p'|²] - [h(theta) - ½|p|²]} · r_i(theta')/r_i(theta).

    Where the mode is Gaussian in its chart every step is accepted: it is the autoregressive proposal of Neal (1998).
    """

    acceptance_goal: ClassVar[float] = 0.4
    error_order: ClassVar[int] = 1
    uses_scores: ClassVar[bool] = False

    def schedules(self) -> tuple[Schedule, ...]:
        return (LANDING,)

    def begin(self, noise: Noise, state: ChainState, target: Target, library: ModeLibrary) -> Leg:
        del target
        (u_label, u_step, _), momentum = noise.uniform, noise.normal
        label = state.draw_label(u_label)
        chart = library.chart(label)
        angle = chart.step_size * jitter(u_step)
        x, p = turn(chart.whiten(state.position), momentum, jnp.cos(angle), jnp.sin(angle))
        return Leg(
            label=label,
            other=label,
            log_start=log_joint(state, label, momentum, library),
            location=row(library.location, label),
            motion=Motion(apply(chart.scale, x), p, state.logdensity, state.score, jnp.zeros((), int)),
            step_size=jnp.zeros_like(angle),
        )

    def cost(self) -> Int[Array, ""]:
        return jnp.ones((), int)
