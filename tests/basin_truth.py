"""The shares of a result's modes among exact draws, by ascents of their own."""

import jax
import numpy as np

from whmc.minimise import minimise
from whmc.result import Result
from whmc.target.rows import evaluate_rows


def modes_of_draws(result: Result, draws: np.ndarray) -> np.ndarray:
    """The mode of each draw: that of the node nearest to where a plain ascent ends, in standard deviations of all."""
    target = result.target if result.target.fold is None else result.target.whole
    width = result.draws.reshape(-1, target.dim).std(axis=0)

    def energy(position, _):
        found = evaluate_rows(target, position)
        return -found.logdensity, -found.score

    with jax.enable_x64(True):
        ends = minimise(energy, draws, width).position
    ends = ends if result.target.fold is None else result.target.home(ends)
    nodes = result.basins.location
    mode = np.empty(len(ends), int)
    for rows in np.array_split(np.arange(len(ends)), max(1, len(ends) * nodes.size // 10_000_000)):
        apart = np.sum(((ends[rows, None] - nodes) / width) ** 2, axis=2)
        mode[rows] = result.partition.of_peak[apart.argmin(axis=1)]
    return mode


def shares(result: Result, draws: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Of the modes among independent draws, with their errors."""
    share = np.bincount(modes_of_draws(result, draws), minlength=result.num_modes) / len(draws)
    return share, np.sqrt(share * (1 - share) / len(draws))
