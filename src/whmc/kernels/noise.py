"""All the randomness of a move from one call of the generator: on a CPU each call costs more than what it fills."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float


def noise(key: Array, num_uniform: int, num_normal: int) -> tuple[Float[Array, " uniform"], Float[Array, " normal"]]:
    """Independent uniform numbers in (0, 1) and standard normal ones."""
    # from the smallest normal number on, so that no logarithm and no quantile is infinite
    uniform = jax.random.uniform(key, (num_uniform + num_normal,), minval=jnp.finfo(float).tiny)
    normal = jnp.sqrt(2.0) * jax.lax.erf_inv(2 * uniform[num_uniform:] - 1)
    # the barrier keeps XLA from computing the quantiles again in everything that uses them
    return jax.lax.optimization_barrier((uniform[:num_uniform], normal))
