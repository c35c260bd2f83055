"""From the end of a descent to a true stationary point, by Newton steps; what is no mode is told apart."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from whmc.modes.curvature import FLAT, mended, precision_at
from whmc.modes.library import DIAGONAL_FROM, whiten_rows
from whmc.target.target import Target

SAME = 0.1
"""Ends nearer than this many standard deviations (of the peak's own curvature) are one mode. Polished points of one
mode agree to 1e-4; two modes that a chart can tell apart are more than one apart."""

MAX_NEWTON = 20
STATIONARY = 1e-8
"""A point is stationary when the next Newton step promises less than this much log density."""


@dataclasses.dataclass(frozen=True)
class Peak:
    """A mode: a local maximum of the log density, with the scale of its curvature.

    A peak with flat directions is a point of a ridge, a ring or a shell: one of many that make up a mode.
    """

    location: Float[np.ndarray, " dim"]
    logdensity: float
    scale: Float[np.ndarray, "dim dim"] | Float[np.ndarray, " dim"]
    num_flat: int = 0
    start: Float[np.ndarray, " dim"] | None = None  # where a chain may start, if not at the location
    reach: float = SAME  # standard deviations within which a point is this mode

    @property
    def log_mass(self) -> float:
        """Laplace's approximation of the mode's share of the evidence, in logs."""
        sd = self.scale if self.scale.ndim == 1 else np.diagonal(self.scale)
        return float(self.logdensity + np.sum(np.log(sd)) + 0.5 * len(sd) * np.log(2 * np.pi))

    def distance(self, position: Float[np.ndarray, "n dim"]) -> Float[np.ndarray, " n"]:
        """In standard deviations of the peak's own curvature."""
        return np.linalg.norm(whiten_rows(self.scale, position - self.location), axis=1)


def polish(target: Target, position: Float[np.ndarray, " dim"], *, widest: float) -> Peak | str:
    """The peak that Newton steps reach from `position`, or in one word why there is none."""
    for _ in range(MAX_NEWTON):
        logdensity, score, precision = (np.asarray(part) for part in _expand(target, jnp.asarray(position)))
        if not (np.isfinite(logdensity) and np.all(np.isfinite(score)) and np.all(np.isfinite(precision))):
            return "not finite"
        values, vectors = np.linalg.eigh(0.5 * (precision + precision.T))
        # flat: within rounding of zero, or so little curved that the mode would be ten times the region searched
        curved = np.abs(values) > max(FLAT * np.max(np.abs(values)), (10 * widest) ** -2)
        slope = vectors.T @ score
        # |curvature|: uphill also where the density is not concave
        move = np.where(curved, slope / np.where(curved, np.abs(values), 1.0), 0.0)
        gain = 0.5 * float(slope @ move)
        if gain < STATIONARY:
            break
        moved = _uphill(target, position, vectors @ move, float(logdensity))
        if moved is None:
            return _why(target, position, vectors @ move, widest)
        position = moved
    else:
        return "not stationary"
    if np.any(curved & (values < 0)):
        return "saddle"
    uphill = vectors[:, ~curved] @ slope[~curved]
    if np.linalg.norm(uphill) * widest > 1:
        return _why(target, position, uphill, widest)
    diagonal = target.dim >= DIAGONAL_FROM
    scale = mended(np.diagonal(precision) if diagonal else precision, widest=widest).scale
    return Peak(position, float(logdensity), scale, int(np.sum(~curved)))


def _why(target: Target, position: np.ndarray, uphill: np.ndarray, widest: float) -> str:
    """Why a point from where it goes uphill is no peak: a little further there is no density, or it is not at rest."""
    further = position + 1e-3 * widest * uphill / np.linalg.norm(uphill)
    return "not stationary" if np.isfinite(_value(target, jnp.asarray(further))) else "edge"


def _uphill(target: Target, position: np.ndarray, move: np.ndarray, logdensity: float) -> np.ndarray | None:
    """The longest of eight halvings of the move that does not go down."""
    for halving in range(8):
        trial = position + move / 2**halving
        # a step at the limit of rounding may seem to go down by that much
        if _value(target, jnp.asarray(trial)) >= logdensity - 1e-12 * (1 + abs(logdensity)):
            return trial
    return None


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
