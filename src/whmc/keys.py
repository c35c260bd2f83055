"""Random keys: one seed, one stream for each purpose, and no key of one stream equal to a key of another.

A key is a path from the seed: the first step names the stream, later steps count finders, batches, chains, steps.
Two rules keep all keys apart. The first step of a path is always a stream, so paths of different streams differ. A key
that has children (on the host by `child`; in compiled code by `fold_in` or `split`, which give the same children) is
never drawn from and never both split and folded.

Keys are JAX's, but the host derives them by NumPy's SeedSequence, which is made for that and compiles nothing.
"""

import enum

import jax
import numpy as np

from whmc._shapes import Array


class Stream(enum.IntEnum):
    """What random numbers are for. The number of a stream is part of every seed's draws: do not renumber."""

    CHAINS = 0
    SEARCH = 1
    ONGOING_SEARCH = 2
    FOLDING = 3
    SYMMETRY_CHECK = 4
    RESTART = 5
    EVIDENCE = 6
    PROBE = 7
    CHECK = 8
    FAILURE = 9
    ENDS = 10


def stream_key(seed: int, stream: Stream) -> Array:
    """The root of a stream: derive from it, do not draw from it."""
    return _key(np.random.SeedSequence(seed, spawn_key=(int(stream),)))


def child(key: Array, number: int) -> Array:
    """A key derived from a key, on the host."""
    return _key(np.random.SeedSequence(_numbers(key), spawn_key=(number,)))


def children(key: Array, num: int) -> list[Array]:
    """The first children of a key."""
    return [child(key, n) for n in range(num)]


def _key(sequence: np.random.SeedSequence) -> Array:
    return jax.random.wrap_key_data(jax.device_put(sequence.generate_state(2)))


def _numbers(key: Array) -> list[int]:
    return [int(number) for number in np.asarray(jax.random.key_data(key)).ravel()]


def generator(key: Array) -> np.random.Generator:
    """NumPy's random numbers of a key, for work on the host: they count as drawing from it."""
    return np.random.default_rng(_numbers(key))
