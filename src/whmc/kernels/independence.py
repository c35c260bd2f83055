"""Independence moves from q, and the regenerations that they give (Eqs 8-12)."""

import jax.numpy as jnp
from jaxtyping import Array, Float

from whmc.kernels.base import AbstractKernel, ChainState, StepInfo, make_state, metropolis
from whmc.modes.library import ModeLibrary
from whmc.modes.mixture import NUM_UNIFORM, draw_mixture
from whmc.noise import Noise
from whmc.pytree import pytree
from whmc.target import Target


def log_regeneration(
    log_ratio: Float[Array, ""], new_log_ratio: Float[Array, ""], log_threshold: Float[Array, ""]
) -> Float[Array, ""]:
    """Eq. (9) [retroProb] for the kernel of Eqs (10)-(12) [TSQ:T, TSQ:S, TSQ:Q]: log chance that an accepted move
    was a regeneration, r = S(theta) Q(theta')/T(theta'|theta), with w = pi/q:

        c/min(w, w')   where both exceed c,     max(w, w')/c   where both are below,     1   otherwise.
    """
    low = jnp.minimum(log_ratio, new_log_ratio)
    high = jnp.maximum(log_ratio, new_log_ratio)
    return jnp.where(
        low > log_threshold, log_threshold - low, jnp.where(high < log_threshold, high - log_threshold, 0.0)
    )


@pytree
class Independence(AbstractKernel):
    """theta' ~ q, accepted with min(1, w(theta')/w(theta)), w = pi/q: T of Eq. (10) [TSQ:T].

    An accepted move is a regeneration with the chance of `log_regeneration`; then theta' has law
    Q of Eq. (12) [TSQ:Q], whatever came before. `log_threshold` is log c; any value is valid, the median of log w is
    good.
    """

    log_threshold: Float[Array, ""] | float = 0.0

    def num_noise(self, library: ModeLibrary) -> tuple[int, int]:
        return NUM_UNIFORM + 2, library.dim + 1

    def move(
        self, noise: Noise, state: ChainState, target: Target, library: ModeLibrary
    ) -> tuple[ChainState, StepInfo]:
        u_accept, u_coin = noise.uniform[NUM_UNIFORM:]
        _, position = draw_mixture(noise, library)
        proposal, failed = make_state(position, target, library)
        log_ratio = proposal.log_ratio - state.log_ratio
        new_state, accepted, log_ratio = metropolis(u_accept, log_ratio, state, proposal)
        log_chance = log_regeneration(
            state.log_ratio, proposal.log_ratio, jnp.asarray(self.log_threshold, proposal.log_ratio.dtype)
        )
        info = StepInfo(
            label=state.label,
            proposed=proposal.label,
            log_ratio=log_ratio,
            accepted=accepted,
            regenerated=accepted & (jnp.log(u_coin) < log_chance),
            num_gradients=jnp.ones((), int),
            num_failed=failed.astype(int),
        )
        return new_state, info
