"""The baselines of section 5: darting between regions around the modes.

Region k is the ellipsoid |z_k| <= radius, z_k = L_k^{-1}(theta - mu_k), of the library's chart k: all regions have the
same radius in their own standard deviations, so their volumes are as |L_k|. Regions may overlap.

DMC: Sminchisescu and Welling (2011). RDMC: Ahn, Chen and Welling (2013). A sampler is a Cycle of a local move and one
of these jumps; by themselves they never leave the regions' union or enter it, hence are not ergodic.
"""

import jax
import jax.numpy as jnp

from whmc._pytree import pytree
from whmc._shapes import Array, Bool, Float
from whmc.kernels.base import ChainState, StepInfo, make_state, metropolis
from whmc.kernels.independence import AbstractIndependence
from whmc.kernels.random import Noise
from whmc.kernels.wormhole import AbstractJump
from whmc.modes.library import ModeLibrary
from whmc.modes.mixture import pick, squares
from whmc.target.target import Target

SHARE = 0.5
"""Share of a Gaussian mode's draws in its region: with less a chain seldom jumps; with more the regions' edges, where a
chart fits worst, decide what is accepted."""

TRIES = 4
"""Draws of a Gaussian of which the first that is in its region is the truncated one: at `SHARE` one in 16 is lost."""


def darting_radius(dim: int, share: float = SHARE) -> float:
    """The radius with P(|z| <= radius) = share, z ~ N(0, I): the chi quantile. On the host."""
    from scipy.special import gammaincinv  # late: it takes a third of JAX's own time to import

    if not 0 < share < 1:
        raise ValueError(f"share must be between 0 and 1, got {share}: the part of a mode in its region, try 0.5")
    return float((2 * gammaincinv(0.5 * dim, share)) ** 0.5)


def chart_square(library: ModeLibrary, position: Float[Array, " dim"]) -> Float[Array, " capacity"]:
    """|z_k|² in every chart; +inf where a place is unused."""
    return jnp.where(jnp.isneginf(library.log_weight), jnp.inf, squares(library, position))


def regions(library: ModeLibrary, position: Float[Array, " dim"], radius: Float[Array, ""]) -> Bool[Array, " capacity"]:
    """Which regions contain theta."""
    return chart_square(library, position) <= radius**2


@pytree
class DartingMC(AbstractJump):
    """DMC's jump: to the same relative place in another region.

    If theta is in no region it stays. Else i is one of the n(theta) regions that contain it, uniformly; k is chosen in
    proportion to volume, V_k = |L_k| up to a constant; theta' = mu_k + L_k z_i. Given (i, k) the map is one to one with
    Jacobian |L_k|/|L_i|, and (k, i) takes it back, so detailed balance path by path is

        pi(theta)/n(theta) · V_k · A  =  pi(theta')/n(theta') · V_i · A' · |L_k|/|L_i|.

    The volumes chosen by and the Jacobian cancel: accept with min(1, [pi(theta') n(theta)]/[pi(theta) n(theta')]).

    radius: of the regions, in standard deviations; unless given `darting_radius(dim)`.
    """

    radius: Float[Array, ""] | float | None = None

    def num_noise(self, library: ModeLibrary) -> tuple[int, int]:
        return 3, 0

    def move(
        self, noise: Noise, state: ChainState, target: Target, library: ModeLibrary
    ) -> tuple[ChainState, StepInfo]:
        u_label, u_choice, u_accept = noise.uniform
        radius = _radius(self.radius, library)
        inside = regions(library, state.position, radius)
        attempted = jnp.any(inside)
        # in no region any label will do: nothing comes of it
        label = pick(u_label, jnp.where(inside | ~attempted, 0.0, -jnp.inf))
        proposed = pick(u_choice, log_volume(library))
        straight = library.straight  # regions are ellipsoids
        moved = straight.unwhiten(proposed, straight.whiten(label, state.position))
        # the same region is the same place, without the rounding
        position = jnp.where(proposed == label, state.position, moved)
        proposal, failed = make_state(position, target, library)
        log_ratio = proposal.logdensity - state.logdensity + _log_count(inside)
        new_inside = regions(library, position, radius)
        # reject where rounding has put theta' outside of its region: from there no path leads back
        log_ratio = jnp.where(attempted & new_inside[proposed], log_ratio - _log_count(new_inside), -jnp.inf)
        new_state, accepted, log_ratio = metropolis(u_accept, log_ratio, state, proposal)
        info = StepInfo(
            label=state.label,
            proposed=proposal.label,
            log_ratio=log_ratio,
            accepted=accepted,
            regenerated=jnp.zeros((), bool),
            num_gradients=attempted.astype(int),
            num_failed=(attempted & failed).astype(int),
        )
        return new_state, info


@pytree
class RegenerationDartingMC(AbstractIndependence):
    """RDMC's jump: an independence move from the mixture of the regions' truncated Gaussians.

        q(theta) = sum_k omega_k N(theta; mu_k, Sigma_k) 1[|z_k| <= radius] / Z,   Z = P(|z| <= radius), z ~ N(0, I).

    Outside of the regions q is zero and the chain stays. Inside it is T of Eq. (10) [TSQ:T]. Z is the same for all
    regions: it cancels in w(theta')/w(theta) and is left out, so that `log_threshold`, log c of Eqs (11)-(12)
    [TSQ:S, TSQ:Q], is on the scale of the Gaussians that are not truncated.

    The base is Gaussian whatever that of the library. A truncated Gaussian is the first of `TRIES` Gaussian draws that
    is in its own region; if none is, the draw has failed and the chain stays. That happens with the same chance
    wherever the chain is, so it only mixes the kernel with the identity. A draw outside of its own region but inside of
    another's must fail too: it is not a draw from q.

    radius: of the regions, in standard deviations; unless given `darting_radius(dim)`.
    """

    log_threshold: Float[Array, ""] | float = 0.0
    radius: Float[Array, ""] | float | None = None

    def num_proposal(self, library: ModeLibrary) -> tuple[int, int]:
        return 1, TRIES * library.dim

    def propose(self, noise: Noise, library: ModeLibrary) -> tuple[Float[Array, " dim"], Bool[Array, ""]]:
        tries = noise.normal.reshape(TRIES, library.dim)
        fits = jnp.sum(tries**2, axis=1) <= _radius(self.radius, library) ** 2
        first = jnp.argmax(fits)
        label = pick(noise.uniform[0], library.log_weight)
        return library.straight.unwhiten(label, tries[first]), fits[first]

    def log_ratio(self, state: ChainState, library: ModeLibrary) -> Float[Array, ""]:
        square = chart_square(library, state.position)
        inside = square <= _radius(self.radius, library) ** 2
        # finite outside too: inf - inf is NaN
        exponent = -0.5 * jnp.where(inside, square, 0.0) - 0.5 * library.dim * jnp.log(2 * jnp.pi)
        components = jnp.where(inside, library.log_weight - library.log_det + exponent, -jnp.inf)
        return jnp.where(jnp.any(inside), state.logdensity - jax.nn.logsumexp(components), -jnp.inf)


def log_volume(library: ModeLibrary) -> Float[Array, " capacity"]:
    """log of the regions' volumes, up to a constant that all share; -inf where a place is unused."""
    return jnp.where(jnp.isneginf(library.log_weight), -jnp.inf, library.log_det)


def _radius(radius: Float[Array, ""] | float | None, library: ModeLibrary) -> Float[Array, ""]:
    return jnp.asarray(darting_radius(library.dim) if radius is None else radius, library.location.dtype)


def _log_count(inside: Bool[Array, " capacity"]) -> Float[Array, ""]:
    """log n(theta); zero in no region, where it does not count."""
    return jnp.log(jnp.maximum(jnp.sum(inside), 1).astype(float))
