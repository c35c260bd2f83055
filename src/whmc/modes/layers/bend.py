"""Bend: a curved mode or a funnel.

Along a unit vector v, with s = v·x = v·y and c(s) = s, cut at ±REACH,

    y = s v + (x - s v) exp(a c(s)) + b s²,     x = s v + (y - s v - b s²) exp(-a c(s)),     b·v = 0.

The curve b makes a banana of a Gaussian x, the stretch a makes a funnel. log|dy/dx| = (D - 1) a c(s).
"""

from typing import Any

import numpy as np

from whmc._pytree import pytree
from whmc._shapes import Array, Float
from whmc.modes.layers.layer import REACH, Layer, LogVolume, Points, xp_of


@pytree
class Bend(Layer):
    """v, b and a. The identity has v = 0."""

    axis: Float[Array | np.ndarray, "*charts dim"]
    curve: Float[Array | np.ndarray, "*charts dim"]
    stretch: Float[Array | np.ndarray, "*charts"]

    @classmethod
    def of(
        cls,
        axis: Float[np.ndarray, "*charts dim"],
        curve: Float[np.ndarray, "*charts dim"],
        stretch: Float[np.ndarray, "*charts"],
    ) -> "Bend":
        """The axis is made of length one, unless it is zero, and of the curve what lies along it is left out."""
        length = np.linalg.norm(axis, axis=-1, keepdims=True)
        unit = axis / np.where(length > 0, length, 1.0)
        return cls(unit, curve - np.sum(unit * curve, axis=-1, keepdims=True) * unit, stretch)

    @classmethod
    def identity(cls, dim: int) -> "Bend":
        return cls(np.zeros(dim), np.zeros(dim), np.zeros(()))

    def forward(self, x: Points) -> tuple[Points, LogVolume]:
        ridge, turn, rise = self._along(x)
        return ridge + (x - ridge) * xp_of(x).exp(rise)[..., None] + turn, (x.shape[-1] - 1) * rise

    def inverse(self, y: Points) -> tuple[Points, LogVolume]:
        ridge, turn, rise = self._along(y)
        return ridge + (y - ridge - turn) * xp_of(y).exp(-rise)[..., None], (y.shape[-1] - 1) * rise

    def pushed(self, y: Float[np.ndarray, "n dim"], slope: Float[np.ndarray, "n dim"]) -> Float[np.ndarray, "n dim"]:
        """e u + v [(1 - e) v·u - 2 s e b·u - a c'(s) (x - s v)·u + (D - 1) a c'(s)], e = exp(-a c(s)), of a slope u."""
        ridge, turn, rise = self._along(y)
        s, shrink = (y @ self.axis)[:, None], np.exp(-rise)[:, None]
        steepness = np.where(np.abs(s) < REACH, self.stretch, 0.0)
        across = shrink * np.sum((y - ridge - turn) * slope, axis=1, keepdims=True)
        tilt = (1 - shrink) * (slope @ self.axis)[:, None] - 2 * s * shrink * (slope @ self.curve)[:, None]
        return shrink * slope + (tilt + steepness * (y.shape[1] - 1 - across)) * self.axis

    def _along(self, points: Points) -> tuple[Any, Any, Any]:
        """s v, b s² and a c(s), from x or y."""
        s = points @ self.axis
        along = s[..., None]
        return along * self.axis, along * along * self.curve, self.stretch * xp_of(points).clip(s, -REACH, REACH)
