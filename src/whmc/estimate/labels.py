"""The mode of each draw.

A draw has the mode of its chart, or, where an ascent was made from it, of the peak that it reached. Where a chart
covers several modes it does not tell whose a draw is: its draws take the mode of the nearest draw of the chart that was
ascended from. That is done where it is right more often than the chart, among these draws, leaving out each in turn.
"""

from collections.abc import Callable

import numpy as np

from whmc._shapes import Bool, Float, Int
from whmc.estimate.basins import NOWHERE, Basins, Partition

TABLE_NUMBERS = 4_000_000
"""Of a table of distances that is held at once."""


def labels(
    basins: Basins,
    partition: Partition,
    chart: Int[np.ndarray, "chains draws"],
    position: Callable[[Bool[np.ndarray, "chains draws"]], Float[np.ndarray, "n dim"]],
) -> Int[np.ndarray, "chains draws"]:
    """The mode of each draw. position: of some draws."""
    label = partition.of_chart[chart]
    known = basins.end != NOWHERE
    row, mode = basins.row[known], partition.of_peak[basins.end[known]]
    own = chart[row[:, 0], row[:, 1]]
    for k in np.unique(own[mode != partition.of_chart[own]]).tolist():
        here = chart == k
        rows = position(here)
        rows = rows / np.maximum(rows.std(axis=0), 1e-300)
        number = np.full(chart.shape, NOWHERE)
        number[here] = np.arange(len(rows))
        mine, ends = row[own == k], mode[own == k]
        seen = rows[number[mine[:, 0], mine[:, 1]]]
        apart = squares_between(seen, seen)
        np.fill_diagonal(apart, np.inf)
        by_nearest = np.sum(ends[apart.argmin(axis=1)] == ends)
        if by_nearest > np.sum(ends == partition.of_chart[k]):
            label[here] = ends[nearest_of(rows, seen)]
    label[row[:, 0], row[:, 1]] = mode
    return np.asarray(label)


def nearest_of(rows: Float[np.ndarray, "n dim"], seen: Float[np.ndarray, "m dim"]) -> Int[np.ndarray, " n"]:
    """The nearest of the positions `seen` to each row."""
    return np.concatenate([np.argmin(squares_between(part, seen), axis=1) for part in in_parts(rows, len(seen))])


def squares_between(first: Float[np.ndarray, "n dim"], second: Float[np.ndarray, "m dim"]) -> Float[np.ndarray, "n m"]:
    """Squared distances."""
    sizes = np.sum(first**2, axis=1)[:, None] + np.sum(second**2, axis=1)
    return np.asarray(np.maximum(sizes - 2 * first @ second.T, 0.0))


def in_parts(rows: Float[np.ndarray, "n dim"], width: int) -> list[Float[np.ndarray, "m dim"]]:
    """Rows in parts, of which a table with so many columns fits into the memory."""
    return np.array_split(rows, max(1, -(-len(rows) * width // TABLE_NUMBERS)))
