"""The random numbers of steps: of one step from a key of JAX's, of a whole block on the host.

Drawing the numbers of a block in compiled code would take a fifth of the block's compilation. NumPy's Philox compiles
nothing: it encrypts a counter with a key (Salmon et al. 2011). The key is that of the run and the number of the chain,
the counter tells the step. So the numbers of step t of chain c depend neither on how a run is cut into blocks nor on
how many chains run beside.
"""

from collections.abc import Iterable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from whmc._pytree import pytree
from whmc._shapes import Array, Float, Int, UInt32, UInt64

WORDS = 4
"""Random words that Philox gives for one counter."""


@pytree
class Noise:
    """Independent uniform numbers in (0, 1) and standard normal ones."""

    uniform: Float[Any, "*n uniform"]
    normal: Float[Any, "*n normal"]

    def part(self, first: tuple[int, int], end: tuple[int, int]) -> "Noise":
        """The numbers between two places, also of many chains at once."""
        return Noise(self.uniform[..., first[0] : end[0]], self.normal[..., first[1] : end[1]])


def draw_noise(key: Array, num_uniform: int, num_normal: int) -> Noise:
    """Uniform and normal numbers of one step."""
    # from half a rounding error on, so that no logarithm and no quantile is infinite
    least = jnp.finfo(jnp.result_type(float)).eps / 2
    uniform = jax.random.uniform(key, (num_uniform + num_normal,), minval=least)
    return Noise(uniform[:num_uniform], jnp.sqrt(2.0) * jax.lax.erf_inv(2 * uniform[num_uniform:] - 1))


class Places(NamedTuple):
    """Which steps of which chains: `length` steps of each, from its own first step on; chains count from
    `first_chain`."""

    first_step: Int[np.ndarray, " chains"]
    length: int
    first_chain: int = 0


def block_noise(key: Array, places: Places, num_uniform: int, num_normal: int) -> Noise:
    """Uniform and normal numbers of many steps, (steps, chains, ...)."""
    pairs = (num_normal + 1) // 2
    words = _words(key, places, num_uniform + 2 * pairs, 0)
    # in the middle between two fractions of a mantissa's bits: neither 0 nor 1
    uniform = ((words >> np.uint64(12)) + 0.5) * 2.0**-52
    radius = np.sqrt(-2 * np.log(uniform[..., num_uniform : num_uniform + pairs]))  # Box and Muller
    angle = 2 * np.pi * uniform[..., num_uniform + pairs :]
    normal = np.concatenate([radius * np.cos(angle), radius * np.sin(angle)], axis=-1)
    return Noise(uniform[..., :num_uniform], normal[..., :num_normal])


def block_keys(key: Array, places: Places, number: int) -> UInt32[np.ndarray, "steps chains 2"]:
    """The data of a key for each step of every chain, for kernel `number`, which draws by itself."""
    words = _words(key, places, 1, 1 + number)
    return np.concatenate([words >> np.uint64(32), words & np.uint64(0xFFFFFFFF)], axis=-1).astype("uint32")


def _words(key: Array, places: Places, num: int, purpose: int) -> UInt64[np.ndarray, "steps chains num"]:
    """`num` random words a step. Counters are (place in the chain, purpose, 0, 0)."""
    data = np.asarray(jax.random.key_data(key)).ravel().astype("uint64")
    root = data[-2] << np.uint64(32) | data[-1]
    each = -(-num // WORDS)
    words = np.empty((places.length, len(places.first_step), num), "uint64")
    for n, first in enumerate(np.asarray(places.first_step).tolist()):
        counter = np.array([first * each, purpose, 0, 0], "uint64")
        bits = np.random.Philox(counter=counter, key=np.array([root, places.first_chain + n], "uint64"))
        words[:, n] = bits.random_raw(places.length * each * WORDS).reshape(places.length, each * WORDS)[:, :num]
    return words


def total(nums: Iterable[tuple[int, int] | None]) -> tuple[int, int]:
    """Uniform and normal numbers in all, of users some of which may not say."""
    said = [num for num in nums if num is not None]
    return sum(uniform for uniform, _ in said), sum(normal for _, normal in said)
