"""`load`: a result from a file or from a run's folder. It runs no code that the folder names."""

import dataclasses
import warnings
from pathlib import Path

import jax

from whmc.kernels.stored import StoredKernel
from whmc.result import Result
from whmc.run.checkpoint import read_state
from whmc.run.outcome import result_of
from whmc.run.settings import require_same
from whmc.storage.draws_file import DrawsOnDisk, Record
from whmc.storage.netcdf import load_file, target_without_density
from whmc.storage.store import Store, StoreError
from whmc.target.folding import FoldedTarget
from whmc.target.target import Target


def load(path: str | Path, target: Target | None = None) -> Result:
    """A result that was saved, or what exists of a run in a folder, finished or not, running or not.

    target: only for what needs its code, such as constrained values of a run's folder.
    """
    path = Path(path)
    if not path.exists():
        raise FileNotFoundError(f"{path} does not exist: give a file of result.save(), or a run's folder")
    return _from_file(path, target) if path.is_file() else _from_folder(path, target)


def _from_file(path: Path, target: Target | None) -> Result:
    fields, fold = load_file(path)
    if target is None:
        return Result(**fields)
    was = fields["target"]
    if target.dim != was.dim or target.coordinates != was.coordinates:
        raise ValueError(f"target has dimension {target.dim}, the result {was.dim}, or other names: give the run's")
    return Result(**{**fields, "target": target if fold is None else FoldedTarget(target, fold)})


def _from_folder(path: Path, target: Target | None) -> Result:
    store = Store.open(path)
    settings = store.settings()
    with jax.enable_x64(True):
        state = read_state(store)
        if target is not None:
            if state.inputs.fold is not None:
                target = FoldedTarget(target, state.inputs.fold)
            require_same(target, settings, state)
        elif settings["target"]["constrained"]:
            warnings.warn("values are unconstrained: give load(..., target=) for those of the model", stacklevel=3)
        if state.moment.num_drawn == 0:
            raise StoreError(f"{path} has no draws yet, it is in its {state.stage.value}: whmc.resume() goes on")
        log = DrawsOnDisk(store, Record.of(state.newest.kernel, state.newest.library.dim))
        result = result_of(state, target or target_without_density(settings["target"]), log, settings)
    return dataclasses.replace(result, kernel=None) if isinstance(result.kernel, StoredKernel) else result
