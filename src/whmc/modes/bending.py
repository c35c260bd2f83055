"""Bent charts for bananas and funnels, each in the place of a straight one. All NumPy."""

import numpy as np

from whmc._shapes import Float
from whmc.modes.chart_data import ChartData, log_weights_of
from whmc.modes.fit_bend import fit_bend
from whmc.modes.gaussian_mixture import fit_gaussian_mixture
from whmc.modes.layers.tails import Tail
from whmc.modes.library import ModeLibrary
from whmc.modes.mixture import log_components_of, log_ratio_of
from whmc.modes.overlap import overlapping
from whmc.modes.refine import in_place_of
from whmc.modes.split import FEWEST_DRAWS, misfit_of, splittable
from whmc.target.rows import logdensities
from whmc.target.target import Target

MIN_BEND_GAIN = 0.1
"""Least gain in mean log density of held-out draws, in nats a draw, for which a chart is bent."""

MAX_DRAWS_TO_BEND = 2000
"""Draws of a mode that a bend is fitted to: with them it is off by a few hundredths of a nat."""

MUCH = 1e6
"""Nats that are as good as infinite."""


LOOKS = 32
LOOKED_AT = 4
UNEVEN = 1.0
"""Draws of each of so many of the heaviest charts, and the spread of log w = log(pi/q) among them, in nats, from which
on a bend may be wanted. Modes that are nearly Gaussian in their charts have spreads up to .3."""


def may_bend(target: Target, library: ModeLibrary) -> bool:
    """Whether the charts fit so badly that some may be bent later.

    A library that knows bends from the start is compiled once; steps in it take a tenth longer.
    """
    if not splittable(library) or library.dim < 2:
        return False
    charts = library.charts()
    heaviest = np.argsort(-log_weights_of(charts), kind="stable")[:LOOKED_AT].tolist()
    z = np.random.default_rng(0).standard_normal((len(heaviest), LOOKS, library.dim))
    position = np.stack(
        [charts[k].place.forward(charts[k].scale.forward(rows)[0])[0] for k, rows in zip(heaviest, z, strict=True)]
    )
    flat = position.reshape(-1, library.dim)
    logdensity = logdensities(target if target.has_gradient else target.without_scores, flat)
    log_ratio = log_ratio_of(library, flat, logdensity).reshape(len(heaviest), -1)
    log_ratio = np.maximum(log_ratio, -MUCH)  # outside of the support
    spread = 1.48 * np.median(np.abs(log_ratio - np.median(log_ratio, axis=1, keepdims=True)), axis=1)
    return bool(spread.max() > UNEVEN)


def bend_charts(
    library: ModeLibrary, position: Float[np.ndarray, "n dim"], logdensity: Float[np.ndarray, " n"]
) -> ModeLibrary:
    """The library with the charts bent whose modes are, and bends that are there fitted to these draws.

    Modes with several charts stay as they are, and so do modes that overlap: the draws of one end where the other's
    chart begins, and a bend would follow that border. `library` must have the Gaussian base.
    """
    if not splittable(library) or library.dim < 2 or Tail in library.kinds:
        return library
    logs = log_components_of(library, position)
    log_mixture = np.logaddexp.reduce(logs, axis=0)
    mode, log_ratio = library.mode_of[logs.argmax(axis=0)], logdensity - log_mixture
    charts = library.charts()
    overlap = overlapping(library.mode_of, np.exp(logs - log_mixture), np.exp(log_weights_of(charts)))
    found: dict[int, ChartData] = {}
    for m in np.flatnonzero((np.bincount(library.mode_of) == 1) & ~overlap).tolist():
        k = int(np.flatnonzero(library.mode_of == m)[0])
        if not charts[k].warps and misfit_of(log_ratio[mode == m]) < MIN_BEND_GAIN:
            continue
        best = best_bend(charts[k], position[mode == m])
        if best is not None:
            found[k] = in_place_of(best, charts[k])
    return library.with_charts([found.get(k, one) for k, one in enumerate(charts)]) if found else library


def best_bend(now: ChartData, draws: Float[np.ndarray, "n dim"]) -> ChartData | None:
    """A bent chart that gives held-out draws enough more density than that of now, and than one Gaussian if that is
    straight; else None."""
    if len(draws) < FEWEST_DRAWS * (draws.shape[1] + 1):
        return None
    draws = draws[np.linspace(0, len(draws) - 1, min(len(draws), MAX_DRAWS_TO_BEND)).astype(int)]
    fit, held = draws[::2], draws[1::2]
    found = fit_bend(fit, now if now.warps else None)
    if found is None:
        return None
    before = [now.log_density(held).mean()]
    if not now.warps:
        before.append(fit_gaussian_mixture(fit, 1).log_density(held).mean())
    gain = found.log_density(held).mean() - max(before)
    return fit_bend(draws, found, afresh=False) if gain > (0.0 if now.warps else MIN_BEND_GAIN) else None
