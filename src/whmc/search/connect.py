"""Modes without a peak: points that local chains connect become one chart, with the moments of the draws.

A ring or a shell is a maximum at every point of it, and the mass of a broad mode in high dimension may have no maximum
at all. No curvature can stand for such modes; short local chains from points on them can.
"""

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from whmc.kernels.block import Trace, run_block, start_chains
from whmc.kernels.local import LocalHMC
from whmc.modes.library import DIAGONAL_FROM, ModeLibrary
from whmc.search.mode_search import MAX_LOOSE
from whmc.search.polish import Peak
from whmc.target.target import Target
from whmc.warmup.step_size import quarter_turn, tune_step_sizes

TUNING_ROUNDS = 8
TUNING_STEPS = 10
NUM_STEPS = 100
"""Steps kept of each chain, after as many that are not."""

CAREFUL = 2.0
"""By so much the last steps are shorter than the tuned ones: a trajectory that leaps over a barrier, by an error of the
integrator, would connect what is apart."""


def connect(
    target: Target, points: Float[np.ndarray, "n dim"], peaks: list[Peak], key: Array
) -> tuple[list[tuple[Peak, int]], int]:
    """Charts of the modes that `points` lie in, with how many points each had, and the gradients spent.

    Modes that local chains connect with one of the `peaks` have their chart already.
    """
    draws, logdensity, cost = _local_chains(target, points, key)
    groups = _groups(draws)
    charts = []
    for group in np.unique(groups):
        mine = draws[:, groups == group].reshape(-1, target.dim)
        if not any(_covered(peak, mine).mean() > 0.2 for peak in peaks):
            charts.append((_moments(mine, logdensity[:, groups == group].ravel()), int(np.sum(groups == group))))
    return charts, cost


def _local_chains(
    target: Target, points: Float[np.ndarray, "n dim"], key: Array
) -> tuple[Float[np.ndarray, "steps n dim"], Float[np.ndarray, "steps n"], int]:
    """Chains of local moves from each point, with a mass as wide as the points and a step that is tuned."""
    num, dim = points.shape
    starts = np.resize(points, (MAX_LOOSE, dim))  # one shape, one compilation
    sd = np.maximum(starts.std(axis=0), 1e-6 * (1 + np.abs(starts).max()))
    scale = sd if dim >= DIAGONAL_FROM else np.diag(sd)
    step_size, num_steps = np.array([0.1 * dim**-0.25]), 8

    def library() -> ModeLibrary:
        return ModeLibrary.from_charts(starts.mean(axis=0)[None], scale[None], step_size=step_size)

    states, _ = start_chains(target, library(), jnp.asarray(starts))
    cost = step = 0

    def run(states: object, length: int) -> tuple[object, Trace]:
        kernel = LocalHMC(jnp.asarray(num_steps))
        states, trace, _ = run_block(
            kernel,
            target,
            library(),
            states,
            key,
            jnp.full(MAX_LOOSE, step),
            jnp.asarray(length),
            jnp.ones(MAX_LOOSE, bool),
            jnp.zeros((), bool),
            length=NUM_STEPS,
        )
        return states, jax.tree.map(lambda rows: np.asarray(rows)[:length], trace)

    for _ in range(TUNING_ROUNDS):
        states, trace = run(states, TUNING_STEPS)
        step, cost = step + TUNING_STEPS, cost + int(np.sum(trace.info.num_gradients))
        acceptance = np.exp(np.minimum(trace.info.log_ratio, 0.0)).ravel()
        step_size = tune_step_sizes(step_size, np.zeros(len(acceptance), int), acceptance)
        num_steps, step_size = quarter_turn(step_size, np.ones(1))
    step_size = step_size / CAREFUL
    for _ in range(2):
        states, trace = run(states, NUM_STEPS)
        step, cost = step + NUM_STEPS, cost + int(np.sum(trace.info.num_gradients))
    return trace.position[:, :num], trace.logdensity[:, :num], cost


def _groups(draws: Float[np.ndarray, "steps n dim"]) -> np.ndarray:
    """Chains whose draws overlap belong together, and so do all that are linked through others.

    Overlap by Bhattacharyya's distance of Gaussians with the chains' means and variances; its noise grows with D.
    """
    num, dim = draws.shape[1:]
    mean, variance = draws.mean(axis=0), draws.var(axis=0) + 1e-300
    pooled = 0.5 * (variance[:, None] + variance[None])
    distance = 0.125 * np.sum((mean[:, None] - mean[None]) ** 2 / pooled, axis=-1)
    distance += 0.5 * np.sum(np.log(pooled) - 0.5 * np.log(variance[:, None] * variance[None]), axis=-1)
    near = distance < 1 + 0.03 * dim
    group = np.arange(num)
    for a in range(num):
        for b in np.flatnonzero(near[a]):
            group[group == group[b]] = group[a]
    return group


def _covered(peak: Peak, draws: Float[np.ndarray, "n dim"]) -> Bool[np.ndarray, " n"]:
    """Draws at a distance from the peak that its own draws would have."""
    dim = draws.shape[1]
    return peak.distance(draws) ** 2 < dim + 3 * np.sqrt(2 * dim)


def _moments(draws: Float[np.ndarray, "n dim"], logdensity: Float[np.ndarray, " n"]) -> Peak:
    """A chart with the draws' moments; its height makes Laplace's formula give E log pi + entropy."""
    dim = draws.shape[1]
    mean, sd = draws.mean(axis=0), draws.std(axis=0) + 1e-300
    if dim >= DIAGONAL_FROM:
        scale = sd
    else:
        z = (draws - mean) / sd
        share = len(z) / (len(z) + 5 * dim)  # towards independence while draws are few
        scale = sd[:, None] * np.linalg.cholesky(share * (z.T @ z) / len(z) + (1 - share) * np.eye(dim))
    return Peak(mean, float(np.mean(logdensity) + 0.5 * dim), scale, start=draws[-1])
