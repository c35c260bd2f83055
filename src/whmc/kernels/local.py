"""Local moves: Hamiltonian Monte Carlo in the chart of a label."""

import abc
from typing import ClassVar

import jax.numpy as jnp

from whmc._pytree import pytree
from whmc._shapes import Array, Float, Int
from whmc.kernels.base import AbstractKernel, ChainState, StepInfo, log_joint
from whmc.kernels.flight import AbstractFlight
from whmc.kernels.leg import Leg, Schedule, set_out
from whmc.kernels.random import Noise
from whmc.modes.chart import row
from whmc.modes.library import ModeLibrary
from whmc.target.target import Target

JITTER = 0.2
"""Step sizes vary by this share either way, so that no orbit closes on itself."""

SHORT = 0.1
SHORTEST = 1 / 16
"""Share of moves with a shorter step, log-uniform down to `SHORTEST`. Where a mode is much narrower than its chart, as
in the tip of a bent one, all other moves are refused, and a chain would stay there for a thousand of them."""


def jitter(uniform: Float[Array, ""]) -> Float[Array, ""]:
    """The factor of the step size, from one uniform number."""
    usual = 1 + JITTER * (2 * uniform / (1 - SHORT) - 1)
    short = SHORTEST ** ((1 - uniform) / SHORT)
    return jnp.where(uniform < 1 - SHORT, usual, short)


class AbstractLocal(AbstractKernel):
    """A move in the chart of a label, `label` and `proposed` of its info, with a step of the chart's own size.

    The warm-up tunes the chart's step size to the acceptance that `log_ratio` tells.
    """

    acceptance_goal: ClassVar[float] = 0.8
    """Acceptance that step sizes aim at; of HMC the cost of an effective draw hardly changes between .65 and .9."""

    error_order: ClassVar[int] = 2
    """By which power of the step size the spread of the log ratio grows."""

    uses_scores: ClassVar[bool] = True
    """Whether it needs the gradient of the log density. If no local move does, none is computed: throats stay shut."""


class AbstractLocalFlight(AbstractFlight, AbstractLocal):
    """A local move of one leg, in the chart of a label drawn with r(theta)."""

    @abc.abstractmethod
    def cost(self) -> Int[Array, ""]:
        """Evaluations of the target."""

    def num_noise(self, library: ModeLibrary) -> tuple[int, int]:
        return 3, library.dim

    def finish(self, noise: Noise, state: ChainState, leg: Leg, proposal: ChainState, library: ModeLibrary) -> StepInfo:
        del noise, state
        return StepInfo(
            label=leg.label,
            proposed=leg.label,
            log_ratio=log_joint(proposal, leg.label, leg.momentum, library) - leg.log_start,
            accepted=leg.possible,
            regenerated=jnp.zeros((), bool),
            num_gradients=self.cost(),
            num_failed=leg.motion.num_failed,
        )


@pytree
class LocalHMC(AbstractLocalFlight):
    """Explores the mode that the chain is in.

    i ~ r(theta); momentum p ~ N(0, I) in chart i; `num_steps` leapfrog steps of the chart's own step size;
    accept with exp(-ΔH) · r_i(theta')/r_i(theta), where the energy H counts the volume of a bent chart.
    """

    num_steps: Int[Array, ""] | int = 4

    def schedules(self) -> tuple[Schedule, ...]:
        return (Schedule(self.num_steps, 1.0, 0.0),)

    def begin(self, noise: Noise, state: ChainState, target: Target, library: ModeLibrary) -> Leg:
        del target
        (u_label, u_step, _), momentum = noise.uniform, noise.normal
        label = state.draw_label(u_label)
        return Leg(
            label=label,
            other=label,
            log_start=log_joint(state, label, momentum, library),
            location=row(library.location, label),
            motion=set_out(state, label, momentum, library),
            step_size=row(library.step_size, label) * jitter(u_step),
        )

    def cost(self) -> Int[Array, ""]:
        return jnp.asarray(self.num_steps)
