"""Tours: the stretches of a chain between regenerations. They are independent, so errors need no batches."""

import dataclasses

import numpy as np

from whmc._shapes import Bool, Int
from whmc.estimate.weights import Weights

FEWEST = 30
"""Tours below which a standard error from them is not to be trusted."""


@dataclasses.dataclass(frozen=True)
class Tours:
    """Complete tours of all chains: where each starts, how long it is. `chain` and `start` index the draws."""

    chain: np.ndarray
    start: np.ndarray
    length: np.ndarray

    @classmethod
    def of(cls, regenerated: Bool[np.ndarray, "chains draws"]) -> "Tours":
        """A tour starts at a draw that was made by a regeneration, and ends before the next.

        What comes before a chain's first regeneration, and after its last, is not a complete tour and left out.
        """
        chain, start = np.nonzero(regenerated)
        whole = chain[1:] == chain[:-1]
        return cls(chain[:-1][whole], start[:-1][whole], np.diff(start)[whole])

    def __len__(self) -> int:
        return len(self.length)

    def shares(self, label: Int[np.ndarray, "chains draws"], size: int) -> Weights:
        """Share of each mode: sum Y / sum N over tours with N draws, Y of them in the mode.

        The standard error is sqrt(sum (Y - share N)²) / sum N, expanded into sums of Y², Y N and N²: of Y, most of
        which are zero, only the others are ever held.
        """
        num, total = len(self), int(self.length.sum())
        if num < FEWEST:
            return Weights(np.full(size, np.nan), np.full(size, np.nan))
        tour = np.repeat(np.arange(num), self.length)
        within = np.arange(total) - np.repeat(np.cumsum(self.length) - self.length, self.length)
        here = label[self.chain[tour], self.start[tour] + within]
        cell, visits = np.unique(tour * size + here, return_counts=True)
        square = np.bincount(cell % size, visits.astype(float) ** 2, size)
        cross = np.bincount(cell % size, visits * self.length[cell // size].astype(float), size)
        share = np.bincount(here, minlength=size) / total
        spread = square - 2 * share * cross + share**2 * np.sum(self.length.astype(float) ** 2)
        return Weights(share, np.sqrt(np.maximum(spread, 0.0) * num / (num - 1)) / total)
