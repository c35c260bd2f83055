"""A mixture of a few Gaussians fitted to draws by expectation-maximisation (EM). All NumPy.

scikit-learn has this too, but takes seconds to import.
"""

import dataclasses
from typing import Protocol, runtime_checkable

import numpy as np

from whmc._shapes import Float, Int

MAX_EM_STEPS = 50
"""EM gains most in its first steps; a fit that still improves slowly after these is good enough for a chart."""

TRIAL_EM_STEPS = 8
"""Steps of EM from each start. Only the best is taken further."""

TRIAL_DRAWS = 1000
"""Draws that these steps take, about: to tell a good start from a bad one they are enough."""

LEAST_EM_GAIN = 1e-4
"""EM stops when a step gains less mean log density than this, in nats a draw."""

RANDOM_STARTS = 3
"""EM ends in a local maximum: it is started this many times at random, and once from draws that lie far apart. On
banana-shaped draws that gains .1 to .2 nats a draw over the one start."""

RIDGE = 1e-6
"""Added to every variance, relative to the variance of all draws: no component shrinks to a point."""

HOME_SHARES = (0.05, 0.95)
"""Least and largest share of a density that stays beside the Gaussians: neither dies out."""

PSEUDO_DRAWS = 1.0
"""Draws of the mean covariance within components that every component is credited with, for each dimension. A component
of few draws then borrows its shape from the others; one of many keeps its own."""


@runtime_checkable
class Density(Protocol):
    """Whatever gives draws a density."""

    def log_density(self, draws: Float[np.ndarray, "n dim"]) -> Float[np.ndarray, " n"]: ...


@dataclasses.dataclass(frozen=True)
class GaussianMixture:
    """p(x) = h H(x) + (1 - h) Σ_k w_k N(x; m_k, L_k L_kᵀ).

    home: H, a density that stays as it is; its share h is learned with the rest. None: Gaussians only, h = 0.
    """

    weight: Float[np.ndarray, " size"]
    mean: Float[np.ndarray, "size dim"]
    factor: Float[np.ndarray, "size dim dim"]
    home: Density | None = None
    home_share: float = 0.0

    def beside(self, home: Density, share: float) -> "GaussianMixture":
        """These Gaussians beside another density, which has this share."""
        return dataclasses.replace(self, home=home, home_share=share)

    def log_components(self, draws: Float[np.ndarray, "n dim"]) -> Float[np.ndarray, "n size"]:
        """log((1 - h) w_k N(x; m_k, L_k L_kᵀ)) for every draw and component; the home, if there is one, comes first."""
        constant = 0.5 * draws.shape[1] * np.log(2 * np.pi) - np.log1p(-self.home_share)
        columns = [] if self.home is None else [np.log(self.home_share) + self.home.log_density(draws)]
        for weight, mean, factor in zip(self.weight, self.mean, self.factor, strict=True):
            z = (draws - mean) @ np.linalg.inv(factor).T
            log_det = np.sum(np.log(np.diagonal(factor)))
            columns.append(np.log(weight) - log_det - 0.5 * np.einsum("nd,nd->n", z, z) - constant)
        return np.stack(columns, axis=1)

    def log_density(self, draws: Float[np.ndarray, "n dim"]) -> Float[np.ndarray, " n"]:
        return np.logaddexp.reduce(self.log_components(draws), axis=1)


def fit_gaussian_mixture(draws: Float[np.ndarray, "n dim"], size: int) -> GaussianMixture:
    """The mixture of `size` Gaussians with the highest likelihood that EM finds from several starts.

    The same draws always give the same mixture. EM runs in standardised coordinates, so units do not matter.
    """
    centre, sd = draws.mean(axis=0), draws.std(axis=0)
    sd = np.where(sd > 0, sd, 1.0)  # a coordinate in which all draws agree
    z = (draws - centre) / sd
    rng = np.random.default_rng(0)
    starts = [_far_apart(z, size)] + [_spread_at_random(z, size, rng) for _ in range(RANDOM_STARTS if size > 1 else 0)]
    some = z[:: max(1, len(z) // TRIAL_DRAWS)]
    trials = [climb(_from_seeds(z, seeds), some, TRIAL_EM_STEPS) for seeds in starts]
    best = climb(max(trials, key=lambda fit: fit.log_density(z).mean()), z)
    return GaussianMixture(best.weight, centre + sd * best.mean, sd[:, None] * best.factor)


def climb(
    mixture: GaussianMixture, draws: Float[np.ndarray, "n dim"], max_steps: int = MAX_EM_STEPS
) -> GaussianMixture:
    """EM from a mixture until a step gains next to nothing."""
    home, height = mixture.home, -np.inf
    if home is not None:
        mixture = mixture.beside(_Known(home.log_density(draws)), mixture.home_share)
    for _ in range(max_steps):
        before = height
        mixture, height = em_step(mixture, draws)
        if height < before + LEAST_EM_GAIN:
            break
    return mixture if home is None else mixture.beside(home, mixture.home_share)


@dataclasses.dataclass(frozen=True)
class _Known:
    """A density that is known at the draws."""

    rows: Float[np.ndarray, " n"]

    def log_density(self, draws: Float[np.ndarray, "n dim"]) -> Float[np.ndarray, " n"]:
        del draws
        return self.rows


def em_step(mixture: GaussianMixture, draws: Float[np.ndarray, "n dim"]) -> tuple[GaussianMixture, float]:
    """One step of EM, and the mean log density of the mixture that it started from.

    The new components have the moments of the draws, weighted by the old ones' responsibilities.
    """
    rows = mixture.log_components(draws)
    log_density = np.logaddexp.reduce(rows, axis=1)
    share, height = np.exp(rows - log_density[:, None]), float(log_density.mean())
    if mixture.home is None:
        return weighted_moments(draws, share), height
    home_share = float(np.clip(share[:, 0].mean(), *HOME_SHARES))
    return weighted_moments(draws, share[:, 1:]).beside(mixture.home, home_share), height


def weighted_moments(draws: Float[np.ndarray, "n dim"], share: Float[np.ndarray, "n size"]) -> GaussianMixture:
    """Gaussians with the moments of the draws, where component k counts draw n `share[n, k]` times.

    With S_k the scatter of component k and W = Σ S_k / n, its covariance is (S_k + a W) / (n_k + a): the most probable
    one if, beforehand, W was as good as seen in a = `PSEUDO_DRAWS` D draws.
    """
    total = share.sum(axis=0) + 1e-12
    mean = (share.T @ draws) / total[:, None]
    scatter = np.stack([_scatter(draws - m, s) for s, m in zip(share.T, mean, strict=True)])
    within, credit = scatter.sum(axis=0) / total.sum(), PSEUDO_DRAWS * draws.shape[1]
    ridge = RIDGE * np.diag(draws.var(axis=0) + np.finfo(float).tiny)
    covariance = (scatter + credit * within) / (total + credit)[:, None, None] + ridge
    return GaussianMixture(total / total.sum(), mean, np.linalg.cholesky(covariance))


def _scatter(shift: Float[np.ndarray, "n dim"], share: Float[np.ndarray, " n"]) -> Float[np.ndarray, "dim dim"]:
    return (share[:, None] * shift).T @ shift


def _from_seeds(z: Float[np.ndarray, "n dim"], seeds: Int[np.ndarray, " size"]) -> GaussianMixture:
    """Each component from the draws that are nearest to its seed."""
    nearest = np.argmin([np.sum((z - z[seed]) ** 2, axis=1) for seed in seeds], axis=0)
    return weighted_moments(z, (nearest[:, None] == np.arange(len(seeds))).astype(float))


def _far_apart(z: Float[np.ndarray, "n dim"], size: int) -> Int[np.ndarray, " size"]:
    """The draw farthest from the mean, then always the one farthest from those chosen."""
    square = np.sum(z**2, axis=1)
    seeds: list[int] = []
    for _ in range(size):
        seeds.append(int(np.argmax(square)))
        away = np.sum((z - z[seeds[-1]]) ** 2, axis=1)
        square = away if len(seeds) == 1 else np.minimum(square, away)
    return np.array(seeds)


def _spread_at_random(z: Float[np.ndarray, "n dim"], size: int, rng: np.random.Generator) -> Int[np.ndarray, " size"]:
    """Draws taken at random, with probability proportional to the squared distance to those chosen (k-means++)."""
    seeds = [int(rng.integers(len(z)))]
    while len(seeds) < size:
        square = np.min([np.sum((z - z[seed]) ** 2, axis=1) for seed in seeds], axis=0)
        total = square.sum()
        chance = square / total if total > 0 else None  # where all draws agree, any will do
        seeds.append(int(rng.choice(len(z), p=chance)))
    return np.array(seeds)
