"""Result: what a run leaves behind: NumPy arrays, plain numbers, and the library and kernel as they were frozen."""

import dataclasses
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Bool, Float, Int

from whmc.estimate import alarms
from whmc.estimate.alarms import Alarm
from whmc.estimate.evidence import NOTHING, Evidence, bridge
from whmc.estimate.modes import ModeDraws, ModeTable
from whmc.estimate.parameters import ParameterTable
from whmc.estimate.tours import Tours
from whmc.estimate.weights import Flow, Weights, balance, jump_matrix, occupancy, round_trips, with_floor
from whmc.kernels.base import AbstractKernel, StepInfo
from whmc.modes.library import ModeLibrary
from whmc.modes.mixture import chart_squares
from whmc.search.report import SearchReport
from whmc.target.target import Target, by_chain


@dataclasses.dataclass(frozen=True)
class Timings:
    """Seconds: the search for modes, charts and starts, compiling the block, warm-up, sampling."""

    search: float
    prepare: float
    compile: float
    warmup: float
    sampling: float

    @property
    def total(self) -> float:
        return self.search + self.prepare + self.compile + self.warmup + self.sampling


@dataclasses.dataclass(frozen=True)
class Result:
    """Draws and what is known of them.

    draws: (chains, draws, dim), unconstrained. chart: of each draw the chart with the largest responsibility.
    logdensity, log_mixture: log pi and log q there. steps: for each move of the kernel its StepInfo, arrays (chains,
    draws). library, kernel: as they were at the end. search: what the search for modes saw, where there was one.
    work: log evidence by the throat's work, where q alone was too poor. num_updates: how often the kernel changed at
    regenerations; num_behind: chains that never regenerated to take the last mode. num_asked: draws that were asked
    for, of each chain. settings: what was asked for, and versions. named: constrained values, where these were loaded.
    """

    target: Target
    draws: Float[np.ndarray, "chains draws dim"]
    chart: Int[np.ndarray, "chains draws"]
    logdensity: Float[np.ndarray, "chains draws"]
    log_mixture: Float[np.ndarray, "chains draws"]
    steps: Mapping[str, StepInfo]
    library: ModeLibrary
    kernel: AbstractKernel | None
    timings: Timings
    num_warmup_gradients: int
    num_failed: int
    seed: int
    search: SearchReport | None = None
    work: Evidence | None = None
    num_updates: int = 0
    num_behind: int = 0
    num_asked: int = 0
    settings: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    named: Mapping[str, np.ndarray] | None = None

    @cached_property
    def label(self) -> Int[np.ndarray, "chains draws"]:
        """The mode of each draw."""
        return self.library.mode_of[self.chart]

    @cached_property
    def modes(self) -> ModeTable:
        """The modes with their weights and errors."""
        size, mode_of = self.library.num_modes, self.library.mode_of
        best = self.weight_estimates[self.recommended]
        heaviest = [max(np.flatnonzero(mode_of == k), key=self._chart_weights.__getitem__) for k in range(size)]
        jumps, evidence = self.jumps, self.evidence
        with np.errstate(divide="ignore", invalid="ignore"):
            log_share, relative = np.log(best.weight), best.se / best.weight
        return ModeTable(
            location=np.asarray(self.library.location)[heaviest],
            weight=best.weight,
            weight_se=best.se,
            log_evidence=evidence.log_evidence + log_share,
            log_evidence_se=np.hypot(evidence.se, relative),
            visits=np.bincount(self.label.ravel(), minlength=size),
            jumps_in=jumps.sum(axis=0),
            jumps_out=jumps.sum(axis=1),
            num_charts=np.bincount(mode_of, minlength=size),
        )

    @cached_property
    def _chart_weights(self) -> Float[np.ndarray, " size"]:
        return np.asarray(self.library.log_weight)[: self.library.size]

    @cached_property
    def weight_estimates(self) -> dict[str, Weights]:
        """Mode weights in up to three ways, which must agree: see `alarms`."""
        size = self.library.num_modes
        found = {"occupancy": occupancy(self.label, size)}
        flow = self._flow()
        # flows of several kernels, seen from other charts, do not add up
        if flow is not None and size > 1 and self.num_updates == 0:
            by_jumps = balance(flow)
            found["balance"] = Weights(by_jumps.weight, with_floor(by_jumps.se, self.label, size))
        if self.tours is not None:
            here = (self.label[..., None] == np.arange(size)).astype(float)
            weight, se = self.tours.estimate(here)
            found["tours"] = Weights(weight, with_floor(se, self.label, size))
        return {name: one for name, one in found.items() if np.all(np.isfinite(one.weight))}

    @property
    def recommended(self) -> str:
        """The balance of jumps, whose error is least, unless it contradicts the plain occupancy."""
        estimates = self.weight_estimates
        if "balance" not in estimates or alarms.weights_disagree(
            {name: estimates[name] for name in ("occupancy", "balance")}
        ):
            return "occupancy"
        plain, better = estimates["occupancy"], estimates["balance"]
        return "balance" if np.sum(better.se**2) < np.sum(plain.se**2) else "occupancy"

    def _flow(self) -> Flow | None:
        """Acceptance of all moves between modes, chain by chain."""
        mode_of, size = self.library.mode_of, self.library.num_modes
        jumps = [info for name, info in self.steps.items() if name.split("[")[0] in ("Wormhole", "Independence")]
        if not jumps:
            return None
        label, proposed, log_ratio = (
            np.concatenate([getattr(info, name) for info in jumps], axis=1)
            for name in ("label", "proposed", "log_ratio")
        )
        return Flow.of(mode_of[label], mode_of[proposed], np.exp(np.minimum(log_ratio, 0.0)), size)

    @cached_property
    def tours(self) -> Tours | None:
        """The stretches between regenerations; none if the kernel makes no independence moves."""
        flags = [info.regenerated for name, info in self.steps.items() if name.startswith("Independence")]
        return Tours.of(np.any(flags, axis=0)) if flags else None

    @cached_property
    def evidence(self) -> Evidence:
        """log evidence by the method with the smaller error."""
        found = self.evidence_estimates["bridge"]
        if self.work is not None and not self.work.se > found.se:
            return self.work
        return found

    @cached_property
    def evidence_estimates(self) -> dict[str, Evidence]:
        """By bridge sampling, and where that was poor by the throat's work."""
        return {"bridge": self._bridge()} | ({} if self.work is None else {"work": self.work})

    def _bridge(self) -> Evidence:
        """Bridge sampling; needs an independence move as the last of the cycle."""
        name, info = list(self.steps.items())[-1]
        if not name.startswith("Independence"):
            return NOTHING
        draws = self.logdensity - self.log_mixture
        # the state that a rejected proposal was compared with is the one recorded
        return bridge(draws, np.where(info.accepted, draws, draws + info.log_ratio))

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
        size, mode_of = self.library.num_modes, self.library.mode_of
        return sum(
            (jump_matrix(mode_of[i.label], mode_of[i.proposed], i.accepted, size) for i in self.steps.values()),
            np.zeros((size, size), int),
        )

    @cached_property
    def round_trips(self) -> Int[np.ndarray, " chains"]:
        """How often each chain came back to the heaviest mode from another."""
        return round_trips(self.label, int(np.argmax(self.modes.weight)))

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

    @cached_property
    def alarms(self) -> tuple[Alarm, ...]:
        """What not to trust, each with its figure and its remedy; empty if nothing was noticed."""
        size, weight = self.library.num_modes, self.modes.weight
        found = alarms.weights_disagree(self.weight_estimates)
        found += alarms.one_chain_only(self.label, size)
        # chains that never left one mode would say that it is all there is: the warm-up's weights may know better
        learned = np.bincount(self.library.mode_of, np.exp(self._chart_weights), size)
        found += alarms.jumps_rare(self.label, min(weight, learned, key=lambda shares: float(np.sum(shares**2))))
        if self.search is not None:
            seen = self.search
            found += alarms.modes_missing(seen.unseen_chance, seen.num_starts, seen.num_capped, seen.library.size)
        found += alarms.chains_behind(self.num_behind, len(self.label))
        found += alarms.stopped_early(self.label.shape[1], self.num_asked)
        found += alarms.far_draws(self._far_share())
        found += alarms.few_tours(self.tours)
        found += alarms.mixing(self._watched())
        found += alarms.evidence_uncertain(self.evidence)
        found += alarms.failures(self.num_failed, self.num_gradients + self.num_warmup_gradients)
        return tuple(found)

    def _watched(self) -> ParameterTable:
        """What has to mix: every parameter, the log density, and the modes that matter."""
        values = {"the log density": self.logdensity}
        for k in np.flatnonzero((self.modes.weight > 0.01) & (self.modes.weight < 0.99)):
            values[f"mode {k}"] = (self.label == k).astype(float)
        return self.parameters + ParameterTable.of(values)

    def _far_share(self) -> float:
        """Share of draws far outside the nearest chart, beyond what even heavy tails explain."""
        dim = self.target.dim
        some = self.draws[:, :: max(1, self.label.size // 2000)].reshape(-1, dim)
        if self.target.fold is not None:  # unfolded draws are far from the charts, and their images are not
            some = by_chain(lambda position: self.target.home(position[None])[0], some[None])[0]
        return float(np.mean(chart_squares(self.library, some).min(axis=0) > 4 * (dim + 5 * np.sqrt(2 * dim))))

    @cached_property
    def jumped(self) -> Bool[np.ndarray, "chains draws"]:
        """Whether a move from one mode to another was accepted in a step."""
        mode_of = self.library.mode_of
        changes = [info.accepted & (mode_of[info.label] != mode_of[info.proposed]) for info in self.steps.values()]
        return np.any(changes, axis=0)

    @cached_property
    def regenerated(self) -> Bool[np.ndarray, "chains draws"]:
        """Whether a step was a regeneration."""
        return np.any([info.regenerated for info in self.steps.values()], axis=0)

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
        fold = self.target.fold
        if fold is None:
            raise ValueError("these draws are not folded: the target was given no symmetries, or load() no target")
        chains, draws, _ = self.draws.shape
        element = np.random.default_rng(seed).integers(len(fold.group), size=(chains, draws, 1))
        rows = np.concatenate([self.draws, element], axis=-1)
        moved = by_chain(lambda row: self.target.image(row[-1].astype(int), row[:-1]), rows)
        return dataclasses.replace(self, draws=moved, named=None)

    def mode(self, number: int) -> ModeDraws:
        """The draws of one mode."""
        if not 0 <= number < self.library.num_modes:
            raise IndexError(f"there is no mode {number}: the modes are 0 to {self.library.num_modes - 1}")
        here = self.label == number
        return ModeDraws(
            number=number,
            weight=float(self.modes.weight[number]),
            weight_se=float(self.modes.weight_se[number]),
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

    @property
    def tuned(self) -> dict[str, float | int | bool]:
        """The settings of the kernel that are single numbers."""
        moves = () if self.kernel is None else getattr(self.kernel, "kernels", (self.kernel,))
        settings = {
            f"{name}.{field.name}": np.asarray(getattr(move, field.name))
            for name, move in zip(self.steps, moves, strict=False)
            for field in dataclasses.fields(move)
        }
        return {name: value.item() for name, value in settings.items() if value.dtype.kind in "biuf" and not value.ndim}

    @cached_property
    def parameters(self) -> ParameterTable:
        """Mean, standard deviation, effective draws and R-hat of every named value."""
        return ParameterTable.of(self.constrained())

    def summary(self) -> str:
        """Alarms first, then the modes, the evidence, the parameters, how the moves did, what it cost."""
        chains, draws, dim = self.draws.shape
        lines = [f"ALARM {alarm}" for alarm in self.alarms]
        size, charts = self.library.num_modes, self.library.size
        several = f" ({charts} charts)" if charts > size else ""
        one_of = "" if self.target.fold is None else f", one of {len(self.target.fold.group)} images of each"
        lines += [
            f"{chains} chains x {draws} draws in {dim} dimensions, {size} modes{several}{one_of}",
            str(self.modes),
        ]
        lines.append(f"log evidence {self.log_evidence:.3f} ± {self.log_evidence_se:.3f} (by {self.evidence.method})")
        if size > 1:
            lines.append(f"weights by {self.recommended}; round trips {int(self.round_trips.sum())}")
        lines.append(str(self.parameters))
        if self.search is not None:
            lines.append(str(self.search))
        shown = ", ".join(f"{name} {rate:.2f}" for name, rate in self.acceptance.items())
        settings = ", ".join(f"{name} {value:.4g}" for name, value in self.tuned.items())
        seconds = self.timings
        lines += [
            f"acceptance: {shown}; regenerations: {self.num_regenerations}"
            + (f", kernel updates at them: {self.num_updates}" if self.num_updates else ""),
            f"tuned: {settings}",
            f"gradients: {self.num_gradients}, before that {self.num_warmup_gradients} in warm-up; "
            f"failed evaluations: {self.num_failed}",
            f"seconds: search {seconds.search:.1f}, prepare {seconds.prepare:.1f}, compile {seconds.compile:.1f}, "
            f"warm-up {seconds.warmup:.1f}, sampling {seconds.sampling:.1f}",
        ]
        return "\n".join(lines)

    def __repr__(self) -> str:
        return self.summary()
