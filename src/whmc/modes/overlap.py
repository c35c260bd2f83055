"""Charts that describe the same draws.

Where charts of different modes overlap, the draws of one end where the other's begin: no bend and no tail is fitted to
them.
"""

import numpy as np

from whmc._shapes import Bool, Float, Int

SHARED = 0.3
"""Share of the lighter mode's draws that could as well be of the other, from which the two overlap. Two equal Gaussians
share as much at a distance of 2.1 standard deviations, where their sum begins to have two peaks."""


def overlapping(
    mode: Int[np.ndarray, " size"], responsibility: Float[np.ndarray, "size n"], weight: Float[np.ndarray, " size"]
) -> Bool[np.ndarray, " modes"]:
    """Which modes overlap with another.

    With R_a the responsibilities of mode a's charts together, two modes share

        mean min(R_a, R_b) / min over k in (a, b) of max(mean R_k, omega_k).

    A mode that was never visited has no R of its own, only what its chart's tail takes from others: its weight omega
    in the library keeps that from looking like an overlap.
    """
    shared = _shared(mode, responsibility, weight) > SHARED
    return np.any(shared | shared.T, axis=0)


def _shared(mode: np.ndarray, responsibility: np.ndarray, weight: np.ndarray) -> np.ndarray:
    """The share of every two modes. A draw counts for the two that it belongs to most: then the cost does not grow with
    the number of pairs, and of three modes that share all draws two are joined first."""
    size = int(mode.max()) + 1
    if size < 2:
        return np.zeros((1, 1))
    together = np.zeros((size, responsibility.shape[1]))
    np.add.at(together, mode, responsibility)
    two = np.argpartition(together, size - 2, axis=0)[-2:]
    less = np.take_along_axis(together, two, axis=0).min(axis=0)
    both = np.zeros((size, size))
    np.add.at(both, (two.min(axis=0), two.max(axis=0)), less / len(less))
    heavy = np.maximum(together.mean(axis=1), np.bincount(mode, weight, size))
    return both / np.minimum(heavy[:, None], heavy)
