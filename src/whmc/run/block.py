"""A block of steps of many chains: the one compiled function of a run.

It is a pure function of its arguments, so any device, process or machine that is given them returns the same draws.
Kernel, library and number of steps are data: warm-up, tuning and sampling share one compilation.
"""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from whmc.kernels.base import AbstractKernel, ChainState, make_state, refresh
from whmc.modes.library import ModeLibrary
from whmc.pytree import pytree
from whmc.target import Target


@pytree
class Trace:
    """What a step records; of a block, (steps, chains, ...) each. `info` is the kernel's own."""

    position: Float[Any, "*n dim"]
    logdensity: Float[Any, "*n"]
    log_mixture: Float[Any, "*n"]
    label: Int[Any, "*n"]
    info: Any


@partial(jax.jit, static_argnames="length")
def run_block(
    kernel: AbstractKernel,
    target: Target,
    library: ModeLibrary,
    states: ChainState,
    key: Array,
    first_step: Int[Array, ""],
    num_steps: Int[Array, ""],
    *,
    length: int,
) -> tuple[ChainState, Trace]:
    """`num_steps` (at most `length`) steps of every chain; rows of the trace past that are zero.

    Step t of chain c uses the key fold_in(fold_in(key, c), t) with t counted from the start of the run, so the
    draws depend neither on how a run is cut into blocks nor on how many chains run beside.
    """
    num_chains = states.logdensity.shape[0]
    chain_keys = jax.vmap(jax.random.fold_in, (None, 0))(key, jnp.arange(num_chains))
    states = jax.vmap(refresh, (0, None))(states, library)

    def one(key: Array, state: ChainState, t: Int[Array, ""]) -> tuple[ChainState, Trace]:
        state, info = kernel.step(jax.random.fold_in(key, t), state, target, library)
        return state, Trace(state.position, state.logdensity, state.log_mixture, state.label, info)

    step = jax.vmap(one, (0, 0, None))
    row = jax.eval_shape(step, chain_keys, states, first_step)[1]
    empty = jax.tree.map(lambda leaf: jnp.zeros((length, *leaf.shape), leaf.dtype), row)

    def body(n: Int[Array, ""], carry: tuple[ChainState, Trace]) -> tuple[ChainState, Trace]:
        states, trace = carry
        states, row = step(chain_keys, states, first_step + n)
        return states, jax.tree.map(lambda rows, new: rows.at[n].set(new), trace, row)

    return jax.lax.fori_loop(0, num_steps, body, (states, empty))


@jax.jit
def start_chains(
    target: Target, library: ModeLibrary, positions: Float[Array, "chains dim"]
) -> tuple[ChainState, Array]:
    """The states of chains that start at `positions`, and where the density failed."""
    return jax.vmap(make_state, (0, None, None))(positions, target, library)
