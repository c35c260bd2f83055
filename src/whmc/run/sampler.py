"""`sample`: library and charts, warm-up in rounds, freeze, sampling in blocks."""

import time
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from whmc.check import require_scalar_output
from whmc.kernels.base import AbstractKernel, ChainState
from whmc.modes.charts import library_at
from whmc.modes.library import ModeLibrary
from whmc.result import Result, Timings
from whmc.run.block import Trace, run_block, start_chains
from whmc.run.progress import Progress
from whmc.run.rounds import WarmUp, arrays, default_kernel, infos, moves, round_lengths
from whmc.target import Numbers, Target

BLOCK = 100
"""Steps a block at most: long enough that Python costs nothing, short enough for a live progress line."""


def sample(
    target: Target,
    *,
    modes: Numbers | ModeLibrary | None = None,
    seed: int = 0,
    chains: int = 16,
    draws: int = 1000,
    warmup: int = 500,
    kernel: AbstractKernel | None = None,
    initial: Numbers | None = None,
    progress: bool | None = None,
) -> Result:
    """Samples a multimodal target with exact wormhole jumps between its modes.

    modes: locations (K, dim), or a ModeLibrary. A wrong or missing mode costs speed or, if it is never
        reached, its weight; it never bends the rest.
    seed: the same seed gives the same draws.
    chains: run side by side; 16 keep the overhead of a step small and give a standard error across chains.
    draws: of each chain, after `warmup` steps in which charts, weights, steps and throat are learned and then frozen.
    kernel: what to run instead of the default cycle; its own settings are kept, only library and threshold are tuned.
    initial: positions (chains, dim) to start from, instead of the modes in turn.
    progress: a line on standard error; by default only on a terminal.
    """
    _require_counts(chains=chains, draws=draws, warmup=warmup, seed=seed)
    if not isinstance(target, Target):
        raise TypeError(f"target must be a whmc.Target, got {type(target).__name__}: wrap it, Target(f, dim=...)")
    if kernel is not None and not isinstance(kernel, AbstractKernel):
        raise TypeError(f"kernel must be a whmc kernel such as LocalHMC(), got {type(kernel).__name__}")
    # float64 here and in all that is called from here; the user's own setting is untouched
    with jax.enable_x64(True):
        started = time.perf_counter()
        require_scalar_output(target)
        library = _library(target, modes)
        run = _Run(target, library, seed, _positions(target, library, chains, initial), Progress(progress))
        prepared = time.perf_counter()
        warm = WarmUp(arrays(kernel or default_kernel(library.size)), library, fixed=kernel is not None)
        run.compile(warm.kernel, library)
        compiled = time.perf_counter()
        lengths = round_lengths(warmup)
        for length in lengths:
            warm.run(length, lambda k, lib, steps: run.steps("warm-up", k, lib, steps, warmup))
        warm_gradients, warmed = run.num_gradients, time.perf_counter()
        run.done = 0
        trace = run.steps("sampling", warm.kernel, warm.library, draws, draws)
        run.progress.close()
        timings = Timings(
            prepare=prepared - started,
            compile=compiled - prepared,
            warmup=warmed - compiled,
            sampling=time.perf_counter() - warmed,
        )
        return _result(run, warm, trace, timings, warm_gradients, seed)


class _Run:
    """The chains of a run and its one compiled block."""

    def __init__(self, target: Target, library: ModeLibrary, seed: int, positions: Array, progress: Progress) -> None:
        self.target, self.progress, self.key = target, progress, jax.random.key(seed)
        self.states, failed = start_chains(target, library, positions)
        self.length = _block_length(*positions.shape)
        self.step = self.done = self.num_gradients = 0
        self.num_failed = int(jnp.sum(failed))
        _require_start(positions, self.states)

    def compile(self, kernel: AbstractKernel, library: ModeLibrary) -> None:
        """No steps at all: what is left of the call is the compilation."""
        self.progress.say("compile", 0, 1)
        jax.block_until_ready(self._block(kernel, library, 0))

    def steps(self, phase: str, kernel: AbstractKernel, library: ModeLibrary, num_steps: int, total: int) -> Trace:
        """`num_steps` steps of all chains, in blocks; the trace as NumPy arrays (steps, chains, ...)."""
        parts: list[Trace] = []
        waiting: list[tuple[Trace, int]] = []
        for start in range(0, max(num_steps, 1), self.length):
            length = min(self.length, num_steps - start)
            self.states, trace = self._block(kernel, library, length)
            self.step += length
            waiting.append((trace, length))
            if len(waiting) > 1:  # the next block computes while this one is taken in
                parts.append(self._take(*waiting.pop(0), phase, total))
        parts.append(self._take(*waiting.pop(), phase, total))
        return jax.tree.map(lambda *rows: np.concatenate(rows), *parts)

    def _take(self, trace: Trace, length: int, phase: str, total: int) -> Trace:
        """A block's trace as NumPy arrays, its costs counted."""
        trace = jax.tree.map(lambda rows: np.asarray(rows)[:length], trace)
        self.done += length
        self.num_gradients += int(sum(np.sum(info.num_gradients) for info in infos(trace.info)))
        self.num_failed += int(sum(np.sum(info.num_failed) for info in infos(trace.info)))
        self.progress.say(phase, self.done, total, f"{self.num_gradients} gradients")
        return trace

    def _block(self, kernel: AbstractKernel, library: ModeLibrary, num_steps: int) -> Any:
        return run_block(
            kernel,
            self.target,
            library,
            self.states,
            self.key,
            jnp.asarray(self.step),
            jnp.asarray(num_steps),
            length=self.length,
        )


def _library(target: Target, modes: Numbers | ModeLibrary | None) -> ModeLibrary:
    if modes is None:
        raise ValueError("modes must be given: an array (K, dim) with a row for each mode, or a ModeLibrary")
    if not isinstance(modes, ModeLibrary):
        return library_at(target, modes)
    if modes.dim != target.dim:
        raise ValueError(f"the library has dimension {modes.dim}, the target {target.dim}")
    if modes.size == 0:
        raise ValueError("the library is empty: add a chart, or give locations")
    return modes.rebuilt()  # in float64, whatever it was made in


def _positions(target: Target, library: ModeLibrary, chains: int, initial: Numbers | None) -> Array:
    """Where the chains start: the modes in turn, unless told."""
    if initial is None:
        return library.location[np.arange(chains) % library.size]
    positions = np.asarray(target.flatten_all(initial))
    if positions.shape != (chains, target.dim):
        raise ValueError(f"initial has shape {positions.shape}: give ({chains}, {target.dim}), a row for each chain")
    return jnp.asarray(positions)


def _block_length(chains: int, dim: int) -> int:
    """Steps a block: at most a hundred, fewer where their random numbers would fill the memory."""
    return int(np.clip(4_000_000 // (chains * dim), 10, BLOCK))


def _require_start(positions: Array, states: ChainState) -> None:
    bad = ~np.isfinite(np.asarray(states.logdensity))
    if np.any(bad):
        c = int(np.argmax(bad))
        raise ValueError(
            f"{int(bad.sum())} of {len(bad)} chains cannot start: log density or its gradient is not finite, "
            f"first at {np.asarray(positions)[c]}; move the start"
        )


def _require_counts(*, chains: int, draws: int, warmup: int, seed: int) -> None:
    for name, value, least in (("chains", chains, 1), ("draws", draws, 1), ("warmup", warmup, 0), ("seed", seed, 0)):
        if isinstance(value, bool) or not isinstance(value, (int, np.integer)):
            raise TypeError(f"{name} must be an integer, got {value!r} of type {type(value).__name__}")
        if value >= 2**63:
            raise ValueError(f"{name} must be less than 2**63, got {value}")
        if value < least:
            raise ValueError(f"{name} must be at least {least}, got {value}")


def _result(run: _Run, warm: WarmUp, trace: Trace, timings: Timings, warm_gradients: int, seed: int) -> Result:
    def by_chain(rows: np.ndarray) -> np.ndarray:
        return np.swapaxes(rows, 0, 1)

    names = [type(move).__name__ for move in moves(warm.kernel)]
    steps = {
        name if names.count(name) == 1 else f"{name}[{n}]": jax.tree.map(by_chain, info)
        for n, (name, info) in enumerate(zip(names, infos(trace.info), strict=True))
    }
    return Result(
        target=run.target,
        draws=by_chain(trace.position),
        label=by_chain(trace.label),
        logdensity=by_chain(trace.logdensity),
        log_mixture=by_chain(trace.log_mixture),
        steps=steps,
        library=warm.library,
        kernel=warm.kernel,
        timings=timings,
        num_warmup_gradients=warm_gradients,
        num_failed=run.num_failed,
        seed=int(seed),
    )
