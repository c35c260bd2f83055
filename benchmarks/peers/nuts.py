"""BlackJAX's NUTS as Stan runs it, on a target of ours: JAX functions, and compiled Stan programs by callbacks."""

from typing import NamedTuple

import blackjax
import jax
import numpy as np

WARMUP, DRAWS = 1000, 1000

TRIES = 100
"""Starts that are drawn for each chain: as many as Stan tries."""


class NutsDraws(NamedTuple):
    """Draws on the unconstrained scale (chains, draws, dim), and gradients of all chains together."""

    draws: np.ndarray
    num_sampling: int
    num_warmup: int


def make_nuts(target, chains=16):
    """A function of a seed that runs NUTS; it is compiled once.

    Each chain by itself has Stan's window adaptation with a diagonal metric and an acceptance of 0.8. Chains start
    where the target's searches do. They run side by side: a callback gets one position of each at a time.
    """

    def chain(key, position):
        key_warm, key_run = jax.random.split(key)
        warm = blackjax.window_adaptation(blackjax.nuts, target, target_acceptance_rate=0.8)
        (state, settings), told = warm.run(key_warm, position, WARMUP)
        step = blackjax.nuts(target, **settings).step

        def one(state, key):
            state, info = step(key, state)
            return state, (state.position, info.num_integration_steps)

        _, (draws, num) = jax.lax.scan(one, state, jax.random.split(key_run, DRAWS))
        return draws, num, told.info.num_integration_steps

    run_all, evaluate = jax.jit(jax.vmap(chain)), jax.jit(jax.vmap(target.evaluate))

    def run(seed):
        with jax.enable_x64(True), target.user_errors():
            key_start, key_run = jax.random.split(jax.random.key(seed))
            starts = _starts(target, evaluate, key_start, chains)
            draws, sampling, warmup = map(np.asarray, run_all(jax.random.split(key_run, chains), starts))
        return NutsDraws(draws, int(sampling.sum()), int(warmup.sum()))

    return run


def _starts(target, evaluate, key, num):
    """For each chain a point of the start region that has a density: Stan draws others where there is none."""
    points = np.asarray(target.draw_starts(key, num))
    for n in range(TRIES):
        bad = ~np.isfinite(np.asarray(evaluate(points).logdensity))
        if not bad.any():
            return points
        others = np.asarray(target.draw_starts(jax.random.fold_in(key, n), num))
        points = np.where(bad[:, None], others, points)
    raise ValueError(f"{int(bad.sum())} of {num} chains found no start with a density in {TRIES} tries")
