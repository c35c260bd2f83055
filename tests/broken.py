"""Kernels with one fault each: the invariance test must find every one of them."""

import dataclasses
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from jaxtyping import Array

from whmc._pytree import pytree
from whmc.frontends.blackjax import Move
from whmc.kernels.base import AbstractKernel, ChainState, StepInfo, make_state, metropolis, place, refresh
from whmc.kernels.leapfrog import Motion, leapfrog
from whmc.kernels.local import LocalHMC
from whmc.kernels.random import draw_noise
from whmc.modes.band import Band
from whmc.modes.bend import Bend
from whmc.modes.chart import apply
from whmc.modes.library import ModeLibrary
from whmc.modes.mixture import NUM_UNIFORM, draw_mixture, pick
from whmc.modes.tail import Tail
from whmc.target.target import Target


def _info(accepted: Array) -> StepInfo:
    zero = jnp.zeros((), int)
    return StepInfo(zero, zero, jnp.zeros(()), accepted, jnp.zeros((), bool), zero, zero)


@pytree
class Identity(AbstractKernel):
    """Does nothing: invariant, and useless."""

    def move(self, noise: Array, state: ChainState, target: Target, library: ModeLibrary) -> tuple[ChainState, Any]:
        return state, _info(jnp.ones((), bool))


@jax.tree_util.register_static
@dataclasses.dataclass(frozen=True, eq=False)
class CutOff(Target):
    """No density where the score is not finite."""

    def value_and_score(self, position: Array) -> tuple[Array, Array]:
        value, score = super().value_and_score(position)
        return jnp.where(jnp.all(jnp.isfinite(score)), value, -jnp.inf), score


@pytree
class Jump(AbstractKernel):
    """The direct jump with k ~ omega, written out term by term; 0 drops a term, 1 keeps it."""

    energy: float = 1.0
    jacobian: float = 1.0
    responsibility: float = 1.0

    def move(self, noise: Array, state: ChainState, target: Target, library: ModeLibrary) -> tuple[ChainState, Any]:
        u_label, u_choice, u_accept = draw_noise(noise, 3, 0).uniform
        i, k = pick(u_label, state.log_components), pick(u_choice, library.log_weight)
        proposal, _ = make_state(library.unwhiten(k, library.whiten(i, state.position)), target, library)
        log_ratio = (
            self.energy * (proposal.logdensity - state.logdensity)
            + self.jacobian * (library.log_det[k] - library.log_det[i])
            + self.responsibility * (proposal.log_responsibility(k) - state.log_responsibility(i))
            + library.log_weight[i]
            - library.log_weight[k]
        )
        new_state, accepted, _ = metropolis(u_accept, log_ratio, state, proposal)
        return new_state, _info(accepted)


@pytree
class LocalWithoutResponsibility(AbstractKernel):
    """HMC in the chart of a label, accepted as if the label did not depend on the position."""

    def move(self, noise: Array, state: ChainState, target: Target, library: ModeLibrary) -> tuple[ChainState, Any]:
        drawn = draw_noise(noise, 2, library.dim)
        (u_label, u_accept), momentum = drawn.uniform, drawn.normal
        chart = library.chart(pick(u_label, state.log_components))
        start = Motion(
            state.position - chart.location,
            apply(chart.scale, momentum),
            state.logdensity,
            state.score,
            jnp.zeros((), int),
        )
        end = leapfrog(
            start, target, chart, step_size=chart.step_size, num_steps=jnp.asarray(3), residual=lambda n: jnp.ones(())
        )
        p = apply(chart.inverse_scale, end.velocity)
        position = chart.location + end.displacement
        proposal = place(position, end.logdensity, end.score, library)
        log_ratio = proposal.logdensity - 0.5 * p @ p - state.logdensity + 0.5 * momentum @ momentum
        new_state, accepted, _ = metropolis(u_accept, log_ratio, state, proposal)
        return new_state, _info(accepted)


@pytree
class VolumelessBend(Bend):
    """The map of a bend, and no log-determinant."""

    def log_volume(self, offset: Array) -> Array:
        return jnp.zeros_like(super().log_volume(offset))


@pytree
class VolumelessTail(Tail):
    """The map of a tail, and no log-determinant."""

    def log_volume(self, offset: Array) -> Array:
        return jnp.zeros_like(super().log_volume(offset))


@pytree
class VolumelessLibrary(ModeLibrary):
    """Charts that are bent or have tails, without their volumes, and the right mixture."""

    def bend_of(self, label: Array) -> Bend | Tail:
        found = super().bend_of(label)
        if isinstance(found, Tail):
            return VolumelessTail(found.heaviness, found.scale, found.inverse_scale)
        return VolumelessBend(found.row)


@pytree
class HalfBand(Band):
    """A band that is not undone."""

    def straight(self, offset: Array) -> Array:
        return offset


@pytree
class HalfBandedLibrary(ModeLibrary):
    """Charts with bands that are not undone, and the right mixture."""

    def bend_of(self, label: Array) -> Band:
        band = super().bend_of(label)
        return HalfBand(band.beside, band.inverse, band.powers)


@pytree
class WithoutVolume(AbstractKernel):
    """A kernel whose ratios leave out the volume of bent charts; the mixture of its library is right."""

    kind: ClassVar[type[ModeLibrary]] = VolumelessLibrary

    inner: AbstractKernel

    def move(self, noise: Array, state: ChainState, target: Target, library: ModeLibrary) -> tuple[ChainState, Any]:
        whole = self.kind(*(getattr(library, field.name) for field in dataclasses.fields(ModeLibrary)))
        return self.inner.step(noise, state, target, whole)


@pytree
class WithoutCouplings(WithoutVolume):
    """A kernel that starts as if its charts had no bands, and lands as if they had; the mixture is right."""

    kind: ClassVar[type[ModeLibrary]] = HalfBandedLibrary


@pytree
class MoveWithoutResponsibility(AbstractKernel):
    """An algorithm of BlackJAX on the density itself, in the chart of a label: in a lone chart it would be right."""

    inner: Move

    def move(self, noise: Array, state: ChainState, target: Target, library: ModeLibrary) -> tuple[ChainState, Any]:
        key_label, key_move = jax.random.split(noise)
        label = pick(jax.random.uniform(key_label), state.log_components)
        alone = jnp.where(jnp.arange(library.capacity) == label, 0.0, -jnp.inf)
        lone = dataclasses.replace(library, log_weight=alone)
        new_state, info = self.inner.move(key_move, refresh(state, lone), target, lone)
        return refresh(new_state, library), info


@pytree
class AdaptingAtEveryStep(AbstractKernel):
    """An exact kernel whose step size is set anew at each step from where the chain is."""

    def move(self, noise: Array, state: ChainState, target: Target, library: ModeLibrary) -> tuple[ChainState, Any]:
        step_size = jnp.clip(1.5 / (0.2 + jnp.linalg.norm(state.score)), 0.05, 1.4)
        adapted = dataclasses.replace(library, step_size=jnp.full_like(library.step_size, step_size))
        return LocalHMC(num_steps=3).step(noise, state, target, adapted)


@pytree
class AcceptedOnly(AbstractKernel):
    """Independence moves repeated until one is accepted: rejections are not counted as draws."""

    def move(self, noise: Array, state: ChainState, target: Target, library: ModeLibrary) -> tuple[ChainState, Any]:
        def attempt(carry: tuple[Array, ChainState, Array, Array]) -> tuple[Array, ChainState, Array, Array]:
            n, old, _, key = carry
            key, subkey = jax.random.split(key)
            drawn = draw_noise(subkey, NUM_UNIFORM + 1, library.dim + 1)
            position = draw_mixture(drawn.uniform, drawn.normal, library)[1]
            proposal, _ = make_state(position, target, library)
            new, accepted, _ = metropolis(drawn.uniform[-1], proposal.log_ratio - old.log_ratio, old, proposal)
            return n + 1, new, accepted, key

        def going_on(carry: tuple[Array, ChainState, Array, Array]) -> Array:
            return (carry[0] < 50) & ~carry[2]

        _, new_state, accepted, _ = jax.lax.while_loop(
            going_on, attempt, (jnp.zeros((), int), state, jnp.zeros((), bool), noise)
        )
        return new_state, _info(accepted)
