"""Charts that describe the same mode merged, heavy tails met. All NumPy."""

import dataclasses

import numpy as np

from whmc._shapes import Float, Int
from whmc.modes.chart_data import ChartData, scale_rows
from whmc.modes.layers.banded import Banded
from whmc.modes.layers.bend import Bend
from whmc.modes.layers.layer import Layer
from whmc.modes.layers.tails import Tail
from whmc.modes.library import ModeLibrary
from whmc.modes.mixture import chart_squares, log_components_of

SAME_MODE_DISTANCE = 0.05
"""Two charts that are nearer than this, in Bhattacharyya's distance, describe the same mode."""

SAME_COUPLING = 0.05
"""And charts with bands only if their couplings differ by no more than this."""

STUDENT_DOFS = (30.0, 10.0, 5.0, 3.0)
"""Degrees of freedom that are tried for the base of the charts, besides the Gaussian."""

MIN_STUDENT_GAIN = 0.01
"""Least gain in mean log density, in nats a draw, for which a Student-t base replaces the Gaussian: more than chance
gives. The Gaussian is simpler, and a throat, which is Gaussian in its middle, fits it better; but chains stay for long
in tails that q does not reach."""

MAX_TAIL_LOSS = 0.03
"""Most mean log density, in nats a draw, that is given for heavier tails where a mode has several charts. Chains stay
for long where q does not reach: on the rotated twisted pair with four charts a mode, one draw in a thousand is left
after 900 proposals with 30 degrees of freedom, and after 9600 with a Gaussian base."""

MAX_STEP_SIZE = np.pi / 2
"""Longest step of a local move, in units of the chart's scale: a quarter turn of a Gaussian mode."""

UNTRIED_STEP = MAX_STEP_SIZE / 2
"""What a step size that was not tuned in its chart may be at most."""

MAX_DRAWS_TO_COMPARE = 2000
"""Draws that are enough to compare two bases."""


def merge_duplicates(library: ModeLibrary) -> ModeLibrary:
    """The library with charts that describe the same mode merged."""
    first = 0
    while first < library.size:
        second = first + 1
        while second < library.size:
            if _bhattacharyya(library, first, second) < SAME_MODE_DISTANCE:
                library = library.merge(first, second)
            else:
                second += 1
        first += 1
    return library


def _bhattacharyya(library: ModeLibrary, first: int, second: int) -> float:
    """(μ₁-μ₂)ᵀ Σ⁻¹ (μ₁-μ₂)/8 + log(|Σ|/√(|Σ₁||Σ₂|))/2 with Σ = (Σ₁+Σ₂)/2, of the Gaussians with the charts' scales."""
    one, other = (library.charts()[k] for k in (first, second))
    if one.warps or other.warps:
        return np.inf  # the Gaussians of two bananas may be the same where the bananas are not
    if isinstance(one.scale, Banded) and isinstance(other.scale, Banded):
        if np.max(np.abs(one.scale.coupling - other.scale.coupling)) > SAME_COUPLING:
            return np.inf
        return _banded_distance(library, np.array([first, second]))
    gap = np.subtract(*np.asarray(library.location)[[first, second]])
    a, b = np.asarray(library.covariance)[[first, second]]
    mean = 0.5 * (a + b)
    log_dets = np.asarray(library.log_det)[[first, second]]
    if library.diagonal:
        square, log_det = np.sum(gap**2 / mean), 0.5 * np.sum(np.log(mean))
    else:
        factor = np.linalg.cholesky(mean)
        square, log_det = np.sum(np.linalg.solve(factor, gap) ** 2), np.sum(np.log(np.diagonal(factor)))
    return float(0.125 * square + log_det - 0.5 * log_dets.sum())


def _banded_distance(library: ModeLibrary, pair: Int[np.ndarray, " 2"]) -> float:
    """The same of charts with bands that are alike, by each location in the other's chart."""
    squares = chart_squares(library, np.asarray(library.location)[pair], pair)
    variance = np.asarray(library.covariance)[pair]
    log_det = 0.5 * np.sum(np.log(variance.mean(axis=0))) - 0.25 * np.sum(np.log(variance))
    return float(0.125 * np.mean([squares[0, 1], squares[1, 0]]) + log_det)


def with_best_dof(library: ModeLibrary, position: Float[np.ndarray, "n dim"]) -> ModeLibrary:
    """The library with the base, Gaussian or Student-t, that gives the draws most density under q; where modes have
    several charts, with the heaviest tails that cost next to nothing.

    `library` must have the Gaussian base (`with_gaussian_base` gives it): its scales are then standard deviations, and
    its step sizes are in these units. In the library that is returned scales and step sizes are those of its base.
    """
    if not np.isinf(library.dof):
        raise ValueError(f"the library has a base of {float(library.dof)} degrees of freedom: take with_gaussian_base")
    position = position[:: max(1, len(position) // MAX_DRAWS_TO_COMPARE)]
    split = library.num_modes < library.size
    tried = [library, *(with_student_base(library, dof) for dof in STUDENT_DOFS)]
    height = np.array([_mean_log_density(one, position) for one in tried])
    if split:  # the heaviest tails that cost next to nothing
        return tried[int(np.flatnonzero(height >= height.max() - MAX_TAIL_LOSS)[-1])]
    return tried[int(np.argmax(height - MIN_STUDENT_GAIN * (np.arange(len(tried)) > 0)))]


def with_student_base(library: ModeLibrary, dof: float) -> ModeLibrary:
    """The library with a Student-t base, where it had the Gaussian: the covariances and the steps stay what they are.

    A Student-t of the same covariance has scales that are smaller by f = √((ν-2)/ν). Step sizes are in units of the
    scale, so they are divided by f.
    """
    return _rescaled(library, _scale_of_unit_variance(dof), dof)


def with_gaussian_base(library: ModeLibrary) -> ModeLibrary:
    """The library with a Gaussian base of the same covariances and steps: undoes `with_student_base`."""
    return _rescaled(library, 1 / _scale_of_unit_variance(float(library.dof)), np.inf)


def _scale_of_unit_variance(dof: float) -> float:
    """√((ν-2)/ν), the scale at which a Student-t has variance one. Up to ν = 2 it has no variance: then 1."""
    return float(np.sqrt(1 - 2 / dof)) if dof > 2 else 1.0


def _rescaled(library: ModeLibrary, factor: float, dof: float) -> ModeLibrary:
    return library.with_charts([_resized(one, factor) for one in library.charts()], dof=dof)


def _resized(chart: ChartData, factor: float) -> ChartData:
    """The chart in units of a base that is wider by 1/factor: its scale times the factor, the same bends and tails."""
    warps: list[Layer] = []
    for warp in chart.warps:
        if isinstance(warp, Bend):
            warps.append(Bend(warp.axis, np.asarray(factor * warp.curve), np.asarray(factor * warp.stretch)))
        if isinstance(warp, Tail):
            warps.append(Tail.of(np.asarray(factor**2 * warp.heaviness), chart.dim))
    step_size = min(chart.step_size / factor, MAX_STEP_SIZE)
    return dataclasses.replace(chart, scale=chart.scale.resized(factor), warps=tuple(warps), step_size=step_size)


def in_place_of(new: ChartData, old: ChartData) -> ChartData:
    """The new chart with the weight and the mode of the old.

    Its steps are as long as before; where it is the first that is not straight, they are as long in the direction in
    which it has become narrower most.
    """
    step_size = old.step_size
    if not old.warps:
        ratio = np.linalg.norm(np.linalg.solve(scale_rows(new.scale), scale_rows(old.scale)), 2)
        step_size = max(step_size, min(step_size * float(ratio), UNTRIED_STEP))
    return dataclasses.replace(new, log_weight=old.log_weight, step_size=step_size, mode=old.mode)


def _mean_log_density(library: ModeLibrary, position: Float[np.ndarray, "n dim"]) -> float:
    return float(np.mean(np.logaddexp.reduce(log_components_of(library, position), axis=0)))
