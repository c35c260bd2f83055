"""Charts from draws: moments, shrunk towards the curvature as far as that fits better. All of it NumPy, on the host."""

import dataclasses

import numpy as np

from whmc._shapes import Float, Int
from whmc.modes.band import coupled
from whmc.modes.chart import whiten_rows
from whmc.modes.library import ModeLibrary
from whmc.modes.split import fitted_with


@dataclasses.dataclass(frozen=True)
class ChartShapes:
    """Locations and scales of charts, as NumPy arrays; scales are those of a Gaussian base."""

    location: Float[np.ndarray, "size dim"]
    scale: Float[np.ndarray, "size dim dim"] | Float[np.ndarray, "size dim"]

    @classmethod
    def of(cls, library: ModeLibrary) -> "ChartShapes":
        """Of all charts in use."""
        charts = library.charts()
        return cls(charts.location, charts.scale)


def fit_charts(
    curvature: ChartShapes,
    library: ModeLibrary,
    position: Float[np.ndarray, "n dim"],
    logdensity: Float[np.ndarray, " n"],
    label: Int[np.ndarray, " n"],
) -> ChartShapes:
    """Each chart from the moments of its mode's draws, as far as that makes w = pi/q flatter than the curvature does.

    Jumps are accepted with ratios of w. So moments are fitted to one half of a mode's draws at several degrees of
    shrinking towards the curvature, and the degree is kept whose log w varies least over the other half: draws that are
    few, or a mode that is Gaussian, keep the curvature; skewed, flat and heavy modes get their moments.

    A mode with several charts has its home fitted so; the others stay as they are in the library, for `fit_mixtures`,
    and bent charts for `bend_charts`.
    """
    location, scale, _, _ = library.charts()
    owner, bent = fitted_with(library), library.bent
    for k in np.unique(owner).tolist():
        if bent[k]:
            continue
        mine = np.flatnonzero(owner[label] == k)
        if len(mine) < 8:
            location[k], scale[k] = curvature.location[k], curvature.scale[k]
            continue
        fit, held, coupling = mine[::2], mine[1::2], library.coupling_of(k)
        # with a band only location and size are learned: single scales of coupled coordinates mean little
        shares = SHARES if coupling is None else SHARES[:2]
        scores = [
            _unevenness(
                *_blend(curvature, k, position[fit], share, coupling), position[held], logdensity[held], coupling
            )
            for share in shares
        ]
        share = shares[int(np.argmin(scores))]
        location[k], scale[k] = _blend(curvature, k, position[mine], share, coupling)
    return ChartShapes(location, scale)


SHARES: tuple[float | None, ...] = (None, 0.0, 0.3, 0.6, 0.8, 0.9, 0.97, 1.0)
"""How far a chart goes from curvature to moments. None: pure curvature; 0: its shape with the draws' mean and size."""


Coupling = Float[np.ndarray, "width dim"] | None
"""Of a chart with a band. It stays that of the curvature."""


def _blend(
    curvature: ChartShapes, k: int, draws: Float[np.ndarray, "n dim"], share: float | None, coupling: Coupling
) -> tuple[np.ndarray, np.ndarray]:
    location, scale = curvature.location[k], curvature.scale[k]
    if share is None:
        return location, scale
    mean = np.mean(draws, axis=0)
    shift = draws - mean
    diagonal = scale.ndim == 1
    z = _whitened(scale, coupling, shift)
    size = np.sqrt(np.mean(z**2))
    if share == 0.0:
        return mean, scale * size
    if diagonal:
        return mean, scale * np.sqrt((1 - share) * size**2 + share * np.mean(z**2, axis=0))
    inner = (1 - share) * size**2 * np.eye(len(mean)) + share * (z.T @ z) / len(z)
    try:
        return mean, scale @ np.linalg.cholesky(inner)
    except np.linalg.LinAlgError:  # fewer draws than dimensions, nothing shrunk
        return mean, np.full_like(scale, np.nan)


def _unevenness(
    location: np.ndarray,
    scale: np.ndarray,
    draws: Float[np.ndarray, "n dim"],
    logdensity: Float[np.ndarray, " n"],
    coupling: Coupling,
) -> float:
    """Mean distance of log w from its median, w = pi/N(location, scale scale^T)."""
    if not np.all(np.isfinite(scale)) or np.any((scale if scale.ndim == 1 else np.diagonal(scale)) <= 0):
        return np.inf  # draws that do not differ in some direction make no chart
    z = _whitened(scale, coupling, draws - location)
    log_ratio = logdensity + 0.5 * np.sum(z**2, axis=1)
    return float(np.mean(np.abs(log_ratio - np.median(log_ratio))))


def _whitened(scale: np.ndarray, coupling: Coupling, shift: Float[np.ndarray, "n dim"]) -> Float[np.ndarray, "n dim"]:
    z = whiten_rows(scale, shift)
    return z if coupling is None else coupled(coupling, z)
