"""Result: what a run leaves behind. Its data are NumPy arrays and plain numbers; its estimates are made when asked for.

Estimates live in `whmc.estimate`: each property here names one and keeps what it returned.
"""

import dataclasses
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

import jax
import numpy as np

from whmc._shapes import Bool, Float, Int
from whmc.estimate import moves, summary
from whmc.estimate.alarms import Alarm, weights_disagree
from whmc.estimate.basins import VALLEY, Basins, Partition
from whmc.estimate.correction import corrected, correction
from whmc.estimate.diagnosis import diagnose
from whmc.estimate.evidence import Evidence
from whmc.estimate.labels import labels
from whmc.estimate.modes import ModeDraws, ModeTable
from whmc.estimate.parameters import ParameterTable
from whmc.estimate.tours import Tours
from whmc.estimate.weights import Weights, round_trips
from whmc.kernels.base import AbstractKernel, StepInfo
from whmc.kernels.settings import Role, single_numbers
from whmc.modes.library import ModeLibrary
from whmc.search.report import SearchReport
from whmc.target.noticed import Noticed
from whmc.target.space import by_chain
from whmc.target.target import Target


def _added(one: Any, other: Any) -> Any:
    """The sum of two costs, field by field."""
    names = [field.name for field in dataclasses.fields(one)]
    return type(one)(*(getattr(one, name) + getattr(other, name) for name in names))


@dataclasses.dataclass(frozen=True)
class Timings:
    """Seconds of each phase: the search for modes, charts and starts, compiling the block, warm-up, sampling, telling
    the modes apart, and the evidence by annealing."""

    search: float = 0.0
    prepare: float = 0.0
    compile: float = 0.0
    warmup: float = 0.0
    sampling: float = 0.0
    evidence: float = 0.0
    modes: float = 0.0

    def __add__(self, other: "Timings") -> "Timings":
        return _added(self, other)

    @property
    def total(self) -> float:
        """All phases together."""
        return sum(dataclasses.astuple(self))


@dataclasses.dataclass(frozen=True)
class Gradients:
    """The ledger of a run: positions at which it asked for the log density, with its gradient or without. Each counts
    once, for the phase that asked.

    search: descents, annealed population, polish and masses, also of searches that went on later. warmup: its steps.
    sampling: all steps, also of draws that were not kept, and fresh starts at regenerations. evidence: annealing for
    the log evidence. modes: ascents from draws, and paths between peaks, which tell the modes apart. other: charts of
    modes that were given, which image of each mode is kept where there are symmetries, whether charts may bend, first
    states of chains, and where the density fails, if it often does.

    A position counts also where it is not finite, and where it was evaluated just before. A function outside of JAX is
    called for neither; else once each, or 2 D + 1 times where its gradient is made of differences. Not counted is what
    nobody asked for: compiled code also evaluates copies that fill a group of chains, and chains of a group that stand
    still while others move. Nor is what a store compares a target with, to know it again, and what was under way when
    a run was stopped.
    """

    search: int = 0
    warmup: int = 0
    sampling: int = 0
    evidence: int = 0
    modes: int = 0
    other: int = 0

    def __add__(self, other: "Gradients") -> "Gradients":
        return _added(self, other)

    @property
    def total(self) -> int:
        """All phases together."""
        return sum(dataclasses.astuple(self))


@dataclasses.dataclass(frozen=True, repr=False)
class Result:
    """Draws and what is known of them.

    A mode is a set of peaks of the density without a valley of `valley` nats between them: see `basins`, and
    `with_valley` for another.

    draws: (chains, draws, dim), unconstrained. chart: of each draw the chart with the largest responsibility.
    logdensity, log_mixture: log pi and log q there. steps: for each move of the kernel its StepInfo, arrays (chains,
    draws); roles: what each move is for. library, kernel: as they were at the end. exact: whether the kernel says that
    it leaves the target invariant. search: what the search for modes saw, where there was one. basins: peaks, and which
    of them draws lead to; None: modes are told by charts alone. work: log evidence by the throat's work, where q alone
    was too poor. num_updates: how often the kernel changed at regenerations; num_behind: chains that never regenerated
    to take the last mode. num_asked: draws that were asked for, of each
    chain. failed_at: a position where the density fails, if many evaluations did, flat and inside the bounds. noticed:
    what else was noticed of the density. settings: what was asked for, and versions. named: constrained values, where
    these were loaded.
    """

    target: Target
    draws: Float[np.ndarray, "chains draws dim"]
    chart: Int[np.ndarray, "chains draws"]
    logdensity: Float[np.ndarray, "chains draws"]
    log_mixture: Float[np.ndarray, "chains draws"]
    steps: Mapping[str, StepInfo]
    roles: Mapping[str, Role]
    library: ModeLibrary
    kernel: AbstractKernel | None
    timings: Timings
    gradients: Gradients
    num_failed: int
    seed: int
    failed_at: Float[np.ndarray, " dim"] | None = None
    noticed: Noticed = dataclasses.field(default_factory=Noticed)
    exact: bool = True
    search: SearchReport | None = None
    basins: Basins | None = None
    valley: float = VALLEY
    work: Evidence | None = None
    num_updates: int = 0
    num_behind: int = 0
    num_asked: int = 0
    settings: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    named: Mapping[str, np.ndarray] | None = None

    @cached_property
    def partition(self) -> Partition:
        """Which peaks and which charts make up each mode."""
        return Partition.of_charts(self.library.mode_of) if self.basins is None else self.basins.partition(self.valley)

    @property
    def num_modes(self) -> int:
        return self.library.num_modes if self.basins is None else self.partition.num_modes

    def with_valley(self, nats: float) -> "Result":
        """The same result with modes that only valleys of so many nats part. It costs no evaluation."""
        if not nats > 0:
            raise ValueError(f"the valley between two modes must be > 0 nats, got {nats}: {VALLEY:g} unless told")
        if self.basins is None:
            raise ValueError("modes are told by charts alone here: finish the run, with whmc.resume() if it was stored")
        library = self.library.of_modes(self.basins.partition(nats).of_chart)
        return dataclasses.replace(self, valley=float(nats), library=library)

    @cached_property
    def label(self) -> Int[np.ndarray, "chains draws"]:
        """The mode of each draw: that of its chart, or of the peak that an ascent from it, or near it, reached."""
        if self.basins is None:
            return self.partition.of_chart[self.chart]
        return labels(self.basins, self.partition, self.chart, self.folded)

    def folded(self, some: Bool[np.ndarray, "chains draws"]) -> Float[np.ndarray, "n dim"]:
        """Some of the draws; where there are symmetries, the images of them that were sampled."""
        rows = self.draws[some]
        if self.target.fold is None:
            return rows
        with jax.enable_x64(True):
            return self.target.home(rows)

    @cached_property
    def modes(self) -> ModeTable:
        """The modes with their weights and errors."""
        return ModeTable.of(self)

    @cached_property
    def weights(self) -> Weights:
        """Of the modes: by charts, which are known well, with what ascents from draws add."""
        weights = self.weight_estimates[self.recommended]
        if self.basins is None:
            return weights
        return corrected(weights, correction(self.basins, self.partition, self.chart, weights.weight))

    @cached_property
    def weight_estimates(self) -> dict[str, Weights]:
        """Mode weights by charts in up to three ways, which must agree: see `alarms`."""
        return self._estimates_of(self.partition)

    def weights_of(self, partition: Partition) -> Weights:
        """The weights of other modes, by charts alone."""
        estimates = self._estimates_of(partition)
        return estimates[_recommended(estimates)]

    def _estimates_of(self, partition: Partition) -> dict[str, Weights]:
        size, of_chart = partition.num_modes, partition.of_chart
        # flows of several kernels, seen from other charts, do not add up
        frozen = self.num_updates == 0
        flow = moves.flow_of(self.steps, self.roles, of_chart, size) if frozen else None
        return moves.weights_of(of_chart[self.chart], size, flow, self.tours)

    @property
    def recommended(self) -> str:
        """The balance of jumps, whose error is least, unless it contradicts the plain occupancy."""
        return _recommended(self.weight_estimates)

    @cached_property
    def tours(self) -> Tours | None:
        """The stretches between regenerations; none if the kernel makes no independence moves."""
        return moves.tours_of(self.steps, self.roles)

    @cached_property
    def evidence(self) -> Evidence:
        """log evidence by the method with the smaller error."""
        found = self.evidence_estimates["bridge"]
        if self.work is not None and not self.work.se > found.se:
            return self.work
        return found

    @cached_property
    def evidence_estimates(self) -> dict[str, Evidence]:
        """By bridge sampling, and where that was poor by the throat's work; they must agree: see `alarms`."""
        found = {"bridge": moves.bridge_of(self.steps, self.roles, self.logdensity, self.log_mixture)}
        return found if self.work is None else {**found, "work": self.work}

    @property
    def log_evidence(self) -> float:
        """log of the integral of exp(logdensity), as it is written."""
        return self.evidence.log_evidence

    @property
    def log_evidence_se(self) -> float:
        return self.evidence.se

    @cached_property
    def jumps(self) -> Int[np.ndarray, "modes modes"]:
        """Accepted changes of mode, from (row) and to (column), by all moves that propose them."""
        return moves.jumps_of(self.steps, self.partition.of_chart, self.partition.num_modes)

    @cached_property
    def jumped(self) -> Bool[np.ndarray, "chains draws"]:
        """Whether a move from one mode to another was accepted in a step."""
        return moves.jumped(self.steps, self.partition.of_chart)

    @cached_property
    def round_trips(self) -> Int[np.ndarray, " chains"]:
        """How often each chain came back to the heaviest mode from another."""
        return round_trips(self.label, int(np.argmax(self.modes.weight)))

    @cached_property
    def acceptance(self) -> dict[str, float]:
        """Mean acceptance probability of each move."""
        return moves.acceptance_of(self.steps)

    @property
    def num_warmup_gradients(self) -> int:
        """Gradients of the log density spent on the warm-up."""
        return self.gradients.warmup

    @cached_property
    def num_gradients(self) -> int:
        """What the steps of the draws in this result took, all chains together; `gradients` is what the run took."""
        return int(sum(np.sum(info.num_gradients) for info in self.steps.values()))

    @cached_property
    def regenerated(self) -> Bool[np.ndarray, "chains draws"]:
        """Whether a step was a regeneration."""
        return np.any([info.regenerated for info in self.steps.values()], axis=0)

    @cached_property
    def num_regenerations(self) -> int:
        return int(sum(np.sum(info.regenerated) for info in self.steps.values()))

    @cached_property
    def parameters(self) -> ParameterTable:
        """Mean, standard deviation, effective draws and R-hat of every named value."""
        return ParameterTable.of(self.constrained())

    @cached_property
    def alarms(self) -> tuple[Alarm, ...]:
        """What not to trust, each with its figure and its remedy; empty if nothing was noticed."""
        return diagnose(self)

    @property
    def tuned(self) -> dict[str, float | int | bool]:
        """The settings of the kernel that are single numbers."""
        return {} if self.kernel is None else single_numbers(self.kernel)

    def unflatten(self) -> Any:
        """The draws in the shape of the target's template, (chains, draws, ...) each."""
        return by_chain(self.target.unflatten, self.draws)

    def constrained(self) -> dict[str, np.ndarray]:
        """Named values as the model means them, (chains, draws, ...) each: by the target's `constrain`, or its template
        or names."""
        return dict(self._values)

    @cached_property
    def _values(self) -> Mapping[str, np.ndarray]:
        return self.target.named_values(self.draws) if self.named is None else self.named

    def unfolded(self, seed: int = 0) -> "Result":
        """Every draw moved to a random image under the target's symmetries: exact draws of the whole density.

        Modes, weights and evidence stay those of the folded one: each of the images has an equal part.
        """
        if self.target.fold is None:
            raise ValueError("these draws are not folded: the target was given no symmetries, or load() no target")
        chains, draws, _ = self.draws.shape
        element = np.random.default_rng(seed).integers(len(self.target.group), size=(chains, draws, 1))
        rows = np.concatenate([self.draws, element], axis=-1)
        moved = by_chain(lambda row: self.target.image(row[-1].astype(int), row[:-1]), rows)
        return dataclasses.replace(self, draws=moved, named=None)

    def mode(self, number: int) -> ModeDraws:
        """The draws of one mode. Those between modes belong to the mode of their chart, unless an ascent was made: so
        their share may differ from the weight."""
        if not 0 <= number < self.num_modes:
            raise IndexError(f"there is no mode {number}: the modes are 0 to {self.num_modes - 1}")
        here = self.label == number
        return ModeDraws(
            number=number,
            weight=float(self.modes.weight[number]),
            weight_se=float(self.modes.weight_se[number]),
            share=float(here.mean()),
            location=self.modes.location[number],
            chain=np.nonzero(here)[0],
            draws=self.draws[here],
            logdensity=self.logdensity[here],
            values={name: rows[here] for name, rows in self.constrained().items()},
        )

    def to_arviz(self) -> Any:
        """Posterior, sample_stats and more, for the ArviZ that is installed: a DataTree, or before version 1 an
        InferenceData."""
        from whmc.storage.netcdf import to_arviz

        return to_arviz(self)

    def save(self, path: str | Path) -> Path:
        """Writes a netCDF file that ArviZ, xarray and `whmc.load` read."""
        from whmc.storage.netcdf import save

        return save(self, path)

    def summary(self) -> str:
        """Alarms first, then the modes, the evidence, the parameters, how the moves did, what it cost."""
        return summary.summary(self)

    def __repr__(self) -> str:
        return summary.one_line(self)

    def _repr_html_(self) -> str:
        return summary.as_html(self)


def _recommended(estimates: Mapping[str, Weights]) -> str:
    pair = {name: one for name, one in estimates.items() if name != "tours"}
    if "balance" not in pair or weights_disagree(pair):
        return "occupancy"
    return min(pair, key=lambda name: float(np.sum(pair[name].se ** 2)))
