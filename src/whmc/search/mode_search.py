"""A search in progress, as data, and the functions that advance it."""

import dataclasses
from collections.abc import Callable
from functools import partial

import numpy as np

from whmc._shapes import Array, Float, Int
from whmc.keys import Stream, child, stream_key
from whmc.modes.curvature import spread
from whmc.modes.library import ModeLibrary
from whmc.search.assign import NOBODY, settle
from whmc.search.descent import BATCH, DescentResult, KnownModes
from whmc.search.doing import Doing
from whmc.search.finders import AbstractFinder
from whmc.search.masses import chart_library
from whmc.search.peak import SAME_MODE_SD, Peak
from whmc.search.unseen import chao, good_turing
from whmc.target.target import Target

LIGHTEST_KEPT_SHARE = 1e-6
"""Modes that weigh less than this share are kept out of the network: their charts would cost more than their draws are
worth. They are reported."""

FIRST_STARTS = 48
"""Starts of the first batches, until there are `BATCH` of them: one mode, or a few alike, show in as many."""

LARGEST_BATCH = 1024
BATCH_NUMBERS = 100_000
"""Starts of a batch at most, and their coordinates, so that what descents remember fits into the memory."""

FEWEST_STARTS = 1024
"""Before that Good and Turing are not asked: a mode that one start in two hundred finds is missed by 256 with chance
.28, and then nothing in the hits betrays it; by 1024 with chance .006. A search on a budget stops before, where all
basins are hit about equally."""

FEWEST_EVEN = 96
FEWEST_HITS = 8
EVEN_FACTOR = 4.0
"""Basins are hit equally if, of as many independent starts, the rarest has as many hits, and no fewer than its equal
share divided by this factor. Where there are rare basins, there may be rarer ones."""

SETTLED_CHANCE = 0.01
SETTLED_NUM = 0.5
"""The search stops when the next start finds a new mode with less than this (Good-Turing) chance, and less than this
(Chao) number of them is missing: of two hundred modes one may be missing at any such chance."""

PEAK_NUMBERS = 32_768
"""A search with more modes than the library takes goes on up to this number over D² of them, so that the heaviest can
be kept: to polish one takes some 2 D gradients, and a matrix of D²."""

MAX_STARTS = 4096
MAX_LOOSE_POINTS = 64
"""Points of flat or unpeaked modes that are followed up by local chains."""

STRAY_SHARE = 0.05
"""Particles outside of their peak's chart up to this share of a population are tails; more are a mode."""

REGION_DRAW = 1 << 16
"""The child of the search's stream that the start region is measured with; finders are its first children."""


@dataclasses.dataclass(frozen=True)
class SearchState:
    """What a search has learned so far.

    widest: the size of the start region, which is the standard deviation given to directions without curvature.
    peaks: the modes found, in the order of discovery, with all `hits` and those of independent starts among them.
    num_flat_hits: independent starts that ended on a flat mode (a ring, a shell), which count as one basin.
    num_particles: of the populations that were annealed.
    flat: points of such modes. stray: points of a population that the chart of the peak they descend to, `stray_owner`,
        does not cover. dropped, discovery, num_starts, num_independent, num_gradients: as in a `SearchReport`.
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
    def unseen_chance(self) -> float:
        """Good-Turing's probability that one more independent start ends in a new basin."""
        return good_turing(self.basins, self.num_independent)

    @property
    def num_unseen(self) -> float:
        """Chao's lower bound for the number of basins not seen."""
        return chao(self.basins) - len(self.basins)


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
    """The search with charts that are known beforehand. They may stand for the mean of a skewed mode, not its peak."""
    locations, scales, log_weight, _ = library.charts()
    reach = SAME_MODE_SD + 0.4 * np.sqrt(library.dim)
    peaks = []
    for mode in range(library.num_modes):
        mine = np.flatnonzero(library.mode_of == mode)
        k = mine[np.argmax(log_weight[mine])]
        coupling = library.coupling_of(int(k))
        peaks.append(Peak(locations[k], float(logdensity[k]), scales[k], reach=reach, at_peak=False, coupling=coupling))
    return with_peaks(state, (*state.peaks, *peaks), np.zeros(len(peaks), int))


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
    until: float = np.inf,
    tell: Tell = lambda state, doing: None,
) -> SearchState:
    """Batches of starts until all are used, or the stopping rule is met, or there are too many modes.

    until: gradients of the whole search after which this finder stops, unless hits say that there is more. tell: is
    given the search after every batch, and within those that take long.
    """
    taken = last_new = batch = 0
    most = finder.num_starts or MAX_STARTS
    # few at first where nobody said how many; but points that were given are all looked at
    few = max(FIRST_STARTS, min(target.num_given_starts, BATCH)) if finder.num_starts is None else BATCH
    while taken < most:
        limited = until < np.inf and state.even  # then small steps, so that no more is spent than was allowed
        size = few if taken < BATCH else BATCH if limited else _batch_size(taken, target.dim)
        num, before = min(size, most - taken), state
        found = finder.find_and_tell(child(key, batch), target, num, known_modes(state), partial(tell, state))
        state = take(state, target, found)
        taken, batch = taken + num, batch + 1
        tell(state, Doing(finder.unit, taken, most))
        last_new = taken if len(state.peaks) > len(before.peaks) else last_new
        settled = finder.num_starts is None and taken >= FEWEST_STARTS and _settled(state, found, taken - last_new)
        next_cost = state.num_gradients - before.num_gradients
        enough = state.num_gradients + next_cost > until and state.even
        if settled or enough or len(state.peaks) > most_peaks(state.max_modes, target.dim):
            break
    return state


def most_peaks(max_modes: int, dim: int) -> int:
    """Peaks that a search goes on with: more than the library takes, if they cost little."""
    return max(max_modes, PEAK_NUMBERS // dim**2)


def _batch_size(taken: int, dim: int) -> int:
    """As many starts as were made before: the last descents of a batch take as long as all others, whatever its
    size."""
    return int(np.clip(taken, BATCH, max(BATCH, min(LARGEST_BATCH, BATCH_NUMBERS // dim))))


def _settled(state: SearchState, found: DescentResult, num_in_vain: int) -> bool:
    """Whether more starts are not worth while: by Good-Turing and Chao, or as many starts in vain where hits do not
    count."""
    if not found.independent:
        return num_in_vain >= FEWEST_STARTS
    return state.unseen_chance <= SETTLED_CHANCE and state.num_unseen < SETTLED_NUM


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
    rows, seen = [], set[int]()
    for n, k in enumerate(owner.tolist()):
        if k >= known and k not in seen:
            seen.add(k)
            spent = before.num_gradients + num_upfront + round((cost - num_upfront) * (n + 1) / len(owner))
            starts = before.num_starts + (n + 1) * (not descents.from_peaks)
            rows.append((starts, spent, known + len(seen)))
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
