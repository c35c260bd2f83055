"""Space: flat positions in R^D, and the values that they stand for."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree

from whmc._memmap import release
from whmc._shapes import Array, Float, PyTree
from whmc.target.bounds import Bounds


@dataclasses.dataclass(frozen=True, eq=False)
class Space:
    """Coordinates of a target. Chains walk on flat positions u in R^D; a log density takes the template's shape, inside
    the bounds; tables show named values.

    names: one for each coordinate, all different. template, bounds, constrain, unconstrain: as in `Target`.
    """

    dim: int
    names: tuple[str, ...]
    template: PyTree = None
    bounds: Bounds | None = None
    constrain: Callable[[Any], Mapping[str, Any]] | None = None
    unconstrain: Callable[[Mapping[str, Any]], Any] | None = None

    @classmethod
    def of(
        cls,
        dim: Any,
        names: Sequence[str] | None,
        template: PyTree,
        bounds: Any,
        constrain: Callable[[Any], Mapping[str, Any]] | None,
        unconstrain: Callable[[Mapping[str, Any]], Any] | None,
    ) -> "Space":
        """From what a user gives to `Target`; each error says what to give instead."""
        dim = _require_dim(dim, template)
        known = _require_names(names, template, dim)
        if bounds is not None and not isinstance(bounds, Bounds):
            if template is not None and isinstance(bounds, tuple):
                bounds = tuple(edge if edge is None or np.isscalar(edge) else ravel(edge) for edge in bounds)
            bounds = Bounds.of(bounds, known)
        if unconstrain is not None and constrain is None:
            raise ValueError("unconstrain is the inverse of constrain: give both, or neither")
        return cls(dim, known, template, bounds, constrain, unconstrain)

    @property
    def constrained(self) -> bool:
        """Whether named values differ from the coordinates of a position."""
        return self.constrain is not None or self.bounds is not None

    def flatten(self, position: PyTree) -> Float[Array, " dim"]:
        """u: a position as a flat vector, free of bounds."""
        flat = self.raveled(position)
        return flat if self.bounds is None else self.bounds.unconstrain(flat)

    def raveled(self, position: PyTree) -> Float[Array, " dim"]:
        """A position as a flat vector, inside the bounds."""
        if self.template is None:
            return jnp.asarray(self._of_named(position) if isinstance(position, Mapping) else position, float)
        return ravel_pytree(jax.tree.map(lambda leaf: jnp.asarray(leaf, float), position))[0]

    def flatten_all(self, positions: Any) -> Any:
        """Many positions as rows: an array; or a list of pytrees or one with a leading axis, as the template has them,
        or dictionaries of named values."""
        if isinstance(positions, (np.ndarray, jax.Array)) and positions.ndim == 2:
            rows = np.asarray(positions, float)
        elif isinstance(positions, list) and (self.template is not None or _has_mapping(positions)):
            rows = np.stack([np.asarray(self.raveled(position)) for position in positions])
        elif self.template is not None or isinstance(positions, Mapping):
            stacked = _stacked(_arrays(positions) if self.template is None else positions)
            rows = np.asarray(jax.jit(jax.vmap(self.raveled))(stacked))
        else:
            rows = np.asarray(positions, float)
        if self.bounds is None or rows.shape[-1:] != (self.dim,):
            return rows
        self.bounds.require_inside("a given position", rows, self.names)
        return np.asarray(self.bounds.unconstrain(jnp.asarray(rows)))

    def _of_named(self, values: Mapping[str, Any]) -> Any:
        """The position, inside the bounds, that has these named values."""
        if self.unconstrain is None:
            raise TypeError(
                f"a position has names, {', '.join(map(repr, values))}, but this target takes vectors of {self.dim} "
                "numbers: give these, or make the target with template=, or with constrain= and unconstrain="
            )
        return self.unconstrain(_arrays(values))

    def inside(self, positions: Float[Array, "*n dim"]) -> Float[Array, "*n dim"]:
        """Flat vectors inside the bounds: what `flatten_all` takes as rows."""
        return positions if self.bounds is None else self.bounds.constrain(positions)

    def unflatten(self, position: Float[Array, " dim"]) -> PyTree:
        """A flat vector as the user's function takes it: inside the bounds, in the template's shape."""
        position = self.inside(position)
        if self.template is None:
            return position
        # ravel_pytree restores the dtypes of its own input, so the template takes the position's
        like = jax.tree.map(lambda leaf: jnp.zeros(np.shape(leaf), position.dtype), self.template)
        return ravel_pytree(like)[1](position)

    def named(self, position: Float[Array, " dim"]) -> dict[str, Array]:
        """The values that `constrain` gives for one position."""
        assert self.constrain is not None
        return dict(self.constrain(self.unflatten(position)))

    def named_values(self, draws: Float[np.ndarray, "chains draws dim"]) -> dict[str, np.ndarray]:
        """Draws under their names: by `constrain`, or leaf by leaf of the template, or by `names`."""
        if self.constrain is not None:
            return dict(by_chain(self.named, draws))
        if self.template is not None:
            leaves = jax.tree_util.tree_leaves_with_path(by_chain(self.unflatten, draws))
            return {_path_name(path) or "x": leaf for path, leaf in leaves}
        if self.bounds is not None:
            draws = by_chain(self.unflatten, draws)
        if self.names == _default_names(None, self.dim):
            return {"x": draws}
        return {name: draws[..., n] for n, name in enumerate(self.names)}

    def places(self) -> dict[str, np.ndarray]:
        """Where the numbers of each leaf of the template are in a flat position, in the leaf's shape."""
        return {} if self.template is None else leaf_places(self.template)


def _arrays(values: Mapping[str, Any]) -> dict[str, Array]:
    """Named values, which may be numbers and lists."""
    return {name: jnp.asarray(value, float) for name, value in values.items()}


def _has_mapping(positions: list[Any]) -> bool:
    return any(isinstance(position, Mapping) for position in positions)


def _stacked(positions: PyTree) -> PyTree:
    """Positions along the first axis of every leaf."""
    leaves = [jnp.asarray(leaf) for leaf in jax.tree.leaves(positions)]
    if len({leaf.shape[:1] for leaf in leaves}) != 1 or not leaves[0].shape:
        raise ValueError(
            "positions in one dictionary need the same number of them along the first axis of every value, got shapes "
            f"{', '.join(str(leaf.shape) for leaf in leaves)}: a single position is a list of one, [{{...}}]"
        )
    return jax.tree.unflatten(jax.tree.structure(positions), leaves)


def ravel(tree: PyTree) -> Float[np.ndarray, " dim"]:
    """A pytree as one flat array. In NumPy: outside of whmc's own runs JAX may have single precision only."""
    return np.concatenate([np.ravel(np.asarray(leaf, float)) for leaf in jax.tree.leaves(tree)])


def shaped_like(template: PyTree, flat: Float[np.ndarray, " dim"]) -> PyTree:
    """The inverse of `ravel`."""
    if template is None:
        return flat
    leaves, structure = jax.tree.flatten(template)
    ends = np.cumsum([np.size(leaf) for leaf in leaves])
    parts = [part.reshape(np.shape(leaf)) for part, leaf in zip(np.split(flat, ends[:-1]), leaves, strict=True)]
    return jax.tree.unflatten(structure, parts)


def leaf_places(tree: PyTree) -> dict[str, np.ndarray]:
    """The places of each leaf's numbers in the flat vector of the tree, in the leaf's shape."""
    found, size = {}, 0
    for path, leaf in jax.tree_util.tree_leaves_with_path(tree):
        found[_path_name(path)] = size + np.arange(np.size(leaf)).reshape(np.shape(leaf))
        size += np.size(leaf)
    return found


AT_ONCE = 4096
"""Draws that go through a user's function at a time: there may be more than fit into memory twice."""


def by_chain(function: Callable[[Any], Any], draws: Float[np.ndarray, "chains draws dim"]) -> Any:
    """The function of every draw, its arrays (chains, draws, ...) each."""
    chains, num, dim = draws.shape
    mapped = jax.jit(jax.vmap(function))
    # pieces of one shape, with as little to fill up as may be
    size = max(1, -(-num // max(1, -(-num // AT_ONCE))))
    parts = []
    with jax.enable_x64(True):
        for chain in draws:
            for part in np.split(chain, range(size, num, size)):
                found = mapped(jnp.asarray(np.resize(part, (size, dim))))
                real = slice(len(part))
                parts.append(jax.tree.map(lambda leaf, real=real: np.asarray(leaf)[real], found))
                release(draws)
    return jax.tree.map(lambda *leaves: np.concatenate(leaves).reshape(chains, num, *leaves[0].shape[1:]), *parts)


def _require_dim(dim: Any, template: PyTree) -> int:
    if template is not None:
        size = sum(np.size(leaf) for leaf in jax.tree.leaves(template))
        if dim not in (0, size):
            raise ValueError(f"dim is {dim}, but template holds {size} numbers: leave dim out")
        dim = size
    if isinstance(dim, bool) or not isinstance(dim, (int, np.integer)) or dim < 1:
        raise ValueError(f"dim must be a positive integer, got {dim!r}: the length of a position")
    return int(dim)


def _require_names(names: Sequence[str] | None, template: PyTree, dim: int) -> tuple[str, ...]:
    """The given names, or those of the template's leaves. Tables hold values by name, so no name may occur twice."""
    if names is not None and len(names) != dim:
        raise ValueError(f"names has {len(names)} entries for dim = {dim}: give one each")
    known = _default_names(template, dim) if names is None else tuple(map(str, names))
    twice = next((name for name in known if known.count(name) > 1), None) if len(set(known)) < dim else None
    if twice is not None:
        raise ValueError(f"names has {twice!r} {known.count(twice)} times: give each coordinate a name of its own")
    return known


def _default_names(template: PyTree, dim: int) -> tuple[str, ...]:
    if template is None:
        return tuple(f"x[{i}]" for i in range(dim))
    return tuple(
        _path_name(path) + "".join(f"[{i}]" for i in index)
        for path, leaf in jax.tree_util.tree_leaves_with_path(template)
        for index in np.ndindex(*np.shape(leaf))
    )


def _path_name(path: Any) -> str:
    return jax.tree_util.keystr(path, simple=True, separator=".")
