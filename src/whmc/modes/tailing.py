"""Heavy tails for charts whose modes have them. All NumPy."""

from typing import Any

import numpy as np

from whmc._shapes import Float
from whmc.modes.chart_data import ChartData, log_weights_of, scale_rows
from whmc.modes.fit_tail import borrow_tail, fit_tail
from whmc.modes.layers.bend import Bend
from whmc.modes.layers.scales import Dense
from whmc.modes.layers.tails import Tail
from whmc.modes.library import ModeLibrary
from whmc.modes.mixture import log_components_of
from whmc.modes.overlap import overlapping
from whmc.modes.refine import in_place_of
from whmc.modes.split import misfit_of, splittable

MIN_TAIL_GAIN = 0.3
"""Least gain in mean log density of held-out draws, in nats a draw and over all modes, for which charts get tails: a
block is compiled anew for them."""

MAX_DRAWS_TO_FIT = 1000
"""Draws of a mode that its tails are fitted to."""

FEWEST_DRAWS = 60
"""Draws that a mode must have for tails: what is rarer than one in thirty is not seen in fewer."""


def tail_charts(
    library: ModeLibrary, position: Float[np.ndarray, "n dim"], logdensity: Float[np.ndarray, " n"]
) -> ModeLibrary:
    """The library with tails for the charts whose modes have them, and tails that are there fitted to these draws.

    Not where charts are bent, and not for modes with several charts, or that overlap: the draws of one end where the
    other's chart begins. `library` must have the Gaussian base.
    """
    charts, has_tails = library.charts(), Tail in library.kinds
    if not splittable(library) or (Bend in library.kinds and np.any(library.bent)):
        return library
    logs = log_components_of(library, position)
    log_mixture = np.logaddexp.reduce(logs, axis=0)
    owner, log_ratio = logs.argmax(axis=0), logdensity - log_mixture
    overlap = overlapping(library.mode_of, np.exp(logs - log_mixture), np.exp(log_weights_of(charts)))
    alone = (np.bincount(library.mode_of) == 1) & ~overlap
    found: dict[int, ChartData] = {}
    few, gain = [], 0.0
    for k in np.flatnonzero(alone[library.mode_of]).tolist():
        mine = np.flatnonzero(owner == k)
        if len(mine) < FEWEST_DRAWS:
            few.append(k)
        elif misfit_of(log_ratio[mine]) > MIN_TAIL_GAIN:  # what can be gained at most, about
            best = best_tail(charts[k], position[mine])
            if best is not None:
                found[k], better = best
                gain += better * len(mine) / len(position)
    if not found or not (has_tails or gain > MIN_TAIL_GAIN):
        return library
    # a mode of few draws has the tails of the others: without them q hardly reaches its own
    typical = np.mean([_heaviness(chart) for chart in found.values()], axis=0)
    for k in few:
        if not charts[k].warps:
            found[k] = borrow_tail(charts[k], position[owner == k], typical)
    changed = [in_place_of(found[k], one) if k in found else one for k, one in enumerate(charts)]
    return ModeLibrary.of(changed, library.capacity, kinds=(Tail,))


def _heaviness(chart: ChartData) -> Float[np.ndarray, " dim"]:
    tail: Any = chart.warp(Tail)
    return np.asarray(tail.heaviness)


def best_tail(now: ChartData, draws: Float[np.ndarray, "n dim"]) -> tuple[ChartData, float] | None:
    """A chart with tails that gives held-out draws more density than that of now, and how much more; None: there is
    none."""
    draws = draws[np.linspace(0, len(draws) - 1, min(len(draws), MAX_DRAWS_TO_FIT)).astype(int)]
    fit, held = draws[::2], draws[1::2]
    best, gain = None, 0.0
    for start in _starts(now):
        found = fit_tail(start, fit)
        better = -np.inf if found is None else float(np.mean(found.log_density(held) - now.log_density(held)))
        if better > gain:
            best, gain = fit_tail(start, draws), better
    return None if best is None else (best, gain)


def _starts(now: ChartData) -> list[ChartData]:
    """Charts whose directions the tails may have: those of now, or the axes, which heavy tails do not blur."""
    lengths = np.linalg.norm(scale_rows(now.scale), axis=1)
    return [now, now.moved(now.location, Dense.of(np.diag(lengths)))]
