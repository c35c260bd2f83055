"""Bends: charts that follow a curved mode or a funnel, in closed form both ways.

In the whitened coordinates z = L^{-1} (theta - mu) of a chart, along a unit vector v, with s = v·z = v·x,

    z = s v + (x - s v) exp(a c(s)) + b s²,     x = s v + (z - s v - b s²) exp(-a c(s)),     b·v = 0,

c(s) = s, cut at ±`REACH`. The curve b makes a banana of a Gaussian x, the stretch a a funnel. Volume grows by

    log|dz/dx| = (D - 1) a c(s).

Kernels work with displacements d = L x. There the same map needs no matrix: with V = L v, B = L b and w = L^{-T} v,

    theta - mu = s V + (d - s V) exp(a c(s)) + B s²,     s = w·d = w·(theta - mu),

and a score g at theta is pulled back to d by the transposed derivative, with e = exp(a c(s)):

    J^T g = e g + w [(1 - e) V·g + a c'(s) e (d - s V)·g + 2 s B·g].
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from whmc._pytree import pytree
from whmc._shapes import Array, Bool, Float

REACH = 8.0
"""Standard deviations along a bend up to which its stretch grows, so that nothing overflows. Few draws get beyond."""


class BendShapes(NamedTuple):
    """Bends of charts in whitened coordinates, as NumPy arrays: v, b and a. A straight chart has zeros."""

    axis: Float[np.ndarray, "size dim"]
    curve: Float[np.ndarray, "size dim"]
    stretch: Float[np.ndarray, " size"]

    @classmethod
    def straight(cls, size: int, dim: int) -> "BendShapes":
        return cls(np.zeros((size, dim)), np.zeros((size, dim)), np.zeros(size))

    @property
    def curved(self) -> Bool[np.ndarray, " size"]:
        """Whether each chart is bent."""
        return np.any(self.axis != 0, axis=1)

    def squared(self) -> "BendShapes":
        """The same, axes of length one and curves at right angles to them but for rounding."""
        length = np.linalg.norm(self.axis, axis=1, keepdims=True)
        axis = self.axis / np.where(length > 0, length, 1.0)
        return BendShapes(axis, self.curve - np.sum(axis * self.curve, axis=1, keepdims=True) * axis, self.stretch)

    def rows(self, which: Any) -> "BendShapes":
        """Those of some charts."""
        return BendShapes(*(part[which] for part in self))

    def merged_at(self, k: int) -> "BendShapes":
        """These, after another chart was merged into chart k: it is straight."""
        rows = BendShapes(*(part.copy() for part in self))
        for part in rows:
            part[k] = 0.0
        return rows

    def with_straight(self, num: int) -> "BendShapes":
        """These and so many straight ones."""
        more = BendShapes.straight(num, self.axis.shape[1])
        return BendShapes(*(np.concatenate(pair) for pair in zip(self, more, strict=True)))

    def resized(self, factor: float) -> "BendShapes":
        """The same bends of charts whose scale is multiplied by a factor."""
        return BendShapes(self.axis, factor * self.curve, factor * self.stretch)

    def straighten(self, k: int, z: Float[np.ndarray, "n dim"]) -> tuple[np.ndarray, np.ndarray]:
        """x of many points z in chart k, and log|dz/dx| there."""
        s = z @ self.axis[k]
        rise = self.stretch[k] * np.clip(s, -REACH, REACH)
        ridge = s[:, None] * self.axis[k]
        x = ridge + (z - ridge - s[:, None] ** 2 * self.curve[k]) * np.exp(-rise)[:, None]
        return x, (z.shape[1] - 1) * rise

    def slopes(self, k: int, z: Float[np.ndarray, "n dim"]) -> tuple[np.ndarray, np.ndarray]:
        """The gradients in z of ½|x|² and of log|dz/dx| in chart k, many points z at once. With r = z - s v - b s²:

        s v + e^{-2 a c} (r - (2 s b·r + a c' |r|²) v),      (D - 1) a c' v.
        """
        axis, curve = self.axis[k], self.curve[k]
        s = z @ axis
        steepness = np.where(np.abs(s) < REACH, self.stretch[k], 0.0)
        r = z - s[:, None] * axis - s[:, None] ** 2 * curve
        tilt = 2 * s * (r @ curve) + steepness * np.sum(r**2, axis=1)
        shrink = np.exp(-2 * self.stretch[k] * np.clip(s, -REACH, REACH))
        rise = s[:, None] * axis + shrink[:, None] * (r - tilt[:, None] * axis)
        return rise, (z.shape[1] - 1) * steepness[:, None] * axis


@pytree
class Bends:
    """The bends of all charts of a library: v, b and a in whitened coordinates, and `rows`, what `Bend` takes."""

    axis: Float[Array, "capacity dim"]
    curve: Float[Array, "capacity dim"]
    stretch: Float[Array, " capacity"]
    rows: Float[Array, "capacity numbers"]

    @classmethod
    def of(
        cls, shapes: BendShapes, scale: Float[np.ndarray, "n dim dim"], inverse_scale: Float[np.ndarray, "n dim dim"]
    ) -> "Bends":
        """The bends of charts with these scales."""
        ridge, turn = (np.einsum("kij,kj->ki", scale, rows) for rows in (shapes.axis, shapes.curve))
        slope = np.einsum("kij,ki->kj", inverse_scale, shapes.axis)
        rows = np.concatenate([slope, ridge, turn, shapes.stretch[:, None]], axis=1)
        return cls(*jax.device_put((*shapes, rows)))

    def straightened(self, z: Float[Array, "capacity dim"]) -> tuple[Float[Array, " n"], Float[Array, " n"]]:
        """|x|² and log|dz/dx| in every chart, from the whitened coordinates z of each."""
        s = jnp.sum(self.axis * z, axis=-1)
        rise = jnp.clip(s, -REACH, REACH) * self.stretch
        beside = z - s[:, None] * self.axis - (s**2)[:, None] * self.curve
        return s**2 + jnp.exp(-2 * rise) * jnp.sum(beside**2, axis=-1), (z.shape[-1] - 1) * rise


@pytree
class Bend:
    """The bend of one chart, as kernels need it: w, V, B and a in one row, which is looked up at once."""

    row: Float[Array, " numbers"]

    @property
    def dim(self) -> int:
        return (self.row.shape[-1] - 1) // 3

    @property
    def slope(self) -> Float[Array, " dim"]:
        """w = L^{-T} v."""
        return self.row[: self.dim]

    @property
    def ridge(self) -> Float[Array, " dim"]:
        """V = L v."""
        return self.row[self.dim : 2 * self.dim]

    @property
    def turn(self) -> Float[Array, " dim"]:
        """B = L b."""
        return self.row[2 * self.dim : -1]

    def rise(self, s: Float[Array, ""]) -> Float[Array, ""]:
        """a c(s)."""
        return self.row[-1] * jnp.clip(s, -REACH, REACH)

    def bent(self, displacement: Float[Array, " dim"]) -> Float[Array, " dim"]:
        """theta - mu of a displacement d."""
        s = self.slope @ displacement
        flat = s * self.ridge
        return flat + (displacement - flat) * jnp.exp(self.rise(s)) + s**2 * self.turn

    def straight(self, offset: Float[Array, " dim"]) -> Float[Array, " dim"]:
        """The displacement d of theta - mu."""
        s = self.slope @ offset
        flat = s * self.ridge
        return flat + (offset - flat - s**2 * self.turn) * jnp.exp(-self.rise(s))

    def log_volume(self, offset: Float[Array, " dim"]) -> Float[Array, ""]:
        """log|dz/dx|, from theta - mu or from d."""
        return (self.dim - 1) * self.rise(self.slope @ offset)

    def pulled(self, displacement: Float[Array, " dim"], score: Float[Array, " dim"]) -> Float[Array, " dim"]:
        """The gradient in d of log pi(theta) + log|dz/dx|, from the score at theta."""
        s = self.slope @ displacement
        # one product for all three: each alone would be a kernel to compile and to start
        along, turning, whole = jnp.stack([self.ridge, self.turn, displacement]) @ score
        swell = jnp.exp(self.rise(s))
        steepness = jnp.where(jnp.abs(s) < REACH, self.row[-1], 0.0)
        tilt = (1 - swell) * along + 2 * s * turning + steepness * (swell * (whole - s * along) + self.dim - 1)
        return swell * score + tilt * self.slope
