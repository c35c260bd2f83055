"""A block of steps of many chains: the one compiled function of a run.

It is a pure function of its arguments, so any device, process or machine that is given them returns the same draws.
Kernel, library and number of steps are data: warm-up, tuning and sampling share one compilation.
"""

import dataclasses
import operator
from functools import partial, reduce
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, UInt32

from whmc._pytree import pytree
from whmc.kernels.base import AbstractKernel, ChainState, make_state, refresh
from whmc.kernels.cycle import Cycle
from whmc.kernels.flight import Fleet, told
from whmc.kernels.packing import Packed, Packing, put
from whmc.kernels.random import step_keys
from whmc.modes.library import ModeLibrary
from whmc.target.target import Target


@pytree
class Trace:
    """What a step records; of a block, (steps, chains, ...) each. `info` is the kernel's own."""

    position: Float[Any, "*n dim"]
    logdensity: Float[Any, "*n"]
    log_mixture: Float[Any, "*n"]
    label: Int[Any, "*n"]
    info: Any


@jax.jit
def compute_block(
    kernel: AbstractKernel,
    target: Target,
    library: ModeLibrary,
    states: ChainState,
    keys: UInt32[Any, "length chains 2"],
    num_steps: Int[Array, ""],
    active: Bool[Array, " chains"],
    update_waits: Bool[Array, ""],
) -> tuple[ChainState, Packed, Int[Array, " chains"]]:
    """`num_steps` (at most as many as keys) steps of every active chain, packed, and how many each made; rows past that
    mean nothing.

    Where an update of the kernel waits, a chain stops at its next regeneration; its last row is that step.
    """
    length, num_chains = keys.shape[:2]
    noise = draw_all(kernel, library, keys)
    kernels = kernel.kernels if isinstance(kernel, Cycle) else (kernel,)
    fleet = Fleet(kernels, target, library, states)

    def noise_of(numbers: Any, m: int) -> Any:
        return kernel.part(m, numbers, library) if isinstance(kernel, Cycle) else numbers

    def row_of(states: Any, told: Any) -> Trace:
        here = fleet.states.unpack(states)
        label = jnp.argmax(here.log_components, axis=1)
        return Trace(here.position, here.logdensity, here.log_mixture, label, told)

    start = fleet.states.pack(refresh_all(states, library))
    first = jax.tree.map(lambda rows: rows[0], noise)
    packing = Packing.of(row_of(start, fleet.nothing_told(partial(noise_of, first), active, start)))

    def more(carry: Any) -> Bool[Array, ""]:
        n, _, _, running, _ = carry
        return (n < num_steps) & jnp.any(running)

    def body(carry: Any) -> Any:
        n, states, rows, running, made = carry
        numbers = jax.tree.map(lambda rows: jax.lax.dynamic_index_in_dim(rows, n, keepdims=False), noise)
        states, told_now = fleet.step(partial(noise_of, numbers), running, states)
        row = row_of(states, told_now)
        rows = [put(old, new, n) for old, new in zip(rows, packing.pack(row), strict=True)]
        stops = update_waits & regenerated(told(kernels, *row.info))
        return n + 1, states, rows, running & ~stops, made + running.astype(made.dtype)

    carry = (jnp.zeros((), int), start, packing.empty(length, num_chains), active, jnp.zeros(num_chains, int))
    _, ends, rows, _, made = jax.lax.while_loop(more, body, carry)
    return fleet.states.unpack(ends), Packed(tuple(rows), packing), made


def unpack_trace(kernel: AbstractKernel, packed: Packed) -> Trace:
    """What the steps of a block record, in NumPy. It waits until the block is computed."""
    trace = packed.unpack()
    info = told(kernel.kernels if isinstance(kernel, Cycle) else (kernel,), *trace.info)
    return dataclasses.replace(trace, info=info if isinstance(kernel, Cycle) else info[0])


def run_block(
    kernel: AbstractKernel,
    target: Target,
    library: ModeLibrary,
    states: ChainState,
    key: Array,
    first_step: Int[Any, " chains"],
    num_steps: Int[Any, ""],
    active: Bool[Any, " chains"],
    update_waits: Bool[Any, ""],
    *,
    length: int,
) -> tuple[ChainState, Trace, Int[Array, " chains"]]:
    """As `compute_block`, with the trace unpacked.

    Step t of chain c uses the key fold_in(fold_in(key, c), t) with t counted from the chain's start, so the
    draws depend neither on how a run is cut into blocks nor on how many chains run beside.
    """
    keys = step_keys(key, np.asarray(first_step), length)
    states, packed, made = compute_block(kernel, target, library, states, keys, num_steps, active, update_waits)
    return states, unpack_trace(kernel, packed), made


def draw_all(kernel: AbstractKernel, library: ModeLibrary, keys: UInt32[Any, "length chains 2"]) -> Any:
    """The random numbers of all steps of a block at once, (steps, chains, ...): one call of the generator costs about
    as much as a hundred. Steps and chains are one axis while they are drawn, which compiles in half the time of two.
    """
    draw = kernel.draw_together if isinstance(kernel, Cycle) else kernel.draw
    rows = jax.vmap(draw, (0, None))(jax.random.wrap_key_data(keys.reshape(-1, 2), impl="threefry2x32"), library)
    return jax.tree.map(lambda row: row.reshape(*keys.shape[:2], *row.shape[1:]), rows)


def regenerated(info: Any) -> Any:
    """Whether any move of a step was a regeneration."""
    parts = [part.regenerated for part in (info if isinstance(info, tuple) else (info,))]
    return reduce(operator.or_, parts)


@jax.jit
def refresh_all(states: ChainState, library: ModeLibrary) -> ChainState:
    """The chains where they are, seen from another library."""
    return jax.vmap(refresh, (0, None))(states, library)


@jax.jit
def start_chains(
    target: Target, library: ModeLibrary, positions: Float[Array, "chains dim"]
) -> tuple[ChainState, Array]:
    """The states of chains that start at `positions`, and where the density failed."""
    return jax.vmap(make_state, (0, None, None))(positions, target, library)
