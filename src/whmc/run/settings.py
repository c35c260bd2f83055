"""settings.json of a run: what was asked for, of what, with which versions; and whether a target is still the same."""

import dataclasses
import datetime
import importlib.metadata
import platform
import warnings
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from whmc import __version__
from whmc.keys import Stream, stream_key
from whmc.run.plan import Plan
from whmc.run.state import RunState, Stage
from whmc.storage.store import StoreError
from whmc.target.check import require_scalar_output
from whmc.target.target import Target

PROBES = 4
"""Points of the start region at which a target is compared with itself."""


def settings_of(target: Target, plan: Plan, source: Mapping[str, Any] | None, *, probed: bool) -> dict[str, Any]:
    """What was asked for, of what, with which versions. probed: also the target's values at some points."""
    described = {"dim": target.dim, "names": target.coordinates, "constrained": target.constrained}
    settings: dict[str, Any] = {
        "whmc": __version__,
        "started": datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "versions": _versions(),
        "machine": f"{platform.system()} {platform.machine()}",
        "plan": dataclasses.asdict(plan),
        "target": described,
        "source": None if source is None else dict(source),
    }
    if probed and target.starts is not None:
        points = _probes(target)
        values = [str(float(value)) for value in jax.vmap(target)(jnp.asarray(points))]  # text: JSON has no NaN
        settings["target"] |= {"points": points.tolist(), "values": values}
    return settings


def _versions() -> dict[str, str]:
    packages = ("jax", "jaxlib", "numpy", "scipy")
    return {"python": platform.python_version()} | {name: importlib.metadata.version(name) for name in packages}


def _probes(target: Target) -> np.ndarray:
    return np.asarray(target.draw_starts(stream_key(0, Stream.PROBE), PROBES))


def require_same(target: Target, settings: Mapping[str, Any], state: RunState) -> None:
    """The target has the dimension, the names and the values that it had, and the start region if that is needed."""
    was = settings["target"]
    if target.dim != was["dim"]:
        raise StoreError(f"the run has dimension {was['dim']}, this target {target.dim}: give the target of the run")
    require_scalar_output(target)
    names = target.coordinates
    if names != was["names"]:
        raise StoreError(f"the run's parameters are {was['names'][:5]}, this target's {names[:5]}: give the run's")
    if "points" in was:
        if searches(state) and not _same_region(target, np.array(was["points"])):
            raise StoreError("the start region is not the one of the run: a search would go elsewhere; give the run's")
        _require_equal(target, np.array(was["points"]), np.array([float(value) for value in was["values"]]))
    if state.moment.chains is not None:
        states = state.moment.chains.states
        _require_equal(target, np.asarray(states.position), np.asarray(states.logdensity))


def warn_of_versions(settings: Mapping[str, Any]) -> None:
    """Says which packages have changed since the run began: they may round differently."""
    was = settings["versions"]
    changed = [f"{name} {was.get(name)} -> {now}" for name, now in _versions().items() if was.get(name) != now]
    if changed:
        warnings.warn(
            f"versions have changed since this run began ({', '.join(changed)}): it goes on and stays exact, but its "
            "draws may differ in their last digits from those of an uninterrupted run",
            stacklevel=3,
        )


def searches(state: RunState) -> bool:
    """Whether the run still looks for modes."""
    if state.stage is Stage.SEARCH:
        return True
    goes_on = state.stage is Stage.WARMUP or (state.plan.adaptive and state.stage is Stage.SAMPLING)
    return state.knowledge.ongoing is not None and goes_on


def _same_region(target: Target, points: np.ndarray) -> bool:
    return target.starts is not None and np.allclose(_probes(target), points, rtol=1e-9, atol=1e-12)


def _require_equal(target: Target, points: np.ndarray, values: np.ndarray) -> None:
    now = np.asarray(jax.jit(jax.vmap(target))(jnp.asarray(points)))
    # another machine or version may round differently, and a function that works in float32 does so by much more
    coarse = target.logdensity_dtype != np.float64
    same = np.isclose(now, values, rtol=1e-5 if coarse else 1e-9, atol=1e-3 if coarse else 1e-7, equal_nan=True)
    if not same.all():
        n = int(np.argmin(same))
        raise StoreError(
            f"the target is not the one of the run: at {np.array2string(points[n], threshold=6)} the log density is "
            f"{now[n]:.10g}, it was {values[n]:.10g}; give the same function and data"
        )
