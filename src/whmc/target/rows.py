"""Log densities and scores of many positions, for work on the host.

A search is a few hundred evaluations of a few hundred points, with a little arithmetic between them. So it is written
in NumPy around this one compiled function, which holds the target once and has one shape.
"""

import jax
import numpy as np

from whmc._shapes import Array, Float
from whmc.target.counted import count
from whmc.target.target import Evaluation, Target, made_safe

ROWS = 64
"""Positions of one call: enough that a call costs little beside them, few enough that a short batch wastes little."""

MORE_ROWS = 256
CHEAP = 500.0
"""Positions of one call where a gradient has no more than so many operations: the call costs more than they do."""


def evaluate_rows(target: Target, positions: Float[np.ndarray, "n dim"]) -> Evaluation:
    """`Target.evaluate` of many positions, in NumPy. Positions that are not finite have no density."""
    rows = np.asarray(positions, float)
    num, filler = len(rows), _filler(target, rows)
    count(num)
    size = MORE_ROWS if target.operations is not None and target.operations <= CHEAP else ROWS
    parts = [_padded(rows[first : first + size], filler, size) for first in range(0, num, size)]
    found = [_evaluate(target, part) for part in parts]
    if not found:
        return Evaluation(np.zeros(0), np.zeros((0, target.dim)), np.zeros(0, bool))
    logdensity, score = (
        np.concatenate([np.asarray(part) for part in column])[:num] for column in zip(*found, strict=True)
    )
    return made_safe(logdensity, score, np)


def logdensities(target: Target, positions: Float[np.ndarray, "n dim"]) -> Float[np.ndarray, " n"]:
    """Log densities alone."""
    return evaluate_rows(target, positions).logdensity


def _filler(target: Target, rows: Float[np.ndarray, "n dim"]) -> Float[np.ndarray, "few dim"]:
    """What fills a short batch. A function outside of JAX may cost much, and is not called where a position is NaN."""
    return np.full((1, target.dim), np.nan) if hasattr(target.logdensity, "calls_per_gradient") else rows[:1]


def _padded(
    rows: Float[np.ndarray, "n dim"], filler: Float[np.ndarray, "few dim"], size: int
) -> Float[np.ndarray, "size dim"]:
    return rows if len(rows) == size else np.concatenate([rows, np.repeat(filler, size - len(rows), axis=0)])


@jax.jit
def _evaluate(target: Target, positions: Float[Array, "n dim"]) -> tuple[Float[Array, " n"], Float[Array, "n dim"]]:
    # made safe on the host: here XLA would compute the target once more for each use of its score
    return jax.vmap(target.value_and_score)(positions)
