"""The shares of a result's modes among exact draws, by ascents of their own."""

import jax
import numpy as np

from whmc.minimise import minimise
from whmc.result import Result
from whmc.target.rows import evaluate_rows
from whmc.target.target import Target


def ends_of(target: Target, draws: np.ndarray, width: np.ndarray) -> np.ndarray:
    """Where plain ascents of the density as it is written end. width: the first step's, in each coordinate."""

    def energy(position, _):
        found = evaluate_rows(target, position)
        return -found.logdensity, -found.score

    with jax.enable_x64(True):
        return minimise(energy, draws, width).position


def modes_at(result: Result, ends: np.ndarray) -> np.ndarray:
    """The mode of each end: that of the nearest node, in standard deviations of all draws."""
    ends = ends if result.target.fold is None else result.target.home(ends)
    width, nodes = result.draws.reshape(-1, ends.shape[1]).std(axis=0), result.basins.location
    mode = np.empty(len(ends), int)
    for rows in np.array_split(np.arange(len(ends)), max(1, len(ends) * nodes.size // 10_000_000)):
        apart = np.sum(((ends[rows, None] - nodes) / width) ** 2, axis=2)
        mode[rows] = result.partition.of_peak[apart.argmin(axis=1)]
    return mode


def modes_of_draws(result: Result, draws: np.ndarray) -> np.ndarray:
    """The mode of each draw."""
    target = result.target if result.target.fold is None else result.target.whole
    return modes_at(result, ends_of(target, draws, result.draws.reshape(-1, target.dim).std(axis=0)))


def shares(result: Result, draws: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Of the modes among independent draws, with their errors."""
    return shares_of(modes_of_draws(result, draws), result.num_modes)


def shares_of(mode: np.ndarray, size: int) -> tuple[np.ndarray, np.ndarray]:
    share = np.bincount(mode, minlength=size) / len(mode)
    return share, np.sqrt(share * (1 - share) / len(mode))
