"""Modes without a peak: points that local chains connect become one chart, with the moments of the draws.

A ring or a shell is a maximum at every point of it, and the mass of a broad mode in high dimension may have no maximum
at all. No curvature can stand for such modes; short local chains from points on them can.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from whmc.kernels.base import ChainState
from whmc.kernels.block import Trace, run_block, start_chains
from whmc.kernels.local import LocalHMC
from whmc.modes.library import DIAGONAL_FROM, ModeLibrary
from whmc.search.assign import NOBODY
from whmc.search.mode_search import MAX_LOOSE_POINTS, outside
from whmc.search.polish import Peak
from whmc.search.tempered import relax
from whmc.target.target import Target
from whmc.warmup.step_size import quarter_turn, tune_step_sizes

TUNING_ROUNDS = 8
TUNING_STEPS = 10
CHAIN_STEPS = 100
"""Steps kept of each chain, after as many that are not."""

LEAP_SAFETY = 2.0
"""By this factor the last steps are shorter than the tuned ones: a trajectory that leaps over a barrier, by an error of
the integrator, would connect what is apart."""

COVERED_SHARE = 0.2
"""A peak with more than this share of a mode's draws in its chart stands for that mode."""

RELAXED_POINTS = 64
RELAXED_MOVES = 20
"""Trajectories from a peak's own chart, after which its points fill the mode as far as it reaches."""

TAIL_SHARE = 0.2
"""Up to this share of the stray points of a peak may lie further out than its relaxed points: they are tails."""

DRIFT = 10.0
"""Chains whose log density rises by more than this, from the first half of their steps to the second, are not in a mode
but on the way to infinity."""


@dataclasses.dataclass(frozen=True)
class Connected:
    """Charts of modes without a peak, how many points each had, whether chains drift away; and the gradients spent."""

    charts: tuple[Peak, ...]
    num_points: Int[np.ndarray, " charts"]
    drifting: bool
    num_gradients: int


@dataclasses.dataclass(frozen=True)
class LocalDraws:
    """Draws of local chains, after some steps that are not kept."""

    position: Float[np.ndarray, "steps n dim"]
    logdensity: Float[np.ndarray, "steps n"]
    num_gradients: int


def connect(target: Target, points: Float[np.ndarray, "n dim"], peaks: Sequence[Peak], key: Array) -> Connected:
    """Charts of the modes that `points` lie in.

    Modes that local chains connect with one of the `peaks` have their chart already.
    """
    draws = local_chains(target, points, key)
    if not np.all(np.isfinite(draws.position)):
        return Connected((), np.zeros(0, int), True, draws.num_gradients)
    group = group_chains(draws.position)
    charts, num_points = [], []
    for number in np.unique(group):
        mine = draws.position[:, group == number].reshape(-1, target.dim)
        if not any(_inside(peak, mine).mean() > COVERED_SHARE for peak in peaks):
            charts.append(moments_chart(mine, draws.logdensity[:, group == number].ravel()))
            num_points.append(int(np.sum(group == number)))
    return Connected(tuple(charts), np.array(num_points, int), drifting(draws), draws.num_gradients)


def explained_strays(
    target: Target, points: Float[np.ndarray, "n dim"], owner: Int[np.ndarray, " n"], peaks: Sequence[Peak], key: Array
) -> tuple[Bool[np.ndarray, " n"], int]:
    """Stray points that the mode of the peak they descend to reaches after all, and the gradients spent.

    The curvature of a peak with heavy tails covers little of its mode. Points drawn from its chart and moved by
    Hamiltonian Monte Carlo spread over the mode, and no further: what they reach needs no chart of its own.
    """
    explained, cost = np.zeros(len(points), bool), 0
    for k in np.unique(owner[owner != NOBODY]).tolist():
        key_draw, key_move = jax.random.split(jax.random.fold_in(key, k))
        z = np.asarray(jax.random.normal(key_draw, (RELAXED_POINTS, target.dim)))
        scale = peaks[k].scale
        starts = peaks[k].location + (z * scale if scale.ndim == 1 else z @ scale.T)
        relaxed, spent = relax(target, jnp.asarray(starts), key_move, RELAXED_MOVES)
        cost += spent
        if len(relaxed) > 1:
            wider = dataclasses.replace(peaks[k], location=relaxed.mean(axis=0), scale=relaxed.std(axis=0) + 1e-300)
            far = outside(wider, points[owner == k])
            explained[owner == k] = ~far | (far.mean() <= TAIL_SHARE)
    return explained, cost


def local_chains(target: Target, points: Float[np.ndarray, "n dim"], key: Array) -> LocalDraws:
    """Chains of local moves from each point, with a mass as wide as the points and a step that is tuned."""
    num, dim = points.shape
    starts = np.resize(points, (MAX_LOOSE_POINTS, dim))  # one shape, one compilation
    sd = np.maximum(starts.std(axis=0), 1e-6 * (1 + np.abs(starts).max()))
    step_size, num_steps = np.array([0.1 * dim**-0.25]), 8
    states, _ = start_chains(target, _one_chart(starts.mean(axis=0), sd, step_size), jnp.asarray(starts))
    cost = len(starts)
    plan = [TUNING_STEPS] * TUNING_ROUNDS + [CHAIN_STEPS] * 2
    for n, length in enumerate(plan):
        if n == TUNING_ROUNDS:
            step_size = step_size / LEAP_SAFETY
        library = _one_chart(starts.mean(axis=0), sd, step_size)
        states, trace = _steps(target, library, states, key, num_steps, sum(plan[:n]), length)
        cost += int(np.sum(trace.info.num_gradients))
        if n < TUNING_ROUNDS:
            acceptance = np.exp(np.minimum(trace.info.log_ratio, 0.0)).ravel()
            step_size = tune_step_sizes(step_size, np.zeros(len(acceptance), int), acceptance)
            num_steps, step_size = quarter_turn(step_size, np.ones(1))
    return LocalDraws(trace.position[:, :num], trace.logdensity[:, :num], cost)


def _one_chart(
    location: Float[np.ndarray, " dim"], sd: Float[np.ndarray, " dim"], step_size: Float[np.ndarray, " one"]
) -> ModeLibrary:
    scale = sd if len(sd) >= DIAGONAL_FROM else np.diag(sd)
    return ModeLibrary.from_charts(location[None], scale[None], step_size=step_size)


def _steps(
    target: Target, library: ModeLibrary, states: ChainState, key: Array, num_steps: int, first: int, length: int
) -> tuple[ChainState, Any]:
    """So many steps of all chains, the first of them number `first`."""
    chains = np.ones(MAX_LOOSE_POINTS, bool)
    states, trace, _ = run_block(
        LocalHMC(jnp.asarray(num_steps)),
        target,
        library,
        states,
        key,
        jnp.full(MAX_LOOSE_POINTS, first),
        jnp.asarray(length),
        jnp.asarray(chains),
        jnp.zeros((), bool),
        length=CHAIN_STEPS,
    )
    rows: Trace = jax.tree.map(lambda part: np.asarray(part)[:length], trace)
    return states, rows


def drifting(draws: LocalDraws) -> bool:
    """Whether the chains go on climbing: then the density has no mode there, it grows without bound."""
    half = len(draws.logdensity) // 2
    rise = draws.logdensity[half:].mean(axis=0) - draws.logdensity[:half].mean(axis=0)
    return bool(np.median(rise) > DRIFT)


def group_chains(draws: Float[np.ndarray, "steps n dim"]) -> Int[np.ndarray, " n"]:
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


def _inside(peak: Peak, draws: Float[np.ndarray, "n dim"]) -> Bool[np.ndarray, " n"]:
    """Draws at a distance from the peak that its own draws would have."""
    dim = draws.shape[1]
    return peak.distance(draws) ** 2 < dim + 3 * np.sqrt(2 * dim)


def moments_chart(draws: Float[np.ndarray, "n dim"], logdensity: Float[np.ndarray, " n"]) -> Peak:
    """A chart with the draws' moments; its height makes Laplace's formula give E log pi + entropy."""
    dim = draws.shape[1]
    mean, sd = draws.mean(axis=0), draws.std(axis=0) + 1e-300
    if dim >= DIAGONAL_FROM:
        scale = sd
    else:
        z = (draws - mean) / sd
        share = len(z) / (len(z) + 5 * dim)  # towards independence while draws are few
        scale = sd[:, None] * np.linalg.cholesky(share * (z.T @ z) / len(z) + (1 - share) * np.eye(dim))
    return Peak(mean, float(np.mean(logdensity) + 0.5 * dim), scale, start=draws[-1], at_peak=False)
