"""`find_modes`: finders, polish, local chains for what has no peak, and what each mode weighs."""

import math
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from whmc._shapes import Array
from whmc.keys import Stream, child, children, stream_key
from whmc.modes.chart_data import locations_of
from whmc.modes.library import ModeLibrary
from whmc.search.connect import connect, explained_strays
from whmc.search.cooled import Cooled
from whmc.search.doing import Doing
from whmc.search.effort import Effort
from whmc.search.finders import AbstractFinder, MultiStart
from whmc.search.mode_search import (
    STRAY_SHARE,
    SearchState,
    Tell,
    forget_strays,
    know,
    loose_points,
    run_finder,
    start_search,
    with_cost,
    with_peaks,
)
from whmc.search.report import SearchReport, finish
from whmc.search.representatives import fold_target
from whmc.search.tempered import Tempered
from whmc.target.check import require_count, require_scalar_output
from whmc.target.compiled import kept_code
from whmc.target.counted import counted
from whmc.target.rows import logdensities
from whmc.target.target import Target, require_target

MAX_MODES = 256
"""Charts in a library, unless told: a step looks at every chart, so many cost time."""

DEFAULT_FINDERS = (MultiStart(), Tempered())
"""By basin, then by mass: each finds modes that the other cannot."""


MAX_DIM_ANNEALED = 800
"""Dimensions up to which a population is annealed by default. Beyond, none arrives on the budget of a run."""


def find_modes(
    target: Target,
    *,
    seed: int = 0,
    finder: AbstractFinder | Sequence[AbstractFinder] | None = None,
    max_modes: int = MAX_MODES,
) -> ModeLibrary:
    """The modes of a target, from its start region: a library to look at, or to give to `sample(modes=...)`.

    `search_modes` also tells what was left out and what may be missing.
    """
    return search_modes(target, seed=seed, finder=finder, max_modes=max_modes).library


def search_modes(
    target: Target,
    *,
    seed: int = 0,
    finder: AbstractFinder | Sequence[AbstractFinder] | None = None,
    known: ModeLibrary | None = None,
    max_modes: int = MAX_MODES,
    budget: float = math.inf,
    effort: Effort | None = None,
    tell: Tell = lambda state, doing: None,
) -> SearchReport:
    """A search for modes, with its report.

    finder: `MultiStart(num_starts)`, `Residual()`, `Tempered()`, or several, run one after the other; by default
        many starts, then, up to 800 dimensions, an annealed population.
    known: charts that are known beforehand.
    max_modes: charts at most; the heaviest are kept.
    budget: gradients that the default finders take, at most. Without one they take what their rule asks for: free
        starts, which take some seconds, more while hits say that mass is missing, then a population.
    effort: what a search is worth to the run that it is made for.
    tell: is given the search and what it is at after every batch of starts, and at every temperature.
    """
    require_target(target)
    finders = require_finders(finder)
    if finder is None and target.dim > MAX_DIM_ANNEALED:
        finders = DEFAULT_FINDERS[:1]
    require_count("seed", seed, 0)
    require_count("max_modes", max_modes, 1)
    effort = effort or Effort.of_search(budget)
    if target.starts is None:
        raise ValueError("there is nowhere to start a search: give Target(..., starts=(low, high)), or modes=")
    with kept_code(), jax.enable_x64(True), target.user_errors():
        require_scalar_output(target)
        with counted() as folding:
            target = fold_target(target, seed)
        key = stream_key(seed, Stream.SEARCH)  # its children: the finders, then three for what follows them
        key_strays, key_chains, key_masses = (child(key, len(finders) + n) for n in range(3))
        state = with_cost(start_search(target, max_modes), folding.num)
        if known is not None:
            heights = logdensities(target, locations_of(known.charts()))
            state = with_cost(know(state, known, heights), known.size)
        for n, one in enumerate(finders):
            state = _with_finder(state, target, one, child(key, n), effort, tell)
        tell(state, Doing("weighing what was found"))
        state = _without_explained(state, target, key_strays)
        state, unbounded = _with_unpeaked(state, target, key_chains)
        return finish(state, target, key_masses, unbounded=unbounded)


def _with_finder(
    state: SearchState,
    target: Target,
    finder: AbstractFinder,
    key: Array,
    effort: Effort,
    tell: Tell,
) -> SearchState:
    """The search after a finder. A population is small where little may be spent and hits are even; a whole one follows
    where the small one has found something."""
    if not isinstance(finder, Tempered):
        return run_finder(state, target, finder, key, effort, tell=tell)
    key_whole, key_small, key_strays, key_cooled, key_cooled_small = children(key, 5)
    left = effort.most - state.num_gradients
    if left < finder.least(target.dim):
        return state
    third = min(effort.frugal, left) / 3  # so that masses can be weighed from the last

    def populate(state: SearchState, population: Tempered, key: Array, key_cooled: Array) -> SearchState:
        until = effort.most if not state.even else state.num_gradients + 2 * third
        state = run_finder(state, target, population, key, tell=tell)
        return run_finder(state, target, Cooled(), key_cooled, until=until, tell=tell)

    small = finder.within(third, target.dim)
    if small.num_particles < finder.num_particles and (state.even or effort.most < math.inf):
        after = _without_explained(populate(state, small, key_small, key_cooled_small), target, key_strays)
        found = (len(after.peaks), len(after.stray)) != (len(state.peaks), len(state.stray))
        if effort.most < math.inf or not found:
            return after
        state = after
    return populate(state, finder, key_whole, key_cooled)


def _without_explained(state: SearchState, target: Target, key: Array) -> SearchState:
    """Strays of modes that reach further than their peak's curvature says are no modes of their own."""
    if len(state.stray) == 0:
        return state
    explained, cost = explained_strays(target, state.stray, state.stray_owner, state.peaks, key)
    few = np.sum(~explained) <= STRAY_SHARE * state.num_particles  # as many as a population may have in its tails
    return with_cost(forget_strays(state, explained | few), cost)


def _with_unpeaked(state: SearchState, target: Target, key: Array) -> tuple[SearchState, bool]:
    """The search with charts of modes that have no peak, and whether its chains ran away instead."""
    points = loose_points(state)
    if len(points) == 0:
        return state, False
    found = connect(target, points, state.peaks, key)
    state = with_cost(state, found.num_gradients)
    # a mode that is not reached yet also climbs: only where descents run away too is there none
    unbounded = found.drifting and 2 * state.dropped.get("runs away", 0) > state.num_starts
    return with_peaks(state, (*state.peaks, *found.charts), found.num_points), unbounded


def require_finders(finder: AbstractFinder | Sequence[AbstractFinder] | None) -> tuple[AbstractFinder, ...]:
    """The finders to run, one after the other."""
    if finder is None:
        return DEFAULT_FINDERS
    finders: tuple[Any, ...] = tuple(finder) if isinstance(finder, (list, tuple)) else (finder,)
    for one in finders:
        if not isinstance(one, AbstractFinder):
            raise TypeError(f"finder must be a whmc finder such as MultiStart(1024), got {type(one).__name__}")
    if not finders:
        raise ValueError("finder is empty: give one such as MultiStart(1024), or leave it out")
    return finders
