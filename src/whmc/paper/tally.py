"""What a timed run of any sampler yields: errors against seconds, and a thinned record for the pictures."""

import dataclasses
import json
from typing import Any

import numpy as np

from whmc._shapes import Float
from whmc.estimate.effective import effective_draws_of_mean
from whmc.paper.problems import Case

KEPT = 2000
"""Draws of a chain kept for pictures; statistics use all."""


LAST = 20_000
"""Draws of a chain, the last ones, that the effective number is estimated from."""


@dataclasses.dataclass(frozen=True)
class Point:
    """After some seconds: gradients so far, and each chain's mean."""

    seconds: float
    num_gradients: int
    mean: Float[np.ndarray, "chains dim"]


class Tally:
    """Sums over all draws of all chains, block by block, in bounded memory."""

    def __init__(self, case: Case, method: str, chains: int) -> None:
        self.case, self.method, self.chains = case, method, chains
        self.sums = np.zeros((chains, len(case.mean)))
        self.visits = np.zeros((chains, len(case.weights)), int)
        self.squares = np.zeros(len(case.weights))
        self.num = 0
        self.points: list[Point] = []
        self.labels: list[np.ndarray] = []
        self.kept: list[np.ndarray] = []
        self.every = 1

    def add(self, positions: Float[np.ndarray, "steps chains dim"], seconds: float, num_gradients: int) -> None:
        """One block more. Coordinates beyond the target's own are left out."""
        dim = len(self.case.mean)
        rows = np.ascontiguousarray(positions[..., :dim])
        flat = rows.reshape(-1, dim)
        label = self.case.label(flat)
        if self.case.whiten is not None:
            square = np.mean(self.case.whiten(flat, label) ** 2, axis=1)
            self.squares += np.bincount(label, square, len(self.case.weights))
        label = label.reshape(rows.shape[:2])
        self.sums += rows.sum(axis=0)
        for c in range(self.chains):
            self.visits[c] += np.bincount(label[:, c], minlength=len(self.case.weights))
        self.labels.append(label.astype(np.int16))
        self._keep(rows)
        self.num += len(rows)
        self.points.append(Point(seconds, num_gradients, self.sums / self.num))

    def _keep(self, rows: Float[np.ndarray, "steps chains dim"]) -> None:
        offset = -self.num % self.every
        self.kept.append(rows[offset :: self.every])
        if sum(map(len, self.kept)) > 2 * KEPT:  # every second one, from now on and of what there is
            self.kept = [np.concatenate(self.kept)[::2]]
            self.every *= 2

    @property
    def draws(self) -> Float[np.ndarray, "chains n dim"]:
        """A thinned record."""
        return np.swapaxes(np.concatenate(self.kept), 0, 1)

    def rem(self, point: Point | None = None) -> Float[np.ndarray, " chains"]:
        """Relative error of the mean of each chain."""
        return self.case.rem((point or self.points[-1]).mean)

    def weights(self) -> Float[np.ndarray, " modes"]:
        """Share of all draws in each true mode."""
        return self.visits.sum(axis=0) / self.visits.sum()

    def row(self) -> dict[str, Any]:
        """One line of a table."""
        rem, last = self.rem(), self.points[-1]
        # shares of the draws, whatever a method makes of the weights
        variance = float(self.squares.sum() / self.visits.sum()) if self.case.whiten is not None else None
        return {
            "target": self.case.name,
            "method": self.method,
            "rem": float(rem.mean()),
            "rem_half_interval": half_interval(rem),
            "rem_pooled": float(self.case.rem(last.mean.mean(axis=0))),
            "total_variation": total_variation(self.weights(), self.case.weights),
            "variance_ratio": variance,
            "label_ess_per_draw": self.label_ess(),
            "draws": int(self.num * self.chains),
            "seconds": float(last.seconds),
            "gradients": int(last.num_gradients),
        }

    def label_ess(self) -> float:
        """Effective draws per draw of the worst mode's indicator; zero where no chain ever changed."""
        label = np.concatenate(self.labels)[-LAST:].T
        if not np.any(label[:, 1:] != label[:, :-1]):
            return 0.0
        seen = [k for k in range(len(self.case.weights)) if 0 < np.mean(label == k) < 1]
        here = ((label == k).astype(float) for k in seen)
        return min(effective_draws_of_mean(rows) for rows in here) / label.size


def half_interval(values: Float[np.ndarray, " chains"]) -> float | None:
    """Half of the 95 % interval of their mean; one value has none."""
    return float(1.96 * values.std(ddof=1) / np.sqrt(len(values))) if len(values) > 1 else None


def total_variation(first: Float[np.ndarray, " modes"], second: Float[np.ndarray, " modes"]) -> float:
    """Half of the sum of the differences of two sets of weights."""
    return float(0.5 * np.abs(first - second).sum())


def as_text(rows: list[dict[str, Any]]) -> str:
    """The table for people."""
    names = {
        "rem": "REM",
        "rem_half_interval": "± 95 %",
        "rem_pooled": "all chains",
        "total_variation": "TV",
        "variance_ratio": "variance",
        "label_ess_per_draw": "label ESS",
        "draws": "draws",
        "seconds": "seconds",
        "gradients": "gradients",
    }
    lines = [f"{'target':20s} {'method':14s} " + " ".join(f"{name:>10s}" for name in names.values())]
    for row in rows:
        cells = [row[key] for key in names]
        text = [
            " " * 9 + "-" if cell is None else f"{cell:10d}" if isinstance(cell, int) else f"{cell:10.4f}"
            for cell in cells
        ]
        lines.append(f"{row['target']:20s} {row['method']:14s} " + " ".join(text))
    return "\n".join(lines)


def as_json(rows: list[dict[str, Any]], settings: dict[str, Any]) -> str:
    """The table for programs, with the settings that it was made with."""
    return json.dumps({"settings": settings, "rows": rows}, indent=1) + "\n"
