"""Bounds of coordinates: smooth maps from the real line onto an interval, with their Jacobian.

two ends    x = low + (high - low) σ(u)       log |dx/du| = log(high - low) + log σ(u) + log σ(-u)
one end     x = low + e^u  or  high - e^u     log |dx/du| = u
none        x = u
"""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from whmc._shapes import Array, Bool, Float


@dataclasses.dataclass(frozen=True, eq=False)
class Bounds:
    """An interval for each coordinate; ends may be infinite."""

    low: Float[np.ndarray, " dim"]
    high: Float[np.ndarray, " dim"]

    @classmethod
    def of(cls, given: Any, names: Sequence[str]) -> "Bounds":
        """From a box `(low, high)`, a list of pairs, or a dictionary of pairs by name."""
        dim = len(names)
        if isinstance(given, Mapping):
            low, high = _by_name(given, names)
        elif isinstance(given, tuple) and len(given) == 2:
            require_one_reading("bounds", given, dim)
            low, high = (_filled(end, dim, side) for end, side in zip(given, (-np.inf, np.inf), strict=True))
        else:
            low, high = _by_pair(given, dim)
        if np.any(np.isnan(low) | np.isnan(high)) or not np.all(low < high):
            n = int(np.argmin(low < high))
            raise ValueError(
                f"bounds of {names[n]} are ({low[n]}, {high[n]}): give low < high, None for no bound; a tuple is "
                "(low, high), a list has a pair for each coordinate"
            )
        return cls(low, high)

    @property
    def finite(self) -> bool:
        """A box of finite size."""
        return bool(np.all(np.isfinite(self.low) & np.isfinite(self.high)))

    @property
    def _kinds(self) -> tuple[Bool[np.ndarray, " dim"], Bool[np.ndarray, " dim"], Bool[np.ndarray, " dim"]]:
        below, above = np.isfinite(self.low), np.isfinite(self.high)
        return below & above, below & ~above, above & ~below

    def constrain(self, free: Float[Array, "*n dim"]) -> Float[Array, "*n dim"]:
        """From the real line into the bounds."""
        both, below, above = self._kinds
        dtype = free.dtype
        floor, ceiling = _finite(self.low, dtype), _finite(self.high, dtype)
        # what a branch is not for goes through it as 0: an overflow there would make the gradient NaN
        inside = floor + (ceiling - floor) * jax.nn.sigmoid(jnp.where(both, free, 0))
        away = jnp.exp(jnp.where(below | above, free, 0))
        one = jnp.where(below, floor + away, ceiling - away)
        return jnp.where(both, inside, jnp.where(below | above, one, free))

    def log_jacobian(self, free: Float[Array, " dim"]) -> Float[Array, ""]:
        """log |det dx/du|."""
        both, below, above = self._kinds
        width = jnp.asarray(np.log(np.where(both, np.nan_to_num(self.high - self.low), 1.0)), free.dtype)
        slope = width + jax.nn.log_sigmoid(free) + jax.nn.log_sigmoid(-free)
        return jnp.sum(jnp.where(both, slope, jnp.where(below | above, free, 0)))

    def unconstrain(self, inside: Float[Any, "*n dim"]) -> Float[Any, "*n dim"]:
        """The inverse of `constrain`; NaN or infinite where the bounds are touched or left."""
        both, below, above = self._kinds
        xp: Any = np if isinstance(inside, np.ndarray) else jnp  # on the host nothing is compiled
        floor, ceiling = (xp.asarray(_finite(edge, inside.dtype)) for edge in (self.low, self.high))
        with np.errstate(divide="ignore", invalid="ignore"):
            up = xp.log(xp.where(both | below, inside - floor, 1))
            down = xp.log(xp.where(both | above, ceiling - inside, 1))
        return xp.where(both, up - down, xp.where(below, up, xp.where(above, down, inside)))

    def require_inside(self, what: str, points: Any, names: Sequence[str]) -> None:
        """Every point strictly within."""
        rows = np.atleast_2d(np.asarray(points, float))
        outside = ~((rows > self.low) & (rows < self.high))
        if outside.any():
            row, n = (int(place[0]) for place in np.nonzero(outside))
            raise ValueError(
                f"{what} has {names[n]} = {rows[row, n]:.6g}, its bounds are ({self.low[n]:.6g}, {self.high[n]:.6g}): "
                "give points strictly inside"
            )


def require_one_reading(what: str, given: tuple[Any, Any], dim: int) -> None:
    """In two dimensions ((a, b), (c, d)) may be (low, high) or a pair for each coordinate.

    Refused if both are boxes, and not the same one. Lists and arrays inside the tuple are always low and high.
    """
    if dim != 2 or not all(isinstance(edge, tuple) and len(edge) == 2 for edge in given):
        return
    (a, b), (c, d) = given
    if any(np.ndim(one) for one in (a, b, c, d)):
        return
    by_edge = [_interval(a, c), _interval(b, d)]
    by_pair = [_interval(a, b), _interval(c, d)]
    valid = all(low < high for low, high in by_edge + by_pair)
    if valid and by_edge != by_pair:
        raise ValueError(
            f"{what}={given!r} has two readings: [{a}, {c}] x [{b}, {d}] as (low, high), or [{a}, {b}] x [{c}, {d}] as "
            f"a pair for each coordinate. Write {what}=([{a}, {b}], [{c}, {d}]) for the first, "
            f"{what}=([{a}, {c}], [{b}, {d}]) for the second"
        )


def _interval(low: Any, high: Any) -> tuple[float, float]:
    return -np.inf if low is None else float(low), np.inf if high is None else float(high)


def _finite(edge: np.ndarray, dtype: Any) -> Array:
    return jnp.asarray(np.where(np.isfinite(edge), edge, 0.0), dtype)


def _filled(end: Any, dim: int, missing: float) -> Float[np.ndarray, " dim"]:
    single = end is None or np.ndim(end) == 0
    values = np.array([missing if one is None else one for one in ([end] if single else end)], float)
    values = values.reshape(()) if single else values
    if values.shape not in ((), (dim,)):
        raise ValueError(f"bounds have an edge of shape {values.shape}: give a number, or {dim} values")
    return np.array(np.broadcast_to(values, (dim,)))


def _by_pair(given: Any, dim: int) -> tuple[Float[np.ndarray, " dim"], Float[np.ndarray, " dim"]]:
    pairs = list(given)
    if len(pairs) != dim or any(np.ndim(pair) != 1 or len(pair) != 2 for pair in pairs):
        raise ValueError(f"bounds must be a tuple (low, high), or a list of {dim} pairs, got {given!r}")
    low, high = zip(*pairs, strict=True)
    return _filled(low, dim, -np.inf), _filled(high, dim, np.inf)


def _by_name(
    given: Mapping[str, Any], names: Sequence[str]
) -> tuple[Float[np.ndarray, " dim"], Float[np.ndarray, " dim"]]:
    """Names that are not mentioned have no bounds; "a" stands for all of a[0], a[1], ..."""
    low, high = np.full(len(names), -np.inf), np.full(len(names), np.inf)
    for name, (first, last) in given.items():
        mine = places(name, names)
        if not len(mine):
            raise ValueError(f"unknown name {name!r} in bounds; the names are {', '.join(map(repr, names[:8]))}")
        low[mine] = _filled(first, len(mine), -np.inf)
        high[mine] = _filled(last, len(mine), np.inf)
    return low, high


def places(name: str, names: Sequence[str]) -> np.ndarray:
    """The coordinates of that name, or below it."""
    return np.array([n for n, one in enumerate(names) if one == name or one.startswith((f"{name}[", f"{name}."))], int)
