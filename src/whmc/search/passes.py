"""Paths between peaks: how far the log density has to fall on the way from one to the other.

    fall = min(h_a, h_b) - max over paths of (the lowest log density on the path)

is bounded from above by any path. First the straight line; then a string of points, which each climbs across the path
while they keep their distances along it (E, Ren and Vanden-Eijnden 2007). With M the mean of the precisions at both
ends and t the tangent of the path, t·M t = 1, a point moves by a share of

    M⁻¹ g - t (t·g),        g the score:

a Newton step where the density is Gaussian with precision M, without its part along the path.
"""

import numpy as np

from whmc._shapes import Float, Int
from whmc.modes.layers.scales import Dense
from whmc.search.peak import Peak
from whmc.target.rows import evaluate_slopes, logdensities
from whmc.target.target import Target

COARSE = np.array([0.25, 0.5, 0.75])
FINE = np.arange(1, 12) / 12
"""Where a straight line is looked at: first a little, and where that leaves a doubt all along."""

POINTS = 13
ROUNDS = 30
"""Points of a string with its ends, and rounds at most."""

SHARE = 0.5
"""Of the step that a point of a string makes in a round."""

LOW_ENOUGH = 0.8
"""A string ends where its fall is below this share of the valley: it does not matter by how much."""

MOST_NUMBERS = 4_000_000
"""Of the matrices of strings that move together."""


def straight(
    target: Target,
    first: Float[np.ndarray, "n dim"],
    second: Float[np.ndarray, "n dim"],
    lower: Float[np.ndarray, " n"],
    at: Float[np.ndarray, " places"] = COARSE,
) -> Float[np.ndarray, " n"]:
    """The fall on the straight line between positions, below the height `lower`."""
    dim = first.shape[1]
    points = first[:, None] + at[:, None] * (second - first)[:, None]
    lowest = logdensities(target, points.reshape(-1, dim)).reshape(-1, len(at)).min(axis=1)
    return np.asarray(np.maximum(lower - lowest, 0.0))


def strings(
    target: Target,
    first: Float[np.ndarray, "n dim"],
    second: Float[np.ndarray, "n dim"],
    lower: Float[np.ndarray, " n"],
    precision: Float[np.ndarray, "n dim dim"] | Float[np.ndarray, "n dim"],
    valley: float,
) -> Float[np.ndarray, " n"]:
    """The least fall below the height `lower` that strings find between positions, infinite at worst.

    precision: the mean of those at both ends. They end where they fall by less than `valley`, or will not within their
    rounds as they go on.
    """
    num, dim = first.shape
    at_once = max(1, MOST_NUMBERS // precision[0].size)
    if num > at_once:
        parts = [slice(n, n + at_once) for n in range(0, num, at_once)]
        return np.concatenate([strings(target, first[p], second[p], lower[p], precision[p], valley) for p in parts])
    path = first[:, None] + np.linspace(0, 1, POINTS)[:, None] * (second - first)[:, None]
    best, before, rows = np.full(num, np.inf), np.full(num, np.inf), np.arange(num)
    inverse = 1 / precision if precision.ndim == 2 else np.linalg.inv(precision)
    for left in range(ROUNDS, 0, -1):
        inner = path[rows, 1:-1]
        found, _ = evaluate_slopes(target, inner.reshape(-1, dim))
        fall = lower[rows] - found.logdensity.reshape(len(rows), -1).min(axis=1)
        best[rows] = np.minimum(best[rows], fall)
        with np.errstate(invalid="ignore"):
            hopeless = fall - left * np.maximum(before[rows] - fall, 0.0) > valley
        ended = (fall < LOW_ENOUGH * valley) | (hopeless & np.isfinite(before[rows]))
        before[rows] = fall
        score = found.score.reshape(inner.shape)[~ended]
        rows = rows[~ended]
        if not len(rows):
            break
        path[rows] = _moved(path[rows], score, precision[rows], inverse[rows])
    low = np.flatnonzero(best < valley)
    if len(low):  # a gap may lie between two points
        middle = 0.5 * (path[low, 1:] + path[low, :-1])
        heights = logdensities(target, middle.reshape(-1, dim)).reshape(len(low), -1)
        best[low] = np.maximum(best[low], lower[low] - heights.min(axis=1))
    return np.maximum(best, 0.0)


def _moved(
    path: Float[np.ndarray, "n points dim"],
    score: Float[np.ndarray, "n inner dim"],
    precision: Float[np.ndarray, "n dim dim"] | Float[np.ndarray, "n dim"],
    inverse: Float[np.ndarray, "n dim dim"] | Float[np.ndarray, "n dim"],
) -> Float[np.ndarray, "n points dim"]:
    """The strings after a round."""

    def times(matrix: np.ndarray, rows: np.ndarray) -> np.ndarray:
        return rows * matrix[:, None] if matrix.ndim == 2 else rows @ matrix

    def length(rows: np.ndarray) -> np.ndarray:
        return np.sqrt(np.maximum(np.sum(rows * times(precision, rows), axis=-1), 1e-300))

    tangent = path[:, 2:] - path[:, :-2]
    spacing = 0.5 * length(tangent)
    tangent /= length(tangent)[..., None]
    step = SHARE * (times(inverse, score) - tangent * np.sum(tangent * score, axis=-1)[..., None])
    size = length(step)
    step *= np.minimum(1.0, spacing / size)[..., None]  # never past its neighbours
    path = np.concatenate([path[:, :1], path[:, 1:-1] + step, path[:, -1:]], axis=1)
    along = np.concatenate([np.zeros((len(path), 1)), np.cumsum(length(np.diff(path, axis=1)), axis=1)], axis=1)
    even = np.linspace(0, 1, POINTS)
    return np.stack([_at(line, place / place[-1], even) for line, place in zip(path, along, strict=True)])


def _at(
    line: Float[np.ndarray, "points dim"], place: Float[np.ndarray, " points"], wanted: Float[np.ndarray, " points"]
) -> Float[np.ndarray, "points dim"]:
    """Points of a line through some points, at other places along it."""
    after = np.clip(np.searchsorted(place, wanted), 1, len(place) - 1)
    share = (wanted - place[after - 1]) / np.maximum(place[after] - place[after - 1], 1e-300)
    return np.asarray(line[after - 1] + np.clip(share, 0, 1)[:, None] * (line[after] - line[after - 1]))


def mean_precision(first: Peak, second: Peak) -> Float[np.ndarray, "dim dim"] | Float[np.ndarray, " dim"]:
    """Of two peaks; diagonal where their scales are."""
    if first.scale.ndim == 1:
        return np.asarray(0.5 * (first.scale**-2 + second.scale**-2))
    inverses = [scale.inverse_matrix for scale in (first.chart.scale, second.chart.scale) if isinstance(scale, Dense)]
    return np.asarray(0.5 * sum(inverse.T @ inverse for inverse in inverses))


def nearest(distance: Float[np.ndarray, "n n"], num: int) -> Int[np.ndarray, "pairs 2"]:
    """Each with the nearest to it, every pair once, lower number first."""
    order = np.argsort(distance, axis=1, kind="stable")[:, : min(num, len(distance) - 1)]
    row = np.repeat(np.arange(len(distance)), order.shape[1])
    return np.unique(np.sort(np.column_stack([row, order.ravel()]), axis=1), axis=0)
