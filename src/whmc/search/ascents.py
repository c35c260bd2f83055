"""Which modes there are, by ascents from charts and from draws: makes the `Basins` of a run.

1. The density as the model writes it is ascended from every chart and from some draws. Ends are polished; ends within a
   tenth of a standard deviation of a peak, or of an image of it under a symmetry, are that peak.
2. Between peaks that are neighbours the density is followed along straight lines and strings (`passes.py`), and the
   draws are looked at from the side (`estimate/dip.py`).
3. Ends without a peak (of a ring, a shell, a funnel) are linked where the density along the chord between neighbours
   hardly falls; midpoints between what is still apart are ascended and become ends themselves, until nothing joins.
4. More draws are ascended from where charts do not tell the modes apart, as long as that is the larger part of the
   error of the weights.
"""

import dataclasses
from collections.abc import Callable, Sequence

import numpy as np

from whmc._shapes import Float, Int
from whmc.estimate.basins import NOWHERE, Basins, Partition
from whmc.estimate.correction import correction
from whmc.estimate.labels import in_parts
from whmc.estimate.weights import Weights
from whmc.modes.chart_data import locations_of
from whmc.modes.curvature import spread
from whmc.modes.library import ModeLibrary
from whmc.modes.mixture import log_components_of
from whmc.search.nodes import Nodes
from whmc.search.parted import parted_charts
from whmc.search.peak import Peak
from whmc.target.counted import counted
from whmc.target.rows import logdensities
from whmc.target.target import Target

NUM_DRAWS = 128
"""Draws that are ascended from: a mode of .035 is missed with chance .01, and charts are ascended from too."""

FEWEST_DRAWS = 32
"""However little may be spent."""

AT_ONCE = 384
MOST_DRAWS = 1536
"""More draws at a time where charts do not tell the modes apart, and at most: their part of the error is .013 then."""

CLEAR = 0.99
"""The share of a draw that the charts of one mode have at least, where they tell whose it is: of a hundred ascents from
such draws one or two ended elsewhere at worst."""

MOST_NUMBERS = 20_000_000
"""That ascents in many dimensions may remember together."""

MEMORY = 40
"""Vectors that each remembers at most."""

STRATA_DRAWS = 20_000
"""Draws of which it is known how much their charts can tell."""

GROUPED_DRAWS = 16_384
"""Draws that dips are seen in."""

CHART_DRAWS = 100_000
"""Draws among which the highest of each chart is looked for."""

SMALL = 1e-3
"""An error of a weight that needs no more ascents: half of the least difference that an alarm would name."""

MOST_GRADIENTS = 0.1
"""Of what the run has spent before, on ascents from draws and on strings each; charts and straight lines come first."""

Weigh = Callable[[Partition], Weights]
"""The weights of modes, by charts alone."""


def find_basins(
    target: Target,
    library: ModeLibrary,
    draws: Float[np.ndarray, "chains draws dim"],
    chart: Int[np.ndarray, "chains draws"],
    logdensity: Float[np.ndarray, "chains draws"],
    *,
    peaks: Sequence[Peak] = (),
    weigh: Weigh,
    most: float = np.inf,
) -> Basins:
    """The basins of a run. peaks: those known beforehand, of the density as it is written. most: gradients that it
    should not exceed."""
    with counted() as spent:
        every = max(1, draws.shape[0] * draws.shape[1] // STRATA_DRAWS)
        nodes = Nodes(target, _pooled_sd(library, draws, chart), _widest(target, library), peaks)
        starts, drawn = _chart_starts(target, library, draws, chart, logdensity)
        of_chart = _parted(nodes, library, nodes.climb(starts, must=True), starts, draws, chart, logdensity)
        row, price = _spaced_rows(draws.shape, every), 0.0
        end, remembered = np.zeros(0, int), MOST_NUMBERS // (MEMORY * target.dim)
        for part in (row[:FEWEST_DRAWS], row[FEWEST_DRAWS : max(FEWEST_DRAWS, remembered)]):
            room = FEWEST_DRAWS if price == 0 else max(0, min((most - spent.num) / price, len(part)))
            part, before = part[: int(room)], spent.num
            end = np.append(end, nodes.seen_from(of_chart[chart[*part.T]], nodes.climb(_at(draws, part))))
            price = max(price, (spent.num - before) / max(len(part), 1), 1.0)
        row = row[: len(end)]
        stratum: Int[np.ndarray, "chains some"] | None = None
        while True:
            seen = np.concatenate([starts[drawn], _at(draws, row)]), np.append(of_chart[drawn], end)
            pair, fall, dip = nodes.compared(_thinned(draws), *seen, most - spent.num)
            location, height, peaked = nodes.all
            one = np.zeros_like(chart[:, ::every], int) if stratum is None else stratum
            known = location, height, peaked, pair, fall, dip, of_chart, row, end, one
            basins = Basins(*known, every, nodes.num_straight)
            size, partition = nodes.size, basins.partition()
            if partition.num_modes < 2:
                return basins
            stratum = _strata(library, partition, draws[:, ::every], chart[:, ::every]) if stratum is None else stratum
            weights = weigh(partition)
            while nodes.size == size:
                basins = dataclasses.replace(basins, row=row, end=end, stratum=stratum)
                room = max(0, min((most - spent.num) / price, AT_ONCE, remembered))
                more = _more_rows(basins, partition, chart, weights, int(room))
                if not len(more):
                    return basins
                end = np.append(end, nodes.seen_from(of_chart[chart[*more.T]], nodes.climb(_at(draws, more))))
                row = np.concatenate([row, more])


def _parted(
    nodes: Nodes,
    library: ModeLibrary,
    of_chart: Int[np.ndarray, " charts"],
    starts: Float[np.ndarray, "charts dim"],
    draws: Float[np.ndarray, "chains draws dim"],
    chart: Int[np.ndarray, "chains draws"],
    logdensity: Float[np.ndarray, "chains draws"],
) -> Int[np.ndarray, " charts"]:
    """The node of each chart, where charts whose mass lies apart have one of their own: the highest of their draws.
    That is where they start from then."""
    rows, every = _thinned(draws), max(1, -(-chart.size // GROUPED_DRAWS))
    own, height = chart[:, ::every].ravel(), logdensity[:, ::every].ravel()
    place = locations_of(library.charts())
    lead, dip = parted_charts(library, of_chart, place, nodes.location, rows, own, nodes.region)
    found = of_chart.copy()
    for one in np.unique(lead[lead != NOWHERE]).tolist():
        mine = np.flatnonzero(lead == one)
        here = np.flatnonzero(np.isin(own, mine))
        top = here[np.argmax(height[here])]
        found[mine] = nodes.part(rows[top], float(height[top]), int(of_chart[one]), float(dip[mine].min()))
        starts[mine] = rows[top]
    return found


def _at(draws: Float[np.ndarray, "chains draws dim"], row: Int[np.ndarray, "n 2"]) -> Float[np.ndarray, "n dim"]:
    return np.asarray(draws[row[:, 0], row[:, 1]], float)


def _thinned(draws: Float[np.ndarray, "chains draws dim"]) -> Float[np.ndarray, "n dim"]:
    """Some of the draws, all chains alike."""
    every = max(1, -(-draws.shape[0] * draws.shape[1] // GROUPED_DRAWS))
    return np.asarray(draws[:, ::every], float).reshape(-1, draws.shape[2])


def _spaced_rows(shape: tuple[int, ...], every: int) -> Int[np.ndarray, "n 2"]:
    """Evenly spaced draws (chain, draw), multiples of `every`, in an order in which the first few are spread too."""
    chains, columns = shape[0], -(-shape[1] // every)
    number = np.unique(np.linspace(0, chains * columns - 1, min(NUM_DRAWS, chains * columns)).astype(int))
    step = max(1, len(number) // FEWEST_DRAWS)
    number = np.concatenate([number[first::step] for first in range(step)])
    return np.column_stack([number // columns, number % columns * every])


def _widest(target: Target, library: ModeLibrary) -> float:
    return spread(target, locations_of(library.charts()))


def _pooled_sd(
    library: ModeLibrary, draws: Float[np.ndarray, "chains draws dim"], chart: Int[np.ndarray, "chains draws"]
) -> Float[np.ndarray, " dim"]:
    """The standard deviations within charts, in each coordinate."""
    every = max(1, -(-chart.size // GROUPED_DRAWS))
    rows, own = _thinned(draws), chart[:, ::every].ravel()
    number = np.maximum(np.bincount(own, minlength=library.size), 1)[:, None]
    mean = np.zeros((library.size, draws.shape[2]))
    np.add.at(mean, own, rows)
    sd = np.sqrt(np.mean((rows - (mean / number)[own]) ** 2, axis=0))
    return np.where(sd > 0, sd, np.maximum(np.abs(rows).max(axis=0), 1.0))


def _chart_starts(
    target: Target,
    library: ModeLibrary,
    draws: Float[np.ndarray, "chains draws dim"],
    chart: Int[np.ndarray, "chains draws"],
    logdensity: Float[np.ndarray, "chains draws"],
) -> tuple[Float[np.ndarray, "charts dim"], Int[np.ndarray, " drawn"]]:
    """Where each chart is ascended from, and the charts that have draws.

    The location, or, where that lies lower than half of the chart's draws, as in the hollow of a ring, the highest of
    these.
    """
    every = max(1, chart.size // CHART_DRAWS)
    own, height = chart[:, ::every].ravel(), logdensity[:, ::every].ravel()
    order = np.lexsort((height, own))
    drawn, first, number = np.unique(own[order], return_index=True, return_counts=True)
    starts = locations_of(library.charts())
    low = logdensities(target, starts)[drawn] < height[order][first + number // 2]
    best = order[first + number - 1][low]
    columns = chart[:, ::every].shape[1]
    starts[drawn[low]] = _at(draws, np.column_stack([best // columns, best % columns * every]))
    return starts, drawn


def _strata(
    library: ModeLibrary,
    partition: Partition,
    draws: Float[np.ndarray, "chains some dim"],
    chart: Int[np.ndarray, "chains some"],
) -> Int[np.ndarray, "chains some"]:
    """Two for each mode: draws that its charts cover alone, and the others that its charts cover best."""
    rows = np.asarray(draws, float).reshape(-1, draws.shape[2])
    own = partition.of_chart[chart]
    share = np.empty(len(rows))
    first = 0
    for part in in_parts(rows, library.size):
        logs = log_components_of(library, part)
        mine = partition.of_chart[:, None] == own.ravel()[first : first + len(part)]
        total = np.logaddexp.reduce(logs, axis=0)
        share[first : first + len(part)] = np.sum(np.exp(logs - total) * mine, axis=0)
        first += len(part)
    return 2 * own + (share <= CLEAR).reshape(own.shape)


def _more_rows(
    basins: Basins, partition: Partition, chart: Int[np.ndarray, "chains draws"], weights: Weights, most: int
) -> Int[np.ndarray, "n 2"]:
    """More draws to ascend from: of the strata in which they lower an error most that is larger than that of the
    charts."""
    most = min(most, NUM_DRAWS + MOST_DRAWS - len(basins.row))
    found = correction(basins, partition, chart, weights.weight)
    excess = found.of_ascents - np.fmax(np.nan_to_num(weights.se, nan=np.inf), SMALL)
    worst = int(np.argmax(excess))
    if most <= 0 or not excess[worst] > 0:
        return np.zeros((0, 2), int)
    free = np.ones(basins.stratum.shape, bool)
    free[basins.row[:, 0], basins.row[:, 1] // basins.every] = False
    doubt = found.doubt[:, worst]
    chosen = []
    for s in np.flatnonzero(doubt).tolist():
        mine = np.argwhere(free & (basins.stratum == s))
        wanted = min(len(mine), int(np.ceil(most * doubt[s] / doubt.sum())))
        if wanted:
            chosen.append(mine[np.linspace(0, len(mine) - 1, wanted).astype(int)] * np.array([1, basins.every]))
    return np.concatenate(chosen)[:most] if chosen else np.zeros((0, 2), int)
