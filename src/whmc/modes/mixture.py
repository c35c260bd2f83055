"""q, the mixture of the library's charts, and the responsibilities that it gives each chart.

    q(theta) = sum_k omega_k b(z_k) / |L_k|,   z_k = L_k^{-1} (theta - mu_k)
    r_k(theta) = omega_k b(z_k) / |L_k| / q(theta)

with one base density b for all charts, standard Gaussian or Student-t. Everything stays in logs.
"""

import jax
import jax.numpy as jnp
from jax.scipy.special import gammaln
from jaxtyping import Array, Float, Int

from whmc.modes.library import ModeLibrary


def log_base(square: Float[Array, "*n"], dim: int, dof: Float[Array, ""]) -> Float[Array, "*n"]:
    """log b(z) from |z|²: Student-t with `dof` degrees of freedom, Gaussian where dof is inf."""
    gaussian = -0.5 * square - 0.5 * dim * jnp.log(2 * jnp.pi)
    finite = jnp.where(jnp.isinf(dof), 1.0, dof)  # the branch not taken must not make NaN
    student = (
        gammaln(0.5 * (finite + dim))
        - gammaln(0.5 * finite)
        - 0.5 * dim * jnp.log(finite * jnp.pi)
        - 0.5 * (finite + dim) * jnp.log1p(square / finite)
    )
    return jnp.where(jnp.isinf(dof), gaussian, student)


def log_components(library: ModeLibrary, position: Float[Array, " dim"]) -> Float[Array, " capacity"]:
    """log(omega_k b(z_k) / |L_k|) for every chart; -inf where a place is unused."""
    shift = position - library.location
    inverse = library.inverse_scale
    z = inverse * shift if library.diagonal else jnp.einsum("kij,kj->ki", inverse, shift)
    square = jnp.sum(z * z, axis=-1)
    return library.log_weight - library.log_det + log_base(square, library.dim, library.dof)


def log_mixture(components: Float[Array, " capacity"]) -> Float[Array, ""]:
    """log q from the log components."""
    return jax.nn.logsumexp(components)


def log_responsibility(components: Float[Array, " capacity"], label: Int[Array, ""]) -> Float[Array, ""]:
    """log r_k from the log components."""
    return components[label] - log_mixture(components)


def pick(uniform: Float[Array, ""], log_weights: Float[Array, " capacity"]) -> Int[Array, ""]:
    """An index with probability proportional to exp(log_weights), from one uniform number."""
    heights = jnp.cumsum(jnp.exp(log_weights - jnp.max(log_weights)))
    return jnp.sum(heights <= uniform * heights[-1])


def draw(
    key: Array, uniform: Float[Array, ""], normal: Float[Array, " dim"], library: ModeLibrary
) -> tuple[Int[Array, ""], Float[Array, " dim"]]:
    """(k, theta) from omega_k b(z_k) / |L_k|, a label and a position of law q, from one uniform and D normal numbers.

    The key serves only the radius of a Student-t base.
    """
    label = pick(uniform, library.log_weight)

    def stretched(z: Float[Array, " dim"]) -> Float[Array, " dim"]:
        # z / sqrt(chi2_nu / nu): Student-t
        half = 0.5 * library.dof
        return z * jnp.sqrt(half / jax.random.gamma(jax.random.fold_in(key, 1), half))

    z = jax.lax.cond(jnp.isinf(library.dof), lambda z: z, stretched, normal)
    return label, library.unwhiten(label, z)
