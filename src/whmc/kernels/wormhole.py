"""Wormholes: jumps from the chart of one mode to the same place in the chart of another."""

import dataclasses

import jax
import jax.numpy as jnp

from whmc._pytree import pytree
from whmc._shapes import Array, Bool, Float, Int
from whmc.kernels.base import AbstractKernel, ChainState, StepInfo, log_joint, place
from whmc.kernels.flight import AbstractFlight
from whmc.kernels.leapfrog import Motion, turn
from whmc.kernels.leg import LANDING, Leg, Schedule, reached, set_out
from whmc.kernels.random import Noise
from whmc.modes.chart import apply, row
from whmc.modes.library import ModeLibrary
from whmc.modes.mixture import log_components, log_responsibility, pick, pick_weight
from whmc.target.target import Target


@pytree
class Choice:
    """Which chart to jump to: k from chart i with chance g(k|i) = omega_k / (1 - omega_i), never i itself.

    Jumps to oneself are wasted; leaving them out is better in every case (Peskun).
    """

    weight: Float[Array, " capacity"]

    @classmethod
    def of(cls, library: ModeLibrary) -> "Choice":
        return cls(jnp.exp(library.log_weight))

    def others(self, label: Int[Array, ""]) -> Float[Array, " capacity"]:
        """omega_k of all charts but i."""
        return jnp.where(jnp.arange(len(self.weight)) == label, 0.0, self.weight)

    def alone(self, label: Int[Array, ""]) -> Bool[Array, ""]:
        """Whether there is no other chart to jump to."""
        return ~jnp.any(self.others(label) > 0)

    def draw(self, uniform: Float[Array, ""], label: Int[Array, ""]) -> Int[Array, ""]:
        """k ~ g(.|i), or i where it is alone."""
        return jnp.where(self.alone(label), label, pick_weight(uniform, self.others(label)))

    def log_back(self, label: Int[Array, ""], proposed: Int[Array, ""]) -> Float[Array, ""]:
        """log g(i|k)/g(k|i)."""
        there = row(self.weight, proposed) / jnp.sum(self.others(label))
        back = row(self.weight, label) / jnp.sum(self.others(proposed))
        return jnp.log(back / there)


@pytree
class Jump:
    """A proposed jump: the state and momentum at its end, its log Metropolis ratio, failed evaluations on the way."""

    proposal: ChainState
    momentum: Float[Array, " dim"]
    log_ratio: Float[Array, ""]
    num_failed: Int[Array, ""]


class AbstractJump(AbstractKernel):
    """A move to another chart, from `label` to `proposed` of its info: the charts with the largest responsibility at
    either end. It satisfies detailed balance, so the flows between any two charts are the same both ways.
    """


@pytree
class Wormhole(AbstractFlight, AbstractJump):
    """A jump through a wormhole, straight or through a throat of annealing steps.

    i ~ r(theta), k ~ omega without i, z = L_i^{-1}(theta - mu_i), p ~ N(0, I). With `throat` = T > 0 the Hamiltonian
    changes along the way: leapfrog steps n = 1..T in chart i with beta = n/T, the crossing to chart k at (z, p), and
    the same steps in reverse in chart k. Exchanging i and k and flipping p retraces the path, and volume in (z, p) is
    kept, so with g(k|i) the chance of choosing k from i, accept with

        exp{[log pi(theta') + log|L_k| - ½|p'|²] - [log pi(theta) + log|L_i| - ½|p|²]}
        · r_k(theta')/r_i(theta) · g(i|k)/g(k|i)

    T = 0 is the direct jump theta' = mu_k + L_k z, whose ratio is w(theta')/w(theta) · (1 - omega_i)/(1 - omega_k),
    w = pi/q. In bent charts z is the straightened coordinate, and |d theta/d z| is in the place of |L|.
    The step is `stride` times the smaller step size of the two charts: the same in both directions.
    """

    throat: Int[Array, ""] | int = 0
    stride: Float[Array, ""] | float = 1.0

    def num_noise(self, library: ModeLibrary) -> tuple[int, int]:
        return 3, library.dim

    def schedules(self) -> tuple[Schedule, ...]:
        """1 - beta falls to zero on the way in, and rises again on the way out.

        The two steps next to the crossing have beta = 1. They are rotations, and only where the second ends is the
        target evaluated.
        """
        throat = jnp.asarray(self.throat)
        rise = 1 / jnp.maximum(throat, 1).astype(float)
        return Schedule(jnp.maximum(throat - 1, 0), 1 - rise, -rise), Schedule(jnp.maximum(throat, 1), 0.0, rise)

    def begin(self, noise: Noise, state: ChainState, target: Target, library: ModeLibrary) -> Leg:
        del target
        (u_label, u_choice, _), momentum = noise.uniform, noise.normal
        label = state.draw_label(u_label)
        return self.depart(state, momentum, label, Choice.of(library).draw(u_choice, label), library)

    def depart(
        self,
        state: ChainState,
        momentum: Float[Array, " dim"],
        label: Int[Array, ""],
        proposed: Int[Array, ""],
        library: ModeLibrary,
    ) -> Leg:
        """The start in chart i, on the way to chart k."""
        log_start = log_joint(state, label, momentum, library) - Choice.of(library).log_back(label, proposed)
        return Leg(
            label=label,
            other=proposed,
            log_start=jnp.where(label == proposed, jnp.inf, log_start),
            location=row(library.location, label),
            motion=set_out(state, label, momentum, library),
            step_size=self.stride * jnp.minimum(row(library.step_size, label), row(library.step_size, proposed)),
        )

    def cross(self, leg: Leg, library: ModeLibrary) -> Leg:
        """From chart i to the same (z, p) in chart k, with the rotations on either side of the crossing.

        The second of them is the first step of the leg that follows, which lands; where no steps follow that, the leg
        lands without a step, and both rotations are made here. A direct jump has none.
        """
        throat = jnp.asarray(self.throat)
        angle = leg.step_size * jnp.where(throat > 1, 1, 2 * throat).astype(leg.step_size.dtype)
        z = apply(row(library.inverse_scale, leg.label), leg.motion.displacement)
        z, p = turn(z, leg.momentum, jnp.cos(angle), jnp.sin(angle))
        displacement = apply(row(library.scale, leg.other), z)
        return dataclasses.replace(
            leg,
            label=leg.other,
            other=leg.label,
            location=row(library.location, leg.other),
            motion=dataclasses.replace(leg.motion, displacement=displacement, velocity=p),
            step_size=jnp.where(throat > 1, leg.step_size, 0.0),
        )

    def finish(self, noise: Noise, state: ChainState, leg: Leg, proposal: ChainState, library: ModeLibrary) -> StepInfo:
        del noise
        log_ratio = log_joint(proposal, leg.label, leg.momentum, library) - leg.log_start
        return StepInfo(
            label=state.label,
            proposed=proposal.label,
            log_ratio=jnp.where(leg.possible, log_ratio, -jnp.inf),
            accepted=leg.possible,
            regenerated=jnp.zeros((), bool),
            num_gradients=self.cost(),
            num_failed=leg.motion.num_failed,
        )

    def cost(self) -> Int[Array, ""]:
        """Gradients of one jump: none at the throat itself, where the target does not count."""
        return jnp.maximum(1, 2 * jnp.asarray(self.throat) - 1)

    def jump(
        self,
        state: ChainState,
        momentum: Float[Array, " dim"],
        label: Int[Array, ""],
        proposed: Int[Array, ""],
        target: Target,
        library: ModeLibrary,
    ) -> Jump:
        """Where the jump from chart `label` to chart `proposed` leads, and its log ratio."""
        leg = self.fly(self.depart(state, momentum, label, proposed, library), target, library)
        proposal = place(reached(leg, library), leg.motion.logdensity, leg.motion.score, library)
        log_ratio = log_joint(proposal, proposed, leg.momentum, library) - leg.log_start
        return Jump(proposal, leg.momentum, log_ratio, leg.motion.num_failed)

    def travel(
        self,
        state: ChainState,
        momentum: Float[Array, " dim"],
        label: Int[Array, ""],
        proposed: Int[Array, ""],
        target: Target,
        library: ModeLibrary,
    ) -> tuple[Motion, Float[Array, " dim"]]:
        """The map (theta, p) in chart i -> (theta', p') in chart k: into the throat, across, out again."""
        leg = self.fly(self.depart(state, momentum, label, proposed, library), target, library)
        return leg.motion, leg.momentum


@pytree
class GibbsWormhole(AbstractFlight, AbstractJump):
    """The direct jump without rejection: all charts at once.

    i ~ r(theta), z = T_i^{-1} theta; then k from p(k|z) ∝ pi(T_k z) r_k(T_k z) |dT_k z|, T_k z = mu_k + L_k z, or bent.
    It costs a density for each chart and one gradient where it lands, and counts both.
    """

    def num_noise(self, library: ModeLibrary) -> tuple[int, int]:
        return 2, 0

    def schedules(self) -> tuple[Schedule, ...]:
        return (LANDING,)

    def begin(self, noise: Noise, state: ChainState, target: Target, library: ModeLibrary) -> Leg:
        u_label, u_choice = noise.uniform
        label = state.draw_label(u_label)
        z = library.whiten(label, state.position)

        def weigh(k: Int[Array, ""]) -> tuple[Array, Array]:
            chart = library.chart(k)
            # no chart, no position: a function outside of JAX is not called for unused places
            position = jnp.where(library.log_weight[k] > -jnp.inf, chart.unwhiten(z), jnp.nan)
            log_r = log_responsibility(log_components(library, position), k)
            weight = target(position) + log_r + chart.log_volume(position)
            return jnp.where(weight < jnp.inf, weight, -jnp.inf), position  # NaN is not below either

        weights, positions = jax.vmap(weigh)(jnp.arange(library.capacity))
        proposed = pick(u_choice, weights)
        # the same chart is the same point but for rounding: keep what is known
        return Leg.land(positions[proposed], jnp.where(proposed == label, jnp.inf, 0.0))

    def finish(self, noise: Noise, state: ChainState, leg: Leg, proposal: ChainState, library: ModeLibrary) -> StepInfo:
        del noise
        num_charts = jnp.sum(library.log_weight > -jnp.inf).astype(int)
        return StepInfo(
            label=state.label,
            proposed=proposal.label,
            log_ratio=jnp.zeros_like(leg.log_start),
            accepted=leg.possible,
            regenerated=jnp.zeros((), bool),
            num_gradients=num_charts + 1,
            num_failed=leg.motion.num_failed,
        )
