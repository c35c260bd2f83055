"""Whether a density has the symmetries that were declared of it."""

from functools import partial
from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp
import numpy as np

from whmc._shapes import Array, Float, Int
from whmc.keys import Stream, child, stream_key
from whmc.target.counted import count

if TYPE_CHECKING:
    from whmc.target.target import Target

NEAR = 1e-6
"""Relative difference of log densities that rounding explains, also through a constraint and back."""


NUM_DRAWN = 64
"""Points of the start region, of which the likeliest are compared with their images."""


def likely_starts(target: "Target", key: Array) -> Float[Array, "4 dim"]:
    """The likeliest of some points of the start region."""
    points = jnp.asarray(target.draw_starts(key, NUM_DRAWN))
    count(NUM_DRAWN)
    heights = jax.jit(jax.vmap(target))(points)
    return points[jnp.argsort(jnp.where(jnp.isfinite(heights), -heights, jnp.inf))[:4]]


def require_symmetric(target: "Target", points: Float[Array, "n dim"]) -> None:
    """At the points each declared symmetry g keeps the density: log pi(g x) + log |det dg/dx| = log pi(x)."""
    for element, symmetry in enumerate(target.group.generators, start=1):
        before, after = map(np.asarray, _before_and_after(target, element, points))
        count(len(before) + len(after))
        wrong = ~np.isclose(before, after, rtol=NEAR, atol=NEAR) & np.isfinite(before)
        if wrong.any():
            n = int(np.argmax(wrong))
            raise ValueError(
                f"the density is not symmetric under {symmetry}: its log changes from {before[n]:.8g} to "
                f"{after[n]:.8g}; name all values that belong to a component, and look for priors or data that tell "
                "components apart"
            )


@partial(jax.jit, static_argnums=0)
def _before_and_after(
    target: "Target", element: Int[Array, ""] | int, points: Float[Array, "n dim"]
) -> tuple[Float[Array, " n"], Float[Array, " n"]]:
    def image(position: Float[Array, " dim"]) -> Float[Array, " dim"]:
        return target.image(element, position)

    after = jax.vmap(target)(jax.vmap(image)(points))
    if target.constrained:  # else the map is a permutation with signs
        after += jax.vmap(lambda point: jnp.linalg.slogdet(jax.jacfwd(image)(point))[1])(points)
    return jax.vmap(target)(points), after


def symmetry_key(seed: int) -> Array:
    """Of the points at which symmetries are checked."""
    return child(stream_key(seed, Stream.SYMMETRY_CHECK), 0)
