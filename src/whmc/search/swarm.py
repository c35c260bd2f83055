"""A swarm: many points moved side by side by Hamiltonian Monte Carlo at one temperature, in NumPy.

It only has to find places, so nothing here needs to be exact.
"""

import dataclasses

import numpy as np

from whmc._shapes import Bool, Float
from whmc.search.descent import farthest_from
from whmc.target.rows import evaluate_rows
from whmc.target.target import Target

TRAJECTORY_STEPS = 5
WANTED_ACCEPTANCE = 0.7


@dataclasses.dataclass(frozen=True)
class Swarm:
    """Points at an inverse temperature `beta`, the step size that serves them, and the gradients spent so far.

    step_size is in units of the swarm's own spread.
    """

    position: Float[np.ndarray, "n dim"]
    logdensity: Float[np.ndarray, " n"]
    score: Float[np.ndarray, "n dim"]
    farthest: float
    step_size: float
    beta: float = 0.0
    num_gradients: int = 0

    @property
    def far(self) -> Bool[np.ndarray, " n"]:
        """Points that have run away."""
        return np.max(np.abs(self.position), axis=1) > self.farthest

    @property
    def alive(self) -> Float[np.ndarray, "m dim"]:
        """Points where the target has density, and that have not run away."""
        return self.position[np.isfinite(self.logdensity) & ~self.far]


def gather(target: Target, starts: Float[np.ndarray, "n dim"], beta: float = 0.0) -> Swarm:
    """A swarm at its starts."""
    starts = np.asarray(starts, float)
    found = evaluate_rows(target, starts)
    step_size = starts.shape[1] ** -0.25
    return Swarm(starts, found.logdensity, found.score, farthest_from(starts), step_size, beta, len(starts))


def chosen(swarm: Swarm, which: np.ndarray) -> Swarm:
    """Some of the points, in that order."""
    return dataclasses.replace(
        swarm, position=swarm.position[which], logdensity=swarm.logdensity[which], score=swarm.score[which]
    )


def move(
    swarm: Swarm,
    target: Target,
    rng: np.random.Generator,
    *,
    num_steps: int = TRAJECTORY_STEPS,
    spread: Float[np.ndarray, " dim"] | None = None,
    tuned: bool = True,
) -> Swarm:
    """One trajectory of every point.

    spread: the unit of length in each coordinate, the swarm's standard deviations unless told. tuned: the step size
    follows the acceptance.
    """
    spread = _spread(swarm) if spread is None else spread
    first = rng.standard_normal(swarm.position.shape)
    step = swarm.step_size * rng.uniform(0.6, 1.2, (len(first), 1))
    kick = 0.5 * step * swarm.beta * spread
    position, momentum, logdensity, score = swarm.position, first, swarm.logdensity, swarm.score
    with np.errstate(over="ignore", invalid="ignore"):
        for _ in range(num_steps):
            momentum = momentum + kick * score
            position = position + step * spread * momentum
            found = evaluate_rows(target, position)
            logdensity, score = found.logdensity, found.score
            momentum = momentum + kick * score
        log_ratio = swarm.beta * (logdensity - swarm.logdensity) - 0.5 * np.sum(momentum**2 - first**2, axis=1)
    log_ratio = np.where(np.isfinite(logdensity) & ~np.isnan(log_ratio), log_ratio, -np.inf)
    accepted = np.log(rng.random(len(log_ratio))) < log_ratio
    rate = float(np.mean(np.exp(np.minimum(log_ratio, 0.0))))
    step_size = swarm.step_size * np.exp(rate - WANTED_ACCEPTANCE) if tuned else swarm.step_size
    return dataclasses.replace(
        swarm,
        position=np.where(accepted[:, None], position, swarm.position),
        logdensity=np.where(accepted, logdensity, swarm.logdensity),
        score=np.where(accepted[:, None], score, swarm.score),
        step_size=float(np.clip(step_size, 1e-4, 1.0)),
        num_gradients=swarm.num_gradients + num_steps * len(first),
    )


def _spread(swarm: Swarm) -> Float[np.ndarray, " dim"]:
    """Standard deviations of the points that have not run away: the square of what has would overflow."""
    near = swarm.position[~swarm.far]
    return (np.std(near, axis=0) if len(near) else np.ones(swarm.position.shape[1])) + 1e-12


def relax(
    target: Target, starts: Float[np.ndarray, "n dim"], rng: np.random.Generator, num_moves: int
) -> tuple[Float[np.ndarray, "m dim"], int]:
    """The points after some trajectories at beta = 1, none of them lost or doubled, and the gradients spent."""
    swarm = gather(target, starts, beta=1.0)
    for _ in range(num_moves):
        swarm = move(swarm, target, rng)
    return swarm.alive, swarm.num_gradients
