"""The search that goes on while chains run: the residual energy and plain descents from the start region, and descents
from draws."""

import dataclasses
from collections.abc import Sequence

import numpy as np

from whmc._shapes import Array, Bool, Float, Int
from whmc.keys import child, children, generator
from whmc.modes.chart_data import locations_of, log_weights_of, step_sizes_of
from whmc.modes.library import ModeLibrary
from whmc.modes.mixture import log_components_of, log_ratio_of
from whmc.search.descent import DescentResult, KnownModes, descend
from whmc.search.finders import Residual
from whmc.search.masses import weigh
from whmc.search.mode_search import (
    LIGHTEST_KEPT_SHARE,
    MAX_STARTS,
    SearchState,
    know,
    start_search,
    take,
    with_cost,
)
from whmc.search.peak import Peak
from whmc.search.report import SearchReport, account, often_hit, too_light
from whmc.target.price import FEWEST_STARTS
from whmc.target.target import Target

RESIDUAL_STARTS = 224
"""Starts of one look that descend the residual energy. Most lie on known ground, which costs an evaluation or two."""

PLAIN_STARTS = 32
"""Starts of one look that descend the energy itself: what is hidden by a broad known mode is found by these alone, and
only they tell how much is still unseen."""

FOLLOWED_DRAWS = 32
"""Draws that are descended from at one look: a chart that has grown over two modes hides the second from the residual
energy, but not from its own draws."""


@dataclasses.dataclass(frozen=True)
class OngoingSearch:
    """A search that goes on beside the chains.

    in_library: of each peak of `search`, whether it is a mode of the library. The others are too light (`spurious`,
        with their shares of the mass), or there was no room (`num_capped`). num_before: starts of a search before this
        one that had come to an end by itself. looks: how many were made. width_limit: of the search before this one, as
        in `MissingMass`; NaN once there are other modes.
    """

    search: SearchState
    in_library: Bool[np.ndarray, " peaks"]
    spurious: Float[np.ndarray, "n dim"]
    spurious_share: Float[np.ndarray, " n"]
    num_capped: int = 0
    num_before: int = 0
    looks: int = 0
    width_limit: float = np.nan

    @property
    def num_starts(self) -> int:
        """Starts that count for how long this search goes on."""
        return self.search.num_starts - self.num_before

    @property
    def num_gradients(self) -> int:
        """What all searches have cost so far."""
        return self.search.num_gradients


def wanted(report: SearchReport | None) -> bool:
    """Whether a search was too short to have come to an end by itself."""
    if report is None or report.num_capped:
        return False
    return report.num_starts < FEWEST_STARTS and not report.state.even


def begin(target: Target, library: ModeLibrary, report: SearchReport | None, max_modes: int) -> OngoingSearch:
    """Goes on where an earlier search ended: with its peaks, and with what it counted."""
    if report is None:
        search = know(start_search(target, max_modes), library, np.zeros(library.size))
        return OngoingSearch(search, np.ones(len(search.peaks), bool), np.zeros((0, library.dim)), np.zeros(0))
    search = dataclasses.replace(report.state, max_modes=max_modes)
    kept = np.isin(np.arange(len(search.peaks)), report.kept)
    before = 0 if wanted(report) else report.num_starts
    return OngoingSearch(
        search,
        kept,
        report.spurious,
        report.spurious_share,
        report.num_capped,
        before,
        width_limit=report.missing.width_limit,
    )


def look(
    state: OngoingSearch,
    target: Target,
    library: ModeLibrary,
    position: Float[np.ndarray, "n dim"],
    logdensity: Float[np.ndarray, " n"],
    key: Array,
) -> tuple[OngoingSearch, ModeLibrary]:
    """One look, given some draws: the library with the modes that it finds, its charts in their places before them."""
    if _over(state, library):
        return state, library
    key_residual, key_plain, key_draws, key_masses = children(key, 4)
    # pi on q's scale: where q fits, w is the evidence
    log_evidence = float(np.median(log_ratio_of(library, position, logdensity)))
    search, known = state.search, KnownModes(library, log_evidence)
    search = take(search, target, Residual().find(key_residual, target, RESIDUAL_STARTS, known))
    followed = position[generator(key_draws).integers(len(position), size=FOLLOWED_DRAWS)]
    for descents in _plain_and_followed(target, key_plain, followed, search.peaks):
        search = take(search, target, descents)
    state = dataclasses.replace(state, search=search, looks=state.looks + 1)
    return _with_new_modes(state, target, library, log_evidence, key_masses)


def _over(state: OngoingSearch, library: ModeLibrary) -> bool:
    """Whether the library is full or all starts are used."""
    return library.num_modes >= state.search.max_modes or state.num_starts >= MAX_STARTS


def look_on(
    state: OngoingSearch,
    target: Target,
    library: ModeLibrary,
    position: Float[np.ndarray, "n dim"],
    logdensity: Float[np.ndarray, " n"],
    stream: Array,
    share: float,
) -> tuple[OngoingSearch, ModeLibrary]:
    """Looks until this share of `MAX_STARTS` is used: to find a basin that one start in 500 hits takes thousands."""
    while state.num_starts < share * MAX_STARTS and not _over(state, library):
        key = child(stream, state.looks)
        state, library = look(state, target, library, position, logdensity, key)
    return state, library


def _plain_and_followed(
    target: Target, key: Array, draws: Float[np.ndarray, "n dim"], peaks: Sequence[Peak]
) -> tuple[DescentResult, DescentResult]:
    """Plain descents from the start region, which are independent, and from draws, which are not; in one batch."""
    both = descend(target, np.concatenate([target.draw_starts(key, PLAIN_STARTS), draws]), peaks)
    assert both.width is not None
    first, rest = slice(PLAIN_STARTS), slice(PLAIN_STARTS, None)
    # points that were given as starts have been used already: what they hit again tells nothing
    independent = isinstance(target.starts, tuple) or callable(target.starts)
    plain = DescentResult(
        both.position[first], both.usable[first], both.num_gradients, independent=independent, width=both.width[first]
    )
    return plain, DescentResult(both.position[rest], both.usable[rest], 0, width=both.width[rest])


def _with_new_modes(
    state: OngoingSearch, target: Target, library: ModeLibrary, log_evidence: float, key: Array
) -> tuple[OngoingSearch, ModeLibrary]:
    """Peaks that are not known yet, heaviest first, while there is room; the light ones are only remembered."""
    search, size = state.search, len(state.in_library)
    fresh = search.peaks[size:]
    log_share = np.array([peak.log_laplace for peak in fresh]) - log_evidence
    error = np.zeros(len(fresh))
    if np.any(log_share < np.log(LIGHTEST_KEPT_SHARE)):
        masses = weigh(target, fresh, key, beside=(library, log_evidence))
        log_share, error = masses.log_share, masses.error
        search = with_cost(search, masses.num_gradients)
    log_mass = np.append(_masses_before(state, library, log_evidence), log_share + log_evidence)
    heavy = ~too_light(log_share, error, target.dim) | often_hit(search)[size:]
    order = np.argsort(-log_share, kind="stable")
    order = order[heavy[order]]
    room = max(0, search.max_modes - library.num_modes)
    step_size = float(np.median(step_sizes_of(library.charts())))
    for n in order[:room]:
        peak, weight = fresh[n], float(log_share[n])
        library = library.add(peak.location, peak.chart.scale, log_weight=weight, step_size=step_size)
    light = np.flatnonzero(~heavy)
    state = dataclasses.replace(
        state,
        search=dataclasses.replace(search, log_mass=log_mass),
        in_library=np.append(state.in_library, np.isin(np.arange(len(fresh)), order[:room])),
        spurious=np.concatenate([state.spurious, np.array([fresh[n].location for n in light]).reshape(-1, target.dim)]),
        spurious_share=np.append(state.spurious_share, np.exp(log_share[light])),
        num_capped=state.num_capped + len(order[room:]),
        width_limit=np.nan if len(order) else state.width_limit,
    )
    return state, library


def _masses_before(state: OngoingSearch, library: ModeLibrary, log_evidence: float) -> Float[np.ndarray, " before"]:
    """Log masses of the peaks before a look. Charts that were known beforehand have weights, which chains learn."""
    known, log_mass = state.search.num_known, state.search.log_masses[: len(state.in_library)]
    if known:
        mode = _modes_of_peaks(state.search, library)[: len(log_mass)]
        sharing = np.bincount(mode[state.in_library], minlength=library.num_modes)
        log_mass[:known] = np.log(library.mode_weights()[mode] / np.maximum(sharing[mode], 1))[:known] + log_evidence
    return log_mass


def report_of(state: OngoingSearch, library: ModeLibrary) -> SearchReport:
    """The report of all searches, for the library as it is now."""
    search = state.search
    mode = _modes_of_peaks(search, library)
    left_out = {location.tobytes() for location in state.spurious}
    light = np.array([peak.location.tobytes() in left_out for peak in search.peaks], bool)
    missing = dataclasses.replace(search.missing, width_limit=state.width_limit)
    return SearchReport(
        library=library,
        starts=locations_of(library.charts()),
        hits=_by_mode(search.hits, mode, state.in_library, library.num_modes),
        independent_hits=_by_mode(search.independent_hits, mode, state.in_library, library.num_modes),
        spurious=state.spurious,
        spurious_share=state.spurious_share,
        kept=np.flatnonzero(state.in_library),
        **account(search, light, library.num_modes + state.num_capped, state.num_capped, missing),
    )


def _modes_of_peaks(search: SearchState, library: ModeLibrary) -> Int[np.ndarray, " peaks"]:
    """The library's mode at each peak: charts may have been merged, split and moved since the peak was found."""
    location = np.array([peak.location for peak in search.peaks]).reshape(-1, library.dim)
    log_density = log_components_of(library, location) - log_weights_of(library.charts())[:, None]
    return library.mode_of[np.argmax(log_density, axis=0)]


def _by_mode(
    hits: Int[np.ndarray, " peaks"], mode: Int[np.ndarray, " peaks"], counted: Bool[np.ndarray, " peaks"], num: int
) -> Int[np.ndarray, " modes"]:
    return np.bincount(mode[counted], weights=hits[counted], minlength=num).astype(int)
