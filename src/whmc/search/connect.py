"""Modes without a peak: points that local chains connect become one chart, with the moments of the draws.

A ring or a shell is a maximum at every point of it, and the mass of a broad mode in high dimension may have no maximum
at all. No curvature can stand for such modes; short local chains from points on them can.
"""

import dataclasses
from collections.abc import Sequence

import numpy as np

from whmc._shapes import Array, Bool, Float, Int
from whmc.keys import child, generator
from whmc.modes.library import DIAGONAL_FROM
from whmc.search.assign import NOBODY
from whmc.search.mode_search import outside
from whmc.search.peak import Peak
from whmc.search.swarm import gather, move, relax
from whmc.target.target import Target

TUNING_MOVES = 40
LONGEST_TRAJECTORY = 32
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
        rng = generator(child(key, k))
        z = rng.standard_normal((RELAXED_POINTS, target.dim))
        relaxed, spent = relax(target, peaks[k].unwhiten(z), rng, RELAXED_MOVES)
        cost += spent
        if len(relaxed) > 1:
            mean, sd = relaxed.mean(axis=0), relaxed.std(axis=0) + 1e-300
            wider = dataclasses.replace(peaks[k], location=mean, scale=sd, coupling=None)
            far = outside(wider, points[owner == k])
            explained[owner == k] = ~far | (far.mean() <= TAIL_SHARE)
    return explained, cost


def local_chains(target: Target, points: Float[np.ndarray, "n dim"], key: Array) -> LocalDraws:
    """Chains of local moves from each point, in units of how wide the points lie, with a step that is tuned."""
    rng = generator(key)
    spread = np.maximum(points.std(axis=0), 1e-6 * (1 + np.abs(points).max()))
    swarm = dataclasses.replace(gather(target, points, beta=1.0), step_size=0.1 * points.shape[1] ** -0.25)
    for _ in range(TUNING_MOVES):
        swarm = move(swarm, target, rng, num_steps=_turn(swarm.step_size), spread=spread)
    swarm = dataclasses.replace(swarm, step_size=swarm.step_size / LEAP_SAFETY)
    rows = []
    for _ in range(2 * CHAIN_STEPS):
        swarm = move(swarm, target, rng, num_steps=_turn(swarm.step_size), spread=spread, tuned=False)
        rows.append((swarm.position, swarm.logdensity))
    position, logdensity = (np.stack(part) for part in zip(*rows[CHAIN_STEPS:], strict=True))
    return LocalDraws(position, logdensity, swarm.num_gradients)


def _turn(step_size: float) -> int:
    """Steps that go about a quarter round an orbit of unit width, within reason."""
    return int(np.clip(round(0.5 * np.pi / step_size), 1, LONGEST_TRAJECTORY))


def drifting(draws: LocalDraws) -> bool:
    """Whether the chains go on climbing: then the density has no mode there, it grows without bound."""
    half = len(draws.logdensity) // 2
    rise = draws.logdensity[half:].mean(axis=0) - draws.logdensity[:half].mean(axis=0)
    return bool(np.median(rise) > DRIFT)


def group_chains(draws: Float[np.ndarray, "steps n dim"]) -> Int[np.ndarray, " n"]:
    """Chains whose draws overlap belong together, and so do all that are linked through others.

    Overlap by Bhattacharyya's distance of Gaussians with the chains' means and variances; its noise grows with D. A
    chain that never moved has the variance of rounding.
    """
    num, dim = draws.shape[1:]
    mean = draws.mean(axis=0)
    variance = np.maximum(draws.var(axis=0), (np.finfo(float).eps * mean) ** 2) + np.finfo(float).tiny
    pooled = 0.5 * (variance[:, None] + variance[None])
    distance = 0.125 * np.sum((mean[:, None] - mean[None]) ** 2 / pooled, axis=-1)
    size = 0.5 * np.log(variance)  # logs, since a product of variances may be too small for float64
    distance += 0.5 * np.sum(np.log(pooled) - size[:, None] - size[None], axis=-1)
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
