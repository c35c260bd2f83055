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
from jaxtyping import Array, Bool, Float, Int

from whmc._pytree import pytree
from whmc.kernels.base import AbstractKernel, ChainState, make_state, refresh
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


@partial(jax.jit, static_argnames="length")
def run_block(
    kernel: AbstractKernel,
    target: Target,
    library: ModeLibrary,
    states: ChainState,
    key: Array,
    first_step: Int[Array, " chains"],
    num_steps: Int[Array, ""],
    active: Bool[Array, " chains"],
    update_waits: Bool[Array, ""],
    *,
    length: int,
) -> tuple[ChainState, Trace, Int[Array, " chains"]]:
    """`num_steps` (at most `length`) steps of every active chain, and how many each made; rows past that mean nothing.

    Where an update of the kernel waits, a chain stops at its next regeneration; its last row is that step.

    Step t of chain c uses the key fold_in(fold_in(key, c), t) with t counted from the chain's start, so the
    draws depend neither on how a run is cut into blocks nor on how many chains run beside.
    """
    num_chains = states.logdensity.shape[0]
    chain_keys = jax.vmap(jax.random.fold_in, (None, 0))(key, jnp.arange(num_chains))

    # all random numbers of the block at once: one call of the generator costs about as much as a hundred
    def draw(t: Int[Array, ""], chain_key: Array) -> Any:
        return kernel.draw(jax.random.fold_in(chain_key, t), library)

    steps = first_step + jnp.arange(length)[:, None]
    noise = jax.vmap(jax.vmap(draw), (0, None))(steps, chain_keys)
    states = refresh_all(states, library)

    def one(noise: Any, state: ChainState) -> tuple[ChainState, Trace]:
        state, info = kernel.move(noise, state, target, library)
        return state, Trace(state.position, state.logdensity, state.log_mixture, state.label, info)

    step = jax.vmap(one)

    def step_of(n: Int[Array, ""], states: ChainState) -> tuple[ChainState, Trace]:
        return step(jax.tree.map(lambda rows: rows[n], noise), states)

    packing = Packing.of(jax.eval_shape(step_of, num_steps, states)[1])

    def more(carry: Any) -> Bool[Array, ""]:
        n, _, _, running, _ = carry
        return (n < num_steps) & jnp.any(running)

    def body(carry: Any) -> Any:
        n, states, rows, running, made = carry
        moved, row = step_of(n, states)
        states = jax.tree.map(
            lambda new, old: jnp.where(running.reshape(-1, *[1] * (new.ndim - 1)), new, old), moved, states
        )
        rows = [old.at[n].set(new) for old, new in zip(rows, packing.pack(row), strict=True)]
        made = made + running.astype(made.dtype)
        return n + 1, states, rows, running & ~(update_waits & regenerated(row.info)), made

    start = (jnp.zeros((), int), states, packing.empty(length, num_chains), active, jnp.zeros(num_chains, int))
    _, states, rows, _, made = jax.lax.while_loop(more, body, start)
    return states, packing.unpack(rows), made


def regenerated(info: Any) -> Any:
    """Whether any move of a step was a regeneration."""
    parts = [part.regenerated for part in (info if isinstance(info, tuple) else (info,))]
    return reduce(operator.or_, parts)


@dataclasses.dataclass(frozen=True)
class Packing:
    """A record as one array for each dtype: writing a step then costs three small copies, not thirty."""

    structure: Any
    shapes: tuple[tuple[int, ...], ...]
    dtypes: tuple[Any, ...]

    @classmethod
    def of(cls, row: Any) -> "Packing":
        leaves, structure = jax.tree.flatten(row)
        return cls(structure, tuple(leaf.shape for leaf in leaves), tuple(leaf.dtype for leaf in leaves))

    def kinds(self) -> list[Any]:
        return sorted(set(self.dtypes), key=str)

    def empty(self, length: int, chains: int) -> list[Array]:
        """Room for `length` records of all chains."""
        widths = {
            kind: sum(int(np.prod(s[1:])) for s, d in zip(self.shapes, self.dtypes, strict=True) if d == kind)
            for kind in self.kinds()
        }
        return [jnp.zeros((length, chains, width), kind) for kind, width in widths.items()]

    def pack(self, row: Any) -> list[Array]:
        """The record of one step: (chains, numbers) for each dtype."""
        leaves = jax.tree.leaves(row)
        flat = [leaf.reshape(leaf.shape[0], -1) for leaf in leaves]
        return [jnp.concatenate([f for f in flat if f.dtype == kind], axis=1) for kind in self.kinds()]

    def unpack(self, rows: list[Array]) -> Any:
        """The records again, (steps, chains, ...) each."""
        offsets, leaves = dict.fromkeys(self.kinds(), 0), []
        by_kind = dict(zip(self.kinds(), rows, strict=True))
        for shape, kind in zip(self.shapes, self.dtypes, strict=True):
            width, start = int(np.prod(shape[1:])), offsets[kind]
            part = by_kind[kind][..., start : start + width]
            leaves.append(part.reshape(*part.shape[:2], *shape[1:]))
            offsets[kind] += width
        return jax.tree.unflatten(self.structure, leaves)


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
