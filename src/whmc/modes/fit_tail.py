"""Heavy tails for charts, coordinate by coordinate, by likelihood. All NumPy.

In the whitened coordinates of a chart each coordinate is fitted alone: its middle is the median m, and for each h that
is tried its scale s is the one that puts half of the draws where half of a Gaussian is,

    median |z - m| = s z(c),     c = Φ^{-1}(3/4),

and some lengths around it. Directions stay those of the chart, so that 3 D numbers are learned, and not D².
"""

import dataclasses
from typing import Any

import numpy as np

from whmc._shapes import Float
from whmc.modes.library import ModeLibrary
from whmc.modes.tail import TailShapes, log_density_of, stretched

HEAVINESS = (0.0, 0.03, 0.06, 0.1, 0.15, 0.2, 0.25, 0.33, 0.4, 0.5)
"""Values of h that are tried: one over the degrees of freedom."""

SIZES = (0.87, 1.0, 1.15)
"""Scales that are tried, around the one that fits the middle half of the draws."""

QUARTILE = 0.6744897501960817
"""c, beyond which a Gaussian has a quarter of its mass."""

PSEUDO_DRAWS = 200.0
"""Draws of the mean coordinate that every coordinate is credited with. One that had the tails of a Gaussian for want of
draws would leave q without reach in its direction; where draws are many, they decide."""


@dataclasses.dataclass(frozen=True)
class TailChart:
    """A chart with tails: location, scale, and h of each whitened coordinate."""

    location: Float[np.ndarray, " dim"]
    scale: Float[np.ndarray, "dim dim"]
    heaviness: Float[np.ndarray, " dim"]

    @classmethod
    def of(cls, library: ModeLibrary, k: int) -> "TailChart":
        """Chart k of a library with tails, or of one without."""
        charts, shapes = library.charts(), library.shapes()
        heaviness = shapes.heaviness[k] if isinstance(shapes, TailShapes) else np.zeros(library.dim)
        return cls(charts.location[k], charts.scale[k], heaviness)

    def log_density(self, draws: Float[np.ndarray, "n dim"]) -> Float[np.ndarray, " n"]:
        """That of the chart with a Gaussian base."""
        z = np.linalg.solve(self.scale, (draws - self.location).T).T
        x, log_volume = TailShapes(self.heaviness[None]).straighten(0, z)
        log_det = np.sum(np.log(np.diagonal(self.scale)))
        return -0.5 * np.sum(x**2, axis=1) - log_volume - log_det - 0.5 * z.shape[1] * np.log(2 * np.pi)


def quartile_of(h: Any) -> Any:
    """z(c)/c: what tails do to the middle half of the draws."""
    return stretched(h, QUARTILE) / QUARTILE


def fit_tail(chart: TailChart, draws: Float[np.ndarray, "n dim"]) -> TailChart | None:
    """The chart with middles, scales and tails of its own coordinates that make these draws likely.

    None where half of the draws agree in a coordinate: chains that do not move tell nothing of tails.
    """
    z = np.linalg.solve(chart.scale, (draws - chart.location).T).T
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
    return TailChart(chart.location + chart.scale @ shift, chart.scale * size, heaviness)


def _best_size(
    z: Float[np.ndarray, "n dim"], half: Float[np.ndarray, " dim"], h: float
) -> tuple[Float[np.ndarray, " dim"], Float[np.ndarray, " dim"]]:
    """The mean log density of each coordinate with tails h at its best scale, and that scale."""
    tried = [factor * half / quartile_of(h) for factor in SIZES]
    height = np.array([log_density_of(z / one, h).mean(axis=0) - np.log(one) for one in tried])
    pick = np.argmax(height, axis=0)[None]
    return np.take_along_axis(height, pick, 0)[0], np.take_along_axis(np.array(tried), pick, 0)[0]


FEWEST_TO_RESIZE = 10
"""Draws from which on they tell the size of a chart that borrows its tails."""


def borrow_tail(chart: TailChart, draws: Float[np.ndarray, "n dim"], heaviness: Float[np.ndarray, " dim"]) -> TailChart:
    """The chart with tails of other charts; its size is that of the middle half of its draws, if there are enough."""
    factor = 0.0
    if len(draws) >= FEWEST_TO_RESIZE:
        z = np.linalg.solve(chart.scale, (draws - chart.location).T).T
        factor = float(np.median(np.abs(z) / quartile_of(heaviness))) / QUARTILE
    return TailChart(chart.location, chart.scale * (factor if factor > 0 else 1.0), heaviness)
