"""Checks of a target before anything is computed with it; each failure says what to do."""

import time
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from whmc.target.callback_errors import own_errors
from whmc.target.target import Target, TargetCheck


def require_count(name: str, value: Any, least: int) -> None:
    """A whole number, not too small, that fits into 64 bits."""
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)):
        raise TypeError(f"{name} must be an integer, got {value!r} of type {type(value).__name__}")
    if value >= 2**63:
        raise ValueError(f"{name} must be less than 2**63, got {value}")
    if value < least:
        raise ValueError(f"{name} must be at least {least}, got {value}")


def require_target(target: Any) -> None:
    """A function is no target."""
    if not isinstance(target, Target):
        raise TypeError(f"target must be a whmc.Target, got {type(target).__name__}: wrap it, Target(f, dim=...)")


def require_scalar_output(target: Target) -> None:
    """Traces the density once; raises the one error that says what is wrong with its output."""
    position = jax.ShapeDtypeStruct((target.dim,), jnp.float64)
    with jax.enable_x64(True):
        try:
            value = jax.eval_shape(lambda x: target.logdensity(target.unflatten(x)), position)
        except (jax.errors.TracerArrayConversionError, jax.errors.ConcretizationTypeError) as error:
            raise TypeError(
                "logdensity needs its position as plain numbers, for NumPy, float() or if: write it in jax.numpy, so "
                "that it can be compiled and differentiated"
            ) from error
        except Exception as error:
            error.add_note(f"whmc called logdensity with a position of length dim = {target.dim}")
            raise
    shape, dtype = getattr(value, "shape", None), getattr(value, "dtype", None)
    if shape is None or dtype is None:
        raise TypeError(f"logdensity must return a scalar array, got {type(value).__name__}")
    if shape != ():
        raise ValueError(
            f"logdensity returned shape {shape} for one position: it must return a scalar, often a missing .sum()"
        )
    if not jnp.issubdtype(dtype, jnp.floating):
        raise TypeError(f"logdensity returned dtype {dtype}: it must return a real floating number")


NEAR = 1e-6
"""Relative difference of log densities that rounding explains, also through a constraint and back."""


def likely_starts(target: Target, seed: int) -> Float[Array, "4 dim"]:
    """The likeliest of some points of the start region."""
    points = target.draw_starts(jax.random.fold_in(jax.random.key(seed), 3), 64)
    heights = jax.jit(jax.vmap(target))(points)
    return points[jnp.argsort(jnp.where(jnp.isfinite(heights), -heights, jnp.inf))[:4]]


def require_symmetric(target: Target, points: Float[Array, "n dim"]) -> None:
    """At the points each declared symmetry g keeps the density: log pi(g x) + log |det dg/dx| = log pi(x)."""
    for element, symmetry in enumerate(target.group.generators, start=1):
        before, after = map(np.asarray, _before_and_after(target, element, points))
        wrong = ~np.isclose(before, after, rtol=NEAR, atol=NEAR) & np.isfinite(before)
        if wrong.any():
            n = int(np.argmax(wrong))
            raise ValueError(
                f"{symmetry} is no symmetry: it changes the log density from {before[n]:.8g} to {after[n]:.8g}; "
                "name all values that belong to a component, and look for priors or data that tell components apart"
            )


@partial(jax.jit, static_argnums=0)
def _before_and_after(
    target: Target, element: Int[Array, ""] | int, points: Float[Array, "n dim"]
) -> tuple[Float[Array, " n"], Float[Array, " n"]]:
    def image(position: Float[Array, " dim"]) -> Float[Array, " dim"]:
        return target.image(element, position)

    after = jax.vmap(target)(jax.vmap(image)(points))
    if target.constrained:  # else the map is a permutation with signs
        after += jax.vmap(lambda point: jnp.linalg.slogdet(jax.jacfwd(image)(point))[1])(points)
    return jax.vmap(target)(points), after


def check_target(target: Target, seed: int = 0, at: Any = None) -> TargetCheck:
    """Output, finite share of the starts, one value, gradient, batch, dtype; the later lines need the first two."""
    lines: list[tuple[bool, str, str]] = []

    def look(what: str, see: Callable[[], tuple[bool, str]]) -> bool:
        try:
            with own_errors(target):
                passed, seen = see()
        except Exception as error:  # whatever the user's function raises is a finding, not a crash
            passed, seen = False, f"{type(error).__name__}: {str(error).splitlines()[0]}"
        lines.append((passed, what, seen))
        return passed

    with jax.enable_x64(True):
        look("output", lambda: _output(target))
        if lines[-1][0] and look("starts", lambda: _starts(target, seed)):
            points = _finite_first(target, _points(target, seed, at))
            look("value", lambda: _value(target, points[0]))
            look("gradient", lambda: _gradient(target, points[0]))
            look("batch", lambda: _batch(target, points))
            look("dtype", lambda: _dtype(target))
            if target.symmetries and target.starts is not None:
                look("symmetries", lambda: _symmetries(target, seed))
    return TargetCheck(tuple(lines))


def _output(target: Target) -> tuple[bool, str]:
    require_scalar_output(target)
    return True, "a real scalar"


def _finite_first(target: Target, points: Float[Array, "n dim"]) -> Float[Array, "n dim"]:
    return points[jnp.argsort(~jnp.isfinite(jax.vmap(target)(points)))]


def _points(target: Target, seed: int, at: Any) -> Float[Array, "n dim"]:
    if at is not None or target.starts is None:
        place = jnp.zeros(target.dim) if at is None else target.flatten(at)
        return jnp.tile(place, (256, 1))
    return target.draw_starts(jax.random.key(seed), 256)


def _starts(target: Target, seed: int) -> tuple[bool, str]:
    if target.starts is None:
        return True, "none given, which is right where modes are; to look for modes add starts=(low, high)"
    points = target.draw_starts(jax.random.key(seed), 256)
    share = float(jnp.mean(jnp.isfinite(jax.vmap(target)(points))))
    if share == 0:
        return False, "log density is finite at none of 256 starts: move or shrink the region"
    return True, f"log density is finite at {share:.0%} of 256 starts"


def _value(target: Target, point: Float[Array, " dim"]) -> tuple[bool, str]:
    value = float(target(point))
    if not np.isfinite(value):
        return False, f"{value} at the place looked at: give check(at=...) a position in the support"
    return True, f"{value:.6g} at the first place looked at"


def _gradient(target: Target, point: Float[Array, " dim"]) -> tuple[bool, str]:
    """Against central differences in a random direction."""
    score = jax.grad(target)(point)
    bad = int(jnp.sum(~jnp.isfinite(score)))
    if bad:
        first = target.names[int(jnp.argmax(~jnp.isfinite(score)))]  # type: ignore[index]
        return False, f"{bad} entries are not finite, first {first}: look for jnp.where, sqrt or abs at 0"
    way = jax.random.normal(jax.random.key(1), point.shape)
    way = way / jnp.linalg.norm(way)
    size = 1e-6 * (1.0 + float(jnp.linalg.norm(point)))
    slope = float((target(point + size * way) - target(point - size * way)) / (2 * size))
    exact = float(score @ way)
    scale = float(jnp.linalg.norm(score)) + abs(float(target(point))) * 1e-9 / size + 1e-8
    if abs(slope - exact) > 1e-3 * scale:
        return False, f"{exact:.6g} along a direction, differences give {slope:.6g}: a kink or float32?"
    return True, f"finite, agrees with differences ({exact:.4g})"


def _batch(target: Target, points: Float[Array, "n dim"]) -> tuple[bool, str]:
    evaluate = jax.jit(jax.vmap(target.evaluate))
    one, many = target(points[0]), jax.block_until_ready(evaluate(points)).logdensity[0]
    if not np.isclose(float(one), float(many), rtol=1e-6):
        return False, f"{float(many):.6g} in a batch, {float(one):.6g} alone: is there state or randomness?"
    start = time.perf_counter()
    jax.block_until_ready(evaluate(points))
    each = (time.perf_counter() - start) / len(points)
    return True, f"same in a batch, {each * 1e6:.1f} µs a gradient"


def _symmetries(target: Target, seed: int) -> tuple[bool, str]:
    require_symmetric(target, likely_starts(target, seed))
    return True, f"{len(target.group)} images of each point have its density"


def _dtype(target: Target) -> tuple[bool, str]:
    dtype = jax.eval_shape(
        lambda x: target.logdensity(target.unflatten(x)),
        jax.ShapeDtypeStruct((target.dim,), jnp.float64),
    ).dtype
    if dtype != jnp.float64:
        return False, f"{dtype} for a float64 position: remove casts, they limit every energy difference"
    return True, "float64"
