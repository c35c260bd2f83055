"""What each mode weighs: one estimator for modes with and without a peak, with its error.

Laplace's formula is e^18 too small for a product of Student-t (two degrees of freedom) in fifty dimensions, and the
entropy of a Gaussian with the moments of draws is too large for every other shape. So modes of different kinds are
weighed by importance draws. The mass of mode k is

    m_k = ∫ pi(theta) r_k(theta) dtheta,     r_k = m_k N_k / sum_j m_j N_j,

with N_k the Gaussian of chart k: its part of the evidence, where the charts share the space among them. A few passes
from equal masses solve this. Draws come from the chart, half of them Gaussian and half Student-t, so that tails heavier
than the chart's are seen too.
"""

import dataclasses
from collections.abc import Sequence

import numpy as np
from jaxtyping import Array, Float

from whmc.keys import generator
from whmc.modes.library import ModeLibrary, unwhiten_rows
from whmc.modes.mixture import log_base_of, log_components_of
from whmc.search.peak import Peak
from whmc.target.rows import logdensities
from whmc.target.target import Target

NUM_DRAWS = 256
"""Importance draws of a mode: log densities, no gradients."""

TAIL_DOF = 4.0
"""Degrees of freedom of the Student-t half of the draws."""

PASSES = 5
"""Of the masses, each with the shares of the space by those before. They evaluate no density."""

MOST_NUMBERS = 4_000_000
"""Of one table of draws by charts."""

FEWEST_EFFECTIVE = 10.0
"""With fewer effective draws the error is infinite: one draw outweighs the others, and a heavier one may be missing."""


@dataclasses.dataclass(frozen=True)
class Masses:
    """Log masses of modes with their standard errors, infinite where the draws tell nothing."""

    log_mass: Float[np.ndarray, " size"]
    error: Float[np.ndarray, " size"]
    num_gradients: int

    @property
    def log_share(self) -> Float[np.ndarray, " size"]:
        """Of the sum of all."""
        return self.log_mass - np.logaddexp.reduce(self.log_mass)


def laplace_masses(peaks: Sequence[Peak]) -> Masses:
    """By Laplace's formula: costs nothing, and is comparable among polished maxima of similar shape."""
    return Masses(np.array([peak.log_laplace for peak in peaks]), np.zeros(len(peaks)), 0)


def weigh(target: Target, peaks: Sequence[Peak], key: Array) -> Masses:
    """Masses by importance draws."""
    size, dim, library = len(peaks), target.dim, chart_library(peaks)
    z = _draws(generator(key), size, dim)
    position = np.stack([peak.location + unwhiten_rows(peak.scale, rows) for peak, rows in zip(peaks, z, strict=True)])
    square = np.sum(z**2, axis=-1)
    log_half = np.logaddexp(log_base_of(square, dim, np.inf), log_base_of(square, dim, TAIL_DOF)) - np.log(2.0)
    log_drawn = log_half - np.asarray(library.log_det)[:size, None]
    log_ratio = logdensities(target, position.reshape(-1, dim)).reshape(size, NUM_DRAWS) - log_drawn
    log_mass = np.zeros(size)
    for _ in range(PASSES):
        log_mass, error = log_mean(log_ratio + _log_shares(library, position, log_mass))
    laplace = np.array([peak.log_laplace for peak in peaks])
    unseen = ~np.isfinite(log_mass)  # not one draw inside the support
    return Masses(np.where(unseen, laplace, log_mass), error, size * NUM_DRAWS)


def _log_shares(
    library: ModeLibrary, position: Float[np.ndarray, "size n dim"], log_mass: Float[np.ndarray, " size"]
) -> Float[np.ndarray, "size n"]:
    """log r_k at the draws of each chart k, a few charts at a time: memory grows with the modes, not their square."""
    size, num, dim = position.shape
    charts = max(1, MOST_NUMBERS // (size * num))
    log_share = np.empty((size, num))
    for first in range(0, size, charts):
        rows = position[first : first + charts]
        heights = log_components_of(library, rows.reshape(-1, dim)).reshape(size, len(rows), num)
        heights += (log_mass - np.asarray(library.log_weight)[:size])[:, None, None]
        mine = np.arange(len(rows))
        top = heights.max(axis=0)
        with np.errstate(invalid="ignore", divide="ignore"):
            share = heights[first + mine, mine] - top - np.log(np.sum(np.exp(heights - top), axis=0))
        log_share[first : first + charts] = np.where(np.isnan(share), -np.inf, share)
    return log_share


def _draws(rng: np.random.Generator, size: int, dim: int) -> Float[np.ndarray, "size n dim"]:
    """Points of a standard chart: half of them Gaussian, half Student-t."""
    z = rng.standard_normal((size, NUM_DRAWS, dim))
    tails = NUM_DRAWS // 2
    radius = np.sqrt(TAIL_DOF / rng.chisquare(TAIL_DOF, (size, tails, 1)))
    z[:, :tails] *= radius
    return z


def chart_library(peaks: Sequence[Peak], log_weight: np.ndarray | None = None) -> ModeLibrary:
    """The peaks as charts, of equal weight unless told, with room to grow, so that few shapes are compiled."""
    return ModeLibrary.from_charts(
        np.stack([peak.location for peak in peaks]),
        np.stack([peak.scale for peak in peaks]),
        log_weight=log_weight,
        capacity=max(16, 1 << (len(peaks) - 1).bit_length()),
    )


def log_mean(log_weight: Float[np.ndarray, "size n"]) -> tuple[Float[np.ndarray, " size"], Float[np.ndarray, " size"]]:
    """Log of the mean weight in each row, and its standard error, infinite with too few effective draws."""
    num = log_weight.shape[1]
    top = np.max(log_weight, axis=1, keepdims=True)
    weight = np.exp(log_weight - np.where(np.isfinite(top), top, 0.0))
    total = weight.sum(axis=1)
    with np.errstate(divide="ignore", invalid="ignore"):
        effective = total**2 / np.sum(weight**2, axis=1)
        log_mass = np.log(total / num) + top[:, 0]
        # the delta method: sd / mean / sqrt(n), which is sqrt(1/effective - 1/n)
        error = np.sqrt(np.maximum(1 / effective - 1 / num, 0.0))
    return log_mass, np.where(effective >= FEWEST_EFFECTIVE, error, np.inf)
