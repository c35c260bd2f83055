"""Target: what is sampled, a log density on R^D and where to look for it."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Bool, Float, PyTree

from whmc.paging import release
from whmc.pytree import pytree

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
    dims, coords: names of the axes of these values and of places along them, as in ArviZ.
    source: where the command line has the target from, so that it can resume a run.
    """

    logdensity: Callable[[Any], Any]
    dim: int = 0
    starts: Any = None
    names: Sequence[str] | None = None
    template: PyTree = None
    constrain: Callable[[Any], Mapping[str, Any]] | None = None
    dims: Mapping[str, Sequence[str]] | None = None
    coords: Mapping[str, Any] | None = None
    source: Mapping[str, Any] | None = None

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
        _check_starts(self)

    def __call__(self, position: Float[Array, " dim"]) -> Float[Array, ""]:
        """log density at a flat position, in the position's dtype."""
        value = jnp.asarray(self.logdensity(self.unflatten(position)))
        return value.astype(position.dtype)

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

    def flatten(self, position: PyTree) -> Float[Array, " dim"]:
        """A position as a flat vector."""
        if self.template is None:
            return jnp.asarray(position, float)
        return ravel_pytree(jax.tree.map(lambda leaf: jnp.asarray(leaf, float), position))[0]

    def flatten_all(self, positions: Any) -> Any:
        """Many positions as rows: an array, or with a template a list of pytrees or one with a leading axis."""
        if self.template is None or (isinstance(positions, (np.ndarray, jax.Array)) and positions.ndim == 2):
            return np.asarray(positions, float)
        if isinstance(positions, list):
            return np.stack([np.asarray(self.flatten(position)) for position in positions])
        return jax.vmap(self.flatten)(jax.tree.map(jnp.asarray, positions))

    def unflatten(self, position: Float[Array, " dim"]) -> PyTree:
        """A flat vector in the shape that the user's function takes."""
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
        names = [str(name) for name in self.names or ()]
        if names == list(_names(None, self.dim)):
            return {"x": draws}
        return {name: draws[..., n] for n, name in enumerate(names)}

    def draw_starts(self, key: Array, num: int) -> Float[Array, "num dim"]:
        """`num` points of the start region."""
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
            return low + (high - low) * jax.random.uniform(key, (num, self.dim))
        points = jnp.asarray(self.flatten_all(starts))
        if num <= len(points):
            return points[:num]
        return points[jax.random.randint(key, (num,), 0, len(points))]

    def _edge(self, edge: Any) -> Float[Array, " dim"]:
        """One edge of the start box; a scalar serves all coordinates."""
        return self.flatten(edge) if self.template is not None or np.ndim(edge) else jnp.full(self.dim, float(edge))

    def check(self, seed: int = 0, at: Any = None) -> "TargetCheck":
        """Walks through the target step by step: `print(target.check())`.

        at: a position to look at, where there are no starts; else the origin.
        """
        from whmc.check import check_target

        return check_target(self, seed, at)


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
        whole = target.template is not None
        low, high = (np.asarray(target.flatten(edge) if whole else edge, float) for edge in starts)
        if low.shape not in ((), (dim,)) or high.shape not in ((), (dim,)):
            raise ValueError(
                f"starts has edges of shape {low.shape} and {high.shape}: give scalars or {dim} values each"
            )
        if not (np.all(np.isfinite(low)) and np.all(np.isfinite(high)) and np.all(low < high)):
            raise ValueError(f"starts must be a finite box with low < high, got {starts!r}")
        return
    points = np.asarray(target.flatten_all(starts))
    if points.ndim != 2 or points.shape[1] != dim or len(points) == 0:
        raise ValueError(f"starts has shape {points.shape}: give (n, {dim}) points or a (low, high) box")
