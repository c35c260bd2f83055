"""The targets of `benchmarks/shapes.py`: modes that are not Gaussian, or many, or wide, with their exact truth."""

import itertools
from collections.abc import Callable, Mapping
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from scipy.special import logit

from whmc._shapes import Array, Float
from whmc.target.target import Target
from whmc.testing.boltzmann import boltzmann_relaxation
from whmc.testing.copies import ar1_pair, funnel_pair, many_gaussians, product_t, ridge, twisted_pair
from whmc.testing.robot import planar_robot
from whmc.testing.targets import Shape


def rastrigin(dim: int) -> Shape:
    """exp(-Σ (10 + x² - 10 cos 2πx)) under a uniform prior on (-5.12, 5.12)^D: a mode near every point of integers."""
    edge, size = 5.12, 400_000
    step = 2 * edge / size
    grid = (np.arange(size) + 0.5) * step - edge
    height = np.exp(-(10 + grid**2 - 10 * np.cos(2 * np.pi * grid)))
    cells = np.arange(-2, 3)
    shares = np.array([height[np.round(grid) == k].sum() for k in cells]) / height.sum()

    def logdensity(x: Float[Array, " dim"]) -> Float[Array, ""]:
        return -jnp.sum(10 + x**2 - 10 * jnp.cos(2 * np.pi * x)) - dim * np.log(2 * edge)

    def draw(rng: np.random.Generator, n: int) -> np.ndarray:
        x = np.interp(rng.uniform(0, height.sum(), (n, dim)), np.cumsum(height), grid + 0.5 * step)
        return logit((x + edge) / (2 * edge))

    def statistics(x: Float[Array, " dim"]) -> dict[str, Array]:
        inside = jnp.round(x)[:, None] == jnp.asarray(cells, x.dtype)
        joint = jnp.all(inside[:, 2])[None]
        share = jnp.concatenate([inside.ravel(), joint]).astype(x.dtype)
        return {"weight": share, "x": x, "mean x²": jnp.mean(x**2)}

    return Shape(
        f"Rastrigin D={dim}",
        Target(logdensity, dim=dim, bounds=(-edge, edge)),
        draw,
        float(dim * np.log(height.mean())),
        statistics,
        {"weight": np.r_[np.tile(shares, dim), shares[2] ** dim], "x": np.zeros(dim)}
        | {"mean x²": np.average(grid**2, weights=height)},
        11**dim,
    )


def spike_and_slab() -> Shape:
    """Regression on eight predictors in four correlated pairs, β_j ~ .2 N(0, 1.5²) + .8 N(0, .05²), noise of sd 1.

    Given which of the β are in the slab all is Gaussian: 2⁸ Gaussians are summed. weight: that β_j is in the slab.
    """
    rng, num, dim = np.random.default_rng(3), 40, 8
    factors = np.repeat(rng.standard_normal((num, 4)), 2, axis=1)
    predictors = np.sqrt(0.95) * factors + np.sqrt(0.05) * rng.standard_normal((num, dim))
    outcome = predictors @ np.array([1.0, 0, 0, -0.8, 0.5, 0, 0, 0]) + rng.standard_normal(num)
    share, sd = np.array([0.8, 0.2]), np.array([0.05, 1.5])
    subsets = np.array(list(itertools.product((0, 1), repeat=dim)))

    means, covariances, log_masses = [], [], []
    for subset in subsets:
        marginal = np.eye(num) + (predictors * sd[subset] ** 2) @ predictors.T
        log_outcome = -0.5 * outcome @ np.linalg.solve(marginal, outcome) - 0.5 * np.linalg.slogdet(marginal)[1]
        log_masses.append(np.sum(np.log(share[subset])) + log_outcome - 0.5 * num * np.log(2 * np.pi))
        covariances.append(np.linalg.inv(predictors.T @ predictors + np.diag(sd[subset] ** -2)))
        means.append(covariances[-1] @ predictors.T @ outcome)
    log_evidence = float(np.logaddexp.reduce(log_masses))
    weights = np.exp(np.array(log_masses) - log_evidence)
    mean, scales = np.array(means), np.linalg.cholesky(np.array(covariances))
    variance = np.diagonal(np.array(covariances), axis1=1, axis2=2)

    def log_priors(beta: Float[Array, " 8"]) -> Float[Array, "2 8"]:
        z = beta / jnp.asarray(sd)[:, None]
        return jnp.asarray(np.log(share / sd / np.sqrt(2 * np.pi)))[:, None] - 0.5 * z * z

    def logdensity(beta: Float[Array, " 8"]) -> Float[Array, ""]:
        error = jnp.asarray(outcome) - jnp.asarray(predictors) @ beta
        prior = jnp.sum(jax.nn.logsumexp(log_priors(beta), axis=0))
        return prior - 0.5 * jnp.sum(error * error) - 0.5 * num * np.log(2 * np.pi)

    def draw(rng: np.random.Generator, n: int) -> np.ndarray:
        label = rng.choice(len(weights), n, p=weights)
        return mean[label] + np.einsum("nij,nj->ni", scales[label], rng.standard_normal((n, dim)))

    def statistics(beta: Float[Array, " 8"]) -> dict[str, Array]:
        return {"weight": jax.nn.softmax(log_priors(beta), axis=0)[1], "β": beta, "β²": beta**2}

    return Shape(
        "spike and slab",
        Target(logdensity, dim=dim, starts=(-4.0, 4.0)),
        draw,
        log_evidence,
        statistics,
        {"weight": weights @ subsets, "β": weights @ mean, "β²": weights @ (mean**2 + variance)},
        None,
    )


SHAPES: Mapping[str, Callable[[], Shape]] = {
    "twisted": twisted_pair,
    "twisted-rotated": partial(twisted_pair, rotated=True),
    "funnel": funnel_pair,
    "product-t": product_t,
    "ridge": ridge,
    "ridge-pair": partial(ridge, 2),
    "rastrigin-2": partial(rastrigin, 2),
    "rastrigin-3": partial(rastrigin, 3),
    "rastrigin-5": partial(rastrigin, 5),
    "boltzmann": boltzmann_relaxation,
    "spike-slab": spike_and_slab,
    "robot": planar_robot,
    "many-gaussians": many_gaussians,
    "ar1-500": partial(ar1_pair, 500),
    "ar1-1000": partial(ar1_pair, 1000),
}
"""All of them, by the names that the benchmark takes."""
