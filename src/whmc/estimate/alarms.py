"""Alarms: what in a result is not to be trusted, by how much, and what to do about it.

Those of the density itself are in `alarms_of_density`.
"""

import dataclasses
from collections.abc import Mapping
from itertools import combinations
from typing import NamedTuple, Protocol, runtime_checkable

import numpy as np

from whmc._shapes import Float, Int
from whmc._words import counted
from whmc.estimate.effective import effective_draws_of_mean
from whmc.estimate.evidence import Evidence
from whmc.estimate.missing import MissingMass, percent
from whmc.estimate.modes import NO_VALLEYS, Depth, border
from whmc.estimate.parameters import ParameterTable
from whmc.estimate.tours import FEWEST, Tours
from whmc.estimate.weights import Weights

DISAGREE = 4.5
"""Standard errors between two estimates: over some hundred comparisons chance reaches this once in a thousand runs."""

LEAST_WEIGHT_GAP = 2e-3
LEAST_EVIDENCE_GAP = 0.01
"""Smaller differences do not matter, however small the standard errors."""

RHAT = 1.02
ESS = 400
"""Both as ArviZ's authors recommend, for bulk estimates over several chains (Vehtari et al. 2021)."""

UNCERTAIN_SE = 0.1
LEAST_OVERLAP = 1e-3


@dataclasses.dataclass(frozen=True)
class Alarm:
    """`name` says what is wrong, `figure` how much, `remedy` what to do."""

    name: str
    figure: float
    message: str
    remedy: str

    def __str__(self) -> str:
        return f"{self.name}: {self.message}. {self.remedy}"


@runtime_checkable
class SearchCounts(Protocol):
    """What a search tells about the modes that it has not found or kept."""

    @property
    def missing(self) -> MissingMass: ...
    @property
    def num_gradients(self) -> int: ...
    @property
    def num_found(self) -> int: ...
    @property
    def num_capped(self) -> int: ...


def kernel_inexact(exact: bool) -> list[Alarm]:
    """A kernel that says itself that it does not leave the target invariant."""
    if exact:
        return []
    return [
        Alarm(
            "kernel is not exact",
            np.nan,
            "a move of the kernel does not leave the target invariant, so draws, weights and evidence are biased",
            "Use it to study the printed algorithm only; sample with the default kernel",
        )
    ]


def weights_disagree(estimates: Mapping[str, Weights], depth: Depth = NO_VALLEYS) -> list[Alarm]:
    """Two estimates of one weight that differ by more than their errors allow."""
    worst, pair, mode = 0.0, ("", ""), 0
    for first, second in combinations(estimates, 2):
        a, b = estimates[first], estimates[second]
        error = np.hypot(a.se, b.se)
        gap = np.abs(a.weight - b.weight)
        # where both errors are nil (one mode, or one draw of difference) there is nothing to compare
        usable = np.isfinite(gap) & (error > 0) & (gap > LEAST_WEIGHT_GAP)
        score = np.where(usable, gap / np.where(usable, error, 1.0), 0.0)
        if score.max(initial=0.0) > worst:
            worst, pair, mode = float(score.max()), (first, second), int(score.argmax())
    if worst <= DISAGREE:
        return []
    overlap, together = border(depth, [mode])
    return [
        Alarm(
            "weights disagree",
            worst,
            f"mode {mode} has weight {estimates[pair[0]].weight[mode]:.3g} by {pair[0]} and "
            f"{estimates[pair[1]].weight[mode]:.3g} by {pair[1]}: {worst:.1f} standard errors apart{overlap}",
            f"The errors are too small. Increase draws=, and warmup= for better charts and step sizes{together}",
        )
    ]


def one_chain_only(label: Int[np.ndarray, "chains draws"], size: int, depth: Depth = NO_VALLEYS) -> list[Alarm]:
    """Modes visited by only one chain.

    Modes with fewer than ten draws, or with less than 0.1 % of all draws, are ignored: a negligible mode is bound to be
    seen by a single chain.
    """
    visits = np.stack([np.bincount(row, minlength=size) for row in label])
    total = visits.sum(axis=0)
    lonely = (total >= 10) & (total >= 1e-3 * label.size) & ((visits > 0).sum(axis=0) == 1)
    if len(label) == 1 or not lonely.any():
        return []
    modes = np.flatnonzero(lonely)
    which = f"mode {modes[0]} was" if len(modes) == 1 else f"modes {_some(modes)} were each"
    overlap, together = border(depth, modes.tolist())
    return [
        Alarm(
            "one chain only",
            float(len(modes)),
            f"{which} visited by only one of {len(label)} chains{overlap}",
            f"The weight and its error are not reliable. Increase draws=, or give a better chart with modes={together}",
        )
    ]


def jumps_rare(
    label: Int[np.ndarray, "chains draws"], weight: Float[np.ndarray, " size"], depth: Depth = NO_VALLEYS
) -> list[Alarm]:
    """Chains that change mode much less often than independent draws would, which is in 1 - sum weight² of steps.

    The two heaviest modes are those that most changes should be between.
    """
    diversity = 1 - float(np.sum(weight**2))
    if len(weight) < 2 or label.shape[1] < 2 or (diversity < 1e-3 and len(np.unique(label)) == 1):
        return []
    changes = float(np.mean(label[:, 1:] != label[:, :-1]))
    if changes >= 0.01 * diversity:
        return []
    heaviest, second = np.argsort(-weight, kind="stable")[:2].tolist()
    overlap, together = border(depth, [second], [heaviest])
    rate = f"chains change mode in {100 * changes:.2g}% of steps; independent draws would in {100 * diversity:.3g}%"
    remedy = "The charts do not fit the modes. Increase warmup=, or choose a parametrisation with rounder modes"
    return [
        Alarm(
            "jumps rare",
            changes,
            f"{rate}{overlap}",
            f"{remedy}{together}",
        )
    ]


def modes_missing(search: SearchCounts) -> list[Alarm]:
    """A search whose last starts still brought mass, or that found more modes than the library takes; or several modes,
    at none of which a start has ended, so that there may as well be others."""
    alarms, missing = [], search.missing
    if search.num_capped:
        alarms.append(
            Alarm(
                "library capped",
                float(search.num_capped),
                f"the search found {counted(search.num_capped, 'mode')} more than max_modes= allows; weights and log "
                "evidence describe the modes that were kept",
                "Increase max_modes=, or declare what makes the modes many (symmetries=, independent blocks)",
            )
        )
    if missing.alarming or (not missing.known and search.num_found > 1):
        rarely = f" Modes holding {percent(missing.rarely)} were hit once or twice." if missing.rarely > 0 else ""
        told = str(missing).rstrip(".")
        alarms.append(
            Alarm("mass may be missing", missing.expected, f"{told}.{rarely}".rstrip("."), _more_starts(search))
        )
    return alarms


def _more_starts(search: SearchCounts) -> str:
    """What finds more: eight times what the search took, of which half is for starts."""
    if search.missing.used_up:
        return "Give more points as starts=, or a box (low, high)"
    if search.missing.num_starts and not search.missing.known:
        return "Look where descents ended (result.search.dropped): a density that is smooth at its peaks lets hits tell"
    return (
        f"More starts: search={8 * search.num_gradients:.0e}, or a smaller start region. If the density is periodic or "
        "improper, bound it"
    )


def chains_behind(num_behind: int, chains: int) -> list[Alarm]:
    """Chains that never took a mode that was found while they ran."""
    if not num_behind:
        return []
    return [
        Alarm(
            "modes found too late",
            float(num_behind),
            f"{num_behind} of {chains} chains did not regenerate after the last new mode was found, and never jumped "
            "to it",
            "Their draws cover only the modes they knew. Run again with modes=result.library",
        )
    ]


def stopped_early(num: int, asked: int) -> list[Alarm]:
    """Fewer draws than were asked for."""
    if num >= asked:
        return []
    remedy = "If the run has a store, continue it with whmc.resume()"
    return [Alarm("stopped early", num / asked, f"the run made {num} of {asked} draws of each chain", remedy)]


def far_draws(share: float) -> list[Alarm]:
    """Draws where no chart is: a mode, or a part of one, that the library does not know."""
    if share <= 0.01:
        return []
    return [
        Alarm(
            "draws far from every chart",
            share,
            f"{share:.1%} of the draws lie far outside every chart, where the charts do not describe the target",
            "Increase warmup=, or search again with finder=Tempered()",
        )
    ]


class Tail(NamedTuple):
    """The draws with the largest w: their share, how far log w is above log Z there, and visits enough to know it."""

    share: float
    height: float
    fewest: int


def tails(num_draws: int) -> tuple[Tail, Tail]:
    """Those that must be visited often: where jumps come and go seldom, and where they do less than once in e runs.

    From trials: bent modes and shoulders that were wrong by five to ten standard errors had one to six visits of the
    first, or eight of the second; posteriors of the usual kind, in up to twenty dimensions, had nine or more of the
    first, and log w was not as high as in the second.
    """
    return Tail(0.005, 5.0, 6), Tail(0.0025, 1 + np.log(num_draws), 10)


def tails_rare(log_ratio: Float[np.ndarray, "chains draws"], log_evidence: float) -> list[Alarm]:
    """Places that the charts do not cover, entered only a few times.

    Of the proposals of an independence move at most Z/w are accepted at a draw of weight w = pi/q. Where that is little
    a chain stays for long, so it must enter seldom: neither R-hat nor effective draws of bulk statistics show it. The
    tail of w counts for p times the effective draws of its indicator.
    """
    if log_ratio.shape[1] < 4:
        return []
    for tail in tails(log_ratio.size):
        edge = float(np.quantile(log_ratio, 1 - tail.share))
        if not (np.isfinite(edge) and edge - log_evidence > tail.height):
            continue
        beyond = (log_ratio >= edge).astype(float)
        visits = float(beyond.mean() * min(effective_draws_of_mean(beyond), beyond.size))
        if visits < tail.fewest:
            return [
                Alarm(
                    "tails visited rarely",
                    visits,
                    f"{tail.share:.2%} of the draws lie where the charts hardly reach, and chains went there about "
                    f"{max(visits, 1):.0f} times in all: variances and extremes may be off by more than their errors",
                    f"Increase draws= by a factor of about {np.ceil(tail.fewest / max(visits, 1)):.0f}, and warmup= so "
                    "that charts reach further",
                )
            ]
    return []


def few_tours(tours: Tours | None) -> list[Alarm]:
    """Too few regenerations for errors from tours, and for adaptation at them."""
    if tours is None or len(tours) >= FEWEST:
        return []
    return [
        Alarm(
            "few regenerations",
            float(len(tours)),
            f"the number of complete tours is {len(tours)}, below the {FEWEST} that an estimate by tours needs",
            "Draws stay exact, and in high dimension this is usual. Prefer adapt='warmup'",
        )
    ]


def mixing(table: ParameterTable, shape: tuple[int, int]) -> list[Alarm]:
    """R-hat and effective draws by ArviZ, of parameters, log density and mode indicators alike.

    shape: (chains, draws). Fewer than four draws of each chain have no ESS at all, which is not enough either.
    """
    alarms = []
    chains, draws = shape
    least = np.nanmin(table.ess, initial=np.inf)
    if draws < 4:
        alarms.append(
            Alarm(
                "few effective draws",
                float(chains * draws),
                f"{counted(chains, 'chain')} x {counted(draws, 'draw')} are too few to estimate effective draws",
                f"Increase draws=, for {ESS} effective draws or more",
            )
        )
    elif least < ESS:
        name = table.name[int(np.nanargmin(table.ess))]
        alarms.append(
            Alarm(
                "few effective draws",
                float(least),
                f"{name} has {least:.0f} effective draws, fewer than {ESS}",
                f"Increase draws= by a factor of about {np.ceil(ESS / max(least, 1)):.0f}",
            )
        )
    if np.nanmax(table.rhat, initial=-np.inf) > RHAT:
        worst = int(np.nanargmax(table.rhat))
        figure = float(table.rhat[worst])
        said = f"{figure:.3f}, above {RHAT}" if np.isfinite(figure) else "infinite: no chain moves, and they differ"
        alarms.append(
            Alarm(
                "chains disagree",
                figure,
                f"R-hat of {table.name[worst]} is {said}",
                "The chains have not mixed. Increase warmup= and draws=",
            )
        )
    return alarms


def evidence_uncertain(evidence: Evidence, num_draws: int, *, proposes: bool) -> list[Alarm]:
    """An evidence that depends on few draws, or that does not exist.

    num_draws: of all chains. proposes: whether the kernel ends with an independence move from the charts.
    """
    if np.isfinite(evidence.se) and evidence.se <= UNCERTAIN_SE and evidence.overlap >= LEAST_OVERLAP:
        return []
    if not np.isfinite(evidence.log_evidence):
        return [Alarm("no evidence", np.nan, *_why_none(num_draws, proposes))]
    return [
        Alarm(
            "evidence uncertain",
            evidence.se,
            f"the log evidence has standard error {evidence.se:.2g} (overlap of charts and target "
            f"{evidence.overlap:.1g}; {evidence.uncovered:.1%} of the draws lie where the charts do not reach)",
            "The charts do not fit well. Increase warmup= and draws=",
        )
    ]


def _why_none(num_draws: int, proposes: bool) -> tuple[str, str]:
    """Why there is no evidence, and the remedy."""
    if not proposes:
        return (
            "the kernel does not end with an independence move from the charts",
            "Use the default kernel, or add Independence() as its last move",
        )
    if num_draws < 2:
        return "a single draw is too few for an evidence", "Increase draws="
    return (
        "no independence move from the charts came near the target",
        "The charts do not fit the modes. Increase warmup= and draws=",
    )


def evidences_disagree(estimates: Mapping[str, Evidence]) -> list[Alarm]:
    """Two estimates of the log evidence that differ by more than their errors allow."""
    worst, message = 0.0, ""
    for a, b in combinations(estimates.values(), 2):
        gap, error = abs(a.log_evidence - b.log_evidence), float(np.hypot(a.se, b.se))
        if gap > LEAST_EVIDENCE_GAP and error > 0 and gap / error > max(worst, DISAGREE):
            worst = gap / error
            message = (
                f"the log evidence is {a.log_evidence:.3f} ± {a.se:.3f} by {a.method} and {b.log_evidence:.3f} ± "
                f"{b.se:.3f} by {b.method}: {worst:.1f} standard errors apart"
            )
    if not worst:
        return []
    return [Alarm("evidences disagree", worst, message, "Neither is reliable. Increase warmup= and draws=")]


def _some(modes: np.ndarray) -> str:
    shown = ", ".join(map(str, modes[:8]))
    return shown if len(modes) <= 8 else f"{shown} and {len(modes) - 8} more"
