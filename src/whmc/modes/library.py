"""ModeLibrary: one chart for each known mode, padded to a capacity.

Chart k has a location mu_k, a scale L_k (Sigma_k = L_k L_k^T), a weight omega_k and a step size. The
position of theta in chart k is z = L_k^{-1} (theta - mu_k). Unused places have log_weight -inf, so a
fuller library is new data and never a new shape until the capacity doubles (or a band is wider than all others).

A chart may be bent (`bend.py`): then z is bent into theta, and x, which z is bent from, is its coordinate. Or its
coordinates have heavy tails (`tail.py`). In many dimensions, where scales are diagonal, its coordinates may be coupled
to their neighbours instead (`band.py`).

A mode has one chart, or several: `mode` says which mode a chart belongs to. The first chart of a mode is its home: the
one Gaussian of the whole mode. The others tell its shape.
"""

import dataclasses
from collections.abc import Iterable, Sequence
from functools import cached_property
from typing import Any, cast

import jax
import numpy as np

from whmc._pytree import pytree
from whmc._shapes import Array, Bool, Float, Int
from whmc.modes.band import Band, Bands
from whmc.modes.bend import Bend, Bends
from whmc.modes.chart import Chart, row
from whmc.modes.chart_data import (
    ChartData,
    like,
    locations_of,
    log_weights_of,
    scale_rows,
    stacked_scales,
    step_sizes_of,
)
from whmc.modes.layers.banded import Banded
from whmc.modes.layers.bend import Bend as BendLayer
from whmc.modes.layers.layer import Layer
from whmc.modes.layers.places import Shift
from whmc.modes.layers.scales import Dense, Diagonal, Scale
from whmc.modes.layers.tails import Tail as TailLayer
from whmc.modes.require import require_dof
from whmc.modes.tail import Tail, Tails
from whmc.target.target import Numbers

DIAGONAL_FROM = 1000
"""Scales are diagonal from this dimension on: K dense factors would take K·D² numbers, and a
covariance could not be learned from the draws of a warm-up anyway."""

WEIGHT_FLOOR = 0.01
"""No mode gets less than this share of an equal weight, so that none is ever given up for good."""


@pytree
class ModeLibrary:
    """Charts of the known modes. `dof` is the Student-t base's degrees of freedom (inf: Gaussian). `bend`: None where
    all charts are straight, and what is compiled for them knows nothing of bends."""

    location: Float[Array, "capacity dim"]
    scale: Float[Array, "capacity dim dim"] | Float[Array, "capacity dim"]
    inverse_scale: Float[Array, "capacity dim dim"] | Float[Array, "capacity dim"]
    covariance: Float[Array, "capacity dim dim"] | Float[Array, "capacity dim"]
    log_det: Float[Array, " capacity"]
    log_weight: Float[Array, " capacity"]
    step_size: Float[Array, " capacity"]
    mode: Int[Array, " capacity"]
    dof: Float[Array, ""]
    bend: Bends | Bands | Tails | None = None

    @classmethod
    def from_charts(
        cls,
        location: Numbers,
        scale: Numbers,
        *,
        log_weight: Numbers | None = None,
        step_size: Numbers | None = None,
        mode: Numbers | None = None,
        capacity: int | None = None,
        dof: float = np.inf,
    ) -> "ModeLibrary":
        """A library of charts: locations (K, D), scales (K, D, D) lower triangular or (K, D) diagonal.

        Weights (equal unless given) are made to sum to one. `mode`: the mode of each chart, counted from zero; unless
        given every chart is a mode of its own. `of` makes libraries of charts with bends, tails and bands.
        """
        locations, scales = np.asarray(location, float), np.asarray(scale, float)
        size, dim = locations.shape
        if scales.shape not in ((size, dim), (size, dim, dim)):
            raise ValueError(f"scale has shape {scales.shape}: give ({size}, {dim}) or ({size}, {dim}, {dim})")
        for name, values in (("log_weight", log_weight), ("step_size", step_size)):
            if values is not None and np.shape(values) != (size,):
                raise ValueError(f"{name} must be {size} finite numbers, one for each chart, got {values!r}")
        modes = np.arange(size) if mode is None else np.asarray(mode)
        if modes.shape != (size,):
            raise ValueError(f"mode must name the mode of each of {size} charts, counted from zero, got {mode!r}")
        log_weights = np.zeros(size) if log_weight is None else np.asarray(log_weight, float)
        step_sizes = np.ones(size) if step_size is None else np.asarray(step_size, float)
        if size == 0:
            return cls.empty(dim, capacity=0 if capacity is None else capacity, diagonal=scales.ndim == 2, dof=dof)
        parts = zip(locations, scales, log_weights, step_sizes, modes.tolist(), strict=True)
        charts = [ChartData.of(*two, log_weight=weight, step_size=step, mode=n) for *two, weight, step, n in parts]
        return cls.of(charts, capacity, dof=dof)

    @classmethod
    def of(
        cls,
        charts: Sequence[ChartData],
        capacity: int | None = None,
        *,
        dof: float = np.inf,
        kinds: Iterable[type[Layer]] = (),
    ) -> "ModeLibrary":
        """A library of charts, whose weights are made to sum to one. `ChartData.of` checks charts from outside.

        kinds: warps that what is compiled for the library is to know, besides those that its charts have. A library
        has bends or tails, and not both.
        """
        if not charts:
            raise ValueError("of no charts a library cannot know its dimension: take ModeLibrary.empty(dim)")
        return cls._filled(charts, type(charts[0].scale), charts[0].dim, capacity, dof, kinds)

    @classmethod
    def _filled(
        cls,
        charts: Sequence[ChartData],
        scale: type[Scale],
        dim: int,
        capacity: int | None,
        dof: float,
        kinds: Iterable[type[Layer]],
    ) -> "ModeLibrary":
        """A library of these charts, and of unused places up to its capacity."""
        size = len(charts)
        capacity = size if capacity is None else capacity
        if capacity < max(size, 1):
            raise ValueError(f"capacity is {capacity}: it must hold {max(size, 1)} charts")
        require_dof(dof)
        modes = [one.mode for one in charts]
        if set(modes) != set(range(len(set(modes)))):
            raise ValueError(f"mode must name the mode of each of {size} charts, counted from zero, got {modes}")
        spare = ChartData(Shift.identity(dim), cast(Scale, scale.identity(dim)), log_weight=-np.inf)
        full = [*charts, *[spare] * (capacity - size)]
        scales: Any = stacked_scales([one.scale for one in full])
        dense, rows = isinstance(scales, Dense), scale_rows(scales)
        inverse = np.asarray(scales.inverse_matrix) if dense else 1 / rows
        bend: Bends | Bands | Tails | None = Bands.of(scales) if isinstance(scales, Banded) else None
        known = {type(warp) for one in charts for warp in one.warps} | set(kinds)
        if known:
            bend = _stacked_warps(full, known, rows, inverse)
        log_weight = log_weights_of(full)
        arrays = {
            "location": locations_of(full),
            "scale": rows,
            "inverse_scale": inverse,
            "covariance": rows @ np.swapaxes(rows, 1, 2) if dense else rows**2,
            "log_det": np.asarray(scales.log_det),
            "log_weight": log_weight - np.logaddexp.reduce(log_weight) if charts else log_weight,
            "step_size": step_sizes_of(full),
            "mode": np.array([one.mode for one in full], int),
            "dof": np.asarray(dof, float),
        }
        # device_put and not jnp.asarray, which compiles something for every shape; and all at once, which is quicker
        return cls(**jax.device_put(arrays), bend=bend)

    @classmethod
    def empty(cls, dim: int, *, capacity: int = 1, diagonal: bool | None = None, dof: float = np.inf) -> "ModeLibrary":
        """No charts yet, room for `capacity`. Diagonal scales from dim 1000 on, unless told."""
        diagonal = dim >= DIAGONAL_FROM if diagonal is None else diagonal
        return cls._filled([], Diagonal if diagonal else Dense, dim, capacity, dof, ())

    @property
    def capacity(self) -> int:
        return self.location.shape[0]

    @property
    def dim(self) -> int:
        return self.location.shape[1]

    @property
    def diagonal(self) -> bool:
        return self.scale.ndim == 2

    @property
    def size(self) -> int:
        """How many charts are in use; they come first. Not under jit."""
        return int(np.sum(np.asarray(self.log_weight) > -np.inf))

    @property
    def mode_of(self) -> Int[np.ndarray, " size"]:
        """The mode of each chart in use. Not under jit."""
        return np.asarray(self.mode)[: self.size]

    @property
    def home_of(self) -> Int[np.ndarray, " size"]:
        """The home of each chart in use: the first chart of its mode. Not under jit."""
        return np.unique(self.mode_of, return_index=True)[1][self.mode_of]

    @property
    def wide(self) -> Bool[np.ndarray, " size"]:
        """Whether each chart in use is the home of a mode that has others besides. Not under jit."""
        mode = self.mode_of
        return (np.bincount(mode)[mode] > 1) & (self.home_of == np.arange(self.size))

    @property
    def num_modes(self) -> int:
        """Not under jit."""
        return int(self.mode_of.max(initial=-1)) + 1

    def mode_weights(self) -> Float[np.ndarray, " modes"]:
        """The weights of the modes, those of their charts together. Not under jit."""
        return np.bincount(self.mode_of, np.exp(log_weights_of(self.charts())), self.num_modes)

    def shares(self) -> Float[np.ndarray, " modes"]:
        """The weights of the modes, without the floor that keeps each of them in play. Not under jit."""
        weight = self.mode_weights()
        above = np.maximum(weight - WEIGHT_FLOOR / max(len(weight), 1), 0.0)
        return above / above.sum() if above.sum() > 0 else weight

    def chart(self, label: Int[Array, ""] | int) -> Chart:
        """Chart k; `label` may be traced."""
        return Chart(
            row(self.location, label),
            row(self.scale, label),
            row(self.inverse_scale, label),
            row(self.covariance, label),
            row(self.log_det, label),
            row(self.step_size, label),
            self.bend_of(label),
        )

    def bend_of(self, label: Int[Array, ""] | int) -> Bend | Band | Tail | None:
        """The bend of chart k, or its band; None where all are straight."""
        if isinstance(self.bend, Bands):
            return Band(*(row(part, label) for part in (self.bend.beside, self.bend.inverse, self.bend.powers)))
        if isinstance(self.bend, Tails):
            return Tail(*(row(part, label) for part in (self.bend.heaviness, self.scale, self.inverse_scale)))
        return None if self.bend is None else Bend(row(self.bend.rows, label))

    @property
    def straight(self) -> "ModeLibrary":
        """The same charts without their bends or bands."""
        return dataclasses.replace(self, bend=None)

    @property
    def bent(self) -> Bool[np.ndarray, " size"]:
        """Whether each chart in use is bent. Not under jit."""
        return np.array([bool(one.warps) for one in self._charts], bool)

    def whiten(self, label: Int[Array, ""] | int, position: Float[Array, " dim"]) -> Float[Array, " dim"]:
        """x of theta in chart k; L_k^{-1} (theta - mu_k) where it is straight."""
        return self.chart(label).whiten(position)

    def unwhiten(self, label: Int[Array, ""] | int, x: Float[Array, " dim"]) -> Float[Array, " dim"]:
        """theta of x in chart k; mu_k + L_k x where it is straight."""
        return self.chart(label).unwhiten(x)

    def add(
        self, location: Numbers, scale: Numbers | Scale, *, log_weight: float = 0.0, step_size: float = 1.0
    ) -> "ModeLibrary":
        """A library with one chart more; the capacity doubles when it is full."""
        new = ChartData.of(location, scale, log_weight=log_weight, step_size=step_size, mode=self.num_modes)
        capacity = self.capacity if self.size < self.capacity else 2 * self.capacity
        return self.with_charts([*self.charts(), new], capacity=capacity)

    def drop(self, label: int) -> "ModeLibrary":
        """A library without chart `label`; later charts move down by one."""
        self._require(label)
        charts = self.charts()
        del charts[label]
        modes = sorted({one.mode for one in charts})  # counted anew where one is gone
        return self.with_charts([dataclasses.replace(one, mode=modes.index(one.mode)) for one in charts])

    def merge(self, first: int, second: int) -> "ModeLibrary":
        """Charts `first` and `second` become one, in the place of `first`, with the moments of their mixture.

        It is straight; those of bent charts are taken without their bends. A band stays that of `first`.
        """
        self._require(first)
        self._require(second)
        if first == second:
            raise ValueError(f"merge needs two charts, got {first} twice")
        charts = self.charts()
        pair = [charts[first], charts[second]]
        log_sum = np.logaddexp.reduce(log_weights_of(pair))
        shares = np.exp(log_weights_of(pair) - log_sum)
        gap = pair[0].location - pair[1].location
        between = np.prod(shares) * (gap**2 if self.diagonal else np.outer(gap, gap))
        covariance = np.tensordot(shares, np.asarray(self.covariance)[[first, second]], 1) + between
        charts[first] = ChartData(
            Shift(shares @ locations_of(pair)),
            like(pair[0].scale, np.sqrt(covariance) if self.diagonal else np.linalg.cholesky(covariance)),
            log_weight=float(log_sum),
            step_size=float(np.min(step_sizes_of(pair))),
            mode=pair[0].mode,
        )
        return self.with_charts(charts).drop(second)

    def charts(self) -> list[ChartData]:
        """The charts in use, on the host. Not under jit."""
        return list(self._charts)

    @cached_property
    def _charts(self) -> tuple[ChartData, ...]:
        size = self.size
        names = ("location", "log_weight", "step_size")
        location, log_weight, step_size = (np.asarray(getattr(self, name), float)[:size] for name in names)
        numbers = zip(location, self._scales(), self._warps(), log_weight, step_size, self.mode_of, strict=True)
        return tuple(
            ChartData(Shift(place), scale, warps, float(weight), float(step), int(mode))
            for place, scale, warps, weight, step, mode in numbers
        )

    def _scales(self) -> list[Scale]:
        """Those of the charts in use, as layers."""
        rows = np.asarray(self.scale, float)[: self.size]
        if isinstance(self.bend, Bands):
            return [Banded.of(*pair) for pair in zip(rows, np.asarray(self.bend.coupling, float), strict=False)]
        if self.diagonal:
            return [Diagonal.of(sd) for sd in rows]
        exact = self.inverse_scale.dtype == rows.dtype  # in single precision the inverses have been rounded too
        inverse = np.asarray(self.inverse_scale)[: self.size] if exact else np.tril(np.linalg.inv(rows))
        log_det = np.sum(np.log(np.diagonal(rows, axis1=1, axis2=2)), axis=1)
        return [Dense(*parts) for parts in zip(rows, inverse, log_det, strict=True)]

    def _warps(self) -> list[tuple[Layer, ...]]:
        """Those of the charts in use: none where a chart is straight."""
        if isinstance(self.bend, Bends):
            axis, curve, stretch = (
                np.asarray(getattr(self.bend, name), float) for name in ("axis", "curve", "stretch")
            )
            bends = [BendLayer.of(axis[k], curve[k], stretch[k, ...]) for k in range(self.size)]
            return [(one,) if np.any(one.axis) else () for one in bends]
        if isinstance(self.bend, Tails):
            heaviness = np.asarray(self.bend.heaviness, float)[: self.size]
            return [(TailLayer.of(one, self.dim),) if np.any(one) else () for one in heaviness]
        return [()] * self.size

    @property
    def kinds(self) -> tuple[type[Layer], ...]:
        """Warps that what is compiled for this library knows."""
        if isinstance(self.bend, Bends):
            return (BendLayer,)
        return (TailLayer,) if isinstance(self.bend, Tails) else ()

    def of_modes(self, mode: Int[np.ndarray, " size"]) -> "ModeLibrary":
        """The same charts, of other modes. Not under jit."""
        padded = np.zeros(self.capacity, self.mode.dtype)
        padded[: len(mode)] = mode
        return dataclasses.replace(self, mode=jax.device_put(padded))

    def rebuilt(self) -> "ModeLibrary":
        """The same charts, checked again and in the dtype in force."""
        return self.with_charts([one.checked() for one in self.charts()])

    def padded(self, capacity: int) -> "ModeLibrary":
        """The same charts in a library with this much room."""
        return self.with_charts(self.charts(), capacity=capacity)

    def with_charts(
        self,
        charts: Sequence[ChartData],
        *,
        capacity: int | None = None,
        dof: float | None = None,
        kinds: Iterable[type[Layer]] = (),
    ) -> "ModeLibrary":
        """Other charts in a library like this one: of the same capacity and base unless told, and these warps more."""
        scale = type(charts[0].scale) if charts else Diagonal if self.diagonal else Dense
        return self._filled(
            charts,
            scale,
            self.dim,
            self.capacity if capacity is None else capacity,
            float(self.dof) if dof is None else dof,
            {*self.kinds, *kinds},
        )

    def _require(self, label: int) -> None:
        if not 0 <= label < self.size:
            raise IndexError(f"there is no chart {label}: the library holds {self.size}")


def _stacked_warps(
    charts: Sequence[ChartData], kinds: set[type[Layer]], scale: np.ndarray, inverse: np.ndarray
) -> Bends | Tails:
    """Those of all charts in one, as kernels need them."""
    if kinds not in ({BendLayer}, {TailLayer}):
        raise ValueError(f"charts of a library have bends or tails, got {sorted(kind.__name__ for kind in kinds)}")
    if scale.ndim == 2:
        raise ValueError("charts with diagonal scales have no bends and no tails of their own: give scales (K, D, D)")
    (kind,) = kinds
    warps: Any = kind.stacked([one.warp(kind) for one in charts])
    if kind is TailLayer:
        return Tails(jax.device_put(warps.heaviness))
    return Bends.of(BendLayer.of(warps.axis, warps.curve, warps.stretch), scale, inverse)
