"""From the end of a descent to a true stationary point, by Newton steps; ends that are not modes are classified."""

import numpy as np

from whmc._shapes import Float
from whmc.modes.curvature import FLAT_SHARE, Expansion, expand, mended
from whmc.modes.library import DIAGONAL_FROM
from whmc.search.descent import descend
from whmc.search.peak import Peak
from whmc.target.rows import logdensities
from whmc.target.target import Target

MAX_NEWTON_STEPS = 20
MAX_HALVINGS = 8
STATIONARY_GAIN = 1e-8
"""A point is stationary when the next Newton step promises less than this much log density."""

SMALL_GAIN = 0.005
"""And in high dimension, where only the diagonal of the curvature is measured, less than this: a tenth of a standard
deviation."""


def polish(
    target: Target,
    position: Float[np.ndarray, " dim"],
    *,
    widest: float,
    width: Float[np.ndarray, " dim"] | None = None,
) -> tuple[Peak | str, int]:
    """The peak that Newton steps reach from `position`, or in a word why there is none; and the gradients spent.

    width: a guess of the length over which the score changes in each coordinate.
    """
    width = np.full(target.dim, widest) if width is None else np.where(width > 0, width, widest)
    if target.dim >= DIAGONAL_FROM:
        return _polish_diagonal(target, position, width, widest)
    cost = 0
    for _ in range(MAX_NEWTON_STEPS):
        around = expand(target, position, width, widest=widest)
        cost, width = cost + around.num_gradients, around.width
        if not _finite(around):
            return "not finite", cost
        values, vectors = np.linalg.eigh(around.precision)
        # flat: within rounding of zero, or so little curved that the mode would be ten times the region searched
        curved = np.abs(values) > max(FLAT_SHARE * np.max(np.abs(values)), (10 * widest) ** -2)
        slope = vectors.T @ around.score
        # |curvature|: uphill also where the density is not concave
        move = np.where(curved, slope / np.where(curved, np.abs(values), 1.0), 0.0)
        gain = 0.5 * float(slope @ move)
        if gain < STATIONARY_GAIN:
            break
        moved, tried = _uphill(target, position, vectors @ move, around.logdensity)
        cost += tried
        if moved is None:
            return _why(target, position, vectors @ move, widest, cost)
        position = moved
    else:
        return _why(target, position, around.score, widest, cost)
    if np.any(curved & (values < 0)):
        return "saddle", cost
    uphill = vectors[:, ~curved] @ slope[~curved]
    if np.linalg.norm(uphill) * widest > 1:
        return _why(target, position, uphill, widest, cost)
    scale = mended(around.precision, widest=widest).scale
    return Peak(position, around.logdensity, scale, int(np.sum(~curved))), cost


def _polish_diagonal(
    target: Target, position: Float[np.ndarray, " dim"], width: Float[np.ndarray, " dim"], widest: float
) -> tuple[Peak | str, int]:
    """In high dimension: Newton steps where the curvature is a band; else a longer descent, and the diagonal of the
    curvature by probes."""
    peak, position, cost = _polish_band(target, position, width, widest)
    if peak is not None:
        return peak, cost
    end = descend(target, position[None], region=width, tolerance=1e-9)
    if not end.usable[0]:
        return "not finite", cost + end.num_gradients
    assert end.width is not None
    around = expand(target, end.position[0], end.width[0], widest=widest, diagonal=True)
    cost += end.num_gradients + around.num_gradients
    if not _finite(around):
        return "not finite", cost
    chart = around.curvature(widest)
    peak = Peak(end.position[0], around.logdensity, chart.scale, coupling=chart.coupling)
    if _newton_gain(peak, around) > SMALL_GAIN:
        return _why(target, end.position[0], around.score, widest, cost)
    return peak, cost


def _polish_band(
    target: Target, position: Float[np.ndarray, " dim"], width: Float[np.ndarray, " dim"], widest: float
) -> tuple[Peak | None, Float[np.ndarray, " dim"], int]:
    """The peak that Newton steps reach while the curvature is a band, if any, and how far they came.

    Each costs as many gradients in any dimension.
    """
    cost, gain = 0, np.inf
    peak: Peak | None = None
    for _ in range(MAX_NEWTON_STEPS):
        around = expand(target, position, width, widest=widest, diagonal=True)
        cost, width = cost + around.num_gradients, around.width
        chart = around.curvature(widest) if _finite(around) else None
        if chart is None or chart.coupling is None:
            break
        peak = Peak(position, around.logdensity, chart.scale, coupling=chart.coupling)
        gain = _newton_gain(peak, around)
        if gain < STATIONARY_GAIN:
            break
        move = peak.unwhiten(peak.pulled(around.score[None]))[0] - position
        moved, tried = _uphill(target, position, move, around.logdensity)
        cost += tried
        if moved is None:
            break
        position = moved
    return (peak if gain < SMALL_GAIN else None), position, cost


def _newton_gain(peak: Peak, around: Expansion) -> float:
    """What a Newton step promises, ½ score^T Sigma score."""
    return 0.5 * float(np.sum(peak.pulled(around.score[None]) ** 2))


def _finite(around: Expansion) -> bool:
    parts = (around.logdensity, around.score, around.precision)
    return all(bool(np.all(np.isfinite(part))) for part in parts)


def _why(target: Target, position: np.ndarray, uphill: np.ndarray, widest: float, cost: int) -> tuple[Peak | str, int]:
    """Why a point from where it goes uphill is not a peak, and what it has cost with the gradients to find that out.

    A little further there is no density; or it still rises far outside of the region; or it is not at rest.
    """
    way = uphill / np.linalg.norm(uphill)
    size = widest + float(np.linalg.norm(position))
    lengths = np.array([0.0, 1e-3 * widest, 1e3 * size, 1e6 * size])
    here, near, far, farther = logdensities(target, position + lengths[:, None] * way)
    cost += len(lengths)
    if not np.isfinite(near):
        return "edge", cost
    return "runs away" if here < far < farther else "not stationary", cost


def _uphill(target: Target, position: np.ndarray, move: np.ndarray, logdensity: float) -> tuple[np.ndarray | None, int]:
    """The longest of some halvings of the move that does not go down, and how many were tried."""
    for halving in range(MAX_HALVINGS):
        trial = position + move / 2**halving
        # a step at the limit of rounding may seem to go down by that much
        if logdensities(target, trial[None])[0] >= logdensity - 1e-12 * (1 + abs(logdensity)):
            return trial, halving + 1
    return None, MAX_HALVINGS
