"""`sample`: find the modes, learn their charts in rounds, freeze, sample in blocks."""

import dataclasses
import time
from collections.abc import Sequence
from typing import Literal

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from whmc.check import require_count, require_scalar_output
from whmc.kernels.base import AbstractKernel
from whmc.modes.charts import library_at
from whmc.modes.finders import AbstractFinder
from whmc.modes.library import ModeLibrary
from whmc.modes.search import Search
from whmc.result import Result, Timings
from whmc.run.adapt import Adaptation, require_adaptable
from whmc.run.block import Trace
from whmc.run.chains import Chains, infos
from whmc.run.find import MAX_MODES, search_modes
from whmc.run.lookout import Lookout
from whmc.run.progress import Progress
from whmc.run.reshape import room_to_split
from whmc.run.rounds import WarmUp, arrays, default_kernel, moves, round_lengths
from whmc.run.work import work_evidence
from whmc.target import Numbers, Target


def sample(
    target: Target,
    *,
    modes: Numbers | ModeLibrary | None = None,
    finder: AbstractFinder | Sequence[AbstractFinder] | None = None,
    adapt: Literal["warmup", "regeneration"] = "warmup",
    max_modes: int = MAX_MODES,
    seed: int = 0,
    chains: int = 16,
    draws: int = 1000,
    warmup: int | None = None,
    kernel: AbstractKernel | None = None,
    initial: Numbers | None = None,
    progress: bool | None = None,
) -> Result:
    """Samples a multimodal target with exact wormhole jumps between its modes.

    modes: locations (K, dim), or a ModeLibrary; without them the start region is searched. A wrong or missing mode
        costs speed or, if it is never reached, its weight; it never bends the rest.
    finder: how to search, such as `MultiStart(64)`; by default many starts and an annealed population. With `modes`,
        the search adds to them; without a finder it is left out.
    adapt: "warmup" freezes kernel and library after the warm-up; a short search (below a thousand starts) goes on
        between its rounds, by the residual energy. "regeneration" goes on searching while chains run and lets a chain
        take a new kernel at its regenerations only (Algorithm 2); a chain's draws count from when the last mode was
        known to it.
    max_modes: charts at most.
    seed: the same seed gives the same draws.
    chains: run side by side; 16 keep the overhead of a step small and give a standard error across chains.
    draws: of each chain, after `warmup` steps in which charts, weights, steps and throat are learned: a tenth of the
        draws unless given, at least 500. Charts of light and bent modes are learned from many draws, or not at all.
    kernel: what to run instead of the default cycle; its own settings are kept, only library and threshold are tuned.
    initial: positions (chains, dim) to start from, instead of the modes in turn.
    progress: a line on standard error; by default only on a terminal.
    """
    if warmup is None:
        require_count("draws", draws, 1)
        warmup = max(500, draws // 10)
    for name, value, least in (("chains", chains, 1), ("draws", draws, 1), ("warmup", warmup, 0), ("seed", seed, 0)):
        require_count(name, value, least)
    if not isinstance(target, Target):
        raise TypeError(f"target must be a whmc.Target, got {type(target).__name__}: wrap it, Target(f, dim=...)")
    if kernel is not None and not isinstance(kernel, AbstractKernel):
        raise TypeError(f"kernel must be a whmc kernel such as LocalHMC(), got {type(kernel).__name__}")
    if adapt not in ("warmup", "regeneration"):
        raise ValueError(f"adapt must be 'warmup' or 'regeneration', got {adapt!r}")
    if adapt == "regeneration":
        require_adaptable(target, kernel)
    # float64 here and in all that is called from here; the user's own setting is untouched
    with jax.enable_x64(True):
        ready = prepare(
            target,
            modes=modes,
            finder=finder,
            adapt=adapt,
            max_modes=max_modes,
            seed=seed,
            chains=chains,
            warmup=warmup,
            kernel=kernel,
            initial=initial,
            progress=progress,
        )
        run, warm, lookout = ready.run, ready.warm, ready.lookout
        warm_gradients = run.num_gradients
        adaptation = None
        if adapt == "regeneration":
            assert lookout is not None
            adaptation = Adaptation(run, warm.kernel, warm.library, lookout, seed)
            trace = adaptation.sample(draws)
            warm.kernel, warm.library = adaptation.kernel, adaptation.library
        else:
            trace = run.steps("sampling", warm.kernel, warm.library, draws, draws)
        clock = [*ready.clock, time.perf_counter()]
        run.progress.close()
        search = ready.search if lookout is None else lookout.report(warm.library)
        result = _result(run, warm, trace, Timings(*np.diff(clock)), warm_gradients, seed, search)
        if adaptation is not None:
            result = dataclasses.replace(result, num_updates=adaptation.num_updates, num_behind=adaptation.num_behind)
        return work_evidence(result)


@dataclasses.dataclass(frozen=True)
class Ready:
    """Chains that are warmed up. clock: when search, preparation, compilation and warm-up began, and the end."""

    run: Chains
    warm: WarmUp
    lookout: Lookout | None
    search: Search | None
    clock: list[float]


def prepare(
    target: Target,
    *,
    modes: Numbers | ModeLibrary | None = None,
    finder: AbstractFinder | Sequence[AbstractFinder] | None = None,
    adapt: Literal["warmup", "regeneration"] = "warmup",
    max_modes: int = MAX_MODES,
    seed: int = 0,
    chains: int = 16,
    warmup: int = 500,
    kernel: AbstractKernel | None = None,
    initial: Numbers | None = None,
    progress: bool | None = False,
) -> Ready:
    """Everything of `sample` up to the first draw that counts; options as there, inside `jax.enable_x64(True)`."""
    clock = [time.perf_counter()]
    require_scalar_output(target)
    line = Progress(progress)
    library, search = _library(target, modes, finder, seed, max_modes, line)
    clock.append(time.perf_counter())
    lengths = round_lengths(warmup)
    looking = adapt == "regeneration" or Lookout.wanted(search)
    if looking:  # room for as many charts again: then a new mode is no new compilation
        library = library.padded(max(16, 1 << (2 * library.size - 1).bit_length()))
    else:
        library = library.padded(library.capacity + room_to_split(library))
    run = Chains(target, library, seed, _positions(target, library, search, chains, initial), line)
    # a run that goes on looking may find the second mode later: it needs the jump from the start
    num_modes = max(2, library.size) if looking else library.size
    warm = WarmUp(arrays(kernel or default_kernel(num_modes)), library, fixed=kernel is not None)
    clock.append(time.perf_counter())
    run.compile(warm.kernel, warm.library)
    clock.append(time.perf_counter())
    lookout = Lookout(target, warm.library, search, seed, max_modes) if looking else None
    for n, length in enumerate(lengths):
        warm.run(length, lambda k, lib, steps: run.steps("warm-up", k, lib, steps, warmup), split=n == len(lengths) - 2)
        if lookout is not None and n < len(lengths) - 1:  # the last round tunes what is frozen
            warm.adopt(lookout.look(warm.library, *warm.recent))
    clock.append(time.perf_counter())
    return Ready(run, warm, lookout, search, clock)


def _library(
    target: Target,
    modes: Numbers | ModeLibrary | None,
    finder: AbstractFinder | Sequence[AbstractFinder] | None,
    seed: int,
    max_modes: int,
    progress: Progress,
) -> tuple[ModeLibrary, Search | None]:
    """The charts to start from, given or found, and the account of the search."""
    known = None
    if modes is not None:
        known = _known(target, modes)
        if finder is None:
            return known, None
    progress.say("search", 0, 1)
    search = search_modes(target, seed=seed, finder=finder, known=known, max_modes=max_modes)
    return search.library, search


def _known(target: Target, modes: Numbers | ModeLibrary) -> ModeLibrary:
    if not isinstance(modes, ModeLibrary):
        return library_at(target, modes)
    if modes.dim != target.dim:
        raise ValueError(f"the library has dimension {modes.dim}, the target {target.dim}")
    if modes.size == 0:
        raise ValueError("the library is empty: add a chart, or give locations")
    return modes.rebuilt()  # in float64, whatever it was made in


def _positions(
    target: Target, library: ModeLibrary, search: Search | None, chains: int, initial: Numbers | None
) -> Array:
    """Where the chains start: the modes in turn, unless told."""
    if initial is None:
        starts = library.location if search is None else jnp.asarray(search.starts)
        return starts[np.arange(chains) % library.size]
    positions = np.asarray(target.flatten_all(initial))
    if positions.shape != (chains, target.dim):
        raise ValueError(f"initial has shape {positions.shape}: give ({chains}, {target.dim}), a row for each chain")
    return jnp.asarray(positions)


def _result(
    run: Chains,
    warm: WarmUp,
    trace: Trace,
    timings: Timings,
    warm_gradients: int,
    seed: int,
    search: Search | None,
) -> Result:
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
        chart=by_chain(trace.label),
        logdensity=by_chain(trace.logdensity),
        log_mixture=by_chain(trace.log_mixture),
        steps=steps,
        library=warm.library,
        kernel=warm.kernel,
        timings=timings,
        num_warmup_gradients=warm_gradients,
        num_failed=run.num_failed,
        seed=int(seed),
        search=search,
    )
