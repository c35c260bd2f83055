"""The valley between two groups of draws: how far the density of their mass falls between them.

Height is not all that parts two modes: two Gaussians of widths 1 and 2 in ten dimensions, six standard deviations
apart, have a path between their peaks that falls by .2 nats, and no draws on it. So the draws of both groups are
projected on the directions that part them best, and the dip is the largest fall of their log density there:

    dip = max over directions and t of  min(max_{s <= t} log f(s), max_{s >= t} log f(s)) - log f(t),

t between the groups' medians, f a kernel density. Half of the draws choose the directions, the others are looked at:
of few draws in many dimensions a direction can be found that parts any two groups.
"""

from collections.abc import Iterator

import numpy as np

from whmc._shapes import Bool, Float, Int
from whmc.modes.library import DIAGONAL_FROM

FAR = 5.0
"""Nats: a deeper valley is not looked at more closely. Nobody would call such modes one."""

FEWEST_DRAWS = 20
"""Of a group; of fewer nothing is told."""

MOST_DRAWS = 4096
"""Of a group that are looked at: a kernel density is known to some per cent then."""

BANDWIDTH = 0.25
"""In standard deviations of the group: a valley between two Gaussians at three loses .1 nats by it. Of n draws it is
n^(-1/5) if that is more, as the noise of n draws needs."""

BINS = 256
PLACES = 65
"""Draws are counted in so many bins, and the density is computed at so many places."""

SHRINKAGE = 5
"""Covariances of n draws are shrunk to their diagonal by 5 D / (n + 5 D)."""


def dips(
    position: Float[np.ndarray, "n dim"],
    group: Int[np.ndarray, " n"],
    labelled: Bool[np.ndarray, " n"],
    top: Float[np.ndarray, "groups dim"],
    pairs: Int[np.ndarray, "pairs 2"],
) -> Float[np.ndarray, " pairs"]:
    """The dip between each two groups; NaN where one has too few draws.

    labelled: draws of which the group is known, by an ascent; the others were given that of their neighbours. top: the
    peak of each group.
    """
    members = [np.flatnonzero(group == k) for k in range(len(top))]
    sizes = [len(rows) for rows in members]
    members = [thinned(rows) for rows in members]
    found = np.full(len(pairs), np.nan)
    for n, (a, b) in enumerate(pairs.tolist()):
        if min(len(members[a]), len(members[b])) < FEWEST_DRAWS:
            continue
        first, second = members[a], members[b]
        learned = (position[first[::2]], position[second[::2]], labelled[first[::2]], labelled[second[::2]])
        deepest = 0.0
        share = sizes[a] / (sizes[a] + sizes[b])
        for way in _directions(*learned, top[b] - top[a]):
            deepest = max(deepest, valley(position[first[1::2]] @ way, position[second[1::2]] @ way, share))
            if deepest >= FAR:
                break
        found[n] = deepest
    return found


def thinned(rows: np.ndarray) -> np.ndarray:
    """Of a group as many, evenly spaced, as are looked at."""
    return rows[:: max(1, -(-len(rows) // MOST_DRAWS))]


def _directions(
    first: Float[np.ndarray, "n dim"],
    second: Float[np.ndarray, "m dim"],
    known_first: Bool[np.ndarray, " n"],
    known_second: Bool[np.ndarray, " m"],
    between: Float[np.ndarray, " dim"],
) -> Iterator[Float[np.ndarray, " dim"]]:
    """S⁻¹ d with S the covariance within the groups: d between the peaks, the means, and the means of those draws of
    which the group is known."""
    rest = np.concatenate([first - first.mean(axis=0), second - second.mean(axis=0)])
    num, dim = rest.shape
    variance = np.mean(rest**2, axis=0) + 1e-300
    if dim >= DIAGONAL_FROM:

        def solve(gap: np.ndarray) -> np.ndarray:
            return np.asarray(gap / variance)
    else:
        share = num / (num + SHRINKAGE * dim)
        covariance = share * (rest.T @ rest) / num
        covariance[np.diag_indices(dim)] = variance * (1 + 1e-9)

        def solve(gap: np.ndarray) -> np.ndarray:
            return np.asarray(np.linalg.solve(covariance, gap))

    yield solve(between)
    yield solve(second.mean(axis=0) - first.mean(axis=0))
    if min(known_first.sum(), known_second.sum()) >= 2:
        yield solve(second[known_second].mean(axis=0) - first[known_first].mean(axis=0))


def valley(first: Float[np.ndarray, " n"], second: Float[np.ndarray, " m"], share: float) -> float:
    """The dip along one direction. share: of the first group, which may be thinned more than the second."""
    low, high = np.median(first), np.median(second)
    if not low < high:
        first, second, low, high = -first, -second, -low, -high
    if not low < high:
        return 0.0
    places = np.linspace(low, high, PLACES)
    density = share * _density(first, places) + (1 - share) * _density(second, places)
    with np.errstate(divide="ignore"):
        height = np.log(density)
    sides = np.minimum(np.maximum.accumulate(height), np.maximum.accumulate(height[::-1])[::-1])
    return float(np.max(np.where(np.isfinite(height), sides - height, FAR)))


def _density(value: Float[np.ndarray, " n"], places: Float[np.ndarray, " places"]) -> Float[np.ndarray, " places"]:
    """The kernel density of some numbers."""
    width = max(BANDWIDTH, len(value) ** -0.2) * value.std()
    width = max(width, 1e-9 * (places[-1] - places[0]))
    reach = 4 * width
    low, high = max(value.min(), places[0] - reach), min(value.max(), places[-1] + reach)
    if not low < high:
        return np.zeros(len(places))
    near = value[(value >= low) & (value <= high)]
    number, edges = np.histogram(near, BINS, (low, high))
    middle = 0.5 * (edges[1:] + edges[:-1])
    # a bin may be wider than the kernel
    width = max(width, edges[1] - edges[0])
    kernel = np.exp(-0.5 * ((places[:, None] - middle) / width) ** 2)
    return np.asarray(kernel @ number / (len(value) * width * np.sqrt(2 * np.pi)))
