"""A mode as a search knows it."""

import dataclasses
from collections.abc import Sequence
from functools import cached_property

import numpy as np

from whmc._shapes import Float
from whmc.modes.band import BandShapes, coupled, uncoupled, uncoupled_back
from whmc.modes.chart import unwhiten_rows

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

    @property
    def log_laplace(self) -> float:
        """Laplace's approximation of the mode's part of the evidence, log pi(mu) + log |L| + D/2 log 2 pi."""
        sd = self.scale if self.scale.ndim == 1 else np.diagonal(self.scale)
        return float(self.logdensity + np.sum(np.log(sd)) + 0.5 * len(sd) * np.log(2 * np.pi))

    @cached_property
    def inverse_scale(self) -> Float[np.ndarray, "dim dim"] | Float[np.ndarray, " dim"]:
        return 1 / self.scale if self.scale.ndim == 1 else np.tril(np.linalg.inv(self.scale))

    @cached_property
    def radius(self) -> float:
        """No point within reach is farther away than this."""
        if self.coupling is not None:
            return np.inf
        return float(self.reach * (np.max(self.scale) if self.scale.ndim == 1 else np.linalg.norm(self.scale)))

    def whiten(self, position: Float[np.ndarray, "n dim"]) -> Float[np.ndarray, "n dim"]:
        """The positions in the peak's own chart."""
        shift = position - self.location
        z = shift * self.inverse_scale if self.scale.ndim == 1 else shift @ self.inverse_scale.T
        return z if self.coupling is None else coupled(self.coupling, z)

    def unwhiten(self, x: Float[np.ndarray, "n dim"]) -> Float[np.ndarray, "n dim"]:
        """The positions of points in the peak's own chart."""
        z = x if self.coupling is None else uncoupled(self.coupling, x)
        return self.location + unwhiten_rows(self.scale, z)

    def pulled(self, score: Float[np.ndarray, "n dim"]) -> Float[np.ndarray, "n dim"]:
        """Scores in the peak's own chart: the Newton step leads from x to x + L^T score."""
        slope = score * self.scale if self.scale.ndim == 1 else score @ self.scale
        return slope if self.coupling is None else uncoupled_back(self.coupling, slope)

    def distance(self, position: Float[np.ndarray, "n dim"]) -> Float[np.ndarray, " n"]:
        """In standard deviations of the peak's own chart."""
        return np.linalg.norm(self.whiten(position), axis=1)


def bands_of(peaks: Sequence[Peak]) -> BandShapes | None:
    """The bands of the peaks' charts, if any has one."""
    return BandShapes.of([peak.coupling for peak in peaks], len(peaks[0].location)) if peaks else None
