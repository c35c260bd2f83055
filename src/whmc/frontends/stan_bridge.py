"""A Stan model seen through BridgeStan: densities, transforms and the names of both sides."""

import contextlib
import ctypes
import json
import os
import re
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache, cached_property
from pathlib import Path
from typing import Any

import numpy as np

from whmc._shapes import Bool, Float, Int
from whmc.frontends.blackbox import BlackBox
from whmc.frontends.extras import install
from whmc.frontends.stan_build import build

WORTH_THREADS = 1e-3
"""Seconds that a batch must be expected to take to be spread over threads: handing it over costs about 0.1 ms."""

ONE_AT_A_TIME = threading.Lock()
"""Held around models without threads: all models of one library share one tape of derivatives."""

_loaded: dict[str, int] = {}


def open_model(model: Any, data: Any, seed: int) -> Any:
    """A `bridgestan.StanModel`: the one given, or made from a library, a .stan file or a program's text."""
    if all(hasattr(model, name) for name in ("log_density_gradient", "param_unc_num", "stanlib", "model")):
        if data is not None:
            raise ValueError("a StanModel has its data already: leave data out, or give the path of its library")
        return model
    if not isinstance(model, (str, os.PathLike)):
        raise TypeError(
            f"model must be a .stan file, Stan program text, a compiled BridgeStan library or a bridgestan.StanModel, "
            f"got {type(model).__name__}"
        )
    try:
        import bridgestan
    except ImportError as error:
        raise ImportError(f"from_stan needs BridgeStan: {install('stan')}") from error
    if isinstance(model, str) and ("{" in model or "\n" in model):
        library = build(model)
    else:
        path = Path(model)
        library = build(path) if path.suffix == ".stan" else path
    text = data_text(data)
    try:
        return bridgestan.StanModel(library, text, seed=seed, warn=_changed(library))
    except RuntimeError as error:
        raise ValueError(f"Stan does not accept the data: {error}") from error


def _changed(library: Path) -> bool:
    """Whether a library was loaded before and has changed since: then, and only then, the old one may be met again."""
    if not library.is_file():
        raise FileNotFoundError(
            f"there is no file {str(library)!r}: give a .stan file, Stan program text or a compiled BridgeStan library"
        )
    when = library.stat().st_mtime_ns
    return _loaded.setdefault(str(library.resolve()), when) != when


def data_text(data: Any) -> str | None:
    """Data as JSON text, from a dictionary, JSON text or the path of a JSON file."""
    if data is None:
        return None
    if isinstance(data, Mapping):
        import stanio

        return stanio.dump_stan_json({name: _plain(value) for name, value in data.items()})
    if not isinstance(data, (str, os.PathLike)):
        raise TypeError(f"data must be a dictionary, JSON text or the path of a JSON file, got {type(data).__name__}")
    text = data if isinstance(data, str) and data.lstrip().startswith("{") else Path(data).read_text(encoding="utf-8")
    try:
        json.loads(text)
    except json.JSONDecodeError as error:
        raise ValueError(f"data is not JSON: {error}") from error
    return text


def _plain(value: Any) -> Any:
    """JAX arrays and the like as NumPy's, which is what BridgeStan's writer knows."""
    return np.asarray(value) if hasattr(value, "__array__") else value


@cache
def _pool(num: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(num, thread_name_prefix="whmc-stan")


Call = Callable[..., int]
NUMBER = ctypes.sizeof(ctypes.c_double)

_FLAGS, _TEXT = (ctypes.c_bool, ctypes.c_bool), ctypes.POINTER(ctypes.c_char_p)
ARGUMENTS = (ctypes.c_void_p, *_FLAGS, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p, _TEXT)
"""Of BridgeStan's densities and transforms, with arrays by their addresses: its Python package looks at each array at
each call, which takes ten times as long as the density of a small model."""


def _function(library: ctypes.CDLL, name: str) -> Call:
    """A function of its own, with its own arguments: `library.name` would be shared with BridgeStan's package."""
    function = library[name]
    function.restype, function.argtypes = ctypes.c_int, ARGUMENTS
    return function


class StanBox(BlackBox):
    """Log densities with all constants and the log Jacobian, and the transforms, of a `bridgestan.StanModel`.

    rejection: what Stan said where it last refused a position. Stan's samplers count such a position as one of density
        zero, and so does whmc.
    """

    def __init__(self, model: Any) -> None:
        self.model = model
        self.dim = int(model.param_unc_num())
        self.threads = (os.cpu_count() or 1) if "STAN_THREADS=true" in model.model_info() else 1
        self.rejection: str | None = None

    @cached_property
    def _gradient(self) -> Call:
        """For cheap models. It keeps Python's lock: another thread that takes it gives it back after milliseconds."""
        return _function(ctypes.PyDLL(None, handle=self.model.stanlib._handle), "bs_log_density_gradient")

    @cached_property
    def _gradient_beside(self) -> Call:
        """The same with Python's lock given free, for threads."""
        return _function(self.model.stanlib, "bs_log_density_gradient")

    def evaluate(
        self, points: Float[np.ndarray, "n dim"]
    ) -> tuple[Float[np.ndarray, " n"], Float[np.ndarray, "n dim"]]:
        """Row by row; those of a costly model without Python's lock, and spread over threads where the library can."""
        points = self._rows(points)
        values, scores = np.empty(len(points)), np.zeros(points.shape)

        def run(rows: Sequence[int], gradient: Call) -> None:
            place, value, score = (array.ctypes.data for array in (points, values, scores))
            message, step = ctypes.c_char_p(), NUMBER * self.dim
            for n in rows:
                here = n * step
                if gradient(
                    self.model.model, False, True, place + here, value + n * NUMBER, score + here, ctypes.byref(message)
                ):
                    self._refused(message)
                    values[n], scores[n] = -np.inf, 0.0

        every = range(len(points))
        with self._turn:
            began = time.perf_counter()
            run(every[:1], self._gradient)
            rest = every[1:]
            if (time.perf_counter() - began) * len(rest) < WORTH_THREADS:
                run(rest, self._gradient)
            elif self.threads == 1:
                run(rest, self._gradient_beside)
            else:
                parts = [rest[k :: self.threads] for k in range(self.threads)]
                list(_pool(self.threads).map(run, parts, [self._gradient_beside] * self.threads))
        return values, scores

    def _rows(self, points: Float[np.ndarray, "n dim"]) -> Float[np.ndarray, "n dim"]:
        """The positions as Stan reads them, by their address: of another length it would read past their end."""
        rows = np.ascontiguousarray(points, float)
        if rows.shape[1:] != (self.dim,):
            raise ValueError(f"a position has shape {rows.shape[1:]}, but this Stan model has {self.dim} coordinates")
        return rows

    @property
    def _turn(self) -> contextlib.AbstractContextManager[Any]:
        return ONE_AT_A_TIME if self.threads == 1 else contextlib.nullcontext()

    def _refused(self, message: ctypes.c_char_p) -> None:
        """Keeps what Stan said, and gives its memory back."""
        self.rejection = (message.value or b"").decode(errors="replace").strip()
        self.model.stanlib.bs_free_error_msg(message)

    def constrain(
        self, points: Float[np.ndarray, "n dim"], transformed: bool = False, generated: bool = False, seed: int = 0
    ) -> Float[np.ndarray, "n size"]:
        """Parameters, then transformed parameters, then generated quantities; NaN where Stan refuses."""
        rng = self.model.new_rng(seed) if generated else None
        size = self.model.param_num(include_tp=transformed, include_gq=generated)
        points, found = self._rows(points), np.full((len(points), size), np.nan)
        constrain = _function(self.model.stanlib, "bs_param_constrain")
        place, value, message = points.ctypes.data, found.ctypes.data, ctypes.c_char_p()
        with ONE_AT_A_TIME:
            for n in range(len(points)):
                there = place + n * NUMBER * self.dim, value + n * NUMBER * size
                if constrain(self.model.model, transformed, generated, *there, rng and rng.ptr, ctypes.byref(message)):
                    self._refused(message)
                    found[n] = np.nan
        return found

    def unconstrain(self, values: Float[np.ndarray, " size"]) -> Float[np.ndarray, " dim"]:
        """The position of parameters in the order of `param_names`; Stan's own words where they are not allowed."""
        with ONE_AT_A_TIME:
            return self.model.param_unconstrain(np.ascontiguousarray(values, float))


def places(names: Sequence[str]) -> dict[str, Int[np.ndarray, "..."]]:
    """Where the entries of each variable stand in Stan's flat vector: "theta.2.1" stands at places["theta"][1, 0].

    Entries of tuples ("pair:1") and complex numbers ("z.real") are variables of their own.
    """
    found: dict[str, dict[tuple[int, ...], int]] = {}
    for n, name in enumerate(names):
        base, index = split(name)
        found.setdefault(base, {})[index] = n
    arrays = {}
    for base, entries in found.items():
        arrays[base] = np.empty([max(along) + 1 for along in zip(*entries, strict=True)], int)
        for index, n in entries.items():
            arrays[base][index] = n
    return arrays


def split(name: str) -> tuple[str, tuple[int, ...]]:
    """A name of Stan's and its indices, which Stan counts from one."""
    base, index = re.fullmatch(r"(.*?)((?:\.\d+)*)", name).groups()  # type: ignore[union-attr]
    return base, tuple(int(part) - 1 for part in index.split(".")[1:])


def depends(box: StanBox) -> Bool[np.ndarray, "size dim"]:
    """Which parameters move with which coordinate: found by moving each, as Stan does not say."""
    here = np.random.default_rng(0).uniform(-1.0, 1.0, box.dim)
    there = box.constrain(here + 0.5 * np.eye(box.dim))
    return np.transpose(there != box.constrain(here[None]))


def coordinate_names(box: StanBox, moves: Bool[np.ndarray, "size dim"]) -> list[str]:
    """`param_unc_names` in the order that coordinates have.

    Stan lists the entries of an array of vectors with the first index running fastest, but reads them vector by vector.
    A coordinate takes the first free name of its variable whose leading indices are those of all that it moves.
    """
    listed = [split(name) for name in box.model.param_unc_names()]
    entries = [split(name) for name in box.model.param_names()]
    free: dict[str, list[tuple[int, ...]]] = {}
    for base, index in listed:
        free.setdefault(base, []).append(index)
    names = []
    for n, (base, like) in enumerate(listed):
        moved = [index for m, (owner, index) in enumerate(entries) if moves[m, n] and owner == base]
        # matrices such as Cholesky factors have one index here and two there: only those of the array are common
        depth = len(like) if moved and len(like) == len(moved[0]) else len(like) - 1
        common = _common(moved, depth)
        index = next((one for one in free[base] if one[: len(common)] == common), free[base][0])
        free[base].remove(index)
        names.append(".".join([base, *(str(part + 1) for part in index)]))
    return names


def _common(indices: list[tuple[int, ...]], depth: int) -> tuple[int, ...]:
    """The leading parts, at most `depth`, that all indices share."""
    shared = []
    for along in list(zip(*indices, strict=True))[: max(depth, 0)]:
        if len(set(along)) > 1:
            break
        shared.append(along[0])
    return tuple(shared)
