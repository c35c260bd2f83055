"""Which image of its modes a target with symmetries keeps: see `whmc.target.symmetry`."""

import dataclasses
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from whmc.modes.curvature import curvature, spread
from whmc.modes.library import DIAGONAL_FROM
from whmc.search.finders import MultiStart
from whmc.search.mode_search import run_finder, start_search
from whmc.search.report import require_modes
from whmc.target.check import likely_starts, require_symmetric
from whmc.target.symmetry import Fold
from whmc.target.target import Target

STARTS = 64
"""Descents for the representatives; modes that they miss are folded with the others, as the nearest one is."""

MOST = 16
"""Representatives: highest first."""


def folded(target: Target, seed: int, locations: Float[np.ndarray, "modes dim"] | None = None) -> Target:
    """The target with one image of each mode: representatives are the given locations, or are searched for."""
    if not target.symmetries or target.fold is not None:
        return target
    if locations is None or target.starts is not None:
        require_symmetric(target, likely_starts(target, seed))
    else:
        require_symmetric(target, _around(target, locations, seed))
    if locations is None:
        key = jax.random.fold_in(jax.random.key(seed), 2)  # 0 the chains', 1 the search's
        found = run_finder(start_search(target, MOST * len(target.group)), target, MultiStart(STARTS), key)
        require_modes(found)
        locations = np.stack([peak.location for peak in found.peaks])
    return dataclasses.replace(target, fold=_fold(target, locations))


def recalled(target: Target, plain: Mapping[str, Any] | None) -> Target:
    """The target as the run had it."""
    if plain is None:
        return target
    return dataclasses.replace(target, fold=Fold.recalled(target.group, plain))


def _fold(target: Target, locations: Float[np.ndarray, "modes dim"]) -> Fold:
    """Bumps at the highest location and, of each other mode, at the image that is nearest to it."""
    heights = np.asarray(jax.vmap(target)(jnp.asarray(locations)))
    highest = jnp.asarray(locations[np.argsort(-heights)])
    values = np.asarray(jax.vmap(target.values)(highest))
    precision = 1 / target.group.average(_variances(target, highest))
    kept: list[np.ndarray] = []
    for one in values:
        images = target.group.sign * one[target.group.order]
        apart = np.sum((images[:, None] - np.stack([values[0], *kept])) ** 2 * precision, axis=-1)
        if not kept or apart[:, 1:].min() > 1:  # an image of what is there already tells nothing new
            kept.append(images[np.argmin(apart[:, 0])])
    return Fold(target.group, np.stack(kept[:MOST]), precision)


def _around(
    target: Target, locations: Float[np.ndarray, "modes dim"], seed: int, num: int = 4
) -> Float[Array, "num dim"]:
    """Points of the charts of the first modes: at a mode itself a false symmetry may keep the density."""
    few = locations[np.arange(num) % len(locations)]
    noise = np.asarray(jax.random.normal(jax.random.fold_in(jax.random.key(seed), 3), few.shape))
    moved = [place + _times(one, _scale(target, place, locations).T) for place, one in zip(few, noise, strict=True)]
    return jnp.asarray(np.stack(moved))


def _variances(target: Target, locations: Float[Array, "modes dim"]) -> Float[np.ndarray, " size"]:
    """Of the values x at the first location: the diagonal of dx/dtheta L L^T (dx/dtheta)^T."""
    slopes = np.asarray(jax.jacfwd(target.values)(locations[0]))
    spreads = np.sum(_times(slopes, _scale(target, locations[0], locations)) ** 2, axis=1)
    return np.where(spreads > 0, spreads, 1.0)


def _scale(target: Target, location: Array | np.ndarray, all_of_them: Array | np.ndarray) -> np.ndarray:
    """L of the chart at a location, or its diagonal."""
    widest = spread(target, jnp.asarray(all_of_them))
    return curvature(target, jnp.asarray(location), diagonal=target.dim >= DIAGONAL_FROM, widest=widest).scale


def _times(rows: np.ndarray, scale: np.ndarray) -> np.ndarray:
    """Rows times L, which in high dimension is a diagonal."""
    return rows * scale if scale.ndim == 1 else rows @ scale
