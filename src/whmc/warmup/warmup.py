"""Warm-up: rounds that double in length. The kernel is constant in a round, and tuned between two rounds."""

import dataclasses
from typing import NamedTuple

import jax
import numpy as np

from whmc._shapes import Bool, Float, Int
from whmc.kernels.base import AbstractKernel
from whmc.kernels.block import Trace
from whmc.kernels.cycle import moves
from whmc.kernels.local import AbstractLocal, LocalHMC
from whmc.kernels.settings import infos, uses_scores, with_settings
from whmc.kernels.wormhole import Wormhole
from whmc.modes.bending import bend_charts
from whmc.modes.chart_data import log_weights_of, step_sizes_of, with_numbers
from whmc.modes.library import ModeLibrary
from whmc.modes.mixture import log_ratio_of
from whmc.modes.refine import merge_duplicates, with_best_dof, with_gaussian_base
from whmc.modes.split import fit_mixtures, fitted_with, splittable
from whmc.modes.tailing import tail_charts
from whmc.warmup.charts import ChartShapes, fit_charts
from whmc.warmup.step_size import carry_step_sizes, quarter_turn, tune_step_sizes
from whmc.warmup.throat import LEAST_DIVERSITY, Setting, ThroatSearch
from whmc.warmup.weights import tune_weights

FIRST_ROUND = 15
"""Steps of the first round: with 16 chains enough to see whether a step size is far off."""

POOLED_FROM = 2
"""Rounds before the last from which on draws are pooled: in a default run an eighth of the warm-up is over by then, and
chains have left their starts."""

SPLIT_BEFORE = 1
"""Rounds before the last after which modes get several charts, so that the steps of these are tuned. After the
last they are only fitted to more draws."""

THRESHOLD_DRAWS = 2000
"""Draws whose median log w becomes the threshold of regenerations: more would not move it."""


@dataclasses.dataclass(frozen=True)
class Draws:
    """Positions and log densities, all chains together."""

    position: Float[np.ndarray, "n dim"]
    logdensity: Float[np.ndarray, " n"]

    @property
    def both(self) -> tuple[Float[np.ndarray, "n dim"], Float[np.ndarray, " n"]]:
        return self.position, self.logdensity

    def with_more(self, more: "Draws") -> "Draws":
        """These draws and others."""
        return Draws(np.concatenate([self.position, more.position]), np.concatenate([self.logdensity, more.logdensity]))


@dataclasses.dataclass(frozen=True)
class Warmup:
    """Kernel and library as far as they are learned.

    curvature: the charts before any draws, or when modes were split, towards which learned charts are shrunk. throats:
    the search for a throat. fixed: whether num_steps and throat stay as the user wrote them. pool: draws of the rounds
    since chains left their starts, as far as charts can be learned from them.
    """

    kernel: AbstractKernel
    library: ModeLibrary
    curvature: ChartShapes
    throats: ThroatSearch = ThroatSearch()
    fixed: bool = False
    pool: Draws | None = None


def begin(kernel: AbstractKernel, library: ModeLibrary, *, fixed: bool) -> Warmup:
    """Before the first round: charts that describe the same mode are merged."""
    library = merge_duplicates(library)
    return Warmup(kernel, library, ChartShapes.of(with_gaussian_base(library).charts()), fixed=fixed)


def adopt(warmup: Warmup, library: ModeLibrary) -> Warmup:
    """With charts that were added at the end of the library; they are known by their curvature."""
    known, size = warmup.curvature.charts(warmup.library), warmup.library.size
    curvature = ChartShapes.of([*known, *with_gaussian_base(library).charts()[size:]])
    return dataclasses.replace(warmup, library=library, curvature=curvature)


def round_lengths(warmup: int) -> list[int]:
    """Lengths that double and add up to `warmup`; the last round is about half of it."""
    num_rounds = max(1, int(np.log2(warmup / FIRST_ROUND + 1))) if warmup else 0
    ends = [round(warmup * (2 ** (n + 1) - 1) / (2**num_rounds - 1)) for n in range(num_rounds)]
    return [end - start for start, end in zip([0, *ends], ends, strict=False)]


class Trial(NamedTuple):
    """Steps of a round with one throat setting; `setting` is None where the kernel's own is kept."""

    kernel: AbstractKernel
    num_steps: int
    setting: Setting | None


def plan_round(warmup: Warmup, num_steps: int) -> list[Trial]:
    """What a round runs: some steps at each throat setting that may be best."""
    plan = _throat_plan(warmup)
    return [
        Trial(
            warmup.kernel if setting is None else with_settings(warmup.kernel, throat=setting[0], stride=setting[1]),
            length,
            setting,
        )
        for setting, length in zip(plan, _shares(num_steps, len(plan)), strict=True)
    ]


def learn(warmup: Warmup, trials: list[Trial], traces: list[Trace], left: int) -> tuple[Warmup, Draws]:
    """All tuning after a round which so many others follow, and the round's draws."""
    jumps = {
        trial.setting: _jump_acceptance(trial.kernel, trace, warmup.library.mode_of)
        for trial, trace in zip(trials, traces, strict=True)
        if trial.setting is not None and trial.num_steps
    }
    acceptance = {setting: float(np.mean(rows)) for setting, rows in jumps.items()}
    error = {setting: float(np.std(rows) / np.sqrt(len(rows))) for setting, rows in jumps.items()}
    trace = jax.tree.map(lambda *parts: np.concatenate(parts), *traces)
    draws = Draws(trace.position.reshape(-1, warmup.library.dim), trace.logdensity.ravel())
    throats = dataclasses.replace(warmup.throats, acceptance=acceptance, error=error)
    pool = _pool(warmup, draws, left)
    tuned = _tune(dataclasses.replace(warmup, throats=throats, pool=pool), trace, left)
    return (tuned if left else dataclasses.replace(tuned, pool=None)), draws


def _pool(warmup: Warmup, draws: Draws, left: int) -> Draws | None:
    """The draws that modes are split by: those of the rounds from `POOLED_FROM` on."""
    if left > POOLED_FROM or not splittable(warmup.library):
        return None
    return draws if warmup.pool is None else warmup.pool.with_more(draws)


def _throat_plan(warmup: Warmup) -> list[Setting] | list[None]:
    """Throat settings of a round; None: the kernel's own."""
    has_wormhole = any(isinstance(move, Wormhole) for move in moves(warmup.kernel))
    if warmup.fixed or not has_wormhole or warmup.library.size == 1 or not uses_scores(warmup.kernel):
        return [None]
    return warmup.throats.plan()


def _shares(num_steps: int, num_settings: int) -> list[int]:
    """Steps of a round for each setting: the first is the best so far, the others are only tried."""
    tried = min(max(num_steps // 10, 8), num_steps // num_settings)
    return [num_steps - (num_settings - 1) * tried, *[tried] * (num_settings - 1)]


def _tune(warmup: Warmup, trace: Trace, left: int) -> Warmup:
    """Weights, then charts, then step sizes in the new charts, then the base, the threshold and the throat.

    left: rounds that follow.

    Charts are fitted and steps are tuned in units of a Gaussian base; `with_best_dof` comes last and changes units.
    """
    library = with_gaussian_base(warmup.library)
    position, logdensity = trace.position.reshape(-1, library.dim), trace.logdensity.ravel()
    label = trace.label.ravel()
    made = _label_moves(warmup.kernel, trace)
    jumps, local = made.only(~made.local), made.only(made.local)
    charts = library.charts()
    log_weight, step_size = log_weights_of(charts), step_sizes_of(charts)
    if len(jumps.label):
        log_weight = tune_weights(log_weight, library.mode_of, jumps.label, jumps.proposed, jumps.acceptance)
    fitted = fit_charts(warmup.curvature.charts(library), library, position, logdensity, label)
    settings: dict[str, float | int] = {}
    if len(local.label):
        # in the home of a split mode few moves are made, and those in its tails: its step stays what it was before
        kind = next(type(move) for move in moves(warmup.kernel) if isinstance(move, AbstractLocal))
        tuned = tune_step_sizes(step_size, local.label, local.acceptance, kind.acceptance_goal, kind.error_order)
        step_size = np.where(library.wide, step_size, tuned)
        step_size = carry_step_sizes(step_size, charts, fitted, position, fitted_with(library)[label])
    library = library.with_charts(with_numbers(fitted, log_weight=log_weight, step_size=step_size))
    if warmup.pool is not None:
        library = tail_charts(bend_charts(library, *warmup.pool.both), *warmup.pool.both)
    if len(local.label) and not warmup.fixed and any(isinstance(move, LocalHMC) for move in moves(warmup.kernel)):
        settings["num_steps"], library = _with_quarter_turns(library)
    if warmup.pool is not None and left <= SPLIT_BEFORE:
        before, library = library, fit_mixtures(library, *warmup.pool.both, grow=left == SPLIT_BEFORE)
        if library is not before:
            warmup = dataclasses.replace(warmup, curvature=ChartShapes.of(library.charts()))
    library = with_best_dof(library, position)
    some = slice(None, None, max(1, len(position) // THRESHOLD_DRAWS))
    settings["log_threshold"] = float(np.median(log_ratio_of(library, position[some], logdensity[some])))
    kernel = with_settings(warmup.kernel, **settings)
    return _tune_throat(dataclasses.replace(warmup, kernel=kernel, library=library))


def _with_quarter_turns(library: ModeLibrary) -> tuple[int, ModeLibrary]:
    """Steps of a local move, and the library with step sizes that fit them."""
    charts = library.charts()
    # the number of steps follows from homes: those of their charts are longer, and would skip the tips
    weight = np.bincount(library.home_of, np.exp(log_weights_of(charts)), library.size)
    num_steps, step_size = quarter_turn(step_sizes_of(charts), weight)
    return num_steps, library.with_charts(with_numbers(charts, step_size=step_size))


def _tune_throat(warmup: Warmup) -> Warmup:
    """The best throat that the round has seen."""
    if warmup.fixed or not warmup.throats.acceptance:
        return warmup
    diversity = 1 - float(np.sum(warmup.library.shares() ** 2))
    throats = dataclasses.replace(
        warmup.throats, diversity=max(diversity, LEAST_DIVERSITY), other_cost=_other_cost(warmup.kernel)
    )
    throat, stride = throats.best()
    kernel = with_settings(warmup.kernel, throat=throat, stride=stride)
    return dataclasses.replace(warmup, kernel=kernel, throats=throats)


def _other_cost(kernel: AbstractKernel) -> int:
    """Gradients that a cycle spends besides the jump."""
    others = [move for move in moves(kernel) if not isinstance(move, Wormhole)]
    return sum(int(move.num_steps) if isinstance(move, LocalHMC) else 1 for move in others)


class _Moves(NamedTuple):
    """All moves of a round: from which chart, to which, with what acceptance probability, and whether it was local."""

    label: Int[np.ndarray, " n"]
    proposed: Int[np.ndarray, " n"]
    acceptance: Float[np.ndarray, " n"]
    local: Bool[np.ndarray, " n"]

    def only(self, those: Bool[np.ndarray, " n"]) -> "_Moves":
        return _Moves(*(column[those] for column in self))


def _label_moves(kernel: AbstractKernel, trace: Trace) -> _Moves:
    parts = []
    for move, info in zip(moves(kernel), infos(trace.info), strict=True):
        acceptance = np.exp(np.minimum(info.log_ratio, 0.0))
        local = np.full(acceptance.shape, isinstance(move, AbstractLocal))
        parts.append([np.ravel(rows) for rows in (info.label, info.proposed, acceptance, local)])
    return _Moves(*(np.concatenate(rows) for rows in zip(*parts, strict=True)))


def _jump_acceptance(
    kernel: AbstractKernel, trace: Trace, mode: Int[np.ndarray, " size"]
) -> Float[np.ndarray, " chains"]:
    """Mean acceptance of the wormhole's jumps to another mode, over all its jumps, for each chain."""
    for move, info in zip(moves(kernel), infos(trace.info), strict=True):
        if isinstance(move, Wormhole):
            away = mode[info.label] != mode[info.proposed]
            return np.mean(np.where(away, np.exp(np.minimum(info.log_ratio, 0.0)), 0.0), axis=0)
    return np.zeros(1)
