"""Folding: of all images of a mode under the symmetries of a density, one is sampled.

A group G of maps that leave π unchanged makes |G| images of every mode. Folding keeps one: for any h > 0,

    π~(x) = π(x) |G| h(x) / Σ_g h(g x)

has the evidence of π, because the shares of all images of a point add up to |G|; and where X ~ π~ and g is uniform on
G, g X ~ π exactly. So a jump between images costs nothing and is never rejected: it is made when draws are unfolded.

h has a bump at one representative a_k of each mode. With one diagonal precision Λ that G leaves unchanged,

    h(x) = Σ_k exp(a_k·Λx - a_k·Λa_k / 2)

is a mixture of Gaussians without the factor that all images share. Between the images of one Gaussian mode of that
precision h(x) / Σ_g h(g x) is the exact responsibility of its own, and π~ is that one Gaussian; elsewhere it is
smooth, with slopes that stay bounded.
"""

import dataclasses
from functools import cached_property, partial

import jax
import jax.numpy as jnp
import numpy as np

from whmc._shapes import Array, Float, Int
from whmc.target.symmetry import Group
from whmc.target.target import Target


@dataclasses.dataclass(frozen=True, eq=False)
class Fold:
    """h as data: its bumps a_k (rows) and the diagonal of Λ, in the values that the symmetries permute."""

    anchors: Float[np.ndarray, "modes size"]
    precision: Float[np.ndarray, " size"]


@dataclasses.dataclass(frozen=True, eq=False)
class Shares:
    """|G| h(v) / Σ_g h(g v): the share of the density that a fold leaves to a point with values v."""

    group: Group
    fold: Fold

    @cached_property
    def _slopes(self) -> Float[np.ndarray, "elements modes size"]:
        """Row (g, k) times v is a_k·Λ(g v)."""
        pulled = self.fold.anchors * self.fold.precision
        slopes = np.zeros((len(self.group), *pulled.shape))
        for row, order, sign in zip(slopes, self.group.order, self.group.sign, strict=True):
            row[:, order] = sign * pulled
        return slopes

    def log_heights(self, values: Float[Array, " size"]) -> Float[Array, " elements"]:
        """log h(g v) for every g."""
        offset = 0.5 * np.sum(self.fold.anchors**2 * self.fold.precision, axis=1)
        rows = jnp.asarray(self._slopes, values.dtype) @ values - jnp.asarray(offset, values.dtype)
        return jax.nn.logsumexp(rows, axis=1)

    def log_share(self, values: Float[Array, " size"]) -> Float[Array, ""]:
        """log of |G| h(v) / Σ_g h(g v)."""
        heights = self.log_heights(values)
        return jnp.log(jnp.asarray(float(len(self.group)), values.dtype)) + heights[0] - jax.nn.logsumexp(heights)

    def nearest(self, values: Float[Array, " size"]) -> Int[Array, ""]:
        """The g that takes a point to the image with the largest share."""
        return jnp.argmax(self.log_heights(values))


@jax.tree_util.register_static
@dataclasses.dataclass(frozen=True, eq=False, init=False)
class FoldedTarget(Target):
    """π~: a target with symmetries, of which one image of every mode is kept. `sample` and `find_modes` make it.

    whole: the target as the model writes it, with all images.
    """

    shares: Shares = dataclasses.field(init=False, repr=False)
    whole: Target = dataclasses.field(init=False, repr=False)

    def __init__(self, target: Target, fold: Fold) -> None:
        # the same space, starts and symmetries, without checking them again: only the density differs
        vars(self).update(vars(target), shares=Shares(target.group, fold), whole=target)

    @property
    def fold(self) -> Fold:
        return self.shares.fold

    def __call__(self, position: Float[Array, " dim"]) -> Float[Array, ""]:
        """log π~ at a flat position."""
        return super().__call__(position) + self.shares.log_share(self.values(position))

    def home(self, positions: Float[np.ndarray, "n dim"]) -> Float[np.ndarray, "n dim"]:
        """The image of each position that the fold keeps."""
        return np.asarray(_homes(self, jnp.asarray(positions)))

    def images(self, position: Float[np.ndarray, " dim"]) -> Float[np.ndarray, "elements dim"]:
        """All images of a position, itself first."""
        return np.asarray(_images(self, jnp.asarray(position)))


@partial(jax.jit, static_argnums=0)
def _homes(target: FoldedTarget, positions: Float[Array, "n dim"]) -> Float[Array, "n dim"]:
    nearest = target.shares.nearest
    return jax.vmap(lambda position: target.image(nearest(target.values(position)), position))(positions)


@partial(jax.jit, static_argnums=0)
def _images(target: FoldedTarget, position: Float[Array, " dim"]) -> Float[Array, "elements dim"]:
    return jax.vmap(lambda element: target.image(element, position))(jnp.arange(len(target.group)))
