"""Cooled: descents from close around the known peaks, for the mode that hides in another.

A narrow mode beside a broad one has a basin too small for any start. But from the broad mode's own peak it is not far:
of draws from the chart of that peak, drawn closer by sqrt(beta), one in some hundreds descends into the narrow mode.

Where the narrow mode draws descents to itself, it adds to the density. So only draws are followed that have more
density than the chart of their peak says, log pi(mu) - |z|²/2; in a bent mode, which would lead most of them a long way
back, few have. Of those that are followed most are back at the peak after an evaluation or two.
"""

import dataclasses
from typing import ClassVar

import numpy as np

from whmc._shapes import Array
from whmc.keys import generator
from whmc.search.descent import DescentResult, KnownModes, descend, widths
from whmc.search.finders import AbstractFinder
from whmc.target.rows import logdensities
from whmc.target.target import Target

NUM_DRAWS = 4096
"""Draws in all, of all peaks alike: in D = 20, one of some six hundred falls into a mode four times narrower."""

LEAST_EXCESS = 0.05
"""What a hidden mode adds to the log density at least, where it is followed: a twentieth of the mode that it is in."""

COLDEST_BETA = 30.0
"""The beta of a draw is between one and this: then a fifth of the mode's width is left."""


@dataclasses.dataclass(frozen=True)
class Cooled(AbstractFinder):
    """Descents from draws of the known peaks' charts, cooled: theta = mu_k + L_k z / sqrt(beta), log beta uniform."""

    unit: ClassVar[str] = "draws around known peaks"
    num_starts: int | None = NUM_DRAWS

    def find(self, key: Array, target: Target, num: int, known: KnownModes | None) -> DescentResult:
        rng = generator(key)
        if known is None:
            return DescentResult(np.zeros((0, target.dim)), np.zeros(0, bool), 0)
        beta = COLDEST_BETA ** rng.random((num, 1))
        z = rng.standard_normal((num, target.dim)) / np.sqrt(beta)
        first = int(rng.integers(len(known.peaks)))
        owner = (first + np.arange(num)) % len(known.peaks)
        starts, expected = np.empty_like(z), np.full(num, -np.inf)
        for k in np.unique(owner).tolist():
            mine, peak = owner == k, known.peaks[k]
            starts[mine] = peak.unwhiten(z[mine])
            if peak.at_peak:
                expected[mine] = peak.logdensity - 0.5 * np.sum(z[mine] ** 2, axis=1)
        followed = starts[logdensities(target, starts) > expected + LEAST_EXCESS]
        if len(followed) == 0:
            return DescentResult(followed, np.zeros(0, bool), num, from_peaks=True)
        ends = descend(target, followed, known.peaks, region=widths(starts))
        return dataclasses.replace(ends, num_gradients=ends.num_gradients + num, from_peaks=True)
