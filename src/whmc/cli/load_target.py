"""`FILE.py:NAME` as a target: for the command line. Loading one runs the file."""

import dataclasses
import importlib.util
import sys
import sysconfig
import traceback
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from whmc.frontends.pymc import from_pymc
from whmc.target.meant import is_pymc
from whmc.target.target import Target

OUTSIDE = (Path(__file__).parents[1], Path(sysconfig.get_path("stdlib")), Path(sysconfig.get_path("purelib")))
"""Folders of code that is not the user's: whmc, Python itself, installed packages."""


class SourceError(ValueError):
    """A source that gives no target, and why."""


@dataclasses.dataclass(frozen=True)
class LoadedTarget:
    """A target, and what a run stores so that `whmc resume` finds it again."""

    target: Target
    source: dict[str, Any]


def load_target(
    source: str, *, dim: int | None = None, starts: str | None = None, needs_starts: bool = False
) -> LoadedTarget:
    """The target of that name in that file: a Target, a PyMC model, or a log density with `dim` and `starts`."""
    found = _load(source)
    if (isinstance(found, Target) or is_pymc(found)) and (dim is not None or starts is not None):
        raise SourceError(f"{source} is a {type(found).__name__} already: leave --dim and --starts out")
    return _as_target(found, source, dim, starts, needs_starts)


def recall_target(source: Mapping[str, Any]) -> Target:
    """The target of a run, from what it remembers; what is a Target by now needs no dimension and no box."""
    found = _load(source["target"])
    return _as_target(found, source["target"], source.get("dim"), source.get("starts"), False).target


def _as_target(found: Any, source: str, dim: int | None, starts: str | None, needs_starts: bool) -> LoadedTarget:
    place, _, name = source.rpartition(":")
    remembered: dict[str, Any] = {"target": f"{Path(place).resolve()}:{name}"}
    if is_pymc(found):
        found = from_pymc(found)
    if isinstance(found, Target):
        return LoadedTarget(found, remembered)
    if not callable(found):
        raise SourceError(f"{source} is a {type(found).__name__}: name a whmc.Target, a PyMC model or a log density")
    if dim is None:
        raise SourceError(f"{source} is a function: say how many numbers it takes, --dim")
    if starts is None and needs_starts:
        raise SourceError(f"{source} is a function: say where to search for its modes, --starts=LOW:HIGH")
    box = None if starts is None else parse_starts(starts)
    return LoadedTarget(Target(found, dim=dim, starts=box), remembered | {"dim": dim, "starts": starts})


def parse_starts(text: str) -> tuple[Any, Any]:
    """LOW:HIGH, a number each or one for each coordinate, separated by commas."""
    low, colon, high = text.partition(":")
    try:
        edges = [[float(part) for part in edge.split(",")] for edge in (low, high)]
    except ValueError:
        edges = []
    if not colon or not edges:
        raise SourceError(f"--starts {text!r}: write LOW:HIGH, such as --starts=-5:5 or --starts=-5,0:5,1")
    first, last = (edge[0] if len(edge) == 1 else np.array(edge) for edge in edges)
    return first, last


def _load(source: str) -> Any:
    """The object itself; the file's folder can be imported from, as if it were run there."""
    place, colon, name = source.rpartition(":")
    if not colon or not place or not name:
        raise SourceError(f"{source!r}: write FILE.py:NAME")
    path = Path(place)
    if not path.is_file():
        raise SourceError(f"{source}: there is no file {place}")
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None:
        raise SourceError(f"{source}: {place} is no Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules.setdefault(path.stem, module)
    sys.path.insert(0, str(path.resolve().parent))
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        raise SourceError(f"{place} cannot be loaded: {in_one_line(error, place)}") from error
    if not hasattr(module, name):
        close = [one for one in vars(module) if not one.startswith("_")]
        raise SourceError(f"{place} has no {name!r}: it has {', '.join(close[:8]) or 'nothing'}")
    return getattr(module, name)


def in_one_line(error: BaseException, place: str | None = None) -> str:
    """The error in one line, with the line of the user's own file that raised it."""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if _mine(frame.filename, place)]
    if isinstance(error, SyntaxError):
        return f"{error.msg}, line {error.lineno}"
    at = f", {Path(frames[-1].filename).name} line {frames[-1].lineno}" if frames else ""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()] or [""]
    # what a callback raised comes as a traceback in words, its last line being the error
    text = lines[-1] if any("Traceback" in line for line in lines) else f"{type(error).__name__}: {lines[0]}"
    return f"{text}{at}"


def _mine(filename: str, place: str | None) -> bool:
    """Whether a line of a traceback is the user's own."""
    if place is not None:
        return Path(filename).name == Path(place).name
    return "<" not in filename and not any(Path(filename).is_relative_to(folder) for folder in OUTSIDE)
