"""What a run noticed of its density, beside the draws: for alarms that numbers alone cannot raise."""

import dataclasses

import jax.numpy as jnp
import numpy as np

from whmc._shapes import Float
from whmc.target.proper import reaches
from whmc.target.rows import evaluate_rows
from whmc.target.target import Target

RESOLUTIONS = 1024
"""Numbers of float64 between a value and its bound, below which it counts as within rounding of the bound."""


@dataclasses.dataclass(frozen=True)
class AtBound:
    """The share of the draws in which a coordinate lies within rounding of one of its bounds."""

    name: str
    bound: float
    share: float


@dataclasses.dataclass(frozen=True)
class Noticed:
    """improper: ends of coordinates along which the density has no finite integral, in words. slopeless: the share of
    the draws at which the score is not finite, though the density is, and `slopeless_at`, one of them, flat
    and inside the bounds. at_bound: coordinates whose draws crowd at a bound.
    """

    improper: tuple[str, ...] = ()
    slopeless: float = 0.0
    slopeless_at: Float[np.ndarray, " dim"] | None = None
    at_bound: tuple[AtBound, ...] = ()


def slopeless(target: Target, draws: Float[np.ndarray, "n dim"]) -> tuple[float, Float[np.ndarray, " dim"] | None]:
    """The share of some draws at which the score is not finite, and the first of them, if any."""
    found = evaluate_rows(target, draws)
    without = found.failed & np.isfinite(found.logdensity)
    if not without.any():
        return 0.0, None
    return float(np.mean(without)), np.asarray(target.inside(jnp.asarray(draws[np.argmax(without)])))


def at_bounds(target: Target, draws: Float[np.ndarray, "n dim"]) -> tuple[AtBound, ...]:
    """Coordinates with draws so near to a bound that float64 has few numbers between the two.

    Beyond the last of them there is no density, whatever the mathematics say. At a bound of zero there is no such end:
    float64 has numbers down to 1e-308.
    """
    if target.bounds is None:
        return ()
    found = []
    for n, name in enumerate(target.coordinates):
        edges = target.bounds.low[n], target.bounds.high[n]
        for bound, reach in zip(edges, reaches(target, n, RESOLUTIONS), strict=True):
            share = float(np.mean(np.sign(reach) * draws[:, n] > abs(reach))) if np.isfinite(reach) else 0.0
            if share > 0:
                found.append(AtBound(name, float(bound), share))
    return tuple(found)
