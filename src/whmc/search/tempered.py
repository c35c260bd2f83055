"""Tempered: a population annealed from the start region, so that modes are found by their mass.

Particles start in the start region and follow pi^beta, beta from 0 to 1: each rise is as large as leaves half of the
particles effective, then they are resampled and moved by Hamiltonian Monte Carlo at the new beta.

At beta = 1 the population lies where the mass is, also where the mass has no peak. Then it is cooled further: a narrow
mode beside a broad one has a basin too small for any start, but in the cold all of the broad mode's particles
gather near enough to fall into it.
"""

import dataclasses

import numpy as np
from jaxtyping import Array, Float, Int

from whmc.keys import children, generator
from whmc.search.descent import BATCH, DescentResult, KnownModes, descend
from whmc.search.finders import AbstractFinder
from whmc.search.swarm import Swarm, chosen, gather, move
from whmc.target.target import Target

MAX_RISES = 200
WARM_MOVES = 3
COLD_MOVES = 10
"""Trajectories at each rise of beta. In the cold more: a particle falls into a narrow mode with a chance of a
thousandth or so, and each trajectory is one try."""

FEWER_COLD_MOVES = 4
FEWEST_PARTICLES = 32
GRADIENTS_A_PARTICLE = 300.0
"""Of a search on a budget: a few more particles find heavy modes than trajectories in the cold find narrow ones."""

COLDEST_BETA = 30.0
"""Last beta: a fifth of a mode's width is left, there is nothing more to fall into."""


@dataclasses.dataclass(frozen=True)
class Tempered(AbstractFinder):
    """An annealed population, then polished. Finds a heavy mode with a small basin, and modes that are no peaks.

    num_particles: of the population; a small one loses modes at every resampling. cold_moves: trajectories at each fall
    of the temperature below that of the target.
    """

    num_starts: int | None = BATCH
    num_particles: int = BATCH
    cold_moves: int = COLD_MOVES

    def within(self, num_gradients: float) -> "Tempered":
        """A population that takes about as many gradients, if that is less than a whole one takes."""
        num = int(np.clip(num_gradients / GRADIENTS_A_PARTICLE, FEWEST_PARTICLES, self.num_particles))
        return dataclasses.replace(self, num_starts=num, num_particles=num, cold_moves=FEWER_COLD_MOVES)

    def find(self, key: Array, target: Target, num: int, known: KnownModes | None) -> DescentResult:
        key_starts, key_moves = children(key, 2)
        rng = generator(key_moves)
        starts = target.draw_starts(key_starts, self.num_particles)
        warm = anneal(target, gather(target, starts), rng, 1.0, WARM_MOVES)
        cold = anneal(target, warm, rng, COLDEST_BETA, self.cold_moves)
        population = warm.alive[:num]
        if len(population) == 0:
            nothing = np.zeros(0, bool)
            return DescentResult(population, nothing, cold.num_gradients, population, num_upfront=cold.num_gradients)
        peaks = () if known is None else known.peaks
        ends = descend(target, np.concatenate([population, cold.alive[:num]]), peaks)
        return dataclasses.replace(
            ends,
            num_gradients=cold.num_gradients + ends.num_gradients,
            population=population,
            num_upfront=cold.num_gradients,
        )


def anneal(target: Target, swarm: Swarm, rng: np.random.Generator, until: float, num_moves: int) -> Swarm:
    """The swarm at beta = `until`, by rises of beta and moves after each."""
    for _ in range(MAX_RISES):
        if swarm.beta >= until or np.all(swarm.far):
            break
        gain = _gain(swarm.logdensity, until - swarm.beta)
        which = _resample(rng, gain * swarm.logdensity)
        beta = swarm.beta + gain if gain < until - swarm.beta else until
        swarm = dataclasses.replace(chosen(swarm, which), beta=beta)
        for _ in range(num_moves):
            swarm = move(swarm, target, rng)
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
