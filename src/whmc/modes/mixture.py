"""q, the mixture of the library's charts, and the responsibilities that it gives each chart.

    q(theta) = sum_k omega_k b(z_k) / |L_k|,   z_k = L_k^{-1} (theta - mu_k)
    r_k(theta) = omega_k b(z_k) / |L_k| / q(theta)

with one base density b for all charts, standard Gaussian or Student-t. Where chart k is bent or has a band
(`bend.py`, `band.py`), x_k is in the place of z_k and the volume |d theta/d x_k| in that of |L_k|. Everything stays in
logs.
"""

import math
from functools import cache

import jax
import jax.numpy as jnp
import numpy as np

from whmc._shapes import Array, Float, Int
from whmc.modes.library import ModeLibrary
from whmc.modes.require import MAX_DOF


def log_base(square: Float[Array, "*n"], dim: int, dof: Float[Array, ""]) -> Float[Array, "*n"]:
    """log b(z) from |z|²: Student-t with `dof` degrees of freedom, Gaussian where dof is inf."""

    def gaussian(square: Float[Array, "*n"]) -> Float[Array, "*n"]:
        return _log_norms(dim)[0] - 0.5 * square

    def student(square: Float[Array, "*n"]) -> Float[Array, "*n"]:
        # degrees of freedom are whole numbers, so the norm is one of a table: gamma functions take long to compile
        log_norm = jnp.asarray(_log_norms(dim), square.dtype)[dof.astype(int)]
        return log_norm - 0.5 * (dof + dim) * jnp.log1p(square / dof)

    return jax.lax.cond(jnp.isinf(dof), gaussian, student, square)


@cache
def _log_norms(dim: int) -> Float[np.ndarray, " num"]:
    """log b(0): of the Gaussian, then of Student-t with 1, 2, ... degrees of freedom."""
    student = [
        math.lgamma(0.5 * (dof + dim)) - math.lgamma(0.5 * dof) - 0.5 * dim * math.log(dof * math.pi)
        for dof in range(1, MAX_DOF + 1)
    ]
    return np.array([-0.5 * dim * math.log(2 * math.pi), *student])


def log_components(library: ModeLibrary, position: Float[Array, " dim"]) -> Float[Array, " capacity"]:
    """log(omega_k b(z_k) / |L_k|) for every chart; -inf where a place is unused."""
    height = library.log_weight - library.log_det
    if library.bend is None:
        square = squares(library, position)
    else:
        square, log_volume = library.bend.straightened(_whitened(library, position))
        height = height - log_volume
    return log_base(square, library.dim, library.dof) + height


def squares(library: ModeLibrary, position: Float[Array, " dim"]) -> Float[Array, " capacity"]:
    """|z_k|² in every chart, without its bend; a number without meaning where a place is unused."""
    z = _whitened(library, position)
    return jnp.sum(z * z, axis=-1)


def _whitened(library: ModeLibrary, position: Float[Array, " dim"]) -> Float[Array, "capacity dim"]:
    """z_k in every chart."""
    shift = position - library.location
    inverse = library.inverse_scale
    return inverse * shift if library.diagonal else jnp.einsum("kij,kj->ki", inverse, shift)


def log_mixture(components: Float[Array, " capacity"]) -> Float[Array, ""]:
    """log q from the log components."""
    return jax.nn.logsumexp(components)


def log_responsibility(components: Float[Array, " capacity"], label: Int[Array, ""]) -> Float[Array, ""]:
    """log r_k from the log components."""
    return components[label] - log_mixture(components)


def pick(
    uniform: Float[Array, ""], log_weights: Float[Array, " capacity"], log_total: Float[Array, ""] | None = None
) -> Int[Array, ""]:
    """An index with probability proportional to exp(log_weights), from one uniform number.

    `log_total`, where the log of the sum of the weights is known already, saves looking for the largest.
    """
    return pick_weight(uniform, jnp.exp(log_weights - (jnp.max(log_weights) if log_total is None else log_total)))


def pick_weight(uniform: Float[Array, ""], weights: Float[Array, " capacity"]) -> Int[Array, ""]:
    """An index with probability proportional to a weight, from one uniform number."""
    heights = jnp.cumsum(weights)
    return jnp.sum(heights <= uniform * heights[-1])


NUM_UNIFORM = 1 + MAX_DOF // 2
"""Uniform numbers that `draw_mixture` takes: one for the chart, the rest for the radius of a Student-t."""


def draw_mixture(
    uniform: Float[Array, " num_uniform"], normal: Float[Array, " num_normal"], library: ModeLibrary
) -> tuple[Int[Array, ""], Float[Array, " dim"]]:
    """(k, theta) from omega_k b(z_k) / |L_k|, a label and a position of law q.

    It takes the first `NUM_UNIFORM` uniform numbers, and dim + 1 normal ones.
    """
    label = pick_weight(uniform[0], jnp.exp(library.log_weight))
    z = normal[:-1] * _radius(uniform[1:NUM_UNIFORM], normal[-1], library.dof)
    return label, library.unwhiten(label, z)


def _radius(uniform: Float[Array, " half"], normal: Float[Array, ""], dof: Float[Array, ""]) -> Float[Array, ""]:
    """sqrt(nu / chi2_nu): what makes a normal vector Student-t; one for a Gaussian base.

    chi2_nu is -2 log of a product of nu/2 uniform numbers, and a normal number squared where nu is odd.
    """

    def student() -> Float[Array, ""]:
        pairs = jnp.floor(0.5 * dof)
        logs = jnp.where(jnp.arange(MAX_DOF // 2, dtype=float) < pairs, jnp.log(uniform), 0.0)
        return jnp.sqrt(dof / ((dof - 2 * pairs) * normal**2 - 2 * jnp.sum(logs)))

    return jax.lax.cond(jnp.isinf(dof), lambda: jnp.ones(()), student)


def chart_squares(
    library: ModeLibrary, position: Float[np.ndarray, "n dim"], charts: Int[np.ndarray, " some"] | None = None
) -> Float[np.ndarray, "some n"]:
    """|x_k|² of many points in every chart in use, or in some, in NumPy: without compiling anything."""
    return _squares_and_volumes(library, position, charts)[0]


def _squares_and_volumes(
    library: ModeLibrary, position: Float[np.ndarray, "n dim"], charts: Int[np.ndarray, " some"] | None
) -> tuple[Float[np.ndarray, "some n"], Float[np.ndarray, "some n"]]:
    """|x_k|² and log|d theta/d x_k|."""
    every = library.charts()
    chosen = every if charts is None else [every[k] for k in charts.tolist()]
    squares, volumes = np.empty((2, len(chosen), len(position)))
    for n, one in enumerate(chosen):
        x, volumes[n] = one.chart.inverse(position)
        np.einsum("nd,nd->n", x, x, out=squares[n])
    return squares, volumes


def log_base_of(square: Float[np.ndarray, "*n"], dim: int, dof: float) -> Float[np.ndarray, "*n"]:
    """`log_base` in NumPy."""
    if np.isinf(dof):
        return np.asarray(-0.5 * square - 0.5 * dim * np.log(2 * np.pi))
    log_norm = math.lgamma(0.5 * (dof + dim)) - math.lgamma(0.5 * dof) - 0.5 * dim * np.log(dof * np.pi)
    return np.asarray(log_norm - 0.5 * (dof + dim) * np.log1p(square / dof))


def log_components_of(
    library: ModeLibrary, position: Float[np.ndarray, "n dim"], charts: Int[np.ndarray, " some"] | None = None
) -> Float[np.ndarray, "some n"]:
    """log(omega_k b(z_k) / |L_k|) of many points for every chart in use, or for some, in NumPy."""
    square, log_volume = _squares_and_volumes(library, position, charts)
    log_weight = np.asarray(library.log_weight)
    height = (log_weight[: library.size] if charts is None else log_weight[charts])[:, None]
    return log_base_of(square, library.dim, float(library.dof)) + height - log_volume


def log_ratio_of(
    library: ModeLibrary, position: Float[np.ndarray, "n dim"], logdensity: Float[np.ndarray, " n"]
) -> Float[np.ndarray, " n"]:
    """log w = log pi - log q at many points, without compiling anything."""
    return logdensity - np.logaddexp.reduce(log_components_of(library, position), axis=0)
