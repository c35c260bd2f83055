"""Charts that describe the same draws are one mode.

Where charts of different modes overlap, a draw's mode is whichever chart happens to cover it best, and the weights of
these modes depend on the charts rather than on the target. So they are made one mode. Draws, evidence and everything
that does not speak about single modes stay as they are.
"""

import dataclasses

import jax
import numpy as np

from whmc._shapes import Bool, Float, Int
from whmc.modes.library import ModeLibrary
from whmc.modes.mixture import log_components_of

SHARED = 0.3
"""Share of the lighter mode's draws that could as well be of the other, from which the two are one. Two equal Gaussians
share as much at a distance of 2.1 standard deviations, where their sum begins to have two peaks."""

NUM_DRAWS = 2000
"""Draws that are looked at: enough to know such a share to a few per cent."""


def with_overlapping_joined(library: ModeLibrary, draws: Float[np.ndarray, "chains draws dim"]) -> ModeLibrary:
    """The same charts, with those of modes that overlap in one mode."""
    if library.num_modes < 2:
        return library
    chains, num, dim = draws.shape
    some = np.asarray(draws[:, :: max(1, chains * num // NUM_DRAWS)]).reshape(-1, dim)
    logs = log_components_of(library, some)
    responsibility = np.exp(logs - np.logaddexp.reduce(logs, axis=0))
    weight = np.exp(np.asarray(library.log_weight)[: library.size])
    mode = joined(library.mode_of, responsibility, weight)
    return library if mode is library.mode_of else _with_modes(library, mode)


def joined(
    mode: Int[np.ndarray, " size"], responsibility: Float[np.ndarray, "size n"], weight: Float[np.ndarray, " size"]
) -> Int[np.ndarray, " size"]:
    """The mode of each chart, overlapping ones joined until none overlap; counted from zero in their old order.

    With R_a the responsibilities of mode a's charts together, two modes share

        mean min(R_a, R_b) / min over k in (a, b) of max(mean R_k, omega_k).

    A mode that was never visited has no R of its own, only what its chart's tail takes from others: its weight omega
    in the library keeps that from looking like an overlap.
    """
    while True:
        shared = _shared(mode, responsibility, weight)
        first, second = np.unravel_index(int(np.argmax(shared)), shared.shape)
        if shared[first, second] <= SHARED:
            return mode
        merged = np.where(mode == max(first, second), min(first, second), mode)
        mode = np.unique(merged, return_inverse=True)[1]


def overlapping(
    mode: Int[np.ndarray, " size"], responsibility: Float[np.ndarray, "size n"], weight: Float[np.ndarray, " size"]
) -> Bool[np.ndarray, " modes"]:
    """Which modes would be joined with another."""
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


def _with_modes(library: ModeLibrary, mode: np.ndarray) -> ModeLibrary:
    """The library with other modes for its charts."""
    padded = np.zeros(library.capacity, library.mode.dtype)
    padded[: len(mode)] = mode
    return dataclasses.replace(library, mode=jax.device_put(padded))
