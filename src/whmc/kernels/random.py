"""The random numbers of a step, all from one call of the generator."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from whmc._pytree import pytree


@pytree
class Noise:
    """Independent uniform numbers in (0, 1) and standard normal ones."""

    uniform: Float[Array, " uniform"]
    normal: Float[Array, " normal"]


def draw_noise(key: Array, num_uniform: int, num_normal: int) -> Noise:
    """Uniform and normal numbers."""
    # from half a rounding error on, so that no logarithm and no quantile is infinite
    least = jnp.finfo(jnp.result_type(float)).eps / 2
    uniform = jax.random.uniform(key, (num_uniform + num_normal,), minval=least)
    return Noise(uniform[:num_uniform], jnp.sqrt(2.0) * jax.lax.erf_inv(2 * uniform[num_uniform:] - 1))


def share_noise(key: Array, nums: list[tuple[int, int]]) -> list[Noise]:
    """Noise for several users, each with its numbers of uniform and normal ones, from one call of the generator."""
    drawn = draw_noise(key, sum(uniform for uniform, _ in nums), sum(normal for _, normal in nums))
    parts, u, n = [], 0, 0
    for uniform, normal in nums:
        parts.append(Noise(drawn.uniform[u : u + uniform], drawn.normal[n : n + normal]))
        u, n = u + uniform, n + normal
    return parts
