"""The hunt: ends of descents become modes, each once, counted; and what that says about modes not seen."""

import collections
import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from whmc.modes.curvature import spread
from whmc.modes.library import ModeLibrary
from whmc.search.finders import BATCH, AbstractFinder, Ends, Known
from whmc.search.polish import SAME, Peak, polish
from whmc.search.unseen import chao, good_turing
from whmc.target.target import Target

FLOOR = 1e-6
"""Peaks whose Laplace weight is below this share are kept out of the network: their charts would cost more than their
draws are worth. They are reported."""

FEWEST_STARTS = 1024
"""Before that the stopping rule is not asked: a mode that one start in two hundred finds is missed by 256 with chance
.28, and then nothing in the hits betrays it; by 1024 with chance .006."""

ENOUGH = 0.01
"""The search stops when the next start finds a new mode with less than this (Good-Turing) chance."""

LEARNED = (
    "peaks", "hits", "fair_hits", "num_fair", "flat", "stray", "num_flat_hits", "num_starts", "num_gradients",
    "discovery",
)  # fmt: skip
"""What a hunt has besides its target, in its own words."""

MAX_STARTS = 4096
MAX_LOOSE = 64
"""Points of flat or unpeaked modes that are followed up by local chains."""


@dataclasses.dataclass(frozen=True)
class Search:
    """What was found, what was left out and why, and what may be missing.

    starts: a point of each mode where chains may start. hits: how many starts ended in each. spurious: locations of
    peaks below the weight floor, with their Laplace shares. dropped: ends that were no modes, by reason. discovery:
    rows (starts, gradients, modes found) in the order of the search. num_capped: modes left out because the library
    is full.
    """

    library: ModeLibrary
    starts: Float[np.ndarray, "size dim"]
    hits: Int[np.ndarray, " size"]
    spurious: Float[np.ndarray, "n dim"]
    spurious_share: Float[np.ndarray, " n"]
    dropped: dict[str, int]
    discovery: Int[np.ndarray, "steps 3"]
    num_starts: int
    num_gradients: int
    num_found: int
    num_capped: int
    unseen_chance: float
    expected_modes: float

    def __str__(self) -> str:
        text = [
            f"search: {self.num_found} modes from {self.num_starts} starts, {self.num_gradients} gradients; "
            f"chance that another start finds a new one {self.unseen_chance:.2g}, expected in all "
            f"{self.expected_modes:.4g} or more"
        ]
        if self.num_capped:
            text.append(
                f"search: the library is full at {self.library.size} charts; "
                f"{self.num_capped} lighter modes were left out"
            )
        if len(self.spurious):
            text.append(
                f"search: {len(self.spurious)} peaks below the weight floor {FLOOR:g} were left out "
                f"(together {self.spurious_share.sum():.1g})"
            )
        if self.dropped:
            text.append("search: no modes: " + ", ".join(f"{n} {why}" for why, n in sorted(self.dropped.items())))
        return "\n".join(text)


class Hunt:
    """A search in progress."""

    def __init__(self, target: Target, max_modes: int) -> None:
        self.target, self.max_modes = target, max_modes
        with_starts = target.starts is not None
        region = np.asarray(target.draw_starts(jax.random.key(0), BATCH)) if with_starts else np.zeros((1, target.dim))
        self.widest = spread(target, jnp.asarray(region))
        self.peaks: list[Peak] = []
        self.hits: list[int] = []
        self.fair_hits: list[int] = []  # of independent starts only
        self.num_fair = 0
        self.flat: list[np.ndarray] = []
        self.stray: list[np.ndarray] = []
        self.num_flat_hits = 0
        self.dropped: collections.Counter[str] = collections.Counter()
        self.num_starts = self.num_gradients = 0
        self.discovery: list[tuple[int, int, int]] = [(0, 0, 0)]

    def know(self, library: ModeLibrary, logdensity: Float[np.ndarray, " size"]) -> None:
        """Charts that are known beforehand. They may stand for the mean of a skewed mode, beside its peak."""
        locations, scales, log_weight, _ = library.charts()
        reach = SAME + 0.4 * np.sqrt(self.target.dim)
        for mode in range(library.num_modes):
            mine = np.flatnonzero(library.mode_of == mode)
            k = mine[np.argmax(log_weight[mine])]
            self.peaks.append(Peak(locations[k], float(logdensity[k]), scales[k], reach=reach))
            self.hits.append(0)
        self.discovery = [(0, 0, len(self.peaks))]

    def recall(self, search: Search) -> None:
        """Go on where an earlier search ended: its polished peaks, and what it counted."""
        self.know(search.library, np.zeros(search.library.size))
        self.peaks = [dataclasses.replace(peak, reach=SAME) for peak in self.peaks]
        self.hits = list(map(int, search.hits))
        self.fair_hits, self.num_fair = list(self.hits), search.num_starts
        self.dropped.update(search.dropped)
        self.num_starts, self.num_gradients = search.num_starts, search.num_gradients
        self.discovery = [(int(a), int(b), int(c)) for a, b, c in search.discovery]
        self.discovery.append((self.num_starts, self.num_gradients, len(self.peaks)))

    def state(self) -> dict[str, Any]:
        """Everything that the hunt has learned, to be stored."""
        return {name: getattr(self, name) for name in LEARNED} | {"dropped": dict(self.dropped)}

    def restore(self, state: dict[str, Any]) -> None:
        for name in LEARNED:
            setattr(self, name, state[name])
        self.dropped = collections.Counter(state["dropped"])

    def run(self, finder: AbstractFinder, key: Array) -> None:
        """Batches of starts until all are used, or the stopping rule is met."""
        taken, batch = 0, 0
        most = finder.num_starts or MAX_STARTS
        while taken < most:
            num = min(BATCH, most - taken)
            self.take(finder.find(jax.random.fold_in(key, batch), self.target, num, self.known()))
            taken, batch = taken + num, batch + 1
            settled = finder.num_starts is None and taken >= FEWEST_STARTS and self.unseen_chance() <= ENOUGH
            if settled or len(self.peaks) > self.max_modes:
                break

    def known(self) -> Known | None:
        """The peaks so far as charts, with room to grow, and Laplace's evidence."""
        if not self.peaks:
            return None
        log_mass = np.array([peak.log_mass for peak in self.peaks])
        library = ModeLibrary.from_charts(
            np.stack([peak.location for peak in self.peaks]),
            np.stack([peak.scale for peak in self.peaks]),
            log_weight=log_mass,
            capacity=max(16, 1 << (len(self.peaks) - 1).bit_length()),
        )
        return Known(library, float(np.logaddexp.reduce(log_mass)))

    def unseen_chance(self) -> float:
        """Good-Turing's chance of something new at the next start; all flat ends count as one basin."""
        hits, num = (self.fair_hits, self.num_fair) if self.num_fair else (self.hits, self.num_starts)
        basins = np.array([*hits, *([self.num_flat_hits] if self.num_flat_hits else [])], int)
        return good_turing(basins, num)

    def take(self, ends: Ends) -> None:
        """Each end is a known mode, a new one, or none."""
        num = len(ends.position)
        owner = np.full(num, -1)
        self.num_gradients += ends.num_gradients
        self.dropped["unusable"] += num - int(ends.usable.sum())
        if ends.covered_by is not None:
            owner[:] = ends.covered_by
            np.add.at(hits := np.zeros(len(self.peaks), int), owner[owner >= 0], 1)
            self.hits = [a + int(b) for a, b in zip(self.hits, hits, strict=True)]
            self.dropped["unusable"] -= int(np.sum(owner >= 0))
        for n in self._by_height(ends):
            self._settle(int(n), ends, owner)
        before = self.num_starts
        self.num_starts += num
        if ends.independent:
            self.num_fair += num
            seen = np.bincount(owner[owner >= 0], minlength=len(self.peaks))
            fair = [*self.fair_hits, *[0] * (len(self.peaks) - len(self.fair_hits))]
            self.fair_hits = [a + int(b) for a, b in zip(fair, seen, strict=True)]
        self._record(owner, before, ends)
        if ends.population is not None:
            self._follow(ends.population, owner[: len(ends.population)])

    def _by_height(self, ends: Ends) -> Int[np.ndarray, " n"]:
        """The usable ends, highest first: then a chart stands for the best point of its mode."""
        heights = np.full(len(ends.position), -np.inf)
        rows = np.flatnonzero(ends.usable)
        for part in (rows[n : n + BATCH] for n in range(0, len(rows), BATCH)):
            padded = np.resize(ends.position[part], (BATCH, self.target.dim))
            heights[part] = np.asarray(_logdensities(self.target, jnp.asarray(padded)))[: len(part)]
        order = np.argsort(-heights, kind="stable")
        return order[np.isin(order, rows)]

    def _settle(self, n: int, ends: Ends, owner: Int[np.ndarray, " n"]) -> None:
        if owner[n] >= 0:
            return
        point = ends.position[n]
        found = self._owner(point)
        if found is None:
            peak = polish(self.target, point, widest=self.widest)
            if isinstance(peak, str):
                self.dropped[peak] += 1
                return
            if peak.num_flat:
                self.num_flat_hits += 1
                self.flat.append(peak.location)
                return
            found = self._owner(peak.location)
            if found is None:
                self.peaks.append(peak)
                self.hits.append(0)
                found = len(self.peaks) - 1
        free = (owner < 0) & ends.usable
        free[free] = self.peaks[found].distance(ends.position[free]) < self.peaks[found].reach
        free[n] = True
        owner[free] = found
        self.hits[found] += int(free.sum())

    def _owner(self, point: Float[np.ndarray, " dim"]) -> int | None:
        """The known peak at this point."""
        for k, peak in enumerate(self.peaks):
            if peak.distance(point[None])[0] < peak.reach:
                return k
        return None

    def _record(self, owner: Int[np.ndarray, " n"], before: int, ends: Ends) -> None:
        """The discovery curve, start by start; the gradients of a batch's descents are shared out evenly."""
        start = self.num_gradients - ends.num_gradients + ends.num_upfront
        found, known = self.discovery[-1][2], set()
        fresh = {k for k in range(len(self.peaks)) if k >= found}
        for n, k in enumerate(owner):
            if k in fresh and k not in known:
                known.add(int(k))
                spent = start + round((ends.num_gradients - ends.num_upfront) * (n + 1) / len(owner))
                self.discovery.append((before + n + 1, spent, found + len(known)))
        self.discovery.append((self.num_starts, self.num_gradients, len(self.peaks)))

    def _follow(self, population: Float[np.ndarray, "m dim"], owner: Int[np.ndarray, " m"]) -> None:
        """Particles that the chart of their own peak does not cover: mass that belongs to no peak.

        A particle of a mode lies sqrt(D) standard deviations from its peak; four times that square is far outside,
        also for a mode with tails heavier than a Gaussian's.
        """
        dim = self.target.dim
        bound = 4 * (dim + 5 * np.sqrt(2 * dim))
        far = np.array(
            [k < 0 or self.peaks[k].distance(x[None])[0] ** 2 > bound for x, k in zip(population, owner, strict=True)],
            bool,
        )
        if far.sum() > 0.05 * len(far):  # a few are tails, more are a mode
            self.stray += list(population[far])

    @property
    def loose(self) -> Float[np.ndarray, "n dim"]:
        """Points whose modes have no peak to stand for them; local chains will tell which belong together."""
        rows = [*self.stray[:MAX_LOOSE], *self.flat][:MAX_LOOSE]
        return np.array(rows).reshape(-1, self.target.dim)

    def forget(self, number: int) -> None:
        """A peak that is no mode of the library after all."""
        del self.peaks[number], self.hits[number]
        del self.fair_hits[number : number + 1]

    def adopt(self, charts: list[tuple[Peak, int]], num_gradients: int) -> None:
        """Charts with the moments of what local chains connect."""
        self.num_gradients += num_gradients
        for peak, hits in charts:
            self.peaks.append(peak)
            self.hits.append(hits)
        self.discovery.append((self.num_starts, self.num_gradients, len(self.peaks)))

    def finish(self) -> Search:
        """The library of all that is heavy enough."""
        if not self.peaks:
            reasons = ", ".join(f"{n} {why}" for why, n in sorted(self.dropped.items()) if n) or "none"
            raise ValueError(
                f"no mode was found from {self.num_starts} starts (ends that were no modes: {reasons}): "
                "look at print(target.check()), move the start region, or give modes="
            )
        log_mass = np.array([peak.log_mass for peak in self.peaks])
        log_share = log_mass - np.logaddexp.reduce(log_mass)
        order = np.argsort(-log_share, kind="stable")
        heavy = order[log_share[order] >= np.log(FLOOR)]
        kept, light = heavy[: self.max_modes], order[log_share[order] < np.log(FLOOR)]
        hits = np.array(self.hits)
        library = ModeLibrary.from_charts(
            np.stack([self.peaks[k].location for k in kept]),
            np.stack([self.peaks[k].scale for k in kept]),
            log_weight=log_share[kept],
            step_size=np.full(len(kept), self.target.dim**-0.25),
        )
        return Search(
            library=library,
            starts=np.stack([_start(self.peaks[k]) for k in kept]),
            hits=hits[kept],
            spurious=np.array([self.peaks[k].location for k in light]).reshape(-1, self.target.dim),
            spurious_share=np.exp(log_share[light]),
            num_found=len(heavy),
            num_capped=len(heavy) - len(kept),
            **self.account(),
        )

    def account(self) -> dict[str, Any]:
        """What the search cost, what it dropped, and what it says about modes not seen."""
        return {
            "dropped": {why: n for why, n in self.dropped.items() if n},
            "discovery": np.array(self.discovery),
            "num_starts": self.num_starts,
            "num_gradients": self.num_gradients,
            "unseen_chance": self.unseen_chance(),
            "expected_modes": max(chao(np.array(self.fair_hits, int)), float(len(self.peaks))),
        }


def _start(peak: Peak) -> np.ndarray:
    return peak.location if peak.start is None else peak.start


@jax.jit
def _logdensities(target: Target, positions: Float[Array, "n dim"]) -> Float[Array, " n"]:
    return jax.vmap(target)(positions)
