"""Call NumPy functions from compiled code: batched, in float64, and without deadlock on a single core."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental.buffer_callback import buffer_callback

from whmc._shapes import Array

SMALL = 16_000
"""Numbers in one argument of a pure_callback. JAX copies larger arrays by another thread; where all threads wait, as on
a machine with one core, a callback would wait for its own arguments for ever."""


def outside(
    function: Callable[..., tuple[np.ndarray, ...]], shapes: Sequence[tuple[int, ...]], *given: Array
) -> tuple[Array, ...]:
    """A NumPy function of many positions, called from compiled code with one of them; its results have the precision
    of what was given.

    function: takes float64 arrays, one row for each position, and returns such arrays. It must not use JAX: it could
        wait for the thread that waits for it. shapes: of the results for one position.
    """

    @jax.custom_batching.custom_vmap
    def many(*rows: Array) -> tuple[Array, ...]:
        return _call(function, shapes, rows)

    @many.def_vmap
    def _(size: int, batched: Sequence[bool], *rows: Array) -> Any:
        num = rows[0].shape[1] if batched[0] else len(rows[0])
        flat = (part.reshape(-1, *part.shape[2:]) for part in _repeated(size, batched, rows))
        found = many(*flat)
        return tuple(part.reshape(size, num, *part.shape[1:]) for part in found), (True,) * len(shapes)

    @jax.custom_batching.custom_vmap
    def one(*given: Array) -> tuple[Array, ...]:
        return tuple(part[0] for part in many(*(part[None] for part in given)))

    @one.def_vmap
    def _(size: int, batched: Sequence[bool], *given: Array) -> Any:
        return many(*_repeated(size, batched, given)), (True,) * len(shapes)

    return one(*given)


def _repeated(size: int, batched: Sequence[bool], arrays: Sequence[Array]) -> list[Array]:
    return [
        part if along else jnp.broadcast_to(part, (size, *part.shape))
        for along, part in zip(batched, arrays, strict=True)
    ]


def _call(
    function: Callable[..., tuple[np.ndarray, ...]], shapes: Sequence[tuple[int, ...]], rows: Sequence[Array]
) -> tuple[Array, ...]:
    """The callback itself: where XLA's memory is the processor's it works on that, at a tenth of the cost."""
    found: tuple[Array, ...] = jax.lax.platform_dependent(
        *rows, cpu=partial(_in_place, function, shapes), default=partial(_anywhere, function, shapes)
    )
    return found


def _in_place(
    function: Callable[..., tuple[np.ndarray, ...]], shapes: Sequence[tuple[int, ...]], *rows: Array
) -> tuple[Array, ...]:
    dtype, num = rows[0].dtype, len(rows[0])

    def call(_: Any, out: tuple[Any, ...], *given: Any) -> None:
        # astype copies: the memory is XLA's, and used again
        found = function(*(np.asarray(part).astype(np.float64) for part in given))
        for place, part in zip(out, found, strict=True):
            np.asarray(place)[...] = part

    like = tuple(jax.ShapeDtypeStruct((num, *shape), dtype) for shape in shapes)
    found: tuple[Array, ...] = buffer_callback(call, like)(*rows)
    return found


def _anywhere(
    function: Callable[..., tuple[np.ndarray, ...]], shapes: Sequence[tuple[int, ...]], *rows: Array
) -> tuple[Array, ...]:
    """By copies to the host and back.

    JAX hands a pure_callback arrays in the precision of the thread that it runs in, where `jax.enable_x64` of the
    caller does not hold: so float64 travels as pairs of uint32.
    """
    dtype, num = rows[0].dtype, len(rows[0])

    def call(*sent: Any) -> tuple[np.ndarray, ...]:
        given = [_received(pieces, dtype).reshape(like.shape) for pieces, like in zip(sent, rows, strict=True)]
        return tuple(_answered(part, dtype) for part in function(*given))

    kind, pair = (np.uint32, (2,)) if dtype == np.float64 else (dtype, ())
    like = tuple(jax.ShapeDtypeStruct((num, *shape, *pair), kind) for shape in shapes)
    answers = jax.pure_callback(call, like, *map(_sent, rows))
    return tuple(_arrived(part, dtype) for part in answers)


# the way of an array: sent by compiled code, received by the host, answered, arrived in compiled code


def _sent(rows: Array) -> list[Array]:
    """Small flat pieces, float64 as pairs of uint32."""
    flat = (jax.lax.bitcast_convert_type(rows, np.uint32) if rows.dtype == np.float64 else rows).reshape(-1)
    return [flat[n : n + SMALL] for n in range(0, flat.size, SMALL)]


def _received(pieces: Sequence[Any], dtype: Any) -> np.ndarray:
    """The pieces joined, as float64. This copies: the memory is XLA's, which will use it again."""
    joined = np.concatenate([np.asarray(piece) for piece in pieces])
    return joined.view(np.float64) if dtype == np.float64 else joined.astype(np.float64)


def _answered(numbers: np.ndarray, dtype: Any) -> np.ndarray:
    """A result of the function, float64 as pairs of uint32."""
    if dtype != np.float64:
        return numbers.astype(dtype)
    return np.asarray(numbers, np.float64, order="C")[..., None].view(np.uint32)


def _arrived(answer: Array, dtype: Any) -> Array:
    return jax.lax.bitcast_convert_type(answer, np.float64) if dtype == np.float64 else answer
