"""Tours: the stretches of a chain between regenerations. They are independent, so errors need no batches."""

import dataclasses

import numpy as np
from jaxtyping import Bool, Float

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

        What comes before a chain's first regeneration and after its last is no whole tour, and left out.
        """
        chain, start = np.nonzero(regenerated)
        whole = chain[1:] == chain[:-1]
        return cls(chain[:-1][whole], start[:-1][whole], np.diff(start)[whole])

    def __len__(self) -> int:
        return len(self.length)

    def sums(self, values: Float[np.ndarray, "chains draws size"]) -> Float[np.ndarray, "tours size"]:
        """Sum of the values over each tour."""
        before = np.concatenate([np.zeros_like(values[:, :1]), np.cumsum(values, axis=1)], axis=1)
        return before[self.chain, self.start + self.length] - before[self.chain, self.start]

    def estimate(self, values: Float[np.ndarray, "chains draws size"]) -> tuple[np.ndarray, np.ndarray]:
        """Ratio estimate sum Y / sum N with its standard error, sqrt(sum (Y - mean N)²) / sum N."""
        size = values.shape[2]
        if len(self) < FEWEST:
            return np.full(size, np.nan), np.full(size, np.nan)
        sums, total = self.sums(values), self.length.sum()
        mean = sums.sum(axis=0) / total
        num = len(self)
        spread = np.sum((sums - self.length[:, None] * mean) ** 2, axis=0) * num / (num - 1)
        return mean, np.sqrt(spread) / total
