"""Maps outside of JAX, such as Stan's transforms, that JAX can differentiate: slopes are central differences.

Symmetries are spoken of in constrained values, so what is computed with them needs the slopes of both directions.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from whmc._shapes import Array, Bool, Float
from whmc.frontends.callback import outside

FIRST = float(np.finfo(float).eps) ** (1 / 3)
"""The step of slopes: its square is as large as rounding error over it."""

SECOND = 1e-3
"""The step of differences of slopes, which have lost a third of their digits already."""


def sloped(
    rows: Callable[[Float[np.ndarray, "n dim"]], Float[np.ndarray, "n size"]], depends: Bool[np.ndarray, "size dim"]
) -> Callable[[Float[Array, " dim"]], Float[Array, " size"]]:
    """A map of many rows as a JAX function of one position, for jit, vmap, grad and jvp of grad.

    depends: which outputs may change with which coordinate. Coordinates that share no output are moved together: where
        each parameter has its own coordinate, all slopes cost two evaluations.
    """
    size, dim = depends.shape
    groups = _apart(depends)

    def look(position: np.ndarray) -> tuple[np.ndarray]:
        return (rows(position.reshape(-1, dim)).reshape(*position.shape[:-1], size),)

    def slopes(position: np.ndarray) -> tuple[np.ndarray]:
        found = _slopes(rows, position.reshape(-1, dim), depends, groups)
        return (found.reshape(*position.shape[:-1], size, dim),)

    return _differentiable(look, slopes, size)


def inverse(
    rows: Callable[[Float[np.ndarray, "n size"]], Float[np.ndarray, "n dim"]],
    forward: Callable[[Float[Array, " dim"]], Float[Array, " size"]],
    dim: int,
) -> Callable[[Float[Array, " size"]], Float[Array, " dim"]]:
    """The way back of a sloped map as a JAX function.

    Its slopes are those of the way there, inverted: values may have fewer freedoms than numbers (a simplex), and must
    not be moved one by one.
    """

    def look(values: np.ndarray) -> tuple[np.ndarray]:
        return (rows(values.reshape(-1, values.shape[-1])).reshape(*values.shape[:-1], dim),)

    @jax.custom_jvp
    def back(values: Array) -> Array:
        return outside(look, [(dim,)], values)[0]

    @back.defjvp
    def _(primals: tuple[Array], tangents: tuple[Array]) -> Any:
        (values,), (change,) = primals, tangents
        position = back(values)
        basis, triangle = jnp.linalg.qr(jax.jacfwd(forward)(position))
        return position, jax.scipy.linalg.solve_triangular(triangle, basis.T @ change)

    return back


def _apart(depends: Bool[np.ndarray, "size dim"]) -> list[list[int]]:
    """Groups of coordinates that share no output, each taken into the first group where it fits."""
    groups: list[list[int]] = []
    taken: list[np.ndarray] = []
    for coordinate, outputs in enumerate(depends.T):
        fits = next((n for n, used in enumerate(taken) if not np.any(used & outputs)), len(groups))
        if fits == len(groups):
            groups.append([])
            taken.append(np.zeros(len(depends), bool))
        groups[fits].append(coordinate)
        taken[fits] = taken[fits] | outputs
    return groups


def _slopes(rows: Any, points: np.ndarray, depends: np.ndarray, groups: list[list[int]]) -> np.ndarray:
    """(n, size, dim): the matrix of slopes at each point."""
    found = np.zeros((len(points), *depends.shape))
    for group in groups:
        step = np.zeros(points.shape)
        step[:, group] = FIRST * np.maximum(1.0, np.abs(points[:, group]))
        with np.errstate(over="ignore", invalid="ignore"):  # far out, where densities are zero
            change = rows(points + step) - rows(points - step)
            for coordinate in group:
                slope = change / (2 * step[:, coordinate, None])
                found[:, :, coordinate] = np.where(depends[:, coordinate], slope, 0.0)
    return found


def _differentiable(
    look: Callable[..., tuple[np.ndarray]], slopes: Callable[..., tuple[np.ndarray]], size: int
) -> Callable[[Array], Array]:
    """The map, its matrix of slopes, and the slopes of that."""

    @jax.custom_jvp
    def matrix(position: Array) -> Array:
        return outside(slopes, [(size, *position.shape)], position)[0]

    @matrix.defjvp
    def _(primals: tuple[Array], tangents: tuple[Array]) -> Any:
        (position,), (tangent,) = primals, tangents
        largest = jnp.max(jnp.abs(tangent))
        step = SECOND / jnp.where(largest > 0, largest, 1.0)
        change = matrix(position + step * tangent) - matrix(position - step * tangent)
        return matrix(position), change / (2 * step)

    @jax.custom_jvp
    def value(position: Array) -> Array:
        return outside(look, [(size,)], position)[0]

    @value.defjvp
    def _(primals: tuple[Array], tangents: tuple[Array]) -> Any:
        (position,), (tangent,) = primals, tangents
        return value(position), matrix(position) @ tangent

    return value
