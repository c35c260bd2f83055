"""Bent charts for bananas and funnels, each in the place of a straight one. All NumPy."""

import numpy as np

from whmc._shapes import Float
from whmc.modes.fit_bend import BentChart, fit_bend
from whmc.modes.gaussian_mixture import fit_gaussian_mixture
from whmc.modes.library import ModeLibrary
from whmc.modes.mixture import log_components_of, log_ratio_of
from whmc.modes.overlap import overlapping
from whmc.modes.refine import UNTRIED_STEP
from whmc.modes.split import FEWEST_DRAWS, misfit_of, splittable
from whmc.modes.tail import Tails
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
    location, scale, log_weight, _ = library.charts()
    heaviest = np.argsort(-log_weight, kind="stable")[:LOOKED_AT]
    z = np.random.default_rng(0).standard_normal((len(heaviest), LOOKS, library.dim))
    position = location[heaviest, None] + np.einsum("kij,knj->kni", scale[heaviest], z)
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
    if not splittable(library) or library.dim < 2 or isinstance(library.bend, Tails):
        return library
    logs = log_components_of(library, position)
    log_mixture = np.logaddexp.reduce(logs, axis=0)
    mode, log_ratio = library.mode_of[logs.argmax(axis=0)], logdensity - log_mixture
    location, scale, log_weight, step_size = library.charts()
    overlap = overlapping(library.mode_of, np.exp(logs - log_mixture), np.exp(log_weight))
    bends, bent, changed = library.bends(), library.bent, False
    for m in np.flatnonzero((np.bincount(library.mode_of) == 1) & ~overlap).tolist():
        k = int(np.flatnonzero(library.mode_of == m)[0])
        if not bent[k] and misfit_of(log_ratio[mode == m]) < MIN_BEND_GAIN:
            continue
        found = best_bend(BentChart.of(library, k), position[mode == m])
        if found is None:
            continue
        changed = True
        if not bent[k]:
            # as long as before in the direction in which the chart has become narrower most
            ratio = np.linalg.norm(np.linalg.solve(found.scale, scale[k]), 2)
            step_size[k] = max(step_size[k], min(step_size[k] * ratio, UNTRIED_STEP))
        location[k], scale[k] = found.location, found.scale
        bends.axis[k], bends.curve[k], bends.stretch[k] = found.axis, found.curve, found.stretch
    if not changed:
        return library
    return library.with_charts(location, scale, log_weight=log_weight, step_size=step_size, bends=bends)


def best_bend(now: BentChart, draws: Float[np.ndarray, "n dim"]) -> BentChart | None:
    """A bent chart that gives held-out draws enough more density than that of now, and than one Gaussian if that is
    straight; else None."""
    if len(draws) < FEWEST_DRAWS * (draws.shape[1] + 1):
        return None
    draws = draws[np.linspace(0, len(draws) - 1, min(len(draws), MAX_DRAWS_TO_BEND)).astype(int)]
    fit, held = draws[::2], draws[1::2]
    found = fit_bend(fit, now if now.bent else None)
    if found is None:
        return None
    before = [now.log_density(held).mean()]
    if not now.bent:
        before.append(fit_gaussian_mixture(fit, 1).log_density(held).mean())
    gain = found.log_density(held).mean() - max(before)
    return fit_bend(draws, found, afresh=False) if gain > (0.0 if now.bent else MIN_BEND_GAIN) else None
