"""Target: what is sampled, a log density on R^D and where to look for it."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Bool, Float, Int, PyTree

from whmc._memmap import release
from whmc._pytree import pytree
from whmc.target.bounds import Bounds, places
from whmc.target.symmetry import Exchange, Flip, Fold, Group

Numbers = Any
"""Whatever np.asarray takes: NumPy's own type for it cannot be checked at run time."""


@pytree
class Evaluation:
    """Log density and score at a point, made safe: see `Target.evaluate`."""

    logdensity: Float[Array, ""]
    score: Float[Array, " dim"]
    failed: Bool[Array, ""]


# eq=False: two targets are the same only if they are one object, so a target can be a static
# argument of a compiled function whatever it closes over.
@jax.tree_util.register_static
@dataclasses.dataclass(frozen=True, eq=False)
class Target:
    """A log density on R^D, up to a constant, and the region where its modes may be.

    logdensity: position -> scalar. Write it for one position, in `jax.numpy`.
    dim: the number D of coordinates. Leave it out when `template` is given.
    starts: where searches start: a box `(low, high)` (a tuple; scalars or D values each), an
        array of points (n, D), or a function `(key, n) -> points`. Not needed where modes are given.
    names: D names, for tables and pictures.
    template: a pytree of arrays; then `logdensity` takes such a pytree, and so do `starts`.
    constrain: position -> dictionary of named values, as they are meant: what tables and `to_arviz` show.
    unconstrain: its inverse, from that dictionary to a position; only symmetries of these values need it.
    dims, coords: names of the axes of these values and of places along them, as in ArviZ.
    bounds: where `logdensity` is defined: a box `(low, high)` (a tuple; scalars or D values each, None for no bound),
        a list of D pairs, or a dictionary of pairs by name. `logdensity` is then the density of the bounded values,
        and `starts`, modes and tables are in them; chains walk on all of R^D, with the Jacobian taken into account.
        Without `starts`, a finite box of bounds is where searches start.
    symmetries: maps that leave the density unchanged, such as `Exchange("mu", "weight")` of the components of a
        mixture, or `Flip("loading")`: then one of all images of a mode is sampled, and `Result.unfolded` gives back
        the others. Names are those of `constrain` where `unconstrain` is given, else those of coordinates.
    source: where the command line has the target from, so that it can resume a run.
    fold: the image that is kept; made by `sample`.
    """

    logdensity: Callable[[Any], Any]
    dim: int = 0
    starts: Any = None
    names: Sequence[str] | None = None
    template: PyTree = None
    constrain: Callable[[Any], Mapping[str, Any]] | None = None
    unconstrain: Callable[[Mapping[str, Any]], Any] | None = None
    dims: Mapping[str, Sequence[str]] | None = None
    coords: Mapping[str, Any] | None = None
    bounds: Any = None
    symmetries: Sequence[Exchange | Flip] | None = None
    source: Mapping[str, Any] | None = None
    fold: Fold | None = None

    def __post_init__(self) -> None:
        if not callable(self.logdensity):
            raise TypeError(f"logdensity must be a function of a position, got {type(self.logdensity).__name__}")
        if self.template is not None:
            size = sum(np.size(leaf) for leaf in jax.tree.leaves(self.template))
            if self.dim not in (0, size):
                raise ValueError(f"dim is {self.dim}, but template holds {size} numbers: leave dim out")
            object.__setattr__(self, "dim", size)
        dim = self.dim
        if isinstance(dim, bool) or not isinstance(dim, (int, np.integer)) or dim < 1:
            raise ValueError(f"dim must be a positive integer, got {dim!r}: the length of a position")
        object.__setattr__(self, "dim", int(dim))
        if self.names is not None and len(self.names) != dim:
            raise ValueError(f"names has {len(self.names)} entries for dim = {dim}: give one each")
        if self.names is None:
            object.__setattr__(self, "names", _names(self.template, dim))
        if self.bounds is not None and not isinstance(self.bounds, Bounds):
            given = self.bounds
            if self.template is not None and isinstance(given, tuple):
                given = tuple(_flat(edge) if self._is_whole(edge) else edge for edge in given)
            object.__setattr__(self, "bounds", Bounds.of(given, self.coordinates))
        if self.starts is None and self.bounds is not None and self.bounds.finite:
            box = tuple(_shaped_like(self.template, edge) for edge in (self.bounds.low, self.bounds.high))
            object.__setattr__(self, "starts", box)
        _check_starts(self)
        if self.unconstrain is not None and self.constrain is None:
            raise ValueError("unconstrain is the inverse of constrain: give both, or none")
        if self.symmetries:
            self.group  # noqa: B018 - names that do not exist are found now

    def __call__(self, position: Float[Array, " dim"]) -> Float[Array, ""]:
        """log density at a flat position, in the position's dtype."""
        value = jnp.asarray(self.logdensity(self.unflatten(position))).astype(position.dtype)
        if self.bounds is not None:
            value += self.bounds.log_jacobian(position)
        if self.fold is not None:
            value += self.fold.log_share(self.values(position))
        return value

    def evaluate(self, position: Float[Array, " dim"]) -> Evaluation:
        """Log density and score (its gradient); the only door through which they reach a chain.

        A density that is NaN or +inf, or a score that is not finite, counts as failed, and as
        density zero with zero score: still a fixed function of the position, so integrators that
        pass over such a point stay reversible, and no chain ever stops there.
        """
        logdensity, score = jax.value_and_grad(self.__call__)(position)
        usable = jnp.isfinite(logdensity) & jnp.all(jnp.isfinite(score))
        return Evaluation(
            jnp.where(usable, logdensity, -jnp.inf),
            jnp.where(usable, score, 0.0),
            ~usable & (logdensity != -jnp.inf),
        )

    def logdensity_dtype(self) -> Any:
        """What the user's own function computes in, whatever it is given."""
        position = jax.ShapeDtypeStruct((self.dim,), np.dtype(float))
        return jax.eval_shape(lambda x: jnp.asarray(self.logdensity(self.unflatten(x))), position).dtype

    @property
    def coordinates(self) -> list[str]:
        """The names, as plain text."""
        return [str(name) for name in self.names or ()]

    @property
    def constrained(self) -> bool:
        """Whether named values are others than a position's own."""
        return self.constrain is not None or self.bounds is not None

    def flatten(self, position: PyTree) -> Float[Array, " dim"]:
        """A position as a flat vector, free of bounds."""
        flat = self._raveled(position)
        return flat if self.bounds is None else self.bounds.unconstrain(flat)

    def _raveled(self, position: PyTree) -> Float[Array, " dim"]:
        if self.template is None:
            return jnp.asarray(position, float)
        return ravel_pytree(jax.tree.map(lambda leaf: jnp.asarray(leaf, float), position))[0]

    def flatten_all(self, positions: Any) -> Any:
        """Many positions as rows: an array, or with a template a list of pytrees or one with a leading axis."""
        if self.template is None or (isinstance(positions, (np.ndarray, jax.Array)) and positions.ndim == 2):
            rows = np.asarray(positions, float)
        elif isinstance(positions, list):
            rows = np.stack([np.asarray(self._raveled(position)) for position in positions])
        else:
            rows = np.asarray(jax.vmap(self._raveled)(jax.tree.map(jnp.asarray, positions)))
        if self.bounds is None or rows.shape[-1:] != (self.dim,):
            return rows
        self.bounds.require_inside("a given position", rows, self.coordinates)
        return np.asarray(self.bounds.unconstrain(jnp.asarray(rows)))

    def unflatten(self, position: Float[Array, " dim"]) -> PyTree:
        """A flat vector as the user's function takes it: inside the bounds, in the template's shape."""
        if self.bounds is not None:
            position = self.bounds.constrain(position)
        return self._shaped(position)

    def _shaped(self, position: Float[Array, " dim"]) -> PyTree:
        if self.template is None:
            return position
        # ravel_pytree restores the dtypes of its own input, so the template takes the position's
        like = jax.tree.map(lambda leaf: jnp.zeros(np.shape(leaf), position.dtype), self.template)
        return ravel_pytree(like)[1](position)

    def named_values(self, draws: Float[np.ndarray, "chains draws dim"]) -> dict[str, np.ndarray]:
        """Draws under their names: by `constrain`, or leaf by leaf of the template, or by `names`."""
        if self.constrain is not None:
            constrain = self.constrain
            return dict(by_chain(lambda position: dict(constrain(self.unflatten(position))), draws))
        if self.template is not None:
            leaves = jax.tree_util.tree_leaves_with_path(by_chain(self.unflatten, draws))
            return {jax.tree_util.keystr(path, simple=True, separator=".") or "x": leaf for path, leaf in leaves}
        if self.bounds is not None:
            draws = by_chain(self.unflatten, draws)
        if self.coordinates == list(_names(None, self.dim)):
            return {"x": draws}
        return {name: draws[..., n] for n, name in enumerate(self.coordinates)}

    @cached_property
    def group(self) -> Group:
        """All products of the symmetries."""
        assert self.symmetries
        if self.unconstrain is None:
            leaves = {} if self.template is None else _leaves(self.template)
            return Group.generated(self.symmetries, lambda one: _find(one, leaves, self.coordinates), self.dim)
        leaves = _leaves([np.empty(shape) for shape in self._moved.values()])
        where = dict(zip(self._moved, leaves.values(), strict=True))
        return Group.generated(self.symmetries, lambda one: where[one], sum(here.size for here in where.values()))

    @cached_property
    def _moved(self) -> dict[str, tuple[int, ...]]:
        """Named values that symmetries speak of, and their shapes."""
        assert self.constrain is not None and self.symmetries
        with jax.enable_x64(True):
            known = jax.eval_shape(
                lambda x: dict(self.constrain(self.unflatten(x))),  # type: ignore[misc]
                jax.ShapeDtypeStruct((self.dim,), np.dtype(float)),
            )
        names = list(dict.fromkeys(name for one in self.symmetries for name in one.names))
        for name in names:
            if name not in known:
                raise ValueError(f"symmetries speak of {name!r}, the model has {', '.join(map(repr, known))}")
        if not names:
            raise ValueError("symmetries speak of no name: this model's values are known by name, not by number")
        return {name: known[name].shape for name in names}

    def values(self, position: Float[Array, " dim"]) -> Float[Array, " size"]:
        """What the symmetries act on, as one vector: the named values that they speak of, or all coordinates."""
        if self.unconstrain is None:
            return position if self.bounds is None else self.bounds.constrain(position)
        return self._joined(self._named(position))

    def _named(self, position: Float[Array, " dim"]) -> dict[str, Array]:
        assert self.constrain is not None
        return dict(self.constrain(self.unflatten(position)))

    def _joined(self, named: Mapping[str, Array]) -> Float[Array, " size"]:
        return jnp.concatenate([jnp.ravel(named[name]) for name in self._moved])

    def image(self, element: Int[Array, ""] | int, position: Float[Array, " dim"]) -> Float[Array, " dim"]:
        """Where an element of the group takes a position."""
        if self.unconstrain is None:
            moved = self.group.act(element, self.values(position))
            return moved if self.bounds is None else self.bounds.unconstrain(moved)
        named = self._named(position)
        moved, begin = self.group.act(element, self._joined(named)), 0
        for name, shape in self._moved.items():
            end = begin + int(np.prod(shape))
            named[name], begin = moved[begin:end].reshape(shape), end
        return self.flatten(self.unconstrain(named))

    def home(self, positions: Float[Array, "n dim"]) -> Float[Array, "n dim"]:
        """The image of each position that the fold keeps."""
        return positions if self.fold is None else _homes(self, positions)

    def draw_starts(self, key: Array, num: int) -> Float[Array, "num dim"]:
        """`num` points of the start region."""
        return self.home(self._draw_starts(key, num))

    def _draw_starts(self, key: Array, num: int) -> Float[Array, "num dim"]:
        starts = self.starts
        if starts is None:
            raise ValueError("this target has no starts: give Target(..., starts=(low, high))")
        if callable(starts):
            points = jnp.asarray(self.flatten_all(starts(key, num)))
            if points.shape != (num, self.dim):
                raise ValueError(f"starts(key, {num}) gave shape {points.shape}: it must give ({num}, {self.dim})")
            return points
        if isinstance(starts, tuple):
            low, high = (self._edge(edge) for edge in starts)
            points = low + (high - low) * jax.random.uniform(key, (num, self.dim))
            return points if self.bounds is None else self.bounds.unconstrain(points)
        points = jnp.asarray(self.flatten_all(starts))
        if num <= len(points):
            return points[:num]
        return points[jax.random.randint(key, (num,), 0, len(points))]

    def _edge(self, edge: Any) -> Float[Array, " dim"]:
        """One edge of the start box; a scalar serves all coordinates."""
        return self._raveled(edge) if self._is_whole(edge) or np.ndim(edge) else jnp.full(self.dim, float(edge))

    def _is_whole(self, edge: Any) -> bool:
        """Whether an edge has the template's shape, as opposed to one number for all."""
        return self.template is not None and edge is not None and not np.isscalar(edge)

    def check(self, seed: int = 0, at: Any = None) -> "TargetCheck":
        """Walks through the target step by step: `print(target.check())`.

        at: a position to look at, where there are no starts; else the origin.
        """
        from whmc.target.check import check_target

        return check_target(self, seed, at)


@partial(jax.jit, static_argnums=0)
def _homes(target: Target, positions: Float[Array, "n dim"]) -> Float[Array, "n dim"]:
    assert target.fold is not None
    nearest = target.fold.nearest
    return jax.vmap(lambda position: target.image(nearest(target.values(position)), position))(positions)


AT_ONCE = 4096
"""Draws that go through a user's function at a time: there may be more than fit into memory twice."""


def by_chain(function: Callable[[Any], Any], draws: Float[np.ndarray, "chains draws dim"]) -> Any:
    """The function of every draw, its arrays (chains, draws, ...) each."""
    chains, num, dim = draws.shape
    mapped = jax.jit(jax.vmap(function))
    parts = []
    with jax.enable_x64(True):
        for chain in draws:
            for part in np.split(chain, range(AT_ONCE, num, AT_ONCE)):
                found = mapped(jnp.asarray(np.resize(part, (AT_ONCE, dim))))
                real = slice(len(part))
                parts.append(jax.tree.map(lambda leaf, real=real: np.asarray(leaf)[real], found))
                release(draws)
    return jax.tree.map(lambda *leaves: np.concatenate(leaves).reshape(chains, num, *leaves[0].shape[1:]), *parts)


@dataclasses.dataclass(frozen=True)
class TargetCheck:
    """What `Target.check` saw: (passed, what was looked at, what was seen or the remedy) a line."""

    lines: tuple[tuple[bool, str, str], ...]

    @property
    def passed(self) -> bool:
        return all(passed for passed, _, _ in self.lines)

    def __str__(self) -> str:
        return "\n".join(f"{'✓' if ok else '✗'} {what}: {seen}" for ok, what, seen in self.lines)

    __repr__ = __str__


def _flat(edge: PyTree) -> Float[np.ndarray, " dim"]:
    """In NumPy: outside of our own runs JAX may have single precision only."""
    return np.concatenate([np.ravel(np.asarray(leaf, float)) for leaf in jax.tree.leaves(edge)])


def _shaped_like(template: PyTree, flat: Float[np.ndarray, " dim"]) -> PyTree:
    if template is None:
        return flat
    leaves, structure = jax.tree.flatten(template)
    ends = np.cumsum([np.size(leaf) for leaf in leaves])
    parts = [part.reshape(np.shape(leaf)) for part, leaf in zip(np.split(flat, ends[:-1]), leaves, strict=True)]
    return jax.tree.unflatten(structure, parts)


def _leaves(template: PyTree) -> dict[str, np.ndarray]:
    """The places of each leaf's numbers in a flat position, in the leaf's shape."""
    found, size = {}, 0
    for path, leaf in jax.tree_util.tree_leaves_with_path(template):
        here = size + np.arange(np.size(leaf)).reshape(np.shape(leaf))
        found[jax.tree_util.keystr(path, simple=True, separator=".")] = here
        size += np.size(leaf)
    return found


def _find(one: str | int, leaves: Mapping[str, np.ndarray], names: Sequence[str]) -> np.ndarray:
    """Coordinates by number, by the name of a leaf, or by their own."""
    if not isinstance(one, str):
        if not 0 <= int(one) < len(names):
            raise ValueError(f"symmetries speak of coordinate {one}: the coordinates are 0 to {len(names) - 1}")
        return np.array([int(one)])
    found = leaves[one] if one in leaves else places(one, names)
    if not found.size:
        raise ValueError(f"symmetries speak of {one!r}, the names are {', '.join(map(repr, names[:8]))}")
    return found


def _names(template: PyTree, dim: int) -> tuple[str, ...]:
    if template is None:
        return tuple(f"x[{i}]" for i in range(dim))
    names = []
    for path, leaf in jax.tree_util.tree_leaves_with_path(template):
        base = jax.tree_util.keystr(path, simple=True, separator=".")
        shape = np.shape(leaf)
        names += [base + "".join(f"[{i}]" for i in index) for index in np.ndindex(*shape)]
    return tuple(names)


def _check_starts(target: Target) -> None:
    """Shapes only; whether the density is finite there is `Target.check`'s question."""
    starts, dim = target.starts, target.dim
    if starts is None or callable(starts):
        return
    if isinstance(starts, tuple):
        if len(starts) != 2:
            raise ValueError(f"starts as a box is (low, high), got {len(starts)} entries")
        low, high = (_flat(edge) if target._is_whole(edge) else np.asarray(edge, float) for edge in starts)
        if low.shape not in ((), (dim,)) or high.shape not in ((), (dim,)):
            raise ValueError(
                f"starts has edges of shape {low.shape} and {high.shape}: give scalars or {dim} values each"
            )
        if not (np.all(np.isfinite(low)) and np.all(np.isfinite(high)) and np.all(low < high)):
            raise ValueError(f"starts must be a finite box with low < high, got {starts!r}")
        if target.bounds is not None and not (np.all(low >= target.bounds.low) and np.all(high <= target.bounds.high)):
            raise ValueError(f"starts {starts!r} reach outside the bounds: give a box inside them, or leave it out")
        return
    points = np.asarray(target.flatten_all(starts))
    if points.ndim != 2 or points.shape[1] != dim or len(points) == 0:
        raise ValueError(f"starts has shape {points.shape}: give (n, {dim}) points or a (low, high) box")
