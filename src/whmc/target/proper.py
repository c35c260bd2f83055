"""Whether a density has a finite integral, along both ends of each coordinate of R^D.

By Fubini's theorem, where the integral of π exists its integrals along lines exist too, along almost all of them: it is
enough to follow lines through points that nobody has chosen. At an end of such a line, r being the distance,

    h(r) = log π + log r

has to fall without limit, as it does for Cauchy's tails (π ~ r^-2) and does not for π ~ 1/r. Most improper densities
are constant at the end: a prior 1/τ in log τ, a phase without bounds, a parameter that nothing says anything about.

Near a bound float64 ends after some thirty or two hundred units of u, where a slow exponential law, π ~ e^(-εr), may
not have fallen below 1/r: Beta(ε, ε) at its bounds. So there log π = a - p log r - ε r is solved for ε.

What diverges only along lines that run obliquely, such as x + y where the data know x - y, is not seen.

Nothing is followed whose operations cannot be counted: a loop whose length depends on the data, such as a solver of
differential equations, may never end at 1e12, and functions outside of JAX may be slow or raise exceptions there.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from whmc._shapes import Float

if TYPE_CHECKING:
    from whmc.target.target import Target

FAR_IN_LOGS = 200.0
"""The farthest u where a bound makes e^u of it: float64 still holds the cubes of e^200 and of e^-200."""

FAR = np.pi * 10.0 ** np.array([4, 8, 12])
"""Distances without a bound, in units of one and the size of the position. No powers of ten: a density with a period
would look constant. So far apart that it does: in log r waves of a few nats count for little.

Before them comes `FAR_IN_LOGS`, which is asked only of an end that is deep down. There a model's own transform, such as
e^u, has not come to the end of float64, where its density becomes constant."""

NEAR_BOUND = 2.0 ** np.array([-1.0, -0.5, 0.0])
"""Distances where there is a bound, as shares of the largest."""

SURE = 65536
"""Numbers of float64 left between a value and its bound, so that rounding changes no difference of logs by more than
1e-5."""

SLOWEST = 0.01
"""What falls more slowly than r^-1.01 counts as not falling below 1/r: nine tenths of its mass are beyond r = 1e100."""

LEAST_EXPONENT = 0.01
"""Of ε r that is told from rounding."""

DEEP = 30.0
"""Nats: an end that lies lower than a point on its line by so much is reached by one draw of 1e13."""

NOTHING = -float(np.log(np.finfo(float).tiny))
"""And what lies lower by so much is zero in float64."""

MOST_COORDINATES = 64
"""That are followed, six to eight evaluations each."""


class End(NamedTuple):
    """An end of a coordinate. limit: what the value tends to there. distances: of u from zero where there is a bound,
    else from a point, in units of one and its size."""

    coordinate: int
    sign: float
    limit: float
    distances: Float[np.ndarray, " few"]
    bounded: bool


class Improper(NamedTuple):
    """An end along which there is no finite integral: in words, and whether the coordinate has no bound at all, and the
    end is not deep down, so that chains would go as far as float64 does."""

    told: str
    endless: bool


def can_be_followed(target: "Target") -> bool:
    """Whether evaluations at extreme positions end as soon as others do."""
    return target.operations is not None


def reaches(target: "Target", n: int, resolutions: int) -> tuple[float, float]:
    """The u of a coordinate beyond which fewer than so many numbers of float64 lie between its value and its low bound,
    and its high bound; infinite where there is none. XLA takes what is below 2e-308 for zero."""
    if target.bounds is None:
        return -np.inf, np.inf
    low, high = float(target.bounds.low[n]), float(target.bounds.high[n])
    below, above = np.isfinite(low), np.isfinite(high)
    width = np.log(high - low) if below and above else 0.0
    left, right = (
        width - np.log(resolutions * max(np.spacing(abs(edge)), np.finfo(float).tiny)) if near else np.inf
        for edge, near in ((low, below), (high, above))
    )
    # high - e^u comes to its bound where u falls
    return -float(left), float(right if below else -right) if above else np.inf


def ends_of(target: "Target", n: int) -> list[End]:
    """Both ends of a coordinate."""
    if target.bounds is None or not (np.isfinite(target.bounds.low[n]) or np.isfinite(target.bounds.high[n])):
        return [End(n, sign, sign * np.inf, FAR, False) for sign in (-1.0, 1.0)]
    low, high = float(target.bounds.low[n]), float(target.bounds.high[n])
    limits = (low, high) if np.isfinite(low) else (high, low)
    near = reaches(target, n, SURE)
    found = []
    for sign, limit in zip((-1.0, 1.0), limits, strict=True):
        most = min([FAR_IN_LOGS, *(abs(reach) for reach in near if reach * sign > 0)])
        found.append(End(n, sign, limit, most * NEAR_BOUND, True))
    return found


def improper_ends(
    target: "Target",
    values: Callable[[Float[np.ndarray, "n dim"]], Float[np.ndarray, " n"]],
    points: Float[np.ndarray, "n dim"],
    rng: np.random.Generator,
) -> tuple[list[Improper], int, int]:
    """Ends along which π has no finite integral, how many coordinates were looked at, and the evaluations.

    values: log densities at flat positions. points: draws of any law with a density. An end has to fail on the lines
    through the highest two of them, the second of which is looked at only there.
    """
    heights = values(points)
    highest = np.argsort(-np.where(np.isfinite(heights), heights, -np.inf), kind="stable")[:2]
    highest = highest[np.isfinite(heights[highest])]
    if len(highest) == 0:
        return [], 0, len(points)
    dim = target.dim
    axes = np.arange(dim) if dim <= MOST_COORDINATES else np.sort(rng.permutation(dim)[:MOST_COORDINATES])
    ends = [end for n in axes.tolist() for end in ends_of(target, n)]
    spent = len(points)
    for n in highest.tolist():
        if not ends:
            break
        distances = [_distances(points[n], end) for end in ends]
        lines = np.concatenate([_along(points[n], *one) for one in zip(ends, distances, strict=True)])
        rows = np.split(values(lines), np.cumsum([len(one) for one in distances])[:-1])
        spent += len(lines)
        diverging = [
            (end, bool(row[-1] > heights[n] - DEEP))
            for end, far, row in zip(ends, distances, rows, strict=True)
            # at the highest point alone: the other may be its mirror image, from where the same end lies deeper
            if (n != highest[0] or row[-1] > heights[n] - NOTHING)
            and _diverges(end.bounded, far, row, deep=bool(row[-1] < heights[n] - DEEP))
        ]
        ends, near = [end for end, _ in diverging], [near for _, near in diverging]
    return [_told(target, *one) for one in zip(ends, near, strict=True)], len(axes), spent


def _distances(point: Float[np.ndarray, " dim"], end: End) -> Float[np.ndarray, " few"]:
    if end.bounded:
        return end.distances
    return np.append(FAR_IN_LOGS, end.distances * (1 + np.max(np.abs(point))))


def _along(
    point: Float[np.ndarray, " dim"], end: End, distances: Float[np.ndarray, " few"]
) -> Float[np.ndarray, "few dim"]:
    rows = np.tile(point, (len(distances), 1))
    rows[:, end.coordinate] = end.sign * distances + (0.0 if end.bounded else point[end.coordinate])
    return rows


def _diverges(
    bounded: bool, distances: Float[np.ndarray, " few"], height: Float[np.ndarray, " few"], deep: bool
) -> bool:
    if not np.isfinite(height[-1]):
        return False
    logs = np.log(distances)
    h = np.where(np.isfinite(height), height, -np.inf) + logs
    before = h[:-1] if bounded or deep else h[1:-1]
    if h[-1] < np.max(before) - SLOWEST * (logs[-1] - logs[-2]):
        return False
    if not bounded or not np.all(np.isfinite(height)):
        return True
    # log(r2/r1) = log(r3/r2): the power drops out
    first, second = np.diff(height)
    gaps = np.diff(distances)
    return bool((first - second) / (gaps[1] - gaps[0]) * distances[2] < LEAST_EXPONENT)


def _told(target: "Target", end: End, near: bool) -> Improper:
    name = target.coordinates[end.coordinate]
    return Improper(f"{name} -> {end.limit:g}", near and not end.bounded)
