"""The report of a search: what was found, what was left out and why, and what may be missing."""

import dataclasses
from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np

from whmc._shapes import Array, Bool, Float, Int
from whmc._words import counted
from whmc.estimate.missing import NOTICED, MissingMass
from whmc.keys import child
from whmc.modes.library import ModeLibrary
from whmc.search.masses import NATS_A_DIMENSION, Masses, laplace_masses, weigh
from whmc.search.mode_search import LIGHTEST_KEPT_SHARE, SearchState, with_cost
from whmc.search.peak import charts_of
from whmc.search.width import width_limit
from whmc.target.target import Target

SAFE_ERRORS = 3.0
"""A mode is left out only if it is too light by this many standard errors of its log mass."""

LARGE_HIT_SHARE = 0.25
"""A mode that a larger share of the independent starts hit is never left out, whatever it seems to weigh."""

WIDTH_DRAW = 1 << 16
"""The child of the stream of masses for copies of modes."""

REASONS = {
    "saddle": "at saddle points",
    "edge": "at the edge of the support",
    "not stationary": "where the density still rises",
    "runs away": "where the density rises without bound",
    "not finite": "without finite derivatives",
    "unusable": "with a density that is not finite",
}
"""Where a descent ended that did not end in a mode."""


@dataclasses.dataclass(frozen=True)
class SearchReport:
    """What was found, what was left out and why, and what may be missing.

    starts: a point of each mode where chains may start.
    hits: how many descents ended in each mode. independent_hits: those of plain descents from independent draws of the
        start region, of which there were `num_independent`; only these count below.
    spurious: locations of modes below `LIGHTEST_KEPT_SHARE`, with their shares of the mass.
    dropped: ends that were not modes, by reason.
    discovery: rows (starts, gradients, modes found that are heavy enough) in the order of the search.
    num_gradients: of everything that the search did. A log density counts as one gradient, a product of the Hessian
        with a vector as two.
    num_found: modes that are heavy enough. num_capped: those of them left out because the library is full.
    missing: how much of the mass may be in modes not found (`expected`, `bound`), from the hits of independent starts.
    state: the search itself, to go on with. kept: the numbers of those of its peaks that are modes of the library.
    """

    library: ModeLibrary
    starts: Float[np.ndarray, "size dim"]
    hits: Int[np.ndarray, " size"]
    independent_hits: Int[np.ndarray, " size"]
    spurious: Float[np.ndarray, "n dim"]
    spurious_share: Float[np.ndarray, " n"]
    dropped: dict[str, int]
    discovery: Int[np.ndarray, "steps 3"]
    num_starts: int
    num_independent: int
    num_gradients: int
    num_found: int
    num_capped: int
    missing: MissingMass
    state: SearchState
    kept: Int[np.ndarray, " kept"]

    def __str__(self) -> str:
        text = [
            f"search: {counted(self.num_found, 'mode')} from {counted(self.num_starts, 'start')}, "
            f"{self.num_gradients} gradients; {self.missing}"
        ]
        if self.num_capped:
            text.append(
                f"search: the library is full at {counted(self.library.size, 'chart')}; "
                f"{counted(self.num_capped, 'lighter mode')} left out"
            )
        if len(self.spurious):
            text.append(
                f"search: {counted(len(self.spurious), 'mode')} below the weight floor {LIGHTEST_KEPT_SHARE:g} left "
                f"out (together {self.spurious_share.sum():.1g})"
            )
        if self.dropped:
            text.append(f"search: {tell_dropped(self.dropped)}")
        return "\n".join(text)


def tell_dropped(dropped: Mapping[str, int]) -> str:
    """How many descents did not end in a mode, and where they ended."""
    parts = [f"{num} {REASONS[why]}" for why, num in sorted(dropped.items())]
    return f"{counted(sum(dropped.values()), 'descent')} did not end in a mode ({', '.join(parts)})"


def finish(state: SearchState, target: Target, key: Array, *, unbounded: bool = False) -> SearchReport:
    """The library of all that is heavy enough, and the report. unbounded: local chains ran away to infinity."""
    require_modes(state, unbounded=unbounded)
    masses = _masses(state, target, key)
    state = with_cost(state, masses.num_gradients).weighed(masses.log_mass)
    log_share, light = masses.log_share, light_modes(masses, state)
    missing = state.missing
    if missing.brought < NOTICED:
        limit, spent = width_limit(state, target, masses.log_mass, child(key, WIDTH_DRAW))
        missing, state = dataclasses.replace(missing, width_limit=limit), with_cost(state, spent)
    order = np.argsort(-log_share, kind="stable")
    heavy, spurious = order[~light[order]], order[light[order]]
    kept = heavy[: state.max_modes]
    peaks = [state.peaks[k] for k in kept]
    library = ModeLibrary.of(charts_of(peaks, log_share[kept], step_size=target.dim**-0.25))
    return SearchReport(
        library=library,
        starts=np.stack([peak.location if peak.start is None else peak.start for peak in peaks]),
        hits=state.hits[kept],
        independent_hits=state.independent_hits[kept],
        spurious=np.array([state.peaks[k].location for k in spurious]).reshape(-1, target.dim),
        spurious_share=np.exp(log_share[spurious]),
        kept=kept,
        **account(state, light, len(heavy), len(heavy) - len(kept), missing),
    )


def account(
    state: SearchState, light: Bool[np.ndarray, " peaks"], num_found: int, num_capped: int, missing: MissingMass
) -> dict[str, Any]:
    """The fields of a report that tell what the search cost, and what may be missing beside what was found.

    light: the peaks that are too light to keep.
    """
    # peaks are numbered as they are found; of those that one batch of descents finds the highest comes first
    heavy = np.append(0, np.cumsum(~light))
    return {
        "num_found": num_found,
        "num_capped": num_capped,
        "dropped": state.dropped,
        "discovery": np.column_stack([state.discovery[:, :2], heavy[state.discovery[:, 2]]]),
        "num_starts": state.num_starts,
        "num_independent": state.num_independent,
        "num_gradients": state.num_gradients,
        "missing": missing,
        "state": state,
    }


def _masses(state: SearchState, target: Target, key: Array) -> Masses:
    """By Laplace's formula, unless that may mislead: where a mode would be left out, or has no peak.

    Modes that are too light by all that the formula can miss are not weighed: of thousands few are left.
    """
    laplace = laplace_masses(state.peaks)
    alike = all(peak.at_peak for peak in state.peaks)
    if alike and not light_modes(laplace, state).any():
        return laplace
    unknown = dataclasses.replace(laplace, error=np.full(len(state.peaks), np.inf))
    near = np.flatnonzero(~light_modes(unknown, state)) if alike else np.arange(len(state.peaks))
    found = weigh(target, [state.peaks[k] for k in near.tolist()], key, partial(doubtful, dim=target.dim))
    log_mass, error = laplace.log_mass.copy(), laplace.error.copy()
    log_mass[near], error[near] = found.log_mass, found.error
    return Masses(log_mass, error, found.num_gradients)


def light_modes(masses: Masses, state: SearchState) -> Bool[np.ndarray, " peaks"]:
    """Modes too light to keep, beyond the error of their mass, that few starts hit."""
    dim = len(state.peaks[0].location)
    return too_light(masses.log_share, masses.error, dim) & ~often_hit(state)


def too_light(log_share: Float[np.ndarray, " n"], error: Float[np.ndarray, " n"], dim: int) -> Bool[np.ndarray, " n"]:
    """Whether shares are below what is kept, beyond their errors; these are at most what a chart can miss."""
    most = np.minimum(SAFE_ERRORS * error, NATS_A_DIMENSION * dim)
    return log_share + most < np.log(LIGHTEST_KEPT_SHARE)


def doubtful(log_share: Float[np.ndarray, " n"], error: Float[np.ndarray, " n"], dim: int) -> Bool[np.ndarray, " n"]:
    """Modes that seem to be below what is kept, but would be kept because their draws tell nothing."""
    return np.isinf(error) & (log_share < np.log(LIGHTEST_KEPT_SHARE)) & ~too_light(log_share, error, dim)


def often_hit(state: SearchState) -> Bool[np.ndarray, " peaks"]:
    """Modes that a large share of the independent starts hit."""
    return state.independent_hits > LARGE_HIT_SHARE * state.num_independent


def require_modes(state: SearchState, *, unbounded: bool = False) -> None:
    """Something to make a library of; else one clear error."""
    if state.peaks and not unbounded:
        return
    if unbounded or state.dropped.get("runs away", 0):
        raise ValueError(
            "the log density grows without bound away from the start region, so it is not a density that can be "
            "normalised (it is improper): give the parameters bounds, Target(..., bounds=...), or a prior that falls "
            "off; look at print(target.check())"
        )
    reasons = tell_dropped(state.dropped) if state.dropped else "none of them reached anything"
    raise ValueError(
        f"no mode was found from {state.num_starts} starts: {reasons}; "
        "look at print(target.check()), move the start region, or give modes="
    )
