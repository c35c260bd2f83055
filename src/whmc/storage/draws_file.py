"""Draws as they are made: one row for each step of each chain, in memory or in a file of fixed records."""

import bisect
import dataclasses
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import jax
import numpy as np

from whmc._memmap import pieces
from whmc.kernels.base import AbstractKernel, StepInfo
from whmc.kernels.block import Trace
from whmc.kernels.cycle import Cycle
from whmc.kernels.stored import StoredKernel
from whmc.storage.store import Store

INFO_FIELDS = {
    "label": "<i4",
    "proposed": "<i4",
    "log_ratio": "<f8",
    "accepted": "?",
    "regenerated": "?",
    "num_gradients": "<i4",
    "num_failed": "<i4",
}


@runtime_checkable
class DrawLog(Protocol):
    """Rows in the order in which they were made. A row is known by its number."""

    def append(self, trace: Trace) -> int:
        """Adds the rows of a trace, (rows, ...) or (steps, chains, ...), and tells the number of the first."""

    def read(self, start: int, num: int) -> Trace:
        """`num` rows from `start` on."""

    def steps(self, num: int, chains: int) -> Trace:
        """The first rows as `num` steps of so many chains, (steps, chains, ...)."""


@dataclasses.dataclass(frozen=True)
class Record:
    """The format of a row on disk. num_moves: moves of the cycle, or 0 if the kernel is not a Cycle; its info is then a
    single StepInfo."""

    dim: int
    num_moves: int

    @classmethod
    def of(cls, kernel: AbstractKernel, dim: int) -> "Record":
        """The record of what a kernel tells."""
        if isinstance(kernel, StoredKernel):
            return cls(dim, len(kernel.moves) if kernel.is_cycle else 0)
        return cls(dim, len(kernel.kernels) if isinstance(kernel, Cycle) else 0)

    @property
    def dtype(self) -> np.dtype:
        """A position, what was computed there, and the info of each move."""
        fields: list[Any] = [("position", "<f8", (self.dim,)), ("logdensity", "<f8"), ("log_mixture", "<f8")]
        fields.append(("label", "<i4"))
        for move in range(self.num_moves or 1):
            fields += [(f"{move}.{name}", kind) for name, kind in INFO_FIELDS.items()]
        return np.dtype(fields)

    def rows(self, trace: Trace) -> np.ndarray:
        """The trace as records, (steps, chains) or (steps,) as it is."""
        rows = np.empty(trace.logdensity.shape, self.dtype)
        for name in ("position", "logdensity", "log_mixture", "label"):
            rows[name] = getattr(trace, name)
        for move, info in enumerate(trace.info if self.num_moves else (trace.info,)):
            for name in INFO_FIELDS:
                rows[f"{move}.{name}"] = getattr(info, name)
        return rows

    def read(self, path: Path, num: int, chains: int) -> Trace:
        """`num` steps of so many chains: the positions stay in the file, the rest, which is small, is read."""
        small = np.dtype([(name, self.dtype[name]) for name in self.dtype.names or () if name != "position"])
        rest = np.empty(num * chains, small)
        with open(path, "rb") as file:
            for piece in pieces(num * chains, self.dtype.itemsize):
                rows = np.fromfile(file, self.dtype, piece.stop - piece.start)
                for name in small.names or ():
                    rest[name][piece] = rows[name]
        positions = np.memmap(path, self.dtype, "r", shape=(num, chains))["position"]
        return self._trace(positions, rest.reshape(num, chains))

    def trace(self, rows: np.ndarray) -> Trace:
        """The records as a trace; its arrays are views."""
        return self._trace(rows["position"], rows)

    def _trace(self, position: np.ndarray, rows: np.ndarray) -> Trace:
        infos = tuple(
            StepInfo(**{name: rows[f"{move}.{name}"] for name in INFO_FIELDS}) for move in range(self.num_moves or 1)
        )
        return Trace(
            position,
            rows["logdensity"],
            rows["log_mixture"],
            rows["label"],
            infos if self.num_moves else infos[0],
        )


class DrawsOnDisk:
    """Rows in a store. They count from the store's next checkpoint on."""

    def __init__(self, store: Store, record: Record) -> None:
        self.store, self.record = store, record

    def append(self, trace: Trace) -> int:
        start = self.store.num_bytes // self.record.dtype.itemsize
        self.store.append(self.record.rows(trace))
        return start

    def read(self, start: int, num: int) -> Trace:
        rows = self.store.rows(self.record.dtype)[start : start + num]
        return self.record.trace(np.array(rows))

    def steps(self, num: int, chains: int) -> Trace:
        return self.record.read(self.store.path("draws.bin"), num, chains)


class DrawsInMemory:
    """Rows in pieces as they came."""

    def __init__(self) -> None:
        self.parts: list[Trace] = []
        self.starts: list[int] = []
        self.num_rows = 0

    def append(self, trace: Trace) -> int:
        axes, start = trace.logdensity.ndim, self.num_rows
        self.parts.append(jax.tree.map(lambda rows: rows.reshape(-1, *rows.shape[axes:]), trace))
        self.starts.append(start)
        self.num_rows += trace.logdensity.size
        return start

    def read(self, start: int, num: int) -> Trace:
        first = bisect.bisect_right(self.starts, start) - 1
        last = bisect.bisect_left(self.starts, start + num)
        skipped = start - self.starts[first]
        return jax.tree.map(
            lambda *parts: np.concatenate(parts)[skipped : skipped + num], *self.parts[first : max(last, first + 1)]
        )

    def steps(self, num: int, chains: int) -> Trace:
        return jax.tree.map(
            lambda *parts: np.concatenate(parts)[: num * chains].reshape(num, chains, *parts[0].shape[1:]), *self.parts
        )
