"""Wormholes: jumps from the chart of one mode to the same place in the chart of another."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from whmc._pytree import pytree
from whmc.kernels.base import AbstractKernel, ChainState, StepInfo, make_state, metropolis, place
from whmc.kernels.leapfrog import Motion, in_flight, leapfrog, turn
from whmc.kernels.random import Noise
from whmc.modes.library import ModeLibrary, apply
from whmc.modes.mixture import log_components, log_responsibility, pick
from whmc.target.target import Target


@pytree
class Choice:
    """Which chart to jump to: k from chart i with chance g(k|i) = omega_k / (1 - omega_i), never i itself.

    Jumps to oneself are wasted; leaving them out is better in every case (Peskun).
    """

    log_weight: Float[Array, " capacity"]
    log_rest: Float[Array, " capacity"]

    @classmethod
    def of(cls, library: ModeLibrary) -> "Choice":
        alone = jnp.eye(library.capacity, dtype=bool)
        others = jnp.where(alone, -jnp.inf, library.log_weight)
        return cls(library.log_weight, jax.nn.logsumexp(others, axis=1))

    def alone(self, label: Int[Array, ""]) -> Bool[Array, ""]:
        """Whether there is no other chart to jump to."""
        return jnp.isneginf(self.log_rest[label])

    def draw(self, uniform: Float[Array, ""], label: Int[Array, ""]) -> Int[Array, ""]:
        """k ~ g(.|i), or i where it is alone."""
        here = jnp.arange(len(self.log_weight)) == label
        return jnp.where(self.alone(label), label, pick(uniform, jnp.where(here, -jnp.inf, self.log_weight)))

    def log_back(self, label: Int[Array, ""], proposed: Int[Array, ""]) -> Float[Array, ""]:
        """log g(i|k)/g(k|i)."""
        return self.log_weight[label] - self.log_rest[proposed] - self.log_weight[proposed] + self.log_rest[label]


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
class Wormhole(AbstractJump):
    """A jump through a wormhole, straight or through a throat of annealing steps.

    i ~ r(theta), k ~ omega without i, z = L_i^{-1}(theta - mu_i), p ~ N(0, I). With `throat` = T > 0 the Hamiltonian
    changes along the way: leapfrog steps n = 1..T in chart i with beta = n/T, the crossing to chart k at (z, p), and
    the same steps in reverse in chart k. Exchanging i and k and flipping p retraces the path, and volume in (z, p) is
    kept, so with g(k|i) the chance of choosing k from i, accept with

        exp{[log pi(theta') + log|L_k| - ½|p'|²] - [log pi(theta) + log|L_i| - ½|p|²]}
        · r_k(theta')/r_i(theta) · g(i|k)/g(k|i)

    T = 0 is the direct jump theta' = mu_k + L_k z, whose ratio is w(theta')/w(theta) · (1 - omega_i)/(1 - omega_k),
    w = pi/q.
    The step is `stride` times the smaller step size of the two charts: the same in both directions.
    """

    throat: Int[Array, ""] | int = 0
    stride: Float[Array, ""] | float = 1.0

    def num_noise(self, library: ModeLibrary) -> tuple[int, int]:
        return 3, library.dim

    def move(
        self, noise: Noise, state: ChainState, target: Target, library: ModeLibrary
    ) -> tuple[ChainState, StepInfo]:
        (u_label, u_choice, u_accept), momentum = noise.uniform, noise.normal
        label = state.draw_label(u_label)
        choice = Choice.of(library)
        proposed = choice.draw(u_choice, label)
        jump = self.jump(state, momentum, label, proposed, target, library)
        log_ratio = jnp.where(choice.alone(label), -jnp.inf, jump.log_ratio)
        new_state, accepted, log_ratio = metropolis(u_accept, log_ratio, state, jump.proposal)
        info = StepInfo(
            label=state.label,
            proposed=jump.proposal.label,
            log_ratio=log_ratio,
            accepted=accepted,
            regenerated=jnp.zeros((), bool),
            num_gradients=self.cost(),
            num_failed=jump.num_failed,
        )
        return new_state, info

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
        end, new_momentum = self.travel(state, momentum, label, proposed, target, library)
        proposal = place(library.location[proposed] + end.displacement, end.logdensity, end.score, library)
        log_ratio = (
            proposal.logdensity
            + library.log_det[proposed]
            - 0.5 * new_momentum @ new_momentum
            - (state.logdensity + library.log_det[label] - 0.5 * momentum @ momentum)
            + proposal.log_responsibility(proposed)
            - state.log_responsibility(label)
            + Choice.of(library).log_back(label, proposed)
        )
        return Jump(proposal, new_momentum, log_ratio, end.num_failed)

    def travel(
        self,
        state: ChainState,
        momentum: Float[Array, " dim"],
        label: Int[Array, ""],
        proposed: Int[Array, ""],
        target: Target,
        library: ModeLibrary,
    ) -> tuple[Motion, Float[Array, " dim"]]:
        """The map (theta, p) in chart i -> (theta', p') in chart k: into the throat, across, out again.

        The two steps next to the crossing have beta = 1: they are rotations, and need no gradient.
        """
        throat = jnp.asarray(self.throat)
        steps = jnp.maximum(throat - 1, 0)
        step_size = self.stride * jnp.minimum(library.step_size[label], library.step_size[proposed])
        rise = 1 / jnp.maximum(throat, 1).astype(state.logdensity.dtype)
        # charts are looked up in the branch that needs them: a direct jump copies two matrices, not six

        def into(momentum: Float[Array, " dim"]) -> tuple[Array, Array, Array]:
            origin = library.chart(label)
            start = Motion(
                state.position - origin.location,
                apply(origin.scale, momentum),
                state.logdensity,
                state.score,
                jnp.zeros((), int),
            )
            end = leapfrog(
                start,
                target,
                origin,
                step_size=step_size,
                num_steps=steps,
                residual=lambda n: 1 - rise * (n + 1).astype(rise.dtype),
            )
            z, p = apply(origin.inverse_scale, end.displacement), apply(origin.inverse_scale, end.velocity)
            return *turn(z, p, jnp.cos(2 * step_size), jnp.sin(2 * step_size)), end.num_failed

        def straight(momentum: Float[Array, " dim"]) -> tuple[Array, Array, Array]:
            return library.whiten(label, state.position), momentum, jnp.zeros((), int)

        z, p, num_failed = jax.lax.cond(throat > 0, into, straight, momentum)
        displacement = apply(library.scale[proposed], z)
        found = target.evaluate(library.location[proposed] + displacement)

        def out(p: Float[Array, " dim"]) -> tuple[Motion, Float[Array, " dim"]]:
            goal = library.chart(proposed)
            start = in_flight(displacement, apply(goal.scale, p), found, num_failed)
            end = leapfrog(
                start,
                target,
                goal,
                step_size=step_size,
                num_steps=steps,
                residual=lambda n: rise * (n + 1).astype(rise.dtype),
            )
            return end, apply(goal.inverse_scale, end.velocity)

        def landed(p: Float[Array, " dim"]) -> tuple[Motion, Float[Array, " dim"]]:
            return in_flight(displacement, jnp.zeros_like(p), found, num_failed), p

        return jax.lax.cond(throat > 1, out, landed, p)


@pytree
class GibbsWormhole(AbstractJump):
    """The direct jump without rejection: all charts at once.

    i ~ r(theta), z = L_i^{-1}(theta - mu_i); then k from p(k|z) ∝ pi(T_k z) r_k(T_k z) |L_k| with T_k z = mu_k + L_k z.
    It costs a density for each chart and one gradient where it lands.
    """

    def num_noise(self, library: ModeLibrary) -> tuple[int, int]:
        return 2, 0

    def move(
        self, noise: Noise, state: ChainState, target: Target, library: ModeLibrary
    ) -> tuple[ChainState, StepInfo]:
        u_label, u_choice = noise.uniform
        label = state.draw_label(u_label)
        z = library.whiten(label, state.position)

        def weigh(k: Int[Array, ""]) -> tuple[Array, Array]:
            chart = library.chart(k)
            position = chart.unwhiten(z)
            weight = target(position) + log_responsibility(log_components(library, position), k) + chart.log_det
            return jnp.where(weight < jnp.inf, weight, -jnp.inf), position  # NaN is not below either

        weights, positions = jax.vmap(weigh)(jnp.arange(library.capacity))
        proposed = pick(u_choice, weights)
        proposal, failed = make_state(positions[proposed], target, library)
        stay = proposed == label  # the same point but for rounding: keep what is known
        new_state, accepted, log_ratio = metropolis(
            jnp.full((), 0.5), jnp.where(stay, -jnp.inf, jnp.inf), state, proposal
        )
        info = StepInfo(
            label=state.label,
            proposed=proposal.label,
            log_ratio=jnp.where(stay, 0.0, jnp.minimum(log_ratio, 0.0)),
            accepted=accepted,
            regenerated=jnp.zeros((), bool),
            num_gradients=jnp.ones((), int),
            num_failed=failed.astype(int),
        )
        return new_state, info
