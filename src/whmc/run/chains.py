"""The chains of a run: their states, how many steps each has made, and what they cost."""

from collections.abc import Generator
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Int

from whmc.kernels.base import AbstractKernel, ChainState
from whmc.kernels.block import Trace, refresh_all, run_block, start_chains
from whmc.kernels.settings import infos
from whmc.modes.library import ModeLibrary
from whmc.run.progress import Progress
from whmc.target.target import Target

BLOCK = 100
"""Steps a block at most: long enough that Python costs nothing, short enough for a live progress line."""


def block_length(num: int, dim: int) -> int:
    """At most a hundred steps a block, fewer where their random numbers would fill the memory."""
    return int(np.clip(4_000_000 // (num * dim), 10, BLOCK))


class Moment(NamedTuple):
    """Where chains are after a block: enough to go on from there."""

    states: ChainState
    made: Int[np.ndarray, " chains"]


class Chains:
    """Chains that run side by side in one compiled block."""

    def __init__(self, target: Target, seed: int, moment: Moment, progress: Progress) -> None:
        self.target, self.progress, self.key = target, progress, jax.random.key(seed)
        self.states, self.made = moment
        self.num, dim = self.states.position.shape
        self.length = block_length(self.num, dim)
        self.num_gradients = self.num_failed = 0

    @classmethod
    def start(cls, target: Target, library: ModeLibrary, seed: int, positions: Array, progress: Progress) -> "Chains":
        """Chains at their first positions."""
        states, failed = start_chains(target, library, positions)
        _require_start(positions, np.asarray(states.logdensity))
        run = cls(target, seed, Moment(states, np.zeros(len(positions), int)), progress)
        run.num_failed = int(jnp.sum(failed))
        return run

    @property
    def moment(self) -> Moment:
        return Moment(self.states, self.made)

    def compile(self, kernel: AbstractKernel, library: ModeLibrary) -> None:
        """No steps at all: what is left of the call is the compilation."""
        self.progress.say("compile", 0, 1)
        self._dispatch(kernel, library, 0, np.ones(self.num, bool), False)
        jax.block_until_ready(self.states)

    def steps(self, phase: str, kernel: AbstractKernel, library: ModeLibrary, num_steps: int, total: int) -> Trace:
        """`num_steps` steps of all chains, in blocks; the trace as NumPy arrays (steps, chains, ...)."""
        parts, done = [], 0
        for trace, _ in self.blocks(kernel, library, num_steps):
            parts.append(trace)
            done += len(trace.logdensity)
            self.progress.say(phase, done, total, f"{self.num_gradients} gradients")
        return jax.tree.map(lambda *rows: np.concatenate(rows), *parts)

    def blocks(self, kernel: AbstractKernel, library: ModeLibrary, num_steps: int) -> Generator[tuple[Trace, Moment]]:
        """Blocks that make `num_steps` steps of all chains, and where the chains are after each; at least one block.

        The next block computes while one is taken in; whoever stops early leaves the chains where the last one ended.
        """
        everyone = np.ones(self.num, bool)
        waiting: tuple[Trace, int, Moment] | None = None
        reached = self.moment
        try:
            for start in range(0, max(num_steps, 1), self.length):
                length = min(self.length, num_steps - start)
                trace, _ = self._dispatch(kernel, library, length, everyone, False)
                # a new array: the block that was just dispatched may not have read the old one yet
                self.made = self.made + length
                if waiting is not None:
                    taken, reached = self._take(*waiting)
                    yield taken, reached
                waiting = trace, length, self.moment
            assert waiting is not None
            taken, reached = self._take(*waiting)
            yield taken, reached
        finally:
            self.states, self.made = reached

    def block(
        self,
        kernel: AbstractKernel,
        library: ModeLibrary,
        num_steps: int,
        active: Bool[np.ndarray, " chains"],
        update_waits: bool,
    ) -> tuple[Trace, Int[np.ndarray, " chains"]]:
        """One block of the active chains: the trace, and how many steps of it each chain made."""
        rows, steps = self._dispatch(kernel, library, num_steps, active, update_waits)
        trace, made = jax.tree.map(np.asarray, rows), np.array(steps)
        self.made = self.made + made
        self._count(trace, np.arange(self.length)[:, None] < made)
        return trace, made

    def _dispatch(
        self,
        kernel: AbstractKernel,
        library: ModeLibrary,
        num_steps: int,
        active: Bool[np.ndarray, " chains"],
        update_waits: bool,
    ) -> tuple[Trace, Array]:
        if self.states.log_components.shape[1] != library.capacity:  # else the block is compiled for this shape too
            self.states = refresh_all(self.states, library)
        self.states, trace, made = run_block(
            kernel,
            self.target,
            library,
            self.states,
            self.key,
            jnp.asarray(self.made),
            jnp.asarray(num_steps),
            jnp.asarray(active),
            jnp.asarray(update_waits),
            length=self.length,
        )
        return trace, made

    def _take(self, trace: Trace, length: int, moment: Moment) -> tuple[Trace, Moment]:
        """A block's trace as NumPy arrays, its costs counted."""
        trace = jax.tree.map(lambda rows: np.asarray(rows)[:length], trace)
        self._count(trace, np.ones((length, self.num), bool))
        return trace, moment

    def _count(self, trace: Trace, ran: Bool[np.ndarray, "steps chains"]) -> None:
        """Adds up what the steps that ran have cost."""
        self.num_gradients += int(sum(np.sum(info.num_gradients, where=ran) for info in infos(trace.info)))
        self.num_failed += int(sum(np.sum(info.num_failed, where=ran) for info in infos(trace.info)))


def _require_start(positions: Array, logdensity: np.ndarray) -> None:
    bad = ~np.isfinite(logdensity)
    if np.any(bad):
        c = int(np.argmax(bad))
        raise ValueError(
            f"{int(bad.sum())} of {len(bad)} chains cannot start: log density or its gradient is not finite, "
            f"first at {np.asarray(positions)[c]}; move the start"
        )
