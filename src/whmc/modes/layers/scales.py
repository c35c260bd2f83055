"""Scales: linear layers y = L x, log|dy/dx| = log|L|. Bands have a file of their own (`banded.py`)."""

import abc
from collections.abc import Sequence
from typing import Any

import numpy as np

from whmc._pytree import pytree
from whmc._shapes import Array, Float
from whmc.modes.layers.layer import Layer, LogVolume, Points, at_all, xp_of


def times(matrix: Any, x: Any) -> Any:
    """A x of each point."""
    return matrix @ x if x.ndim == 1 else x @ matrix.T


class Scale(Layer):
    """y = L x of one chart."""

    log_det: Float[Array | np.ndarray, "*charts"] | float

    @abc.abstractmethod
    def resized(self, factor: Any) -> "Scale":
        """The scale L F, with F a number; dense and diagonal ones also take the diagonal of a matrix F, (D,)."""

    @abc.abstractmethod
    def transposed(self, score: Float[np.ndarray, "n dim"]) -> Float[np.ndarray, "n dim"]:
        """L^T s of each score s, the gradient in x. On the host."""


@pytree
class Dense(Scale):
    """L lower triangular, kept with its inverse: a product is quicker than a substitution."""

    matrix: Float[Array | np.ndarray, "*charts dim dim"]
    inverse_matrix: Float[Array | np.ndarray, "*charts dim dim"]
    log_det: Float[Array | np.ndarray, "*charts"] | float

    @classmethod
    def of(cls, matrix: Float[np.ndarray, "*charts dim dim"]) -> "Dense":
        log_det = np.sum(np.log(np.diagonal(matrix, axis1=-2, axis2=-1)), axis=-1)
        return cls(matrix, np.tril(np.linalg.inv(matrix)), log_det)

    @classmethod
    def identity(cls, dim: int) -> "Dense":
        return cls.of(np.eye(dim))

    def forward(self, x: Points) -> tuple[Points, LogVolume]:
        return times(self.matrix, x), at_all(self.log_det, x)

    def inverse(self, y: Points) -> tuple[Points, LogVolume]:
        return times(self.inverse_matrix, y), at_all(self.log_det, y)

    def resized(self, factor: Any) -> "Dense":
        """F may be a lower triangular matrix as well."""
        return Dense.of(self.matrix @ factor if np.ndim(factor) == 2 else np.asarray(self.matrix * factor))

    def transposed(self, score: Float[np.ndarray, "n dim"]) -> Float[np.ndarray, "n dim"]:
        return np.asarray(score @ self.matrix)

    def pushed(self, y: Float[np.ndarray, "n dim"], slope: Float[np.ndarray, "n dim"]) -> Float[np.ndarray, "n dim"]:
        del y
        return np.asarray(slope @ self.inverse_matrix)


@pytree
class Diagonal(Scale):
    """L = diag(sd)."""

    sd: Float[Array | np.ndarray, "*charts dim"]
    log_det: Float[Array | np.ndarray, "*charts"] | float

    @classmethod
    def of(cls, sd: Float[np.ndarray, "*charts dim"]) -> "Diagonal":
        return cls(sd, np.sum(np.log(sd), axis=-1))

    @classmethod
    def identity(cls, dim: int) -> "Diagonal":
        return cls.of(np.ones(dim))

    def forward(self, x: Points) -> tuple[Points, LogVolume]:
        return self.sd * x, at_all(self.log_det, x)

    def inverse(self, y: Points) -> tuple[Points, LogVolume]:
        return y / self.sd, at_all(self.log_det, y)

    def resized(self, factor: Any) -> "Diagonal":
        return Diagonal.of(np.asarray(self.sd * factor))

    def transposed(self, score: Float[np.ndarray, "n dim"]) -> Float[np.ndarray, "n dim"]:
        return np.asarray(score * self.sd)

    def pushed(self, y: Float[np.ndarray, "n dim"], slope: Float[np.ndarray, "n dim"]) -> Float[np.ndarray, "n dim"]:
        del y
        return np.asarray(slope / self.sd)


@pytree
class LowRank(Scale):
    """L = S (1 + U (e^t - 1) U^T): a diagonal S = diag(sd), and some directions that are stretched by e^t.

    U has orthonormal columns, so that L^{-1} = (1 + U (e^-t - 1) U^T) S^{-1} and log|L| = log|S| + sum t. A column with
    a stretch of zero changes nothing; it may be zero itself.
    """

    sd: Float[Array | np.ndarray, "*charts dim"]
    basis: Float[Array | np.ndarray, "*charts dim rank"]
    stretch: Float[Array | np.ndarray, "*charts rank"]
    log_det: Float[Array | np.ndarray, "*charts"] | float

    @classmethod
    def of(
        cls,
        sd: Float[np.ndarray, "*charts dim"],
        basis: Float[np.ndarray, "*charts dim rank"],
        stretch: Float[np.ndarray, "*charts rank"],
    ) -> "LowRank":
        """The columns of the basis are made orthonormal, each to those before it."""
        log_det = np.sum(np.log(sd), axis=-1) + np.sum(stretch, axis=-1)
        return cls(sd, np.linalg.qr(basis)[0], stretch, log_det)

    @classmethod
    def identity(cls, dim: int) -> "LowRank":
        return cls(np.ones(dim), np.zeros((dim, 1)), np.zeros(1), np.zeros(()))

    @classmethod
    def stacked(cls, charts: Sequence[Any]) -> Layer:
        """Charts of different ranks get columns of zeros up to the largest."""
        rank = max(one.stretch.shape[-1] for one in charts)
        return super().stacked([one._of_rank(rank) for one in charts])

    def _of_rank(self, rank: int) -> "LowRank":
        more = [(0, 0), (0, rank - self.stretch.shape[-1])]
        return type(self)(self.sd, np.pad(self.basis, more), np.pad(self.stretch, more[1:]), self.log_det)

    def forward(self, x: Points) -> tuple[Points, LogVolume]:
        along = xp_of(x).expm1(self.stretch) * times(self.basis.T, x)
        return self.sd * (x + times(self.basis, along)), at_all(self.log_det, x)

    def inverse(self, y: Points) -> tuple[Points, LogVolume]:
        z = y / self.sd
        along = xp_of(y).expm1(-self.stretch) * times(self.basis.T, z)
        return z + times(self.basis, along), at_all(self.log_det, y)

    def resized(self, factor: Any) -> "LowRank":
        return LowRank.of(np.asarray(self.sd * factor), np.asarray(self.basis), np.asarray(self.stretch))

    def transposed(self, score: Float[np.ndarray, "n dim"]) -> Float[np.ndarray, "n dim"]:
        slope = np.asarray(score * self.sd)
        return slope + np.asarray(np.expm1(self.stretch) * (slope @ self.basis)) @ self.basis.T
