"""Symmetries of a density: exchanges of components and flips of signs, the group that they generate, and how it acts
on positions. `whmc.target.folding` keeps one image of every mode.
"""

import dataclasses
import itertools
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from whmc._shapes import Array, Float, Int
from whmc.target.bounds import places
from whmc.target.space import Space, leaf_places

MAX_ELEMENTS = 5040
"""Elements of a group, 7!: every evaluation of the density looks at all of them."""

Find = Callable[[Any], np.ndarray]
"""From a name or a number to the places of its values, in the shape that the value has."""


@dataclasses.dataclass(frozen=True)
class Element:
    """v -> sign * v[order]."""

    order: Int[np.ndarray, " size"]
    sign: Float[np.ndarray, " size"]

    def after(self, first: "Element") -> "Element":
        """This one after another."""
        return Element(first.order[self.order], self.sign * first.sign[self.order])

    @property
    def key(self) -> bytes:
        return self.order.tobytes() + (self.sign > 0).tobytes()


class Exchange:
    """Components that may change places without changing the density, such as those of a mixture.

    Exchange("mu", "sigma", "weight"): components along the first axis (or `axis`) of these values, moved together.
    Exchange([0, 1], [2, 3]) or Exchange(["mu1", "s1"], ["mu2", "s2"]): blocks of coordinates.
    """

    def __init__(self, *parts: str | Sequence[int | str], axis: int = 0) -> None:
        if not parts or (len({isinstance(part, str) for part in parts}) > 1):
            raise ValueError(f"Exchange takes names of values, or two or more blocks of coordinates, got {parts!r}")
        self.parts, self.axis = parts, axis

    def __repr__(self) -> str:
        return f"Exchange({', '.join(map(repr, self.parts))}" + (f", axis={self.axis})" if self.axis else ")")

    @property
    def names(self) -> list[str]:
        """All names that it mentions."""
        entries = [one for part in self.parts for one in ([part] if isinstance(part, str) else part)]
        return [one for one in entries if isinstance(one, str)]

    def blocks(self, find: Find) -> Int[np.ndarray, "blocks length"]:
        """A row of places for each component."""
        if isinstance(self.parts[0], str):
            arrays = [find(part) for part in self.parts]
            if any(array.ndim <= self.axis for array in arrays):
                raise ValueError(f"{self!r}: a value has no axis {self.axis} to exchange components along")
            rows = [np.moveaxis(array, self.axis, 0).reshape(array.shape[self.axis], -1) for array in arrays]
        else:
            rows = [np.concatenate([find(one).ravel() for one in part])[None] for part in self.parts]
        lengths = {len(row) for row in rows} if isinstance(self.parts[0], str) else {row.shape[1] for row in rows}
        if len(lengths) > 1:
            raise ValueError(f"{self!r}: the parts have {sorted(lengths)} entries, all must have the same number")
        found = np.concatenate(rows, axis=1 if isinstance(self.parts[0], str) else 0)
        if len(found) < 2:
            raise ValueError(f"{self!r}: there is only one component, so there is nothing to exchange")
        return found

    def elements(self, find: Find, size: int) -> list[Element]:
        """Neighbours change places: these generate all permutations."""
        blocks = self.blocks(find)
        found = []
        for one, other in itertools.pairwise(blocks):
            order = np.arange(size)
            order[one], order[other] = other, one
            if len(np.unique(order)) < size or len(np.unique(blocks)) < blocks.size:
                raise ValueError(f"{self!r}: a coordinate belongs to two components")
            found.append(Element(order, np.ones(size)))
        return found


class Flip:
    """Values whose signs may change together without changing the density: Flip("loading"), Flip([0, 3]).

    Several Flips are independent of each other.
    """

    def __init__(self, *parts: str | int | Sequence[int | str]) -> None:
        if not parts:
            raise ValueError("Flip takes names or numbers of coordinates, got none")
        self.parts = parts

    def __repr__(self) -> str:
        return f"Flip({', '.join(map(repr, self.parts))})"

    @property
    def _entries(self) -> list[Any]:
        return [one for part in self.parts for one in (part if isinstance(part, (list, tuple)) else [part])]

    @property
    def names(self) -> list[str]:
        """All names that it mentions."""
        return [one for one in self._entries if isinstance(one, str)]

    def elements(self, find: Find, size: int) -> list[Element]:
        sign = np.ones(size)
        sign[np.concatenate([find(one).ravel() for one in self._entries])] = -1.0
        return [Element(np.arange(size), sign)]


def require_symmetries(given: Any) -> tuple[Exchange | Flip, ...]:
    """One symmetry or several, as a tuple."""
    several = given if isinstance(given, (list, tuple)) else () if given is None else (given,)
    for one in several:
        if not isinstance(one, (Exchange, Flip)):
            raise TypeError(
                f"symmetries must be Exchange(...) or Flip(...), or a list of them, got {one!r} of type "
                f"{type(one).__name__}"
            )
    return tuple(several)


@dataclasses.dataclass(frozen=True, eq=False)
class Group:
    """All products of the declared symmetries. The first element is the identity; then come the generators, and
    `generators` says which symmetry declared each."""

    order: Int[np.ndarray, "elements size"]
    sign: Float[np.ndarray, "elements size"]
    generators: tuple[str, ...]

    @classmethod
    def generated(cls, symmetries: Sequence[Exchange | Flip], find: Find, size: int) -> "Group":
        """Products with generators until nothing new appears."""
        same = Element(np.arange(size), np.ones(size))
        found, names = {same.key: same}, []
        for symmetry in symmetries:
            for one in symmetry.elements(find, size):
                if one.key not in found:
                    found[one.key] = one
                    names.append(repr(symmetry))
        fresh = list(found.values())
        generators = fresh[1:]
        while fresh:
            products = {made.key: made for one in fresh for g in generators if (made := g.after(one)).key not in found}
            found |= products
            fresh = list(products.values())
            if len(found) > MAX_ELEMENTS:
                raise ValueError(f"the symmetries generate more than {MAX_ELEMENTS} images: declare only some of them")
        elements = list(found.values())
        return cls(np.stack([one.order for one in elements]), np.stack([one.sign for one in elements]), tuple(names))

    def __len__(self) -> int:
        return len(self.order)

    def act(self, element: Int[Array, ""] | int, values: Float[Array, " size"]) -> Float[Array, " size"]:
        """g v."""
        sign, order = jnp.asarray(self.sign, values.dtype), jnp.asarray(self.order)
        return sign[element] * values[order[element]]

    def average(self, weights: Float[np.ndarray, " size"]) -> Float[np.ndarray, " size"]:
        """The diagonal that all elements leave unchanged."""
        return weights[self.order].mean(axis=0)


@dataclasses.dataclass(frozen=True, eq=False)
class Action:
    """g θ: how a group acts on the positions θ of a space, by way of the values v(θ) that it permutes.

    shapes: of the named values that the symmetries mention; None if v(θ) are all coordinates, inside their bounds.
    """

    space: Space
    group: Group
    shapes: Mapping[str, tuple[int, ...]] | None

    @classmethod
    def of(
        cls,
        space: Space,
        symmetries: Sequence[Exchange | Flip],
        dims: Mapping[str, Sequence[str]],
        coords: Mapping[str, Any],
    ) -> "Action":
        """Names are those of `constrain` where the space has `unconstrain`, else those of coordinates.

        dims, coords: of these values, whose places may then be named by their coords too.
        """
        if space.unconstrain is None:
            leaves = space.places()
            group = Group.generated(symmetries, lambda one: _coordinates(one, leaves, space.names), space.dim)
            return cls(space, group, None)
        known = _Known.of(space, dims, coords)
        shapes = known.mentioned(symmetries)
        leaves = leaf_places([np.empty(shape) for shape in shapes.values()])
        where = dict(zip(shapes, leaves.values(), strict=True))
        size = sum(here.size for here in where.values())

        def find(one: int | str) -> np.ndarray:
            name, index = known.entry(one)
            return np.asarray(where[name][index])

        return cls(space, Group.generated(symmetries, find, size), shapes)

    def values(self, position: Float[Array, " dim"]) -> Float[Array, " size"]:
        """v(θ): what the symmetries permute, as one vector."""
        if self.shapes is None:
            return position if self.space.bounds is None else self.space.bounds.constrain(position)
        return self._joined(self.space.named(position))

    def image(self, element: Int[Array, ""] | int, position: Float[Array, " dim"]) -> Float[Array, " dim"]:
        """g θ, the position with v(g θ) = g v(θ)."""
        if self.shapes is None:
            moved = self.group.act(element, self.values(position))
            return moved if self.space.bounds is None else self.space.bounds.unconstrain(moved)
        named = self.space.named(position)
        moved, begin = self.group.act(element, self._joined(named)), 0
        for name, shape in self.shapes.items():
            end = begin + int(np.prod(shape))
            named[name], begin = moved[begin:end].reshape(shape), end
        assert self.space.unconstrain is not None
        return self.space.flatten(self.space.unconstrain(named))

    def _joined(self, named: Mapping[str, Array]) -> Float[Array, " size"]:
        assert self.shapes is not None
        return jnp.concatenate([jnp.ravel(named[name]) for name in self.shapes])


@dataclasses.dataclass(frozen=True)
class _Known:
    """The named values of a model: their shapes, what the places along their axes are called, and all coordinates."""

    shapes: Mapping[str, tuple[int, ...]]
    dims: Mapping[str, Sequence[str]]
    coords: Mapping[str, Any]
    coordinates: Sequence[str]

    @classmethod
    def of(cls, space: Space, dims: Mapping[str, Sequence[str]], coords: Mapping[str, Any]) -> "_Known":
        with jax.enable_x64(True):
            values = jax.eval_shape(space.named, jax.ShapeDtypeStruct((space.dim,), np.dtype(float)))
        return cls({name: value.shape for name, value in values.items()}, dims, coords, space.names)

    def mentioned(self, symmetries: Sequence[Exchange | Flip]) -> dict[str, tuple[int, ...]]:
        """The values that symmetries mention, or parts of them, and their shapes."""
        names = dict.fromkeys(self.entry(one)[0] for symmetry in symmetries for one in symmetry.names)
        return {name: self.shapes[name] for name in names}

    def entry(self, one: int | str) -> tuple[str, tuple[int, ...]]:
        """The value that is named, and which part of it: `w[1]` is the second of w, or its second row."""
        if not isinstance(one, str):
            raise ValueError(f"symmetries of this model take names, not numbers of coordinates such as {one}; {self}")
        if one in self.shapes:
            return one, ()
        for name in self.shapes:
            index = self._index(name, one.removeprefix(name)) if one.startswith(name) else None
            if index is not None:
                return name, index
        raise ValueError(f"unknown name {one!r} in symmetries; {self}")

    def _index(self, name: str, part: str) -> tuple[int, ...] | None:
        """Which part of a value is meant: `[1][0]`, or `.2.1` where the coordinates are called so, as Stan's are."""
        if re.fullmatch(r"(\[[^\[\]]+\])+", part):
            places, labels = part[1:-1].split("]["), self._labels(name)
        elif re.fullmatch(r"(\.\d+)+", part) and name + part in self.coordinates:
            places, labels = part[1:].split("."), [[str(1 + n) for n in range(size)] for size in self.shapes[name]]
        else:
            return None
        if len(places) > len(labels) or any(one not in axis for one, axis in zip(places, labels, strict=False)):
            return None
        return tuple(axis.index(one) for one, axis in zip(places, labels, strict=False))

    def _labels(self, name: str) -> list[list[str]]:
        """What the places along each axis of a value are called: by its coords, or numbered."""
        dims = [*self.dims.get(name, ())]
        named = [list(map(str, self.coords.get(dim, ()))) for dim in dims] + [[] for _ in self.shapes[name]]
        sizes = enumerate(self.shapes[name])
        return [named[n] if len(named[n]) == size else list(map(str, range(size))) for n, size in sizes]

    def __str__(self) -> str:
        told = f"the model has {', '.join(map(repr, self.shapes))}"
        longest = max(self.shapes, key=lambda name: len(self.shapes[name]), default="")
        part = "".join(f"[{axis[0]}]" for axis in self._labels(longest) if axis) if longest else ""
        return told + (f", and parts of these, such as {longest + part!r}" if part else "")


def _coordinates(one: str | int, leaves: Mapping[str, np.ndarray], names: Sequence[str]) -> np.ndarray:
    """Coordinates by number, by the name of a leaf of the template, or by their own name."""
    if not isinstance(one, str):
        if not 0 <= int(one) < len(names):
            raise ValueError(f"unknown coordinate {one} in symmetries; the coordinates are 0 to {len(names) - 1}")
        return np.array([int(one)])
    found = leaves[one] if one in leaves else places(one, names)
    if not found.size:
        raise ValueError(f"unknown name {one!r} in symmetries; the names are {', '.join(map(repr, names[:8]))}")
    return found
