"""Warm-up: rounds that double in length, the kernel constant in each, tuned only between them."""

import dataclasses
from collections.abc import Callable

import jax
import numpy as np

from whmc.kernels.base import AbstractKernel
from whmc.kernels.block import Trace
from whmc.kernels.local import AbstractLocal, LocalHMC
from whmc.kernels.settings import infos, moves, with_settings
from whmc.kernels.wormhole import Wormhole
from whmc.modes.library import ModeLibrary
from whmc.modes.mixture import log_ratio_of
from whmc.modes.refine import merge_duplicates, split_charts, with_best_dof, with_gaussian_base
from whmc.warmup.throat import Setting, ThroatSearch
from whmc.warmup.tuning import Charts, carry_step_sizes, fit_charts, quarter_turn, tune_step_sizes, tune_weights

FIRST_ROUND = 15
"""Steps of the first round: with 16 chains enough to see whether a step size is far off."""


def round_lengths(warmup: int) -> list[int]:
    """Lengths that double and add up to `warmup`; the last round is about half of it."""
    num_rounds = max(1, int(np.log2(warmup / FIRST_ROUND + 1))) if warmup else 0
    ends = [round(warmup * (2 ** (n + 1) - 1) / (2**num_rounds - 1)) for n in range(num_rounds)]
    return [end - start for start, end in zip([0, *ends], ends, strict=False)]


def shares(num_steps: int, num_settings: int) -> list[int]:
    """Steps of a round for each setting: the first is the best so far, the others are only tried."""
    tried = min(max(num_steps // 16, 8), num_steps // num_settings)
    return [num_steps - (num_settings - 1) * tried, *[tried] * (num_settings - 1)]


@dataclasses.dataclass
class WarmUp:
    """Kernel and library as they are learned. `fixed` keeps num_steps and throat as the user wrote them."""

    kernel: AbstractKernel
    library: ModeLibrary
    fixed: bool = False
    throats: ThroatSearch = dataclasses.field(default_factory=ThroatSearch)

    def __post_init__(self) -> None:
        self.library = merge_duplicates(self.library)
        self.curvature = Charts.of(with_gaussian_base(self.library))

    @classmethod
    def restored(
        cls, kernel: AbstractKernel, library: ModeLibrary, *, fixed: bool, throats: ThroatSearch, curvature: Charts
    ) -> "WarmUp":
        """As it was between two rounds."""
        warm = cls(kernel, library, fixed, throats)
        warm.library, warm.curvature = library, curvature
        return warm

    def run(
        self, num_steps: int, run_steps: Callable[[AbstractKernel, ModeLibrary, int], Trace], *, split: bool = False
    ) -> None:
        """One round: some steps at each throat setting of the plan, then all tuning at once.

        split: also give bent modes several charts; in one round only, with the next to learn their weights.
        """
        plan = self._plan()
        self.throats = ThroatSearch(self.throats.diversity, self.throats.other_cost)
        traces = []
        for setting, length in zip(plan, shares(num_steps, len(plan)), strict=True):
            kernel = (
                self.kernel if setting is None else with_settings(self.kernel, throat=setting[0], stride=setting[1])
            )
            trace = run_steps(kernel, self.library, length)
            if setting is not None and length:
                self.throats.acceptance[setting] = _jump_acceptance(kernel, trace)
            traces.append(trace)
        trace = jax.tree.map(lambda *parts: np.concatenate(parts), *traces)
        self.recent = trace.position.reshape(-1, self.library.dim), trace.logdensity.ravel()
        self._tune(trace)
        if split:
            self._split(trace)

    def _plan(self) -> list[Setting] | list[None]:
        has_wormhole = any(isinstance(move, Wormhole) for move in moves(self.kernel))
        if self.fixed or not has_wormhole or self.library.size == 1:
            return [None]
        return self.throats.plan()

    def _other_cost(self) -> int:
        """Gradients that a cycle spends besides the jump."""
        return sum(
            int(move.num_steps) if isinstance(move, LocalHMC) else 1
            for move in moves(self.kernel)
            if not isinstance(move, Wormhole)
        )

    def _tune(self, trace: Trace) -> None:
        dim = self.library.dim
        position, logdensity = trace.position.reshape(-1, dim), trace.logdensity.ravel()
        # draws know standard deviations: scales and step sizes are tuned in these units, then put on the best base
        known = with_gaussian_base(self.library)
        _, _, log_weight, step_size = known.charts()
        label, proposed, acceptance, local = _label_moves(self.kernel, trace)
        if np.any(~local):
            log_weight = tune_weights(log_weight, label[~local], proposed[~local], acceptance[~local])
        charts = fit_charts(self.curvature, position, logdensity, trace.label.ravel())
        settings: dict[str, float | int] = {}
        if np.any(local):
            step_size = tune_step_sizes(step_size, label[local], acceptance[local])
            step_size = carry_step_sizes(step_size, Charts.of(known), charts, position, trace.label.ravel())
            if not self.fixed:
                settings["num_steps"], step_size = quarter_turn(step_size, np.exp(log_weight))
        fitted = known.with_charts(charts.location, charts.scale, log_weight=log_weight, step_size=step_size)
        self.library = with_best_dof(fitted, position)
        some = slice(None, None, max(1, len(position) // 2000))
        settings["log_threshold"] = float(np.median(log_ratio_of(self.library, position[some], logdensity[some])))
        self.kernel = with_settings(self.kernel, **settings)
        if not self.fixed and self.throats.acceptance:
            self.throats.diversity = 1 - float(np.sum(np.exp(log_weight) ** 2))
            self.throats.other_cost = self._other_cost()
            throat, stride = self.throats.best()
            self.kernel = with_settings(self.kernel, throat=throat, stride=stride)

    def adopt(self, library: ModeLibrary) -> None:
        """The library with new charts at its end; these are known by their curvature."""
        added, size = Charts.of(library), self.library.size
        self.curvature = Charts(
            np.concatenate([self.curvature.location, added.location[size:]]),
            np.concatenate([self.curvature.scale, added.scale[size:]]),
        )
        self.library = library

    def _split(self, trace: Trace) -> None:
        position, label = trace.position.reshape(-1, self.library.dim), trace.label.ravel()
        library = split_charts(self.library, position, label)
        if library.size > self.library.size:
            self.library, self.curvature = library, Charts.of(with_gaussian_base(library))


def _label_moves(kernel: AbstractKernel, trace: Trace) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Of all moves of a round: label, proposed label, acceptance probability, and whether it was a local move."""
    parts = []
    for move, info in zip(moves(kernel), infos(trace.info), strict=True):
        acceptance = np.exp(np.minimum(info.log_ratio, 0.0))
        local = np.full(acceptance.shape, isinstance(move, AbstractLocal))
        parts.append([np.ravel(rows) for rows in (info.label, info.proposed, acceptance, local)])
    label, proposed, acceptance, local = (np.concatenate(rows) for rows in zip(*parts, strict=True))
    return label, proposed, acceptance, local


def _jump_acceptance(kernel: AbstractKernel, trace: Trace) -> float:
    """Mean acceptance of the wormhole's jumps."""
    for move, info in zip(moves(kernel), infos(trace.info), strict=True):
        if isinstance(move, Wormhole):
            return float(np.mean(np.exp(np.minimum(info.log_ratio, 0.0))))
    return 0.0
