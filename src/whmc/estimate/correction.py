"""What ascents from draws say of the modes' weights.

Weights come from charts, which are known well, and a correction by ascents from a sample of the draws. Strata s are the
mode of the chart that covers a draw best, and whether it covers the draw alone; omega_s is their share of the draws:

    W_k   = W_k(charts) + sum_s omega_s d_ks,
    d_ks  = mean over the ascents i from s of 1[i ends in k] - 1[chart of i in k],
    se_k² = se_k(charts)² + se(mean over draws of d_ks)² + max(sum_s omega_s² v_ks/n_s, V_k),

v_ks the variance of what d_ks is the mean of. V_k is the variance of the same sum from its spread over chains, as draws
of one chain may end alike: with e_ik what ascent i differs from its d_ks by, and C chains,

    V_k = C/(C - 1) sum_c (sum over the ascents i of chain c of omega_s e_ik / n_s)².
"""

import dataclasses

import numpy as np

from whmc._shapes import Bool, Float, Int
from whmc.estimate.basins import NOWHERE, Basins, Partition
from whmc.estimate.weights import Weights, standard_error


@dataclasses.dataclass(frozen=True)
class Correction:
    """What ascents add to the weights that charts give, with the error of it.

    of_draws: the error by which draws there are. of_ascents: that by which of them were ascended from, as if they were
    independent, and `of_chains` by the spread over chains, which is larger where draws of a chain end alike.
    doubt: omega_s times the standard deviation of one ascent, which is where more of them help.
    """

    weight: Float[np.ndarray, " modes"]
    of_draws: Float[np.ndarray, " modes"]
    of_ascents: Float[np.ndarray, " modes"]
    of_chains: Float[np.ndarray, " modes"]
    doubt: Float[np.ndarray, "strata modes"]

    @property
    def se(self) -> Float[np.ndarray, " modes"]:
        return np.hypot(self.of_draws, np.maximum(self.of_ascents, self.of_chains))


def correction(
    basins: Basins, partition: Partition, chart: Int[np.ndarray, "chains draws"], weight: Float[np.ndarray, " modes"]
) -> Correction:
    """The sum over strata of omega_s d_ks with its error. weight: of the modes by charts."""
    size, num_strata = partition.num_modes, int(basins.stratum.max(initial=0)) + 1
    useful = basins.end != NOWHERE
    row, end = basins.row[useful], partition.of_peak[basins.end[useful]]
    own = partition.of_chart[chart[row[:, 0], row[:, 1]]]
    stratum = basins.stratum[row[:, 0], row[:, 1] // basins.every]
    num = np.maximum(np.bincount(stratum, minlength=num_strata), 1)
    share = np.bincount(basins.stratum.ravel(), minlength=num_strata) / basins.stratum.size

    changed = np.zeros((len(row), size))
    changed[np.arange(len(row)), end] += 1.0
    changed[np.arange(len(row)), own] -= 1.0
    difference = _sums(changed, stratum, num_strata) / num[:, None]
    variance = np.maximum(_sums(changed**2, stratum, num_strata) / num[:, None] - difference**2, 0.0)
    floor = np.where(_doubtful(basins, partition, chart, stratum, end, num_strata), 0.5 / num[:, None], 0.0)
    variance = np.maximum(variance, floor * (1 - floor))

    residual = (share / num)[stratum, None] * (changed - difference[stratum])
    by_chain = _sums(residual, *_clusters(row, chart.shape))
    chains = len(by_chain) / max(len(by_chain) - 1, 1)
    return Correction(
        weight=np.maximum(share @ difference, -weight),
        of_draws=_error_of_mean(basins.stratum, difference),
        of_ascents=np.sqrt(np.sum(share[:, None] ** 2 * variance / num[:, None], axis=0)),
        of_chains=np.sqrt(chains * np.sum(by_chain**2, axis=0)),
        doubt=share[:, None] * np.sqrt(variance),
    )


def _sums(
    value: Float[np.ndarray, "n modes"], group: Int[np.ndarray, " n"], num: int
) -> Float[np.ndarray, "groups modes"]:
    """Of the rows of each group."""
    found = np.zeros((num, value.shape[1]))
    np.add.at(found, group, value)
    return found


def _doubtful(
    basins: Basins,
    partition: Partition,
    chart: Int[np.ndarray, "chains draws"],
    stratum: Int[np.ndarray, " n"],
    end: Int[np.ndarray, " n"],
    num_strata: int,
) -> Bool[np.ndarray, "strata modes"]:
    """In which strata a mode may be the end of a draw, though no ascent has shown it: there half a draw more is
    supposed to end elsewhere. Not where charts cover alone, nor where there is one mode."""
    touched = np.zeros((num_strata, partition.num_modes), bool)
    touched[basins.stratum, partition.of_chart[chart[:, :: basins.every]]] = touched[stratum, end] = True
    alone = (np.arange(num_strata) % 2 == 0) & (touched.sum(axis=1) < 2)
    return touched & ~alone[:, None] & (partition.num_modes > 1)


FEWEST_CHAINS = 4
"""From so many chains on, their spread is told chain by chain; of fewer, by `PARTS` of each."""

PARTS = 8


def _clusters(row: Int[np.ndarray, "n 2"], shape: tuple[int, ...]) -> tuple[Int[np.ndarray, " n"], int]:
    """The chain of each ascent, or the part of its chain; and how many there are."""
    parts = 1 if shape[0] >= FEWEST_CHAINS else PARTS
    return row[:, 0] * parts + row[:, 1] * parts // shape[1], shape[0] * parts


MOST_NUMBERS = 4_000_000
"""Of the values of some modes at all draws, which are looked at together."""


def _error_of_mean(
    stratum: Int[np.ndarray, "chains some"], value: Float[np.ndarray, "strata modes"]
) -> Float[np.ndarray, " modes"]:
    """The standard error of the mean over draws of a value that each stratum has, by chains and their batches."""
    error = np.zeros(value.shape[1])
    some = np.flatnonzero(np.any(value != 0, axis=0))
    at_once = max(1, MOST_NUMBERS // stratum.size)
    for first in range(0, len(some), at_once):
        mine = some[first : first + at_once]
        error[mine] = standard_error(value[:, mine][stratum])
    return np.nan_to_num(error)


def corrected(weights: Weights, found: Correction) -> Weights:
    """Weights by charts with what ascents add."""
    weight = np.maximum(weights.weight + found.weight, 0.0)
    return Weights(weight / weight.sum(), np.hypot(weights.se, found.se))
