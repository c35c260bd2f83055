"""What each mode weighs: one estimator for modes with and without a peak, with its error.

Laplace's formula is e^18 too small for a product of Student-t (two degrees of freedom) in fifty dimensions, and the
entropy of a Gaussian with the moments of draws is too large for every other shape. So modes of different kinds are
weighed by importance draws. The mass of mode k is

    m_k = ∫ pi(theta) r_k(theta) dtheta,     r_k = m_k N_k / sum_j m_j N_j,

with N_k the Gaussian of chart k: its part of the evidence, where the charts share the space among them. A few passes
from equal masses solve this. Draws come from the chart, half of them Gaussian and half Student-t, so that tails heavier
than the chart's are seen too.
"""

import dataclasses
from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from whmc.modes.library import ModeLibrary
from whmc.modes.mixture import log_base, log_components, log_responsibility
from whmc.search.polish import Peak
from whmc.target.target import Target

NUM_DRAWS = 256
"""Importance draws of a mode: log densities, no gradients."""

TAIL_DOF = 4.0
"""Degrees of freedom of the Student-t half of the draws."""

PASSES = 5
"""Of the masses, each with the shares of the space by those before. They evaluate no density."""

FEWEST_EFFECTIVE = 10.0
"""With fewer effective draws the error is infinite: one draw outweighs the others, and a heavier one may be missing."""


@dataclasses.dataclass(frozen=True)
class Masses:
    """Log masses of modes with their standard errors, infinite where the draws tell nothing."""

    log_mass: Float[np.ndarray, " size"]
    error: Float[np.ndarray, " size"]
    num_gradients: int

    @property
    def log_share(self) -> Float[np.ndarray, " size"]:
        """Of the sum of all."""
        return self.log_mass - np.logaddexp.reduce(self.log_mass)


def laplace_masses(peaks: Sequence[Peak]) -> Masses:
    """By Laplace's formula: costs nothing, and is comparable among polished maxima of similar shape."""
    return Masses(np.array([peak.log_laplace for peak in peaks]), np.zeros(len(peaks)), 0)


def weigh(target: Target, peaks: Sequence[Peak], key: Array) -> Masses:
    """Masses by importance draws, of all peaks in one compiled batch."""
    size, library = len(peaks), chart_library(peaks)
    log_ratio = np.asarray(_log_ratios(target, library, key, jnp.asarray(size)))
    for _ in range(PASSES):
        log_weight = log_ratio + np.asarray(_log_shares(library, key, jnp.asarray(size)))
        log_mass, error = log_mean(log_weight)
        library = dataclasses.replace(library, log_weight=jnp.asarray(log_mass))
    laplace = np.array([peak.log_laplace for peak in peaks])
    unseen = ~np.isfinite(log_mass[:size])  # not one draw inside the support
    return Masses(np.where(unseen, laplace, log_mass[:size]), error[:size], size * NUM_DRAWS)


def chart_library(peaks: Sequence[Peak], log_weight: np.ndarray | None = None) -> ModeLibrary:
    """The peaks as charts, of equal weight unless told, with room to grow, so that few shapes are compiled."""
    return ModeLibrary.from_charts(
        np.stack([peak.location for peak in peaks]),
        np.stack([peak.scale for peak in peaks]),
        log_weight=log_weight,
        capacity=max(16, 1 << (len(peaks) - 1).bit_length()),
    )


def log_mean(log_weight: Float[np.ndarray, "size n"]) -> tuple[Float[np.ndarray, " size"], Float[np.ndarray, " size"]]:
    """Log of the mean weight in each row, and its standard error, infinite with too few effective draws."""
    num = log_weight.shape[1]
    top = np.max(log_weight, axis=1, keepdims=True)
    weight = np.exp(log_weight - np.where(np.isfinite(top), top, 0.0))
    total = weight.sum(axis=1)
    with np.errstate(divide="ignore", invalid="ignore"):
        effective = total**2 / np.sum(weight**2, axis=1)
        log_mass = np.log(total / num) + top[:, 0]
        # the delta method: sd / mean / sqrt(n), which is sqrt(1/effective - 1/n)
        error = np.sqrt(np.maximum(1 / effective - 1 / num, 0.0))
    return log_mass, np.where(effective >= FEWEST_EFFECTIVE, error, np.inf)


@jax.jit
def _log_ratios(target: Target, library: ModeLibrary, key: Array, size: Int[Array, ""]) -> Float[Array, "capacity n"]:
    """log( pi / b_k ) at draws of each chart k in use, b_k the density that they are drawn from."""

    def log_ratio(label: Int[Array, ""], z: Float[Array, " dim"]) -> Float[Array, ""]:
        square = jnp.sum(z * z)
        halves = [log_base(square, library.dim, jnp.asarray(dof, float)) for dof in (jnp.inf, TAIL_DOF)]
        log_pi = target(library.unwhiten(label, z))
        log_pi = jnp.where(jnp.isfinite(log_pi), log_pi, -jnp.inf)
        return log_pi - (jnp.logaddexp(*halves) - jnp.log(2.0) - library.log_det[label])

    return _by_chart(log_ratio, library, key, size)


@jax.jit
def _log_shares(library: ModeLibrary, key: Array, size: Int[Array, ""]) -> Float[Array, "capacity n"]:
    """log r_k at the same draws."""

    def log_share(label: Int[Array, ""], z: Float[Array, " dim"]) -> Float[Array, ""]:
        components = log_components(library, library.unwhiten(label, z))
        components = jnp.where(library.log_weight > -jnp.inf, components, -jnp.inf)
        return jnp.where(components[label] > -jnp.inf, log_responsibility(components, label), -jnp.inf)

    return _by_chart(log_share, library, key, size)


def _by_chart(
    function: Callable[[Array, Array], Array], library: ModeLibrary, key: Array, size: Int[Array, ""]
) -> Float[Array, "capacity n"]:
    """A function of label and draw z for each draw of each chart in use; -inf in places that are empty.

    A loop over the charts in use, not over the room: a place that is empty costs no evaluation.
    """

    def draw(key: Array, tail: Bool[Array, ""]) -> Float[Array, " dim"]:
        key_normal, key_radius = jax.random.split(key)
        radius = jnp.sqrt(0.5 * TAIL_DOF / jax.random.gamma(key_radius, 0.5 * TAIL_DOF))
        return jax.random.normal(key_normal, (library.dim,)) * jnp.where(tail, radius, 1.0)

    def one(label: Int[Array, ""], rows: Float[Array, "capacity n"]) -> Float[Array, "capacity n"]:
        keys = jax.random.split(jax.random.fold_in(key, label), NUM_DRAWS)
        draws = jax.vmap(draw)(keys, jnp.arange(NUM_DRAWS) < NUM_DRAWS // 2)
        return rows.at[label].set(jax.vmap(function, (None, 0))(label, draws))

    return jax.lax.fori_loop(0, size, one, jnp.full((library.capacity, NUM_DRAWS), -jnp.inf))
