"""As many charts for a mode as its draws call for: one Gaussian, or a mixture of up to sixteen. All NumPy.

A jump or an independence move is accepted by w = pi/q. So what counts is how flat log w is, and

    E_pi log(pi_m/q_m),   pi_m and q_m the mode's own shares of pi and q,

is what more charts can gain at most, in nats a draw. Draws of a mode have the law pi_m whatever the charts were, so
those of several rounds serve together.
"""

import dataclasses

import numpy as np

from whmc._shapes import Float, Int
from whmc.modes.chart_data import ChartData, log_weights_of, scale_rows, step_sizes_of, with_numbers
from whmc.modes.gaussian_mixture import Density, GaussianMixture, climb, fit_gaussian_mixture
from whmc.modes.layers.scales import Dense
from whmc.modes.library import ModeLibrary
from whmc.modes.mixture import log_components_of
from whmc.modes.refine import MAX_STEP_SIZE

MIN_SPLIT_GAIN = 0.4
"""Least gain in mean log density of held-out draws, in nats a draw, for which a mode gets several charts. Jump
acceptance improves by about this much; for smaller gains the extra rejections of local moves at chart boundaries
outweigh it."""

MIN_GAIN_BESIDE_BEND = 0.1
"""The same for Gaussians beside a bent chart, which stays: a bend is one curve, and what the mode has besides it does
not see. On the sensor network two to four of them gain .2 to .5."""

MIN_FURTHER_GAIN = 0.1
"""Least further gain, in nats a draw, for which a mode that has several charts gets twice as many."""

SIZES = (2, 4, 8, 16)
"""Numbers of charts that are tried. From eight on they gain little, beyond sixteen nothing."""

FEWEST_DRAWS = 20
FEWEST_OF_CHART = 5
"""Draws that a mode must have for several charts, and each of them for its own, as multiples of D + 1."""

MAX_DRAWS_TO_SPLIT = 6000
"""Draws of a mode that its charts are fitted to: with more it takes seconds."""

HOME_SHARE = 0.05
"""Of a mode's weight that a straight home keeps beside other charts: it is wider than they are, its tails reach
further."""

LEAST_ROOM, MAX_ROOM = 14, 36
"""Unused places that a library keeps for splits: enough for eight charts in one mode and four in another. Every place
costs time at every step."""

MAX_DIM_TO_SPLIT = 50
"""Modes get several charts up to this dimension. Above it a warm-up hardly ever has the draws to learn a second
covariance."""


def splittable(library: ModeLibrary) -> bool:
    """Whether its modes may get several charts at all."""
    return library.dim <= MAX_DIM_TO_SPLIT and not library.diagonal


def fitted_with(library: ModeLibrary) -> Int[np.ndarray, " size"]:
    """The chart that is fitted to the draws of each chart: the home of its mode, or itself if modes are not split."""
    return library.home_of if splittable(library) else np.arange(library.size)


def room_to_split(library: ModeLibrary) -> int:
    """Unused places to keep for the charts that splitting may add: filling them needs no new compilation."""
    return min(max(LEAST_ROOM, 4 + library.size), MAX_ROOM) if splittable(library) else 0


def fit_mixtures(
    library: ModeLibrary, position: Float[np.ndarray, "n dim"], logdensity: Float[np.ndarray, " n"], *, grow: bool
) -> ModeLibrary:
    """The library with as many charts for each mode as there is gain in and room for, worst fitting modes first.

    grow: else no mode gets more charts than it has. `library` must have the Gaussian base. Homes stay as they are, and
    so does what a mode weighs.
    """
    logs = log_components_of(library, position)
    mode = library.mode_of[logs.argmax(axis=0)]
    log_ratio = logdensity - np.logaddexp.reduce(logs, axis=0)
    room = library.capacity - library.size if grow else 0
    charts = [[one for one in library.charts() if one.mode == m] for m in range(library.num_modes)]
    misfit = np.array([misfit_of(log_ratio[mode == m]) for m in range(len(charts))])
    found: dict[int, GaussianMixture] = {}
    for m in np.argsort(-misfit * np.bincount(mode, minlength=len(charts))).tolist():
        now, home = _mixture_of(charts[m]), charts[m][0]
        fitted = best_mixture(now, position[mode == m], float(misfit[m]), room, home if home.warps else None)
        if fitted is not None:
            found[m] = fitted
            room -= len(fitted.weight) - len(now.weight)
    if not found:
        return library
    pieces = [_with_mixture(mine, found[m]) if m in found else mine for m, mine in enumerate(charts)]
    return library.with_charts([one for mine in pieces for one in mine])


def misfit_of(log_ratio: Float[np.ndarray, " n"]) -> float:
    """E_pi log(pi/q) where both are normalised on the mode, from log w at its draws: 1/Z is the mean of 1/w."""
    if len(log_ratio) == 0:
        return 0.0
    low = log_ratio - log_ratio.min()
    return float(np.mean(low) + np.log(np.mean(np.exp(-low))))


def best_mixture(
    now: GaussianMixture, draws: Float[np.ndarray, "n dim"], misfit: float, room: int, bent: Density | None = None
) -> GaussianMixture | None:
    """Gaussians that give held-out draws enough more density than those of now; where there are none, than one
    Gaussian. Where the mode has a bent chart they stand beside it, and have to gain on it.

    If more do not, the same number with more of EM, where that helps; None for no change. misfit: what can be gained at
    most, about. room: for so many more. Two do not see rings, four do, so four are always tried; more only while they
    gain.
    """
    size, dim = len(now.weight), draws.shape[1]
    least = MIN_FURTHER_GAIN if size else MIN_SPLIT_GAIN if bent is None else MIN_GAIN_BESIDE_BEND
    if len(draws) < FEWEST_DRAWS * (dim + 1) or misfit < 0.5 * least:
        return None
    draws = draws[np.linspace(0, len(draws) - 1, min(len(draws), MAX_DRAWS_TO_SPLIT)).astype(int)]
    fit, held = draws[::2], draws[1::2]
    base = climb(now, fit) if size else fit_gaussian_mixture(fit, 1)
    height, best = (base if size or bent is None else bent).log_density(held).mean(), None
    for more in SIZES:
        if not size < more <= size + room:
            continue
        if more > max(4, 2 * (size if best is None else len(best.weight))):
            break
        found = fit_gaussian_mixture(fit, more)
        if bent is not None:
            found = climb(found.beside(bent, 0.5), fit)
        gain = found.log_density(held).mean() - height
        fewest = len(draws) * (1 - found.home_share) * found.weight.min()
        if gain > least and fewest > FEWEST_OF_CHART * (dim + 1):
            best, least = found, gain + MIN_FURTHER_GAIN
    if best is None and size > 1 and height > now.log_density(held).mean():
        best = base
    return None if best is None else climb(best, draws)


def _mixture_of(charts: list[ChartData]) -> GaussianMixture:
    """The charts of a mode besides its home, and beside that if it is bent, with weights that sum to one."""
    home, others, log_weight = charts[0], charts[1:], log_weights_of(charts)
    dim = home.dim
    weight = np.exp(log_weight[1:] - np.logaddexp.reduce(log_weight[1:]))
    mean = np.array([one.location for one in others]).reshape(-1, dim)
    found = GaussianMixture(weight, mean, np.array([scale_rows(one.scale) for one in others]).reshape(-1, dim, dim))
    share = float(np.exp(log_weight[0] - np.logaddexp.reduce(log_weight)))
    return found.beside(home, share) if home.warps and others else found


def _with_mixture(charts: list[ChartData], mixture: GaussianMixture) -> list[ChartData]:
    """The charts of a mode with a new mixture beside its home."""
    home = charts[0]
    share = HOME_SHARE if mixture.home is None else mixture.home_share
    weight = np.append(share, (1 - share) * mixture.weight)
    if len(weight) == len(charts):
        steps = step_sizes_of(charts)  # tuned in the charts that these were fitted from
    else:
        # a step is measured in the chart's own scale: in the stiffest direction it stays as long as in the home
        ratio = [np.linalg.norm(np.linalg.solve(factor, scale_rows(home.scale)), 2) for factor in mixture.factor]
        steps = np.append(home.step_size, np.minimum(home.step_size * np.array(ratio), MAX_STEP_SIZE))
    straight = dataclasses.replace(home, warps=())
    parts = zip(mixture.mean, mixture.factor, strict=True)
    log_weight = np.logaddexp.reduce(log_weights_of(charts)) + np.log(weight)
    made = [home, *(straight.moved(mean, Dense.of(factor)) for mean, factor in parts)]
    return with_numbers(made, log_weight=log_weight, step_size=steps)
