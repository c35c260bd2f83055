"""Where a log density jumps between two starts: no gradient tells of it."""

from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from whmc._shapes import Array, Bool, Float

if TYPE_CHECKING:
    from whmc.target.target import Target

NUM_SEGMENTS = 32
"""Segments between two starts along which jumps are looked for: an edge that cuts off a tenth of the region crosses at
least one of them with chance 1 - .82^32 = .998."""

LEAST_JUMP = 1e-3
"""What a log density may jump by, in nats: less changes acceptance by less than a thousandth."""

ROUNDING = 1e-12
"""And relative to the log density, which is a sum of many terms."""

HALVINGS = 53
"""After so many the ends of a segment are neighbouring numbers: only a jump is left of what changes along it."""


@partial(jax.jit, static_argnums=0)
def _both(target: "Target", points: Float[Array, "n dim"]) -> tuple[Float[Array, " n"], Float[Array, "n dim"]]:
    return jax.vmap(jax.value_and_grad(target))(points)


class _Points(NamedTuple):
    """Positions with their log densities and slopes."""

    position: Float[np.ndarray, "n dim"]
    value: Float[np.ndarray, " n"]
    score: Float[np.ndarray, "n dim"]


def _unexplained(one: _Points, other: _Points) -> Float[np.ndarray, " n"]:
    """What log densities differ by, but for what the mean of both slopes explains, if they are known; nothing where
    both are -inf, or either is NaN."""
    with np.errstate(invalid="ignore"):
        along = np.sum(0.5 * (one.score + other.score) * (other.position - one.position), axis=1)
        change = other.value - one.value
        left = np.abs(np.where(np.isfinite(along) & np.isfinite(change), change - along, change))
    return np.nan_to_num(left, nan=0.0, posinf=np.inf)


def _either(which: Bool[np.ndarray, " n"], one: _Points, other: _Points) -> _Points:
    return _Points(*(np.where(which.reshape(-1, *[1] * (a.ndim - 1)), a, b) for a, b in zip(one, other, strict=True)))


def find_jump(
    target: "Target", starts: Float[np.ndarray, "n dim"]
) -> tuple[float, float, Float[np.ndarray, " dim"]] | None:
    """Log densities on both sides of a jump, and its position: each segment is halved, and of both halves that is
    kept along which more changes than slopes explain, as long as that is more than a jump may be."""
    ends = starts[: 2 * NUM_SEGMENTS].reshape(2, NUM_SEGMENTS, -1)
    low, high = (_line(target, rows, np.ones(NUM_SEGMENTS, bool)) for rows in ends)
    for _ in range(HALVINGS):
        changing = _unexplained(low, high) > LEAST_JUMP
        if not changing.any():
            return None
        middle = _line(target, 0.5 * (low.position + high.position), changing)
        first = _unexplained(low, middle) >= _unexplained(middle, high)
        low, high = _either(first, low, middle), _either(first, middle, high)
    changes = _unexplained(low, high)
    n = int(np.argmax(changes))
    if not changes[n] > LEAST_JUMP + ROUNDING * abs(low.value[n]):
        return None
    return float(low.value[n]), float(high.value[n]), low.position[n]


def _line(target: "Target", position: Float[np.ndarray, "n dim"], asked: Bool[np.ndarray, " n"]) -> _Points:
    """Values and slopes at some positions; NaN at the others, where a function outside of JAX is not called."""
    found = _both(target, jnp.asarray(np.where(asked[:, None], position, np.nan)))
    return _Points(position, *map(np.asarray, found))
