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
from typing import NamedTuple

import jax
import numpy as np

from whmc._pytree import pytree
from whmc._shapes import Array, Bool, Float, Int
from whmc.modes.band import Band, Bands, BandShapes
from whmc.modes.bend import Bend, Bends, BendShapes
from whmc.modes.chart import Chart, row
from whmc.modes.require import require_bands, require_bends, require_charts, require_tails
from whmc.modes.tail import Tail, Tails, TailShapes
from whmc.target.target import Numbers

DIAGONAL_FROM = 1000
"""Scales are diagonal from this dimension on: K dense factors would take K·D² numbers, and a
covariance could not be learned from the draws of a warm-up anyway."""

WEIGHT_FLOOR = 0.01
"""No mode gets less than this share of an equal weight, so that none is ever given up for good."""


class Charts(NamedTuple):
    """The charts in use, as NumPy copies."""

    location: Float[np.ndarray, "size dim"]
    scale: Float[np.ndarray, "size dim dim"] | Float[np.ndarray, "size dim"]
    log_weight: Float[np.ndarray, " size"]
    step_size: Float[np.ndarray, " size"]


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
        bends: BendShapes | BandShapes | TailShapes | None = None,
    ) -> "ModeLibrary":
        """A library of charts: locations (K, D), scales (K, D, D) lower triangular or (K, D) diagonal.

        Weights (equal unless given) are made to sum to one. `mode`: the mode of each chart, counted from zero; unless
        given every chart is a mode of its own. `bends`: those of the charts, or the bands of diagonal ones; None: all
        are straight, and stay so.
        """
        locations, scales = np.asarray(location, float), np.asarray(scale, float)
        size, dim = locations.shape
        if scales.shape not in ((size, dim), (size, dim, dim)):
            raise ValueError(f"scale has shape {scales.shape}: give ({size}, {dim}) or ({size}, {dim}, {dim})")
        capacity = size if capacity is None else capacity
        if capacity < max(size, 1):
            raise ValueError(f"capacity is {capacity}: it must hold {max(size, 1)} charts")
        diagonal = scales.ndim == 2
        require_charts(locations, scales, log_weight, step_size, dof)
        unit = np.ones(dim) if diagonal else np.eye(dim)
        scales = _padded(scales, capacity, unit)
        sd = scales if diagonal else np.diagonal(scales, axis1=1, axis2=2)
        log_weights = np.zeros(size) if log_weight is None else np.asarray(log_weight, float)
        if size:
            log_weights = log_weights - np.logaddexp.reduce(log_weights)
        step_sizes = np.ones(size) if step_size is None else np.asarray(step_size, float)
        modes = np.arange(size) if mode is None else np.asarray(mode)
        if modes.shape != (size,) or set(modes.tolist()) != set(range(len(set(modes.tolist())))):
            raise ValueError(f"mode must name the mode of each of {size} charts, counted from zero, got {mode!r}")
        inverse = 1 / scales if diagonal else np.tril(np.linalg.inv(scales))
        bend: Bends | Bands | Tails | None = None
        if isinstance(bends, BandShapes):
            require_bands(bends, size, dim, diagonal)
            bend = Bands.of(BandShapes(_padded(bends.coupling, capacity, 0.0)), scales)
        elif isinstance(bends, TailShapes):
            require_tails(bends, size, dim, diagonal)
            bend = Tails.of(TailShapes(_padded(bends.heaviness, capacity, 0.0)))
        elif bends is not None:
            require_bends(bends, size, dim, diagonal)
            bend = Bends.of(BendShapes(*(_padded(rows, capacity, 0.0) for rows in bends.squared())), scales, inverse)
        arrays = {
            "location": _padded(locations, capacity, 0.0),
            "scale": scales,
            "inverse_scale": inverse,
            "covariance": scales**2 if diagonal else scales @ np.swapaxes(scales, 1, 2),
            "log_det": np.sum(np.log(sd), axis=1),
            "log_weight": _padded(log_weights, capacity, -np.inf),
            "step_size": _padded(step_sizes, capacity, 1.0),
            "mode": _padded(modes, capacity, 0).astype(int),
            "dof": np.asarray(dof, float),
        }
        # device_put and not jnp.asarray, which compiles something for every shape; and all at once, which is quicker
        return cls(**jax.device_put(arrays), bend=bend)

    @classmethod
    def empty(cls, dim: int, *, capacity: int = 1, diagonal: bool | None = None, dof: float = np.inf) -> "ModeLibrary":
        """No charts yet, room for `capacity`. Diagonal scales from dim 1000 on, unless told."""
        diagonal = dim >= DIAGONAL_FROM if diagonal is None else diagonal
        scale = np.zeros((0, dim) if diagonal else (0, dim, dim))
        return cls.from_charts(np.zeros((0, dim)), scale, capacity=capacity, dof=dof)

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
        return np.bincount(self.mode_of, np.exp(self.charts().log_weight), self.num_modes)

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

    def coupling_of(self, k: int) -> Float[np.ndarray, "width dim"] | None:
        """The couplings of chart k to its neighbours, if the library has bands. Not under jit."""
        return np.array(np.asarray(self.bend.coupling)[k], float) if isinstance(self.bend, Bands) else None

    def bendable(self) -> "ModeLibrary":
        """The same charts in a library that knows bends."""
        if self.bend is not None:
            return self
        location, scale, log_weight, step_size = self.charts()
        bends = BendShapes.straight(self.size, self.dim)
        return self.with_charts(location, scale, log_weight=log_weight, step_size=step_size, bends=bends)

    @property
    def straight(self) -> "ModeLibrary":
        """The same charts without their bends or bands."""
        return dataclasses.replace(self, bend=None)

    def shapes(self) -> BendShapes | BandShapes | TailShapes | None:
        """The bends or the bands of the charts in use, as NumPy copies. Not under jit."""
        if isinstance(self.bend, Bands):
            return BandShapes(np.array(self.bend.coupling, float)[: self.size])
        if isinstance(self.bend, Tails):
            return TailShapes(np.array(self.bend.heaviness, float)[: self.size])
        return None if self.bend is None else self.bends()

    def bends(self) -> BendShapes:
        """The bends of the charts in use, as NumPy copies. Not under jit."""
        size = self.size
        if not isinstance(self.bend, Bends):
            return BendShapes.straight(size, self.dim)
        rows = (self.bend.axis, self.bend.curve, self.bend.stretch)
        return BendShapes(*(np.array(part, float)[:size] for part in rows)).squared()

    @property
    def bent(self) -> Bool[np.ndarray, " size"]:
        """Whether each chart in use is bent. Not under jit."""
        shapes = self.shapes()
        return np.zeros(self.size, bool) if shapes is None else shapes.curved

    def whiten(self, label: Int[Array, ""] | int, position: Float[Array, " dim"]) -> Float[Array, " dim"]:
        """x of theta in chart k; L_k^{-1} (theta - mu_k) where it is straight."""
        return self.chart(label).whiten(position)

    def unwhiten(self, label: Int[Array, ""] | int, x: Float[Array, " dim"]) -> Float[Array, " dim"]:
        """theta of x in chart k; mu_k + L_k x where it is straight."""
        return self.chart(label).unwhiten(x)

    def add(
        self,
        location: Numbers,
        scale: Numbers,
        *,
        log_weight: float = 0.0,
        step_size: float = 1.0,
        coupling: Float[np.ndarray, "width dim"] | None = None,
    ) -> "ModeLibrary":
        """A library with one chart more; the capacity doubles when it is full. `coupling`: of a chart with a band."""
        size = self.size
        capacity = self.capacity if size < self.capacity else 2 * self.capacity

        def with_row(rows: np.ndarray, row: Numbers) -> np.ndarray:
            return np.concatenate([rows, np.asarray(row, float)[None]])

        locations, scales, log_weights, step_sizes = self.charts()
        return self.with_charts(
            with_row(locations, location),
            with_row(scales, scale),
            log_weight=with_row(log_weights, log_weight),
            step_size=with_row(step_sizes, step_size),
            mode=np.append(self.mode_of, self.num_modes),
            capacity=capacity,
            bends=self._bends_and(coupling),
        )

    def _bends_and(
        self, coupling: Float[np.ndarray, "width dim"] | None
    ) -> BendShapes | BandShapes | TailShapes | None:
        """The bends or bands of all charts and of one more, straight or with this coupling."""
        shapes = self.shapes()
        if isinstance(shapes, BendShapes | TailShapes):
            return shapes.with_straight(1)
        return BandShapes.of([*map(self.coupling_of, range(self.size)), coupling], self.dim)

    def drop(self, label: int) -> "ModeLibrary":
        """A library without chart `label`; later charts move down by one."""
        self._require(label)
        location, scale, log_weight, step_size = (np.delete(rows, label, axis=0) for rows in self.charts())
        mode = np.unique(np.delete(self.mode_of, label), return_inverse=True)[1]  # counted anew where one is gone
        shapes = self.shapes()
        bends = None if shapes is None else shapes.rows(np.arange(self.size) != label)
        return self.with_charts(location, scale, log_weight=log_weight, step_size=step_size, mode=mode, bends=bends)

    def merge(self, first: int, second: int) -> "ModeLibrary":
        """Charts `first` and `second` become one, in the place of `first`, with the moments of their mixture.

        It is straight; those of bent charts are taken without their bends. A band stays that of `first`.
        """
        self._require(first)
        self._require(second)
        if first == second:
            raise ValueError(f"merge needs two charts, got {first} twice")
        locations, scales, log_weights, step_sizes = self.charts()
        pair = [first, second]
        log_sum = np.logaddexp.reduce(log_weights[pair])
        shares = np.exp(log_weights[pair] - log_sum)
        gap = locations[first] - locations[second]
        between = np.prod(shares) * (gap**2 if self.diagonal else np.outer(gap, gap))
        covariance = np.tensordot(shares, np.asarray(self.covariance)[pair], 1) + between
        locations[first] = shares @ locations[pair]
        scales[first] = np.sqrt(covariance) if self.diagonal else np.linalg.cholesky(covariance)
        log_weights[first] = log_sum
        step_sizes[first] = np.min(step_sizes[pair])
        shapes = self.shapes()
        bends = None if shapes is None else shapes.merged_at(first)
        merged = self.with_charts(locations, scales, log_weight=log_weights, step_size=step_sizes, bends=bends)
        return merged.drop(second)

    def charts(self) -> Charts:
        """The charts in use, as NumPy copies. Not under jit."""
        size = self.size
        rows = (self.location, self.scale, self.log_weight, self.step_size)
        return Charts(*(np.array(row, float)[:size] for row in rows))

    def of_modes(self, mode: Int[np.ndarray, " size"]) -> "ModeLibrary":
        """The same charts, of other modes. Not under jit."""
        padded = np.zeros(self.capacity, self.mode.dtype)
        padded[: len(mode)] = mode
        return dataclasses.replace(self, mode=jax.device_put(padded))

    def rebuilt(self) -> "ModeLibrary":
        """The same charts, checked again and in the dtype in force."""
        return self.padded(self.capacity)

    def padded(self, capacity: int) -> "ModeLibrary":
        """The same charts in a library with this much room."""
        location, scale, log_weight, step_size = self.charts()
        return self.with_charts(location, scale, log_weight=log_weight, step_size=step_size, capacity=capacity)

    def with_charts(
        self,
        location: Numbers,
        scale: Numbers,
        *,
        log_weight: Numbers,
        step_size: Numbers,
        mode: Numbers | None = None,
        capacity: int | None = None,
        dof: float | None = None,
        bends: BendShapes | BandShapes | TailShapes | None = None,
    ) -> "ModeLibrary":
        """Other charts in a library like this one: of the same modes, bends, capacity and base unless told."""
        return ModeLibrary.from_charts(
            location,
            scale,
            log_weight=log_weight,
            step_size=step_size,
            mode=self.mode_of if mode is None else mode,
            capacity=self.capacity if capacity is None else capacity,
            dof=float(self.dof) if dof is None else dof,
            bends=self.shapes() if bends is None else bends,
        )

    def _require(self, label: int) -> None:
        if not 0 <= label < self.size:
            raise IndexError(f"there is no chart {label}: the library holds {self.size}")


def _padded(rows: np.ndarray, capacity: int, filler: Numbers) -> np.ndarray:
    spare = np.broadcast_to(filler, (capacity - len(rows), *rows.shape[1:]))
    return np.concatenate([rows, spare])
