"""Tempered: a population annealed from the start region, so that modes are found by their mass.

Particles start uniform in the start region, as pi^0 is, and follow pi^beta, beta from 0 to 1: each rise is as large as
leaves half of the particles effective, then they are resampled and moved by Hamiltonian Monte Carlo at the new beta. In
the end the population lies where the mass is, also where the mass has no peak.
"""

import dataclasses
from typing import ClassVar

import numpy as np

from whmc._shapes import Array, Float, Int
from whmc.keys import children, generator
from whmc.search.descent import BATCH, DescentResult, KnownModes, descend
from whmc.search.doing import Doing, TellPart, unheard
from whmc.search.finders import AbstractFinder
from whmc.search.swarm import TRAJECTORY_STEPS, Swarm, chosen, gather, move
from whmc.target.target import Target

MAX_RISES = 200
RISES = "temperatures of a population"
HOT_BETA = 0.1
MOVES = 3, 3, 3
FEWER_MOVES = 2, 2, 10
"""Trajectories at each rise of beta below `HOT_BETA`, above, and at one. Fewer in a population on a budget, but more
when it has come to an end, so that particles that lag behind are not taken for a mode."""

HOT_STEPS = 3
"""Steps of a trajectory below `HOT_BETA`: on the long way from a wide start region particles only have to follow."""

FEWEST_PARTICLES = 32
GRADIENTS_A_PARTICLE = 50.0
"""Of a population on a budget, times sqrt(D): so many rises of beta it takes."""


@dataclasses.dataclass(frozen=True)
class Tempered(AbstractFinder):
    """An annealed population, then polished. Finds a heavy mode with a small basin, and modes that are no peaks.

    num_particles: of the population; a small one loses modes at every resampling. num_moves: trajectories at each rise
    of beta, while it is small, then, and at its end.
    """

    unit: ClassVar[str] = "particles"
    num_starts: int | None = BATCH
    num_particles: int = BATCH
    num_moves: tuple[int, int, int] = MOVES

    def within(self, num_gradients: float, dim: int) -> "Tempered":
        """A population that takes about as many gradients, if that is less than a whole one takes."""
        wanted = num_gradients / (GRADIENTS_A_PARTICLE * np.sqrt(dim))
        num = int(np.clip(wanted, FEWEST_PARTICLES, self.num_particles))
        return dataclasses.replace(self, num_starts=num, num_particles=num, num_moves=FEWER_MOVES)

    @staticmethod
    def least(dim: int) -> float:
        """Gradients that the smallest population takes, about."""
        return float(FEWEST_PARTICLES * GRADIENTS_A_PARTICLE * np.sqrt(dim))

    def find(self, key: Array, target: Target, num: int, known: KnownModes | None) -> DescentResult:
        return self.find_and_tell(key, target, num, known, unheard)

    def find_and_tell(
        self, key: Array, target: Target, num: int, known: KnownModes | None, tell: TellPart
    ) -> DescentResult:
        key_starts, key_moves = children(key, 2)
        starts = target.draw_starts(key_starts, self.num_particles, uniform=True)
        swarm = anneal(target, gather(target, starts), generator(key_moves), self.num_moves, tell)
        population, spent = swarm.alive[:num], swarm.num_gradients
        if len(population) == 0:
            return DescentResult(population, np.zeros(0, bool), spent, population, num_upfront=spent)
        ends = descend(target, population, () if known is None else known.peaks)
        return dataclasses.replace(
            ends, num_gradients=spent + ends.num_gradients, population=population, num_upfront=spent
        )


def anneal(
    target: Target,
    swarm: Swarm,
    rng: np.random.Generator,
    num_moves: tuple[int, int, int],
    tell: TellPart = unheard,
) -> Swarm:
    """The swarm at beta = 1, by rises of beta and moves after each."""
    for n in range(MAX_RISES):
        if swarm.beta >= 1 or np.all(swarm.far):
            break
        gain = _gain(swarm.logdensity, 1 - swarm.beta)
        which = _resample(rng, gain * swarm.logdensity)
        beta = swarm.beta + gain if gain < 1 - swarm.beta else 1.0
        swarm = dataclasses.replace(chosen(swarm, which), beta=beta)
        for _ in range(num_moves[(beta >= HOT_BETA) + (beta >= 1)]):
            swarm = move(swarm, target, rng, num_steps=HOT_STEPS if beta < HOT_BETA else TRAJECTORY_STEPS)
        tell(Doing(RISES, n + 1, MAX_RISES, swarm.num_gradients))
    return swarm


def _gain(logdensity: Float[np.ndarray, " n"], most: float) -> float:
    """The rise of beta, at most `most`, that leaves half of the particles effective."""
    finite = logdensity[np.isfinite(logdensity)]
    if len(finite) == 0:
        return most
    heights = finite - finite.max()

    def effective(gain: float) -> float:
        weight = np.exp(gain * heights)
        return float(weight.sum() ** 2 / np.sum(weight**2))

    enough = 0.5 * len(finite)
    if effective(most) > enough:
        return most
    low, high = np.log(most) - 30.0, np.log(most)  # in logs: the first rise may be very small
    for _ in range(40):
        middle = 0.5 * (low + high)
        low, high = (middle, high) if effective(np.exp(middle)) > enough else (low, middle)
    return float(np.exp(low))


def _resample(rng: np.random.Generator, log_weight: Float[np.ndarray, " n"]) -> Int[np.ndarray, " n"]:
    """Systematic resampling; as they are where none has a density."""
    num, usable = len(log_weight), np.isfinite(log_weight)
    if not np.any(usable):
        return np.arange(num)
    heights = np.cumsum(np.where(usable, np.exp(log_weight - np.max(log_weight[usable])), 0.0))
    places = (np.arange(num) + rng.random()) / num
    return np.minimum(np.searchsorted(heights, places * heights[-1]), num - 1)
