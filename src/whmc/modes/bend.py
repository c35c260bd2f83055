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

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from whmc._pytree import pytree
from whmc._shapes import Array, Float

REACH = 8.0
"""Standard deviations along a bend up to which its stretch grows, so that nothing overflows. Few draws get beyond."""


@pytree
class Bends:
    """The bends of all charts of a library: v, b and a in whitened coordinates, and `rows`, what `Bend` takes."""

    axis: Float[Array, "capacity dim"]
    curve: Float[Array, "capacity dim"]
    stretch: Float[Array, " capacity"]
    rows: Float[Array, "capacity numbers"]

    @classmethod
    def of(
        cls, bends: Any, scale: Float[np.ndarray, "n dim dim"], inverse_scale: Float[np.ndarray, "n dim dim"]
    ) -> "Bends":
        """The bends of charts with these scales, from the layers of all charts in one."""
        ridge, turn = (np.einsum("kij,kj->ki", scale, rows) for rows in (bends.axis, bends.curve))
        slope = np.einsum("kij,ki->kj", inverse_scale, bends.axis)
        rows = np.concatenate([slope, ridge, turn, bends.stretch[:, None]], axis=1)
        return cls(*jax.device_put((bends.axis, bends.curve, bends.stretch, rows)))

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
