"""Non-reversible parallel tempering in JAX, in the manner of Pigeons: rounds that double, a schedule that is learned.

The path leads from a Gaussian as wide as the box, beta = 0, to the target, beta = 1, by (1 - beta) log N + beta log pi.
Every iteration moves all rungs by Hamiltonian Monte Carlo and swaps neighbours, even and odd pairs in turn.
After each round the betas are put where all swaps are refused equally often, and every rung gets the variances of its
own draws as its metric. Then the rounds are forgotten, and draws of the target are kept until the time is over.
"""

import time

import jax
import jax.numpy as jnp
import numpy as np

BLOCK = 50
ROUNDS = 6
"""Rounds of 1, 2, 4, ... blocks that only learn."""


def parallel_tempering(logdensity, dim, low, high, *, rungs=16, replicas=8, leaps=5, acceptance=0.8):
    """A function of a key and of seconds that returns cold draws (n, dim)."""
    centre, sd = 0.5 * (low + high) * jnp.ones(dim), (high - low) / np.sqrt(12.0) * jnp.ones(dim)

    def both(x):
        """Log densities of target and reference, and their slopes."""
        height, slope = jax.value_and_grad(logdensity)(x)
        z = (x - centre) / sd
        usable = jnp.isfinite(height)
        return (
            jnp.where(usable, height, -1e300),
            -0.5 * jnp.sum(z**2) - jnp.sum(jnp.log(sd)),
            jnp.where(usable & jnp.all(jnp.isfinite(slope)), slope, 0.0),
            -z / sd,
        )

    every = jax.vmap(jax.vmap(both))

    def move(key, x, beta, size, spread):
        keys = jax.random.split(key, 3)
        share = beta[None, :, None]
        first = jax.random.normal(keys[0], x.shape)
        step = (size * jax.random.uniform(keys[1], x.shape[:2], minval=0.6, maxval=1.2))[..., None]

        def force(found):
            return spread * (share * found[2] + (1 - share) * found[3])

        def leap(_, at):
            y, p, found = at
            p = p + 0.5 * step * force(found)
            y = y + step * spread * p
            found = every(y)
            return y, p + 0.5 * step * force(found), found

        before = every(x)
        y, p, after = jax.lax.fori_loop(0, leaps, leap, (x, first, before))

        def height(found):
            return beta * found[0] + (1 - beta) * found[1]

        log_ratio = height(after) - height(before) + 0.5 * jnp.sum(first**2 - p**2, axis=-1)
        rate = jnp.nan_to_num(jnp.exp(jnp.minimum(log_ratio, 0.0)))
        taken = jax.random.uniform(keys[2], rate.shape) < rate
        gap = jnp.where(taken, after[0] - after[1], before[0] - before[1])  # log pi - log N
        return jnp.where(taken[..., None], y, x), gap, rate.mean(axis=0)

    def swap(key, x, gap, beta, odd):
        rung = jnp.arange(rungs)
        other = jnp.where((rung + odd) % 2 == 0, rung + 1, rung - 1)
        other = jnp.where((other < 0) | (other >= rungs), rung, other)
        log_ratio = (beta[other] - beta) * (gap - gap[:, other])
        rate = jnp.exp(jnp.minimum(log_ratio, 0.0))
        coin = jax.random.uniform(key, gap.shape)[:, jnp.minimum(rung, other)]  # one for each pair
        taken = (coin < rate) & (other != rung)
        refused = jnp.where(other > rung, 1 - rate.mean(axis=0), 0.0)[:-1]
        return jnp.where(taken[..., None], x[:, other], x), refused

    @jax.jit
    def block(key, x, beta, size, spread, gain):
        def body(carry, now):
            x, size = carry
            key_move, key_swap = jax.random.split(now[0])
            x, gap, rate = move(key_move, x, beta, size, spread)
            cold = x[:, -1]
            squares = x
            x, refused = swap(key_swap, x, gap, beta, now[1])
            size = jnp.clip(size * jnp.exp(gain * (rate - acceptance)), 1e-4, 3.0)
            return (x, size), (cold, refused, squares.mean(axis=0), (squares**2).mean(axis=0))

        numbers = jnp.arange(BLOCK) % 2
        (x, size), (cold, refused, first, second) = jax.lax.scan(
            body, (x, size), (jax.random.split(key, BLOCK), numbers)
        )
        return x, size, cold, refused.sum(axis=0) / (BLOCK / 2), first.mean(axis=0), second.mean(axis=0)

    def run(key, seconds):
        deadline = time.perf_counter() + seconds
        key, here = jax.random.split(key)
        x = centre + sd * jax.random.normal(here, (replicas, rungs, dim))
        beta = jnp.concatenate([jnp.zeros(1), jnp.geomspace(1e-3, 1.0, rungs - 1)])
        size, spread = jnp.full(rungs, 0.3), jnp.tile(sd, (rungs, 1))
        for n in range(ROUNDS):
            refused, first, second = jnp.zeros(rungs - 1), 0.0, 0.0
            for _ in range(2**n):
                key, here = jax.random.split(key)
                x, size, _, no, one, two = block(here, x, beta, size, spread, 0.1)
                refused, first, second = refused + no / 2**n, first + one / 2**n, second + two / 2**n
            spread = jnp.sqrt(jnp.maximum(second - first**2, 1e-12)) if n > 1 else spread
            beta = _even(beta, refused)
        draws = []
        while not draws or time.perf_counter() < deadline:
            key, here = jax.random.split(key)
            x, size, cold, _, _, _ = block(here, x, beta, size, spread, 0.0)
            draws.append(np.asarray(cold).reshape(-1, dim))
        return np.concatenate(draws)

    return run


def _even(beta, refused):
    """Betas between which equally much is refused, from what is refused between those of now."""
    barrier = np.concatenate([[0.0], np.cumsum(np.asarray(refused) + 1e-3)])
    wanted = np.linspace(0, barrier[-1], len(barrier))
    return jnp.asarray(np.interp(wanted, barrier, np.asarray(beta)))
