"""A search in progress, as data, and the functions that advance it."""

import dataclasses
from collections.abc import Callable
from functools import partial

import numpy as np

from whmc._shapes import Array, Float, Int
from whmc.estimate.missing import MissingMass
from whmc.keys import Stream, child, stream_key
from whmc.modes.curvature import spread
from whmc.modes.library import ModeLibrary
from whmc.search.assign import NOBODY, settle
from whmc.search.descent import BATCH, DescentResult, KnownModes
from whmc.search.doing import Doing
from whmc.search.effort import Effort, Starts
from whmc.search.finders import AbstractFinder, MultiStart, descend_from
from whmc.search.masses import chart_library
from whmc.search.peak import SAME_MODE_SD, Peak
from whmc.target.price import FEWEST_STARTS
from whmc.target.target import Target

LIGHTEST_KEPT_SHARE = 1e-6
"""Modes that weigh less than this share are kept out of the network: their charts would cost more than their draws are
worth. They are reported."""

FIRST_STARTS = 48
"""Starts of the first batches, until there are `BATCH` of them: one mode, or a few alike, show in as many."""

LARGEST_BATCH = 16_384
BATCH_NUMBERS = 500_000
"""Starts of a batch at most, and numbers that their descents remember, so that these stay near the processor."""

MEMORIES = 40
"""Numbers that a descent remembers for each of many dimensions, at most."""

FEWEST_EVEN = 96
FEWEST_HITS = 8
EVEN_FACTOR = 4.0
"""Basins are hit equally if, of as many independent starts, the rarest has as many hits, and no fewer than its equal
share divided by this factor. Where there are rare basins, there may be rarer ones."""

PEAK_NUMBERS = 32_768
"""A search with more modes than the library takes goes on up to this number over D² of them, so that the heaviest can
be kept: to polish one takes some 2 D gradients, and a matrix of D²."""

MAX_STARTS = 4096
"""Of a finder that does not descend from independent starts and was not told how many; it ends before, after
`FEWEST_STARTS` in vain."""

MAX_LOOSE_POINTS = 64
"""Points of flat or unpeaked modes that are followed up by local chains."""

STRAY_SHARE = 0.05
"""Particles outside of their peak's chart up to this share of a population are tails; more are a mode."""

REGION_DRAW = 1 << 16
"""The child of the search's stream that the start region is measured with; finders are its first children."""

ORDER_DRAW = 1 << 16
"""The child of a finder's stream that puts given points into their order; batches are its first children."""


@dataclasses.dataclass(frozen=True)
class SearchState:
    """What a search has learned so far.

    widest: the size of the start region, which is the standard deviation given to directions without curvature.
    peaks: the modes found, in the order of discovery, with all `hits` and those of independent starts among them.
    num_flat_hits: independent starts that ended on a flat mode (a ring, a shell), which count as one basin.
    num_particles: of the populations that were annealed.
    num_given: how many different points were given as starts, if any were.
    num_known: how many peaks stand for charts that were known beforehand; they are the first ones.
    log_mass: log masses of the first peaks, as far as they were weighed. log_flat: of all flat modes together; NaN if
        that is not known.
    flat: points of such modes. stray: points of a population that the chart of the peak they descend to, `stray_owner`,
        does not cover. discovery: rows (starts, gradients, peaks). dropped, num_starts, num_independent, num_gradients:
        as in a `SearchReport`.
    """

    max_modes: int
    widest: float
    flat: Float[np.ndarray, "f dim"]
    stray: Float[np.ndarray, "s dim"]
    stray_owner: Int[np.ndarray, " s"]
    discovery: Int[np.ndarray, "rows 3"]
    hits: Int[np.ndarray, " peaks"]
    independent_hits: Int[np.ndarray, " peaks"]
    peaks: tuple[Peak, ...] = ()
    dropped: dict[str, int] = dataclasses.field(default_factory=dict)
    num_flat_hits: int = 0
    num_particles: int = 0
    num_given: int = 0
    num_known: int = 0
    log_mass: Float[np.ndarray, " weighed"] = dataclasses.field(default_factory=lambda: np.zeros(0))
    log_flat: float = np.nan
    num_starts: int = 0
    num_independent: int = 0
    num_gradients: int = 0

    @property
    def even(self) -> bool:
        """Whether independent starts hit all basins about equally, and were enough to tell."""
        hits = self.basins[self.basins > 0]
        if self.num_independent < FEWEST_EVEN or len(hits) == 0:
            return False
        return bool(hits.min() >= max(FEWEST_HITS, self.num_independent / (EVEN_FACTOR * len(hits))))

    @property
    def basins(self) -> Int[np.ndarray, " basins"]:
        """Hits of independent starts in every basin that is known: of light modes too, all flat ends as one."""
        return np.append(self.independent_hits, self.num_flat_hits)

    @property
    def log_masses(self) -> Float[np.ndarray, " peaks"]:
        """Of all peaks; by Laplace's formula, where they were not weighed."""
        rest = self.peaks[len(self.log_mass) :]
        return np.append(self.log_mass, [peak.log_laplace for peak in rest])

    @property
    def missing(self) -> MissingMass:
        """What hits say about mass not found; flat modes that were not weighed are taken to hold half of it."""
        log_mass, log_flat = self.log_masses, self.log_flat
        if np.isnan(log_flat):
            log_flat = float(np.logaddexp.reduce(log_mass)) if len(log_mass) else 0.0
        return self.missing_of(log_mass, log_flat)

    def missing_of(self, log_mass: Float[np.ndarray, " peaks"], log_flat: float) -> MissingMass:
        """The same with these log masses of the peaks, and of all flat modes together."""
        return MissingMass.of(self.basins, np.append(log_mass, log_flat), self.num_independent, self.num_given)

    def weighed(self, log_mass: Float[np.ndarray, " peaks"]) -> "SearchState":
        """The search with masses of all peaks. Those without a peak, which local chains have found, are the flat
        modes."""
        found = np.arange(len(self.peaks)) >= self.num_known
        flat = found & ~np.array([peak.at_peak for peak in self.peaks], bool) & (self.independent_hits == 0)
        log_flat = float(np.logaddexp.reduce(log_mass[flat], initial=-np.inf)) if self.num_flat_hits else np.nan
        return dataclasses.replace(self, log_mass=log_mass, log_flat=log_flat)


Tell = Callable[[SearchState, Doing], None]
"""Given a search and what it is at."""


def start_search(target: Target, max_modes: int) -> SearchState:
    """A search that knows nothing yet."""
    nothing = np.zeros((0, target.dim))
    none = np.zeros(0, int)
    return SearchState(max_modes, _widest(target), nothing, nothing, none, np.zeros((1, 3), int), none, none)


def _widest(target: Target) -> float:
    if target.starts is None:
        return spread(target, np.zeros((1, target.dim)))
    key = child(stream_key(0, Stream.SEARCH), REGION_DRAW)
    return spread(target, target.draw_starts(key, BATCH))


def know(state: SearchState, library: ModeLibrary, logdensity: Float[np.ndarray, " size"]) -> SearchState:
    """A search that begins with charts known beforehand. They may stand for the mean of a skewed mode, not its peak."""
    charts = library.charts()
    reach = SAME_MODE_SD + 0.4 * np.sqrt(library.dim)
    peaks = []
    for mode in range(library.num_modes):
        heaviest = max((k for k, one in enumerate(charts) if one.mode == mode), key=lambda k: charts[k].log_weight)
        peaks.append(Peak.of(charts[heaviest], float(logdensity[heaviest]), reach=reach))
    state = dataclasses.replace(state, num_known=len(peaks))
    return with_peaks(state, tuple(peaks), np.zeros(len(peaks), int))


def with_peaks(state: SearchState, peaks: tuple[Peak, ...], hits: Int[np.ndarray, " new"]) -> SearchState:
    """The search with more peaks at the end, which so many descents that are not independent have hit."""
    none = np.zeros(len(peaks) - len(state.peaks), int)
    state = dataclasses.replace(
        state,
        peaks=peaks,
        hits=np.append(state.hits, hits),
        independent_hits=np.append(state.independent_hits, none),
    )
    return _with_rows(state, [])


def with_cost(state: SearchState, num_gradients: int) -> SearchState:
    """The search after so many more gradients."""
    return dataclasses.replace(state, num_gradients=state.num_gradients + num_gradients)


def run_finder(
    state: SearchState,
    target: Target,
    finder: AbstractFinder,
    key: Array,
    effort: Effort | None = None,
    until: float = np.inf,
    tell: Tell = lambda state, doing: None,
) -> SearchState:
    """Batches of starts until all are used, or there are too many modes, or no more are wanted.

    effort: decides how many starts a `MultiStart` makes that was not told. until: gradients of the whole search after
    which this finder stops. tell: is given the search after every batch, and within those that take long.
    """
    given = target.given_starts(child(key, ORDER_DRAW)) if isinstance(finder, MultiStart) else None
    state = state if given is None else dataclasses.replace(state, num_given=len(given))
    starts, last_new, batch = Starts(), 0, 0
    effort = (effort or Effort()) if isinstance(finder, MultiStart) and finder.num_starts is None else None
    most = finder.num_starts or (MAX_STARTS if effort is None else np.iinfo(int).max)
    most = most if given is None else min(most, len(given))
    # few at first where nobody said how many; but points that were given are all looked at
    few = BATCH if finder.num_starts else max(FIRST_STARTS, 0 if given is None else min(len(given), BATCH))
    while starts.num < most and len(state.peaks) <= most_peaks(state.max_modes, target.dim):
        size = few if starts.num < BATCH else _batch_size(starts.num, target.dim, len(state.peaks))
        size = size if until == np.inf else min(size, BATCH)  # small steps, so that no more is spent than was allowed
        size = min(size, most - starts.num)
        if effort is not None:
            # hits are looked at after every batch, but only where they may decide
            starts, wanted = starts.wanted(effort, target, more_to_find=state.missing.more_to_find, even=state.even)
            size = min(size, wanted)
        if size == 0:
            break
        before, known = state, known_modes(state)
        if given is None:
            found = finder.find_and_tell(child(key, batch), target, size, known, partial(tell, state))
        else:
            found = descend_from(target, given[starts.num : starts.num + size], known)
        state = take(state, target, found)
        batch += 1
        num_gradients = state.num_gradients - before.num_gradients
        starts = dataclasses.replace(
            starts,
            num=starts.num + size,
            num_gradients=starts.num_gradients + num_gradients,
            num_compared=starts.num_compared + num_gradients * len(before.peaks),
            num_polished=starts.num_polished + _num_polished(state) - _num_polished(before),
        )
        tell(state, Doing(finder.unit, starts.num, most if effort is None else 0))
        last_new = starts.num if len(state.peaks) > len(before.peaks) else last_new
        in_vain = effort is None and not finder.num_starts and starts.num - last_new >= FEWEST_STARTS
        if in_vain or state.num_gradients + (state.num_gradients - before.num_gradients) > until:
            break
    return state


def _num_polished(state: SearchState) -> int:
    """Ends that were no known mode, and had to be looked at one by one."""
    others = sum(num for why, num in state.dropped.items() if why != "unusable")
    return len(state.peaks) + state.num_flat_hits + others


def most_peaks(max_modes: int, dim: int) -> int:
    """Peaks that a search goes on with: more than the library takes, if they cost little."""
    return max(max_modes, PEAK_NUMBERS // dim**2)


def _batch_size(taken: int, dim: int, num_peaks: int) -> int:
    """As many starts as were made before: the last descents of a batch take as long as all others, whatever its
    size."""
    numbers = max(min(dim**2, MEMORIES * dim), num_peaks)
    return int(np.clip(taken, BATCH, max(BATCH, min(LARGEST_BATCH, BATCH_NUMBERS // numbers))))


def known_modes(state: SearchState) -> KnownModes | None:
    """The peaks so far as charts, weighed by Laplace's formula."""
    if not state.peaks:
        return None
    log_mass = np.array([peak.log_laplace for peak in state.peaks])
    return KnownModes(chart_library(state.peaks, log_mass), float(np.logaddexp.reduce(log_mass)), state.peaks)


def take(state: SearchState, target: Target, descents: DescentResult) -> SearchState:
    """The search after some descents: each end is settled, then everything is counted once."""
    settled = settle(target, descents, state.peaks, state.widest)
    num = len(descents.position)
    new = np.zeros(len(settled.peaks) - len(state.peaks), int)
    seen = np.bincount(settled.owner[settled.owner != NOBODY], minlength=len(settled.peaks))
    counted = int(descents.independent)
    cost = descents.num_gradients + settled.num_gradients
    after = dataclasses.replace(
        state,
        peaks=settled.peaks,
        hits=np.append(state.hits, new) + seen,
        independent_hits=np.append(state.independent_hits, new) + counted * seen,
        num_independent=state.num_independent + counted * num,
        num_flat_hits=state.num_flat_hits + counted * int(settled.on_flat.sum()),
        flat=np.concatenate([state.flat, settled.flat])[:MAX_LOOSE_POINTS],
        dropped={why: _sum(state.dropped, settled.dropped, why) for why in {**state.dropped, **settled.dropped}},
        num_starts=state.num_starts + num * (not descents.from_peaks),
        num_gradients=state.num_gradients + cost,
    )
    after = _with_rows(after, _discoveries(state, settled.owner, descents, cost))
    return _with_strays(after, descents, settled.owner)


def _sum(first: dict[str, int], second: dict[str, int], why: str) -> int:
    return first.get(why, 0) + second.get(why, 0)


def _discoveries(
    before: SearchState, owner: Int[np.ndarray, " n"], descents: DescentResult, cost: int
) -> list[tuple[int, int, int]]:
    """Rows of the discovery curve, start by start; the gradients of a batch's descents are shared out evenly."""
    known, num_upfront = len(before.peaks), descents.num_upfront
    numbers, first = np.unique(owner, return_index=True)
    rows = []
    for seen, n in enumerate(np.sort(first[numbers >= known]).tolist(), 1):
        spent = before.num_gradients + num_upfront + round((cost - num_upfront) * (n + 1) / len(owner))
        rows.append((before.num_starts + (n + 1) * (not descents.from_peaks), spent, known + seen))
    return rows


def _with_rows(state: SearchState, rows: list[tuple[int, int, int]]) -> SearchState:
    """More rows of the discovery curve, and where it is now."""
    now = (state.num_starts, state.num_gradients, len(state.peaks))
    return dataclasses.replace(state, discovery=np.concatenate([state.discovery, np.array([*rows, now])]))


def outside(peak: Peak, positions: Float[np.ndarray, "n dim"]) -> np.ndarray:
    """Points far outside of a peak's chart.

    A particle of a mode lies sqrt(D) standard deviations from its peak; four times that square is far outside, also
    for a mode with tails somewhat heavier than a Gaussian's.
    """
    dim = positions.shape[1]
    return peak.distance(positions) ** 2 > 4 * (dim + 5 * np.sqrt(2 * dim))


def _with_strays(state: SearchState, descents: DescentResult, owner: Int[np.ndarray, " n"]) -> SearchState:
    """Particles of a population that the chart of their own peak does not cover: mass that may belong to no peak."""
    if descents.population is None:
        return state
    population, owner = descents.population, owner[: len(descents.population)]
    state = dataclasses.replace(state, num_particles=state.num_particles + len(population))
    far = np.ones(len(population), bool)
    for k in np.unique(owner[owner != NOBODY]):
        far[owner == k] = outside(state.peaks[k], population[owner == k])
    if far.sum() <= STRAY_SHARE * len(far):
        return state
    return dataclasses.replace(
        state,
        stray=np.concatenate([state.stray, population[far]]),
        stray_owner=np.append(state.stray_owner, owner[far]),
    )


def forget_strays(state: SearchState, explained: np.ndarray) -> SearchState:
    """The search without the stray points that are explained."""
    return dataclasses.replace(state, stray=state.stray[~explained], stray_owner=state.stray_owner[~explained])


def loose_points(state: SearchState) -> Float[np.ndarray, "n dim"]:
    """Points whose modes have no peak to stand for them; local chains will tell which belong together."""
    return np.concatenate([state.stray[:MAX_LOOSE_POINTS], state.flat])[:MAX_LOOSE_POINTS]
