"""The truth that the problems claim: against published figures, and of draws against density."""

from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.special import logsumexp
from scipy.stats import chisquare

from whmc.testing import Problem, eggbox, gmm40, himmelblau, liang_wong, many_well, shells
from whmc.testing.classics import classic_data

pytestmark = pytest.mark.xdist_group("classics")  # its targets are made and compiled once, not in every worker

CLASSICS = {
    "Liang-Wong A": lambda: liang_wong("A"),
    "Liang-Wong B": lambda: liang_wong("B"),
    "GMM40": gmm40,
    "eggbox": eggbox,
}


@cache
def classic(name: str) -> Problem:
    return CLASSICS[name]()


def second_moment(problem: Problem) -> np.ndarray:
    inside = np.sum(problem.scales**2, axis=2)  # a chart's scale is a Cholesky factor
    return problem.weights @ (problem.means**2 + inside)


@pytest.mark.parametrize("case", ["A", "B"])
def test_liang_wong_has_the_published_moments(case):
    published = classic_data("liang_wong_20")[f"case_{case}"]
    problem = classic(f"Liang-Wong {case}")
    assert problem.target.starts == (0.0, 10.0)
    np.testing.assert_allclose(problem.mean, published["E_x"], atol=1e-6)
    np.testing.assert_allclose(second_moment(problem), published["E_x2"], atol=1e-6)
    if case == "B":
        extremes = problem.weights.min(), problem.weights.max()
        np.testing.assert_allclose(extremes, (published["weight_min"], published["weight_max"]), atol=1e-7)


def test_liang_wong_has_two_cases():
    with pytest.raises(ValueError, match="got 'C'"):
        liang_wong("C")


def test_gmm40_has_forty_modes_and_the_published_moments():
    problem, published = classic("GMM40"), classic_data("gmm40_fab")
    assert problem.weights.shape == (40,) and abs(problem.weights.sum() - 1) < 1e-12
    np.testing.assert_allclose(problem.mean, published["E_x"], atol=1e-6)
    np.testing.assert_allclose(second_moment(problem), published["E_x2"], atol=1e-5)
    low, high = problem.target.starts
    assert low < problem.means.min() and high > problem.means.max()


@pytest.mark.parametrize("name", CLASSICS)
def test_draws_have_the_weights_and_the_moments(name):
    problem = classic(name)
    n = 20_000
    x, label = problem.draw(np.random.default_rng(5), n)
    assert x.shape == (n, 2)
    counts = np.bincount(label, minlength=len(problem.weights))
    assert chisquare(counts, n * problem.weights).pvalue > 1e-6
    # in its mode's chart a draw has mean 0 and covariance 1
    z = np.linalg.solve(problem.scales[label], (x - problem.means[label])[:, :, None])[:, :, 0]
    assert np.all(np.abs(z.mean(axis=0)) < 5 / np.sqrt(n))
    products = z[:, :, None] * z[:, None, :]
    assert np.all(np.abs(products.mean(axis=0) - np.eye(2)) < 5 * products.std(axis=0) / np.sqrt(n))


@pytest.mark.parametrize("name", CLASSICS)
def test_draws_have_the_density(name):
    """E[score] = 0 and E[-Hessian] = E[score scoreᵀ] under the density, whatever its normaliser."""
    problem = classic(name)
    n = 20_000
    x = jnp.asarray(problem.draw(np.random.default_rng(6), n)[0])
    score, curvature = (np.asarray(jax.jit(jax.vmap(f(problem.target)))(x)) for f in (jax.grad, jax.hessian))
    difference = score[:, :, None] * score[:, None, :] + curvature
    for values in (score, difference):
        assert np.all(np.abs(values.mean(axis=0)) < 5 * values.std(axis=0) / np.sqrt(n))


def test_eggbox_evidence_is_the_published_and_the_densitys():
    problem = classic("eggbox")
    assert abs(problem.log_evidence - 235.85594) < 1e-3
    # the narrowest peak has an sd of 0.0127, and beyond 16 lies 1e-6 of an edge
    axis = jnp.arange(-16.0, 16.0, 0.016)
    row = jax.vmap(lambda a: jax.nn.logsumexp(jax.vmap(lambda b: problem.target(jnp.stack([a, b])))(axis)))
    integral = logsumexp(np.asarray(jax.jit(lambda: jax.lax.map(lambda a: row(a[None])[0], axis))()))
    assert abs(integral + 2 * np.log(0.016) - problem.log_evidence) < 1e-3


def test_eggbox_peaks_are_maxima_and_whole_half_or_quarter():
    problem = classic("eggbox")
    peaks = jnp.asarray(problem.locations)
    score, curvature = (np.asarray(jax.jit(jax.vmap(f(problem.target)))(peaks)) for f in (jax.grad, jax.hessian))
    np.testing.assert_allclose(score, 0.0, atol=1e-8)
    assert np.linalg.eigvalsh(curvature).max() < 0
    assert np.linalg.norm(problem.locations[:, None] - problem.locations, axis=2)[~np.eye(18, dtype=bool)].min() > 0.1
    shares, sizes = np.unique(np.round(12.5 * problem.weights, 6), return_counts=True)
    np.testing.assert_allclose(shares, [0.25, 0.5, 1.0])
    np.testing.assert_array_equal(sizes, [2, 8, 8])


@pytest.mark.parametrize("pairs", [1, 3])
def test_many_well_has_the_known_evidence_and_weights(pairs):
    problem = many_well(pairs)
    assert abs(problem.log_evidence - pairs * 10.293479707) < 1e-6
    right = (problem.locations[:, 0::2] > 0).sum(axis=1)
    np.testing.assert_allclose(problem.weights, 0.844307096**right * 0.155692904 ** (pairs - right), atol=1e-6)


@pytest.mark.parametrize(
    ("temperature", "log_evidence", "weights", "mean"),
    [
        (1.0, -0.898679, [0.340813, 0.214558, 0.159187, 0.285442], [0.842156, 0.302836]),
        pytest.param(
            10.0, 1.495319, [0.348369, 0.205967, 0.15005, 0.295615], [0.956062, 0.303726], marks=pytest.mark.ci
        ),
    ],
)
def test_himmelblau_has_the_known_evidence_and_weights(temperature, log_evidence, weights, mean):
    problem = himmelblau(temperature)
    assert abs(problem.log_evidence - log_evidence) < 2e-6
    np.testing.assert_allclose(problem.weights, weights, atol=1e-5)
    np.testing.assert_allclose(problem.mean, mean, atol=1e-4)


@pytest.mark.parametrize(("dim", "log_evidence"), [(2, -1.74564), (5, -5.6736), (10, -14.59049)])
def test_shells_have_the_known_evidence(dim, log_evidence):
    assert abs(shells(dim).log_evidence - log_evidence) < 1e-5
