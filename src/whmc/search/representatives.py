"""Which image of its modes a target with symmetries keeps: see `whmc.target.folding`."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

from whmc._shapes import Array, Float
from whmc.keys import Stream, generator, stream_key
from whmc.modes.curvature import expand, mended, spread
from whmc.modes.library import DIAGONAL_FROM
from whmc.search.finders import MultiStart
from whmc.search.mode_search import run_finder, start_search
from whmc.search.report import require_modes
from whmc.target.check_symmetry import likely_starts, require_symmetric, symmetry_key
from whmc.target.folding import Fold, FoldedTarget
from whmc.target.rows import logdensities
from whmc.target.target import Target

NUM_STARTS = 64
"""Descents for the representatives; a mode that they miss is folded with the others, by the nearest representative."""

MAX_REPRESENTATIVES = 16
"""Highest first."""

NUM_AROUND = 4
"""Points around given modes at which symmetries are checked."""


def fold_target(target: Target, seed: int, locations: Float[np.ndarray, "modes dim"] | None = None) -> Target:
    """A target with symmetries as a FoldedTarget, any other as it is.

    Checks the symmetries first. Representatives are the given locations, or those that a short search finds.
    """
    if not target.symmetries or target.fold is not None:
        return target
    key = symmetry_key(seed)
    if target.starts is not None:
        require_symmetric(target, likely_starts(target, key))
    elif locations is not None:
        require_symmetric(target, jnp.asarray(_around(target, locations, key)))
    if locations is None:
        search = start_search(target, MAX_REPRESENTATIVES * len(target.group))
        search = run_finder(search, target, MultiStart(NUM_STARTS), stream_key(seed, Stream.FOLDING))
        require_modes(search)
        locations = np.stack([peak.location for peak in search.peaks])
    return FoldedTarget(target, _fold(target, locations))


def _fold(target: Target, locations: Float[np.ndarray, "modes dim"]) -> Fold:
    """Bumps at the highest location and, of each other mode, at the image that is nearest to it.

    The precision is the inverse variance at the highest, averaged over the group.
    """
    highest = locations[np.argsort(-logdensities(target, locations))]
    values = np.asarray(_values(target, highest))
    precision = 1 / target.group.average(_variances(target, highest))
    kept: list[np.ndarray] = []
    for one in values:
        images = target.group.sign * one[target.group.order]
        apart = np.sum((images[:, None] - np.stack([values[0], *kept])) ** 2 * precision, axis=-1)
        if not kept or apart[:, 1:].min() > 1:  # an image of what is there already tells nothing new
            kept.append(images[np.argmin(apart[:, 0])])
    return Fold(np.stack(kept[:MAX_REPRESENTATIVES]), precision)


def _around(target: Target, locations: Float[np.ndarray, "modes dim"], key: Array) -> Float[np.ndarray, "num dim"]:
    """Points of the charts of the first modes: at a mode itself a false symmetry may keep the density."""
    few = locations[np.arange(NUM_AROUND) % len(locations)]
    noise = generator(key).standard_normal(few.shape)
    moved = [place + _times(one, _scale(target, place, locations).T) for place, one in zip(few, noise, strict=True)]
    return np.stack(moved)


@partial(jax.jit, static_argnums=0)
def _values(target: Target, locations: Float[Array, "modes dim"]) -> Float[Array, "modes size"]:
    return jax.vmap(target.values)(locations)


def _variances(target: Target, locations: Float[np.ndarray, "modes dim"]) -> Float[np.ndarray, " size"]:
    """Of the values v at the first location: the diagonal of dv/dθ L L^T (dv/dθ)^T."""
    slopes = np.asarray(jax.jacfwd(target.values)(jnp.asarray(locations[0])))
    spreads = np.sum(_times(slopes, _scale(target, locations[0], locations)) ** 2, axis=1)
    return np.where(spreads > 0, spreads, 1.0)


def _scale(
    target: Target, location: Float[np.ndarray, " dim"], all_of_them: Float[np.ndarray, "modes dim"]
) -> np.ndarray:
    """L of the chart at a location, or its diagonal."""
    widest, diagonal = spread(target, all_of_them), target.dim >= DIAGONAL_FROM
    return mended(expand(target, location, diagonal=diagonal).precision, widest=widest).scale


def _times(rows: np.ndarray, scale: np.ndarray) -> np.ndarray:
    """Rows times L, which in high dimension is a diagonal."""
    return rows * scale if scale.ndim == 1 else rows @ scale
