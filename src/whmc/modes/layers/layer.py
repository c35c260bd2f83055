"""Layer: a bijection x -> y in closed form both ways, with its volume log|dy/dx|.

A chart takes a standard Gaussian x to theta through layers: what bends a mode and makes its tails, a scale, a place.
A layer holds the parameters of one chart. Every kind of layer has an identity, so that charts which need it and charts
which do not can stand in one library. The layers of all charts are one object whose arrays have the chart as first axis
(`stacked`); a row of it is one chart's layer again.

Points are (*n, D), one on the device or many on the host. `forward` and `inverse` compute in NumPy where the points are
NumPy arrays, else in JAX (`xp_of`), so that a layer is written once.
"""

import abc
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from whmc._shapes import Array, Float

Points = Float[Array | np.ndarray, "*n dim"]
LogVolume = Float[Array | np.ndarray, "*n"] | float
"""log|dy/dx| at each point; of one point NumPy makes a float."""

Score = Float[Array, "*n dim"]
Pull = Callable[[Score], Score]

REACH = 8.0
"""Standard deviations of x up to which warps grow, so that nothing overflows: 1e-15 of a Gaussian is beyond."""


class Layer(abc.ABC):
    """x -> y of one chart. Subclasses are pytrees, and all of their fields arrays or layers."""

    @abc.abstractmethod
    def forward(self, x: Points) -> tuple[Points, LogVolume]:
        """y and log|dy/dx|."""

    @abc.abstractmethod
    def inverse(self, y: Points) -> tuple[Points, LogVolume]:
        """x and log|dy/dx|: the volume of the way from x to y here too."""

    @classmethod
    @abc.abstractmethod
    def identity(cls, dim: int) -> "Layer":
        """The layer of one chart that does nothing, in NumPy."""

    @classmethod
    def stacked(cls, charts: Sequence[Any]) -> "Layer":
        """The layers of many charts in one object, in NumPy."""
        return jax.tree.map(lambda *leaves: np.stack(leaves), *charts)

    def linearized(self, x: Points) -> tuple[Points, LogVolume, Pull]:
        """y, log|dy/dx|, and the function that takes grad log pi at y to the gradient in x of log pi(y) + log|dy/dx|.

        In JAX. Layers that know a quicker way than automatic differentiation may have their own.
        """
        (y, log_volume), pulled = jax.vjp(self.forward, x)
        return y, log_volume, lambda score: pulled((score, jnp.ones_like(log_volume)))[0]

    def pushed(self, y: Float[np.ndarray, "n dim"], slope: Float[np.ndarray, "n dim"]) -> Float[np.ndarray, "n dim"]:
        """The gradient in y of F(x) + log|dy/dx|, from the gradient of F in x. On the host.

        Every shape of y is compiled anew: layers of which many gradients are wanted have formulas of their own.
        """
        (_, log_volume), pulled = jax.vjp(self.inverse, jnp.asarray(y))
        return np.asarray(pulled((jnp.asarray(slope), jnp.ones_like(log_volume)))[0])


def xp_of(points: Any) -> Any:
    """`numpy` or `jax.numpy`, as the points are."""
    return np if isinstance(points, np.ndarray) else jnp


def at_all(log_volume: Any, points: Points) -> LogVolume:
    """A log-volume that is the same everywhere, at each point."""
    return xp_of(points).broadcast_to(log_volume, points.shape[:-1])
