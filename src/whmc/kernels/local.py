"""Local moves: Hamiltonian Monte Carlo in the chart of a label."""

import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from whmc._pytree import pytree
from whmc.kernels.base import AbstractKernel, ChainState, StepInfo, metropolis, place
from whmc.kernels.leapfrog import Motion, leapfrog
from whmc.kernels.random import Noise
from whmc.modes.library import ModeLibrary, apply
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


@pytree
class LocalHMC(AbstractLocal):
    """Explores the mode that the chain is in.

    i ~ r(theta); momentum p ~ N(0, I) in chart i; `num_steps` leapfrog steps of the chart's own step size;
    accept with exp(-ΔH) · r_i(theta')/r_i(theta).
    """

    num_steps: Int[Array, ""] | int = 4

    def num_noise(self, library: ModeLibrary) -> tuple[int, int]:
        return 3, library.dim

    def move(
        self, noise: Noise, state: ChainState, target: Target, library: ModeLibrary
    ) -> tuple[ChainState, StepInfo]:
        (u_label, u_step, u_accept), momentum = noise.uniform, noise.normal
        label = state.draw_label(u_label)
        chart = library.chart(label)

        end = leapfrog(
            Motion(
                state.position - chart.location,
                apply(chart.scale, momentum),
                state.logdensity,
                state.score,
                jnp.zeros((), int),
            ),
            target,
            chart,
            step_size=chart.step_size * jitter(u_step),
            num_steps=self.num_steps,
            residual=lambda n: jnp.ones(()),
        )
        position = chart.location + end.displacement
        proposal = place(position, end.logdensity, end.score, library)
        new_momentum = apply(chart.inverse_scale, end.velocity)

        log_ratio = (
            proposal.logdensity
            - 0.5 * new_momentum @ new_momentum
            - (state.logdensity - 0.5 * momentum @ momentum)
            + proposal.log_responsibility(label)
            - state.log_responsibility(label)
        )
        new_state, accepted, log_ratio = metropolis(u_accept, log_ratio, state, proposal)
        info = StepInfo(
            label=label,
            proposed=label,
            log_ratio=log_ratio,
            accepted=accepted,
            regenerated=jnp.zeros((), bool),
            num_gradients=jnp.asarray(self.num_steps),
            num_failed=end.num_failed,
        )
        return new_state, info
