"""How many charts a library has and of what kind: duplicates merged, bent modes split, heavy tails met. All NumPy."""

import dataclasses

import numpy as np
from jaxtyping import Float, Int

from whmc.modes.gaussian_mixture import GaussianMixture, fit_gaussian_mixture
from whmc.modes.library import ModeLibrary
from whmc.modes.mixture import log_components_of

SAME_MODE_DISTANCE = 0.05
"""Two charts that are nearer than this, in Bhattacharyya's distance, describe the same mode."""

MIN_SPLIT_GAIN = 0.4
"""Least gain in mean log density of held-out draws, in nats a draw, for which a chart is split. Jump acceptance
improves by about this much; for smaller gains the extra rejections of local moves at chart boundaries outweigh it."""

MIN_GAIN_OF_FOUR = 0.2
"""Least further gain, in nats a draw, for which a chart is split into four instead of two."""

MAX_ROOM_TO_SPLIT = 36
"""Most unused places that a library keeps for splits: every place costs time at every step."""

MAX_DIM_TO_SPLIT = 50
"""Charts are split up to this dimension. Above it a warm-up hardly ever has the draws to learn a second covariance."""

STUDENT_DOFS = (30.0, 10.0, 5.0, 3.0)
"""Degrees of freedom that are tried for the base of the charts, besides the Gaussian."""

MIN_STUDENT_GAIN = 0.05
"""Least gain in mean log density, in nats a draw, for which a Student-t base replaces the Gaussian. The Gaussian is
simpler, and a throat, which is Gaussian in its middle, fits it better."""

MAX_STEP_SIZE = np.pi / 2
"""Longest step of a local move, in units of the chart's scale: a quarter turn of a Gaussian mode."""

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


def with_best_dof(library: ModeLibrary, position: Float[np.ndarray, "n dim"]) -> ModeLibrary:
    """The library with the base, Gaussian or Student-t, that gives the draws most density under q.

    `library` must have the Gaussian base (`with_gaussian_base` gives it): its scales are then standard deviations, and
    its step sizes are in these units. In the library that is returned scales and step sizes are those of its base.
    """
    if not np.isinf(library.dof):
        raise ValueError(f"the library has a base of {float(library.dof)} degrees of freedom: take with_gaussian_base")
    position = position[:: max(1, len(position) // MAX_DRAWS_TO_COMPARE)]
    best, height = library, _mean_log_density(library, position) + MIN_STUDENT_GAIN
    for dof in STUDENT_DOFS:
        tried = with_student_base(library, dof)
        seen = _mean_log_density(tried, position)
        if seen > height:
            best, height = tried, seen
    return best


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
    location, scale, log_weight, step_size = library.charts()
    step_size = np.minimum(step_size / factor, MAX_STEP_SIZE)
    return library.with_charts(location, scale * factor, log_weight=log_weight, step_size=step_size, dof=dof)


def _mean_log_density(library: ModeLibrary, position: Float[np.ndarray, "n dim"]) -> float:
    return float(np.mean(np.logaddexp.reduce(log_components_of(library, position), axis=0)))


def room_to_split(library: ModeLibrary) -> int:
    """Unused places to keep for the charts that splitting may add: filling them needs no new compilation."""
    if library.dim > MAX_DIM_TO_SPLIT or library.diagonal:
        return 0
    return min(4 + library.size, MAX_ROOM_TO_SPLIT)


def split_charts(
    library: ModeLibrary, position: Float[np.ndarray, "n dim"], label: Int[np.ndarray, " n"]
) -> ModeLibrary:
    """The library with the charts of bent modes replaced by two or four, which stay one mode.

    Where there is not enough room for all, the charts with the largest total gain in log density are split.
    """
    room = library.capacity - library.size
    if library.diagonal or room == 0:
        return library
    found = {k: fit for k in range(library.size) if (fit := find_split(position[label == k])) is not None}
    splits: dict[int, GaussianMixture] = {}
    for k in sorted(found, key=lambda k: -found[k].gain):
        more = len(found[k].mixture.weight) - 1
        if more <= room:
            splits[k], room = found[k].mixture, room - more
    if not splits:
        return library
    gaussian = with_gaussian_base(library)  # the fitted mixtures are Gaussian
    charts = [row for k in range(library.size) for row in _pieces(gaussian, k, splits.get(k))]
    location, scale, log_weight, step_size, mode = (np.array(column) for column in zip(*charts, strict=True))
    split = gaussian.with_charts(location, scale, log_weight=log_weight, step_size=step_size, mode=mode)
    return with_student_base(split, float(library.dof))


Piece = tuple[np.ndarray, np.ndarray, float, float, int]


def _pieces(library: ModeLibrary, k: int, mixture: GaussianMixture | None) -> list[Piece]:
    """Chart k, or the charts that it is split into."""
    location, scale, log_weight, step_size = (rows[k] for rows in library.charts())
    mode = int(library.mode_of[k])
    if mixture is None:
        return [(location, scale, float(log_weight), float(step_size), mode)]
    pieces = []
    for weight, mean, factor in zip(mixture.weight, mixture.mean, mixture.factor, strict=True):
        # a step is measured in the chart's own scale: in the stiffest direction it stays as long as it was
        ratio = np.linalg.norm(np.linalg.solve(factor, scale), 2)
        size = float(min(step_size * ratio, MAX_STEP_SIZE))
        pieces.append((mean, factor, float(log_weight + np.log(weight)), size, mode))
    return pieces


@dataclasses.dataclass(frozen=True)
class Split:
    """Several Gaussians for the draws of one chart. `gain`: in log density over one Gaussian, summed over draws."""

    mixture: GaussianMixture
    gain: float


def find_split(draws: Float[np.ndarray, "n dim"]) -> Split | None:
    """Two or four Gaussians, if they give held-out draws enough more density than one. Two do not see rings, four do.

    None also where the draws are too few: fewer than 20 (D + 1) in all, or 5 (D + 1) for a component.
    """
    whole, dim = draws.shape
    fewest = 20 * (dim + 1)
    if whole < fewest:
        return None
    draws = draws[:: max(1, whole // (20 * fewest))]  # more would take long and tell nothing new
    fit, held = draws[::2], draws[1::2]
    one = fit_gaussian_mixture(fit, 1).log_density(held).mean()
    best, least = None, MIN_SPLIT_GAIN
    for size in (2, 4):
        found = fit_gaussian_mixture(fit, size)
        gain = float(found.log_density(held).mean() - one)
        if gain > least and len(draws) * found.weight.min() > 5 * (dim + 1):
            best, least = (size, gain), gain + MIN_GAIN_OF_FOUR
    return None if best is None else Split(fit_gaussian_mixture(draws, best[0]), whole * best[1])
