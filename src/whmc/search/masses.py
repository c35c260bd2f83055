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
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from whmc._shapes import Array, Bool, Float, Int
from whmc.keys import generator
from whmc.modes.chart_data import log_weights_of
from whmc.modes.library import ModeLibrary
from whmc.modes.mixture import log_base_of, log_components_of
from whmc.search.peak import Peak, charts_of
from whmc.target.rows import logdensities
from whmc.target.target import Target

NUM_DRAWS = 256
MANY_DRAWS = 4096
"""Importance draws of a mode; many where few have left it in doubt whether the mode is to be kept."""

TAIL_DOF = 4.0
"""Degrees of freedom of the Student-t half of the draws."""

PASSES = 5
SAME_MASS = 1e-3
"""Passes of the masses at most, each with the shares of the space by those before, until no log mass changes by more.
They evaluate no density."""

PROBES = 16
NEGLIGIBLE = 15.0
"""Charts that lie lower by this at each of so many draws of a chart, in nats, have no share of them."""

FEWEST_EFFECTIVE = 10.0
"""With fewer effective draws the error is infinite: one draw outweighs the others, and a heavier one may be missing."""

NATS_A_DIMENSION = 0.4
"""Log mass that a chart can miss for each dimension: a product of Student-t with two degrees of freedom, whose chart is
that of its curvature, lacks .36. Where importance draws tell nothing, the mass is known to within this."""

Doubtful = Callable[[Float[np.ndarray, " size"], Float[np.ndarray, " size"]], Bool[np.ndarray, " size"]]
"""From log shares and their errors: whether they are not known well enough."""


@dataclasses.dataclass(frozen=True)
class Masses:
    """Log masses of modes with their standard errors, infinite where the draws tell nothing.

    log_known: the log mass of what is known besides.
    """

    log_mass: Float[np.ndarray, " size"]
    error: Float[np.ndarray, " size"]
    num_gradients: int
    log_known: float = -np.inf

    @property
    def log_share(self) -> Float[np.ndarray, " size"]:
        """Of the sum of all."""
        return self.log_mass - np.logaddexp(np.logaddexp.reduce(self.log_mass), self.log_known)


def laplace_masses(peaks: Sequence[Peak]) -> Masses:
    """By Laplace's formula: costs nothing, and is comparable among polished maxima of similar shape."""
    return Masses(np.array([peak.log_laplace for peak in peaks]), np.zeros(len(peaks)), 0)


def weigh(
    target: Target,
    peaks: Sequence[Peak],
    key: Array,
    doubtful: Doubtful | None = None,
    beside: tuple[ModeLibrary, float] | None = None,
) -> Masses:
    """Masses by importance draws. Those of which `doubtful` says that they matter and are not known well enough are
    drawn again, with many more draws.

    beside: charts whose masses are known, by their weights and the log evidence. They are not drawn from.
    """
    size, rng = len(peaks), generator(key)
    laplace = np.array([peak.log_laplace for peak in peaks])
    others, known_mass = ([], np.zeros(0)) if beside is None else _charts_and_masses(*beside)
    library = chart_library([*peaks, *others])
    log_ratio, position = _log_ratios(target, peaks, rng, NUM_DRAWS)
    guess = np.append(laplace, known_mass)
    log_mass, numbers = np.zeros(size) if beside is None else laplace, np.arange(size)
    overlaps = _overlaps(library, position, numbers, guess)
    for _ in range(PASSES):
        before = log_mass
        log_mass, error = log_mean(log_ratio + _log_shares(overlaps, np.append(before, known_mass)))
        if np.allclose(log_mass, before, rtol=0, atol=SAME_MASS):
            break
    cost, log_known = size * NUM_DRAWS, float(np.logaddexp.reduce(known_mass, initial=-np.inf))
    again = np.zeros(0, int)
    if doubtful is not None:
        again = np.flatnonzero(doubtful(Masses(log_mass, error, cost, log_known).log_share, error))
    if len(again):
        log_ratio, position = _log_ratios(target, [peaks[k] for k in again.tolist()], rng, MANY_DRAWS)
        shares = _log_shares(_overlaps(library, position, again, guess), np.append(log_mass, known_mass))
        log_mass[again], error[again] = log_mean(log_ratio + shares)
        cost += len(again) * MANY_DRAWS
    unseen = ~np.isfinite(log_mass)  # not one draw inside the support
    # one draw outweighs all others: it may have fallen into a mode that nobody has found, far out in the tails
    most = np.where([peak.at_peak for peak in peaks], laplace + NATS_A_DIMENSION * target.dim, np.inf)
    log_mass = np.where(np.isinf(error), np.minimum(log_mass, most), log_mass)
    return Masses(np.where(unseen, laplace, log_mass), error, cost, log_known)


def _charts_and_masses(library: ModeLibrary, log_evidence: float) -> tuple[list[Peak], Float[np.ndarray, " size"]]:
    """The charts of a library as peaks, and their parts of the evidence."""
    charts = library.charts()
    return [Peak.of(one, -np.inf) for one in charts], log_weights_of(charts) + log_evidence


def _log_ratios(
    target: Target, peaks: Sequence[Peak], rng: np.random.Generator, num: int
) -> tuple[Float[np.ndarray, "size n"], Float[np.ndarray, "size n dim"]]:
    """log( pi / b_k ) at draws of each chart k, b_k the density that they are drawn from; and the draws."""
    z = _draws(rng, len(peaks), num, target.dim)
    position = np.stack([peak.unwhiten(rows) for peak, rows in zip(peaks, z, strict=True)])
    square = np.sum(z**2, axis=-1)
    halves = (log_base_of(square, target.dim, dof) for dof in (np.inf, TAIL_DOF))
    log_drawn = np.logaddexp(*halves) - np.log(2.0) - np.array([peak.chart.scale.log_det for peak in peaks])[:, None]
    return logdensities(target, position.reshape(-1, target.dim)).reshape(square.shape) - log_drawn, position


class Overlap(NamedTuple):
    """The charts that have a share of the draws of one chart, itself first, and their log densities there."""

    charts: Int[np.ndarray, " few"]
    height: Float[np.ndarray, "few n"]


def _overlaps(
    library: ModeLibrary,
    position: Float[np.ndarray, "some n dim"],
    numbers: Int[np.ndarray, " some"],
    guess: Float[np.ndarray, " size"],
) -> list[Overlap]:
    """Of the draws of some charts. Which charts overlap is judged by a few of the draws, with equal log masses and with
    those that are guessed: of hundreds of modes only neighbours do."""
    dim, found = position.shape[2], []
    for k, draws in zip(numbers.tolist(), position, strict=True):
        probes = draws[:: max(1, len(draws) // PROBES)]
        heights = log_components_of(library, probes)
        apart = np.max(heights - heights[k], axis=1)
        with np.errstate(invalid="ignore"):  # the guess of a chart around a hollow is -inf
            near = np.fmax(apart, apart + guess - guess[k]) > -NEGLIGIBLE
        near[k] = False
        charts = np.append(k, np.flatnonzero(near))
        weight = np.asarray(library.log_weight)[charts]
        found.append(Overlap(charts, log_components_of(library, draws.reshape(-1, dim), charts) - weight[:, None]))
    return found


def _log_shares(overlaps: Sequence[Overlap], log_mass: Float[np.ndarray, " size"]) -> Float[np.ndarray, "some n"]:
    """log r_k at the draws of each chart k."""
    shares = []
    for charts, height in overlaps:
        heights = height + log_mass[charts][:, None]
        with np.errstate(invalid="ignore"):
            share = heights[0] - np.logaddexp.reduce(heights, axis=0)
        shares.append(np.where(np.isnan(share), -np.inf, share))
    return np.stack(shares)


def _draws(rng: np.random.Generator, size: int, num: int, dim: int) -> Float[np.ndarray, "size n dim"]:
    """Points of a standard chart: half of them Gaussian, half Student-t."""
    z = rng.standard_normal((size, num, dim))
    tails = num // 2
    radius = np.sqrt(TAIL_DOF / rng.chisquare(TAIL_DOF, (size, tails, 1)))
    z[:, :tails] *= radius
    return z


def chart_library(peaks: Sequence[Peak], log_weight: np.ndarray | None = None) -> ModeLibrary:
    """The peaks as charts, of equal weight unless told, with room to grow, so that few shapes are compiled."""
    return ModeLibrary.of(charts_of(peaks, log_weight), capacity=max(16, 1 << (len(peaks) - 1).bit_length()))


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
