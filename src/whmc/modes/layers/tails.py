"""Tails: heavy tails of the coordinates (`Tail`) or of the radius (`Radial`).

With a heaviness h >= 0 and u = |x|², where |x| is one coordinate's size in `Tail` and the radius in `Radial`,

    h |y|² = exp(h u) - 1,     y along x.

A Gaussian x becomes a y with nearly Student's law (Wallace 1959): the density of |y| falls off like |y|^{-1-1/h} times
a power of its logarithm. With w = h u and the growth g = |y|²/|x|² = (exp(w) - 1)/w,

    y = x g^{1/2},     log d|y|/d|x| = w - log(g)/2,     and log(g)/2 across, in D - 1 directions of `Radial`.

All is computed from g, which takes one exponential and one logarithm forward, and two logarithms back. From u = r² on
g stays what it is there: y grows in proportion to x, so that nothing overflows. h = 0 is the identity.
"""

import abc
from typing import Any

import numpy as np

from whmc._pytree import pytree
from whmc._shapes import Array, Float
from whmc.modes.layers.layer import REACH, Layer, LogVolume, Points, xp_of

SMALL = 1e-5
"""Below this w, g = 1 + w/2 + w²/6 but for rounding. The derivative of (exp(w) - 1)/w loses digits there, like 1/w."""


def square_of_reach(num: int) -> float:
    """r² for the radius of `num` coordinates, r = sqrt(num) + REACH - 1.

    Beyond sqrt(num) + t a Gaussian has at most exp(-t²/2) of its mass: here 2e-11.
    """
    return float((np.sqrt(num) + REACH - 1) ** 2)


def _growth(raised: Any, w: Any, xp: Any) -> Any:
    """g from exp(w) - 1 and w. Neither choice divides by zero, as derivatives are taken of both."""
    large = w > SMALL
    return xp.where(large, xp.where(large, raised, 1.0) / xp.where(large, w, 1.0), 1 + w / 2 * (1 + w / 3))


@pytree
class AbstractTail(Layer):
    """h, and |y|² from where on y grows in proportion to x."""

    heaviness: Float[Array | np.ndarray, "*charts groups"]
    edge: Float[Array | np.ndarray, "*charts groups"]

    @staticmethod
    @abc.abstractmethod
    def num_together(dim: int) -> int:
        """How many coordinates grow together."""

    @staticmethod
    @abc.abstractmethod
    def square(x: Points) -> Any:
        """|x|² of each group of coordinates that grow together."""

    @classmethod
    def of(cls, heaviness: Float[Array | np.ndarray, "*charts groups"], dim: int) -> "AbstractTail":
        """In NumPy or JAX, as the heaviness is."""
        xp, most = xp_of(heaviness), square_of_reach(cls.num_together(dim))
        w = heaviness * most
        return cls(heaviness, most * _growth(xp.expm1(w), w, xp))

    def forward(self, x: Points) -> tuple[Points, LogVolume]:
        xp, square, most = xp_of(x), self.square(x), square_of_reach(self.num_together(x.shape[-1]))
        w = self.heaviness * xp.minimum(square, most)
        growth = _growth(xp.expm1(w), w, xp)
        return x * xp.sqrt(growth), self._log_volume(w, growth, square < most, x)

    def inverse(self, y: Points) -> tuple[Points, LogVolume]:
        xp, square = xp_of(y), self.square(y)
        raised = self.heaviness * xp.minimum(square, self.edge)
        w = xp.log1p(raised)
        growth = _growth(raised, w, xp)
        return y / xp.sqrt(growth), self._log_volume(w, growth, square < self.edge, y)

    def _log_volume(self, w: Any, growth: Any, growing: Any, points: Points) -> LogVolume:
        xp, log_growth = xp_of(points), xp_of(points).log(growth)
        across = 0.5 * self.num_together(points.shape[-1]) * log_growth
        return xp.sum(across + xp.where(growing, w - log_growth, 0.0), axis=-1)


@pytree
class Tail(AbstractTail):
    """A heaviness for each coordinate, (D,): nearly Student's t with 1/h degrees of freedom."""

    @classmethod
    def identity(cls, dim: int) -> "AbstractTail":
        return cls.of(np.zeros(dim), dim)

    def pushed(self, y: Float[np.ndarray, "n dim"], slope: Float[np.ndarray, "n dim"]) -> Float[np.ndarray, "n dim"]:
        """(u + dV/dx) / (dy/dx) of each slope u, with dV/dx = h x (2 + 1/w - 1/(1 - exp(-w))) while y grows faster."""
        growing, raised = y * y < self.edge, self.heaviness * np.minimum(y * y, self.edge)
        w = np.log1p(raised)
        root = np.sqrt(_growth(raised, w, np))
        large = w > SMALL
        some = np.where(large, w, 1.0)
        tilt = np.where(large, 1 / some + 1 / np.expm1(-some), w / 12 - 0.5)
        swell = np.where(growing, self.heaviness * (y / root) * (2 + tilt), 0.0)
        return (slope + swell) / np.where(growing, (1 + raised) / root, root)

    @staticmethod
    def num_together(dim: int) -> int:
        return 1

    @staticmethod
    def square(x: Points) -> Any:
        return x * x


@pytree
class Radial(AbstractTail):
    """One heaviness for the radius, (1,): elliptical tails, nearly the multivariate t."""

    @classmethod
    def identity(cls, dim: int) -> "AbstractTail":
        return cls.of(np.zeros(1), dim)

    @staticmethod
    def num_together(dim: int) -> int:
        return dim

    @staticmethod
    def square(x: Points) -> Any:
        return xp_of(x).sum(x * x, axis=-1, keepdims=True)
