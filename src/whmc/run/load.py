"""`load`: a result from a file or from a run's folder."""

import dataclasses
import warnings
from pathlib import Path

import jax

from whmc.kernels.base import AbstractKernel
from whmc.kernels.settings import Role
from whmc.result import Result, Timings
from whmc.run.course import Plan, make_result
from whmc.run.regeneration import gather
from whmc.run.sample import require_same
from whmc.search.representatives import recalled
from whmc.storage.draws_file import Record
from whmc.storage.netcdf import forgotten, load_file
from whmc.storage.store import Store, StoreError
from whmc.target.target import Target


def load(path: str | Path, target: Target | None = None) -> Result:
    """A result that was saved, or what exists of a run in a folder, finished or not, running or not.

    target: only for what needs its code, such as constrained values of a run's folder.
    """
    path = Path(path)
    if not path.exists():
        raise FileNotFoundError(f"{path} does not exist: give a file of result.save(), or a run's folder")
    if path.is_file():
        fields = load_file(path)
        if target is not None:
            was = fields["target"]
            if target.dim != was.dim or target.coordinates != was.coordinates:
                raise ValueError(
                    f"target has dimension {target.dim}, the result {was.dim}, or other names: give the run's"
                )
            fields["target"] = recalled(target, fields["settings"].get("fold"))
        return Result(**fields)
    store = Store.open(path)
    settings = store.settings()
    with jax.enable_x64(True):
        state, setup = store.read()
        if target is not None:
            target = recalled(target, settings.get("fold"))
            require_same(target, settings, state)
        elif settings["target"]["constrained"]:
            warnings.warn("values are unconstrained: give load(..., target=) for those of the model", stacklevel=2)
        plan = dataclasses.replace(Plan(**settings["plan"]), draws=state["draws"])
        if setup["record"] is None:
            raise StoreError(f"{path} has no draws yet, it came as far as its {setup['stage']}: whmc.resume() goes on")
        record = Record(*setup["record"])
        kernel, library = setup["kernel"], setup["library"]
        adaptation = state.get("adaptation")
        if adaptation is None:
            trace = record.read(store.path("draws.bin"), state["num_drawn"], plan.chains)
        else:
            kernel, library = setup["versions"][-1]
            rows = store.rows(record.dtype)
            parts = [[record.trace(rows[at : at + num]) for at, num in places] for places in adaptation["places"]]
            trace = gather(parts, library, plan.draws)
        counts = {name: adaptation[name] for name in ("num_updates", "num_behind")} if adaptation else {}
        return make_result(
            target or forgotten({**settings["target"], "source": settings["source"]}),
            kernel if isinstance(kernel, AbstractKernel) else None,
            library,
            trace,
            roles={name: Role(value) for name, value in setup["roles"].items()},
            exact=setup["exact"],
            seed=plan.seed,
            num_asked=plan.draws,
            timings=Timings(**state["seconds"]),
            num_warmup_gradients=state["warm_gradients"],
            num_failed=state["num_failed"],
            search=setup["report"],
            work=state["work"],
            settings=settings,
            **counts,
        )
