"""A mode as a search knows it."""

import dataclasses
from collections.abc import Sequence
from functools import cached_property

import numpy as np

from whmc._shapes import Float
from whmc.modes.chart_data import ChartData, scale_rows
from whmc.modes.layers.banded import Banded
from whmc.modes.layers.places import Shift
from whmc.modes.layers.scales import Dense, Diagonal

SAME_MODE_SD = 0.1
"""Ends nearer than this many standard deviations (of the peak's own curvature) are one mode. Polished points of one
mode agree to 1e-4; two modes that a chart can tell apart are more than one apart."""


@dataclasses.dataclass(frozen=True)
class Peak:
    """A mode: a location, usually a local maximum of the log density, with the scale of its chart.

    num_flat: directions without curvature. A peak that has some is a point of a ridge, a ring or a shell: one of many
        that make up a mode.
    start: where a chain may start, if not at the location.
    reach: standard deviations within which a point belongs to this mode.
    at_peak: whether the location is a polished maximum with the scale of its curvature, as opposed to moments of draws
        or a chart that was given. Laplace's formula holds for polished maxima only.
    coupling: of a chart with a band (`band.py`).
    """

    location: Float[np.ndarray, " dim"]
    logdensity: float
    scale: Float[np.ndarray, "dim dim"] | Float[np.ndarray, " dim"]
    num_flat: int = 0
    start: Float[np.ndarray, " dim"] | None = None
    reach: float = SAME_MODE_SD
    at_peak: bool = True
    coupling: Float[np.ndarray, "width dim"] | None = None

    @classmethod
    def of(cls, chart: ChartData, logdensity: float, *, reach: float = SAME_MODE_SD) -> "Peak":
        """Of a chart that is known beforehand; it may stand for a mode's mean."""
        coupling = np.asarray(chart.scale.coupling) if isinstance(chart.scale, Banded) else None
        scale = scale_rows(chart.scale)
        return cls(chart.location, logdensity, scale, reach=reach, at_peak=False, coupling=coupling)

    @cached_property
    def chart(self) -> ChartData:
        if self.coupling is not None:
            return ChartData(Shift(self.location), Banded.of(self.scale, self.coupling))
        return ChartData(Shift(self.location), (Diagonal if self.scale.ndim == 1 else Dense).of(self.scale))

    @property
    def log_laplace(self) -> float:
        """Laplace's approximation of the mode's part of the evidence, log pi(mu) + log |L| + D/2 log 2 pi."""
        return float(self.logdensity + self.chart.scale.log_det + 0.5 * self.chart.dim * np.log(2 * np.pi))

    @cached_property
    def radius(self) -> float:
        """No point within reach is farther away than this."""
        if self.coupling is not None:
            return np.inf
        return float(self.reach * (np.max(self.scale) if self.scale.ndim == 1 else np.linalg.norm(self.scale)))

    def whiten(self, position: Float[np.ndarray, "n dim"]) -> Float[np.ndarray, "n dim"]:
        """The positions in the peak's own chart."""
        return np.asarray(self.chart.chart.inverse(position)[0])

    def unwhiten(self, x: Float[np.ndarray, "n dim"]) -> Float[np.ndarray, "n dim"]:
        """The positions of points in the peak's own chart."""
        return np.asarray(self.chart.chart.forward(x)[0])

    def pulled(self, score: Float[np.ndarray, "n dim"]) -> Float[np.ndarray, "n dim"]:
        """Scores in the peak's own chart: the Newton step leads from x to x + L^T score."""
        return self.chart.scale.transposed(score)

    def distance(self, position: Float[np.ndarray, "n dim"]) -> Float[np.ndarray, " n"]:
        """In standard deviations of the peak's own chart."""
        return np.linalg.norm(self.whiten(position), axis=1)


def charts_of(peaks: Sequence[Peak], log_weight: np.ndarray | None = None, step_size: float = 1.0) -> list[ChartData]:
    """The charts of the peaks, each a mode of its own; of equal weight unless told."""
    weights = np.zeros(len(peaks)) if log_weight is None else log_weight
    return [
        dataclasses.replace(peak.chart, log_weight=float(weight), step_size=step_size, mode=k)
        for k, (peak, weight) in enumerate(zip(peaks, weights, strict=True))
    ]
