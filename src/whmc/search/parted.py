"""Modes whose mass lies apart, though an ascent from it reaches the peak of another.

Of a narrow Gaussian inside a broad one, .8 and .2, four times as wide in fifty dimensions, only the narrow one has a
peak. But their draws lie seven and twenty-eight of its standard deviations from it, and none between: no local move
comes from one to the other. The broad one is a mode without a peak.

Two charts a and b of the same peak lie apart if the draws of both show a deep valley (`estimate/dip.py`) along

    log( omega_a q_a / omega_b q_b ),

by which charts part draws best. Along a bent mode that two charts share there are draws at all of its values.
"""

import numpy as np

from whmc._shapes import Float, Int
from whmc.estimate.basins import NOWHERE
from whmc.estimate.dip import FAR, FEWEST_DRAWS, thinned, valley
from whmc.estimate.labels import squares_between
from whmc.modes.library import ModeLibrary
from whmc.modes.mixture import log_components_of
from whmc.search.passes import nearest

NEIGHBOURS = 4
"""Charts of the same peak that each is compared with."""


def parted_charts(
    library: ModeLibrary,
    node: Int[np.ndarray, " charts"],
    place: Float[np.ndarray, "charts dim"],
    top: Float[np.ndarray, "nodes dim"],
    draws: Float[np.ndarray, "n dim"],
    own: Int[np.ndarray, " n"],
    region: Float[np.ndarray, " dim"],
) -> tuple[Int[np.ndarray, " charts"], Float[np.ndarray, " charts"]]:
    """For each chart the lowest number of those that it lies together with, NOWHERE where that is the peak's own chart;
    and the least dip to other charts of its peak.

    node: the peak that an ascent from each chart reaches. place, top: charts and peaks. own: the chart of each draw.
    region: what a distance of one is in each coordinate.
    """
    lead, depth = np.full(library.size, NOWHERE), np.full(library.size, np.inf)
    drawn = np.isin(np.arange(library.size), own)
    for peak in np.unique(node[node != NOWHERE]).tolist():
        charts = np.flatnonzero((node == peak) & drawn)
        if len(charts) < 2:
            continue
        rows = np.isin(own, charts)
        position, group = draws[rows], np.searchsorted(charts, own[rows])
        scaled = place[charts] / region
        apart = squares_between(scaled, scaled)
        np.fill_diagonal(apart, np.inf)
        pair = nearest(apart, NEIGHBOURS)
        dip = _valleys(library, charts, position, group, pair)
        far = dip >= FAR
        together = np.arange(len(charts))
        for a, b in pair[~far].tolist():
            low, high = sorted((together[a], together[b]))
            together[together == high] = low
        first = together[np.argmin(np.sum((scaled - top[peak] / region) ** 2, axis=1))]
        others = together != first
        lead[charts[others]] = charts[together[others]]
        for n in np.flatnonzero(far).tolist():
            depth[charts[pair[n]]] = np.minimum(depth[charts[pair[n]]], dip[n])
    return lead, depth


def _valleys(
    library: ModeLibrary,
    charts: Int[np.ndarray, " few"],
    position: Float[np.ndarray, "n dim"],
    group: Int[np.ndarray, " n"],
    pair: Int[np.ndarray, "pairs 2"],
) -> Float[np.ndarray, " pairs"]:
    """Between the draws of each two charts; none where one has too few."""
    height = log_components_of(library, position, charts)
    found = np.zeros(len(pair))
    for n, (a, b) in enumerate(pair.tolist()):
        sizes = np.sum(group == a), np.sum(group == b)
        if min(sizes) >= FEWEST_DRAWS:
            first, second = (thinned((height[a] - height[b])[group == one]) for one in (a, b))
            found[n] = valley(first, second, float(sizes[0] / sum(sizes)))
    return found
