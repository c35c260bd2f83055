"""Symmetries of a density: exchanges of components and flips of signs, the group that they generate, and folding.

A group G of maps that leave π unchanged makes |G| images of every mode. Folding keeps one: for any h > 0,

    π~(x) = π(x) |G| h(x) / Σ_g h(g x)

has the evidence of π, because the fractions of all images of a point add up to |G|; and where X ~ π~ and g is uniform
on G, g X ~ π exactly. So a jump between images costs nothing and is never refused: it is made when draws are unfolded.

h has a bump at one representative a_k of each mode. With one diagonal precision Λ that G leaves unchanged,

    h(x) = Σ_k exp(a_k·Λx - a_k·Λa_k / 2)

is a mixture of Gaussians without the factor that all images share. Between the images of one Gaussian mode of that
precision h(x) / Σ_g h(g x) is the exact responsibility of its own, and π~ is that one Gaussian; elsewhere it is
smooth, with slopes that stay bounded.
"""

import dataclasses
import itertools
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

MOST = 5040
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
                raise ValueError(f"{self!r}: a value has no axis {self.axis}, there is nothing to exchange along it")
            rows = [np.moveaxis(array, self.axis, 0).reshape(array.shape[self.axis], -1) for array in arrays]
        else:
            rows = [np.concatenate([find(one).ravel() for one in part])[None] for part in self.parts]
        lengths = {len(row) for row in rows} if isinstance(self.parts[0], str) else {row.shape[1] for row in rows}
        if len(lengths) > 1:
            raise ValueError(f"{self!r}: the parts have {sorted(lengths)} entries, they must have as many each")
        found = np.concatenate(rows, axis=1 if isinstance(self.parts[0], str) else 0)
        if len(found) < 2:
            raise ValueError(f"{self!r}: there is one component only, nothing to exchange")
        return found

    def elements(self, find: Find, size: int) -> list[Element]:
        """Neighbours change places: these generate all permutations."""
        blocks = self.blocks(find)
        found = []
        for one, other in itertools.pairwise(blocks):
            order = np.arange(size)
            order[one], order[other] = other, one
            if len(np.unique(order)) < size or len(np.unique(blocks)) < blocks.size:
                raise ValueError(f"{self!r}: a coordinate stands in two components")
            found.append(Element(order, np.ones(size)))
        return found


class Flip:
    """Values whose signs may change, all together: Flip("loading"), Flip([0, 3]); several Flips change on their own."""

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


@dataclasses.dataclass(frozen=True, eq=False)
class Group:
    """All maps that some of them generate. The first changes nothing; then come those of which `generators` says what
    they were declared as."""

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
            if len(found) > MOST:
                raise ValueError(f"the symmetries generate more than {MOST} images: declare some of them only")
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
class Fold:
    """h: its bumps and their precision. Inverse variances of values that G leaves unchanged are averaged over it."""

    group: Group
    anchors: Float[np.ndarray, "modes size"]
    precision: Float[np.ndarray, " size"]

    @cached_property
    def _slopes(self) -> Float[np.ndarray, "elements modes size"]:
        """Row (g, k) times v is a_k·Λ(g v)."""
        pulled = self.anchors * self.precision
        slopes = np.zeros((len(self.group), *pulled.shape))
        for row, order, sign in zip(slopes, self.group.order, self.group.sign, strict=True):
            row[:, order] = sign * pulled
        return slopes

    def log_heights(self, values: Float[Array, " size"]) -> Float[Array, " elements"]:
        """log h(g v) for every g."""
        offset = 0.5 * np.sum(self.anchors**2 * self.precision, axis=1)
        rows = jnp.asarray(self._slopes, values.dtype) @ values - jnp.asarray(offset, values.dtype)
        return jax.nn.logsumexp(rows, axis=1)

    def log_share(self, values: Float[Array, " size"]) -> Float[Array, ""]:
        """log of |G| h(v) / Σ_g h(g v)."""
        heights = self.log_heights(values)
        return jnp.log(jnp.asarray(float(len(self.group)), values.dtype)) + heights[0] - jax.nn.logsumexp(heights)

    def nearest(self, values: Float[Array, " size"]) -> Int[Array, ""]:
        """The g that takes a point to where its share is largest."""
        return jnp.argmax(self.log_heights(values))

    def plain(self) -> dict[str, Any]:
        """For a file."""
        return {"anchors": self.anchors.tolist(), "precision": self.precision.tolist()}

    @classmethod
    def recalled(cls, group: Group, plain: Mapping[str, Any]) -> "Fold":
        """From a file."""
        return cls(group, np.array(plain["anchors"], float), np.array(plain["precision"], float))
