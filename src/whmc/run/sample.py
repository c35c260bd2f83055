"""`sample` and `resume`: the doors to a run."""

import contextlib
import dataclasses
import importlib.metadata
import platform
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np

from whmc import __version__
from whmc.estimate.annealed_evidence import GOOD, annealed_evidence
from whmc.kernels.base import AbstractKernel
from whmc.modes.curvature import library_at
from whmc.modes.library import ModeLibrary
from whmc.result import Result
from whmc.run.checkpoint import restored
from whmc.run.course import Course, Plan
from whmc.run.progress import Progress
from whmc.run.regeneration import require_adaptable
from whmc.search.find import MAX_MODES, require_finders
from whmc.search.finders import AbstractFinder
from whmc.search.representatives import folded, recalled
from whmc.storage.store import Store, StoreError
from whmc.target.callback_errors import own_errors
from whmc.target.check import require_count, require_scalar_output, require_target
from whmc.target.target import Numbers, Target

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
    kernel: AbstractKernel | None = None,
    initial: Numbers | None = None,
    store: str | Path | None = None,
    progress: bool | Progress | None = None,
) -> Result:
    """Samples a multimodal target with exact wormhole jumps between its modes.

    modes: locations (K, dim), or a ModeLibrary; without them the start region is searched. A wrong or missing mode
        costs speed or, if it is never reached, its weight; it never bends the rest.
    finder: how to search, such as `MultiStart(1024)`; by default many starts and an annealed population. With `modes`,
        the search adds to them; without a finder it is left out.
    adapt: "warmup" freezes kernel and library after the warm-up; a short search (below a thousand starts) goes on
        between its rounds, by the residual energy. "regeneration" goes on searching while chains run and lets a chain
        take a new kernel at its regenerations only (Algorithm 2); a chain's draws count from when the last mode was
        known to it.
    max_modes: charts at most.
    seed: the same seed gives the same draws.
    chains: run side by side; 16 keep the overhead of a step small and give a standard error across chains.
    draws: of each chain, after `warmup` steps in which charts, weights, steps and throat are learned: a tenth of the
        draws unless given, 500 to 10 000. Charts of light and bent modes are learned from many draws, or not at all.
    kernel: what to run instead of the default cycle; its own settings are kept, only library and threshold are tuned.
    initial: positions (chains, dim) to start from, instead of the modes in turn.
    store: a folder, new or empty: draws are written there as they come, with a checkpoint after every block, and
        `whmc.resume(store, target)` goes on after a crash. The memory that a run takes does not grow with its draws
        (with adapt="regeneration" it does: charts are learned from all of them).
    progress: a live view on standard error; by default only on a terminal.

    Ctrl-C while sampling returns what exists; pressed twice it aborts.
    """
    require_count("draws", draws, 1)
    warmup = int(np.clip(draws // 10, 500, MOST_WARMUP)) if warmup is None else warmup
    for name, value, least in (("chains", chains, 1), ("warmup", warmup, 0), ("seed", seed, 0)):
        require_count(name, value, least)
    require_count("max_modes", max_modes, 1)
    require_target(target)
    if kernel is not None and not isinstance(kernel, AbstractKernel):
        raise TypeError(f"kernel must be a whmc kernel such as LocalHMC(), got {type(kernel).__name__}")
    if adapt not in ("warmup", "regeneration"):
        raise ValueError(f"adapt must be 'warmup' or 'regeneration', got {adapt!r}")
    if adapt == "regeneration":
        require_adaptable(target, kernel)
    require_finders(finder)
    plan = Plan(adapt, int(max_modes), int(seed), int(chains), int(draws), int(warmup))
    # float64 here and in all that is called from here; the user's own setting is untouched
    with jax.enable_x64(True), own_errors(target):
        require_scalar_output(target)
        at = None if initial is None else _initial(target, initial, chains)
        if modes is None and target.starts is None:
            raise ValueError("there is nowhere to start a search: give Target(..., starts=(low, high)), or modes=")
        with _view(progress) as view:
            target, known = _folded(target, modes, plan.seed)
            at = None if at is None else np.asarray(target.home(jnp.asarray(at)))
            course = Course(
                target,
                plan,
                known=known,
                finder=finder,
                kernel=kernel,
                initial=at,
                progress=view,
                store=None if store is None else Store.create(store),
                settings=_settings(target, plan, probed=store is not None),
            )
            return _run(course)


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
    with jax.enable_x64(True), own_errors(target), _view(progress) as view:
        store = Store.open(folder)
        settings = store.settings()
        store.hold()
        try:
            state, setup = store.read()
            target = recalled(target, settings.get("fold"))
            plan = _continued(Plan(**settings["plan"]), state, draws)
            require_same(target, settings, state)
            course = restored(
                target,
                plan,
                state,
                setup,
                store=store,
                kernel=kernel,
                finder=finder,
                progress=view,
                settings=settings,
            )
            store.reopen()
            if plan.draws != state["draws"]:
                course.save()  # what is wanted now
        except BaseException:
            store.close()
            raise
        return _run(course)


def work_evidence(result: Result) -> Result:
    """The result with the evidence by work, if the bridge's is not good enough."""
    # NaN, which is no bridge at all, is not good either
    if result.kernel is None or result.evidence.method == "none" or result.evidence.se <= GOOD:
        return result
    key = jax.random.fold_in(jax.random.key(result.seed), 4)
    work = annealed_evidence(result.target, result.library, result.kernel, result.draws, key)
    return dataclasses.replace(result, work=work) if np.isfinite(work.se) else result


def _run(course: Course) -> Result:
    """The whole course; where it fails, what was stored is named."""
    store = course.store
    try:
        if store is not None and not store.path("settings.json").exists():
            course.save()  # before the settings, so that a run always has a checkpoint
            store.write_settings(course.settings)
        result = work_evidence(course.prepare().sample())
        course.finish(result)
        return result
    except BaseException as error:
        if store is not None and store.path("settings.json").exists():
            error.add_note(
                f"whmc: the run is kept in {str(store.folder)!r} up to its last checkpoint; "
                f"continue it with whmc.resume({str(store.folder)!r}, target)"
            )
        raise
    finally:
        if store is not None:
            store.close()


@contextlib.contextmanager
def _view(progress: bool | Progress | None) -> Iterator[Progress]:
    view = progress if isinstance(progress, Progress) else Progress(progress)
    try:
        yield view
    finally:
        view.close()


def _continued(plan: Plan, state: dict[str, Any], draws: int | None) -> Plan:
    """The plan, with as many draws as are wanted now."""
    if draws is None:
        return dataclasses.replace(plan, draws=state["draws"])
    require_count("draws", draws, 1)
    if draws < state["num_drawn"]:
        raise ValueError(f"draws is {draws}, but the run has {state['num_drawn']} already: ask for more, or none")
    return dataclasses.replace(plan, draws=int(draws))


PROBES = 4
"""Points of the start region at which a target is compared with itself."""


def _settings(target: Target, plan: Plan, *, probed: bool) -> dict[str, Any]:
    """What was asked for, of what, with which versions."""
    packages = ("jax", "jaxlib", "numpy", "scipy", "optimistix")
    described = {"dim": target.dim, "names": target.coordinates}
    settings: dict[str, Any] = {
        "whmc": __version__,
        "versions": {"python": platform.python_version()} | {n: importlib.metadata.version(n) for n in packages},
        "machine": f"{platform.system()} {platform.machine()}",
        "plan": dataclasses.asdict(plan),
        "target": described | {"constrained": target.constrained},
        "source": None if target.source is None else dict(target.source),
        "fold": None if target.fold is None else target.fold.plain(),
    }
    if probed and target.starts is not None:
        points = _probes(target)
        values = [str(float(value)) for value in jax.vmap(target)(jnp.asarray(points))]  # text: JSON has no NaN
        settings["target"] |= {"points": points.tolist(), "values": values}
    return settings


def _probes(target: Target) -> np.ndarray:
    return np.asarray(target.draw_starts(jax.random.key(0), PROBES))


def require_same(target: Target, settings: dict[str, Any], state: dict[str, Any]) -> None:
    """The target has the dimension, the names and the values that it had."""
    was = settings["target"]
    if target.dim != was["dim"]:
        raise StoreError(f"the run has dimension {was['dim']}, this target {target.dim}: give the target of the run")
    require_scalar_output(target)
    names = target.coordinates
    if names != was["names"]:
        raise StoreError(f"the run's parameters are {was['names'][:5]}, this target's {names[:5]}: give the run's")
    if "points" in was:
        if target.starts is None or not np.allclose(_probes(target), was["points"], rtol=1e-9, atol=1e-12):
            raise StoreError("the start region is not the one of the run: a search would go elsewhere; give the run's")
        _require_equal(target, np.array(was["points"]), np.array([float(value) for value in was["values"]]))
    if "states" in state:
        _require_equal(target, np.asarray(state["states"].position), np.asarray(state["states"].logdensity))


def _require_equal(target: Target, points: np.ndarray, values: np.ndarray) -> None:
    now = np.asarray(jax.jit(jax.vmap(target))(jnp.asarray(points)))
    # another machine or version may round differently, and a function that works in float32 does so by much more
    coarse = target.logdensity_dtype() != np.float64
    same = np.isclose(now, values, rtol=1e-5 if coarse else 1e-9, atol=1e-3 if coarse else 1e-7, equal_nan=True)
    if not same.all():
        n = int(np.argmin(same))
        raise StoreError(
            f"the target is not the one of the run: at {np.array2string(points[n], threshold=6)} the log density is "
            f"{now[n]:.10g}, it was {values[n]:.10g}; give the same function and data"
        )


def _folded(target: Target, modes: Numbers | ModeLibrary | None, seed: int) -> tuple[Target, ModeLibrary | None]:
    """The target with one image of each mode, where it has symmetries, and the modes that are known of it."""
    if modes is None:
        return folded(target, seed), None
    if not target.symmetries:
        return target, _known(target, modes)
    given = modes.charts()[0] if isinstance(modes, ModeLibrary) else target.flatten_all(modes)
    target = folded(target, seed, np.asarray(given))
    if isinstance(modes, ModeLibrary):  # found in the image that is kept
        return target, _known(target, modes)
    homes = target.home(jnp.asarray(given))
    return target, library_at(target, np.asarray(jax.vmap(target.unflatten)(homes)))


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
