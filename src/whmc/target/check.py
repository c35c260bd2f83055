"""Checks of a target before anything is computed with it; each failure says what to do."""

import dataclasses
import time
from collections.abc import Callable
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np

from whmc._shapes import Array, Bool, Float, Int
from whmc.keys import Stream, children, generator, stream_key
from whmc.target.check_symmetry import likely_starts, require_symmetric, symmetry_key
from whmc.target.counted import count
from whmc.target.jumps import NUM_SEGMENTS, find_jump
from whmc.target.meant import model_of
from whmc.target.price import Price, is_costly
from whmc.target.proper import can_be_followed, improper_ends
from whmc.target.starts import describe

if TYPE_CHECKING:
    from whmc.target.target import Target


def require_count(name: str, value: Any, least: int) -> None:
    """A whole number, not too small, that fits into 64 bits."""
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)):
        raise TypeError(f"{name} must be an integer, got {value!r} of type {type(value).__name__}")
    if value >= 2**63:
        raise ValueError(f"{name} must be less than 2**63, got {value}")
    if value < least:
        raise ValueError(f"{name} must be at least {least}, got {value}")


def require_scalar_output(target: "Target") -> None:
    """Traces the density once; raises the one error that says what is wrong with its output."""
    position = jax.ShapeDtypeStruct((target.dim,), jnp.float64)
    with jax.enable_x64(True):
        try:
            trace = jax.make_jaxpr(lambda x: target.logdensity(target.unflatten(x)), return_shape=True)
            traced, value = trace(position)
        except (jax.errors.TracerArrayConversionError, jax.errors.ConcretizationTypeError) as error:
            raise TypeError(
                "logdensity needs its position as plain numbers, for NumPy, float() or if: write it in jax.numpy, so "
                "that it can be compiled and differentiated, or use whmc.from_numpy(f, dim=..., starts=...)"
            ) from error
        except Exception as error:
            model = model_of(target.logdensity)
            if model is not None:
                raise TypeError(f"logdensity cannot be called with a position: {model}") from error
            error.add_note(f"whmc called logdensity with a position of length dim = {target.dim}")
            raise
        # what is made inside of a compiled function, or holds a value of one, cannot be looked at while it is traced
        if any(isinstance(one, jax.core.Tracer) for one in (jnp.zeros(()), *traced.consts)):
            raise TypeError(
                "whmc searches and samples on the host, by what it sees on the way, which JAX cannot trace: call it "
                "outside of jax.jit, jax.grad, jax.vmap and the like, with a log density that holds plain arrays"
            )
    shape, dtype = getattr(value, "shape", None), getattr(value, "dtype", None)
    if shape is None or dtype is None:
        raise TypeError(f"logdensity must return a scalar array, got {type(value).__name__}")
    if shape != ():
        raise ValueError(
            f"logdensity returned shape {shape} for one position: it must return a scalar, often a missing .sum()"
        )
    if not jnp.issubdtype(dtype, jnp.floating):
        raise TypeError(f"logdensity returned dtype {dtype}: it must return a real floating number")


@partial(jax.jit, static_argnums=0)
def _values(target: "Target", points: Float[Array, "n dim"]) -> Float[Array, " n"]:
    return jax.vmap(target)(points)


AT_ONCE = 256
"""Points that are evaluated together."""


def find_failure(target: "Target", points: Float[np.ndarray, "n dim"]) -> Float[np.ndarray, " dim"] | None:
    """The first of some flat positions at which the density is NaN or +inf, flat and inside the bounds, which
    `check(at=...)` takes; None if there is none."""
    with jax.enable_x64(True), target.user_errors():
        for begin in range(0, len(points), AT_ONCE):
            part = np.asarray(points[begin : begin + AT_ONCE], float)
            padded = jnp.full((AT_ONCE, target.dim), jnp.nan).at[: len(part)].set(part)
            count(len(part))
            values = np.asarray(_values(target, padded))[: len(part)]
            failed = np.isnan(values) | (values == np.inf)
            if failed.any():
                return np.asarray(target.inside(jnp.asarray(part[np.argmax(failed)])))
    return None


MARKS = {True: "✓", False: "✗", None: "-"}

Line = tuple[bool | None, str, str]


@dataclasses.dataclass(frozen=True)
class TargetCheck:
    """What `Target.check` saw: (passed, what was looked at, what was seen or the remedy) a line. passed is None where
    nothing was looked at."""

    lines: tuple[Line, ...]

    @property
    def passed(self) -> bool:
        return all(passed is not False for passed, _, _ in self.lines)

    def __str__(self) -> str:
        return "\n".join(f"{MARKS[passed]} {what}: {seen}" for passed, what, seen in self.lines)

    __repr__ = __str__


def check_target(target: "Target", seed: int = 0, at: Any = None) -> TargetCheck:
    """Looks at the output, the starts, and there at values, floors, gradients, batches, edges, tails; at dtype and
    symmetries; and says what a run costs.

    Ends at the first exception, and where there is nothing to look at further.
    """
    lines: list[Line] = []
    walk = _Walk(target, seed, at)
    looks: list[Callable[[], tuple[bool | None, str]]] = [walk.output, walk.starts, walk.value, walk.gradient]
    looks += [walk.floor, walk.batch, walk.price]
    looks += [walk.edges] if target.starts is not None else []
    looks += [walk.tails, walk.dtype]
    looks += [walk.symmetries] if target.symmetries and target.starts is not None else []
    with jax.enable_x64(True):
        for look in looks:
            what = look.__name__
            try:
                with target.user_errors():
                    passed, seen = look()
            except Exception as error:  # whatever the user's function raises is a finding, not a crash
                told = (str(error).splitlines() or [""])[0]
                lines.append((False, what, f"{type(error).__name__}: {told}"))
                break
            lines.append((passed, what, seen))
            if not passed and what in ("output", "starts"):
                break
    return TargetCheck(tuple(lines))


NUM_STARTS = 256
"""Points of the start region that are looked at."""

NUM_ALONE = 16
"""Copies of a single position, where there are no starts: a batch as of the default number of chains."""

NUM_COMPARED = 8
"""Points at which gradients are compared with differences of values."""


@dataclasses.dataclass(frozen=True, eq=False)
class _Walk:
    """The lines of a check: each method looks at one thing, and says whether it passed and what was seen."""

    target: "Target"
    seed: int
    at: Any

    @cached_property
    def keys(self) -> list[Array]:
        """Of the starts, of directions, of tails."""
        return children(stream_key(self.seed, Stream.CHECK), 3)

    @property
    def in_jax(self) -> bool:
        """Whether JAX sees the function."""
        return not hasattr(self.target.logdensity, "calls_per_gradient")

    @cached_property
    def start_points(self) -> Float[Array, "n dim"]:
        return jnp.asarray(self.target.draw_starts(self.keys[0], NUM_STARTS))

    @cached_property
    def points(self) -> Float[Array, "n dim"]:
        """The positions to look at."""
        if self.at is None and self.target.starts is not None:
            return self.start_points
        place = jnp.zeros(self.target.dim) if self.at is None else self.target.flatten(self.at)
        return jnp.tile(place, (NUM_ALONE, 1))

    @cached_property
    def values(self) -> Float[np.ndarray, " n"]:
        return np.asarray(_values(self.target, self.points))

    @cached_property
    def usable(self) -> Bool[np.ndarray, " n"]:
        return np.isfinite(self.values)

    @cached_property
    def evaluated(self) -> tuple[Float[np.ndarray, " n"], Float[np.ndarray, "n dim"], float, float]:
        """Values, gradients, the seconds that a gradient takes, and those that it took to compile it."""
        return self._measured(self.points)

    def _measured(
        self, points: Float[Array, "n dim"]
    ) -> tuple[Float[np.ndarray, " n"], Float[np.ndarray, "n dim"], float, float]:
        began = time.perf_counter()
        both = jax.jit(jax.vmap(jax.value_and_grad(self.target))).lower(points).compile()
        compiling = time.perf_counter() - began
        (values, scores), seconds = _timed(both, points)
        if seconds < 0.1:
            # again, since first calls are slow; elsewhere, since a function may remember what it was asked last
            seconds = _timed(both, points * (1 + 1e-9) + 1e-12)[1]
        return np.asarray(values), np.asarray(scores), seconds / len(points), compiling

    def output(self) -> tuple[bool, str]:
        require_scalar_output(self.target)
        return True, "a real scalar"

    def starts(self) -> tuple[bool, str]:
        target = self.target
        if target.starts is None:
            return True, "none given, which is right where modes are; to look for modes add starts=(low, high)"
        points = np.asarray(self.start_points)
        same = self.points is self.start_points
        finite = self.usable if same else np.isfinite(np.asarray(_values(target, self.start_points)))
        where = describe(target.space, target.starts)
        if not finite.any():
            return False, f"log density is finite at none of {len(points)} starts {where}: move or shrink the region"
        distinct = len(np.unique(points, axis=0))
        return True, (
            f"log density is finite at {np.mean(finite):.0%} of {len(points)} starts ({distinct} distinct) {where}"
        )

    def value(self) -> tuple[bool, str]:
        if not self.usable.any():
            return False, f"{self.values[0]} at the position looked at: give check(at=...) a position in the support"
        n = int(np.argmax(self.usable))
        return True, f"{self.values[n]:.6g} at {self.shown(n)}"

    def gradient(self) -> tuple[bool, str]:
        """Finite wherever the value is, and equal to differences at some of the points."""
        scores = self.evaluated[1]
        bad = self.usable & ~np.all(np.isfinite(scores), axis=1)
        if bad.any():
            n = int(np.argmax(bad))
            name = self.target.coordinates[int(np.argmax(~np.isfinite(scores[n])))]
            return False, (
                f"not finite at {bad.sum()} of {self.usable.sum()} positions, first for {name} at {self.shown(n)}: "
                "look for jnp.where, sqrt or abs at 0"
            )
        some = np.flatnonzero(self.usable)[:NUM_COMPARED]
        if not len(some):
            return False, "no position with a finite log density to look at"
        exact, slope, wrong = self.compared(some)
        if wrong.any():
            n = int(np.argmax(wrong))
            return False, (
                f"disagrees with differences at {wrong.sum()} of {len(some)} positions: {exact[n]:.6g} along a "
                f"direction at {self.shown(some[n])}, differences give {slope[n]:.6g}; a kink or float32?"
            )
        return True, (
            f"finite at {self.usable.sum()} positions, agrees with differences at {len(some)} ({exact[0]:.4g} at the "
            "first)"
        )

    def compared(self, some: Int[np.ndarray, " m"]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Slopes in random directions by gradients and by central differences, and where they disagree."""
        points, scores = np.asarray(self.points)[some], self.evaluated[1][some]
        ways = generator(self.keys[1]).standard_normal(points.shape)
        ways = ways / np.linalg.norm(ways, axis=1, keepdims=True)
        size = 1e-6 * (1.0 + np.linalg.norm(points, axis=1))
        moved = np.concatenate([points + size[:, None] * ways, points - size[:, None] * ways])
        ahead, behind = np.split(np.asarray(_values(self.target, jnp.asarray(moved))), 2)
        with np.errstate(invalid="ignore"):  # where a step leaves the support nothing can be compared
            slope, exact = (ahead - behind) / (2 * size), np.sum(scores * ways, axis=1)
            scale = np.linalg.norm(scores, axis=1) + np.abs(self.values[some]) * 1e-9 / size + 1e-8
            return exact, slope, np.isfinite(slope) & (np.abs(slope - exact) > 1e-3 * scale)

    def floor(self) -> tuple[bool, str]:
        """One value, and no slope, at different places: a constant in the place of -inf, or steps."""
        flat = np.flatnonzero(self.usable & ~np.any(self.evaluated[1], axis=1))
        values, first = np.unique(self.values[flat], return_index=True)
        places = [np.unique(np.asarray(self.points)[flat[self.values[flat] == value]], axis=0) for value in values]
        shared = [n for n, rows in enumerate(places) if len(rows) > 1]
        if not shared:
            return True, "no value without a slope is shared by several positions"
        n = max(shared, key=lambda n: len(places[n]))
        return False, (
            f"{values[n]:.6g} without a slope at {len(places[n])} different positions, first at "
            f"{self.shown(flat[first[n]])}: return -inf outside of the support, not a constant, and leave out floor "
            "and round"
        )

    def batch(self) -> tuple[bool, str]:
        values = self.evaluated[0]
        one = float(self.target(self.points[0]))
        if not np.isclose(one, values[0], rtol=1e-6, equal_nan=True):
            return False, f"{values[0]:.6g} in a batch, {one:.6g} alone: is there state or randomness?"
        return True, "same in a batch"

    def price(self) -> tuple[bool, str]:
        """Of a default run: seconds as measured here, of many positions for the search and of as many as chains."""
        _, _, seconds, compiling = self.evaluated
        run = Price(
            search=0.0 if self.target.starts is None else Price.search,
            calls=getattr(self.target.logdensity, "calls_per_gradient", 1),
            has_gradient=self.target.has_gradient,
            free=not is_costly(self.target.operations, self.target.dim),
        )
        # a call of a function outside of JAX costs the same among few as among many
        beside = self._measured(self.points[: run.chains])[2] if self.in_jax else seconds
        return True, run.tell(seconds, beside, compiling if self.in_jax else None)

    def edges(self) -> tuple[bool, str]:
        """Along segments between starts the log density may change, but not from one side of a point to the other."""
        found = find_jump(self.target, np.asarray(self.start_points))
        if found is None:
            return True, f"no jump along {NUM_SEGMENTS} lines between starts"
        before, after, position = found
        where = _short(self.target, position)
        if np.isfinite(before) and np.isfinite(after):
            return False, (
                f"the log density jumps from {before:.6g} to {after:.6g} at {where}: no gradient tells of it, so moves "
                "across are refused; write it without where, floor or round, or give bounds where the support ends"
            )
        return False, (
            f"the support ends at {where}, inside the start region: moves across are refused and starts beyond "
            "are lost; give bounds"
        )

    def tails(self) -> tuple[bool | None, str]:
        """Whether the density has a finite integral along both ends of each coordinate."""
        if not can_be_followed(self.target):
            return None, (
                "not looked at: a function outside of JAX, or a loop whose length depends on the data, may never "
                "return from extreme positions; see to it that the density falls off along every coordinate"
            )

        def values(points: Float[np.ndarray, "n dim"]) -> Float[np.ndarray, " n"]:
            return np.asarray(_values(self.target, jnp.asarray(points)))

        rng = generator(self.keys[2])
        ends, num, _ = improper_ends(self.target, values, np.asarray(self.points), rng)
        if ends:
            return False, (
                f"the density does not fall off along {' or '.join(end.told for end in ends)}, so it has no finite "
                "integral (it is improper): give bounds, or a prior that falls off there"
            )
        dim = self.target.dim
        return True, "the density falls off along both ends of " + (
            "every coordinate" if num == dim else f"{num} of {dim} coordinates"
        )

    def dtype(self) -> tuple[bool, str]:
        dtype = self.target.logdensity_dtype
        if dtype != jnp.float64:
            return False, f"{dtype} for a float64 position: remove casts, they limit every energy difference"
        return True, "float64"

    def symmetries(self) -> tuple[bool, str]:
        require_symmetric(self.target, likely_starts(self.target, symmetry_key(self.seed)))
        return True, f"{len(self.target.group)} images of each point have its density"

    def shown(self, n: int | np.integer) -> str:
        """A position as the log density takes it, in few characters."""
        return _short(self.target, self.points[int(n)])


def _timed(function: Callable[[Array], Any], points: Array) -> tuple[Any, float]:
    began = time.perf_counter()
    found = jax.block_until_ready(function(points))
    return found, time.perf_counter() - began


def _short(target: "Target", position: Any) -> str:
    """A position as the log density takes it, in few characters."""
    shown = jax.tree.map(np.asarray, target.unflatten(jnp.asarray(position)))
    if isinstance(shown, np.ndarray):
        return np.array2string(shown, precision=6, threshold=6, separator=", ")
    return " ".join(str(shown).split())
