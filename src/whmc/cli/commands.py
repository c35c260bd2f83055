"""What the verbs of the command line do: nothing that the API cannot."""

import argparse
import contextlib
import json
import logging
import os
import sys
import traceback
from collections.abc import Callable, Iterator
from functools import wraps
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import jax
import numpy as np

from whmc.cli import FIGURES, InputError, fail
from whmc.cli.load_target import LoadedTarget, SourceError, load_target, recall_target, where
from whmc.result import Result
from whmc.run.load import load
from whmc.run.plan import Plan
from whmc.run.sample import default_warmup, sample_run
from whmc.run.sample import resume as resume_run
from whmc.search.find import search_modes
from whmc.storage.serialize import Damaged
from whmc.storage.store import Store, StoreError
from whmc.target.target import Target

Command = Callable[[argparse.Namespace], int]


def command(function: Command) -> Command:
    """Errors as one line and an exit code; the compilation cache."""

    @wraps(function)
    def run(chosen: argparse.Namespace) -> int:
        if not chosen.debug:  # JAX logs the traceback of a callback, whose error is told below
            logging.getLogger("jax._src.callback").setLevel(logging.CRITICAL + 1)
        try:
            with _cache(not chosen.no_cache):
                return function(chosen)
        except KeyboardInterrupt as stop:
            return _tell(chosen, stop, "interrupted", 130)
        except (InputError, SourceError, StoreError, Damaged, FileNotFoundError, IsADirectoryError) as error:
            return _tell(chosen, error, str(error), 2)
        except ImportError as error:
            return _tell(chosen, error, str(error), 1)
        except (ValueError, TypeError) as error:
            return _tell(chosen, error, str(error) if _ours(error) else where(error), 2)
        except Exception as error:
            return _tell(chosen, error, where(error), 1)

    return run


def _tell(chosen: argparse.Namespace, error: BaseException, message: str, code: int) -> int:
    if chosen.debug:
        traceback.print_exception(error)
    fail(message, code)
    for note in getattr(error, "__notes__", ()):
        if note.startswith("whmc: "):  # JAX adds notes of its own
            print(note.replace("whmc.resume(", "whmc resume ").replace(", target)", ""), file=sys.stderr)
    return code


def _ours(error: BaseException) -> bool:
    """Whether whmc itself raised it, with a text made for the user."""
    frames = traceback.extract_tb(error.__traceback__)
    return bool(frames) and Path(frames[-1].filename).is_relative_to(Path(__file__).parent)


@contextlib.contextmanager
def _cache(wanted: bool) -> Iterator[None]:
    """JAX's compilation cache in the user's cache folder, unless JAX was told another."""
    if not wanted or os.environ.get("JAX_COMPILATION_CACHE_DIR"):
        yield
        return
    home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    settings = {
        "jax_compilation_cache_dir": str(home / "whmc" / "jax"),
        "jax_persistent_cache_min_compile_time_secs": 0.1,
    }
    before = {name: getattr(jax.config, name) for name in settings}
    for name, value in settings.items():
        jax.config.update(name, value)
    try:
        yield
    finally:
        for name, value in before.items():
            jax.config.update(name, value)


def _loaded(chosen: argparse.Namespace) -> LoadedTarget:
    return load_target(chosen.target, dim=chosen.dim, starts=chosen.starts, needs_starts=chosen.verb != "check")


def _progress(chosen: argparse.Namespace) -> bool | None:
    return False if chosen.quiet else None


@command
def demo(chosen: argparse.Namespace) -> int:
    """The sensor network."""
    from whmc.cli.demo import run_demo

    right = run_demo(chosen.out, seed=chosen.seed, progress=_progress(chosen))
    return 0 if right else fail("the result does not agree with the reference", 1)


@command
def check(chosen: argparse.Namespace) -> int:
    """Ticks for what is right with a target."""
    found = _loaded(chosen).target.check(seed=chosen.seed)
    print(found)
    return 0 if found.passed else 2


@command
def modes(chosen: argparse.Namespace) -> int:
    """A search, and no more."""
    search = search_modes(_loaded(chosen).target, seed=chosen.seed, max_modes=chosen.max_modes)
    location, _, log_weight, _ = search.library.charts()
    weight = np.exp(log_weight)
    if chosen.json:
        rows = [
            {"location": point.tolist(), "laplace_weight": float(share), "hits": int(hits)}
            for point, share, hits in zip(location, weight, search.hits, strict=True)
        ]
        print(json.dumps({"modes": rows, "num_starts": search.num_starts, "unseen_chance": search.unseen_chance}))
        return 0
    print("mode   Laplace weight   hits   location")
    for k, (point, share, hits) in enumerate(zip(location, weight, search.hits, strict=True)):
        print(f"{k:4d}   {share:14.4g}   {hits:4d}   {np.array2string(point, precision=4, threshold=8)}")
    print(search)
    print("Laplace weights are a first guess from peaks and curvatures: `whmc sample` measures them.")
    return 0


@command
def sample(chosen: argparse.Namespace) -> int:
    """A run with a store, and its report."""
    loaded = _loaded(chosen)
    warmup = default_warmup(chosen.draws) if chosen.warmup is None else chosen.warmup
    plan = Plan(chosen.adapt, chosen.max_modes, chosen.seed, chosen.chains, chosen.draws, warmup)
    result = sample_run(loaded.target, plan, store=chosen.out, progress=_progress(chosen), source=loaded.source)
    return _finish(chosen, result, chosen.out)


@command
def resume(chosen: argparse.Namespace) -> int:
    """The rest of a run, by the target that it remembers."""
    source = Store.open(chosen.run).settings()["source"] or {}
    if chosen.target is not None:
        source = {**source, "target": chosen.target}
    if "target" not in source:
        raise InputError(f"{chosen.run} was not made by `whmc sample`: say what it samples, FILE.py:NAME")
    result = resume_run(chosen.run, recall_target(source), draws=chosen.draws, progress=_progress(chosen))
    return _finish(chosen, result, chosen.run)


@command
def report(chosen: argparse.Namespace) -> int:
    """One HTML file."""
    from whmc.report import write_report

    default = chosen.run / "report.html" if chosen.run.is_dir() else chosen.run.with_suffix(".html")
    source = Store.open(chosen.run).settings()["source"] if chosen.run.is_dir() else None
    print(write_report(load(chosen.run, _if_there(source)), chosen.out or default))
    return 0


def _if_there(source: dict[str, Any] | None) -> Target | None:
    """The target of a run: values as the model means them need its code; without it they are unconstrained."""
    if source is None:
        return None
    try:
        return recall_target(source)
    except SourceError as error:
        print(f"whmc: {error}; values are shown unconstrained", file=sys.stderr)
        return None


@command
def paper(chosen: argparse.Namespace) -> int:
    """The paper's experiments."""
    seconds = (2.0 if chosen.quick else 60.0) if chosen.seconds is None else chosen.seconds
    try:
        chosen.out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"--out {chosen.out}: {error.strerror}") from error
    try:
        from whmc.paper.run import run_experiments
    except ImportError as error:
        raise ImportError(f"{error}: pip install 'whmc[paper]'") from error
    run_experiments(
        FIGURES if chosen.experiment == "all" else (chosen.experiment,),
        chosen.out,
        seconds=seconds,
        chains=chosen.chains,
        quick=chosen.quick,
        seed=chosen.seed,
        progress=_progress(chosen),
    )
    return 0


def _finish(chosen: argparse.Namespace, result: Result, folder: Path) -> int:
    """What is printed of a run, and its report."""
    made = folder / "report.html" if find_spec("matplotlib") is not None else None
    if chosen.json:
        print(json.dumps(as_json(result) | {"run": str(folder), "report": None if made is None else str(made)}))
    else:
        print(result.summary())
        print(f"run: {folder}")
    if made is not None:
        from whmc.report import write_report

        write_report(result, made)
    if not chosen.json:
        print(f"report: {made}" if made else "no report: matplotlib is not installed, pip install 'whmc[plots]'")
    if result.label.shape[1] < result.num_asked:
        return fail(f"interrupted; the rest is made by: whmc resume {folder}", 130)
    return 3 if chosen.strict and result.alarms else 0


def as_json(result: Result) -> dict[str, Any]:
    """A result in plain numbers, for other programs; NaN is null."""
    table, parameters = result.modes, result.parameters
    found = {
        "modes": [
            {
                "weight": table.weight[k],
                "weight_se": table.weight_se[k],
                "log_evidence": table.log_evidence[k],
                "log_evidence_se": table.log_evidence_se[k],
                "location": table.location[k].tolist(),
            }
            for k in range(len(table))
        ],
        "log_evidence": result.log_evidence,
        "log_evidence_se": result.log_evidence_se,
        "parameters": {
            name: {column: getattr(parameters, column)[n] for column in ("mean", "sd", "ess", "rhat")}
            for n, name in enumerate(parameters.name)
        },
        "alarms": [
            {"name": alarm.name, "figure": alarm.figure, "message": alarm.message, "remedy": alarm.remedy}
            for alarm in result.alarms
        ],
        "chains": result.draws.shape[0],
        "draws": result.draws.shape[1],
        "num_gradients": result.num_gradients,
        "num_regenerations": result.num_regenerations,
        "seconds": result.timings.total,
    }
    return _without_nan(found)


def _without_nan(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _without_nan(item) for name, item in value.items()}
    if isinstance(value, list):
        return [_without_nan(item) for item in value]
    if isinstance(value, (float, np.floating)):
        return float(value) if np.isfinite(value) else None
    return value.item() if isinstance(value, np.generic) else value
