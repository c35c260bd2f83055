"""Chart: the coordinates of one mode, or of a part of it."""

import jax
import jax.numpy as jnp
import numpy as np

from whmc._pytree import pytree
from whmc._shapes import Array, Float, Int, Shaped
from whmc.modes.band import Band
from whmc.modes.bend import Bend
from whmc.modes.tail import Tail

Matrix = Float[Array, "dim dim"] | Float[Array, " dim"]


def apply(matrix: Matrix, vector: Float[Array, " dim"]) -> Float[Array, " dim"]:
    """matrix · vector, where a one-dimensional matrix is a diagonal."""
    return matrix @ vector if matrix.ndim == 2 else matrix * vector


def row(rows: Shaped[Array, "capacity ..."], label: Int[Array, ""] | int) -> Shaped[Array, "..."]:
    """rows[label] of a label that exists.

    Written out: `rows[label]` also asks whether the index is negative or too large, which takes longer than to look it
    up, and more than twice as long to trace.
    """
    rest = tuple(range(rows.ndim - 1))
    where = jax.lax.GatherDimensionNumbers(offset_dims=rest, collapsed_slice_dims=(0,), start_index_map=(0,))
    index = jax.lax.reshape(jnp.asarray(label, int), (1,))
    return jax.lax.gather(rows, index, where, (1, *rows.shape[1:]), mode=jax.lax.GatherScatterMode.CLIP)


def whiten_rows(scale: np.ndarray, shift: Float[np.ndarray, "n dim"]) -> Float[np.ndarray, "n dim"]:
    """L^{-1} x of many displacements at once, in NumPy; a one-dimensional L is a diagonal."""
    return shift / scale if scale.ndim == 1 else np.linalg.solve(scale, shift.T).T


@pytree
class Chart:
    """One mode's coordinates."""

    location: Float[Array, " dim"]
    scale: Matrix
    inverse_scale: Matrix
    covariance: Matrix
    log_det: Float[Array, ""]
    step_size: Float[Array, ""]
    bend: Bend | Band | Tail | None = None

    def position(self, displacement: Float[Array, " dim"]) -> Float[Array, " dim"]:
        """theta of a displacement L x."""
        return self.location + (displacement if self.bend is None else self.bend.bent(displacement))

    def displacement(self, position: Float[Array, " dim"]) -> Float[Array, " dim"]:
        """L x of theta."""
        offset = position - self.location
        return offset if self.bend is None else self.bend.straight(offset)

    def whiten(self, position: Float[Array, " dim"]) -> Float[Array, " dim"]:
        """x of theta; L^{-1} (theta - mu) where the chart is straight."""
        return apply(self.inverse_scale, self.displacement(position))

    def unwhiten(self, x: Float[Array, " dim"]) -> Float[Array, " dim"]:
        """theta of x; mu + L x where the chart is straight."""
        return self.position(apply(self.scale, x))

    def log_volume(self, position: Float[Array, " dim"]) -> Float[Array, ""]:
        """log|d theta / d x|."""
        if self.bend is None:
            return self.log_det
        return self.log_det + self.bend.log_volume(position - self.location)

    def pulled(self, displacement: Float[Array, " dim"], score: Float[Array, " dim"]) -> Float[Array, " dim"]:
        """The gradient of log pi + log|d theta / d x| in displacements, from the score at theta."""
        return score if self.bend is None else self.bend.pulled(displacement, score)
