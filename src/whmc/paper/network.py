"""Algorithm 1 of the paper as printed: wormholes through an extra dimension, between a real and a mirror world.

It is here for the record and for comparisons. It does not leave the target invariant: `docs/errata.md` says why, and
`whmc.WormholeTrajectory` is the exact form of the same idea.
"""

import dataclasses
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from whmc._pytree import pytree
from whmc._shapes import Array, Bool, Float, Int
from whmc.kernels.base import AbstractKernel, ChainState, StepInfo, make_state, metropolis
from whmc.modes.chart_data import ChartData, scale_rows
from whmc.modes.layers.places import Shift
from whmc.modes.layers.scales import Dense, Diagonal, Scale
from whmc.modes.library import ModeLibrary
from whmc.modes.mixture import pick
from whmc.paper.geometry import Network, vicinity
from whmc.target.target import Target


def augmented(target: Target) -> Target:
    """The target in D + 1 dimensions: the last coordinate is N(0, 1) and independent of the rest (section 3)."""

    def logdensity(position: Float[Array, " dim"]) -> Float[Array, ""]:
        return target(position[:-1]) - 0.5 * position[-1] ** 2 - 0.5 * jnp.log(2 * jnp.pi)

    def starts(key: Array, num: int) -> Float[Array, "num dim"]:
        key_extra, key_starts = jax.random.split(key)
        extra = jax.random.normal(key_extra, (num, 1))
        return jnp.concatenate([target.draw_starts(key_starts, num), extra], axis=1)

    assert target.names is not None
    return Target(
        logdensity,
        dim=target.dim + 1,
        starts=None if target.starts is None else starts,
        names=[*target.names, "extra"],
    )


def augmented_library(library: ModeLibrary) -> ModeLibrary:
    """The same charts in D + 1 dimensions, with the extra coordinate's own N(0, 1)."""
    return ModeLibrary.of([_augmented(one) for one in library.charts()])


def _augmented(chart: ChartData) -> ChartData:
    rows, dim = scale_rows(chart.scale), chart.dim
    if rows.ndim == 1:
        wider: Scale = Diagonal.of(np.append(rows, 1.0))
    else:
        whole = np.eye(dim + 1)
        whole[:dim, :dim] = rows
        wider = Dense.of(whole)
    return dataclasses.replace(chart, place=Shift(np.append(chart.location, 0.0)), scale=wider, warps=())


def between_worlds(position: Float[Array, " dim"], library: ModeLibrary, half_gap: Float[Array, ""] | float) -> Network:
    """The wormholes from the mode nearest to the sampler to all modes of the opposite world.

    The world is the sign of the last coordinate: -h is the real one, +h the mirror.
    """
    modes, there = library.location[:, :-1], library.log_weight > -jnp.inf
    world = jnp.where(position[-1] < 0, -half_gap, half_gap)
    square = jnp.where(there, jnp.sum((modes - position[:-1]) ** 2, axis=1), jnp.inf)
    origin = jnp.append(modes[jnp.argmin(square)], world)
    goals = jnp.concatenate([modes, jnp.broadcast_to(-world, (len(modes), 1))], axis=1)
    return Network(jnp.broadcast_to(origin, goals.shape), goals, there)


def chances(
    position: Float[Array, " dim"], network: Network, influence: Float[Array, ""] | float
) -> Float[Array, " capacity"]:
    """m_k = exp(-V_k/(D F)) of appendix B, with V_k of Eq. (6) [vicinity] and D the dimension of the target itself."""
    values = jax.vmap(lambda a, b: vicinity(position, a, b))(network.origin, network.goal)
    return jnp.where(network.active, jnp.exp(-values / ((len(position) - 1) * influence)), 0.0)


@pytree
class Passage:
    """A point of the trajectory: the state, its velocity, whether it has jumped, and the energy gap of the jump."""

    state: ChainState
    velocity: Float[Array, " dim"]
    jumped: Bool[Array, ""]
    gap: Float[Array, ""]
    num_failed: Int[Array, ""]

    @property
    def energy(self) -> Float[Array, ""]:
        """E = U + K."""
        return 0.5 * self.velocity @ self.velocity - self.state.logdensity


@pytree
class NetworkWormhole(AbstractKernel):
    """Algorithm 1 [Alg:WHMC], step for step, on a target made by `augmented`.

    step_size e, num_steps L, influence F, half_gap h, num_passes M. The library's charts serve as the modes only.
    Errata 1-4: the energy gap of the jump is left out of the acceptance, the landing point does not depend on the
    point that is left, each pass of the fixed-point loop draws the field anew, and there is no Jacobian.
    """

    exact: ClassVar[bool] = False

    step_size: Float[Array, ""] | float = 0.2
    num_steps: Int[Array, ""] | int = 8
    influence: Float[Array, ""] | float = 0.3
    half_gap: Float[Array, ""] | float = 1.0
    num_passes: Int[Array, ""] | int = 3

    def move(
        self, noise: Array, state: ChainState, target: Target, library: ModeLibrary
    ) -> tuple[ChainState, StepInfo]:
        key_velocity, key_steps, key_accept = jax.random.split(noise, 3)
        nothing = jnp.zeros((), bool), jnp.zeros(()), jnp.zeros((), int)
        start = Passage(state, jax.random.normal(key_velocity, state.position.shape), *nothing)

        def advance(n: Int[Array, ""] | int, passage: Passage) -> Passage:
            return self.advance(jax.random.fold_in(key_steps, n), passage, target, library)

        end = jax.lax.fori_loop(0, self.num_steps, advance, start)
        log_ratio = -end.energy + start.energy + end.gap  # the gap is taken out: erratum 1
        new_state, accepted, log_ratio = metropolis(jax.random.uniform(key_accept), log_ratio, state, end.state)
        info = StepInfo(
            label=state.label,
            proposed=end.state.label,
            log_ratio=log_ratio,
            accepted=accepted,
            regenerated=jnp.zeros((), bool),
            num_gradients=jnp.asarray(self.num_steps),
            num_failed=end.num_failed,
        )
        return new_state, info

    def advance(self, key: Array, passage: Passage, target: Target, library: ModeLibrary) -> Passage:
        """One step: kick(e/2) ∘ (drift(e), or the passes of the random field) ∘ kick(e/2)."""
        here = passage.state
        half = passage.velocity + 0.5 * self.step_size * here.score
        landed, jumps = self.passes(key, here.position, half, library)
        now = jumps & ~passage.jumped  # one jump at most
        position = jnp.where(passage.jumped, here.position + self.step_size * half, landed)
        there, failed = make_state(position, target, library)
        velocity = half + 0.5 * self.step_size * there.score
        moved = Passage(there, velocity, passage.jumped | now, passage.gap, passage.num_failed + failed.astype(int))
        gap = passage.gap + jnp.where(now, moved.energy - passage.energy, 0.0)
        return dataclasses.replace(moved, gap=gap)

    def passes(
        self, key: Array, position: Float[Array, " dim"], velocity: Float[Array, " dim"], library: ModeLibrary
    ) -> tuple[Float[Array, " dim"], Bool[Array, ""]]:
        """Eq. (B.2) [stochevol] by M passes, and whether a wormhole was taken in the first or the last of them."""
        network = between_worlds(position, library, self.half_gap)
        first, first_jumps = self.field(jax.random.fold_in(key, 0), position, velocity, network)

        def again(m: Int[Array, ""] | int, carry: tuple[Array, Array]) -> tuple[Array, Array]:
            field, jumps = self.field(jax.random.fold_in(key, m), carry[0], velocity, network)
            return position + 0.5 * self.step_size * (field + first), jumps

        once = position + self.step_size * first  # the first pass is at the point itself
        landed, jumps = jax.lax.fori_loop(1, self.num_passes, again, (once, first_jumps))
        return landed, first_jumps | jumps

    def field(
        self, key: Array, position: Float[Array, " dim"], velocity: Float[Array, " dim"], network: Network
    ) -> tuple[Float[Array, " dim"], Bool[Array, ""]]:
        """The random vector field of appendix B: the velocity, or 2(goal - position)/e with chances m_k."""
        u_jump, u_goal = jax.random.uniform(key, (2,))
        mollifier = chances(position, network, self.influence)
        jumps = u_jump >= 1 - jnp.sum(mollifier)
        goal = network.goal[pick(u_goal, jnp.log(mollifier))]
        return jnp.where(jumps, 2 * (goal - position) / self.step_size, velocity), jumps
