"""Quasi-Newton descents of many energies at once, in NumPy: BFGS, with few memories where the dimension is large.

All descents advance together, each with its own step and line search; one round evaluates every descent that is still
under way once. The inverse Hessian starts as the diagonal of the squared widths of the region, so that the units of the
coordinates do not matter:

    d = -H g,    x' = x + t d,    s = x' - x,  y = g' - g,
    H' = (I - s y^T / s·y) H (I - y s^T / s·y) + s s^T / s·y        where s·y > 0

A step is taken if it lowers the energy by a share of what its slope promises (Armijo), up to rounding.
"""

import abc
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from whmc._shapes import Bool, Float, Int

MAX_EVALUATIONS = 500
"""Of one descent. Quasi-Newton needs some ten times the square root of the dimension; what has not come to rest by
then is finished by Newton steps or dropped."""

DENSE_UP_TO = 40
"""Up to this dimension a descent keeps its inverse Hessian; above, its last `MEMORIES` steps."""

MEMORIES = 20

FIRST_STEP = 0.1
"""Length of the first trial step, in widths of the region."""

SLOPE_SHARE = 0.1
"""Armijo's constant."""

ROUNDING = 1e-13
"""Relative rise of the energy that is taken for rounding: at the bottom of a valley a step promises less than that."""

TOLERANCE = 1e-6
"""Relative and absolute change of position and energy at which a descent ends; Newton steps do the rest."""

EXPANSION = 4.0
"""By this factor steps grow where the energy curves downwards, and there is no curvature to learn from."""

Energy = Callable[
    [Float[np.ndarray, "m dim"], Int[np.ndarray, " m"]], tuple[Float[np.ndarray, " m"], Float[np.ndarray, "m dim"]]
]
"""Energies and slopes at some positions; the second argument tells which descents they belong to."""

Stop = Callable[[Float[np.ndarray, "m dim"], Float[np.ndarray, "m dim"], Int[np.ndarray, " m"]], Bool[np.ndarray, " m"]]
"""Told the positions and slopes that some descents have reached, and which they are: which of them may end there."""


class Minima(NamedTuple):
    """Where the descents ended. able: whether the start had an energy and a slope at all.

    width: the length over which each coordinate changes the energy by about one half, as far as the descent has learnt.
    """

    position: Float[np.ndarray, "n dim"]
    energy: Float[np.ndarray, " n"]
    width: Float[np.ndarray, "n dim"]
    able: Bool[np.ndarray, " n"]
    num_evaluations: int


class InverseHessians(abc.ABC):
    """H of every descent."""

    @abc.abstractmethod
    def times(self, rows: Int[np.ndarray, " m"], slope: Float[np.ndarray, "m dim"]) -> Float[np.ndarray, "m dim"]:
        """H g of some descents."""

    @abc.abstractmethod
    def learn(self, rows: Int[np.ndarray, " m"], s: Float[np.ndarray, "m dim"], y: Float[np.ndarray, "m dim"]) -> None:
        """The steps s and changes of slope y of some descents, s·y > 0."""

    @abc.abstractmethod
    def stretch(self, rows: Int[np.ndarray, " m"], factor: Float[np.ndarray, " m"] | float) -> None:
        """H times a factor."""

    @abc.abstractmethod
    def diagonal(self) -> Float[np.ndarray, "n dim"]:
        """The diagonal of H."""


class Dense(InverseHessians):
    """BFGS."""

    def __init__(self, variance: Float[np.ndarray, "n dim"]) -> None:
        self.inverse = variance[:, :, None] * np.eye(variance.shape[1])
        self.fresh = np.ones(len(variance), bool)

    def times(self, rows: Int[np.ndarray, " m"], slope: Float[np.ndarray, "m dim"]) -> Float[np.ndarray, "m dim"]:
        return _product(self.inverse[rows], slope)

    def learn(self, rows: Int[np.ndarray, " m"], s: Float[np.ndarray, "m dim"], y: Float[np.ndarray, "m dim"]) -> None:
        inverse = self.inverse[rows]
        along = np.sum(s * y, axis=1)
        mapped = _product(inverse, y)
        first = self.fresh[rows]
        # the first step tells the scale of all directions
        scale = np.where(first, along / np.sum(y * mapped, axis=1), 1.0)
        inverse, mapped = inverse * scale[:, None, None], mapped * scale[:, None]
        s = s / along[:, None]
        outer = s[:, :, None] * mapped[:, None, :]
        inverse -= outer + np.swapaxes(outer, 1, 2)
        inverse += ((along + np.sum(y * mapped, axis=1))[:, None] * s)[:, :, None] * s[:, None, :]
        self.inverse[rows] = inverse
        self.fresh[rows] = False

    def stretch(self, rows: Int[np.ndarray, " m"], factor: Float[np.ndarray, " m"] | float) -> None:
        self.inverse[rows] *= np.broadcast_to(factor, rows.shape)[:, None, None]

    def diagonal(self) -> Float[np.ndarray, "n dim"]:
        return np.diagonal(self.inverse, axis1=1, axis2=2)


class Limited(InverseHessians):
    """L-BFGS: the last steps, newest last. Empty places have s·y = inf, which leaves the product alone."""

    def __init__(self, variance: Float[np.ndarray, "n dim"]) -> None:
        num, dim = variance.shape
        self.variance = variance.copy()
        self.s, self.y = np.zeros((MEMORIES, num, dim)), np.zeros((MEMORIES, num, dim))
        self.along = np.full((MEMORIES, num), np.inf)

    def times(self, rows: Int[np.ndarray, " m"], slope: Float[np.ndarray, "m dim"]) -> Float[np.ndarray, "m dim"]:
        s, y, along = self.s[:, rows], self.y[:, rows], self.along[:, rows]
        product, shares = slope.copy(), np.zeros(along.shape)
        for n in reversed(range(MEMORIES)):
            shares[n] = np.sum(s[n] * product, axis=1) / along[n]
            product -= shares[n][:, None] * y[n]
        product *= self.variance[rows]
        for n in range(MEMORIES):
            product += (shares[n] - np.sum(y[n] * product, axis=1) / along[n])[:, None] * s[n]
        return product

    def learn(self, rows: Int[np.ndarray, " m"], s: Float[np.ndarray, "m dim"], y: Float[np.ndarray, "m dim"]) -> None:
        along = np.sum(s * y, axis=1)
        for memory, new in ((self.s, s), (self.y, y), (self.along, along)):
            memory[:-1, rows] = memory[1:, rows]
            memory[-1, rows] = new
        scale = along / np.sum(y * self.variance[rows] * y, axis=1)
        self.variance[rows] *= scale[:, None]

    def stretch(self, rows: Int[np.ndarray, " m"], factor: Float[np.ndarray, " m"] | float) -> None:
        self.variance[rows] *= np.broadcast_to(factor, rows.shape)[:, None]
        self.along[:, rows] = np.inf

    def diagonal(self) -> Float[np.ndarray, "n dim"]:
        return self.variance


def minimise(
    energy: Energy,
    starts: Float[np.ndarray, "n dim"],
    width: Float[np.ndarray, " dim"],
    stop: Stop | None = None,
    tolerance: float = TOLERANCE,
    most: int = MAX_EVALUATIONS,
) -> Minima:
    """Descents from all starts.

    width: of the region of interest in each coordinate. most: evaluations of each.
    """
    num, dim = starts.shape
    x = np.array(starts, float)
    f, g = energy(x, np.arange(num))
    able = np.isfinite(f) & np.all(np.isfinite(g), axis=1)
    hessians = (Dense if dim <= DENSE_UP_TO else Limited)(np.tile(width**2, (num, 1)))
    lengths = _norms(np.where(able[:, None], g, 0.0) * width)
    rows = np.flatnonzero(lengths > 0)
    hessians.stretch(rows, FIRST_STEP / lengths[rows])
    direction, step = np.zeros_like(x), np.ones(num)
    direction[rows] = -hessians.times(rows, g[rows])
    spent = np.ones(num, int)
    if stop is not None and len(rows):
        rows = rows[~stop(x[rows], g[rows], rows)]
    while len(rows):
        trial = x[rows] + step[rows, None] * direction[rows]
        new_f, new_g = energy(trial, rows)
        spent[rows] += 1
        slope = np.sum(g[rows] * direction[rows], axis=1)
        usable = np.isfinite(new_f) & np.all(np.isfinite(new_g), axis=1)
        slack = ROUNDING * (1 + np.abs(f[rows]))
        with np.errstate(invalid="ignore"):
            taken = usable & (new_f <= f[rows] + SLOPE_SHARE * step[rows] * slope + slack)
        ended = _shorten(step, rows, ~taken, usable, new_f - f[rows], slope, x, direction)
        good = rows[taken]
        if len(good):
            s, y = trial[taken] - x[good], new_g[taken] - g[good]
            gain = f[good] - new_f[taken]
            x[good], f[good], g[good] = trial[taken], new_f[taken], new_g[taken]
            near = np.max(np.abs(s), axis=1) <= tolerance * (1 + np.max(np.abs(x[good]), axis=1))
            done = near & (np.abs(gain) <= tolerance * (1 + np.abs(f[good])))
            if stop is not None:
                done |= stop(x[good], g[good], good)
            # a slope whose square is nil in float64 promises nothing
            ended[taken] = done | ~(_norms(g[good] * width) > 0)
            _learn(hessians, good, s, y)
            direction[good] = -hessians.times(good, g[good])
            up = ~(np.sum(direction[good] * g[good], axis=1) < 0) & ~ended[taken]  # rounding or overflow: afresh
            if np.any(up):
                direction[good[up]] = -(width**2) * g[good[up]] * (FIRST_STEP / _norms(g[good[up]] * width))[:, None]
            step[good] = 1.0
        ended |= spent[rows] >= most
        rows = rows[~ended]
    return Minima(x, f, np.sqrt(np.maximum(hessians.diagonal(), 0.0)), able, int(spent.sum()))


def _learn(hessians: InverseHessians, rows: Int[np.ndarray, " m"], s: np.ndarray, y: np.ndarray) -> None:
    along = np.sum(s * y, axis=1)
    with np.errstate(over="ignore", invalid="ignore"):
        curved = along > 1e-12 * np.linalg.norm(s, axis=1) * np.linalg.norm(y, axis=1)
        curved &= np.isfinite(along)
    if np.any(curved):
        hessians.learn(rows[curved], s[curved], y[curved])
    if not np.all(curved):
        hessians.stretch(rows[~curved], EXPANSION)


def _shorten(
    step: Float[np.ndarray, " n"],
    rows: Int[np.ndarray, " m"],
    refused: Bool[np.ndarray, " m"],
    usable: Bool[np.ndarray, " m"],
    rise: Float[np.ndarray, " m"],
    slope: Float[np.ndarray, " m"],
    x: Float[np.ndarray, "n dim"],
    direction: Float[np.ndarray, "n dim"],
) -> Bool[np.ndarray, " m"]:
    """Shorter steps where they were refused, to where a parabola has its bottom; which descents can go no further."""
    t = step[rows]
    with np.errstate(all="ignore"):
        bottom = -slope * t**2 / (2 * (rise - slope * t))
        shorter = np.where(usable, np.clip(np.where(np.isfinite(bottom), bottom, 0.0), 0.1 * t, 0.5 * t), 0.1 * t)
    step[rows] = np.where(refused, shorter, t)
    lost = rows[refused]
    ended = np.zeros(len(rows), bool)
    reach = step[lost] * np.max(np.abs(direction[lost]), axis=1)
    ended[refused] = ~(reach > 1e-14 * (1 + np.max(np.abs(x[lost]), axis=1)))
    return ended


def _product(matrices: Float[np.ndarray, "m dim dim"], vectors: Float[np.ndarray, "m dim"]) -> np.ndarray:
    return np.matmul(matrices, vectors[:, :, None])[:, :, 0]


def _norms(vectors: Float[np.ndarray, "m dim"]) -> Float[np.ndarray, " m"]:
    with np.errstate(over="ignore"):  # infinite is right for a slope that is too steep for its square
        return np.linalg.norm(vectors, axis=1)
