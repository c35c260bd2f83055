"""The random numbers of a step, all from one call of the generator.

The generator is JAX's own, Threefry-2x32 with 20 rounds: it encrypts a counter with a key. It is written out here
because JAX compiles its loop over the rounds, for a CPU, five times as long as twenty rounds one after the other.
"""

from collections.abc import Iterable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, UInt32

from whmc._pytree import pytree

ROTATIONS = ((13, 15, 26, 6), (17, 29, 16, 24))
PARITY = 0x1BD11BDA

Word = UInt32[Any, "..."]


@pytree
class Noise:
    """Independent uniform numbers in (0, 1) and standard normal ones."""

    uniform: Float[Array, "*n uniform"]
    normal: Float[Array, "*n normal"]

    def part(self, first: tuple[int, int], end: tuple[int, int]) -> "Noise":
        """The numbers between two places, also of many chains at once."""
        return Noise(self.uniform[..., first[0] : end[0]], self.normal[..., first[1] : end[1]])


def threefry(first: Word, second: Word, counter: Word) -> tuple[Word, Word]:
    """Two random words for a key of two words and a counter below 2^32 (Salmon et al. 2011)."""
    words = (first, second, first ^ second ^ np.uint32(PARITY))
    x, y = words[0] + 0 * counter, words[1] + counter
    for block in range(5):
        for rotation in ROTATIONS[block % 2]:
            x = x + y
            y = x ^ (y << np.uint32(rotation) | y >> np.uint32(32 - rotation))
        x, y = x + words[(block + 1) % 3], y + words[(block + 2) % 3] + np.uint32(block + 1)
    return x, y


def key_words(key: Array) -> tuple[Word, Word]:
    """The two words of a key; of one that is not JAX's usual kind, two words drawn with it."""
    data = jax.random.key_data(key)
    if data.shape[-1] != 2:
        data = jax.random.bits(key, (2,), "uint32")
    return data[..., 0], data[..., 1]


def step_keys(key: Array, first_step: Int[np.ndarray, " chains"], length: int) -> UInt32[np.ndarray, "steps chains 2"]:
    """The words of fold_in(fold_in(key, c), t) for all chains c and `length` steps t from the first of each on.

    On the host, in NumPy: it takes less than a hundredth of the time of the steps, and nothing to compile.
    """
    steps = (np.asarray(first_step) + np.arange(length)[:, None]).astype("uint32")
    data = np.asarray(jax.random.key_data(key))
    if len(data) != 2:  # not JAX's usual kind of key
        data = np.asarray(jax.random.bits(key, (2,), "uint32"))
    words = threefry(data[:1], data[1:], np.arange(steps.shape[1], dtype="uint32"))
    return np.stack(threefry(*words, steps), axis=-1)


def draw_noise(key: Array, num_uniform: int, num_normal: int) -> Noise:
    """Uniform and normal numbers: number n of a key is the generator's value at n."""
    x, y = threefry(*key_words(key), np.arange(num_uniform + num_normal, dtype="uint32"))
    # in the middle between two fractions of a mantissa's bits: neither 0 nor 1, so no logarithm or quantile is infinite
    if jnp.result_type(float) == jnp.float64:
        uniform = (x >> 6).astype(float) * 2.0**-26 + (y >> 6).astype(float) * 2.0**-52 + 2.0**-53
    else:
        uniform = (x >> 9).astype(float) * 2.0**-23 + 2.0**-24
    return Noise(uniform[:num_uniform], jnp.sqrt(2.0) * jax.lax.erf_inv(2 * uniform[num_uniform:] - 1))


def total(nums: Iterable[tuple[int, int] | None]) -> tuple[int, int]:
    """Uniform and normal numbers in all, of users some of which may not say."""
    said = [num for num in nums if num is not None]
    return sum(uniform for uniform, _ in said), sum(normal for _, normal in said)
