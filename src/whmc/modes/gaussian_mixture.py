"""A mixture of a few Gaussians fitted to draws by expectation-maximisation (EM). All NumPy.

scikit-learn has this too, but takes seconds to import.
"""

import dataclasses

import numpy as np

from whmc._shapes import Float, Int

MAX_EM_STEPS = 50
"""EM gains most in its first steps; a fit that still improves slowly after these is good enough for a chart."""

TRIAL_EM_STEPS = 8
"""Steps of EM from each start. Only the best is taken further."""

LEAST_EM_GAIN = 1e-4
"""EM stops when a step gains less mean log density than this, in nats a draw."""

RANDOM_STARTS = 3
"""EM ends in a local maximum: it is started this many times at random, and once from draws that lie far apart. On
banana-shaped draws that gains .1 to .2 nats a draw over the one start."""

RIDGE = 1e-6
"""Added to every variance, relative to the variance of all draws: no component shrinks to a point."""

PSEUDO_DRAWS = 1.0
"""Draws of the mean covariance within components that every component is credited with, for each dimension. A component
of few draws then borrows its shape from the others; one of many keeps its own."""


@dataclasses.dataclass(frozen=True)
class GaussianMixture:
    """p(x) = Σ_k w_k N(x; m_k, L_k L_kᵀ)."""

    weight: Float[np.ndarray, " size"]
    mean: Float[np.ndarray, "size dim"]
    factor: Float[np.ndarray, "size dim dim"]

    def log_components(self, draws: Float[np.ndarray, "n dim"]) -> Float[np.ndarray, "n size"]:
        """log(w_k N(x; m_k, L_k L_kᵀ)) for every draw and component."""
        constant = 0.5 * draws.shape[1] * np.log(2 * np.pi)
        columns = []
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
    trials = [climb(_from_seeds(z, seeds), z, TRIAL_EM_STEPS) for seeds in starts]
    best = climb(max(trials, key=lambda fit: fit.log_density(z).mean()), z)
    return GaussianMixture(best.weight, centre + sd * best.mean, sd[:, None] * best.factor)


def climb(
    mixture: GaussianMixture, draws: Float[np.ndarray, "n dim"], max_steps: int = MAX_EM_STEPS
) -> GaussianMixture:
    """EM from a mixture until a step gains next to nothing."""
    height = -np.inf
    for _ in range(max_steps):
        before = height
        mixture, height = em_step(mixture, draws)
        if height < before + LEAST_EM_GAIN:
            break
    return mixture


def em_step(mixture: GaussianMixture, draws: Float[np.ndarray, "n dim"]) -> tuple[GaussianMixture, float]:
    """One step of EM, and the mean log density of the mixture that it started from.

    The new components have the moments of the draws, weighted by the old ones' responsibilities.
    """
    rows = mixture.log_components(draws)
    log_density = np.logaddexp.reduce(rows, axis=1)
    return weighted_moments(draws, np.exp(rows - log_density[:, None])), float(log_density.mean())


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
