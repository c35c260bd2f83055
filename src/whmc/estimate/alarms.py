"""Alarms: what in a result is not to be trusted, by how much, and what to do about it."""

import dataclasses
from collections.abc import Mapping

import numpy as np
from jaxtyping import Float, Int

from whmc.estimate.evidence import Evidence
from whmc.estimate.parameters import ParameterTable
from whmc.estimate.tours import FEWEST, Tours
from whmc.estimate.weights import Weights

DISAGREE = 4.5
"""Standard errors between two estimates: over some hundred comparisons chance reaches this once in a thousand runs."""

RHAT = 1.02
ESS = 400
"""Both as ArviZ's authors recommend, for bulk estimates over several chains (Vehtari et al. 2021)."""

UNSEEN = 0.05
"""Chance of a new mode at the next start above which the search has not come to an end."""


@dataclasses.dataclass(frozen=True)
class Alarm:
    """`name` says what is wrong, `figure` how much, `remedy` what to do."""

    name: str
    figure: float
    message: str
    remedy: str

    def __str__(self) -> str:
        return f"{self.name}: {self.message}. {self.remedy}"


def weights_disagree(estimates: Mapping[str, Weights]) -> list[Alarm]:
    """Two estimates of one weight that differ by more than their errors allow."""
    worst, pair, mode = 0.0, ("", ""), 0
    names = list(estimates)
    for n, first in enumerate(names):
        for second in names[n + 1 :]:
            a, b = estimates[first], estimates[second]
            error = np.hypot(a.se, b.se)
            gap = np.abs(a.weight - b.weight)
            # where both errors are nil (one mode, or one draw of difference) there is nothing to compare
            usable = np.isfinite(gap) & (error > 0) & (gap > 2e-3)
            score = np.where(usable, gap / np.where(usable, error, 1.0), 0.0)
            if score.max(initial=0.0) > worst:
                worst, pair, mode = float(score.max()), (first, second), int(score.argmax())
    if worst <= DISAGREE:
        return []
    return [
        Alarm(
            "weights disagree",
            worst,
            f"mode {mode} weighs {estimates[pair[0]].weight[mode]:.3g} by {pair[0]} and "
            f"{estimates[pair[1]].weight[mode]:.3g} by {pair[1]}, {worst:.1f} standard errors apart",
            "Run longer: draws=, and warmup= so that charts and steps are learned better",
        )
    ]


def one_chain_only(label: Int[np.ndarray, "chains draws"], size: int) -> list[Alarm]:
    """Modes with more than a few draws, all of them in one chain. One that weighs nothing is seen once, by someone."""
    visits = np.stack([np.bincount(row, minlength=size) for row in label])
    total = visits.sum(axis=0)
    lonely = (total >= 10) & (total >= 1e-3 * label.size) & ((visits > 0).sum(axis=0) == 1)
    if len(label) == 1 or not lonely.any():
        return []
    modes = np.flatnonzero(lonely)
    return [
        Alarm(
            "one chain only",
            float(len(modes)),
            f"mode{'s' if len(modes) > 1 else ''} {_some(modes)} seen by one of {len(label)} chains only",
            "Its weight is not known: run longer, or give a better chart for it",
        )
    ]


def jumps_rare(label: Int[np.ndarray, "chains draws"], weight: Float[np.ndarray, " size"]) -> list[Alarm]:
    """Chains that hardly ever change the mode, compared with independent draws."""
    diversity = 1 - float(np.sum(weight**2))
    if len(weight) < 2 or label.shape[1] < 2 or (diversity < 1e-3 and len(np.unique(label)) == 1):
        return []
    changes = float(np.mean(label[:, 1:] != label[:, :-1]))
    if changes >= 0.01 * diversity:
        return []
    return [
        Alarm(
            "jumps rare",
            changes,
            f"the mode changes in {changes:.2g} of the steps, independent draws would in {diversity:.2g}",
            "Charts do not fit: raise warmup=, or look for a parametrisation with rounder modes",
        )
    ]


def modes_missing(unseen_chance: float, num_starts: int, num_capped: int, size: int) -> list[Alarm]:
    """A search that was still finding new modes, or more than the library takes."""
    alarms = []
    if num_capped:
        alarms.append(
            Alarm(
                "library capped",
                float(num_capped),
                f"{num_capped} modes were found beyond the {size} charts of the library and left out; weights are "
                "shares among the modes kept, and the log evidence counts these only",
                "Raise max_modes=, or declare what makes the modes many (symmetries, independent blocks)",
            )
        )
    if unseen_chance > UNSEEN:
        alarms.append(
            Alarm(
                "modes may be missing",
                unseen_chance,
                f"one more start would find a new mode with chance {unseen_chance:.2g} "
                f"(Good-Turing, {num_starts} starts)",
                "Search longer: finder=(MultiStart(10_000), Tempered()), or adapt='regeneration'",
            )
        )
    return alarms


def chains_behind(num_behind: int, chains: int) -> list[Alarm]:
    """Chains that never took a mode that was found while they ran."""
    if not num_behind:
        return []
    return [
        Alarm(
            "modes found too late",
            float(num_behind),
            f"{num_behind} of {chains} chains did not regenerate after a new mode was found, and never jumped to it",
            "Their draws are exact only for the modes they knew: run again with modes=result.library",
        )
    ]


def stopped_early(num: int, asked: int) -> list[Alarm]:
    """Fewer draws than were asked for."""
    if num >= asked:
        return []
    remedy = "If it has a store, whmc.resume() makes the rest"
    return [Alarm("stopped early", num / asked, f"{num} of {asked} draws of each chain were made", remedy)]


def far_draws(share: float) -> list[Alarm]:
    """Draws where no chart is: a mode, or a part of one, that the library does not know."""
    if share <= 0.01:
        return []
    return [
        Alarm(
            "draws far from every chart",
            share,
            f"{share:.1%} of the draws lie far outside every chart",
            "There is mass that the charts do not describe: raise warmup=, or search again with finder=Tempered()",
        )
    ]


def few_tours(tours: Tours | None) -> list[Alarm]:
    """Too few regenerations for errors from tours, and for adaptation at them."""
    if tours is None or len(tours) >= FEWEST:
        return []
    return [
        Alarm(
            "few regenerations",
            float(len(tours)),
            f"{len(tours)} complete tours: no estimate by tours, and hardly a chance to adapt at regenerations",
            "Draws stay exact. In high dimension this is usual; use adapt='warmup'",
        )
    ]


def mixing(table: ParameterTable) -> list[Alarm]:
    """R-hat and effective draws by ArviZ, of parameters, log density and mode indicators alike."""
    alarms = []
    if np.nanmin(table.ess, initial=np.inf) < ESS:
        worst = int(np.nanargmin(table.ess))
        ess = table.ess[worst]
        alarms.append(
            Alarm(
                "few effective draws",
                float(ess),
                f"{table.name[worst]} has {ess:.0f} effective draws",
                f"Run longer, by a factor of {np.ceil(ESS / max(ess, 1)):.0f} or so: draws=",
            )
        )
    if np.nanmax(table.rhat, initial=-np.inf) > RHAT:
        worst = int(np.nanargmax(table.rhat))
        alarms.append(
            Alarm(
                "chains disagree",
                float(table.rhat[worst]),
                f"R-hat of {table.name[worst]} is {table.rhat[worst]:.3f}",
                "Chains have not mixed: raise warmup= and draws=",
            )
        )
    return alarms


def evidence_uncertain(evidence: Evidence) -> list[Alarm]:
    """An evidence that hangs on few draws, or is not there."""
    if np.isfinite(evidence.se) and evidence.se <= 0.1 and evidence.overlap >= 1e-3:
        return []
    if not np.isfinite(evidence.log_evidence):
        return [
            Alarm(
                "no evidence",
                np.nan,
                "the kernel makes no independence moves, or none came near the target",
                "Use the default kernel, or add Independence() as its last move",
            )
        ]
    return [
        Alarm(
            "evidence uncertain",
            evidence.se,
            f"the log evidence has standard error {evidence.se:.2g} (overlap of charts and target "
            f"{evidence.overlap:.1g})",
            "Charts do not fit well: raise warmup= and draws=",
        )
    ]


def failures(num_failed: int, num_gradients: int) -> list[Alarm]:
    """Evaluations that gave NaN, +inf or a gradient that is not finite."""
    if num_failed <= 0.01 * num_gradients:
        return []
    return [
        Alarm(
            "evaluations failed",
            num_failed / max(num_gradients, 1),
            f"{num_failed} of {num_gradients} evaluations gave NaN, +inf or a bad gradient",
            "They were rejected; find where with print(target.check()), and return -inf outside the support",
        )
    ]


def _some(modes: np.ndarray) -> str:
    shown = ", ".join(map(str, modes[:8]))
    return shown if len(modes) <= 8 else f"{shown} and {len(modes) - 8} more"
