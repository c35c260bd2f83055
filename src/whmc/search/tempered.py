"""Tempered: a population annealed from the start region, so that modes are found by their mass.

Particles start in the start region and follow pi^beta, beta from 0 to 1: each rise is as large as leaves half of the
particles effective, then they are resampled and moved by Hamiltonian Monte Carlo at the new beta. It only has to find
places, so nothing here needs to be exact.

At beta = 1 the population lies where the mass is, also where the mass has no peak. Then it is cooled further: a narrow
mode beside a broad one has a basin too small for any start, but in the cold all of the broad mode's particles
gather near enough to fall into it.
"""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from whmc._pytree import pytree
from whmc.search.descent import BATCH, DescentResult, KnownModes, descend, farthest_from
from whmc.search.finders import AbstractFinder
from whmc.target.target import Target

MAX_RISES = 200
TRAJECTORY_STEPS = 5
WARM_MOVES = 3
COLD_MOVES = 10
"""Trajectories at each rise of beta. In the cold more: a particle falls into a narrow mode with a chance of a
thousandth or so, and each trajectory is one try."""

COLDEST_BETA = 30.0
"""Last beta: a fifth of a mode's width is left, there is nothing more to fall into."""


@dataclasses.dataclass(frozen=True)
class Tempered(AbstractFinder):
    """An annealed population, then polished. Finds a heavy mode with a small basin, and modes that are no peaks."""

    num_starts: int | None = BATCH

    def find(self, key: Array, target: Target, num: int, known: KnownModes | None) -> DescentResult:
        key_starts, key_warm, key_cold = jax.random.split(key, 3)
        # a whole batch whatever is asked for: a small population loses modes at every resampling
        warm = _anneal(target, _swarm(target, target.draw_starts(key_starts, BATCH)), key_warm, 1.0, WARM_MOVES)
        cold = _anneal(target, warm, key_cold, COLDEST_BETA, COLD_MOVES)
        warm_rises, cold_rises = int(warm.num_rises), int(cold.num_rises - warm.num_rises)
        cost = BATCH * (1 + (warm_rises * WARM_MOVES + cold_rises * COLD_MOVES) * TRAJECTORY_STEPS)
        population = warm.alive[:num]
        if len(population) == 0:
            return DescentResult(population, np.zeros(0, bool), cost, population, num_upfront=cost)
        ends = [descend(target, jnp.asarray(rows)) for rows in (population, cold.alive[:num]) if len(rows)]
        return DescentResult(
            np.concatenate([part.position for part in ends]),
            np.concatenate([part.usable for part in ends]),
            cost + sum(part.num_gradients for part in ends),
            population,
            num_upfront=cost,
        )


@pytree
class Swarm:
    """The population at an inverse temperature, and the step size that serves it."""

    position: Float[Array, "n dim"]
    logdensity: Float[Array, " n"]
    score: Float[Array, "n dim"]
    farthest: Float[Array, ""]
    beta: Float[Array, ""]
    step_size: Float[Array, ""]
    num_rises: Array

    @property
    def far(self) -> Bool[Array, " n"]:
        return jnp.max(jnp.abs(self.position), axis=1) > self.farthest

    @property
    def alive(self) -> Float[np.ndarray, "n dim"]:
        """Particles where the target has density, and that have not run away."""
        return np.asarray(self.position)[np.asarray(jnp.isfinite(self.logdensity) & ~self.far)]


@jax.jit
def _swarm(target: Target, starts: Float[Array, "n dim"]) -> Swarm:
    found = jax.vmap(target.evaluate)(starts)
    step_size = jnp.asarray(starts.shape[1] ** -0.25, float)  # no weak type: one compilation for warm and cold
    start = jnp.zeros(())
    return Swarm(starts, found.logdensity, found.score, farthest_from(starts), start, step_size, jnp.zeros((), int))


def relax(
    target: Target, starts: Float[Array, "n dim"], key: Array, num_moves: int
) -> tuple[Float[np.ndarray, "n dim"], int]:
    """The points after some trajectories at beta = 1, none of them lost or doubled, and the gradients spent."""
    swarm = _relax(target, _swarm(target, starts), key, jnp.asarray(num_moves))
    return swarm.alive, len(starts) * (1 + num_moves * TRAJECTORY_STEPS)


@jax.jit
def _relax(target: Target, swarm: Swarm, key: Array, num_moves: Array) -> Swarm:
    swarm = dataclasses.replace(swarm, beta=jnp.ones(()))
    return jax.lax.fori_loop(0, num_moves, lambda n, s: _move(jax.random.fold_in(key, n), s, target), swarm)


@jax.jit
def _anneal(target: Target, swarm: Swarm, key: Array, until: Float[Array, ""] | float, num_moves: Array | int) -> Swarm:
    last = swarm.num_rises + MAX_RISES

    def rise(swarm: Swarm) -> Swarm:
        key_pick, key_moves = jax.random.split(jax.random.fold_in(key, swarm.num_rises))
        gain = _gain(swarm.logdensity, until - swarm.beta)
        chosen = _resample(key_pick, gain * swarm.logdensity)
        beta = jnp.where(gain < until - swarm.beta, swarm.beta + gain, until)
        swarm = dataclasses.replace(
            swarm,
            position=swarm.position[chosen],
            logdensity=swarm.logdensity[chosen],
            score=swarm.score[chosen],
            beta=beta,
            num_rises=swarm.num_rises + 1,
        )
        return jax.lax.fori_loop(0, num_moves, lambda n, s: _move(jax.random.fold_in(key_moves, n), s, target), swarm)

    return jax.lax.while_loop(lambda s: (s.beta < until) & (s.num_rises < last) & ~jnp.all(s.far), rise, swarm)


def _gain(logdensity: Float[Array, " n"], most: Float[Array, ""]) -> Float[Array, ""]:
    """The rise of beta, at most `most`, that leaves half of the particles effective."""

    def effective(gain: Float[Array, ""]) -> Float[Array, ""]:
        log_weight = jnp.where(jnp.isfinite(logdensity), gain * logdensity, -jnp.inf)
        log_sum = jax.nn.logsumexp(log_weight)
        return jnp.exp(2 * log_sum - jax.nn.logsumexp(2 * log_weight))

    enough = 0.5 * jnp.sum(jnp.isfinite(logdensity), dtype=float)

    def halve(_: Array | int, ends: tuple[Array, Array]) -> tuple[Array, Array]:
        low, high = ends  # in logs: the first rise may be very small
        middle = 0.5 * (low + high)
        fine = effective(jnp.exp(middle)) > enough
        return jnp.where(fine, middle, low), jnp.where(fine, high, middle)

    low, _ = jax.lax.fori_loop(0, 40, halve, (jnp.log(most) - 30.0, jnp.log(most)))
    return jnp.where(effective(most) > enough, most, jnp.exp(low))


def _resample(key: Array, log_weight: Float[Array, " n"]) -> Array:
    """Systematic resampling."""
    log_weight = jnp.where(jnp.isfinite(log_weight), log_weight, -jnp.inf)
    heights = jnp.cumsum(jax.nn.softmax(log_weight))
    num = log_weight.shape[0]
    places = (jnp.arange(num, dtype=float) + jax.random.uniform(key)) / num
    return jnp.minimum(jnp.searchsorted(heights, places * heights[-1]), num - 1)


def _move(key: Array, swarm: Swarm, target: Target) -> Swarm:
    """One trajectory of every particle at the present beta, in units of the population's spread."""
    key_momentum, key_accept, key_jitter = jax.random.split(key, 3)
    spread = jnp.std(swarm.position, axis=0) + 1e-12
    momentum = jax.random.normal(key_momentum, swarm.position.shape)
    step = swarm.step_size * jax.random.uniform(key_jitter, (len(momentum), 1), minval=0.6, maxval=1.2)
    kick = 0.5 * step * swarm.beta * spread

    def leap(_: Array | int, carry: tuple[Array, ...]) -> tuple[Array, ...]:
        position, momentum, _logdensity, score = carry
        momentum = momentum + kick * score
        position = position + step * spread * momentum
        found = jax.vmap(target.evaluate)(position)
        return position, momentum + kick * found.score, found.logdensity, found.score

    position, new_momentum, logdensity, score = jax.lax.fori_loop(
        0, TRAJECTORY_STEPS, leap, (swarm.position, momentum, swarm.logdensity, swarm.score)
    )
    log_ratio = swarm.beta * (logdensity - swarm.logdensity) - 0.5 * jnp.sum(new_momentum**2 - momentum**2, axis=1)
    log_ratio = jnp.where(jnp.isfinite(logdensity) & ~jnp.isnan(log_ratio), log_ratio, -jnp.inf)
    accepted = jnp.log(jax.random.uniform(key_accept, log_ratio.shape)) < log_ratio
    rate = jnp.mean(jnp.exp(jnp.minimum(log_ratio, 0.0)))

    def kept(new: Array, old: Array) -> Array:
        return jnp.where(accepted.reshape(-1, *[1] * (new.ndim - 1)), new, old)

    return dataclasses.replace(
        swarm,
        position=kept(position, swarm.position),
        logdensity=kept(logdensity, swarm.logdensity),
        score=kept(score, swarm.score),
        step_size=jnp.clip(swarm.step_size * jnp.exp(rate - 0.7), 1e-4, 1.0),
    )
