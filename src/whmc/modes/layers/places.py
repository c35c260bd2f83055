"""Places: where a chart is. The last layer before theta."""

import numpy as np

from whmc._pytree import pytree
from whmc._shapes import Array, Float
from whmc.modes.layers.layer import Layer, LogVolume, Points, at_all


@pytree
class Shift(Layer):
    """y = x + location."""

    location: Float[Array | np.ndarray, "*charts dim"]

    @classmethod
    def identity(cls, dim: int) -> "Shift":
        return cls(np.zeros(dim))

    def forward(self, x: Points) -> tuple[Points, LogVolume]:
        return x + self.location, at_all(0.0, x)

    def inverse(self, y: Points) -> tuple[Points, LogVolume]:
        return y - self.location, at_all(0.0, y)

    def pushed(self, y: Float[np.ndarray, "n dim"], slope: Float[np.ndarray, "n dim"]) -> Float[np.ndarray, "n dim"]:
        del y
        return slope
