"""The truth that the shapes claim: exact draws against expectations and density, normalisation by quadrature."""

from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.linalg import toeplitz
from scipy.special import logsumexp
from scipy.stats import multivariate_normal, multivariate_t, norm
from scipy.stats.qmc import Sobol

from whmc.testing import (
    SHAPES,
    Shape,
    ar1_pair,
    funnel_pair,
    many_gaussians,
    product_t,
    rastrigin,
    ridge,
    twisted_pair,
)
from whmc.testing.boltzmann import boltzmann_data
from whmc.testing.robot import GOAL, LOG_EVIDENCE, NOISE, SPREAD, SQUARES, reached

pytestmark = pytest.mark.xdist_group("shapes")  # its targets are made and compiled once, not in every worker

NUM = 4000
TESTED = [name for name in SHAPES if name not in ("rastrigin-3", "ar1-1000")]
"""The others are the same in another dimension."""


@cache
def shape(name: str) -> Shape:
    return SHAPES[name]()


@cache
def exact(name: str) -> np.ndarray:
    return shape(name).draw(np.random.default_rng(1), NUM)


def scores(values: np.ndarray, truth: np.ndarray) -> np.ndarray:
    """Gaps between the means of rows and the truth, in standard errors."""
    error = values.std(axis=0) / np.sqrt(len(values))
    # a cell without a draw: as in a count, two from four
    return np.abs(values.mean(axis=0) - truth) / np.maximum(error, 2 / len(values))


@pytest.mark.parametrize("name", TESTED)
def test_draws_have_the_expectations(name):
    one = shape(name)
    found = one.measure(exact(name).reshape(4, NUM // 4, -1))
    assert found.shape == (4, NUM // 4, len(one.names)) and one.truth.shape == (len(one.names),)
    assert one.shares.any() and found[..., one.shares].min() >= 0 and found[..., one.shares].max() <= 1
    assert scores(found.reshape(NUM, -1), one.truth).max() < 5


@pytest.mark.parametrize("name", TESTED)
def test_draws_have_the_density(name):
    """Stein's identities, E[score] = 0 and E[x_i score_i] = -1, hold whatever the normaliser."""
    x = exact(name)
    score = np.asarray(jax.jit(jax.vmap(jax.grad(shape(name).target)))(jnp.asarray(x)))
    assert scores(score, np.zeros(x.shape[1])).max() < 5.5
    assert scores((x - x.mean(axis=0)) * score, np.full(x.shape[1], -1.0)).max() < 5.5


@pytest.mark.parametrize("name", TESTED)
def test_starts_hold_the_modes(name):
    target, x = shape(name).target, exact(name)
    if target.bounds is not None:
        x = np.asarray(jax.vmap(target.unflatten)(jnp.asarray(x)))
    low, high = target.starts
    assert np.mean((x > low) & (x < high)) > 0.995


def integral(one: Shape, *axes: np.ndarray) -> float:
    """log of the integral of the density as it is written, over sinh of the axes: fine in the middle, and wide."""
    points = np.stack(np.meshgrid(*(np.sinh(axis) for axis in axes), indexing="ij"), axis=-1).reshape(-1, len(axes))
    stretch = sum(np.log(np.cosh(axis)) for axis in np.meshgrid(*axes, indexing="ij")).ravel()
    logs = np.asarray(jax.jit(jax.vmap(one.target.logdensity))(jnp.asarray(points)))
    return float(logsumexp(logs + stretch) + sum(np.log(axis[1] - axis[0]) for axis in axes))


WIDE = np.arange(-6.0, 6.0, 0.015)


@pytest.mark.parametrize(
    ("one", "axes"),
    [
        (twisted_pair(2), (WIDE[::2], WIDE)),
        (twisted_pair(2, rotated=True), (WIDE, WIDE)),
        (funnel_pair(2), (WIDE, WIDE)),
        (product_t(1), (np.arange(-12.0, 12.0, 0.01),)),
        (product_t(2, 3), (WIDE * 2, WIDE * 2)),
        (many_gaussians(2, 5), (WIDE, WIDE)),
        (ar1_pair(2), (WIDE[::4], WIDE[::4])),
    ],
    ids=lambda value: value.name if isinstance(value, Shape) else "",
)
def test_densities_have_integral_one(one, axes):
    assert one.log_evidence == 0.0 and abs(integral(one, *axes)) < 1e-4


@pytest.mark.parametrize("one", [ridge(), ridge(2), rastrigin(2)], ids=lambda one: one.name)
def test_bounded_densities_have_the_evidence(one):
    low, high = one.target.bounds.low[0], one.target.bounds.high[0]
    step = (high - low) / 1000
    axis = low + step * (np.arange(1000) + 0.5)
    points = jnp.asarray(np.stack(np.meshgrid(axis, axis), axis=-1).reshape(-1, 2))
    total = logsumexp(np.asarray(jax.jit(jax.vmap(one.target.logdensity))(points))) + 2 * np.log(step)
    assert abs(total - one.log_evidence) < 1e-4


def test_the_evidence_is_the_known_one():
    known = {"ridge": -11.879441, "rastrigin-2": -7.621733, "rastrigin-3": -11.432599, "rastrigin-5": -19.054332}
    for name, log_evidence in known.items():
        assert abs(shape(name).log_evidence - log_evidence) < 2e-6
    assert shape("ridge-pair").log_evidence == shape("ridge").log_evidence
    np.testing.assert_allclose(
        shape("rastrigin-5").expected["weight"][:5], [0.01053, 0.20808, 0.56263, 0.20808, 0.01053], atol=1e-5
    )


def test_boltzmann_states_sum_to_what_the_file_says():
    one, data = shape("boltzmann"), boltzmann_data()
    assert abs(one.log_evidence - 145.720956) < 1e-6 and abs(one.log_evidence - data["log_evidence"]) < 1e-9
    np.testing.assert_allclose(one.expected["x"], data["mean"], atol=1e-9)
    np.testing.assert_allclose(one.expected["weight"], [0.17, 0.16, 0.13, 0.12], atol=0.005)


@pytest.mark.parametrize("name", ["boltzmann", "spike-slab"])
def test_draws_have_the_evidence(name):
    """E[q/π] = 1/Z under π, with q a Gaussian inside of the mode that has the most draws."""
    one, x = shape(name), exact(name)
    if name == "boltzmann":
        data = boltzmann_data()
        spins, count = np.unique(np.sign(x @ data["Q"].T + data["b"]), axis=0, return_counts=True)
        log_q = multivariate_normal(spins[count.argmax()] @ data["Q"]).logpdf(x)
    else:
        inside = np.round(one.measure(x[None])[0][:, one.shares])
        _, which, count = np.unique(inside, axis=0, return_inverse=True, return_counts=True)
        mine = x[which.ravel() == count.argmax()]
        log_q = multivariate_normal(mine.mean(axis=0), 0.8 * np.cov(mine.T)).logpdf(x)
    ratio = np.exp(log_q - np.asarray(jax.jit(jax.vmap(one.target))(jnp.asarray(x))) + one.log_evidence)
    assert ratio.std() / np.sqrt(NUM) < 0.1
    assert scores(ratio[:, None], np.ones(1))[0] < 5


def test_gaussians_are_those_of_scipy():
    pair = ar1_pair(60)
    x = pair.draw(np.random.default_rng(4), 20)
    path = multivariate_normal(np.zeros(60), toeplitz(0.8 ** np.arange(60)))
    logs = [np.log(0.6) + path.logpdf(x), np.log(0.4) + path.logpdf(x - 1.5)]
    values = jax.jit(jax.vmap(pair.target))(jnp.asarray(x))
    np.testing.assert_allclose(np.asarray(values), np.logaddexp(*logs), rtol=1e-9)
    # forty Gaussians that do not overlap: at a draw, one of them and its weight
    one, x = shape("many-gaussians"), exact("many-gaussians")[:20]
    weight = one.measure(x[None])[0][:, one.shares]
    assert weight.max(axis=1).min() > 1 - 1e-9
    distance = -2 * (
        np.asarray(jax.jit(jax.vmap(one.target))(jnp.asarray(x))) - np.log(weight @ one.expected["weight"])
    )
    squares = 50 * one.measure(x[None])[0][:, one.names.index("mean z²")]
    np.testing.assert_allclose(distance, squares + 50 * np.log(2 * np.pi), rtol=1e-9)


def solved(noise: float) -> tuple[np.ndarray, np.ndarray]:
    """Angles and weights at 2¹⁶ points that fill the cube evenly: the weights' mean is good to about 1e-3."""
    return reached(Sobol(11, seed=0).random(2**16).clip(1e-12, 1 - 1e-12), noise)


def test_robot_has_the_evidence_and_the_moments():
    angles, weight = solved(NOISE)
    ends = np.exp(1j * np.cumsum(angles[:, weight.max(axis=0) > 0], axis=2)).sum(axis=2)
    assert np.abs(ends - GOAL).max() < 6 * NOISE
    assert abs(np.log(weight.sum(axis=0).mean()) - LOG_EVIDENCE) < 4e-3
    np.testing.assert_allclose(np.einsum("sn,snk->k", weight, angles**2) / weight.sum(), SQUARES, rtol=1e-2)


def test_robot_solutions_count_as_the_density_does():
    """With more noise on the goal, importance draws find the same evidence without solving for anything."""
    rng, noise, num = np.random.default_rng(2), 0.1, 200_000
    angles, weight = solved(noise)
    some = angles.reshape(-1, 10)[rng.choice(weight.size, 20_000, p=weight.ravel() / weight.sum())]
    some *= np.sign(some[:, 1:].sum(axis=1))[:, None]
    law = multivariate_t(some.mean(axis=0), np.cov(some.T), df=5)  # a Gaussian misses the bent ends
    x = law.rvs(num, random_state=rng) * rng.choice([-1, 1], (num, 1))
    log_q = np.logaddexp(law.logpdf(x), law.logpdf(-x)) - np.log(2)
    end = np.exp(1j * np.cumsum(x, axis=1)).sum(axis=1) - GOAL
    log_goal = norm.logpdf(np.stack([end.real, end.imag]), scale=noise).sum(axis=0)
    direct = np.exp(norm.logpdf(x, scale=SPREAD).sum(axis=1) + log_goal - log_q) / weight.sum(axis=0).mean()
    assert abs(direct.mean() - 1) < 5 * direct.std() / np.sqrt(num) < 0.018
