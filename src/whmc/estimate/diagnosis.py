"""All checks of a result, in the order in which they are told."""

from typing import TYPE_CHECKING

import numpy as np

from whmc.estimate import alarms, alarms_of_density, moves
from whmc.estimate.alarms import Alarm
from whmc.estimate.parameters import ParameterTable
from whmc.modes.mixture import chart_squares

if TYPE_CHECKING:
    from whmc.result import Result

NUM_DRAWS = 2000
"""Draws whose distance from the charts is looked at."""


def diagnose(result: "Result") -> tuple[Alarm, ...]:
    """What not to trust in a result."""
    (chains, draws), depth = result.label.shape, result.partition.depth
    return (
        *alarms.kernel_inexact(result.exact),
        *alarms_of_density.improper(result.noticed.improper),
        *alarms.weights_disagree(result.weight_estimates, depth),
        *alarms.one_chain_only(result.label, len(result.modes), depth),
        *alarms.jumps_rare(result.label, _more_even_weights(result), depth),
        *(() if result.search is None else alarms.modes_missing(result.search)),
        *alarms.chains_behind(result.num_behind, chains),
        *alarms.stopped_early(draws, result.num_asked),
        *alarms.far_draws(_far_share(result)),
        *alarms.tails_rare(result.logdensity - result.log_mixture, result.log_evidence),
        *alarms.few_tours(result.tours),
        *alarms.mixing(_watched(result), (chains, draws)),
        *alarms.evidence_uncertain(
            result.evidence, result.label.size, proposes=moves.proposes(result.steps, result.roles)
        ),
        *alarms.evidences_disagree(result.evidence_estimates),
        *alarms_of_density.failures(
            result.num_failed,
            result.gradients.warmup + result.gradients.sampling,
            result.failed_at,
            result.noticed.slopeless,
        ),
        *alarms_of_density.gradient_fails(result.noticed.slopeless, result.noticed.slopeless_at),
        *alarms_of_density.at_bound(result.noticed.at_bound),
    )


def _more_even_weights(result: "Result") -> np.ndarray:
    """The weights of the draws or those of the library, whichever are more even.

    Chains that never left one mode would say that it is all there is; the warm-up may know better.
    """
    return min(result.modes.weight, result.library.shares(), key=lambda weight: float(np.sum(weight**2)))


def _watched(result: "Result") -> ParameterTable:
    """What has to mix: every parameter, the log density, and the modes that matter; one at a time, to save memory."""
    weight = result.modes.weight
    table = result.parameters + ParameterTable.of({"the log density": result.logdensity})
    for k in np.flatnonzero((weight > 0.01) & (weight < 0.99)):
        table += ParameterTable.of({f"mode {k}": (result.label == k).astype(float)})
    return table


def _far_share(result: "Result") -> float:
    """Share of draws far outside the nearest chart, beyond what even heavy tails explain."""
    dim = result.target.dim
    some = np.zeros(result.chart.shape, bool)
    some[:, :: max(1, some.size // NUM_DRAWS)] = True
    # unfolded draws are far from the charts, and their images are not
    square = chart_squares(result.library, result.folded(some)).min(axis=0)
    return float(np.mean(square > 4 * (dim + 5 * np.sqrt(2 * dim))))
