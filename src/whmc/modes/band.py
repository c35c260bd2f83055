"""Bands: charts of many dimensions whose coordinates are coupled to their neighbours.

A diagonal scale S takes coordinates for independent. Time series, paths and fields have a precision P that is a band
instead: P_jk = 0 for |j - k| > w. Its Cholesky factor is a band too. So with G upper triangular, ones in its diagonal
and w couplings g_m beside it,

    P = S^{-1} G^T G S^{-1},     x = G z,     z = S^{-1} (theta - mu),     x_j = z_j + sum_m g_mj z_{j+m}.

|G| = 1, so volumes are those of S. Kernels work with displacements d = S x, and there

    d = M (theta - mu),     M = S G S^{-1},     and a score is pulled back to d by M^{-T}.

M^{-1} takes log D steps and not D. In blocks of w coordinates M = B (I - N), where B holds the blocks of the diagonal
and N the blocks right beside, so that

    M^{-1} = (I + N) (I + N²) (I + N⁴) ... B^{-1},

and N^(2^l) has a single block in each row again, 2^l blocks beside the diagonal. Powers that are nothing beside
rounding are left out.
"""

import jax
import jax.numpy as jnp
import numpy as np

from whmc._pytree import pytree
from whmc._shapes import Array, Float
from whmc.modes.layers.banded import Banded


def banded_scale(
    diagonal: Float[np.ndarray, " dim"], beside: Float[np.ndarray, "width dim"], flat_share: float = 0.0
) -> tuple[Float[np.ndarray, " dim"], Float[np.ndarray, "width dim"]] | None:
    """S and the couplings g of a precision with this diagonal and P_{j+m,j} in row m - 1.

    None where it is not positive, or some direction has no more than `flat_share` of the curvature of its coordinate.
    """
    from scipy.linalg import LinAlgError, cholesky_banded  # late: most runs need none

    try:
        factor = cholesky_banded(np.concatenate([diagonal[None], beside]), lower=True)
    except LinAlgError:
        return None
    if np.any(factor[0] ** 2 <= flat_share * diagonal):
        return None
    scale = 1 / factor[0]
    return scale, np.stack([row * _ahead(scale, m) for m, row in enumerate(factor[1:], 1)])


def band_product(
    diagonal: Float[np.ndarray, " dim"], beside: Float[np.ndarray, "width dim"], vector: Float[np.ndarray, " dim"]
) -> Float[np.ndarray, " dim"]:
    """P v of a precision as `banded_scale` takes it."""
    product = diagonal * vector
    for m, row in enumerate(beside, 1):
        product += row * _ahead(vector, m) + _behind(row * vector, m)
    return product


def _ahead(rows: np.ndarray, m: int) -> np.ndarray:
    """Element j + m in the place of j, zero past the end; of the last axis."""
    return np.concatenate([rows[..., m:], np.zeros_like(rows[..., :m])], axis=-1)


def _behind(rows: np.ndarray, m: int) -> np.ndarray:
    """Element j - m in the place of j, zero before the start; of the last axis."""
    return np.concatenate([np.zeros_like(rows[..., :m]), rows[..., : rows.shape[-1] - m]], axis=-1)


@pytree
class Bands:
    """The bands of all charts of a library: couplings g in whitened coordinates, and what `Band` takes."""

    coupling: Float[Array, "capacity width dim"]
    beside: Float[Array, "capacity width dim"]
    inverse: Float[Array, "capacity blocks width width"]
    powers: Float[Array, "capacity levels blocks width width"]

    @classmethod
    def of(cls, bands: Banded) -> "Bands":
        """From the layers of all charts in one: whitened coordinates become displacements, rows times their scale,
        columns divided by theirs."""
        coupling, sd = np.asarray(bands.coupling), np.asarray(bands.sd)
        num, width, dim = coupling.shape
        # couplings past the end are zero, whatever they are divided by
        beside = np.stack([coupling[:, m - 1] * sd / np.roll(sd, -m, axis=1) for m in range(1, width + 1)], axis=1)
        inverse, powers = (np.moveaxis(np.asarray(part), -1, -3) for part in (bands.inverse_blocks, bands.powers))
        blocks = inverse.shape[1]
        sizes = np.concatenate([sd, np.ones((num, blocks * width - dim))], axis=1).reshape(num, blocks, width)
        inverse = sizes[..., None] * inverse / sizes[:, :, None, :]
        scaled = []
        for level in range(powers.shape[1]):
            there = np.concatenate([sizes[:, 2**level :], np.ones_like(sizes)], axis=1)[:, :blocks]
            scaled.append(sizes[..., None] * powers[:, level] / there[:, :, None, :])
        together = np.stack(scaled, axis=1)
        if not np.all(np.isfinite(together)):
            raise ValueError("couplings of bands are so large that they have no inverse in floating point")
        return cls(*jax.device_put((coupling, beside, inverse, together)))

    def straightened(self, z: Float[Array, "capacity dim"]) -> tuple[Float[Array, " n"], float]:
        """|x|² and log|dz/dx| in every chart, from the whitened coordinates z of each."""
        x = z
        for m in range(1, self.coupling.shape[1] + 1):
            x = x + self.coupling[:, m - 1] * _shifted(z, m)
        return jnp.sum(x**2, axis=-1), 0.0

    def squares(self) -> Float[Array, "capacity dim"]:
        """The diagonal of G^T G in every chart."""
        found = jnp.ones_like(self.coupling[:, 0])
        for m in range(1, self.coupling.shape[1] + 1):
            found = found + _shifted(self.coupling[:, m - 1] ** 2, -m)
        return found


@pytree
class Band:
    """The band of one chart, as kernels need it: what is beside the ones in M, B^{-1}, and the powers of N."""

    beside: Float[Array, "width dim"]
    inverse: Float[Array, "blocks width width"]
    powers: Float[Array, "levels blocks width width"]

    def straight(self, offset: Float[Array, " dim"]) -> Float[Array, " dim"]:
        """The displacement d of theta - mu."""
        displacement = offset
        for m in range(1, self.beside.shape[0] + 1):
            displacement = displacement + self.beside[m - 1] * _shifted(offset, m)
        return displacement

    def bent(self, displacement: Float[Array, " dim"]) -> Float[Array, " dim"]:
        """theta - mu of a displacement d."""
        rows = _times(self.inverse, self._in_blocks(displacement))
        for level in range(self.powers.shape[0]):
            far = _shifted(rows.T, 2**level).T
            rows = rows + _times(self.powers[level], far)
        return rows.reshape(-1)[: displacement.shape[0]]

    def log_volume(self, offset: Float[Array, " dim"]) -> Float[Array, ""]:
        """log|dz/dx|: none."""
        return jnp.zeros((), offset.dtype)

    def pulled(self, displacement: Float[Array, " dim"], score: Float[Array, " dim"]) -> Float[Array, " dim"]:
        """The gradient in d of log pi(theta), from the score at theta."""
        del displacement
        rows = self._in_blocks(score)
        for level in range(self.powers.shape[0]):
            near = _times(jnp.swapaxes(self.powers[level], 1, 2), rows)
            rows = rows + _shifted(near.T, -(2**level)).T
        rows = _times(jnp.swapaxes(self.inverse, 1, 2), rows)
        return rows.reshape(-1)[: score.shape[0]]

    def _in_blocks(self, vector: Float[Array, " dim"]) -> Float[Array, "blocks width"]:
        blocks, width = self.inverse.shape[:2]
        return jnp.pad(vector, (0, blocks * width - vector.shape[0])).reshape(blocks, width)


def _times(matrices: Float[Array, "n width width"], rows: Float[Array, "n width"]) -> Float[Array, "n width"]:
    """A product for each row. Not a matmul: of small matrices XLA makes slow calls."""
    return jnp.sum(matrices * rows[:, None, :], axis=-1)


def _shifted(rows: Float[Array, "*n dim"], m: int) -> Float[Array, "*n dim"]:
    """Element j + m in the place of j, zero outside; of the last axis."""
    zeros = jnp.zeros((*rows.shape[:-1], min(abs(m), rows.shape[-1])), rows.dtype)
    return jnp.concatenate([rows[..., m:], zeros] if m > 0 else [zeros, rows[..., :m]], axis=-1)
