"""How many operations a gradient takes, counted from its jaxpr: the same on every machine, quick or slow.

What decides how long to search must not be a clock. Every primitive counts as many operations as it has numbers in its
results (or, where it sums or sorts, in its arguments), products of matrices what they take, and the body of a scan as
often as it runs. What cannot be known beforehand is not counted: a loop that ends by its data, a callback.
"""

import math
from collections.abc import Callable, Iterator
from typing import Any

import jax
import numpy as np
from jax.extend.core import ClosedJaxpr, Jaxpr

from whmc._shapes import Array, Float

CUBIC = ("cholesky", "triangular_solve", "lu", "qr", "geqrf", "householder_product", "eigh", "eig", "svd")
"""Factorisations: as many operations as numbers in their result, times the longest side."""

BY_ARGUMENT = ("reduce", "arg", "cum", "sort", "top_k")
"""Primitives that look at more numbers than they give."""

UNKNOWN = ("callback", "ffi_call", "custom_call", "while")


def count_operations(function: Callable[[Float[Array, " dim"]], Any], dim: int) -> float | None:
    """Operations of a function of a position; None where they cannot be counted."""
    with jax.enable_x64(True):
        traced = jax.make_jaxpr(function)(jax.ShapeDtypeStruct((dim,), np.dtype(float)))
    total = _of_jaxpr(traced.jaxpr)
    return None if math.isnan(total) else total


def _of_jaxpr(jaxpr: Any) -> float:
    """NaN where something is unknown."""
    return sum((_of_equation(equation) for equation in jaxpr.eqns), 0.0)


def _of_equation(equation: Any) -> float:
    name, params = equation.primitive.name, equation.params
    if any(word in name for word in UNKNOWN):
        return math.nan
    inner = [_of_jaxpr(one) for one in _nested(params)]
    if name == "cond":
        return math.nan if any(map(math.isnan, inner)) else max(inner)
    if name == "scan":
        return params["length"] * sum(inner)
    if inner:
        return sum(inner)
    results = sum(_size(one) for one in equation.outvars)
    if name == "dot_general":
        (contracted, _), _ = params["dimension_numbers"]
        return 2 * results * math.prod(equation.invars[0].aval.shape[axis] for axis in contracted)
    if name == "conv_general_dilated":
        return 2 * results * _size(equation.invars[1])
    if name.startswith(CUBIC):
        return results * max((side for one in equation.invars for side in one.aval.shape), default=1)
    return max(results, _size(equation.invars[0])) if name.startswith(BY_ARGUMENT) else results


def _size(variable: Any) -> float:
    return float(math.prod(getattr(variable.aval, "shape", ())))


def _nested(value: Any) -> Iterator[Any]:
    """All jaxprs among the parameters of a primitive."""
    if isinstance(value, ClosedJaxpr):
        yield value.jaxpr
    elif isinstance(value, Jaxpr):
        yield value
    elif isinstance(value, dict):
        for one in value.values():
            yield from _nested(one)
    elif isinstance(value, (tuple, list)):
        for one in value:
            yield from _nested(one)
