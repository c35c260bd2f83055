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

from whmc._pytree import pytree
from whmc._shapes import Array, Bool, Float, Int, UInt32
from whmc.kernels.base import AbstractKernel, ChainState
from whmc.kernels.cycle import Cycle, moves
from whmc.kernels.flight import Fleet, Rows, state_packing, told
from whmc.kernels.packing import Packed, Packing, put
from whmc.kernels.random import Noise, Places, block_keys, block_noise, total
from whmc.modes.library import ModeLibrary
from whmc.target.target import Target

BlockNoise = tuple[Noise, dict[int, UInt32[Any, "length chains 2"]]]
"""The random numbers of a block, (steps, chains, ...), and the keys of kernels that draw by themselves."""


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
    states: Rows,
    noise: BlockNoise,
    num_steps: Int[Any, ""],
    active: Bool[Any, " chains"],
    update_waits: Bool[Any, ""],
) -> tuple[Rows, Packed, Int[Array, " chains"]]:
    """`num_steps` (at most as many as there is noise for) steps of every active chain: states at the end, what steps
    record, and how many each chain made; rows past that mean nothing. States and records are packed (`move_chains`).

    Where an update of the kernel waits, a chain stops at its next regeneration; its last row is that step.
    """
    length, num_chains = noise[0].uniform.shape[:2]
    kernels = moves(kernel)
    nums = [one.num_noise(library) for one in kernels]
    own = {n: _drawn(kernels[n], keys, library) for n, keys in noise[1].items()}
    fleet = Fleet(kernels, target, library, num_chains)

    def noise_of(numbers: Any, m: int) -> Any:
        together, alone = numbers
        return alone[m] if m in alone else together.part(total(nums[:m]), total(nums[: m + 1]))

    def row_of(states: Any, told: Any) -> Trace:
        here = fleet.states.unpack(states)
        label = jnp.argmax(here.log_components, axis=1)
        return Trace(here.position, here.logdensity, here.log_mixture, label, told)

    first = jax.tree.map(lambda rows: rows[0], (noise[0], own))
    nothing = fleet.nothing_told(partial(noise_of, first), active, states)
    packing = Packing.of(row_of(states, nothing))

    def more(carry: Any) -> Bool[Array, ""]:
        n, _, _, _, running, _ = carry
        return (n < num_steps) & jnp.any(running)

    def body(carry: Any) -> Any:
        n, states, told_before, rows, running, made = carry
        numbers = jax.tree.map(lambda rows: jax.lax.dynamic_index_in_dim(rows, n, keepdims=False), (noise[0], own))
        states, told_now = fleet.step(partial(noise_of, numbers), running, states, told_before)
        row = row_of(states, told_now)
        rows = [put(old, new, n) for old, new in zip(rows, packing.pack(row), strict=True)]
        stops = update_waits & regenerated(told(kernels, *row.info))
        return n + 1, states, told_now, rows, running & ~stops, made + running.astype(made.dtype)

    carry = (jnp.zeros((), int), states, nothing, packing.empty(length, num_chains), active, jnp.zeros(num_chains, int))
    _, ends, _, rows, _, made = jax.lax.while_loop(more, body, carry)
    return ends, Packed(tuple(rows), packing), made


def move_chains(
    kernel: AbstractKernel,
    target: Target,
    library: ModeLibrary,
    states: ChainState,
    noise: BlockNoise,
    num_steps: int,
    active: Bool[np.ndarray, " chains"],
    update_waits: bool,
) -> tuple[ChainState, Packed, Int[np.ndarray, " chains"]]:
    """`compute_block` of chains whose states belong to this library; their new states in NumPy."""
    packing = state_packing(library, len(active))
    flags = np.asarray(num_steps), np.asarray(active), np.asarray(update_waits)
    rows = packing.pack(jax.tree.map(np.asarray, states))
    ends, rows, made = compute_block(kernel, target, library, rows, noise, *flags)
    return packing.unpack([np.asarray(row) for row in ends]), rows, np.asarray(made)


def unpack_trace(kernel: AbstractKernel, packed: Packed) -> Trace:
    """What the steps of a block record, in NumPy. It waits until the block is computed."""
    trace = packed.unpack()
    info = told(moves(kernel), *trace.info)
    return dataclasses.replace(trace, info=info if isinstance(kernel, Cycle) else info[0])


def run_block(
    kernel: AbstractKernel,
    target: Target,
    library: ModeLibrary,
    states: ChainState,
    key: Array,
    first_step: Int[Any, " chains"],
    num_steps: int,
    active: Bool[Any, " chains"],
    update_waits: bool,
    *,
    length: int,
) -> tuple[ChainState, Trace, Int[np.ndarray, " chains"]]:
    """As `move_chains`, with the noise drawn and the trace unpacked; `first_step` of each chain is counted from its
    start."""
    noise = draw_block(kernel, library, key, np.asarray(first_step), length)
    states, packed, made = move_chains(kernel, target, library, states, noise, num_steps, active, update_waits)
    return states, unpack_trace(kernel, packed), made


def draw_block(
    kernel: AbstractKernel,
    library: ModeLibrary,
    key: Array,
    first_step: Int[np.ndarray, " chains"],
    length: int,
    first_chain: int = 0,
) -> BlockNoise:
    """The random numbers of all steps of a block, on the host: together for the kernels that say how many they need,
    and keys for the others. first_chain: the number of the first of these chains."""
    nums = [one.num_noise(library) for one in moves(kernel)]
    places = Places(first_step, length, first_chain)
    keys = {n: block_keys(key, places, n) for n, num in enumerate(nums) if num is None}
    return block_noise(key, places, *total(nums)), keys


def _drawn(kernel: AbstractKernel, keys: UInt32[Any, "length chains 2"], library: ModeLibrary) -> Any:
    """What a kernel draws by itself, for all steps of all chains."""
    draw = jax.vmap(jax.vmap(kernel.draw, (0, None)), (0, None))
    return draw(jax.random.wrap_key_data(keys, impl="threefry2x32"), library)


def regenerated(info: Any) -> Any:
    """Whether any move of a step was a regeneration."""
    parts = [part.regenerated for part in (info if isinstance(info, tuple) else (info,))]
    return reduce(operator.or_, parts)
