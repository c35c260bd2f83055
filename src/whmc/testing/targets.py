"""Targets with known truth: exact draws, mode weights, log evidence, and a library that fits."""

import dataclasses
import itertools
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import gammaln
from scipy.special import digamma, polygamma

from whmc._shapes import Array, Float
from whmc.modes.library import ModeLibrary
from whmc.target.target import Numbers, Target


@dataclasses.dataclass(frozen=True, eq=False)
class Problem:
    """A target whose answers are known. Two are the same only if they are one object.

    draw: (rng, n) -> n exact draws and the true mode of each. locations: the peaks. library: charts with the modes'
    true moments and weights, made in the dtype in force. log_evidence: of the target's density as it is written.
    """

    name: str
    target: Target
    draw: Callable[[np.random.Generator, int], tuple[np.ndarray, np.ndarray]]
    locations: Float[np.ndarray, "size dim"]
    weights: Float[np.ndarray, " size"]
    means: Float[np.ndarray, "size dim"]
    scales: Float[np.ndarray, "size dim dim"] | Float[np.ndarray, "size dim"]
    log_evidence: float
    step_size: float | None = None

    @property
    def library(self) -> ModeLibrary:
        return ModeLibrary.from_charts(
            self.means,
            self.scales,
            log_weight=np.log(self.weights),
            step_size=np.full(len(self.weights), self.step_size or self.target.dim**-0.25),
        )

    @property
    def mean(self) -> Float[np.ndarray, " dim"]:
        return self.weights @ self.means


@dataclasses.dataclass(frozen=True)
class Shape:
    """A target whose log evidence and some expectations are known.

    draw: (rng, n) -> n exact draws, as positions on R^D. log_evidence: of the target's density as it is written.
    statistics: numbers of one draw by name, in `jax.numpy`; the function takes what the target's log density takes.
    expected: their true means. Those named "weight" are shares, between 0 and 1: the exact responsibilities of a
    mixture's components, or whether a draw is in a cell. num_modes: None where nobody has counted them.
    """

    name: str
    target: Target
    draw: Callable[[np.random.Generator, int], np.ndarray]
    log_evidence: float
    statistics: Callable[[Any], Mapping[str, Array]]
    expected: Mapping[str, Any]
    num_modes: int | None

    @property
    def names(self) -> tuple[str, ...]:
        """A name for each number, in the order of `truth` and `measure`."""
        shapes = {name: np.shape(value) for name, value in self.expected.items()}
        return tuple(
            name + "".join(f"[{n}]" for n in index) for name, one in shapes.items() for index in np.ndindex(one)
        )

    @property
    def truth(self) -> Float[np.ndarray, " size"]:
        """The expected values, one after the other."""
        return np.concatenate([np.ravel(np.asarray(value, float)) for value in self.expected.values()])

    @property
    def shares(self) -> np.ndarray:
        """Which of the numbers are shares."""
        return np.array([name.split("[")[0] == "weight" for name in self.names])

    def measure(self, draws: Float[np.ndarray, "chains draws dim"]) -> Float[np.ndarray, "chains draws size"]:
        """The statistics of every draw; draws are positions on R^D, as those of a result."""

        def one(position: Float[Array, " dim"]) -> Float[Array, " size"]:
            found = self.statistics(self.target.unflatten(position))
            return jnp.concatenate([jnp.ravel(found[name]) for name in self.expected])

        with jax.enable_x64(True):
            mapped = jax.jit(jax.vmap(one))
            return np.stack([np.asarray(mapped(jnp.asarray(chain))) for chain in draws])


def gaussian_mixture(weights: Numbers, means: Numbers, covariances: Numbers, name: str = "mixture") -> Problem:
    """sum_k w_k N(mean_k, covariance_k); covariances (K, D, D), or (K, D) if diagonal."""
    weights, means, covariances = (np.asarray(a, float) for a in (weights, means, covariances))
    diagonal = covariances.ndim == 2
    scales = np.sqrt(covariances) if diagonal else np.linalg.cholesky(covariances)
    inverses = 1 / scales if diagonal else np.linalg.inv(scales)
    dim = means.shape[1]
    log_dets = np.sum(np.log(scales if diagonal else np.diagonal(scales, axis1=1, axis2=2)), axis=1)
    offsets = np.log(weights) - log_dets - 0.5 * dim * np.log(2 * np.pi)

    def logdensity(x: Float[Array, " dim"]) -> Float[Array, ""]:
        shift = x - jnp.asarray(means)
        z = inverses * shift if diagonal else jnp.einsum("kij,kj->ki", jnp.asarray(inverses), shift)
        return jax.nn.logsumexp(jnp.asarray(offsets) - 0.5 * jnp.sum(z * z, axis=-1))

    def draw(rng: np.random.Generator, n: int) -> tuple[np.ndarray, np.ndarray]:
        label = rng.choice(len(weights), n, p=weights)
        z = rng.standard_normal((n, dim))
        product = scales[label] * z if diagonal else np.einsum("nij,nj->ni", scales[label], z)
        return means[label] + product, label

    low, high = means.min() - 5, means.max() + 5
    target = Target(logdensity, dim=dim, starts=(low, high))
    return Problem(name, target, draw, means, weights, means, scales, 0.0)


def two_scale_pair(dim: int, weights: Numbers = (0.5, 0.5), ratio: float = 16.0, separation: float = 10.0) -> Problem:
    """Two round Gaussians whose covariances differ by `ratio`."""
    means = np.zeros((2, dim))
    means[1] = separation / np.sqrt(dim)
    covariances = np.ones((2, dim)) * np.array([[1.0], [ratio]])
    # dense charts, so that the determinant counts as it does in general
    return gaussian_mixture(weights, means, covariances[:, :, None] * np.eye(dim), f"two-scale pair D={dim}")


def loggamma_pair(dim: int, weights: Numbers = (0.7, 0.3), separation: float = 20.0, shape: float = 3.0) -> Problem:
    """Two modes of opposite skew: every coordinate a standardised log-gamma, u = x or u = -(x - separation/√D)."""
    weights = np.asarray(weights, float)
    centre, sd = float(digamma(shape)), float(np.sqrt(polygamma(1, shape)))
    offset = separation / np.sqrt(dim)

    def one(u: Float[Array, " dim"]) -> Float[Array, ""]:
        v = centre + sd * u
        return jnp.sum(np.log(sd) + shape * v - jnp.exp(v) - gammaln(jnp.asarray(shape, u.dtype)))

    def logdensity(x: Float[Array, " dim"]) -> Float[Array, ""]:
        return jnp.logaddexp(np.log(weights[0]) + one(x), np.log(weights[1]) + one(offset - x))

    def draw(rng: np.random.Generator, n: int) -> tuple[np.ndarray, np.ndarray]:
        label = rng.choice(2, n, p=weights)
        u = (np.log(rng.gamma(shape, size=(n, dim))) - centre) / sd
        return np.where(label[:, None] == 0, u, offset - u), label

    peak = (np.log(shape) - centre) / sd
    locations = np.stack([np.full(dim, peak), np.full(dim, offset - peak)])
    means = np.stack([np.zeros(dim), np.full(dim, offset)])
    target = Target(logdensity, dim=dim, starts=(-5.0, offset + 5.0))
    scales = np.ones((2, dim)) if dim >= 1000 else np.tile(np.eye(dim), (2, 1, 1))
    return Problem(f"log-gamma pair D={dim}", target, draw, locations, weights, means, scales, 0.0)


def many_well(pairs: int) -> Problem:
    """`pairs` independent (double well, normal) pairs of coordinates: 2^pairs modes, exp(x/2 + 6x² - x⁴) a well."""
    grid = np.linspace(-4.0, 4.0, 400_001)
    log_well = 0.5 * grid + 6 * grid**2 - grid**4
    height = np.exp(log_well - log_well.max())
    mass = np.cumsum(height)
    log_z = float(np.log(mass[-1] * (grid[1] - grid[0])) + log_well.max())
    sides = [grid < 0, grid >= 0]
    shares = np.array([height[side].sum() for side in sides]) / height.sum()
    centres = np.array([np.average(grid[s], weights=height[s]) for s in sides])
    spreads = np.array([np.average((grid[s] - c) ** 2, weights=height[s]) for s, c in zip(sides, centres, strict=True)])
    peaks = np.array([grid[s][np.argmax(height[s])] for s in sides])
    combos = np.array(list(itertools.product((0, 1), repeat=pairs)))

    def logdensity(x: Float[Array, " dim"]) -> Float[Array, ""]:
        well, other = x[0::2], x[1::2]
        return jnp.sum(0.5 * well + 6 * well**2 - well**4 - 0.5 * other**2)

    def draw(rng: np.random.Generator, n: int) -> tuple[np.ndarray, np.ndarray]:
        x = rng.standard_normal((n, 2 * pairs))
        x[:, 0::2] = np.interp(rng.uniform(0, mass[-1], (n, pairs)), mass, grid)
        return x, (x[:, 0::2] > 0) @ (1 << np.arange(pairs)[::-1])

    def spread(values: np.ndarray, other: float) -> np.ndarray:
        rows = np.full((len(combos), 2 * pairs), other)
        rows[:, 0::2] = values[combos]
        return rows

    scales = np.sqrt(spread(spreads, 1.0))[:, :, None] * np.eye(2 * pairs)
    target = Target(logdensity, dim=2 * pairs, starts=(-3.0, 3.0))
    return Problem(
        f"many-well D={2 * pairs}",
        target,
        draw,
        spread(peaks, 0.0),
        np.prod(shares[combos], axis=1),
        spread(centres, 0.0),
        scales,
        pairs * (log_z + 0.5 * np.log(2 * np.pi)),
    )


def himmelblau(temperature: float = 1.0) -> Problem:
    """exp(-((x² + y - 11)² + (x + y² - 7)²)/T): four curved modes. A mode is all that is nearest to its peak."""
    peaks = np.array([[3.0, 2.0], [-2.805118, 3.131312], [-3.779310, -3.283186], [3.584428, -1.848126]])
    edge, step = 6.0, 0.004
    axis = np.arange(-edge, edge, step) + step / 2

    def energy(x: Numbers, y: Numbers) -> np.ndarray:
        x, y = np.asarray(x), np.asarray(y)
        return ((x**2 + y - 11) ** 2 + (x + y**2 - 7) ** 2) / temperature

    density = np.exp(-energy(axis[:, None], axis[None, :]))
    cells = np.argwhere(density > 1e-14)
    heights = density[tuple(cells.T)]
    centres = axis[cells]
    label = np.argmin(np.linalg.norm(centres[:, None] - peaks, axis=-1), axis=1)
    weights = np.bincount(label, heights, 4) / heights.sum()
    means = np.stack([np.average(centres[label == k], axis=0, weights=heights[label == k]) for k in range(4)])
    covariances = np.stack([np.cov(centres[label == k].T, aweights=heights[label == k]) for k in range(4)])

    def draw(rng: np.random.Generator, n: int) -> tuple[np.ndarray, np.ndarray]:
        # a cell by its height, a point in it, and a rejection that makes the cells exact: 1.5 bounds what a density
        # changes from a cell's centre to its edge wherever there is mass
        kept: list[np.ndarray] = []
        while sum(map(len, kept)) < n:
            pick = rng.choice(len(cells), n, p=heights / heights.sum())
            x = centres[pick] + rng.uniform(-step / 2, step / 2, (n, 2))
            kept.append(x[rng.uniform(size=n) * 1.5 < np.exp(-energy(*x.T)) / heights[pick]])
        x = np.concatenate(kept)[:n]
        return x, np.argmin(np.linalg.norm(x[:, None] - peaks, axis=-1), axis=1)

    def logdensity(x: Float[Array, " dim"]) -> Float[Array, ""]:
        return -((x[0] ** 2 + x[1] - 11) ** 2 + (x[0] + x[1] ** 2 - 7) ** 2) / temperature

    target = Target(logdensity, dim=2, starts=(-edge, edge))
    return Problem(
        f"Himmelblau T={temperature:g}",
        target,
        draw,
        peaks,
        weights,
        means,
        np.linalg.cholesky(covariances),
        float(np.log(heights.sum() * step**2)),
    )


def shells(dim: int, radius: float = 2.0, width: float = 0.1) -> Problem:
    """Twin Gaussian shells at (±3.5, 0, ...), under a uniform prior on [-6, 6]^D: modes that are surfaces."""
    centres = np.zeros((2, dim))
    centres[:, 0] = (-3.5, 3.5)
    log_prior = -dim * np.log(12.0)
    log_height = -0.5 * np.log(2 * np.pi * width**2)

    def logdensity(x: Float[Array, " dim"]) -> Float[Array, ""]:
        square = jnp.sum((x - jnp.asarray(centres)) ** 2, axis=1)
        # the tiny number keeps the gradient finite at a centre, where the density is e^-200
        away = jnp.sqrt(square + 1e-200) - radius
        return log_prior + jax.nn.logsumexp(log_height - 0.5 * (away / width) ** 2)

    grid = np.linspace(max(radius - 12 * width, 1e-9), radius + 12 * width, 200_001)
    log_mass = (dim - 1) * np.log(grid) - 0.5 * ((grid - radius) / width) ** 2 + log_height
    mass = np.cumsum(np.exp(log_mass - log_mass.max()))
    log_sphere = np.log(2) + 0.5 * dim * np.log(np.pi) - float(gammaln(0.5 * dim))
    log_z = log_prior + np.log(2) + log_sphere + np.log(mass[-1] * (grid[1] - grid[0])) + log_mass.max()
    weights_at = np.exp(log_mass - log_mass.max())
    sd = np.sqrt(np.average(grid**2, weights=weights_at) / dim)

    def draw(rng: np.random.Generator, n: int) -> tuple[np.ndarray, np.ndarray]:
        label = rng.choice(2, n)
        way = rng.standard_normal((n, dim))
        way /= np.linalg.norm(way, axis=1, keepdims=True)
        rho = np.interp(rng.uniform(0, mass[-1], n), mass, grid)
        return centres[label] + rho[:, None] * way, label

    peaks = centres.copy()
    peaks[:, -1] += radius
    target = Target(logdensity, dim=dim, starts=(-6.0, 6.0))
    return Problem(
        f"shells D={dim}",
        target,
        draw,
        peaks,
        np.array([0.5, 0.5]),
        centres,
        np.tile(sd * np.eye(dim), (2, 1, 1)),
        float(log_z),
        step_size=width / sd,  # a step must not leave the shell
    )
