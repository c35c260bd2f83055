"""Log densities and scores of many positions, for work on the host.

A search is a few hundred evaluations of a few hundred points, with a little arithmetic between them. So it is written
in NumPy around this one compiled function, which holds the target once and has one shape.
"""

from typing import NamedTuple

import jax
import numpy as np
from jaxtyping import Array, Bool, Float

from whmc.target.target import Evaluation, Target

ROWS = 64
"""Positions of one call: enough that a call costs little beside them, few enough that a short batch wastes little."""


class Evaluations(NamedTuple):
    """What `Target.evaluate` gives, a row for each position, in NumPy."""

    logdensity: Float[np.ndarray, " n"]
    score: Float[np.ndarray, "n dim"]
    failed: Bool[np.ndarray, " n"]


def evaluate_rows(target: Target, positions: Float[np.ndarray, "n dim"]) -> Evaluations:
    """Log densities and scores. Positions that are not finite have no density."""
    rows = np.asarray(positions, float)
    num, size = len(rows), _size(target, len(rows))
    parts = [_padded(rows[first : first + size], size) for first in range(0, num, size)]
    found = [_evaluate(target, part) for part in parts]
    if not found:
        return Evaluations(np.zeros(0), np.zeros((0, target.dim)), np.zeros(0, bool))
    columns = zip(*((part.logdensity, part.score, part.failed) for part in found), strict=True)
    return Evaluations(*(np.concatenate([np.asarray(part) for part in column])[:num] for column in columns))


def logdensities(target: Target, positions: Float[np.ndarray, "n dim"]) -> Float[np.ndarray, " n"]:
    """Log densities alone."""
    return evaluate_rows(target, positions).logdensity


def _size(target: Target, num: int) -> int:
    """Rows of a call. A function outside of JAX compiles at once and may cost much: no row of it is wasted."""
    return min(ROWS, max(num, 1)) if hasattr(target.logdensity, "calls_per_gradient") else ROWS


def _padded(rows: Float[np.ndarray, "n dim"], size: int) -> Float[np.ndarray, "size dim"]:
    return rows if len(rows) == size else np.concatenate([rows, np.repeat(rows[:1], size - len(rows), axis=0)])


@jax.jit
def _evaluate(target: Target, positions: Float[Array, "n dim"]) -> Evaluation:
    return jax.vmap(target.evaluate)(positions)
