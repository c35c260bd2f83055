"""Chart: layers one after the other, from a standard Gaussian x to theta.

theta = place(scale(warps(x))), and log|d theta/dx| is the sum of the layers' log-volumes.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from whmc._pytree import pytree
from whmc._shapes import Float
from whmc.modes.layers.bend import Bend
from whmc.modes.layers.layer import Layer, LogVolume, Points, Pull, Score
from whmc.modes.layers.places import Shift
from whmc.modes.layers.scales import Dense, Scale
from whmc.modes.layers.tails import Radial, Tail

WARPS: tuple[type[Layer], ...] = (Tail, Radial, Bend)
"""Kinds of layers that a chart may have before its scale, in the order in which x goes through them.

Tails come before the bend: after it they would stretch the curve b s² as well. `Tail` and `Radial` are alternatives:
in one chart their exponents add up, and few standard deviations of x lead to astronomic distances."""


@pytree
class Chart(Layer):
    """A layer made of layers."""

    warps: tuple[Layer, ...]
    scale: Scale
    place: Shift

    @property
    def layers(self) -> tuple[Layer, ...]:
        """In the order in which x goes through them."""
        return (*self.warps, self.scale, self.place)

    @classmethod
    def identity(cls, dim: int) -> "Chart":
        """A dense chart without warps."""
        return cls((), Dense.identity(dim), Shift.identity(dim))

    @classmethod
    def stacked(cls, charts: Sequence[Any]) -> "Chart":
        """Of charts with the same kinds of layers."""
        kinds = zip(*(one.layers for one in charts), strict=True)
        *warps, scale, place = (type(same[0]).stacked(same) for same in kinds)
        return cls(tuple(warps), scale, place)

    def forward(self, x: Points) -> tuple[Points, LogVolume]:
        total: Any = 0.0
        for layer in self.layers:
            x, log_volume = layer.forward(x)
            total = total + log_volume
        return x, total

    def inverse(self, y: Points) -> tuple[Points, LogVolume]:
        total: Any = 0.0
        for layer in reversed(self.layers):
            y, log_volume = layer.inverse(y)
            total = total + log_volume
        return y, total

    def linearized(self, x: Points) -> tuple[Points, LogVolume, Pull]:
        """Layer by layer, each in its own way."""
        pulls: list[Pull] = []
        total: Any = 0.0
        for layer in self.layers:
            x, log_volume, pull = layer.linearized(x)
            pulls.append(pull)
            total = total + log_volume

        def pulled(score: Score) -> Score:
            for pull in reversed(pulls):
                score = pull(score)
            return score

        return x, total, pulled

    def pushed(self, y: Float[np.ndarray, "n dim"], slope: Float[np.ndarray, "n dim"]) -> Float[np.ndarray, "n dim"]:
        between: list[Points] = [y]
        for layer in reversed(self.layers[1:]):
            between.append(layer.inverse(between[-1])[0])
        for layer, there in zip(self.layers, reversed(between), strict=True):
            slope = layer.pushed(np.asarray(there), slope)
        return slope
