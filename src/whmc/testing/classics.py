"""Classic targets of the literature, with their truth; each JSON file names its source."""

import dataclasses
import json
from collections.abc import Callable
from importlib.resources import files
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from scipy.special import logit

from whmc._shapes import Array, Float
from whmc.target.target import Target
from whmc.testing.targets import Problem, gaussian_mixture


def classic_data(name: str) -> dict[str, Any]:
    """A data file of this folder, `liang_wong_20` or `gmm40_fab`: means, published moments, source."""
    return json.loads(files("whmc.testing").joinpath(f"{name}.json").read_text())


def liang_wong(case: str) -> Problem:
    """Twenty round Gaussians in the plane, Liang and Wong (2001), cases A and B of Kou, Zhou and Wong (2006).

    A: equal weights and sigma = 0.1. B: weights ∝ 1/d and sigma = d/20, with d the mean's distance from (5, 5).
    """
    if case not in ("A", "B"):
        raise ValueError(f'case is "A" (equal modes) or "B" (unequal ones), got {case!r}')
    means = np.array(classic_data("liang_wong_20")["means"])
    away = np.linalg.norm(means - 5.0, axis=1)
    sigma, share = (np.full(len(means), 0.1), np.ones(len(means))) if case == "A" else (away / 20, 1 / away)
    covariances = sigma[:, None, None] ** 2 * np.eye(2)
    problem = gaussian_mixture(share / share.sum(), means, covariances, f"Liang-Wong {case}")
    return dataclasses.replace(problem, target=Target(problem.target.logdensity, dim=2, starts=(0.0, 10.0)))


def gmm40() -> Problem:
    """Forty equal round Gaussians in the plane, sigma = softplus(1), of Midgley et al. (2023), FAB."""
    means = np.array(classic_data("gmm40_fab")["means"])
    covariances = np.tile(np.log1p(np.e) ** 2 * np.eye(2), (len(means), 1, 1))
    return gaussian_mixture(np.full(len(means), 1 / len(means)), means, covariances, "GMM40")


def _climbed(
    logdensity: Callable[[Float[Array, " dim"]], Float[Array, ""]], points: Float[np.ndarray, "size dim"]
) -> Float[np.ndarray, "size dim"]:
    """The maxima near the points, by Newton's steps in float64."""
    with jax.enable_x64(True):
        score, curvature = jax.jit(jax.vmap(jax.grad(logdensity))), jax.jit(jax.vmap(jax.hessian(logdensity)))
        for _ in range(8):
            slope = np.asarray(score(jnp.asarray(points)))
            points = points - np.linalg.solve(np.asarray(curvature(jnp.asarray(points))), slope[:, :, None])[:, :, 0]
    return points


def eggbox() -> Problem:
    """exp((2 + cos(x/2) cos(y/2))⁵), x and y uniform on [0, 10π]: the eggbox of Feroz, Hobson and Bridges (2009).

    The position is u on R², x = 10π sigmoid(u): 8 peaks inside the square, 8 halves at its edges, 2 quarters at its
    corners. A mode is all that is nearest to its peak, as measured in x.
    """
    edge, size = 10 * np.pi, 3200
    step = edge / size
    axis = (np.arange(size) + 0.5) * step
    peaks = 2 * np.pi * np.array([(i, j) for i in range(6) for j in range(6) if (i + j) % 2 == 0])

    def logdensity(u: Float[Array, " dim"]) -> Float[Array, ""]:
        wave = jnp.cos(5 * np.pi * jax.nn.sigmoid(u))
        return (2 + wave[0] * wave[1]) ** 5 + jnp.sum(jax.nn.log_sigmoid(u) + jax.nn.log_sigmoid(-u))

    def height(x: np.ndarray) -> np.ndarray:
        return np.exp((2 + np.prod(np.cos(x / 2), axis=1)) ** 5 - 243)

    def nearest(x: np.ndarray) -> np.ndarray:
        return np.argmin(np.linalg.norm(x[:, None] - peaks, axis=-1), axis=1)

    # the peaks' 3⁵ = 243 falls by 32 where the waves' product is 0.916: what lies lower has a share below 1e-14
    cells = np.argwhere(np.outer(np.cos(axis / 2), np.cos(axis / 2)) > 0.916)
    centres = axis[cells]
    heights, label = height(centres), nearest(centres)
    total = heights.sum()

    def draw(rng: np.random.Generator, n: int) -> tuple[np.ndarray, np.ndarray]:
        # as in `himmelblau`; 2 bounds what the density changes from the centre of a cell to its corners
        kept: list[np.ndarray] = []
        while sum(map(len, kept)) < n:
            pick = rng.choice(len(cells), n, p=heights / total)
            x = centres[pick] + rng.uniform(-step / 2, step / 2, (n, 2))
            kept.append(x[rng.uniform(size=n) * 2 < height(x) / heights[pick]])
        x = np.concatenate(kept)[:n]
        return logit(x / edge), nearest(x)

    # u and u² averaged over each cell: near the edges they change much in one
    parts = logit((np.arange(500 * size) + 0.5) / (500 * size)).reshape(size, 500)
    first, square = parts.mean(axis=1)[cells], (parts**2).mean(axis=1)[cells]
    means, covariances, tops = [], [], []
    for k in range(len(peaks)):
        mine = label == k
        mean = np.average(first[mine], axis=0, weights=heights[mine])
        second = np.einsum("n,ni,nj->ij", heights[mine] / heights[mine].sum(), first[mine], first[mine])
        np.fill_diagonal(second, np.average(square[mine], axis=0, weights=heights[mine]))
        means.append(mean)
        covariances.append(second - np.outer(mean, mean))
        x = centres[mine]
        tops.append(logit(x[np.argmax(heights[mine] * np.prod(x * (edge - x), axis=1))] / edge))

    return Problem(
        "eggbox",
        Target(logdensity, dim=2, starts=(-4.0, 4.0)),
        draw,
        _climbed(logdensity, np.array(tops)),
        np.bincount(label, heights, len(peaks)) / total,
        np.array(means),
        np.linalg.cholesky(np.array(covariances)),
        float(np.log(total * step**2) + 243 - 2 * np.log(edge)),
    )
