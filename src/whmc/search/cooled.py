"""Cooled: descents from close around the known peaks, for the mode that hides in another.

A narrow mode beside a broad one has a basin too small for any start. But from the broad mode's own peak it is not far:
of draws from the chart of that peak, drawn closer by sqrt(beta), one in some hundreds descends into the narrow mode.
The others are back at the peak after an evaluation or two.
"""

import dataclasses

import numpy as np
from jaxtyping import Array

from whmc.keys import generator
from whmc.modes.library import unwhiten_rows
from whmc.search.descent import DescentResult, KnownModes, descend
from whmc.search.finders import AbstractFinder
from whmc.target.target import Target

NUM_DRAWS = 4096
"""Draws in all, of all peaks alike: in D = 20, one of some six hundred falls into a mode four times narrower."""

COLDEST_BETA = 30.0
"""The beta of a draw is between one and this: then a fifth of the mode's width is left."""


@dataclasses.dataclass(frozen=True)
class Cooled(AbstractFinder):
    """Descents from draws of the known peaks' charts, cooled: theta = mu_k + L_k z / sqrt(beta), log beta uniform."""

    num_starts: int | None = NUM_DRAWS

    def find(self, key: Array, target: Target, num: int, known: KnownModes | None) -> DescentResult:
        rng = generator(key)
        if known is None:
            return DescentResult(np.zeros((0, target.dim)), np.zeros(0, bool), 0)
        beta = COLDEST_BETA ** rng.random((num, 1))
        z = rng.standard_normal((num, target.dim)) / np.sqrt(beta)
        first = int(rng.integers(len(known.peaks)))
        owner = (first + np.arange(num)) % len(known.peaks)
        starts = np.empty_like(z)
        for k in np.unique(owner).tolist():
            mine = owner == k
            starts[mine] = known.peaks[k].location + unwhiten_rows(known.peaks[k].scale, z[mine])
        return dataclasses.replace(descend(target, starts, known.peaks), from_peaks=True)
