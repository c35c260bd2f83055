"""What the verbs of the command line do: nothing that the API cannot."""

import argparse
import json
import logging
import math
import sys
import traceback
import warnings
from collections.abc import Callable
from functools import partial, wraps
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from whmc.cli.arguments import FIGURES
from whmc.cli.as_json import as_json, without_nan
from whmc.cli.errors import InputError, fail
from whmc.cli.load_target import LoadedTarget, SourceError, in_one_line, load_target, recall_target
from whmc.cli.output import OutputClosed, model_prints_to_stderr, say
from whmc.modes.chart_data import locations_of, log_weights_of
from whmc.result import Result
from whmc.run.load import load
from whmc.run.plan import Plan
from whmc.run.progress import Progress
from whmc.run.sample import default_warmup, sample_run
from whmc.run.sample import resume as resume_run
from whmc.search.find import search_modes
from whmc.storage.serialize import Damaged
from whmc.storage.store import Store, StoreError
from whmc.target.compiled import kept_code

Command = Callable[[argparse.Namespace], int]


def command(function: Command) -> Command:
    """Errors as one line and an exit code; the compilation cache."""

    @wraps(function)
    def run(chosen: argparse.Namespace) -> int:
        if not chosen.debug:  # JAX logs the traceback of a callback, whose error is told below
            logging.getLogger("jax._src.callback").setLevel(logging.CRITICAL + 1)
        try:
            with kept_code(not chosen.no_cache):
                return function(chosen)
        except OutputClosed:
            raise
        except KeyboardInterrupt as stop:
            return _tell(chosen, stop, "interrupted", 130)
        except (InputError, SourceError, StoreError, Damaged, FileNotFoundError, IsADirectoryError) as error:
            return _tell(chosen, error, str(error), 2)
        except ImportError as error:
            return _tell(chosen, error, str(error), 1)
        except (ValueError, TypeError) as error:
            return _tell(chosen, error, str(error) if _ours(error) else in_one_line(error), 2)
        except Exception as error:
            return _tell(chosen, error, in_one_line(error), 1)

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
    return bool(frames) and Path(frames[-1].filename).is_relative_to(Path(__file__).parents[1])


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
    with model_prints_to_stderr():
        found = _loaded(chosen).target.check(seed=chosen.seed)
    say(found)
    return 0 if found.passed else 2


@command
def modes(chosen: argparse.Namespace) -> int:
    """A search, and no more."""
    with model_prints_to_stderr(), Progress(_progress(chosen)) as view:
        view.say("search", unit="compiling the density")
        tell = partial(view.searching, budget=math.inf)
        target = _loaded(chosen).target
        search = search_modes(target, seed=chosen.seed, max_modes=chosen.max_modes, tell=tell)
        charts = search.library.charts()
        location, log_weight = locations_of(charts), log_weights_of(charts)
        named = {name: rows[0] for name, rows in target.named_values(location[None]).items()}
    weight = np.exp(log_weight)
    if chosen.json:
        with jax.enable_x64(True):
            inside = np.asarray(target.inside(jnp.asarray(location)))
        rows = [
            {
                "location": inside[k].tolist(),
                "values": {name: rows[k].tolist() for name, rows in named.items()},
                "laplace_weight": float(weight[k]),
                "hits": int(search.hits[k]),
            }
            for k in range(len(location))
        ]
        missing = {"expected_missing": search.missing.expected, "missing_at_most": search.missing.bound}
        say(json.dumps(without_nan({"modes": rows, "num_starts": search.num_starts, **missing})))
        return 0
    say("mode   Laplace weight   hits   location, in the model's own values")
    for k, (share, hits) in enumerate(zip(weight, search.hits, strict=True)):
        values = {name: np.array2string(np.asarray(rows[k]), precision=4, threshold=8) for name, rows in named.items()}
        place = ", ".join(f"{name} {value}" for name, value in values.items())
        say(f"{k:4d}   {share:14.4g}   {hits:4d}   {place}")
    say(search)
    say("Laplace weights are a first guess from peaks and curvatures: `whmc sample` measures them.")
    return 0


@command
def sample(chosen: argparse.Namespace) -> int:
    """A run with a store, and its report."""
    with model_prints_to_stderr():
        loaded = _loaded(chosen)
        warmup = default_warmup(chosen.draws) if chosen.warmup is None else chosen.warmup
        plan = Plan(chosen.adapt, chosen.max_modes, chosen.seed, chosen.chains, chosen.draws, warmup)
        result = sample_run(loaded.target, plan, store=chosen.out, progress=_progress(chosen), source=loaded.source)
    return _finish(chosen, result, chosen.out)


@command
def resume(chosen: argparse.Namespace) -> int:
    """The rest of a run, by the target that it names or the one that is given; either is run."""
    source = _source(chosen)
    with model_prints_to_stderr():
        result = resume_run(chosen.run, recall_target(source), draws=chosen.draws, progress=_progress(chosen))
    return _finish(chosen, result, chosen.run)


def _source(chosen: argparse.Namespace) -> dict[str, Any]:
    """Where the target of a run's folder is: as given on the command line, or as the folder names it."""
    if not chosen.run.exists():
        raise InputError(f"{chosen.run} does not exist: give the folder of a run")
    source = Store.open(chosen.run).settings()["source"] or {}
    if chosen.target is not None:
        return {**source, "target": chosen.target}
    if "target" not in source:
        raise InputError(f"{chosen.run} was not made by `whmc sample`: say what it samples, FILE.py:NAME")
    return source


@command
def report(chosen: argparse.Namespace) -> int:
    """One HTML file. The model is run only if the user names it, or asks for it by --run-model."""
    from whmc.report import write_report

    run = chosen.run
    page = chosen.out or (run / "report.html" if run.is_dir() else run.with_suffix(".html"))
    with model_prints_to_stderr():
        result, remark = _with_model(chosen) if chosen.target is not None or chosen.run_model else _without_model(run)
        made = write_report(result, page, name=_name(run))
    say(made)
    if remark is not None:
        print(f"whmc: {remark}", file=sys.stderr)
    return 0


def _with_model(chosen: argparse.Namespace) -> tuple[Result, str | None]:
    """The run with values as its model means them, or else as they are stored, and why."""
    if chosen.run.is_file():
        raise InputError(f"{chosen.run} has the model's own values already: leave FILE.py:NAME and --run-model out")
    source = _source(chosen)
    if chosen.target is not None:
        return load(chosen.run, recall_target(source)), None
    try:
        result = load(chosen.run, recall_target(source))
        result.constrained()
    except Exception as error:  # a model may raise anything; what is wrong with the folder is raised below once more
        said = str(error) if _ours(error) else in_one_line(error)
        return _unconstrained(chosen.run), f"{said}; values are shown unconstrained"
    return result, None


def _without_model(run: Path) -> tuple[Result, str | None]:
    """The run as it is stored, and how to get values as its model means them, if they differ."""
    result = _unconstrained(run)
    if not run.is_dir() or not result.settings["target"]["constrained"]:
        return result, None
    source = (result.settings["source"] or {}).get("target")
    run_it = f"`whmc report {run} --run-model`, which runs {source.rpartition(':')[0]}, or " if source else ""
    return result, (f"values are shown unconstrained; for the model's own: {run_it}`whmc report {run} FILE.py:NAME`")


def _unconstrained(run: Path) -> Result:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "values are unconstrained")  # said in the words of the command line
        return load(run)


def _name(run: Path) -> str:
    return run.resolve().name


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
        raise ImportError(f"{error}: pip install matplotlib scikit-learn") from error
    try:
        run_experiments(
            FIGURES if chosen.experiment == "all" else (chosen.experiment,),
            chosen.out,
            seconds=seconds,
            chains=chosen.chains,
            quick=chosen.quick,
            seed=chosen.seed,
            progress=_progress(chosen),
        )
    except BrokenPipeError as error:  # it prints tables as they come
        raise OutputClosed from error
    return 0


def _finish(chosen: argparse.Namespace, result: Result, folder: Path) -> int:
    """What is printed of a run, and its report."""
    made = folder / "report.html" if find_spec("matplotlib") is not None else None
    with model_prints_to_stderr():  # tables call the model's `constrain`
        if chosen.json:
            files = {"run": str(folder), "report": None if made is None else str(made)}
            answer = json.dumps(as_json(result) | files)
        else:
            answer = f"{result.summary()}\nrun: {folder}"
    say(answer)
    if made is not None:
        from whmc.report import write_report

        with model_prints_to_stderr():
            write_report(result, made, name=_name(folder))
    if not chosen.json:
        say(f"report: {made}" if made else "no report: matplotlib is not installed, pip install matplotlib")
    if result.label.shape[1] < result.num_asked:
        return fail(f"interrupted; continue with: whmc resume {folder}", 130)
    return 3 if chosen.strict and result.alarms else 0


COMMANDS = {
    "demo": demo,
    "check": check,
    "modes": modes,
    "sample": sample,
    "resume": resume,
    "report": report,
    "paper": paper,
}
