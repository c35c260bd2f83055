"""Charts from locations: the curvature of the log density there, made positive and reported."""

import dataclasses
import warnings
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from whmc.modes.library import DIAGONAL_FROM, ModeLibrary
from whmc.target.target import Numbers, Target

FLAT_SHARE = 1e-10
"""Curvatures below this share of the largest are taken as flat: float64 second derivatives
carry about this much rounding."""

SAME_LOCATION_SD = 1e-3
"""Locations nearer than this many standard deviations are one mode given twice."""


@dataclasses.dataclass(frozen=True)
class Curvature:
    """Scale of a chart from second derivatives, and how far they had to be mended."""

    scale: Float[np.ndarray, "dim dim"] | Float[np.ndarray, " dim"]
    num_flat: int
    num_negative: int


def curvature(target: Target, location: Float[Array, " dim"], *, diagonal: bool, widest: float) -> Curvature:
    """L with L L^T = (-H)^{-1}, H the Hessian of log density; for diagonal charts -H's diagonal.

    A curvature that is zero or negative (a ridge, a saddle, a location that is not a mode) becomes its absolute
    value, and a flat direction gets the standard deviation `widest`: the chart is then only a start, and the warm-up
    learns the shape from draws.
    """
    return mended(np.asarray(precision_at(target, location, diagonal=diagonal)), widest=widest)


@partial(jax.jit, static_argnames="diagonal")
def precision_at(target: Target, location: Float[Array, " dim"], *, diagonal: bool) -> Array:
    """-H, or its diagonal, by Hessian-vector products, 64 columns at a time."""
    score = jax.grad(target)

    def column(place: Int[Array, ""]) -> Array:
        unit = jnp.zeros_like(location).at[place].set(1.0)
        product = -jax.jvp(score, (location,), (unit,))[1]
        return product[place] if diagonal else product

    return jax.lax.map(column, jnp.arange(target.dim), batch_size=64)


def mended(precision: np.ndarray, *, widest: float) -> Curvature:
    diagonal = precision.ndim == 1
    if not np.all(np.isfinite(precision)):
        unit = np.ones(len(precision)) if diagonal else np.eye(len(precision))
        return Curvature(unit, num_flat=len(precision), num_negative=0)
    if diagonal:
        values, vectors = precision, None
    else:
        values, vectors = np.linalg.eigh(0.5 * (precision + precision.T))
    flat = np.abs(values) <= FLAT_SHARE * np.max(np.abs(values))
    sd = 1 / np.sqrt(np.where(flat, 1.0, np.abs(values)))
    sd = np.where(flat, max(widest, np.max(sd, where=~flat, initial=0.0)), sd)
    negative = ~flat & (values < 0)
    if vectors is None:
        scale = sd
    else:
        # QR gives the triangular factor without squaring the condition number
        upper = np.asarray(np.linalg.qr((vectors * sd).T, mode="r"))
        scale = upper.T * np.sign(np.diagonal(upper))
    return Curvature(scale, int(np.sum(flat)), int(np.sum(negative)))


def library_at(target: Target, locations: Numbers, *, diagonal: bool | None = None) -> ModeLibrary:
    """A library of the modes at `locations`: charts by curvature, weights by Laplace's formula."""
    diagonal = target.dim >= DIAGONAL_FROM if diagonal is None else diagonal
    points = _require_locations(target, locations)
    heights = np.asarray(jax.vmap(target)(points))
    _require_support(points, heights)
    widest = spread(target, points)
    found = [curvature(target, point, diagonal=diagonal, widest=widest) for point in points]
    repaired = [
        f"mode {k} ({one.num_flat} flat, {one.num_negative} negative)"
        for k, one in enumerate(found)
        if one.num_flat or one.num_negative
    ]
    if repaired:
        warnings.warn(
            "the log density has directions without curvature at "
            + ", ".join(repaired)
            + ": these charts were regularised and will be learned from draws",
            stacklevel=3,
        )
    library = ModeLibrary.from_charts(
        points,
        np.stack([one.scale for one in found]),
        # leapfrog's energy error in D dimensions stays the same when the step goes as D^(-1/4)
        step_size=np.full(len(points), target.dim**-0.25),
    )
    _require_distinct(library)
    laplace = heights + np.asarray(library.log_det)
    return dataclasses.replace(library, log_weight=jnp.asarray(laplace - np.logaddexp.reduce(laplace)))


def spread(target: Target, locations: Float[Array, "size dim"]) -> float:
    """The standard deviation of a direction without curvature: the size of the known region."""
    if isinstance(target.starts, tuple) and target.template is None and target.bounds is None:
        low, high = (np.asarray(edge, float) for edge in target.starts)
        return float(np.max(high - low))
    reach = np.max(np.ptp(np.asarray(locations), axis=0))
    return float(reach) if reach > 0 else 1.0


def _require_locations(target: Target, locations: Numbers) -> Float[Array, "size dim"]:
    points = np.asarray(target.flatten_all(locations))
    if points.ndim != 2 or points.shape[1] != target.dim or len(points) == 0:
        raise ValueError(f"modes has shape {points.shape}: give one row for each mode, (K, {target.dim})")
    if not np.all(np.isfinite(points)):
        k = int(np.argmax(~np.all(np.isfinite(points), axis=1)))
        raise ValueError(f"mode {k} is not finite: {points[k]}")
    return jnp.asarray(points)


def _require_support(locations: Float[Array, "size dim"], heights: np.ndarray) -> None:
    if not np.all(np.isfinite(heights)):
        k = int(np.argmax(~np.isfinite(heights)))
        raise ValueError(
            f"the log density is {heights[k]} at mode {k}, {np.asarray(locations)[k]}: "
            "it lies outside the support; move or remove it"
        )


def _require_distinct(library: ModeLibrary) -> None:
    locations = np.asarray(library.location)
    for k in range(1, len(locations)):
        gaps, inverse = locations[:k] - locations[k], np.asarray(library.inverse_scale[k])
        distances = np.linalg.norm(gaps * inverse if library.diagonal else gaps @ inverse.T, axis=1)
        if np.min(distances) < SAME_LOCATION_SD:
            raise ValueError(
                f"modes {int(np.argmin(distances))} and {k} are the same point "
                f"({float(np.min(distances)):.2g} standard deviations apart): give each mode once"
            )
