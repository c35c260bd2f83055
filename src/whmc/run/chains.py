"""Chains that run side by side: where they are, and blocks of their steps."""

import dataclasses
import os
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cache, partial
from typing import Any, NamedTuple

import jax
import numpy as np

from whmc._shapes import Array, Bool, Float, Int
from whmc.kernels.base import AbstractKernel, ChainState, place_all
from whmc.kernels.block import Trace, draw_block, move_chains, unpack_trace
from whmc.kernels.packing import Packed
from whmc.kernels.settings import infos, target_of
from whmc.modes.library import ModeLibrary
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


class Moved(NamedTuple):
    """A group of chains after a block: their states, what the steps record, and how many each chain made."""

    states: ChainState
    rows: Packed
    steps: Int[np.ndarray, " chains"]


@cache
def _threads() -> ThreadPoolExecutor:
    """As many as there are cores for this process."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return ThreadPoolExecutor(cores, thread_name_prefix="whmc-chains")


def _group_size(num: int) -> int:
    """Chains of a group, of so many in all: as few groups as may be, of one size."""
    return -(-num // -(-num // MOST_IN_GROUP))


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
        num, size = len(made), _group_size(len(made))
        numbers = np.minimum(np.arange(-(-num // size) * size), num - 1).reshape(-1, size)
        rows = jax.tree.map(np.asarray, states)
        return cls(tuple(jax.tree.map(lambda part, n=n: part[n], rows) for n in numbers), made)

    def seen_from(self, library: ModeLibrary) -> "Chains":
        """The chains where they are, in states that belong to this library."""

        def placed(states: ChainState) -> ChainState:
            return place_all(states.position, states.logdensity, states.score, library)

        return Chains(tuple(map(placed, self.groups)), self.made)

    @property
    def states(self) -> ChainState:
        """Of all chains, in NumPy arrays."""
        return jax.tree.map(lambda *parts: np.concatenate(parts)[: self.num], *self.groups)

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
    """A block that was dispatched, of all groups: it may still be computed. What asks for its results waits for them.

    first: how many steps each chain had made before it. num_steps: of each chain that neither stops nor stands still.
    """

    first: Int[np.ndarray, " chains"]
    num_steps: int
    kernel: AbstractKernel
    moved: tuple[Future[Moved], ...]

    @property
    def chains(self) -> Chains:
        """The chains after it."""
        return Chains(tuple(group.result().states for group in self.moved), self.first + self.made)

    @property
    def trace(self) -> Trace:
        """What its steps record, (steps, chains, ...)."""
        parts = [unpack_trace(self.kernel, group.result().rows) for group in self.moved]
        return jax.tree.map(lambda *rows: np.concatenate(rows, axis=1)[:, : len(self.first)], *parts)

    @property
    def made(self) -> Int[np.ndarray, " chains"]:
        """How many of its steps each chain made."""
        return np.concatenate([group.result().steps for group in self.moved])[: len(self.first)]


@dataclasses.dataclass(frozen=True)
class Task:
    """A block to be computed: what all of its groups share, see `Mover.dispatch`."""

    kernel: AbstractKernel
    library: ModeLibrary
    num_steps: int
    active: Bool[np.ndarray, " chains"]
    update_waits: bool = False


@dataclasses.dataclass(frozen=True)
class Mover:
    """What moves the chains of a run: the target, and the root of their random keys."""

    target: Target
    key: Array

    def start(self, library: ModeLibrary, positions: Float[np.ndarray, "chains dim"]) -> tuple[Chains, int]:
        """Chains at their first positions, and how many evaluations failed; an error if a chain cannot start."""
        found = evaluate_rows(self.target, positions)
        _require_start(positions, found.logdensity)
        states = place_all(positions, found.logdensity, found.score, library)
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
        after: Block | None = None,
    ) -> Block:
        """One block of the active chains, of all unless told, each group in a thread. It does not wait for the block.

        The chains belong to the library: `seen_from` gives them to another. They do not change hands between blocks:
        what is computed anew may differ in the last digit, and a run must not hang on where it is cut.
        after: goes on where this block of all chains ends, which may still be computed.
        """
        running = np.ones(chains.num, bool) if active is None else active
        task = Task(kernel, library, num_steps, running, update_waits)
        first = chains.made if after is None else after.first + after.num_steps
        groups = chains.groups if after is None else after.moved
        move = partial(self._move, task, first, chains.block_length, _settings())
        moved = tuple(_threads().submit(move, number, group) for number, group in enumerate(groups))
        return Block(first, num_steps, kernel, moved)

    def _move(
        self,
        task: Task,
        first: Int[np.ndarray, " chains"],
        length: int,
        settings: tuple[bool, Any],
        number: int,
        group: ChainState | Future[Moved],
    ) -> Moved:
        """A block of one group, in a thread that gets the caller's settings of JAX."""
        doubles, device = settings
        with jax.enable_x64(doubles), jax.default_device(device):
            size = _group_size(len(first))
            mine = np.arange(number * size, (number + 1) * size)
            here = np.minimum(mine, len(first) - 1)
            noise = draw_block(task.kernel, task.library, self.key, first[here], length, number * size)
            states = group.result().states if isinstance(group, Future) else group
            numbers = task.num_steps, task.active[here] & (mine < len(first)), task.update_waits
            target = target_of(task.kernel, self.target)
            return Moved(*move_chains(task.kernel, target, task.library, states, noise, *numbers))

    def compile(self, chains: Chains, kernel: AbstractKernel, library: ModeLibrary) -> None:
        """Makes no steps at all: what is left of the call is the compilation. Where shapes are new (`same_shapes`) it
        comes before the next block, which each group would else compile in a thread of its own."""
        task = Task(kernel, library, 0, np.ones(chains.num, bool))
        self._move(task, chains.made, chains.block_length, _settings(), 0, chains.groups[0])

    def blocks(
        self, chains: Chains, kernel: AbstractKernel, library: ModeLibrary, num_steps: int
    ) -> Iterator[tuple[Trace, Chains]]:
        """Blocks that make `num_steps` steps of all chains: the trace in NumPy, and the chains after it.

        The next block computes while one is taken in.
        """
        waiting: Block | None = None
        for start in range(0, num_steps, chains.block_length):
            length = min(chains.block_length, num_steps - start)
            block = self.dispatch(chains, kernel, library, length, after=waiting)
            if waiting is not None:
                yield _taken(waiting)
            waiting = block
        if waiting is not None:
            yield _taken(waiting)

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
            parts.append(_taken(self.dispatch(chains, kernel, library, 0))[0])
        return jax.tree.map(lambda *rows: np.concatenate(rows), *parts), chains


def same_shapes(one: ModeLibrary, other: ModeLibrary) -> bool:
    """Whether both libraries share one compiled block: the same kinds of charts, in arrays of the same shapes. It says
    the same of states that belong to them."""

    def kinds(library: ModeLibrary) -> list[Any]:
        return [jax.tree.structure(library), *((leaf.shape, leaf.dtype) for leaf in jax.tree.leaves(library))]

    return kinds(one) == kinds(other)


def _settings() -> tuple[bool, Any]:
    """Those of this thread that a thread for a group must share: precision and device."""
    config: Any = jax.config
    return config.jax_enable_x64, config.jax_default_device


def _taken(block: Block) -> tuple[Trace, Chains]:
    return jax.tree.map(lambda rows: rows[: block.num_steps], block.trace), block.chains


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
