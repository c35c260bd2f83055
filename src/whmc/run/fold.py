"""Which image of its modes a target with symmetries keeps: see `whmc.symmetry`."""

import dataclasses
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from whmc.check import require_symmetric
from whmc.modes.charts import precision_at
from whmc.modes.finders import MultiStart
from whmc.modes.library import DIAGONAL_FROM
from whmc.modes.search import Hunt
from whmc.symmetry import Fold
from whmc.target import Target

STARTS = 64
"""Descents for the representatives; modes that they miss are folded with the others, as the nearest one is."""

MOST = 16
"""Representatives: highest first."""


def folded(target: Target, seed: int, locations: Float[np.ndarray, "modes dim"] | None = None) -> Target:
    """The target with one image of each mode: representatives are the given locations, or are searched for."""
    if not target.symmetries or target.fold is not None:
        return target
    if target.starts is not None:
        require_symmetric(target, seed)
    if locations is None:
        hunt = Hunt(target, MOST * len(target.group))
        hunt.run(MultiStart(STARTS), jax.random.fold_in(jax.random.key(seed), 2))  # 0 the chains', 1 the search's
        locations = np.asarray(hunt.finish().library.charts()[0])
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
    precision = 1 / target.group.average(_variances(target, highest[0]))
    kept: list[np.ndarray] = []
    for one in values:
        images = target.group.sign * one[target.group.order]
        apart = np.sum((images[:, None] - np.stack([values[0], *kept])) ** 2 * precision, axis=-1)
        if not kept or apart[:, 1:].min() > 1:  # an image of what is there already tells nothing new
            kept.append(images[np.argmin(apart[:, 0])])
    return Fold(target.group, np.stack(kept[:MOST]), precision)


def _variances(target: Target, location: Float[Array, " dim"]) -> Float[np.ndarray, " size"]:
    """Of the values, by the curvature at a mode."""
    diagonal = target.dim >= DIAGONAL_FROM
    precision = np.asarray(precision_at(target, location, diagonal=diagonal))
    slopes = np.asarray(jax.jacfwd(target.values)(location))
    if diagonal:
        spread = slopes**2 @ _safe(precision)
    else:
        values, vectors = np.linalg.eigh(0.5 * (precision + precision.T))
        spread = (slopes @ vectors) ** 2 @ _safe(values)
    return np.where(spread > 0, spread, 1.0)


def _safe(precision: np.ndarray) -> np.ndarray:
    """Variances; directions without curvature count as flat as the flattest that has some."""
    least = 1e-6 * np.max(np.abs(precision), initial=1e-300)
    return 1 / np.maximum(np.abs(np.nan_to_num(precision)), least)
