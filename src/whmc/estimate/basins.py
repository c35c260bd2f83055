"""What a mode is.

A mode is a set of peaks of the density, as the model writes it, between which neither the density nor the draws show a
valley of `VALLEY` nats. A draw belongs to the mode whose peak an ascent from it reaches. Charts say where to look, and
decide nothing; but what lies apart from the mass around the peak that it leads to, as a broad Gaussian around a narrow
one, is a mode without a peak (`search/parted.py`). With H the highest peak of a component, pass_ab the lowest log
density on the best path from a to b,

    fall = min(h_a, h_b) - pass_ab,    dip = the valley between the draws of a and those of b (`dip.py`),

peaks are taken together from the highest pass down, while min(H_A, H_B) - pass_ab and the dip are below the valley
asked for: the lower component joins the higher.

What follows for weights: `correction.py`.
"""

import dataclasses

import numpy as np

from whmc._shapes import Bool, Float, Int

VALLEY = 1.0
"""Nats. Two kinds of ascent give the basins of two Gaussians shares that differ by .002 at most where the pass is one
nat or more below the lower peak, and by .02 where it is a tenth: from one nat on it does not matter which ascent was
meant."""

NOWHERE = -1
"""The end of an ascent that tells nothing."""


def taken_together(
    height: Float[np.ndarray, " peaks"],
    pair: Int[np.ndarray, "pairs 2"],
    fall: Float[np.ndarray, " pairs"],
    dip: Float[np.ndarray, " pairs"],
    valley: float,
    meant: Bool[np.ndarray, " peaks"],
) -> tuple[Int[np.ndarray, " peaks"], Float[np.ndarray, " peaks"]]:
    """The highest peak of the component of each, and, for these, the largest fall between peaks within.

    meant: what a chart leads to, and peaks that a draw leads to. The others, such as midpoints between ends of
    ascents, belong to their easiest neighbours in any case.
    """
    root, inner = np.arange(len(height)), np.zeros(len(height))
    passes = height[pair].min(axis=1) - fall
    order = np.argsort(-passes, kind="stable").tolist()

    def join(first: int, second: int, fall: float) -> None:
        low, high = sorted((first, second), key=height.__getitem__)
        inner[high] = max(inner[low], inner[high], fall)
        root[root == low] = high

    for n in order:
        first, second = root[pair[n]].tolist()
        between = min(height[first], height[second]) - passes[n]
        if first != second and between < valley and not dip[n] >= valley:
            join(first, second, between)
    if not np.all(meant):
        for n in order:
            first, second = root[pair[n]].tolist()
            if first != second and not (np.any(meant[root == first]) and np.any(meant[root == second])):
                join(first, second, 0.0)
    return root, inner


@dataclasses.dataclass(frozen=True)
class Basins:
    """Peaks, what lies between them, and which of them charts and some draws belong to.

    location, height: of each peak, unconstrained, with the log density there. peaked: False for a mode without a peak
        (a ring, a shell), which the highest of its ascended points stands for.
    pair, fall, dip: of pairs of peaks, as above; dip is NaN where it was not looked at.
    of_chart: the peak of each chart. row, end: draws (chain, draw) that were ascended from, and the peaks they reached.
    stratum: of every `every`-th draw of each chain, two for each mode. num_straight: pairs for which the gradients
        that the run may spend allowed no other path than the straight line.
    """

    location: Float[np.ndarray, "peaks dim"]
    height: Float[np.ndarray, " peaks"]
    peaked: Bool[np.ndarray, " peaks"]
    pair: Int[np.ndarray, "pairs 2"]
    fall: Float[np.ndarray, " pairs"]
    dip: Float[np.ndarray, " pairs"]
    of_chart: Int[np.ndarray, " charts"]
    row: Int[np.ndarray, "n 2"]
    end: Int[np.ndarray, " n"]
    stratum: Int[np.ndarray, "chains some"]
    every: int
    num_straight: int = 0

    @property
    def passes(self) -> Float[np.ndarray, " pairs"]:
        """Log density of the pass of each pair."""
        return self.height[self.pair].min(axis=1) - self.fall

    def partition(self, valley: float = VALLEY) -> "Partition":
        """The modes for valleys of so many nats. Where an ascent from a draw ended without a peak, as on a shell in ten
        dimensions, it says which mode that draw belongs to, and not that there is another."""
        number = np.arange(len(self.height))
        meant = np.isin(number, self.of_chart) | (np.isin(number, self.end) & self.peaked)
        return self._numbered(*taken_together(self.height, self.pair, self.fall, self.dip, valley, meant))

    def _numbered(self, root: Int[np.ndarray, " peaks"], inner: Float[np.ndarray, " peaks"]) -> "Partition":
        """Modes in the order of their first charts; those that only draws have reached come last."""
        order = dict.fromkeys(root[np.append(self.of_chart, np.arange(len(root)))].tolist())
        highest = np.array(list(order), int)
        number = np.empty(len(root), int)
        number[highest] = np.arange(len(highest))
        of_peak = number[root]
        fall, depth = self._between(of_peak, self.height[highest])
        peaks = np.bincount(of_peak[self.peaked], minlength=len(highest))
        return Partition(of_peak, of_peak[self.of_chart], highest, peaks, inner[highest], fall, depth)

    def _between(
        self, of_peak: Int[np.ndarray, " peaks"], top: Float[np.ndarray, " modes"]
    ) -> tuple[Float[np.ndarray, "modes modes"], Float[np.ndarray, "modes modes"]]:
        """The least fall, and the least valley, of every two modes that were compared."""
        found = np.full((2, len(top), len(top)), np.inf)
        first, second = of_peak[self.pair.reshape(-1, 2)].T
        apart = first != second
        first, second = first[apart], second[apart]
        fall = np.minimum(top[first], top[second]) - self.passes[apart]
        for n, value in enumerate((fall, np.fmax(fall, self.dip[apart]))):
            np.minimum.at(found[n], (first, second), value)
            np.minimum.at(found[n], (second, first), value)
        return found[0], found[1]


@dataclasses.dataclass(frozen=True)
class Partition:
    """Modes: which peaks and which charts belong to each.

    highest: the highest peak of each mode. peaks: how many it has; none where it has no peak. inner: the largest fall
    between two of them. fall, depth: between every two modes the fall of the density, and the valley, which is the
    larger of this and the dip of the draws; infinite where the two are no neighbours.
    """

    of_peak: Int[np.ndarray, " nodes"]
    of_chart: Int[np.ndarray, " charts"]
    highest: Int[np.ndarray, " known"]
    peaks: Int[np.ndarray, " modes"]
    inner: Float[np.ndarray, " modes"]
    fall: Float[np.ndarray, "modes modes"]
    depth: Float[np.ndarray, "modes modes"]

    @classmethod
    def of_charts(cls, mode: Int[np.ndarray, " charts"]) -> "Partition":
        """By charts alone, where no ascents were made."""
        num = int(mode.max(initial=-1)) + 1
        nothing, far = np.zeros(0, int), np.full((num, num), np.inf)
        return cls(nothing, mode, nothing, np.zeros(num, int), np.zeros(num), far, far)

    @property
    def num_modes(self) -> int:
        return len(self.depth)
