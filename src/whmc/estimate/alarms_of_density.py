"""Alarms that the density itself raises: where it fails, where float64 ends, and where its integral is infinite."""

from collections.abc import Sequence

import numpy as np

from whmc._shapes import Float
from whmc.estimate.alarms import Alarm
from whmc.target.noticed import AtBound

FAILED_SHARE = 0.01
"""Share of evaluations that may fail without an alarm."""


def failures(
    num_failed: int, num_gradients: int, failed_at: Float[np.ndarray, " dim"] | None, slopeless: float
) -> list[Alarm]:
    """Evaluations that gave NaN or +inf, with a position of one if it is known.

    slopeless: the share of draws without a score, which evaluations that failed may be due to as well; then only such a
    position shows that densities fail.
    """
    if num_failed <= FAILED_SHARE * num_gradients or (slopeless > 0 and failed_at is None):
        return []
    return [
        Alarm(
            "evaluations failed",
            num_failed / max(num_gradients, 1),
            f"{num_failed} of {num_gradients} evaluations gave NaN, +inf or a gradient that is not finite"
            f"{_such_as(failed_at)}; where the log density itself was not finite they were rejected",
            "Find them with print(target.check()), and return -inf outside the support",
        )
    ]


def gradient_fails(share: float, at: Float[np.ndarray, " dim"] | None) -> list[Alarm]:
    """Draws at which the gradient is not finite, though the density is."""
    if share == 0:
        return []
    return [
        Alarm(
            "gradient not finite",
            share,
            f"the gradient is NaN or infinite at {share:.2g} of the draws, where the log density is finite"
            f"{_such_as(at)}. The force counts as zero there: that costs effective draws, and no mass",
            "Mostly a branch of jnp.where that is not taken: give it an argument at which its gradient is finite, "
            "jnp.where(ok, f(jnp.where(ok, x, 1.0)), 0.0)",
        )
    ]


def improper(ends: Sequence[str]) -> list[Alarm]:
    """A density that has no finite integral."""
    if not ends:
        return []
    return [
        Alarm(
            "improper",
            float(len(ends)),
            f"the density does not fall off along {' or '.join(ends)}, so its integral is infinite: there is no "
            "evidence and no distribution to draw from, and all numbers here depend on where float64 ends",
            "Give a prior that falls off there, or bounds that keep away from there",
        )
    ]


CROWDED_SHARE = 1e-3
"""Share of the draws within rounding of a bound from which mass beyond it is lost: where that share is p, and density
goes as a power of the distance, as much as p may lie where float64 has no number left."""


def at_bound(seen: Sequence[AtBound]) -> list[Alarm]:
    """Draws that lie within rounding of a bound of their coordinate."""
    crowded = [one for one in seen if one.share > CROWDED_SHARE]
    if not crowded:
        return []
    worst = max(crowded, key=lambda one: one.share)
    others = f", and {len(crowded) - 1} more such bounds" if len(crowded) > 1 else ""
    return [
        Alarm(
            "bound reached",
            worst.share,
            f"{worst.share:.2%} of the draws of {worst.name} lie within rounding of its bound {worst.bound:g}{others}: "
            "float64 has hardly a number between the two, so mass beside the bound is cut off",
            "Write the density in the distance from that bound, with 0 as the bound: float64 goes down to 1e-308 there",
        )
    ]


def _such_as(at: Float[np.ndarray, " dim"] | None) -> str:
    """A position: a number for each coordinate."""
    if at is None:
        return ""
    return f", such as at {np.array2string(at, precision=6, threshold=8)}"
