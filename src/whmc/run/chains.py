"""Chains that run side by side: where they are, and blocks of their steps."""

import dataclasses
from collections.abc import Callable, Iterator
from typing import NamedTuple

import jax
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from whmc.kernels.base import AbstractKernel, ChainState
from whmc.kernels.block import Trace, compute_block, draw_block, refresh_all, unpack_trace
from whmc.kernels.packing import Packed
from whmc.kernels.settings import infos
from whmc.modes.library import ModeLibrary
from whmc.modes.mixture import log_components_of
from whmc.target.rows import evaluate_rows
from whmc.target.target import Target

LONGEST_BLOCK = 100
"""Steps of a block at most: long enough that Python costs nothing, short enough for a live progress line."""

BLOCK_NUMBERS = 4_000_000
"""Random numbers of a block at most, about: they are drawn at once and must fit into the memory."""


MOST_IN_GROUP = 16
"""Chains of a group at most. Groups compute beside one another, each on a core of its own; what a group computes does
not depend on how many run at once. A step of a cheap density takes hardly longer for sixteen chains than for one, and
XLA uses several cores for a costly one: so the sixteen chains of a default run are one group."""


@dataclasses.dataclass(frozen=True)
class Chains:
    """Where the chains are, and how many steps each has made: enough to go on from there.

    groups: the states of all chains, in groups of one size. The last may end with copies that stand still.
    """

    groups: tuple[ChainState, ...]
    made: Int[np.ndarray, " chains"]

    @classmethod
    def of(cls, states: ChainState, made: Int[np.ndarray, " chains"]) -> "Chains":
        """Chains in the given states."""
        num = len(made)
        several = -(-num // MOST_IN_GROUP)
        size = -(-num // several)
        numbers = np.minimum(np.arange(several * size), num - 1).reshape(several, size)
        # device_put and not jnp: indexing there compiles something for every shape
        rows = jax.tree.map(np.asarray, states)
        return cls(tuple(jax.tree.map(lambda part, n=n: jax.device_put(part[n]), rows) for n in numbers), made)

    @property
    def states(self) -> ChainState:
        """Of all chains, in NumPy arrays. It waits until they are computed."""
        return jax.tree.map(
            lambda *parts: np.concatenate([np.asarray(part) for part in parts])[: self.num], *self.groups
        )

    @property
    def num(self) -> int:
        return len(self.made)

    @property
    def block_length(self) -> int:
        """Steps of a block: a function of shapes, so that a run is always cut into the same blocks."""
        dim = self.groups[0].position.shape[1]
        return int(np.clip(BLOCK_NUMBERS // (self.num * dim), 10, LONGEST_BLOCK))


class Cost(NamedTuple):
    """Gradients that steps took, and evaluations that failed on the way."""

    num_gradients: int = 0
    num_failed: int = 0


class Block(NamedTuple):
    """A block that was dispatched, of all groups: its trace may still be computed."""

    chains: Chains
    kernel: AbstractKernel
    rows: tuple[Packed, ...]
    steps: tuple[Array, ...]

    @property
    def trace(self) -> Trace:
        """What its steps record, (steps, chains, ...). It waits until the block is computed."""
        parts = [unpack_trace(self.kernel, rows) for rows in self.rows]
        num = self.chains.num
        return jax.tree.map(lambda *rows: np.concatenate(rows, axis=1)[:, :num], *parts)

    @property
    def made(self) -> Int[np.ndarray, " chains"]:
        """How many of its steps each chain made. It waits until the block is computed."""
        return np.concatenate([np.asarray(steps) for steps in self.steps])[: self.chains.num]


@dataclasses.dataclass(frozen=True)
class Mover:
    """What moves the chains of a run: the target, and the root of their random keys."""

    target: Target
    key: Array

    def start(self, library: ModeLibrary, positions: Float[np.ndarray, "chains dim"]) -> tuple[Chains, int]:
        """Chains at their first positions, and how many evaluations failed; an error if a chain cannot start."""
        found = evaluate_rows(self.target, positions)
        _require_start(positions, found.logdensity)
        components = np.full((len(positions), library.capacity), -np.inf)
        components[:, : library.size] = log_components_of(library, positions).T
        log_mixture = np.logaddexp.reduce(components, axis=1)
        states = ChainState(*map(jax.device_put, (positions, found.logdensity, found.score, components, log_mixture)))
        return Chains.of(states, np.zeros(len(positions), int)), int(np.sum(found.failed))

    def dispatch(
        self,
        chains: Chains,
        kernel: AbstractKernel,
        library: ModeLibrary,
        num_steps: int,
        *,
        active: Bool[np.ndarray, " chains"] | None = None,
        update_waits: bool = False,
    ) -> Block:
        """One block of the active chains, of all unless told, group by group side by side. It returns before the block
        is computed."""
        running = np.ones(chains.num, bool) if active is None else active
        size, groups, rows, steps = len(chains.groups[0].logdensity), [], [], []
        for number, states in enumerate(chains.groups):
            if states.log_components.shape[1] != library.capacity:  # else the block is compiled for this shape too
                states = refresh_all(states, library)
            mine = np.arange(number * size, (number + 1) * size)
            here = np.minimum(mine, chains.num - 1)
            states, row, made = compute_block(
                kernel,
                self.target,
                library,
                states,
                draw_block(kernel, library, self.key, chains.made[here], chains.block_length, number * size),
                np.asarray(num_steps),
                running[here] & (mine < chains.num),
                np.asarray(update_waits),
            )
            groups.append(states)
            rows.append(row)
            steps.append(made)
        block = Block(Chains(tuple(groups), chains.made), kernel, tuple(rows), tuple(steps))
        # with all chains active the host knows how many steps they make, and need not wait for the block
        more = num_steps if active is None and not update_waits else block.made
        return block._replace(chains=Chains(tuple(groups), chains.made + more))

    def compile(self, chains: Chains, kernel: AbstractKernel, library: ModeLibrary) -> None:
        """Makes no steps at all: what is left of the call is the compilation."""
        jax.block_until_ready(self.dispatch(chains, kernel, library, 0).steps)

    def blocks(
        self, chains: Chains, kernel: AbstractKernel, library: ModeLibrary, num_steps: int
    ) -> Iterator[tuple[Trace, Chains]]:
        """Blocks that make `num_steps` steps of all chains: the trace in NumPy, and the chains after it.

        The next block computes while one is taken in.
        """
        waiting: tuple[Block, int] | None = None
        for start in range(0, num_steps, chains.block_length):
            length = min(chains.block_length, num_steps - start)
            block = self.dispatch(chains, kernel, library, length)
            chains = block.chains
            if waiting is not None:
                yield _taken(*waiting)
            waiting = block, length
        if waiting is not None:
            yield _taken(*waiting)

    def steps(
        self,
        chains: Chains,
        kernel: AbstractKernel,
        library: ModeLibrary,
        num_steps: int,
        tell: Callable[[int], None] = lambda num: None,
    ) -> tuple[Trace, Chains]:
        """`num_steps` steps of all chains: the trace, (steps, chains, ...). `tell` is given how many are made."""
        parts = []
        for trace, reached in self.blocks(chains, kernel, library, num_steps):
            parts.append(trace)
            chains = reached
            tell(sum(len(part.logdensity) for part in parts))
        if not parts:  # no steps at all: a trace without rows
            parts.append(_taken(self.dispatch(chains, kernel, library, 0), 0)[0])
        return jax.tree.map(lambda *rows: np.concatenate(rows), *parts), chains


def _taken(block: Block, length: int) -> tuple[Trace, Chains]:
    return jax.tree.map(lambda rows: rows[:length], block.trace), block.chains


def cost_of(trace: Trace, ran: Bool[np.ndarray, "steps chains"] | None = None) -> Cost:
    """What the steps of a trace have cost, or those of them that ran."""
    where = True if ran is None else ran
    parts = infos(trace.info)
    return Cost(
        int(sum(np.sum(info.num_gradients, where=where) for info in parts)),
        int(sum(np.sum(info.num_failed, where=where) for info in parts)),
    )


def _require_start(positions: Float[np.ndarray, "chains dim"], logdensity: np.ndarray) -> None:
    bad = ~np.isfinite(logdensity)
    if np.any(bad):
        c = int(np.argmax(bad))
        raise ValueError(
            f"{int(bad.sum())} of {len(bad)} chains cannot start: log density or its gradient is not finite, "
            f"first at {positions[c]}; move the start"
        )
