"""Searches as hits and masses: basins of many kinds of targets, without any descent.

Isolated Gaussians of several widths and weights, where a start belongs to the component that is highest there, and laws
of basins whose masses have to do with their basins or not.
"""

import dataclasses
from collections.abc import Callable, Iterator

import numpy as np


@dataclasses.dataclass(frozen=True)
class Law:
    """Shares of the mass, and hits of so many more independent starts."""

    share: np.ndarray
    hits: Callable[[int], np.ndarray]


def population(rng: np.random.Generator, num: int) -> Iterator[Law]:
    """Targets of all kinds in turn: every second one an abstract law of basins."""
    for n in range(num):
        size = int(np.exp(rng.uniform(0, np.log(60))))
        if n % 4 == 3:
            yield with_light_basins(rng)
        elif n % 2:
            yield basins(rng, size)
        else:
            yield gaussians(rng, size)


def gaussians(rng: np.random.Generator, size: int) -> Law:
    dim = int(rng.choice([2, 3, 4, 6, 8, 10, 14]))
    means = rng.uniform(-30, 30, (size, dim))
    widths = [
        np.ones(size),
        rng.uniform(0.3, 1, size),
        np.exp(0.2 * rng.standard_normal(size)),
        np.exp(0.5 * rng.standard_normal(size)),
        rng.choice([1.0, 0.3], size),
    ][rng.integers(5)]
    share = weights(rng, size)
    half = 35.0 * (5 if rng.random() < 0.25 else 1)

    def hits(num: int) -> np.ndarray:
        counts = np.zeros(size, int)
        for begin in range(0, num, 8192):
            x = rng.uniform(-half, half, (min(8192, num - begin), dim))
            square = np.sum(x**2, axis=1)[:, None] - 2 * x @ means.T + np.sum(means**2, axis=1)
            height = np.log(share) - dim * np.log(widths) - 0.5 * square / widths**2
            counts += np.bincount(height.argmax(axis=1), minlength=size)
        return counts

    return Law(share, hits)


def basins(rng: np.random.Generator, size: int) -> Law:
    log_basin = rng.uniform(0.3, 3) * rng.standard_normal(size)
    share = weights(rng, size)
    if rng.random() < 0.5:  # large basins are heavy
        share = normalised(log_basin + 0.5 * rng.standard_normal(size))
    chance = normalised(log_basin)
    return Law(share, lambda num: rng.multinomial(num, chance))


def with_light_basins(rng: np.random.Generator) -> Law:
    """A few modes beside a hundred basins or more that hold next to nothing."""
    few, many = int(rng.integers(1, 6)), int(rng.choice([100, 400]))
    chance = normalised(rng.uniform(0.3, 2) * rng.standard_normal(few + many))
    log_share = np.append(0.5 * rng.standard_normal(few), rng.uniform(-200, -15, many))
    return Law(normalised(log_share), lambda num: rng.multinomial(num, chance))


def weights(rng: np.random.Generator, size: int) -> np.ndarray:
    kind = rng.integers(3)
    return np.full(size, 1 / size) if kind == 0 else rng.dirichlet(np.full(size, [0.5, 2.0][kind - 1])) + 1e-300


def normalised(log_share: np.ndarray) -> np.ndarray:
    share = np.exp(log_share - log_share.max())
    return share / share.sum()
