"""How narrow a mode may be to be missed: told by copies of a mode that was found, made narrower.

Hits cannot show a mode that no start has met. But where charts say which mode a start descends to, they also say which
starts would descend to a mode that is put somewhere: those at which it is the higher one.
"""

import numpy as np

from whmc._shapes import Array, Float
from whmc.keys import children, generator
from whmc.modes.mixture import log_components_of
from whmc.search.masses import chart_library
from whmc.search.mode_search import SearchState
from whmc.target.price import is_costly
from whmc.target.rows import logdensities
from whmc.target.target import Target

NUM_STARTS = 4096
NUM_COPIES = 100
COPY_SHARE = 0.1
"""Of the mass found, in a copy."""

FOUND_SHARE = 0.9
LEAST_OVERLAP = 0.8
"""Of the hits with the shares of the starts that charts claim, for charts to explain the basins: Gaussians .83 to 1,
posteriors with bent modes .16 to .89."""

FACTORS = np.geomspace(0.02, 1.0, 40)


def width_limit(
    state: SearchState, target: Target, log_mass: Float[np.ndarray, " peaks"], key: Array
) -> tuple[float, int]:
    """The multiple of the modes' widths below which one copy in ten or more is missed, and the evaluations spent.

    NaN where charts do not explain the basins, or where that is not cheap to find out.
    """
    hit = np.flatnonzero((state.independent_hits > 0) & np.isfinite(log_mass))
    if (
        not isinstance(target.starts, tuple)
        or target.fold is not None
        or is_costly(target.operations, target.dim)
        or len(hit) == 0
    ):
        return np.nan, 0
    key_starts, key_places, key_factors = children(key, 3)
    num = min(NUM_STARTS, state.num_independent)
    starts = target.draw_starts(key_starts, num)
    heights = logdensities(target, starts)
    peaks, log_mass = [state.peaks[k] for k in hit.tolist()], log_mass[hit]
    share = np.exp(log_mass - np.logaddexp.reduce(log_mass))  # may underflow, so charts are weighed by logs
    owner = np.argmax(log_components_of(chart_library(peaks, log_mass), starts), axis=0)
    claimed, hits = np.bincount(owner, minlength=len(hit)) / num, state.independent_hits[hit]
    if np.sum(np.minimum(claimed, hits / state.num_independent)) < LEAST_OVERLAP:
        return np.nan, num
    # |L| of each chart, by its mass: Laplace's formula without the height
    log_volume = np.array([peak.log_laplace - peak.logdensity for peak in peaks])
    k = middle(log_volume, share)
    mean = share @ np.stack([peak.location for peak in peaks])
    places = target.draw_starts(key_places, NUM_COPIES)
    places = places + generator(key_factors).random((NUM_COPIES, 1)) * (mean - places)
    at_starts, at_places = peaks[k].whiten(starts), peaks[k].whiten(places)
    square = np.sum(at_starts**2, axis=1) + np.sum(at_places**2, axis=1)[:, None] - 2 * at_places @ at_starts.T
    top = np.log(COPY_SHARE) + float(np.logaddexp.reduce(log_mass)) - log_volume[k]
    for factor in FACTORS.tolist():
        met = top - target.dim * np.log(factor) - 0.5 * square / factor**2 > heights
        if met.any(axis=1).mean() >= FOUND_SHARE:
            return factor, num
    return 1.0, num


def middle(log_volume: Float[np.ndarray, " modes"], share: Float[np.ndarray, " modes"]) -> int:
    """The mode of middle volume: half of the mass is in modes no larger. Its copies tell the limit of width."""
    order = np.argsort(log_volume)
    return int(order[np.searchsorted(np.cumsum(share[order]), 0.5)])
