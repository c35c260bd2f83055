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
    return made_safe(*_as_given(target, np.asarray(positions, float)), np)


def evaluate_slopes(target: Target, positions: Float[np.ndarray, "n dim"]) -> tuple[Evaluation, int]:
    """`evaluate_rows` for what has to know which way is up, and the evaluations that it took besides.

    Where the density is finite and components of the score are not, these are central differences of log densities.
    """
    rows = np.asarray(positions, float)
    logdensity, score = _as_given(target, rows)
    found = made_safe(logdensity, score, np)
    row, coordinate = np.nonzero(np.isfinite(logdensity)[:, None] & ~np.isfinite(score))
    if not len(row):
        return found, 0
    # the cube root balances what the step cuts off against rounding
    share = np.cbrt(np.finfo(target.logdensity_dtype).eps)
    step = np.zeros((len(row), target.dim))
    step[np.arange(len(row)), coordinate] = share * (1 + np.abs(rows[row, coordinate]))
    ahead, behind = np.split(logdensities(target, np.concatenate([rows[row] + step, rows[row] - step])), 2)
    with np.errstate(invalid="ignore"):
        slope = (ahead - behind) / (2 * np.sum(step, axis=1))
    slopes = found.score.copy()
    slopes[row, coordinate] = np.where(np.isfinite(slope), slope, 0.0)
    return Evaluation(found.logdensity, slopes, found.failed), 2 * len(row)


def _as_given(
    target: Target, rows: Float[np.ndarray, "n dim"]
) -> tuple[Float[np.ndarray, " n"], Float[np.ndarray, "n dim"]]:
    """Log densities and scores as the target gives them."""
    num, filler = len(rows), _filler(target, rows)
    count(num)
    size = MORE_ROWS if target.operations is not None and target.operations <= CHEAP else ROWS
    parts = [_padded(rows[first : first + size], filler, size) for first in range(0, num, size)]
    found = [_evaluate(target, part) for part in parts]
    if not found:
        return np.zeros(0), np.zeros((0, target.dim))
    logdensity, score = (
        np.concatenate([np.asarray(part) for part in column])[:num] for column in zip(*found, strict=True)
    )
    return logdensity, score


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
