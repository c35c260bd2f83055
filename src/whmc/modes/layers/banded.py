"""Banded: the scale of charts of many dimensions whose coordinates are coupled to their neighbours.

The precision of a time series, a path or a field is a band, P_jk = 0 for |j - k| > w, and so is its Cholesky factor.
With S = diag(sd), and G upper triangular with ones in its diagonal and w couplings g_m beside it,

    P = S^{-1} G^T G S^{-1},     x = G z,     y = S z,     x_j = z_j + sum_m g_mj z_{j+m},     log|dy/dx| = log|S|.

The inverse is a product. Forward, z = G^{-1} x takes log D steps and not D: in blocks of w coordinates G = B (1 - N),
where B holds the blocks in the diagonal and N has one block in each row, right beside it, so that

    G^{-1} = (1 + N) (1 + N²) (1 + N⁴) ... B^{-1},

and N^(2^l) has one block in each row again, 2^l blocks beside the diagonal.
"""

from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np

from whmc._pytree import pytree
from whmc._shapes import Array, Float
from whmc.modes.layers.layer import LogVolume, Points, at_all, xp_of
from whmc.modes.layers.scales import Scale

NEGLIGIBLE_POWER = 1e-18
"""Powers of N with no larger element are left out: beside one they are lost in rounding."""


@pytree
class Banded(Scale):
    """S, the couplings g, the blocks of B^{-1} and of the powers of N, which have the block as last axis, and log|S|.

    Couplings to coordinates past the end, g_mj with j + m >= D, mean nothing.
    """

    sd: Float[Array | np.ndarray, "*charts dim"]
    coupling: Float[Array | np.ndarray, "*charts width dim"]
    inverse_blocks: Float[Array | np.ndarray, "*charts width width blocks"]
    powers: Float[Array | np.ndarray, "*charts levels width width blocks"]
    log_det: Float[Array | np.ndarray, "*charts"] | float

    @classmethod
    def of(cls, sd: Float[np.ndarray, "*charts dim"], coupling: Float[np.ndarray, "*charts width dim"]) -> "Banded":
        """Of one chart or of many; how many powers of N there are is the same for all."""
        inverse, first = _blocks(coupling)
        powers = [first]
        while 2 ** len(powers) < first.shape[-3]:
            power = powers[-1] @ _blocks_ahead(powers[-1], 2 ** (len(powers) - 1))
            if np.max(np.abs(power)) < NEGLIGIBLE_POWER:
                break
            powers.append(power)
        blocks = np.moveaxis(inverse, -3, -1), np.moveaxis(np.stack(powers, axis=-4), -3, -1)
        if not all(np.all(np.isfinite(part)) for part in blocks):
            raise ValueError("couplings of bands are so large that they have no inverse in floating point")
        return cls(sd, coupling, *blocks, np.sum(np.log(sd), axis=-1))

    @classmethod
    def identity(cls, dim: int) -> "Banded":
        return cls.of(np.ones(dim), np.zeros((1, dim)))

    @classmethod
    def stacked(cls, charts: Sequence[Any]) -> "Banded":
        """Charts with narrower bands get couplings of zero up to the widest."""
        width = max(one.coupling.shape[-2] for one in charts)
        couplings = [np.pad(one.coupling, [(0, width - one.coupling.shape[-2]), (0, 0)]) for one in charts]
        return cls.of(np.stack([np.asarray(one.sd) for one in charts]), np.stack(couplings))

    def forward(self, x: Points) -> tuple[Points, LogVolume]:
        rows = _times(self.inverse_blocks, self._in_blocks(x))
        for level in range(self.powers.shape[0]):
            rows = rows + _times(self.powers[level], _ahead(rows, 2**level))
        z = xp_of(x).swapaxes(rows, -1, -2).reshape(*x.shape[:-1], -1)[..., : x.shape[-1]]
        return self.sd * z, at_all(self.log_det, x)

    def inverse(self, y: Points) -> tuple[Points, LogVolume]:
        z = y / self.sd
        x = z
        for m in range(1, self.coupling.shape[0] + 1):
            x = x + self.coupling[m - 1] * _ahead(z, m)
        return x, at_all(self.log_det, y)

    def resized(self, factor: Any) -> "Banded":
        return Banded.of(np.asarray(self.sd * factor), np.asarray(self.coupling))

    def transposed(self, score: Float[np.ndarray, "n dim"]) -> Float[np.ndarray, "n dim"]:
        """G^{-T} S s."""
        from scipy.linalg import solve_banded  # late: most runs need none

        rows = np.concatenate([np.ones((1, self.coupling.shape[1])), self.coupling])
        return np.asarray(solve_banded((len(rows) - 1, 0), rows, (score * self.sd).T).T)

    def pushed(self, y: Float[np.ndarray, "n dim"], slope: Float[np.ndarray, "n dim"]) -> Float[np.ndarray, "n dim"]:
        """S^{-1} G^T u of each slope u."""
        del y
        total = slope
        for m, row in enumerate(np.asarray(self.coupling), 1):
            total = total + np.concatenate([np.zeros_like(slope[:, :m]), (row * slope)[:, :-m]], axis=1)
        return np.asarray(total / self.sd)

    def _in_blocks(self, x: Points) -> Float[Array | np.ndarray, "*n width blocks"]:
        xp, (width, _, blocks) = xp_of(x), self.inverse_blocks.shape
        past_the_end = xp.zeros((*x.shape[:-1], blocks * width - x.shape[-1]), x.dtype)
        padded = xp.concatenate([x, past_the_end], axis=-1)
        return xp.swapaxes(padded.reshape(*x.shape[:-1], blocks, width), -1, -2)


def _times(matrices: Any, rows: Any) -> Any:
    """Matrix times vector in each block. Not a matmul on the device: of small matrices XLA makes slow calls."""
    if isinstance(rows, np.ndarray):
        return np.einsum("ijb,...jb->...ib", matrices, rows)
    return jnp.sum(matrices * rows[..., None, :, :], axis=-2)


def _ahead(rows: Any, m: int) -> Any:
    """Element j + m in the place of j, zero past the end; of the last axis."""
    xp = xp_of(rows)
    return xp.concatenate([rows[..., m:], xp.zeros_like(rows[..., :m])], axis=-1)


def _blocks_ahead(blocks: np.ndarray, m: int) -> np.ndarray:
    """The same of square blocks, (..., blocks, width, width)."""
    return np.concatenate([blocks[..., m:, :, :], np.zeros_like(blocks[..., :m, :, :])], axis=-3)


def _blocks(
    coupling: Float[np.ndarray, "*charts width dim"],
) -> tuple[Float[np.ndarray, "*charts blocks width width"], Float[np.ndarray, "*charts blocks width width"]]:
    """B^{-1} and N of G, in blocks of `width` coordinates; past the end G has ones in its diagonal."""
    *charts, width, dim = coupling.shape
    blocks = -(-dim // width)
    coupling = np.concatenate([coupling, np.zeros((*charts, width, blocks * width - dim))], axis=-1)
    here = np.zeros((*charts, blocks, width, width)) + np.eye(width)
    beside = np.zeros_like(here)
    for i in range(width):
        for m in range(1, width + 1):
            part = here if i + m < width else beside
            part[..., i, (i + m) % width] = coupling[..., m - 1, i::width]
    beside[..., -1, :, :] = 0.0
    inverse = np.linalg.inv(here)
    return inverse, -inverse @ beside
