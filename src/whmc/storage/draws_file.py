"""The record of one step of one chain, as bytes of fixed length: draws on disk are arrays of these."""

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np

from whmc._memmap import pieces
from whmc.kernels.base import StepInfo
from whmc.kernels.block import Trace

INFO = {
    "label": "<i4",
    "proposed": "<i4",
    "log_ratio": "<f8",
    "accepted": "?",
    "regenerated": "?",
    "num_gradients": "<i4",
    "num_failed": "<i4",
}


@dataclasses.dataclass(frozen=True)
class Record:
    """`num_moves`: of a cycle; nought for a kernel that is none, whose info is no tuple."""

    dim: int
    num_moves: int

    @classmethod
    def of(cls, trace: Trace) -> "Record":
        return cls(trace.position.shape[-1], len(trace.info) if isinstance(trace.info, tuple) else 0)

    @property
    def dtype(self) -> np.dtype:
        fields: list[Any] = [("position", "<f8", (self.dim,)), ("logdensity", "<f8"), ("log_mixture", "<f8")]
        fields.append(("label", "<i4"))
        for move in range(self.num_moves or 1):
            fields += [(f"{move}.{name}", kind) for name, kind in INFO.items()]
        return np.dtype(fields)

    def rows(self, trace: Trace) -> np.ndarray:
        """The trace as records, (steps, chains) or (steps,) as it is."""
        rows = np.empty(trace.logdensity.shape, self.dtype)
        for name in ("position", "logdensity", "log_mixture", "label"):
            rows[name] = getattr(trace, name)
        for move, info in enumerate(trace.info if self.num_moves else (trace.info,)):
            for name in INFO:
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
            StepInfo(**{name: rows[f"{move}.{name}"] for name in INFO}) for move in range(self.num_moves or 1)
        )
        return Trace(
            position,
            rows["logdensity"],
            rows["log_mixture"],
            rows["label"],
            infos if self.num_moves else infos[0],
        )
