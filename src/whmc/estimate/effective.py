"""Effective draws and R-hat (Vehtari, Gelman, Simpson, Carpenter, Bürkner 2021), for one scalar, (chains, draws).

With split chains, W the mean variance within them and B/n that between their means, var+ = W (n - 1)/n + B/n:

    rho_t = 1 - (W - mean_m acov_m(t)) / var+,      n_eff = m n / tau,
    tau = -1 + 2 sum_k P_k,   P_k = rho_2k + rho_2k+1  while positive, made monotone (Geyer 1992),
    R-hat = sqrt(var+ / W).

They are those of ArviZ, which the tests compare them with; importing ArviZ takes longer than importing JAX.
"""

from functools import lru_cache
from statistics import NormalDist

import numpy as np

from whmc._shapes import Float

FEWEST_DRAWS = 4
"""Of a chain: with fewer nothing can be said."""

MANY_DRAWS = 200_000
"""From this number on SciPy's quantiles are worth the time that it takes to import it."""


def effective_draws(values: Float[np.ndarray, "chains draws"]) -> float:
    """Effective draws of the bulk, from normal scores of the ranks. NaN for what cannot be said."""
    return _effective(_normal_scores(_split(values))) if _varies(values) else np.nan


def effective_draws_of_mean(values: Float[np.ndarray, "chains draws"]) -> float:
    """Effective draws for the mean, from the values themselves."""
    return _effective(_split(values)) if _varies(values) else np.nan


def r_hat(values: Float[np.ndarray, "chains draws"]) -> float:
    """The larger of R-hat of the ranks, and of the ranks of the distances from the median."""
    if len(values) < 2 or not _varies(values):
        return np.nan
    halves = _split(values)
    folded = np.abs(halves - np.median(halves))
    return max(_r_hat(_normal_scores(halves)), _r_hat(_normal_scores(folded)))


def _varies(values: Float[np.ndarray, "chains draws"]) -> bool:
    return values.shape[1] >= FEWEST_DRAWS and bool(np.ptp(values) > 0)


def _split(values: Float[np.ndarray, "chains draws"]) -> Float[np.ndarray, "halves half"]:
    """Each chain as two; the draw in the middle of an odd number is left out."""
    half = values.shape[1] // 2
    return np.concatenate([values[:, :half], values[:, -half:]])


def _r_hat(values: Float[np.ndarray, "chains draws"]) -> float:
    num = values.shape[1]
    # a chain that stands still has no variance, and what rounding its mean leaves of one is no measure of anything
    within = np.mean(np.where(np.ptp(values, axis=1) > 0, np.var(values, axis=1, ddof=1), 0.0))
    between = np.var(np.mean(values, axis=1), ddof=1)
    with np.errstate(divide="ignore", invalid="ignore"):  # all chains stand still
        return float(np.sqrt((num - 1) / num + between / within))


def _effective(values: Float[np.ndarray, "chains draws"]) -> float:
    chains, num = values.shape
    covariance = _autocovariance(values).mean(axis=0)
    within = covariance[0] * num / (num - 1)
    total = covariance[0] + (np.var(np.mean(values, axis=1), ddof=1) if chains > 1 else 0.0)
    correlation = 1 - (within - covariance) / total
    correlation[0] = 1.0
    even, odd = correlation[0 : num - num % 2 : 2], correlation[1::2]
    # the last lags are hardly averaged over anything: they are left out
    pairs = (even + odd)[: 1 + max(0, (num - 3) // 2)]
    kept = int(np.argmax(pairs <= 0)) if np.any(pairs <= 0) else len(pairs) - 1
    time = -1 + 2 * float(np.sum(np.minimum.accumulate(pairs[:kept])))
    time += max(float(even[kept]), 0.0)  # the first pair that is left out may begin with more than noise
    size = chains * num
    return size / max(time, 1 / np.log10(size))  # antithetic draws may be worth more than independent ones


def _autocovariance(values: Float[np.ndarray, "chains draws"]) -> Float[np.ndarray, "chains draws"]:
    """Of each chain by lag, divided by the number of draws."""
    num = values.shape[1]
    length = 1 << (2 * num - 1).bit_length()
    waves = np.fft.rfft(values - values.mean(axis=1, keepdims=True), n=length, axis=1)
    return np.fft.irfft(np.abs(waves) ** 2, n=length, axis=1)[:, :num] / num


def _normal_scores(values: Float[np.ndarray, "chains draws"]) -> Float[np.ndarray, "chains draws"]:
    """Normal quantiles of the ranks, (r - 3/8) / (n + 1/4); values that are equal share their mean rank."""
    _, place, count = np.unique(values, return_inverse=True, return_counts=True)
    twice = 2 * np.cumsum(count) - (count - 1)  # mean ranks are whole or half
    return _scores_of_ranks(values.size)[twice - 2][place.reshape(values.shape)]


@lru_cache(maxsize=2)
def _scores_of_ranks(num: int) -> Float[np.ndarray, " ranks"]:
    """Of ranks 1, 1½, 2 to `num`: the same for every parameter."""
    return _normal_quantile((0.5 * np.arange(2, 2 * num + 1) - 0.375) / (num + 0.25))


def _normal_quantile(chance: Float[np.ndarray, " n"]) -> Float[np.ndarray, " n"]:
    if len(chance) > MANY_DRAWS:
        from scipy.special import ndtri

        return np.asarray(ndtri(chance))
    quantile = NormalDist().inv_cdf
    return np.array([quantile(one) for one in chance.tolist()])
