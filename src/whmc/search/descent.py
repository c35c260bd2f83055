"""Descents of the energy, or of the residual energy, from many starts at once."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from whmc._shapes import Bool, Float, Int
from whmc.minimise import MAX_EVALUATIONS, TOLERANCE, Energy, Stop, minimise
from whmc.modes.layers.scales import Dense
from whmc.modes.library import ModeLibrary
from whmc.search.peak import SAME_MODE_SD, Peak
from whmc.search.residual import TEMPERATURE, residual_energy
from whmc.target.rows import evaluate_slopes
from whmc.target.target import Target

BATCH = 256
"""Starts descended together: enough to see most modes in one batch, small enough to stop soon when all are seen."""

FARTHEST_WIDTHS = 1e9
"""How far a descent or a particle may go from where it started, in widths of the region of the starts. Beyond, numbers
overflow: only a density that grows without bound leads there."""

STACKED_UP_TO = 32
"""Dimensions up to which the charts of all peaks are looked at in one operation."""

ROUNDING = 1e-9
"""Of a squared distance that is the difference of large numbers."""

NEAR_SD = 2.0
"""A descent that has come so near to a known peak, or as near as the peak's own draws lie, and whose next Newton step
leads to it, has arrived."""


@dataclasses.dataclass(frozen=True)
class KnownModes:
    """What a search may take as known: charts, the evidence that puts them on the target's scale, and peaks.

    A plain descent that is about to fall into one of the peaks ends there.
    """

    library: ModeLibrary
    log_evidence: float
    peaks: tuple[Peak, ...] = ()


@dataclasses.dataclass(frozen=True)
class DescentResult:
    """Where the descents ended. `usable` leaves out those that failed and those that never left known ground.

    width: the length of each coordinate's curvature at the ends, as far as the descents have learnt; None: not known.
    population: points that follow the mass of the target rather than its peaks, from finders that have them; the
        first ends are theirs.
    covered: starts where the known modes lie above the density, so that nothing was descended; from finders that look.
    num_upfront: gradients spent before any end was reached.
    independent: whether these are plain descents from independent draws of the start region. Only what such starts hit
        tells how much they missed.
    arrived: the number of the known peak that each has arrived at, -1 for none; from descents that were given peaks.
    from_peaks: whether they set off around known peaks. They are not counted as starts.
    """

    position: Float[np.ndarray, "n dim"]
    usable: Bool[np.ndarray, " n"]
    num_gradients: int
    population: Float[np.ndarray, "m dim"] | None = None
    covered: Bool[np.ndarray, " n"] | None = None
    num_upfront: int = 0
    independent: bool = False
    from_peaks: bool = False
    width: Float[np.ndarray, "n dim"] | None = None
    arrived: Int[np.ndarray, " n"] | None = None


def descend(
    target: Target,
    starts: Float[np.ndarray, "n dim"],
    peaks: Sequence[Peak] = (),
    *,
    region: Float[np.ndarray, " dim"] | None = None,
    tolerance: float = TOLERANCE,
    most: int = MAX_EVALUATIONS,
) -> DescentResult:
    """Plain descents of the energy -log pi. Those that arrive at one of the `peaks` end there.

    region: its width in each coordinate, that of the starts unless told. tolerance, most: see `minimise`.
    """
    starts = np.asarray(starts, float)
    farthest, width = farthest_from(starts), widths(starts) if region is None else region
    besides = 0

    def energy(position: Float[np.ndarray, "m dim"], _: Int[np.ndarray, " m"]) -> tuple[np.ndarray, np.ndarray]:
        nonlocal besides
        found, cost = evaluate_slopes(target, position)
        besides += cost
        return _limited(-found.logdensity, position, farthest), -found.score

    goal = np.full(len(starts), -1)
    ends = _with_cost(_ends(energy, starts, width, _arrival(peaks, goal, width), tolerance, most), besides)
    arrived = goal >= 0
    if np.any(arrived):
        ends.position[arrived] = np.stack([peak.location for peak in peaks])[goal[arrived]]
    return dataclasses.replace(ends, arrived=goal)


def descend_residual(
    target: Target, starts: Float[np.ndarray, "n dim"], known: KnownModes, temperature: float = TEMPERATURE
) -> DescentResult:
    """Descents of the residual energy, in which the known modes are taken away."""
    starts = np.asarray(starts, float)
    farthest = farthest_from(starts)
    besides = 0

    def energy(position: Float[np.ndarray, "m dim"], _: Int[np.ndarray, " m"]) -> tuple[np.ndarray, np.ndarray]:
        nonlocal besides
        found, cost = evaluate_slopes(target, position)
        besides += cost
        value, slope = residual_energy(found, position, known.library, known.log_evidence, temperature)
        return _limited(value, position, farthest), slope

    return _with_cost(_ends(energy, starts, widths(starts), None, TOLERANCE), besides)


def _with_cost(ends: DescentResult, num_gradients: int) -> DescentResult:
    return dataclasses.replace(ends, num_gradients=ends.num_gradients + num_gradients)


def _ends(
    energy: Energy,
    starts: Float[np.ndarray, "n dim"],
    width: Float[np.ndarray, " dim"],
    stop: Stop | None,
    tolerance: float,
    most: int = MAX_EVALUATIONS,
) -> DescentResult:
    found = minimise(energy, starts, width, stop, tolerance, most)
    return DescentResult(found.position, found.able, found.num_evaluations, width=found.width)


def _limited(value: np.ndarray, position: np.ndarray, farthest: float) -> np.ndarray:
    return np.where(np.max(np.abs(position), axis=1) > farthest, np.inf, value)


def _arrival(peaks: Sequence[Peak], goal: Int[np.ndarray, " n"], width: Float[np.ndarray, " dim"]) -> Stop | None:
    """Ends a descent whose next Newton step leads to a known peak, and writes into `goal` which one.

    In the chart of the peak the step leads from z to z + L^T score.
    """
    numbers = np.array([k for k, peak in enumerate(peaks) if peak.at_peak], int)
    if not len(numbers):
        return None
    known = [peaks[k] for k in numbers.tolist()]
    dense = all(peak.scale.ndim == 2 for peak in known)
    in_charts = _stacked(known) if dense and len(width) <= STACKED_UP_TO else _one_by_one(known)
    locations = np.stack([peak.location for peak in known]) / width
    squares = np.sum(locations**2, axis=1)
    # how far from a peak a descent may be that has arrived: most are farther away for most of the time
    near_square = max(NEAR_SD**2, len(width))
    farthest = near_square * np.array([_longest(peak, width) ** 2 for peak in known])

    def arrived(
        position: Float[np.ndarray, "m dim"], slope: Float[np.ndarray, "m dim"], rows: Int[np.ndarray, " m"]
    ) -> Bool[np.ndarray, " m"]:
        there = np.zeros(len(rows), bool)
        scaled = position / width
        sizes = np.sum(scaled**2, axis=1)[:, None] + squares
        apart = sizes - 2 * scaled @ locations.T
        nearest = np.argmin(apart, axis=1)
        each = np.arange(len(rows)), nearest
        close = np.flatnonzero(apart[each] <= farthest[nearest] + ROUNDING * sizes[each])
        if len(close):
            z, step = in_charts(nearest[close], position[close], -slope[close])
            near = np.sum(z**2, axis=1) < near_square
            near &= np.sum((z + step) ** 2, axis=1) < SAME_MODE_SD**2
            there[close] = near
            goal[rows[close[near]]] = numbers[nearest[close[near]]]
        return there

    return arrived


InCharts = Callable[[np.ndarray, np.ndarray, np.ndarray], tuple[np.ndarray, np.ndarray]]
"""From the peak of each of some positions, the positions and their scores: both in the charts of these peaks."""


def _stacked(peaks: Sequence[Peak]) -> InCharts:
    """For charts of few dimensions: all positions at once, however many peaks there are."""
    locations = np.stack([peak.location for peak in peaks])
    stack: Any = Dense.stacked([peak.chart.scale for peak in peaks])
    scales, inverses = stack.matrix, stack.inverse_matrix

    def in_charts(which: np.ndarray, position: np.ndarray, score: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        z = np.matmul(inverses[which], (position - locations[which])[:, :, None])[:, :, 0]
        return z, np.matmul(score[:, None, :], scales[which])[:, 0]

    return in_charts


def _one_by_one(peaks: Sequence[Peak]) -> InCharts:
    """For charts of many: a matrix for each position would not fit into the memory."""

    def in_charts(which: np.ndarray, position: np.ndarray, score: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        z, pulled = np.empty_like(position), np.empty_like(position)
        for k in np.unique(which).tolist():
            mine = which == k
            z[mine], pulled[mine] = peaks[k].whiten(position[mine]), peaks[k].pulled(score[mine])
        return z, pulled

    return in_charts


def _longest(peak: Peak, width: Float[np.ndarray, " dim"]) -> float:
    """No less than the largest standard deviation of a peak's chart, in units of the region: sqrt(|A|_1 |A|_inf)."""
    if peak.coupling is not None:
        return np.inf
    scale = np.abs(peak.scale) / (width if peak.scale.ndim == 1 else width[:, None])
    return float(scale.max() if scale.ndim == 1 else np.sqrt(scale.sum(axis=0).max() * scale.sum(axis=1).max()))


def widths(starts: Float[np.ndarray, "n dim"]) -> Float[np.ndarray, " dim"]:
    """The region of the starts; where they are all alike, one."""
    width = np.ptp(starts, axis=0)
    return np.where(width > 0, width, np.max(width, initial=0.0) or 1.0)


def farthest_from(starts: Float[np.ndarray, "n dim"]) -> float:
    """The largest coordinate that is followed."""
    return float(np.max(np.abs(starts)) + FARTHEST_WIDTHS * max(float(np.max(np.ptp(starts, axis=0))), 1.0))
