"""Records of many leaves as one array for each dtype.

Every small array that a compiled function computes is a kernel of its own: 20 ms to compile, and 1 µs to start.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from whmc._shapes import Array


@dataclasses.dataclass(frozen=True)
class Packing:
    """A record as one array for each dtype: writing a step then costs three small copies, not thirty."""

    structure: Any
    shapes: tuple[tuple[int, ...], ...]
    dtypes: tuple[Any, ...]

    @classmethod
    def of(cls, row: Any) -> "Packing":
        leaves, structure = jax.tree.flatten(row)
        return cls(structure, tuple(leaf.shape for leaf in leaves), tuple(leaf.dtype for leaf in leaves))

    def kinds(self) -> list[Any]:
        return sorted(set(self.dtypes), key=str)

    def empty(self, length: int, chains: int) -> list[Array]:
        """Room for `length` records of all chains."""
        widths = {
            kind: sum(int(np.prod(s[1:])) for s, d in zip(self.shapes, self.dtypes, strict=True) if d == kind)
            for kind in self.kinds()
        }
        return [jnp.zeros((length, chains, width), kind) for kind, width in widths.items()]

    def pack(self, row: Any) -> list[Any]:
        """The record of one step, in JAX or NumPy: (chains, numbers) for each dtype."""
        leaves = jax.tree.leaves(row)
        concatenate: Any = np.concatenate if isinstance(leaves[0], np.ndarray) else jnp.concatenate
        flat = [leaf.reshape(leaf.shape[0], -1).astype(d) for leaf, d in zip(leaves, self.dtypes, strict=True)]
        return [concatenate([f for f in flat if f.dtype == kind], axis=1) for kind in self.kinds()]

    def unpack(self, rows: Sequence[Any]) -> Any:
        """The records again, of JAX or NumPy; (steps, chains, ...) each, if the rows are those of many steps."""
        offsets, leaves = dict.fromkeys(self.kinds(), 0), []
        by_kind = dict(zip(self.kinds(), rows, strict=True))
        for shape, kind in zip(self.shapes, self.dtypes, strict=True):
            width, start = int(np.prod(shape[1:])), offsets[kind]
            part = _columns(by_kind[kind], start, start + width)
            leaves.append(part.reshape(*part.shape[:-1], *shape[1:]))
            offsets[kind] += width
        return jax.tree.unflatten(self.structure, leaves)


def _columns(rows: Any, start: int, end: int) -> Any:
    """rows[..., start:end], in JAX without the general form of an index, which takes long to trace."""
    if isinstance(rows, np.ndarray):
        return rows[..., start:end]
    return jax.lax.slice_in_dim(rows, start, end, axis=rows.ndim - 1)


def put(rows: Array, row: Array, place: Any, axis: int = 0) -> Array:
    """The rows with one of them replaced. As `rows.at[place].set(row)`, without a test that the place exists."""
    return jax.lax.dynamic_update_index_in_dim(rows, row, place, axis)


@jax.tree_util.register_pytree_node_class
@dataclasses.dataclass(frozen=True)
class Packed:
    """Packed records, and how to unpack them. To pass through a compiled function without any kernels."""

    rows: tuple[Any, ...]
    packing: Packing

    def unpack(self) -> Any:
        """The records in NumPy. It waits until they are computed."""
        return self.packing.unpack([np.asarray(row) for row in self.rows])

    def tree_flatten(self) -> tuple[tuple[tuple[Any, ...]], Packing]:
        return (self.rows,), self.packing

    @classmethod
    def tree_unflatten(cls, packing: Packing, children: Any) -> "Packed":
        return cls(children[0], packing)
