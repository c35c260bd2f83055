"""The mixture of Gaussians that bent modes are split by."""

import numpy as np
import pytest
from scipy import stats

from whmc.modes.gaussian_mixture import GaussianMixture, em_step, fit_gaussian_mixture, weighted_moments

WEIGHT = np.array([0.6, 0.4])
MEAN = np.array([[0.0, 0.0], [4.0, 1.0]])
COVARIANCE = np.array([[[1.0, 0.5], [0.5, 2.0]], [[0.3, -0.1], [-0.1, 0.2]]])
KNOWN = GaussianMixture(WEIGHT, MEAN, np.linalg.cholesky(COVARIANCE))


def draw(mixture, num, seed=0):
    rng = np.random.default_rng(seed)
    label = rng.choice(len(mixture.weight), num, p=mixture.weight)
    return mixture.mean[label] + np.einsum("nij,nj->ni", mixture.factor[label], rng.standard_normal((num, 2)))


def banana(num, seed=0):
    x = np.random.default_rng(seed).standard_normal((num, 2))
    return np.stack([2 * x[:, 0], 0.3 * x[:, 1] + x[:, 0] ** 2], axis=1)


def test_the_density_is_that_of_the_mixture():
    x = draw(KNOWN, 20)
    parts = [w * stats.multivariate_normal(m, c).pdf(x) for w, m, c in zip(WEIGHT, MEAN, COVARIANCE, strict=True)]
    np.testing.assert_allclose(KNOWN.log_density(x), np.log(np.sum(parts, axis=0)), rtol=1e-10)


def test_a_known_mixture_is_recovered():
    """10 000 draws: errors of 5 standard errors, with those of 4 000 draws of the lighter component for both."""
    found = fit_gaussian_mixture(draw(KNOWN, 10_000), 2)
    order = np.argsort(-found.weight)
    np.testing.assert_allclose(found.weight[order], WEIGHT, atol=5 * np.sqrt(0.24 / 10_000))
    for k, sd in zip(order, np.sqrt(COVARIANCE.max(axis=(1, 2))), strict=True):
        true = 0 if found.mean[k, 0] < 2 else 1
        np.testing.assert_allclose(found.mean[k], MEAN[true], atol=5 * sd / np.sqrt(4_000))
        covariance = found.factor[k] @ found.factor[k].T
        np.testing.assert_allclose(covariance, COVARIANCE[true], atol=5 * sd**2 * np.sqrt(2 / 4_000))


def test_the_likelihood_never_falls():
    """EM's theorem, but for the ridge, which is a millionth of the variance, and for the credit of two draws."""
    draws = banana(1000)
    mixture = weighted_moments(draws, np.random.default_rng(1).dirichlet(np.ones(4), len(draws)))
    heights = []
    for _ in range(60):
        mixture, height = em_step(mixture, draws)
        heights.append(height)
    assert np.min(np.diff(heights)) > -1e-3 and heights[-1] > heights[0] + 0.3


def test_a_component_of_few_draws_borrows_its_shape():
    """Three draws cannot tell a covariance in five dimensions: with its credit a component has that of the others."""
    rng = np.random.default_rng(3)
    many, few = rng.standard_normal((3000, 5)), 0.01 * rng.standard_normal((3, 5)) + 30
    draws = np.concatenate([many, few])
    share = (np.arange(3003)[:, None] >= 3000) == np.array([[False, True]])
    found = weighted_moments(draws, share.astype(float))
    covariance = found.factor @ np.swapaxes(found.factor, 1, 2)
    np.testing.assert_allclose(np.diagonal(covariance[0]), 1.0, atol=5 * np.sqrt(2 / 3000))
    np.testing.assert_allclose(np.diagonal(covariance[1]), 5 / 8, atol=0.1)  # five pseudo-draws beside three


def test_one_component_has_the_moments_of_the_draws():
    draws = banana(500)
    found = fit_gaussian_mixture(draws, 1)
    np.testing.assert_allclose(found.mean[0], draws.mean(axis=0), atol=1e-9)
    np.testing.assert_allclose(found.factor[0] @ found.factor[0].T, np.cov(draws.T, bias=True), rtol=1e-5, atol=1e-5)


def test_units_do_not_matter():
    draws, unit = banana(800), np.array([1e6, 1e-6])
    one, other = fit_gaussian_mixture(draws, 4), fit_gaussian_mixture(draws * unit + 1e3 * unit, 4)
    np.testing.assert_allclose(one.weight, other.weight, rtol=1e-6)
    np.testing.assert_allclose(one.mean * unit + 1e3 * unit, other.mean, rtol=1e-6)


def test_random_starts_find_more_than_one_start_alone(monkeypatch):
    """Held-out log density of bananas, on average over ten: .1 nats is half of what four charts must gain over two."""
    gains = []
    for seed in range(10):
        fit, held = banana(1000, seed), banana(1000, 100 + seed)
        several = fit_gaussian_mixture(fit, 2).log_density(held).mean()
        with monkeypatch.context() as patch:
            patch.setattr("whmc.modes.gaussian_mixture.RANDOM_STARTS", 0)
            gains.append(several - fit_gaussian_mixture(fit, 2).log_density(held).mean())
    assert np.mean(gains) > 0.05, gains


@pytest.mark.parametrize("size", [1, 2, 4])
@pytest.mark.parametrize(
    "draws",
    [
        np.tile([1e5, -2.0], (200, 1)),
        np.stack([np.linspace(0, 1, 200)] * 2, axis=1),
        np.stack([np.linspace(0, 1, 200), np.full(200, 3.0)], axis=1),
        np.repeat([[0.0, 0.0], [1.0, 1.0]], 100, axis=0),
        np.concatenate([np.zeros((199, 2)), [[1e9, 1e9]]]),
    ],
    ids=["one point", "a line", "a constant coordinate", "two points", "one far away"],
)
def test_degenerate_draws_give_a_mixture_all_the_same(draws, size):
    found = fit_gaussian_mixture(draws, size)
    assert abs(found.weight.sum() - 1) < 1e-9 and np.all(np.diagonal(found.factor, axis1=1, axis2=2) > 0)
    assert np.all(np.isfinite(found.log_density(draws)))
