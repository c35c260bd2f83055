"""The start region of a target: a box, points, or a function that draws points."""

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from whmc._shapes import Array, Float
from whmc.keys import generator
from whmc.target.bounds import require_one_reading
from whmc.target.space import Space, ravel, shaped_like


def require_starts(space: Space, starts: Any) -> Any:
    """The starts as given, or the box of finite bounds. Shapes only: whether the density is finite there is the
    question of `Target.check`."""
    if starts is None:
        if space.bounds is None or not space.bounds.finite:
            return None
        return tuple(shaped_like(space.template, edge) for edge in (space.bounds.low, space.bounds.high))
    if isinstance(starts, tuple):
        _require_box(space, starts)
    elif not callable(starts):
        _require_points(space, starts)
    return starts


def draw_starts(
    space: Space, starts: Any, key: Array, num: int, *, uniform: bool = False
) -> Float[np.ndarray, "num dim"]:
    """`num` flat positions of the start region. uniform: those of a box are so in many dimensions too."""
    if starts is None:
        raise ValueError("this target has no starts: give Target(..., starts=(low, high))")
    if callable(starts):
        points = np.asarray(space.flatten_all(starts(key, num)))
        if points.shape != (num, space.dim):
            raise ValueError(f"starts(key, {num}) gave shape {points.shape}: it must give ({num}, {space.dim})")
        return points
    if isinstance(starts, tuple):
        low, high = box_edges(space, starts)
        draw = _uniform if uniform else draw_in_cube
        points = low + (high - low) * draw(generator(key), num, space.dim)
        return points if space.bounds is None else np.asarray(space.bounds.unconstrain(points))
    given = given_points(space, starts, key)
    assert given is not None
    return np.resize(given, (num, space.dim))


def given_points(space: Space, starts: Any, key: Array) -> Float[np.ndarray, "num dim"] | None:
    """The different points that were given as starts, in random order; None where no points were given.

    The order in which they were given may have a meaning: the first hundred may all lie in one mode.
    """
    if starts is None or isinstance(starts, tuple) or callable(starts):
        return None
    points = np.unique(np.asarray(space.flatten_all(starts)), axis=0)
    return points[generator(key).permutation(len(points))]


MANY_DIMENSIONS = 20
"""From here on the coordinates of half of the starts are not independent. Uniform points of a box in many dimensions
are all alike: the mean of their coordinates is the middle of the box, and a mode whose mean is elsewhere is never
met."""

COSINES = 12
MOST_BLOCKS = 8
FROM_THE_EDGE = 1e-9
"""How near to the edge of the box such a start may lie, in widths of the box."""


def draw_in_cube(rng: np.random.Generator, num: int, dim: int) -> Float[np.ndarray, "num dim"]:
    """Independent points of the unit cube, of one law.

    Uniform; in many dimensions half of them, and a sixth each of points whose coordinates share a level (Beta laws,
    each with its own mean), change smoothly with their index (cosines of several roughnesses, with uniform margins),
    and are constant over a few blocks of neighbours.
    """
    points = _uniform(rng, num, dim)
    if dim < MANY_DIMENSIONS:
        return points
    law = rng.integers(6, size=num)
    for number, draw in enumerate((_levelled, _smooth, _in_blocks)):
        mine = law == number
        points[mine] = np.clip(draw(rng, int(mine.sum()), dim), FROM_THE_EDGE, 1 - FROM_THE_EDGE)
    return points


def _uniform(rng: np.random.Generator, num: int, dim: int) -> Float[np.ndarray, "num dim"]:
    return rng.random((num, dim))


def _levelled(rng: np.random.Generator, num: int, dim: int) -> Float[np.ndarray, "num dim"]:
    mean = rng.uniform(0.02, 0.98, (num, 1))
    return rng.beta(2 * mean, 2 * (1 - mean), (num, dim))


def _smooth(rng: np.random.Generator, num: int, dim: int) -> Float[np.ndarray, "num dim"]:
    from scipy.special import ndtr  # late: it takes a third of JAX's own time to import

    order = np.arange(COSINES)
    size = np.exp(-order * rng.uniform(0.1, 2.0, (num, 1)))
    size *= np.sqrt(2 / np.sum(size**2, axis=1, keepdims=True)) * rng.standard_normal((num, COSINES))
    phase = rng.uniform(0, 2 * np.pi, (num, COSINES))
    angle = np.pi * order[:, None] * np.arange(dim) / dim
    return ndtr((size * np.cos(phase)) @ np.cos(angle) + (size * np.sin(phase)) @ np.sin(angle))


def _in_blocks(rng: np.random.Generator, num: int, dim: int) -> Float[np.ndarray, "num dim"]:
    num_cuts = rng.integers(MOST_BLOCKS, size=num)
    cuts = rng.integers(1, dim, (num, MOST_BLOCKS - 1))
    cuts[np.arange(MOST_BLOCKS - 1) >= num_cuts[:, None]] = dim
    block = sum(cuts[:, [n]] <= np.arange(dim) for n in range(MOST_BLOCKS - 1))
    return np.take_along_axis(rng.random((num, MOST_BLOCKS)), np.asarray(block, int), axis=1)


def box_edges(space: Space, starts: tuple[Any, Any]) -> list[Float[np.ndarray, " dim"]]:
    """(low, high) of a start box, a number for each coordinate."""
    return [np.array(np.broadcast_to(_edge(space, edge), (space.dim,))) for edge in starts]


def _edge(space: Space, edge: Any) -> np.ndarray:
    """One number for all coordinates, or one for each."""
    whole = space.template is not None and edge is not None and not np.isscalar(edge)
    return ravel(edge) if whole else np.asarray(edge, float)


def _require_box(space: Space, starts: tuple[Any, ...]) -> None:
    dim = space.dim
    if len(starts) != 2:
        raise ValueError(
            f"starts as a box is a tuple (low, high), got {len(starts)} entries; an array (n, {dim}) gives points"
        )
    if space.template is None:
        require_one_reading("starts", starts, dim)
    low, high = (_edge(space, edge) for edge in starts)
    if low.shape not in ((), (dim,)) or high.shape not in ((), (dim,)):
        raise ValueError(f"starts has edges of shape {low.shape} and {high.shape}: give scalars or {dim} values each")
    if not (np.all(np.isfinite(low)) and np.all(np.isfinite(high)) and np.all(low < high)):
        raise ValueError(f"starts must be a finite box with low < high, got {starts!r}")
    bounds = space.bounds
    if bounds is not None and not (np.all(low >= bounds.low) and np.all(high <= bounds.high)):
        raise ValueError(f"starts {starts!r} reach outside the bounds: give a box inside them, or leave it out")


def _require_points(space: Space, starts: Any) -> None:
    points = np.asarray(space.flatten_all(starts))
    dim = space.dim
    if points.ndim != 2 or points.shape[1] != dim or len(points) == 0:
        raise ValueError(
            f"starts has shape {points.shape}: give (n, {dim}) points, or a box as a tuple (low, high)"
            + (f", here starts={_as_box(points)}" if _looks_like_box(points, dim) else "")
        )
    if dim == 2 and space.template is None and _looks_like_box(points, dim) and _may_be_meant_as_box(starts):
        distinct = np.unique(points, axis=0)
        meant = "two points" if len(distinct) == 2 else "one point twice"
        raise ValueError(
            f"starts={points.tolist()} has two readings: the box {_product(points)}, or {meant}. "
            f"Write starts={_as_box(points)} for the box, starts=np.array({distinct.tolist()}) for the points"
        )


def _looks_like_box(rows: np.ndarray, dim: int) -> bool:
    """A pair low < high for each coordinate."""
    return rows.shape == (dim, 2) and bool(np.all(rows[:, 0] < rows[:, 1]))


def _may_be_meant_as_box(starts: Any) -> bool:
    """An array holds points, unless both are the same: then it says nothing as points. So does a list of arrays."""
    if isinstance(starts, (np.ndarray, jax.Array)):
        return np.array_equal(*np.asarray(starts))
    return all(isinstance(row, (list, tuple)) for row in starts)


def _product(pairs: np.ndarray) -> str:
    return " x ".join(f"[{low:g}, {high:g}]" for low, high in pairs)


def _as_box(pairs: np.ndarray) -> str:
    return f"({pairs[:, 0].tolist()}, {pairs[:, 1].tolist()})"


def describe(space: Space, starts: Any, shown: int = 3) -> str:
    """The start region as it was understood, for `Target.check`."""
    if not isinstance(starts, tuple):
        return "drawn by a function" if callable(starts) else "among the given points"
    low, high = box_edges(space, starts)
    edges: Sequence[str] = [
        f"{name} in ({a:g}, {b:g})" for name, a, b in zip(space.names[:shown], low, high, strict=False)
    ]
    return "in the box " + ", ".join(edges) + (", ..." if space.dim > shown else "")
