"""Result: what a run leaves behind: NumPy arrays, plain numbers, and the library and kernel as they were frozen."""

import dataclasses
from collections.abc import Mapping
from functools import cached_property
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, Int

from whmc.estimate.weights import jump_matrix, occupancy
from whmc.kernels.base import AbstractKernel, StepInfo
from whmc.modes.library import ModeLibrary
from whmc.target import Target


@dataclasses.dataclass(frozen=True)
class ModeTable:
    """A row for each mode: where it is, how heavy, how often visited, jumps into and out of it."""

    location: Float[np.ndarray, "size dim"]
    weight: Float[np.ndarray, " size"]
    weight_se: Float[np.ndarray, " size"]
    visits: Int[np.ndarray, " size"]
    jumps_in: Int[np.ndarray, " size"]
    jumps_out: Int[np.ndarray, " size"]

    def __len__(self) -> int:
        return len(self.weight)

    def __str__(self) -> str:
        lines = ["mode   weight      ±     visits  jumps in  jumps out"]
        for k in range(len(self)):
            lines.append(
                f"{k:4d}   {self.weight[k]:.4f}  {self.weight_se[k]:.4f}  {self.visits[k]:8d}"
                f"  {self.jumps_in[k]:8d}  {self.jumps_out[k]:9d}"
            )
        return "\n".join(lines)


@dataclasses.dataclass(frozen=True)
class Timings:
    """Seconds: charts and starts, compiling the block, warm-up, sampling."""

    prepare: float
    compile: float
    warmup: float
    sampling: float

    @property
    def total(self) -> float:
        return self.prepare + self.compile + self.warmup + self.sampling


@dataclasses.dataclass(frozen=True)
class Result:
    """Draws and what is known of them.

    draws: (chains, draws, dim), unconstrained. label: the mode of each draw, the chart with the largest
    responsibility. logdensity, log_mixture: log pi and log q there. steps: for each move of the kernel its StepInfo,
    arrays (chains, draws). library, kernel: as they were frozen after the warm-up.
    """

    target: Target
    draws: Float[np.ndarray, "chains draws dim"]
    label: Int[np.ndarray, "chains draws"]
    logdensity: Float[np.ndarray, "chains draws"]
    log_mixture: Float[np.ndarray, "chains draws"]
    steps: Mapping[str, StepInfo]
    library: ModeLibrary
    kernel: AbstractKernel
    timings: Timings
    num_warmup_gradients: int
    num_failed: int
    seed: int

    @cached_property
    def modes(self) -> ModeTable:
        """The modes with their weights and errors."""
        size = self.library.size
        weight, weight_se = occupancy(self.label, size)
        if size > 1:  # a mode that was never seen, or never left, is not known exactly
            weight_se = np.where(weight_se == 0, 1 / self.label.size, weight_se)
        jumps = self.jumps
        return ModeTable(
            np.asarray(self.library.location)[:size],
            weight,
            weight_se,
            np.bincount(self.label.ravel(), minlength=size),
            jumps.sum(axis=0),
            jumps.sum(axis=1),
        )

    @cached_property
    def jumps(self) -> Int[np.ndarray, "size size"]:
        """Accepted changes of chart, from (row) and to (column), by all moves that propose them."""
        size = self.library.size
        return sum(
            (jump_matrix(info.label, info.proposed, info.accepted, size) for info in self.steps.values()),
            np.zeros((size, size), int),
        )

    @cached_property
    def acceptance(self) -> dict[str, float]:
        """Mean acceptance probability of each move."""
        return {name: float(np.mean(np.exp(np.minimum(info.log_ratio, 0)))) for name, info in self.steps.items()}

    @cached_property
    def num_gradients(self) -> int:
        """Gradients of the log density spent on sampling, all chains together."""
        return int(sum(np.sum(info.num_gradients) for info in self.steps.values()))

    @cached_property
    def num_regenerations(self) -> int:
        return int(sum(np.sum(info.regenerated) for info in self.steps.values()))

    def unflatten(self) -> Any:
        """The draws in the shape of the target's template, (chains, draws, ...) each."""
        with jax.enable_x64(True):
            tree = jax.vmap(jax.vmap(self.target.unflatten))(jnp.asarray(self.draws))
            return jax.tree.map(np.asarray, tree)

    def summary(self) -> str:
        """The modes, how the moves did, what it cost."""
        chains, draws, dim = self.draws.shape
        lines = [f"{chains} chains x {draws} draws in {dim} dimensions, {self.library.size} modes", str(self.modes)]
        shown = ", ".join(f"{name} {rate:.2f}" for name, rate in self.acceptance.items())
        settings = ", ".join(
            f"{field.name} {np.asarray(getattr(move, field.name)).item():.4g}"
            for move in getattr(self.kernel, "kernels", (self.kernel,))
            for field in dataclasses.fields(move)  # type: ignore[arg-type]
        )
        seconds = self.timings
        lines += [
            f"acceptance: {shown}; regenerations: {self.num_regenerations}",
            f"tuned: {settings}",
            f"gradients: {self.num_gradients} (warm-up {self.num_warmup_gradients}); "
            f"failed evaluations: {self.num_failed}",
            f"seconds: prepare {seconds.prepare:.1f}, compile {seconds.compile:.1f}, "
            f"warm-up {seconds.warmup:.1f}, sampling {seconds.sampling:.1f}",
        ]
        return "\n".join(lines)

    def __repr__(self) -> str:
        return self.summary()
