"""`sample` and `resume`: the doors to a run."""

import dataclasses
import numbers
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np

from whmc._shapes import Float
from whmc.kernels.base import AbstractKernel
from whmc.modes.chart_data import locations_of
from whmc.modes.curvature import library_at
from whmc.modes.library import ModeLibrary
from whmc.result import Gradients, Result, Timings
from whmc.run.advance import blocks, finished
from whmc.run.checkpoint import Checkpoints, read_state, with_code
from whmc.run.interrupt import Interrupt
from whmc.run.plan import Inputs, Plan
from whmc.run.prepare import preparations
from whmc.run.progress import Progress
from whmc.run.regeneration import require_adaptable
from whmc.run.settings import require_same, settings_of, warn_of_versions
from whmc.run.state import RunState
from whmc.search.find import MAX_MODES, require_finders
from whmc.search.finders import AbstractFinder
from whmc.search.representatives import fold_target
from whmc.storage.draws_file import DrawLog, DrawsInMemory, DrawsOnDisk, Record
from whmc.storage.store import Store
from whmc.target.check import require_count, require_scalar_output
from whmc.target.compiled import kept_code
from whmc.target.counted import counted
from whmc.target.folding import FoldedTarget
from whmc.target.target import Numbers, Target, require_target

LEAST_WARMUP = 500
MOST_WARMUP = 10_000
"""Steps of the warm-up unless asked for: charts do not become better by more, and its draws are kept in memory."""


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
    search: float | None = None,
    kernel: AbstractKernel | None = None,
    initial: Numbers | None = None,
    store: str | Path | None = None,
    progress: bool | Progress | None = None,
) -> Result:
    """Samples a multimodal target with exact wormhole jumps between its modes.

    modes: locations (K, dim), or a ModeLibrary; without them the start region is searched. Locations may also be a list
        of positions in the template's shape, or of dictionaries of the values that a NumPyro, PyMC or Stan model has. A
        wrong or missing mode costs speed or, if it is never reached, its weight; it never bends the rest.
    finder: how to search, such as `MultiStart(1024)`; by default many starts and, up to 800 dimensions, an annealed
        population. With `modes`, the search adds to them; without a finder it is left out.
    adapt: "warmup" freezes kernel and library after the warm-up; a short search (below a thousand starts) goes on
        between its rounds, by the residual energy, unless `search` limits it. "regeneration" goes on searching while
        chains run and lets a chain take a new kernel at its regenerations only (Algorithm 2); a chain's draws count
        from when the last mode was known to it.
    max_modes: charts at most.
    seed: the same seed gives the same draws.
    chains: run side by side; 16 keep the overhead of a step small and give a standard error across chains.
    draws: of each chain, after `warmup` steps in which charts, weights, steps and throat are learned: a tenth of the
        draws unless given, 500 to 10 000. Charts of light and bent modes are learned from many draws, or not at all.
    search: gradients that the default search takes at most. Unless given, it makes as many starts as take some seconds,
        more while their hits say that mass is missing and they cost little beside the run, then a population; of a
        costly density it takes three gradients for four steps of the chains. `math.inf` searches as `find_modes` does.
    kernel: what to run instead of the default cycle; its own settings are kept, only library and threshold are tuned.
    initial: positions (chains, dim) to start from, or a list as for `modes`, instead of the modes in turn.
    store: a folder, new or empty: draws are written there as they come, with a checkpoint after every block, and
        `whmc.resume(store, target)` goes on after a crash. The memory that a run takes does not grow with its draws
        (with adapt="regeneration" it does: charts are learned from all of them).
    progress: a live view on standard error; where that is no terminal, a line after two seconds, then one each time
        that the time in a phase has doubled. True: also the last line of each phase; False: nothing.

    Ctrl-C while sampling returns what exists; pressed twice it aborts.
    """
    return sample_run(
        target,
        Plan(adapt, max_modes, seed, chains, draws, default_warmup(draws) if warmup is None else warmup, search),
        modes=modes,
        finder=finder,
        kernel=kernel,
        initial=initial,
        store=store,
        progress=progress,
    )


def default_warmup(draws: int) -> int:
    """A tenth of the draws, within limits."""
    require_count("draws", draws, 1)
    return int(np.clip(draws // 10, LEAST_WARMUP, MOST_WARMUP))


def sample_run(
    target: Target,
    plan: Plan,
    *,
    modes: Numbers | ModeLibrary | None = None,
    finder: AbstractFinder | Sequence[AbstractFinder] | None = None,
    kernel: AbstractKernel | None = None,
    initial: Numbers | None = None,
    store: str | Path | None = None,
    progress: bool | Progress | None = None,
    source: Mapping[str, Any] | None = None,
) -> Result:
    """A new run by a plan. source: where the target comes from, for a command line that resumes the run."""
    plan = require_plan(plan)
    require_target(target)
    if kernel is not None and not isinstance(kernel, AbstractKernel):
        raise TypeError(f"kernel must be a whmc kernel such as LocalHMC(), got {type(kernel).__name__}")
    if plan.adaptive:
        require_adaptable(target, kernel)
    require_finders(finder)
    # float64 here and in all that is called from here; the user's own setting is untouched
    with kept_code(), jax.enable_x64(True), target.user_errors():
        require_scalar_output(target)
        at = None if initial is None else _initial(target, initial, plan.chains)
        if modes is None and target.starts is None:
            raise ValueError("there is nowhere to start a search: give Target(..., starts=(low, high)), or modes=")
        with _view(progress) as view:
            target, state = begin(target, plan, modes=modes, finder=finder, kernel=kernel, initial=at)
            settings = settings_of(target, plan, source, probed=store is not None)
            if store is None:
                return _run(state, target, view, settings)
            with Store.create(store) as folder:
                return _run(state, target, view, settings, Checkpoints(folder))


def require_plan(plan: Plan) -> Plan:
    """The plan in plain numbers, each in its range."""
    if plan.adapt not in ("warmup", "regeneration"):
        raise ValueError(f"adapt must be 'warmup' or 'regeneration', got {plan.adapt!r}")
    least = {"max_modes": 1, "seed": 0, "chains": 1, "draws": 1, "warmup": 0}
    for name, lowest in least.items():
        require_count(name, getattr(plan, name), lowest)
    _require_budget(plan.search)
    whole = {name: int(getattr(plan, name)) for name in least}
    return Plan(adapt=plan.adapt, search=plan.search, **whole)


def _require_budget(search: Any) -> None:
    """Nothing, or a number of gradients, which may be infinite."""
    if search is None:
        return
    if isinstance(search, bool) or not isinstance(search, numbers.Real):
        raise TypeError(f"search must be a number of gradients, got {search!r} of type {type(search).__name__}")
    if not float(search) >= 0:
        raise ValueError(f"search must be a number of gradients, got {search!r}")


def begin(
    target: Target,
    plan: Plan,
    *,
    modes: Numbers | ModeLibrary | None = None,
    finder: AbstractFinder | Sequence[AbstractFinder] | None = None,
    kernel: AbstractKernel | None = None,
    initial: Float[np.ndarray, "chains dim"] | None = None,
) -> tuple[Target, RunState]:
    """The state of a run before its first unit, and the target that it samples: folded, where that has symmetries."""
    began = time.perf_counter()
    with counted() as spent:
        target, library = _folded(target, modes, plan.seed)
    if initial is not None:
        initial = target.home(initial)
    state = RunState(plan, Inputs(library, finder, kernel, initial, target.fold))
    seconds = Timings(prepare=time.perf_counter() - began)
    return target, state.charged(Gradients(other=spent.num), seconds)


def resume(
    folder: str | Path,
    target: Target,
    *,
    draws: int | None = None,
    kernel: AbstractKernel | None = None,
    finder: AbstractFinder | Sequence[AbstractFinder] | None = None,
    progress: bool | Progress | None = None,
) -> Result:
    """Goes on with a run that was stored in `folder`, from its last checkpoint: the same draws as without the stop.

    target: the one of the run; code is never stored. It is checked against stored values.
    draws: of each chain in all, if more are wanted than were asked for.
    kernel, finder: only where the run was given ones that are not whmc's own.
    """
    require_target(target)
    with (
        kept_code(),
        jax.enable_x64(True),
        target.user_errors(),
        _view(progress) as view,
        Store.open(folder) as store,
    ):
        settings = store.settings()
        store.hold()
        saved = read_state(store)
        state = _continued(with_code(saved, kernel, finder), draws)
        if state.inputs.fold is not None:
            target = FoldedTarget(target, state.inputs.fold)
        require_same(target, settings, state)
        warn_of_versions(settings)
        store.reopen()
        checkpoints = Checkpoints(store, state)
        if state.plan.draws != saved.plan.draws:
            checkpoints.save(state)  # what is wanted now
        return _run(state, target, view, settings, checkpoints)


def _continued(state: RunState, draws: int | None) -> RunState:
    """The state, with as many draws asked for as are wanted now."""
    if draws is None:
        return state
    require_count("draws", draws, 1)
    if draws < state.moment.num_drawn:
        raise ValueError(
            f"draws is {draws}, but the run has {state.moment.num_drawn} already: ask for more, or leave draws out"
        )
    return dataclasses.replace(state, plan=dataclasses.replace(state.plan, draws=int(draws)))


def _run(
    state: RunState,
    target: Target,
    progress: Progress,
    settings: dict[str, Any],
    checkpoints: Checkpoints | None = None,
) -> Result:
    """The whole run from a state on; where it fails, what was stored is named."""

    def keep(state: RunState, *, last: bool = False) -> None:
        if checkpoints is not None:
            checkpoints.save(state, last=last)

    try:
        if checkpoints is not None and checkpoints.saved is None:
            keep(state)  # before the settings, so that a run always has a checkpoint
            checkpoints.store.write_settings(settings)
        for reached in preparations(state, target, progress):
            keep(reached)
            state = reached
        log = _log(state, checkpoints)
        with Interrupt() as interrupt:
            for reached in blocks(state, target, log, progress):
                keep(reached)
                state = reached
                if interrupt.asked:
                    break
        state, result = finished(state, target, log, settings, progress)
        keep(state, last=True)
        return result
    except BaseException as error:
        if checkpoints is not None and checkpoints.store.path("settings.json").exists():
            folder = str(checkpoints.store.folder)
            error.add_note(
                f"whmc: the run is kept in {folder!r} up to its last checkpoint; continue it with "
                f"whmc.resume({folder!r}, target)"
            )
        raise


def _log(state: RunState, checkpoints: Checkpoints | None) -> DrawLog:
    """Where draws go: to the store, or to memory."""
    if checkpoints is None:
        return DrawsInMemory()
    return DrawsOnDisk(checkpoints.store, Record.of(state.newest.kernel, state.newest.library.dim))


def _view(progress: bool | Progress | None) -> Progress:
    return progress if isinstance(progress, Progress) else Progress(progress)


def _folded(target: Target, modes: Numbers | ModeLibrary | None, seed: int) -> tuple[Target, ModeLibrary | None]:
    """The target with one image of each mode where it has symmetries, and the modes that are known."""
    if not target.symmetries:
        return target, None if modes is None else _known(target, modes)
    if modes is None:
        return fold_target(target, seed), None
    given = locations_of(modes.charts()) if isinstance(modes, ModeLibrary) else target.flatten_all(modes)
    folded = fold_target(target, seed, np.asarray(given))
    if isinstance(modes, ModeLibrary):  # found in the image that is kept
        return folded, _known(folded, modes)
    homes = folded.inside(jnp.asarray(folded.home(np.asarray(given))))
    return folded, library_at(folded, homes)


def _known(target: Target, modes: Numbers | ModeLibrary) -> ModeLibrary:
    if not isinstance(modes, ModeLibrary):
        return library_at(target, modes)
    if modes.dim != target.dim:
        raise ValueError(f"the library has dimension {modes.dim}, the target {target.dim}")
    if modes.size == 0:
        raise ValueError("the library is empty: add a chart, or give locations")
    return modes.rebuilt()  # in float64, whatever it was made in


def _initial(target: Target, initial: Numbers, chains: int) -> np.ndarray:
    positions = np.asarray(target.flatten_all(initial))
    if positions.shape != (chains, target.dim):
        raise ValueError(f"initial has shape {positions.shape}: give ({chains}, {target.dim}), a row for each chain")
    return positions
