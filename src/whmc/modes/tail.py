"""Tails: charts whose coordinates have heavy tails, each its own, in closed form both ways.

In the whitened coordinates z = L^{-1} (theta - mu) of a chart, with h_j >= 0,

    h z² = exp(h x²) - 1,     h x² = log(1 + h z²),     z and x of one sign, coordinate by coordinate.

A Gaussian x becomes a z that has nearly Student's law with 1/h degrees of freedom (Wallace 1959): its density falls off
like |z|^{-1-1/h}. With W = h x² and e(W) = (exp(W) - 1)/W,

    z = x e(W)^{1/2},     log|dz/dx| = sum_j  W_j - log e(W_j)/2.

W is cut at h `REACH`²: further out z grows in proportion to x, so that nothing overflows.

Kernels work with displacements d = L x. There theta - mu = L z(L^{-1} d), and a score g at theta is pulled back to d by

    L^{-T} J L^T g,     J = diag dz/dx.
"""

from typing import Any

import jax.numpy as jnp

from whmc._pytree import pytree
from whmc._shapes import Array, Float

REACH = 8.0
"""Standard deviations of x up to which tails are heavy: a Gaussian has 1e-15 of its mass beyond."""

NO_TAIL = 1e-8
"""W below which the map is the identity but for rounding."""


def _log_growth(w: Any) -> Any:
    """log e(W) = log((exp(W) - 1)/W)."""
    some = jnp.where(w > NO_TAIL, w, 1.0)
    return jnp.where(w > NO_TAIL, jnp.log(jnp.expm1(some) / some), 0.5 * w)


def _out(heaviness: Any, x: Any) -> tuple[Any, Any]:
    """z of x, and W."""
    w = heaviness * jnp.minimum(x * x, REACH**2)
    return x * jnp.exp(0.5 * _log_growth(w)), w


def _back(heaviness: Any, z: Any) -> tuple[Any, Any]:
    """x of z, and W."""
    w = jnp.minimum(jnp.log1p(heaviness * z * z), heaviness * REACH**2)
    return z * jnp.exp(-0.5 * _log_growth(w)), w


def _inside(heaviness: Any, w: Any) -> Any:
    """Whether W is not cut."""
    return w < heaviness * REACH**2


def _log_slope(heaviness: Any, w: Any) -> Any:
    """log dz/dx of each coordinate."""
    growth = 0.5 * _log_growth(w)
    return jnp.where(_inside(heaviness, w), w - growth, growth)


def _log_volume(heaviness: Any, w: Any) -> Any:
    """log|dz/dx|, all coordinates together."""
    return jnp.sum(_log_slope(heaviness, w), axis=-1)


def _slopes(heaviness: Any, x: Any, w: Any) -> tuple[Any, Any]:
    """dz/dx and the gradient in x of log|dz/dx|, which is 2 h x (1 + (1/W - 1/(1 - exp(-W)))/2)."""
    some = jnp.where(w > NO_TAIL, w, 1.0)
    tilt = jnp.where(w > NO_TAIL, 1 / some + 1 / jnp.expm1(-some), -0.5)
    swell = jnp.where(_inside(heaviness, w), 2 * heaviness * x * (1 + 0.5 * tilt), 0.0)
    return jnp.exp(_log_slope(heaviness, w)), swell


@pytree
class Tails:
    """The tails of all charts of a library."""

    heaviness: Float[Array, "capacity dim"]

    def straightened(self, z: Float[Array, "capacity dim"]) -> tuple[Float[Array, " n"], Float[Array, " n"]]:
        """|x|² and log|dz/dx| in every chart, from the whitened coordinates z of each."""
        x, w = _back(self.heaviness, z)
        return jnp.sum(x * x, axis=-1), _log_volume(self.heaviness, w)


@pytree
class Tail:
    """The tails of one chart, as kernels need them: h, and the chart's L and L^{-1}."""

    heaviness: Float[Array, " dim"]
    scale: Float[Array, "dim dim"]
    inverse_scale: Float[Array, "dim dim"]

    def bent(self, displacement: Float[Array, " dim"]) -> Float[Array, " dim"]:
        """theta - mu of a displacement d."""
        return self.scale @ _out(self.heaviness, self.inverse_scale @ displacement)[0]

    def straight(self, offset: Float[Array, " dim"]) -> Float[Array, " dim"]:
        """The displacement d of theta - mu."""
        return self.scale @ _back(self.heaviness, self.inverse_scale @ offset)[0]

    def log_volume(self, offset: Float[Array, " dim"]) -> Float[Array, ""]:
        """log|dz/dx| at theta - mu."""
        w = _back(self.heaviness, self.inverse_scale @ offset)[1]
        return _log_volume(self.heaviness, w)

    def pulled(self, displacement: Float[Array, " dim"], score: Float[Array, " dim"]) -> Float[Array, " dim"]:
        """The gradient in d of log pi(theta) + log|dz/dx|, from the score at theta."""
        x = self.inverse_scale @ displacement
        w = _out(self.heaviness, x)[1]
        growth, swell = _slopes(self.heaviness, x, w)
        return self.inverse_scale.T @ (growth * (self.scale.T @ score) + swell)
