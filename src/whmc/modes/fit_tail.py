"""Heavy tails for charts, coordinate by coordinate, by likelihood. All NumPy.

In the whitened coordinates of a chart each coordinate is fitted alone: its middle is the median m, and for each h that
is tried its scale s is the one that puts half of the draws where half of a Gaussian is,

    median |z - m| = s z(c),     c = Φ^{-1}(3/4),

and some lengths around it. Directions stay those of the chart, so that 3 D numbers are learned, and not D².
"""

import dataclasses

import numpy as np

from whmc._shapes import Float
from whmc.modes.chart_data import ChartData
from whmc.modes.layers.scales import Scale
from whmc.modes.layers.tails import AbstractTail, Tail

HEAVINESS = (0.0, 0.03, 0.06, 0.1, 0.15, 0.2, 0.25, 0.33, 0.4, 0.5)
"""Values of h that are tried: one over the degrees of freedom."""

SIZES = (0.87, 1.0, 1.15)
"""Scales that are tried, around the one that fits the middle half of the draws."""

QUARTILE = 0.6744897501960817
"""c, beyond which a Gaussian has a quarter of its mass."""

PSEUDO_DRAWS = 200.0
"""Draws of the mean coordinate that every coordinate is credited with. One that had the tails of a Gaussian for want of
draws would leave q without reach in its direction; where draws are many, they decide."""


def quartile_of(heaviness: Float[np.ndarray, " n"]) -> Float[np.ndarray, " n"]:
    """z(c)/c: what tails do to the middle half of the draws."""
    x = np.full(len(heaviness), QUARTILE)
    return np.asarray(Tail.of(heaviness, len(heaviness)).forward(x)[0] / QUARTILE)


def fit_tail(chart: ChartData, draws: Float[np.ndarray, "n dim"]) -> ChartData | None:
    """The chart with middles, scales and tails of its own coordinates that make these draws likely.

    None where half of the draws agree in a coordinate: chains that do not move tell nothing of tails.
    """
    z = np.asarray(chart.scale.inverse(draws - chart.location)[0])
    middle = np.median(z, axis=0)
    half = np.median(np.abs(z - middle), axis=0) / QUARTILE
    if not np.all(half > 0):
        return None
    fits = [_best_size(z - middle, half, h) for h in HEAVINESS]
    height, tried = (np.array(column) for column in zip(*fits, strict=True))
    score = height + PSEUDO_DRAWS / len(z) * height.mean(axis=1, keepdims=True)
    pick = np.argmax(score, axis=0)
    heaviness, own = np.array(HEAVINESS)[pick], np.arange(z.shape[1])
    # without a tail a coordinate has its moments
    shift = np.where(heaviness > 0, middle, z.mean(axis=0))
    size = np.where(heaviness > 0, tried[pick, own], z.std(axis=0))
    return _tailed(chart, chart.location + chart.scale.forward(shift)[0], chart.scale.resized(size), heaviness)


def _best_size(
    z: Float[np.ndarray, "n dim"], half: Float[np.ndarray, " dim"], h: float
) -> tuple[Float[np.ndarray, " dim"], Float[np.ndarray, " dim"]]:
    """The mean log density of each coordinate with tails h at its best scale, and that scale."""
    tail, tried = Tail.of(np.array([h]), 1), [factor * half / quartile_of(np.array([h])) for factor in SIZES]
    height = np.array([_log_density(tail, z / one).mean(axis=0) - np.log(one) for one in tried])
    pick = np.argmax(height, axis=0)[None]
    return np.take_along_axis(height, pick, 0)[0], np.take_along_axis(np.array(tried), pick, 0)[0]


def _log_density(tail: AbstractTail, z: Float[np.ndarray, "n dim"]) -> Float[np.ndarray, "n dim"]:
    """Of each coordinate alone, from a standard Gaussian x."""
    x, log_volume = tail.inverse(z[..., None])
    return np.asarray(-0.5 * x[..., 0] ** 2 - log_volume - 0.5 * np.log(2 * np.pi))


FEWEST_TO_RESIZE = 10
"""Draws from which on they tell the size of a chart that borrows its tails."""


def borrow_tail(chart: ChartData, draws: Float[np.ndarray, "n dim"], heaviness: Float[np.ndarray, " dim"]) -> ChartData:
    """The chart with tails of other charts; its size is that of the middle half of its draws, if there are enough."""
    factor = 0.0
    if len(draws) >= FEWEST_TO_RESIZE:
        z = chart.scale.inverse(draws - chart.location)[0]
        factor = float(np.median(np.abs(z) / quartile_of(heaviness))) / QUARTILE
    return _tailed(chart, chart.location, chart.scale.resized(factor if factor > 0 else 1.0), heaviness)


def _tailed(
    chart: ChartData, location: Float[np.ndarray, " dim"], scale: Scale, heaviness: Float[np.ndarray, " dim"]
) -> ChartData:
    """The chart with another place and scale, and these tails if there are any."""
    warps = (Tail.of(heaviness, chart.dim),) if np.any(heaviness) else ()
    return dataclasses.replace(chart.moved(location, scale), warps=warps)
