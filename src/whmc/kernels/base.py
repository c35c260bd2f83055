"""What all kernels share: the state of a chain, what a step tells, and the one Metropolis accept.

Kernels work on the extended target pi(theta) r_i(theta) of (theta, i): its theta-marginal is exactly pi,
whatever the charts are. So a wrong chart costs speed and never correctness. The label i is drawn afresh
from the responsibilities before each move (a Gibbs step), hence a state needs no label.
"""

import abc
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from whmc.modes.library import ModeLibrary
from whmc.modes.mixture import log_components, log_mixture
from whmc.pytree import pytree
from whmc.target import Target


@pytree
class ChainState:
    """A chain's position and what was computed there, so that nothing is computed twice.

    It belongs to the library that it was made with: `refresh` moves it to another one.
    """

    position: Float[Array, " dim"]
    logdensity: Float[Array, ""]
    score: Float[Array, " dim"]
    log_components: Float[Array, " capacity"]

    @property
    def label(self) -> Int[Array, ""]:
        """The chart with the largest responsibility: which mode the position is in."""
        return jnp.argmax(self.log_components)

    @property
    def log_ratio(self) -> Float[Array, ""]:
        """log w = log pi - log q."""
        return self.logdensity - log_mixture(self.log_components)


@pytree
class StepInfo:
    """What a step did. `log_ratio` is the log of the Metropolis ratio, -inf for what cannot be."""

    label: Int[Array, ""]
    proposed: Int[Array, ""]
    log_ratio: Float[Array, ""]
    accepted: Bool[Array, ""]
    regenerated: Bool[Array, ""]
    num_gradients: Int[Array, ""]
    num_failed: Int[Array, ""]


def make_state(position: Float[Array, " dim"], target: Target, library: ModeLibrary) -> tuple[ChainState, Bool[Array, ""]]:
    """The state at a position, and whether the density failed there (NaN, +inf, a bad score)."""
    found = target.evaluate(position)
    state = ChainState(position, found.logdensity, found.score, log_components(library, position))
    return state, found.failed


def init(position: Float[Array, " dim"], target: Target, library: ModeLibrary) -> ChainState:
    """The state of a chain that starts at `position`."""
    return make_state(position, target, library)[0]


def refresh(state: ChainState, library: ModeLibrary) -> ChainState:
    """The same place, seen from another library."""
    return ChainState(
        state.position, state.logdensity, state.score, log_components(library, state.position)
    )


def log_accept(log_ratio: Float[Array, ""], proposal: ChainState) -> Float[Array, ""]:
    """The ratio, with what is undefined or has no density taken as impossible: reject, do not repair."""
    possible = jnp.isfinite(proposal.logdensity) & ~jnp.isnan(log_ratio)
    return jnp.where(possible, log_ratio, -jnp.inf)


def metropolis(
    uniform: Float[Array, ""], log_ratio: Float[Array, ""], state: ChainState, proposal: ChainState
) -> tuple[ChainState, Bool[Array, ""], Float[Array, ""]]:
    """The proposal with probability min(1, exp(log_ratio)), else the state; whether; and the ratio used."""
    log_ratio = log_accept(log_ratio, proposal)
    accepted = jnp.log(uniform) < log_ratio
    new_state = jax.tree.map(lambda new, old: jnp.where(accepted, new, old), proposal, state)
    return new_state, accepted, log_ratio


class AbstractKernel(abc.ABC):
    """A Markov kernel. `exact` says that it leaves the target invariant; the tests hold it to that."""

    exact: ClassVar[bool] = True

    @abc.abstractmethod
    def step(
        self, key: Array, state: ChainState, target: Target, library: ModeLibrary
    ) -> tuple[ChainState, Any]:
        """One step: the new state, and a StepInfo (or a tuple of them)."""
