"""A chart on the host: what search, warm-up, fits and storage pass to each other. All NumPy."""

import dataclasses
from collections.abc import Sequence
from functools import cached_property
from typing import cast

import numpy as np

from whmc._shapes import Float
from whmc.modes.layers.banded import Banded
from whmc.modes.layers.chart import WARPS, Chart
from whmc.modes.layers.layer import Layer
from whmc.modes.layers.places import Shift
from whmc.modes.layers.scales import Dense, Diagonal, Scale
from whmc.modes.layers.tails import Radial, Tail
from whmc.modes.require import require_layer, require_numbers, require_scale
from whmc.target.target import Numbers


@dataclasses.dataclass(frozen=True, eq=False)
class ChartData:
    """theta = place(scale(warps(x))), with x standard Gaussian; its weight in a library, its step size and its mode.

    A chart has only the warps that it needs, in the order of `WARPS`.
    """

    place: Shift
    scale: Scale
    warps: tuple[Layer, ...] = ()
    log_weight: float = 0.0
    step_size: float = 1.0
    mode: int = 0

    @classmethod
    def of(
        cls,
        location: Numbers,
        scale: Numbers | Scale,
        warps: Sequence[Layer] = (),
        *,
        log_weight: float = 0.0,
        step_size: float = 1.0,
        mode: int = 0,
    ) -> "ChartData":
        """A chart with checked parameters. scale: lower triangular (D, D), standard deviations (D,), or a layer."""
        place = np.asarray(location, float)
        rows = scale_rows(scale) if isinstance(scale, Scale) else np.asarray(scale, float)
        require_scale(place, rows)
        require_numbers(log_weight, step_size)
        if not isinstance(scale, Scale):
            scale = Diagonal.of(rows) if rows.ndim == 1 else Dense.of(rows)
        one = cls(Shift(place), scale, (), float(log_weight), float(step_size), mode)
        for layer in (scale, *warps):
            require_layer(layer, one.dim)
        for warp in warps:
            one = one.with_warp(warp)
        return one

    def checked(self) -> "ChartData":
        """The same, or an error."""
        numbers = {"log_weight": self.log_weight, "step_size": self.step_size}
        return ChartData.of(self.location, self.scale, self.warps, **numbers, mode=self.mode)

    @cached_property
    def chart(self) -> Chart:
        """Its map from x to theta."""
        return Chart(self.warps, self.scale, self.place)

    @property
    def location(self) -> Float[np.ndarray, " dim"]:
        return np.asarray(self.place.location)

    @property
    def dim(self) -> int:
        return len(self.location)

    def log_density(self, draws: Float[np.ndarray, "n dim"]) -> Float[np.ndarray, " n"]:
        """Of the chart alone, without its weight: log N(x) - log|d theta/dx|."""
        x, log_volume = self.chart.inverse(draws)
        return np.asarray(-0.5 * np.einsum("nd,nd->n", x, x) - log_volume - 0.5 * self.dim * np.log(2 * np.pi))

    def warp(self, kind: type[Layer]) -> Layer:
        """Its warp of a kind, or the identity."""
        return next((one for one in self.warps if type(one) is kind), kind.identity(self.dim))

    def with_warp(self, new: Layer) -> "ChartData":
        """The chart with this warp, in the place of one of its kind if there is one."""
        kinds = {type(one): one for one in (*self.warps, new)}
        if type(new) not in WARPS:
            raise ValueError(f"{type(new).__name__} is no warp of a chart: WARPS names those that are")
        if {Tail, Radial} <= kinds.keys():
            raise ValueError("a chart has tails of its coordinates (Tail) or of its radius (Radial), not both")
        return dataclasses.replace(self, warps=tuple(kinds[kind] for kind in WARPS if kind in kinds))

    def moved(self, location: Float[np.ndarray, " dim"], scale: Scale) -> "ChartData":
        """The chart with another location and scale."""
        return dataclasses.replace(self, place=Shift(location), scale=scale)


def scale_rows(scale: Scale) -> np.ndarray:
    """The matrix L of a dense scale; of others the standard deviations, without what couples coordinates."""
    return np.asarray(scale.matrix if isinstance(scale, Dense) else scale.sd)  # type: ignore[attr-defined]


def like(scale: Scale, rows: np.ndarray) -> Scale:
    """A scale of the same kind with other rows, as `scale_rows` gives them; a band keeps its couplings."""
    if isinstance(scale, Banded):
        return Banded.of(rows, np.asarray(scale.coupling))
    return Dense.of(rows) if rows.ndim == 2 else Diagonal.of(rows)


def stacked_scales(scales: Sequence[Scale]) -> Scale:
    """Those of all charts in one. A chart without a band among others has couplings of zero."""
    if any(isinstance(one, Banded) for one in scales):
        alone = np.zeros((1, len(scale_rows(scales[0]))))
        scales = [Banded.of(scale_rows(one), alone) if isinstance(one, Diagonal) else one for one in scales]
    if len(kinds := {type(one) for one in scales}) > 1:
        raise ValueError(f"charts of a library have one kind of scale, got {sorted(kind.__name__ for kind in kinds)}")
    return cast(Scale, type(scales[0]).stacked(scales))


def locations_of(charts: Sequence[ChartData]) -> Float[np.ndarray, "size dim"]:
    return np.stack([one.location for one in charts])


def log_weights_of(charts: Sequence[ChartData]) -> Float[np.ndarray, " size"]:
    return np.array([one.log_weight for one in charts])


def step_sizes_of(charts: Sequence[ChartData]) -> Float[np.ndarray, " size"]:
    return np.array([one.step_size for one in charts])


def with_numbers(
    charts: Sequence[ChartData], *, log_weight: Numbers | None = None, step_size: Numbers | None = None
) -> list[ChartData]:
    """The charts with these log weights and step sizes."""
    weights = log_weights_of(charts) if log_weight is None else np.asarray(log_weight, float)
    steps = step_sizes_of(charts) if step_size is None else np.asarray(step_size, float)
    return [
        dataclasses.replace(one, log_weight=float(weight), step_size=float(step))
        for one, weight, step in zip(charts, weights, steps, strict=True)
    ]
