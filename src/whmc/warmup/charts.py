"""Charts from draws: moments, shrunk towards the curvature as far as that fits better. All of it NumPy, on the host."""

import dataclasses
from collections.abc import Sequence

import numpy as np

from whmc._shapes import Float, Int
from whmc.modes.chart_data import ChartData, like, locations_of, scale_rows
from whmc.modes.layers.banded import Banded
from whmc.modes.layers.scales import Dense
from whmc.modes.library import ModeLibrary
from whmc.modes.split import fitted_with


@dataclasses.dataclass(frozen=True)
class ChartShapes:
    """Locations and scales of charts, as the warm-up stores them; scales are those of a Gaussian base."""

    location: Float[np.ndarray, "size dim"]
    scale: Float[np.ndarray, "size dim dim"] | Float[np.ndarray, "size dim"]

    @classmethod
    def of(cls, charts: Sequence[ChartData]) -> "ChartShapes":
        return cls(locations_of(charts), np.stack([scale_rows(one.scale) for one in charts]))

    def charts(self, library: ModeLibrary) -> list[ChartData]:
        """The library's charts with these locations and scales."""
        parts = zip(library.charts(), self.location, self.scale, strict=True)
        return [one.moved(place, like(one.scale, rows)) for one, place, rows in parts]


def fit_charts(
    curvature: Sequence[ChartData],
    library: ModeLibrary,
    position: Float[np.ndarray, "n dim"],
    logdensity: Float[np.ndarray, " n"],
    label: Int[np.ndarray, " n"],
) -> list[ChartData]:
    """Each chart from the moments of its mode's draws, as far as that makes w = pi/q flatter than the curvature does.

    Jumps are accepted with ratios of w. So moments are fitted to one half of a mode's draws at several degrees of
    shrinking towards the curvature, and the degree is kept whose log w varies least over the other half: draws that are
    few, or a mode that is Gaussian, keep the curvature; skewed, flat and heavy modes get their moments.

    A mode with several charts has its home fitted so; the others stay as they are in the library, for `fit_mixtures`,
    and bent charts for `bend_charts`.
    """
    charts, owner = library.charts(), fitted_with(library)
    for k in np.unique(owner).tolist():
        if charts[k].warps:
            continue
        found, mine = curvature[k], np.flatnonzero(owner[label] == k)
        if len(mine) >= FEWEST_DRAWS:
            fit, held = mine[::2], mine[1::2]
            # with a band only location and size are learned: single scales of coupled coordinates mean little
            shares = SHARES[:2] if isinstance(found.scale, Banded) else SHARES
            tried = [_blend(curvature[k], position[fit], share) for share in shares]
            scores = [_unevenness(one, position[held], logdensity[held]) for one in tried]
            found = _blend(curvature[k], position[mine], shares[int(np.argmin(scores))]) or found
        charts[k] = charts[k].moved(found.location, found.scale)
    return charts


FEWEST_DRAWS = 8
"""A chart of fewer is that of the curvature."""

SHARES: tuple[float | None, ...] = (None, 0.0, 0.3, 0.6, 0.8, 0.9, 0.97, 1.0)
"""How far a chart goes from curvature to moments. None: pure curvature; 0: its shape with the draws' mean and size."""


def _blend(curvature: ChartData, draws: Float[np.ndarray, "n dim"], share: float | None) -> ChartData | None:
    """None where draws do not differ in some direction, or are too few: they make no chart."""
    if share is None:
        return curvature
    mean = np.mean(draws, axis=0)
    z = np.asarray(curvature.scale.inverse(draws - mean)[0])
    size = np.sqrt(np.mean(z**2))
    if share == 0.0:
        factor = size
    elif not isinstance(curvature.scale, Dense):
        factor = np.sqrt((1 - share) * size**2 + share * np.mean(z**2, axis=0))
    else:
        try:
            factor = np.linalg.cholesky((1 - share) * size**2 * np.eye(len(mean)) + share * (z.T @ z) / len(z))
        except np.linalg.LinAlgError:  # fewer draws than dimensions, nothing shrunk
            return None
    sd = np.diagonal(factor) if factor.ndim == 2 else factor
    if not np.all(np.isfinite(sd) & (sd > 0)):
        return None
    return curvature.moved(mean, curvature.scale.resized(factor))


def _unevenness(
    chart: ChartData | None, draws: Float[np.ndarray, "n dim"], logdensity: Float[np.ndarray, " n"]
) -> float:
    """Mean distance of log w from its median, w = pi/N(location, scale scale^T)."""
    if chart is None:
        return np.inf
    log_ratio = logdensity + 0.5 * np.sum(chart.chart.inverse(draws)[0] ** 2, axis=1)
    return float(np.mean(np.abs(log_ratio - np.median(log_ratio))))
