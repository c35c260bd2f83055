"""How much a search has not seen, from how often it hit what it saw.

Each start is a draw from an unknown law over basins. With n starts, f1 basins hit once and f2 hit twice:
"""

import numpy as np

from whmc._shapes import Int


def good_turing(hits: Int[np.ndarray, " size"], num_starts: int) -> float:
    """The chance that the next start finds something new: f1/n (Good 1953); one if nothing was started."""
    return float(np.sum(hits == 1) / num_starts) if num_starts else 1.0


def chao(hits: Int[np.ndarray, " size"]) -> float:
    """A lower bound on how many basins there are: seen + f1 (f1 - 1) / (2 (f2 + 1)) (Chao 1984, bias-corrected)."""
    once, twice = np.sum(hits == 1), np.sum(hits == 2)
    return float(len(hits) + once * (once - 1) / (2 * (twice + 1)))
