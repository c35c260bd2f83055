"""Which mode each end of a descent belongs to: a known one, a new one, or none."""

import dataclasses
from collections import Counter
from collections.abc import Sequence

import numpy as np

from whmc._shapes import Bool, Float, Int
from whmc.search.descent import DescentResult
from whmc.search.peak import Peak
from whmc.search.polish import polish
from whmc.target.rows import logdensities
from whmc.target.target import Target

MANY = 1 << 31
"""More ends than there ever are."""

NOBODY = -1
"""The owner of an end that belongs to no peak."""


@dataclasses.dataclass(frozen=True)
class Settled:
    """What became of the ends of some descents.

    owner: the number of the peak that each end belongs to, or `NOBODY`. peaks: those known before, then new ones.
    flat: points of modes with flat directions, and `on_flat`: the ends that led there. dropped: ends that are not
    modes, by reason. num_unpolished: ends that could not be polished, or only to flat ones. num_gradients: spent on
    finding out.
    """

    owner: Int[np.ndarray, " n"]
    peaks: tuple[Peak, ...]
    flat: Float[np.ndarray, "f dim"]
    on_flat: Bool[np.ndarray, " n"]
    dropped: dict[str, int]
    num_gradients: int
    num_unpolished: int = 0


class KnownPeaks:
    """Peaks, and arrays of where they are: of thousands only those near a position have to be looked at."""

    def __init__(self, peaks: Sequence[Peak], dim: int) -> None:
        self.peaks = list(peaks)
        self.locations = np.array([peak.location for peak in peaks]).reshape(-1, dim)
        self.radius = np.array([peak.radius for peak in peaks])

    def add(self, peak: Peak) -> None:
        self.peaks.append(peak)
        self.locations = np.concatenate([self.locations, peak.location[None]])
        self.radius = np.append(self.radius, peak.radius)

    def owners(self, positions: Float[np.ndarray, "n dim"]) -> Int[np.ndarray, " n"]:
        """The first peak within whose reach each position lies, or `NOBODY`."""
        owner = np.full(len(positions), NOBODY)
        near = self._near(positions)
        for number in np.flatnonzero(near.any(axis=0)).tolist():
            peak, free = self.peaks[number], np.flatnonzero(near[:, number] & (owner == NOBODY))
            owner[free[peak.distance(positions[free]) < peak.reach]] = number
        return owner

    def _near(self, positions: Float[np.ndarray, "n dim"]) -> Bool[np.ndarray, "n peaks"]:
        """Which positions may be within the reach of which peaks."""
        sizes = np.sum(positions**2, axis=1)[:, None] + np.sum(self.locations**2, axis=1)
        rounding = 1e-9 * sizes
        return sizes - 2 * positions @ self.locations.T <= self.radius**2 + rounding


def settle(
    target: Target, descents: DescentResult, peaks: Sequence[Peak], widest: float, patience: int = MANY
) -> Settled:
    """Ends near a known peak are that mode; of the others the highest is polished first.

    Then a chart stands for the best point of its mode. patience: after so many ends that are no peak no other is tried.
    """
    known, flat, dropped, failed = KnownPeaks(peaks, target.dim), [], Counter[str](), 0
    rows = np.flatnonzero(descents.usable)
    owner = np.full(len(descents.position), NOBODY)
    if descents.arrived is not None:
        owner[rows] = descents.arrived[rows]
    free = rows[owner[rows] == NOBODY]
    owner[free] = known.owners(descents.position[free])
    on_flat = np.zeros(len(owner), bool)
    new = rows[owner[rows] == NOBODY]
    heights, cost = logdensities(target, descents.position[new]), len(new)
    for n in new[np.argsort(-heights, kind="stable")]:
        if owner[n] != NOBODY:
            continue
        if failed >= patience:
            break
        width = None if descents.width is None else descents.width[n]
        found, spent = polish(target, descents.position[n], widest=widest, width=width)
        cost += spent
        if isinstance(found, str):
            dropped[found] += 1
            failed += 1
        elif found.num_flat:
            flat.append(found.location)
            failed += 1
            on_flat[n] = True
        else:
            owner[n] = known.owners(found.location[None])[0]
            if owner[n] == NOBODY:
                owner[n] = len(known.peaks)
                known.add(found)
                free = rows[owner[rows] == NOBODY]
                owner[free[found.distance(descents.position[free]) < found.reach]] = owner[n]
    lost = ~descents.usable if descents.covered is None else ~descents.usable & ~descents.covered
    dropped["unusable"] = int(lost.sum())
    return Settled(
        owner,
        tuple(known.peaks),
        np.array(flat).reshape(-1, target.dim),
        on_flat,
        {why: num for why, num in dropped.items() if num},
        cost,
        failed,
    )
