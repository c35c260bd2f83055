"""What all kernels share: the state of a chain, what a step tells, and the one Metropolis accept.

Kernels work on the extended target pi(theta) r_i(theta) of (theta, i): its theta-marginal is exactly pi,
whatever the charts are. So a wrong chart costs speed and never correctness. The label i is drawn afresh
from the responsibilities before each move (a Gibbs step), hence a state needs no label.
"""

import abc
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from whmc._pytree import pytree
from whmc._shapes import Array, Bool, Float, Int
from whmc.kernels.random import draw_noise
from whmc.modes.chart import row
from whmc.modes.library import ModeLibrary
from whmc.modes.mixture import log_components, log_components_of, log_mixture, pick
from whmc.target.target import Numbers, Target


@pytree
class ChainState:
    """A chain's position and what was computed there, so that nothing is computed twice.

    It belongs to the library that it was made with: `refresh` moves it to another one. Also the states of many chains,
    in JAX or NumPy arrays.
    """

    position: Float[Any, "*n dim"]
    logdensity: Float[Any, "*n"]
    score: Float[Any, "*n dim"]
    log_components: Float[Any, "*n capacity"]
    log_mixture: Float[Any, "*n"]

    @property
    def label(self) -> Int[Array, ""]:
        """The chart with the largest responsibility: which mode the position is in."""
        return jnp.argmax(self.log_components)

    @property
    def log_ratio(self) -> Float[Array, ""]:
        """log w = log pi - log q."""
        return self.logdensity - self.log_mixture

    def draw_label(self, uniform: Float[Array, ""]) -> Int[Array, ""]:
        """i ~ r(theta): the Gibbs step of the extended target."""
        return pick(uniform, self.log_components, self.log_mixture)

    def log_responsibility(self, label: Int[Array, ""]) -> Float[Array, ""]:
        """log r_k."""
        return row(self.log_components, label) - self.log_mixture


@pytree
class StepInfo:
    """What a step did. `log_ratio` is the log of the Metropolis ratio, -inf for what cannot be.

    label, proposed: of a jump the charts that it leads from and to, those with the largest responsibility, so that
    flows between them balance whatever the charts are; of a local move the chart that it is made in.

    Also its own record: many steps of many chains, in JAX or NumPy arrays.
    """

    label: Int[Any, "*n"]
    proposed: Int[Any, "*n"]
    log_ratio: Float[Any, "*n"]
    accepted: Bool[Any, "*n"]
    regenerated: Bool[Any, "*n"]
    num_gradients: Int[Any, "*n"]
    num_failed: Int[Any, "*n"]


def make_state(
    position: Float[Array, " dim"], target: Target, library: ModeLibrary
) -> tuple[ChainState, Bool[Array, ""]]:
    """The state at a position, and whether the density failed there (NaN, +inf, a bad score)."""
    found = target.evaluate(position)
    return place(position, found.logdensity, found.score, library), found.failed


def place(
    position: Float[Array, " dim"], logdensity: Float[Array, ""], score: Float[Array, " dim"], library: ModeLibrary
) -> ChainState:
    """The state at a position where the target is known already."""
    components = log_components(library, position)
    return ChainState(position, logdensity, score, components, log_mixture(components))


def place_all(
    position: Float[np.ndarray, "n dim"],
    logdensity: Float[np.ndarray, " n"],
    score: Float[np.ndarray, "n dim"],
    library: ModeLibrary,
) -> ChainState:
    """`place` of many chains, in NumPy: without compiling anything."""
    components = np.full((len(position), library.capacity), -np.inf)
    components[:, : library.size] = log_components_of(library, position).T
    return ChainState(position, logdensity, score, components, np.logaddexp.reduce(components, axis=1))


def init(position: Numbers, target: Target, library: ModeLibrary) -> ChainState:
    """The state of a chain that starts at `position`, in the library's precision."""
    dtype = library.location.dtype
    if dtype == jnp.float64 and jnp.result_type(float) != jnp.float64:
        raise TypeError("this library is float64: work inside `with jax.enable_x64(True):`")
    return make_state(jnp.asarray(position, dtype), target, library)[0]


def refresh(state: ChainState, library: ModeLibrary) -> ChainState:
    """The same place, seen from another library."""
    return place(state.position, state.logdensity, state.score, library)


def log_joint(
    state: ChainState, label: Int[Array, ""], momentum: Float[Array, " dim"], library: ModeLibrary
) -> Float[Array, ""]:
    """log pi(theta) + log|d theta/d x_i| - ½|p|² + log r_i(theta): of position and momentum in chart i."""
    log_volume = library.chart(label).log_volume(state.position)
    return state.logdensity + log_volume - 0.5 * momentum @ momentum + state.log_responsibility(label)


def log_accept(log_ratio: Float[Array, ""], proposal: ChainState) -> Float[Array, ""]:
    """The ratio, with what is undefined or has no density taken as impossible: reject, do not repair."""
    possible = jnp.isfinite(proposal.logdensity) & ~jnp.isnan(log_ratio)
    return jnp.where(possible, log_ratio, -jnp.inf)


def metropolis(
    uniform: Float[Array, ""],
    log_ratio: Float[Array, ""],
    state: ChainState,
    proposal: ChainState,
    possible: Bool[Array, ""] | bool = True,
) -> tuple[ChainState, Bool[Array, ""], Float[Array, ""]]:
    """The proposal with probability min(1, exp(log_ratio)), else the state; whether; and the ratio used.

    A proposal that is not `possible` is refused whatever its ratio.
    """
    log_ratio = log_accept(log_ratio, proposal)
    accepted = possible & (jnp.log(uniform) < log_ratio)
    new_state = jax.tree.map(lambda new, old: jnp.where(accepted, new, old), proposal, state)
    return new_state, accepted, log_ratio


class AbstractKernel(abc.ABC):
    """A Markov kernel: random numbers, then a map that they determine.

    The two halves are apart because drawing the numbers of many steps at once is several times quicker than drawing
    them step by step. The tests hold a kernel to what `exact` says.
    """

    @property
    def exact(self) -> bool:
        """Whether the target is invariant under this kernel. One that says False raises an alarm in its result."""
        return True

    def num_noise(self, library: ModeLibrary) -> tuple[int, int] | None:
        """How many uniform and normal numbers a step takes; None: it draws what it needs from a key."""
        del library
        return None

    def draw(self, key: Array, library: ModeLibrary) -> Any:
        """All the random numbers of one step: a Noise, or the key itself."""
        num = self.num_noise(library)
        return key if num is None else draw_noise(key, *num)

    @abc.abstractmethod
    def move(self, noise: Any, state: ChainState, target: Target, library: ModeLibrary) -> tuple[ChainState, Any]:
        """One step with given random numbers: the new state, and a StepInfo (or a tuple of them)."""

    def step(self, key: Array, state: ChainState, target: Target, library: ModeLibrary) -> tuple[ChainState, Any]:
        """One step."""
        return self.move(self.draw(key, library), state, target, library)
