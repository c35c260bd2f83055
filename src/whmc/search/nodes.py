"""Where ascents end: nodes, which are peaks, or ends without a peak; and what lies between them.

Ends are polished; ends within a tenth of a standard deviation of a peak, or of an image of it under a symmetry, are
that peak. What cannot be polished, as on a ring, a shell or the neck of a funnel, is a node of its own.
"""

import dataclasses
from collections.abc import Sequence

import numpy as np

from whmc._shapes import Bool, Float, Int
from whmc.estimate.basins import NOWHERE, VALLEY, taken_together
from whmc.estimate.dip import FAR, dips
from whmc.estimate.labels import nearest_of, squares_between
from whmc.search.assign import NOBODY, KnownPeaks, settle
from whmc.search.descent import descend
from whmc.search.passes import FINE, POINTS, ROUNDS, mean_precision, nearest, straight, strings
from whmc.search.peak import Peak
from whmc.target.folding import FoldedTarget
from whmc.target.rows import logdensities
from whmc.target.target import Target

MOST_EVALUATIONS = 150
"""Of one ascent: nine to eleven do in simple cases, ninety on the sensor network; a funnel never ends."""

PATIENCE = 8
"""Ends that could not be polished, after which no other is tried: then the modes have no peaks."""

NEIGHBOURS = 4
EASIEST = 2
"""Of each peak so many neighbours are looked at along straight lines, and of these so many by strings."""

IMAGES = 2
"""Of a neighbour, where there are symmetries."""

CHORDS = 6
LINK_ROUNDS = 12
"""Chords of each end without a peak, and how often those that are still apart are looked at."""

MOST_MIDPOINTS = 32
"""That are ascended in a round."""

CHORD = np.arange(1, 6) / 6
"""Where a chord is looked at."""


class Nodes:
    """Where ascents have ended: nodes, which are peaks, or ends without a peak."""

    def __init__(self, target: Target, region: Float[np.ndarray, " dim"], widest: float, peaks: Sequence[Peak]) -> None:
        self.folded = target if isinstance(target, FoldedTarget) else None
        self.target = target if self.folded is None else self.folded.whole
        self.region, self.widest = region, widest
        self.peaks: list[Peak] = list(peaks)
        self.node_of_peak = np.full(len(self.peaks), NOWHERE)
        self.peak_of_node: list[int] = []
        self.below = np.zeros(0, int)
        self.dips: dict[tuple[int, int], float] = {}
        self.location, self.height = np.zeros((0, target.dim)), np.zeros(0)
        self.num_failed = 0
        self.falls: dict[tuple[int, int], float] = {}
        self.num_straight = 0

    @property
    def size(self) -> int:
        return len(self.height)

    @property
    def all(self) -> tuple[Float[np.ndarray, "nodes dim"], Float[np.ndarray, " nodes"], Bool[np.ndarray, " nodes"]]:
        """Where they are, their log densities, and whether they are peaks."""
        return self.location, self.height, np.array(self.peak_of_node, int) != NOBODY

    def climb(self, starts: Float[np.ndarray, "n dim"], *, must: bool = False) -> Int[np.ndarray, " n"]:
        """The nodes that ascents reach; NOWHERE where there is no density. must: then a node at the start."""
        if not len(starts):
            return np.zeros(0, int)
        ends = descend(self.target, starts, self.peaks, region=self.region, most=MOST_EVALUATIONS)
        if self.folded is not None:
            ends = dataclasses.replace(ends, position=self.folded.home(ends.position), width=None)
        settled = settle(self.target, ends, self.peaks, self.widest, patience=PATIENCE - self.num_failed)
        self.num_failed += settled.num_unpolished
        new = len(settled.peaks) - len(self.peaks)
        self.peaks = list(settled.peaks)
        self.node_of_peak = np.append(self.node_of_peak, np.full(new, NOWHERE))
        node = np.full(len(starts), NOWHERE)
        reached = settled.owner != NOBODY
        for number in np.unique(settled.owner[reached]).tolist():
            if self.node_of_peak[number] == NOWHERE:
                self.node_of_peak[number] = self._node_of(number)
        node[reached] = self.node_of_peak[settled.owner[reached]]
        loose = ~reached & (ends.usable | must)
        if np.any(loose):
            place = np.where(ends.usable[:, None], ends.position, starts)[loose]
            node[loose] = self._add(place, logdensities(self.target, place), NOBODY)
        return node

    def _node_of(self, number: int) -> int:
        """The node of a new peak: that of a peak which it is an image of, or one of its own."""
        peak = self.peaks[number]
        seen = np.flatnonzero(self.node_of_peak != NOWHERE)
        if self.folded is not None and len(seen):
            known = KnownPeaks([self.peaks[n] for n in seen.tolist()], self.target.dim)
            owner = known.owners(self.folded.images(peak.location))
            if np.any(owner != NOBODY):
                return int(self.node_of_peak[seen[owner[owner != NOBODY][0]]])
        return int(self._add(peak.location[None], np.array([peak.logdensity]), number)[0])

    def _add(
        self, location: Float[np.ndarray, "n dim"], height: Float[np.ndarray, " n"], peak: int
    ) -> Int[np.ndarray, " n"]:
        first = self.size
        self.location, self.height = np.concatenate([self.location, location]), np.append(self.height, height)
        self.peak_of_node += [peak] * len(height)
        self.below = np.append(self.below, np.full(len(height), NOWHERE))
        return np.arange(first, self.size)

    def part(self, location: Float[np.ndarray, " dim"], height: float, peak: int, dip: float) -> int:
        """A node whose mass lies apart from that of a peak, though ascents from it reach this: no fall, but a dip."""
        node = int(self._add(location[None], np.array([height]), NOBODY)[0])
        self.below[node] = peak
        self.falls[peak, node], self.dips[peak, node] = 0.0, dip
        return node

    def seen_from(self, own: Int[np.ndarray, " n"], end: Int[np.ndarray, " n"]) -> Int[np.ndarray, " n"]:
        """The nodes of positions whose charts have the nodes `own`, and from which ascents reach the nodes `end`."""
        return np.where((self.below[own] == end) & (own != NOWHERE) & (end != NOWHERE), own, end)

    def compared(
        self,
        draws: Float[np.ndarray, "n dim"],
        seen: Float[np.ndarray, "m dim"],
        end: Int[np.ndarray, " m"],
        most: float,
    ) -> tuple[Int[np.ndarray, "pairs 2"], Float[np.ndarray, " pairs"], Float[np.ndarray, " pairs"]]:
        """Pairs of nodes with the fall and the dip between them.

        seen: positions, and the nodes that they lead to. most: gradients that strings may take.
        """
        self._link()
        pair = self._neighbours(np.flatnonzero(self.all[2]))
        dip = self._dips(pair, draws, seen, end) if len(pair) else np.zeros(0)
        self._cross(pair, dip, most)
        dip_of = self.dips | dict(zip(map(tuple, pair.tolist()), dip.tolist(), strict=True))
        pairs = sorted(self.falls)
        return (
            np.array(pairs, int).reshape(-1, 2),
            np.array([self.falls[one] for one in pairs]),
            np.array([dip_of.get(one, np.nan) for one in pairs]),
        )

    def _scaled(self, position: Float[np.ndarray, "n dim"]) -> Float[np.ndarray, "n dim"]:
        return position / self.region

    def _neighbours(self, peaked: Int[np.ndarray, " peaks"]) -> Int[np.ndarray, "pairs 2"]:
        """Each peak with those nearest to it; every pair once."""
        if len(peaked) < 2:
            return np.zeros((0, 2), int)
        place = self._scaled(self.location[peaked])
        if self.folded is None:
            apart = squares_between(place, place)
        else:
            folded = self.folded
            images = [self._scaled(folded.images(one)) for one in self.location[peaked]]
            apart = np.stack([squares_between(place, some).min(axis=1) for some in images], axis=1)
        np.fill_diagonal(apart, np.inf)
        return peaked[nearest(apart, NEIGHBOURS)]

    def _dips(
        self,
        pair: Int[np.ndarray, "pairs 2"],
        draws: Float[np.ndarray, "n dim"],
        seen: Float[np.ndarray, "m dim"],
        end: Int[np.ndarray, " m"],
    ) -> Float[np.ndarray, " pairs"]:
        """A draw belongs to the node of the nearest position that was ascended from."""
        known = end != NOWHERE
        seen, end = self._scaled(seen[known]), end[known]
        rows = self._scaled(draws)
        group = end[nearest_of(rows, seen)]
        position, labelled = np.concatenate([rows, seen]), np.arange(len(rows) + len(seen)) >= len(rows)
        return dips(position, np.append(group, end), labelled, self._scaled(self.location), pair)

    def _cross(self, pair: Int[np.ndarray, "pairs 2"], dip: Float[np.ndarray, " pairs"], most: float) -> None:
        """The falls between peaks that are not known yet."""
        new = np.array([tuple(one) not in self.falls for one in pair.tolist()], bool)
        pair, dip = pair[new], dip[new]
        if not len(pair):
            return
        which, second = self._ends_of(pair)
        first = self.location[pair[which, 0]]
        lower = self.height[pair].min(axis=1)[which]
        fall = straight(self.target, first, second, lower)
        parted = (dip >= FAR)[which]
        near = np.flatnonzero(~((fall >= FAR) & parted))
        fall[near] = np.maximum(fall[near], straight(self.target, first[near], second[near], lower[near], FINE))
        best = np.full(len(pair), np.inf)
        np.minimum.at(best, which, fall)
        hard = [n for n in _easiest(pair, best) if best[n] >= VALLEY and not dip[n] >= FAR]
        room = int(min(max(most, 0) / (ROUNDS * POINTS), len(hard)))
        self.num_straight += len(hard) - room
        hard = hard[:room]
        if hard:
            route = np.array([np.flatnonzero(which == n)[np.argmin(fall[which == n])] for n in hard])
            ends = [[self.peaks[self.peak_of_node[node]] for node in pair[n]] for n in hard]
            # the shape of an image is not known: the first peak's stands for both
            shapes = [
                (a, b if np.array_equal(place, b.location) else a)
                for (a, b), place in zip(ends, second[route], strict=True)
            ]
            precision = np.stack([mean_precision(*two) for two in shapes])
            best[hard] = np.minimum(
                best[hard], strings(self.target, first[route], second[route], lower[route], precision, VALLEY)
            )
        self.falls.update(zip(map(tuple, pair.tolist()), best.tolist(), strict=True))

    def _ends_of(self, pair: Int[np.ndarray, "pairs 2"]) -> tuple[Int[np.ndarray, " n"], Float[np.ndarray, "n dim"]]:
        """The second place of each pair, and where there are symmetries its nearest images: number of pair, place."""
        if self.folded is None:
            return np.arange(len(pair)), self.location[pair[:, 1]]
        which, place = [], []
        for number, (a, b) in enumerate(pair.tolist()):
            images = self.folded.images(self.location[b])
            order = np.argsort(
                squares_between(self._scaled(self.location[[a]]), self._scaled(images))[0], kind="stable"
            )
            place.append(images[order[:IMAGES]])
            which += [number] * len(place[-1])
        return np.array(which), np.concatenate(place)

    def _link(self) -> None:
        """Falls on chords from ends without a peak to their neighbours, and from the highest of what is still apart to
        what is higher; then midpoints of these are ascended."""
        loose = self._loose()
        if not len(loose):
            return
        place = self._scaled(self.location)
        self._chords([(a, b) for a in loose.tolist() for b in self._nearest(a, np.ones(self.size, bool), place)])
        for _ in range(LINK_ROUNDS):
            root, tops = self._tops()
            place, size = self._scaled(self.location), self.size
            steps = [(a, b) for a in tops for b in self._nearest(a, self._higher(a, root), place)]
            self._chords(steps)
            if len(tops) == 0 or len(self._tops()[1]) < len(tops):
                continue
            closest = dict(reversed(steps))
            middle = [0.5 * (self.location[a] + self.location[b]) for a, b in closest.items()]
            if not middle:
                return
            self.climb(np.stack(middle[:MOST_MIDPOINTS]))
            place = self._scaled(self.location)
            fresh = range(size, self.size)
            self._chords([(a, b) for a in fresh for b in self._nearest(a, np.ones(self.size, bool), place)])
            self._chords([(a, b) for a in tops for b in self._nearest(a, self._higher(a, root), place)])
            if len(self._tops()[1]) >= len(tops):
                return

    def _loose(self) -> Int[np.ndarray, " loose"]:
        """Ends without a peak that have a density."""
        return np.flatnonzero(~self.all[2] & np.isfinite(self.height) & (self.below == NOWHERE))

    def _tops(self) -> tuple[Int[np.ndarray, " nodes"], list[int]]:
        """The highest node of what each node is linked to, and those of them that are no peaks, but for the highest."""
        pairs = sorted(self.falls)
        fall = np.array([self.falls[one] for one in pairs])
        pair, meant = np.array(pairs, int).reshape(-1, 2), np.ones(self.size, bool)
        root, _ = taken_together(self.height, pair, fall, np.full(len(fall), np.nan), VALLEY, meant)
        tops = np.unique(root[self._loose()])
        return root, tops[self.height[tops] < self.height.max()].tolist()

    def _higher(self, node: int, root: Int[np.ndarray, " nodes"]) -> Bool[np.ndarray, " nodes"]:
        """What is higher than a node, and not linked to it yet."""
        higher = self.height > self.height[node]
        higher[: len(root)] &= root != root[node]
        return higher

    def _nearest(
        self, node: int, wanted: Bool[np.ndarray, " nodes"], place: Float[np.ndarray, "nodes dim"]
    ) -> list[int]:
        """The nearest of the nodes that are wanted."""
        rows = np.flatnonzero(wanted & np.isfinite(self.height) & (self.below == NOWHERE))
        rows = rows[rows != node]
        apart = np.sum((place[rows] - place[node]) ** 2, axis=1)
        return rows[np.argsort(apart, kind="stable")[:CHORDS]].tolist()

    def _chords(self, pairs: list[tuple[int, int]]) -> None:
        """The falls on chords that are not known yet."""
        new = sorted({(min(one), max(one)) for one in pairs} - self.falls.keys())
        if new:
            pair = np.array(new)
            lower = self.height[pair].min(axis=1)
            fall = straight(self.target, self.location[pair[:, 0]], self.location[pair[:, 1]], lower, CHORD)
            self.falls.update(zip(new, fall.tolist(), strict=True))


def _easiest(pair: Int[np.ndarray, "pairs 2"], fall: Float[np.ndarray, " pairs"]) -> list[int]:
    """The pairs that are among the easiest of one of their two, easiest first."""
    taken: dict[int, int] = {}
    found = []
    for n in np.argsort(fall, kind="stable").tolist():
        if min(taken.get(node, 0) for node in pair[n].tolist()) < EASIEST:
            found.append(n)
        for node in pair[n].tolist():
            taken[node] = taken.get(node, 0) + 1
    return found
