"""From the end of a descent to a true stationary point, by Newton steps; ends that are not modes are classified."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from whmc.modes.curvature import FLAT_SHARE, mended, precision_at
from whmc.modes.library import DIAGONAL_FROM, whiten_rows
from whmc.target.target import Target

SAME_MODE_SD = 0.1
"""Ends nearer than this many standard deviations (of the peak's own curvature) are one mode. Polished points of one
mode agree to 1e-4; two modes that a chart can tell apart are more than one apart."""

MAX_NEWTON_STEPS = 20
MAX_HALVINGS = 8
STATIONARY_GAIN = 1e-8
"""A point is stationary when the next Newton step promises less than this much log density."""

GRADIENTS_PER_PRODUCT = 2
"""What a product of the Hessian with a vector counts as, in gradients: a derivative of a gradient takes about twice its
time. A log density alone counts as one gradient."""


@dataclasses.dataclass(frozen=True)
class Peak:
    """A mode: a location, usually a local maximum of the log density, with the scale of its chart.

    num_flat: directions without curvature. A peak that has some is a point of a ridge, a ring or a shell: one of many
        that make up a mode.
    start: where a chain may start, if not at the location.
    reach: standard deviations within which a point belongs to this mode.
    at_peak: whether the location is a polished maximum with the scale of its curvature, as opposed to moments of draws
        or a chart that was given. Laplace's formula holds for polished maxima only.
    """

    location: Float[np.ndarray, " dim"]
    logdensity: float
    scale: Float[np.ndarray, "dim dim"] | Float[np.ndarray, " dim"]
    num_flat: int = 0
    start: Float[np.ndarray, " dim"] | None = None
    reach: float = SAME_MODE_SD
    at_peak: bool = True

    @property
    def log_laplace(self) -> float:
        """Laplace's approximation of the mode's part of the evidence, log pi(mu) + log |L| + D/2 log 2 pi."""
        sd = self.scale if self.scale.ndim == 1 else np.diagonal(self.scale)
        return float(self.logdensity + np.sum(np.log(sd)) + 0.5 * len(sd) * np.log(2 * np.pi))

    def distance(self, position: Float[np.ndarray, "n dim"]) -> Float[np.ndarray, " n"]:
        """In standard deviations of the peak's own chart."""
        return np.linalg.norm(whiten_rows(self.scale, position - self.location), axis=1)


def polish(target: Target, position: Float[np.ndarray, " dim"], *, widest: float) -> tuple[Peak | str, int]:
    """The peak that Newton steps reach from `position`, or in a word why there is none; and the gradients spent."""
    cost = 0
    for _ in range(MAX_NEWTON_STEPS):
        logdensity, score, precision = (np.asarray(part) for part in _expand(target, jnp.asarray(position)))
        cost += 1 + GRADIENTS_PER_PRODUCT * target.dim
        if not (np.isfinite(logdensity) and np.all(np.isfinite(score)) and np.all(np.isfinite(precision))):
            return "not finite", cost
        values, vectors = np.linalg.eigh(0.5 * (precision + precision.T))
        # flat: within rounding of zero, or so little curved that the mode would be ten times the region searched
        curved = np.abs(values) > max(FLAT_SHARE * np.max(np.abs(values)), (10 * widest) ** -2)
        slope = vectors.T @ score
        # |curvature|: uphill also where the density is not concave
        move = np.where(curved, slope / np.where(curved, np.abs(values), 1.0), 0.0)
        gain = 0.5 * float(slope @ move)
        if gain < STATIONARY_GAIN:
            break
        moved, tried = _uphill(target, position, vectors @ move, float(logdensity))
        cost += tried
        if moved is None:
            return _why(target, position, vectors @ move, widest), cost
        position = moved
    else:
        return _why(target, position, score, widest), cost
    if np.any(curved & (values < 0)):
        return "saddle", cost
    uphill = vectors[:, ~curved] @ slope[~curved]
    if np.linalg.norm(uphill) * widest > 1:
        return _why(target, position, uphill, widest), cost
    diagonal = target.dim >= DIAGONAL_FROM
    scale = mended(np.diagonal(precision) if diagonal else precision, widest=widest).scale
    return Peak(position, float(logdensity), scale, int(np.sum(~curved))), cost


def _why(target: Target, position: np.ndarray, uphill: np.ndarray, widest: float) -> str:
    """Why a point from where it goes uphill is not a peak.

    A little further there is no density; or it still rises far outside of the region; or it is not at rest.
    """
    way = uphill / np.linalg.norm(uphill)
    size = widest + float(np.linalg.norm(position))
    here, near, far, farther = (
        _value(target, jnp.asarray(position + length * way)) for length in (0.0, 1e-3 * widest, 1e3 * size, 1e6 * size)
    )
    if not np.isfinite(near):
        return "edge"
    return "runs away" if here < far < farther else "not stationary"


def _uphill(target: Target, position: np.ndarray, move: np.ndarray, logdensity: float) -> tuple[np.ndarray | None, int]:
    """The longest of some halvings of the move that does not go down, and how many were tried."""
    for halving in range(MAX_HALVINGS):
        trial = position + move / 2**halving
        # a step at the limit of rounding may seem to go down by that much
        if _value(target, jnp.asarray(trial)) >= logdensity - 1e-12 * (1 + abs(logdensity)):
            return trial, halving + 1
    return None, MAX_HALVINGS


def _value(target: Target, position: Float[Array, " dim"]) -> float:
    return float(_logdensity(target, position))


@jax.jit
def _logdensity(target: Target, position: Float[Array, " dim"]) -> Float[Array, ""]:
    return target(position)


@jax.jit
def _expand(target: Target, position: Float[Array, " dim"]) -> tuple[Array, Array, Array]:
    """Log density, score and -Hessian."""
    logdensity, score = jax.value_and_grad(target.__call__)(position)
    return logdensity, score, precision_at(target, position, diagonal=False)
