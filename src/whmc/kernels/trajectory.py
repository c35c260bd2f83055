"""WormholeTrajectory: Algorithm 1 made exact, the jump in the middle of a trajectory."""

import jax
import jax.numpy as jnp

from whmc._pytree import pytree
from whmc._shapes import Array, Float, Int
from whmc.kernels.base import ChainState, StepInfo, metropolis, place
from whmc.kernels.random import Noise
from whmc.kernels.wormhole import AbstractJump, Choice
from whmc.modes.band import Bands
from whmc.modes.library import ModeLibrary
from whmc.modes.mixture import log_components, log_responsibility, pick
from whmc.target.target import Evaluation, Target


@pytree
class Flight:
    """Position and momentum in the middle of a trajectory, and what the jump has cost so far."""

    position: Float[Array, " dim"]
    momentum: Float[Array, " dim"]
    found: Evaluation
    num_failed: Int[Array, ""]
    label: Int[Array, ""]
    proposed: Int[Array, ""]
    log_labels: Float[Array, ""]


@pytree
class WormholeTrajectory(AbstractJump):
    """l leapfrog steps, the jump, L - l steps, l uniform on 0..L (so that the reversed path is as likely).

    At the jump i ~ r(theta) and k ~ omega without i, theta' = mu_k + L_k L_i^{-1}(theta - mu_i) and
    p' = L_k^{-T} L_i^T p: a symplectic map. The *total* energy change counts:

        exp(-ΔH) · r_k(theta')/r_i(theta) · g(i|k)/g(k|i),  responsibilities just after and just before the jump.

    The mass is the same for all labels, since the label is drawn in mid-flight: the diagonal of the charts' mean
    precision.
    """

    num_steps: Int[Array, ""] | int = 6
    step_size: Float[Array, ""] | float = 0.3

    def num_noise(self, library: ModeLibrary) -> tuple[int, int]:
        return 4, library.dim

    def move(
        self, noise: Noise, state: ChainState, target: Target, library: ModeLibrary
    ) -> tuple[ChainState, StepInfo]:
        u_moment, u_label, u_choice, u_accept = noise.uniform
        mass = mean_precision(library)
        momentum = jnp.sqrt(mass) * noise.normal
        num_steps = jnp.asarray(self.num_steps)
        moment = jnp.floor(u_moment * (num_steps + 1).astype(u_moment.dtype)).astype(num_steps.dtype)

        def advance(n: Int[Array, ""], flight: Flight) -> Flight:
            """One gradient: a leapfrog step, or the jump when its moment has come."""
            jumped = jump(flight, library, u_label, u_choice)
            kicked = flight.momentum + 0.5 * self.step_size * flight.found.score
            drifted = flight.position + self.step_size * kicked / mass
            now = n == moment
            position = jnp.where(now, jumped.position, drifted)
            found = target.evaluate(position)
            momentum = jnp.where(now, jumped.momentum, kicked + 0.5 * self.step_size * found.score)
            return Flight(
                position,
                momentum,
                found,
                flight.num_failed + found.failed.astype(int),
                jnp.where(now, jumped.label, flight.label),
                jnp.where(now, jumped.proposed, flight.proposed),
                jnp.where(now, jumped.log_labels, flight.log_labels),
            )

        start = Flight(
            state.position,
            momentum,
            Evaluation(state.logdensity, state.score, jnp.zeros((), bool)),
            jnp.zeros((), int),
            jnp.zeros((), int),
            jnp.zeros((), int),
            jnp.zeros(()),
        )
        end = jax.lax.fori_loop(0, num_steps + 1, advance, start)
        proposal = place(end.position, end.found.logdensity, end.found.score, library)
        log_ratio = (
            proposal.logdensity
            - 0.5 * jnp.sum(end.momentum**2 / mass)
            - (state.logdensity - 0.5 * jnp.sum(momentum**2 / mass))
            + end.log_labels
        )
        new_state, accepted, log_ratio = metropolis(u_accept, log_ratio, state, proposal)
        info = StepInfo(
            label=state.label,
            proposed=proposal.label,
            log_ratio=log_ratio,
            accepted=accepted,
            regenerated=jnp.zeros((), bool),
            num_gradients=num_steps + 1,
            num_failed=end.num_failed,
        )
        return new_state, info


def mean_precision(library: ModeLibrary) -> Float[Array, " dim"]:
    """Diagonal of the weighted mean of the charts' precisions: stiff enough for the narrowest."""
    inverse = library.inverse_scale
    precisions = inverse**2 if library.diagonal else jnp.sum(inverse**2, axis=1)
    if isinstance(library.bend, Bands):
        precisions = precisions * library.bend.squares()
    return jnp.exp(library.log_weight) @ precisions


def jump(flight: Flight, library: ModeLibrary, u_label: Float[Array, ""], u_choice: Float[Array, ""]) -> Flight:
    """(theta, p) -> (mu_k + L_k L_i^{-1}(theta - mu_i), L_k^{-T} L_i^T p), and the log factor of the labels."""
    components = log_components(library, flight.position)
    label = pick(u_label, components)
    choice = Choice.of(library)
    proposed = choice.draw(u_choice, label)
    # without bends: the jump may be any map that is symplectic, whatever the labels come from
    origin, goal = library.straight.chart(label), library.straight.chart(proposed)
    position = goal.unwhiten(origin.whiten(flight.position))
    if library.diagonal:
        momentum = goal.inverse_scale * origin.scale * flight.momentum
    else:
        momentum = goal.inverse_scale.T @ (origin.scale.T @ flight.momentum)
    log_labels = (
        log_responsibility(log_components(library, position), proposed)
        - log_responsibility(components, label)
        + choice.log_back(label, proposed)
    )
    # a lone mode has nowhere to go: the jump is the identity and the move plain HMC
    log_labels = jnp.where(choice.alone(label), 0.0, log_labels)
    return Flight(position, momentum, flight.found, flight.num_failed, label, proposed, log_labels)
