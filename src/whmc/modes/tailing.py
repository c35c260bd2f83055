"""Heavy tails for charts whose modes have them. All NumPy."""

import dataclasses

import numpy as np

from whmc._shapes import Float
from whmc.modes.bend import BendShapes
from whmc.modes.fit_tail import TailChart, borrow_tail, fit_tail
from whmc.modes.library import ModeLibrary
from whmc.modes.mixture import log_components_of
from whmc.modes.overlap import overlapping
from whmc.modes.refine import UNTRIED_STEP
from whmc.modes.split import misfit_of, splittable
from whmc.modes.tail import TailShapes

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
    shapes = library.shapes()
    has_tails = isinstance(shapes, TailShapes)
    if not splittable(library) or (isinstance(shapes, BendShapes) and np.any(library.bent)):
        return library
    logs = log_components_of(library, position)
    log_mixture = np.logaddexp.reduce(logs, axis=0)
    owner, log_ratio = logs.argmax(axis=0), logdensity - log_mixture
    overlap = overlapping(library.mode_of, np.exp(logs - log_mixture), np.exp(library.charts().log_weight))
    alone = (np.bincount(library.mode_of) == 1) & ~overlap
    found: dict[int, TailChart] = {}
    few, gain = [], 0.0
    for k in np.flatnonzero(alone[library.mode_of]).tolist():
        mine = np.flatnonzero(owner == k)
        if len(mine) < FEWEST_DRAWS:
            few.append(k)
        elif misfit_of(log_ratio[mine]) > MIN_TAIL_GAIN:  # what can be gained at most, about
            best = best_tail(TailChart.of(library, k), position[mine])
            if best is not None:
                found[k], better = best
                gain += better * len(mine) / len(position)
    if not found or not (has_tails or gain > MIN_TAIL_GAIN):
        return library
    # a mode of few draws has the tails of the others: without them q hardly reaches its own
    typical = np.mean([chart.heaviness for chart in found.values()], axis=0)
    for k in few:
        if not np.any(TailChart.of(library, k).heaviness):
            found[k] = borrow_tail(TailChart.of(library, k), position[owner == k], typical)
    return _with_tails(library, found)


def best_tail(now: TailChart, draws: Float[np.ndarray, "n dim"]) -> tuple[TailChart, float] | None:
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


def _starts(now: TailChart) -> list[TailChart]:
    """Charts whose directions the tails may have: those of now, or the axes, which heavy tails do not blur."""
    return [now, dataclasses.replace(now, scale=np.diag(np.linalg.norm(now.scale, axis=1)))]


def _with_tails(library: ModeLibrary, found: dict[int, TailChart]) -> ModeLibrary:
    """The library with these charts in the place of its own."""
    location, scale, log_weight, step_size = library.charts()
    shapes = library.shapes()
    tails = shapes if isinstance(shapes, TailShapes) else TailShapes.straight(library.size, library.dim)
    heaviness = tails.heaviness.copy()
    for k, chart in found.items():
        if not np.any(heaviness[k]):
            # as long as before in the direction in which the chart has become narrower most
            ratio = np.linalg.norm(np.linalg.solve(chart.scale, scale[k]), 2)
            step_size[k] = max(step_size[k], min(step_size[k] * ratio, UNTRIED_STEP))
        location[k], scale[k], heaviness[k] = chart.location, chart.scale, chart.heaviness
    return library.with_charts(location, scale, log_weight=log_weight, step_size=step_size, bends=TailShapes(heaviness))
