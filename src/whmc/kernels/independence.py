"""Independence moves from q, and the regenerations that they give (Eqs 8-12)."""

import abc
from typing import ClassVar

import jax.numpy as jnp

from whmc._pytree import pytree
from whmc._shapes import Array, Bool, Float
from whmc.kernels.base import ChainState, StepInfo
from whmc.kernels.flight import AbstractFlight
from whmc.kernels.leg import LANDING, Leg, Schedule
from whmc.kernels.random import Noise
from whmc.modes.library import ModeLibrary
from whmc.modes.mixture import NUM_UNIFORM, draw_mixture
from whmc.target.target import Target


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


class AbstractIndependence(AbstractFlight):
    """theta' ~ q, accepted with min(1, w(theta')/w(theta)), w = pi/q: T of Eq. (10) [TSQ:T].

    An accepted move is a regeneration with the chance of `log_regeneration`; then theta' has law
    Q of Eq. (12) [TSQ:Q], whatever came before. `log_threshold` is log c; any value is valid, the median of log w is
    good.

    q may be zero in places, and a draw from it may fail with a chance that does not depend on theta. Where q(theta) = 0
    the chain stays. Failing multiplies T and S of Eq. (11) [TSQ:S] by the same number: the chance of a regeneration,
    S Q/T, is unchanged.
    """

    log_threshold: Float[Array, ""] | float

    from_mixture: ClassVar[bool] = False
    """Whether q is the library's mixture. Then log w is known at every draw, and the bridge gives the evidence."""

    @abc.abstractmethod
    def num_proposal(self, library: ModeLibrary) -> tuple[int, int]:
        """How many uniform and normal numbers `propose` takes."""

    @abc.abstractmethod
    def propose(self, noise: Noise, library: ModeLibrary) -> tuple[Float[Array, " dim"], Bool[Array, ""]]:
        """theta' ~ q, and whether the draw succeeded; uniform numbers past those it takes are left alone."""

    @abc.abstractmethod
    def log_ratio(self, state: ChainState, library: ModeLibrary) -> Float[Array, ""]:
        """log w = log pi - log q up to a constant; -inf where q is zero, for nothing leads from there or to there."""

    def num_noise(self, library: ModeLibrary) -> tuple[int, int]:
        uniform, normal = self.num_proposal(library)
        return uniform + 2, normal

    def schedules(self) -> tuple[Schedule, ...]:
        return (LANDING,)

    def begin(self, noise: Noise, state: ChainState, target: Target, library: ModeLibrary) -> Leg:
        del target
        position, drawn = self.propose(noise, library)
        log_w = self.log_ratio(state, library)
        return Leg.land(position, jnp.where(drawn & jnp.isfinite(log_w), log_w, jnp.inf))

    def finish(self, noise: Noise, state: ChainState, leg: Leg, proposal: ChainState, library: ModeLibrary) -> StepInfo:
        log_w, new_log_w = leg.log_start, self.log_ratio(proposal, library)
        log_chance = log_regeneration(log_w, new_log_w, jnp.asarray(self.log_threshold, new_log_w.dtype))
        return StepInfo(
            label=state.label,
            proposed=proposal.label,
            log_ratio=jnp.where(leg.possible, new_log_w - log_w, -jnp.inf),
            accepted=leg.possible,
            regenerated=jnp.log(noise.uniform[-2]) < log_chance,
            num_gradients=leg.possible.astype(int),
            num_failed=jnp.where(leg.possible, leg.motion.num_failed, 0),
        )


@pytree
class Independence(AbstractIndependence):
    """Independence moves with the library's mixture as q."""

    from_mixture: ClassVar[bool] = True

    log_threshold: Float[Array, ""] | float = 0.0

    def num_proposal(self, library: ModeLibrary) -> tuple[int, int]:
        return NUM_UNIFORM, library.dim + 1

    def propose(self, noise: Noise, library: ModeLibrary) -> tuple[Float[Array, " dim"], Bool[Array, ""]]:
        return draw_mixture(noise.uniform, noise.normal, library)[1], jnp.ones((), bool)

    def log_ratio(self, state: ChainState, library: ModeLibrary) -> Float[Array, ""]:
        return state.log_ratio
