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

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from whmc._pytree import pytree
from whmc._shapes import Array, Bool, Float

NEGLIGIBLE_POWER = 1e-18
"""Powers of N with no larger element are left out: beside one they are lost in rounding."""


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


def coupled(coupling: Float[np.ndarray, "width dim"], z: Float[np.ndarray, "n dim"]) -> Float[np.ndarray, "n dim"]:
    """x = G z of many points."""
    return z + sum(row * _ahead(z, m) for m, row in enumerate(coupling, 1))


def coupled_back(coupling: Float[np.ndarray, "width dim"], x: Float[np.ndarray, "n dim"]) -> Float[np.ndarray, "n dim"]:
    """G^T x of many points."""
    return x + sum(_behind(row * x, m) for m, row in enumerate(coupling, 1))


def uncoupled(coupling: Float[np.ndarray, "width dim"], x: Float[np.ndarray, "n dim"]) -> Float[np.ndarray, "n dim"]:
    """z = G^{-1} x of many points."""
    from scipy.linalg import solve_banded

    width, dim = coupling.shape
    rows = np.ones((width + 1, dim))
    for m, row in enumerate(coupling, 1):
        rows[width - m] = np.concatenate([np.zeros(m), row[: dim - m]])
    return np.asarray(solve_banded((0, width), rows, x.T).T)


def uncoupled_back(
    coupling: Float[np.ndarray, "width dim"], score: Float[np.ndarray, "n dim"]
) -> Float[np.ndarray, "n dim"]:
    """G^{-T} of many scores."""
    from scipy.linalg import solve_banded

    rows = np.concatenate([np.ones((1, coupling.shape[1])), coupling])
    return np.asarray(solve_banded((len(coupling), 0), rows, score.T).T)


def _ahead(rows: np.ndarray, m: int) -> np.ndarray:
    """Element j + m in the place of j, zero past the end; of the last axis."""
    return np.concatenate([rows[..., m:], np.zeros_like(rows[..., :m])], axis=-1)


def _behind(rows: np.ndarray, m: int) -> np.ndarray:
    """Element j - m in the place of j, zero before the start; of the last axis."""
    return np.concatenate([np.zeros_like(rows[..., :m]), rows[..., : rows.shape[-1] - m]], axis=-1)


class BandShapes(NamedTuple):
    """The couplings g of charts in whitened coordinates, as a NumPy array. A chart without a band has zeros."""

    coupling: Float[np.ndarray, "size width dim"]

    @classmethod
    def of(cls, couplings: list[Float[np.ndarray, "_ dim"] | None], dim: int) -> "BandShapes | None":
        """Those of charts with these couplings; None where no chart has any."""
        width = max((len(one) for one in couplings if one is not None), default=0)
        if width == 0:
            return None
        rows = np.zeros((len(couplings), width, dim))
        for k, one in enumerate(couplings):
            if one is not None:
                rows[k, : len(one)] = one
        return cls(rows)

    @property
    def curved(self) -> Bool[np.ndarray, " size"]:
        """No chart: a band is straight."""
        return np.zeros(len(self.coupling), bool)

    def rows(self, which: np.ndarray) -> "BandShapes":
        """Those of some charts."""
        return BandShapes(self.coupling[which])

    def merged_at(self, k: int) -> "BandShapes":
        """These, after another chart was merged into chart k: it keeps its couplings."""
        del k
        return self

    def resized(self, factor: float) -> "BandShapes":
        """The same bands of charts whose scale is multiplied by a factor."""
        del factor
        return self

    def straighten(self, k: int, z: Float[np.ndarray, "n dim"]) -> tuple[np.ndarray, np.ndarray]:
        """x of many points z in chart k, and log|dz/dx| there."""
        return coupled(self.coupling[k], z), np.zeros(len(z))

    def slopes(self, k: int, z: Float[np.ndarray, "n dim"]) -> tuple[np.ndarray, np.ndarray]:
        """The gradients in z of ½|x|² and of log|dz/dx| in chart k, many points z at once."""
        return coupled_back(self.coupling[k], coupled(self.coupling[k], z)), np.zeros_like(z)


@pytree
class Bands:
    """The bands of all charts of a library: couplings g in whitened coordinates, and what `Band` takes."""

    coupling: Float[Array, "capacity width dim"]
    beside: Float[Array, "capacity width dim"]
    inverse: Float[Array, "capacity blocks width width"]
    powers: Float[Array, "capacity levels blocks width width"]

    @classmethod
    def of(cls, shapes: BandShapes, scale: Float[np.ndarray, "n dim"]) -> "Bands":
        """The bands of charts with these scales. How many powers there are depends on the couplings alone."""
        coupling = shapes.coupling
        num, width, dim = coupling.shape
        # couplings past the end are zero, whatever they are divided by
        beside = np.stack(
            [coupling[:, m - 1] * scale / np.roll(scale, -m, axis=1) for m in range(1, width + 1)], axis=1
        )
        blocks = -(-dim // width)
        inverse, first = _blocks(coupling, blocks)
        powers = [first]
        while 2 ** len(powers) < blocks:
            last = powers[-1]
            after = np.concatenate([last[:, 2 ** (len(powers) - 1) :], np.zeros_like(last)], axis=1)[:, :blocks]
            power = last @ after
            if np.max(np.abs(power), initial=0.0) < NEGLIGIBLE_POWER:
                break
            powers.append(power)
        sizes = np.concatenate([scale, np.ones((num, blocks * width - dim))], axis=1).reshape(num, blocks, width)
        # from whitened coordinates to displacements: rows times their scale, columns divided by theirs
        inverse = sizes[..., None] * inverse / sizes[:, :, None, :]
        scaled = []
        for level, power in enumerate(powers):
            there = np.concatenate([sizes[:, 2**level :], np.ones_like(sizes)], axis=1)[:, :blocks]
            scaled.append(sizes[..., None] * power / there[:, :, None, :])
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


def _blocks(
    coupling: Float[np.ndarray, "n width dim"], blocks: int
) -> tuple[Float[np.ndarray, "n blocks width width"], Float[np.ndarray, "n blocks width width"]]:
    """B^{-1} and N of G, in blocks of `width` coordinates; past the end there are ones."""
    num, width, dim = coupling.shape
    coupling = np.concatenate([coupling, np.zeros((num, width, blocks * width - dim))], axis=2)
    here, beside = np.zeros((2, num, blocks, width, width))
    for i in range(width):
        here[..., i, i] = 1.0
        for m in range(1, width + 1):
            row = coupling[:, m - 1, i::width]
            if i + m < width:
                here[..., i, i + m] = row
            else:
                beside[..., i, i + m - width] = row
    beside[:, -1] = 0.0
    inverse = np.linalg.inv(here)
    return inverse, -inverse @ beside


def _times(matrices: Float[Array, "n width width"], rows: Float[Array, "n width"]) -> Float[Array, "n width"]:
    """A product for each row. Not a matmul: of small matrices XLA makes slow calls."""
    return jnp.sum(matrices * rows[:, None, :], axis=-1)


def _shifted(rows: Float[Array, "*n dim"], m: int) -> Float[Array, "*n dim"]:
    """Element j + m in the place of j, zero outside; of the last axis."""
    zeros = jnp.zeros((*rows.shape[:-1], min(abs(m), rows.shape[-1])), rows.dtype)
    return jnp.concatenate([rows[..., m:], zeros] if m > 0 else [zeros, rows[..., :m]], axis=-1)
