"""Log evidence from evaluations that were made anyway: bridge sampling, and work."""

import dataclasses

import numpy as np
from jaxtyping import Float

from whmc.estimate.weights import standard_error


@dataclasses.dataclass(frozen=True)
class Evidence:
    """log of the integral of the target's density as it is written. `overlap`: share of what the optimal bridge
    would have if the two sets of draws were of one law; near zero the estimate hangs on few draws."""

    log_evidence: float
    se: float
    overlap: float
    method: str


NOTHING = Evidence(np.nan, np.nan, 0.0, "none")


def bridge(draws: Float[np.ndarray, "chains draws"], proposals: Float[np.ndarray, "chains draws"]) -> Evidence:
    """Z by the optimal bridge (Meng and Wong 1996) between the draws and the independence move's proposals.

    Both are given as log w, w = pi/q, -inf where pi is zero. With s1, s2 the shares of the two, Z solves

        Z = mean_q[ w/(s1 w + s2 Z) ] / mean_pi[ 1/(s1 w + s2 Z) ].

    A proposal that was accepted is also a draw, so the error is that of the two means' difference, step by step.
    """
    if not np.any(np.isfinite(proposals)):
        return NOTHING
    log_z = float(np.median(draws))
    for _ in range(200):
        there, here = _shares(proposals - log_z), 1 - _shares(draws - log_z)
        change = float(np.log(there.mean()) - np.log(here.mean()))
        log_z += change
        if abs(change) < 1e-10:
            break
    difference = there / there.mean() - here / here.mean()
    se = float(standard_error(difference[..., None])[0])
    # twice the mean: one where w is constant, nil where no proposal lies near a draw
    return Evidence(log_z, se, float(2 * there.mean()), "bridge")


def _shares(log_ratio: np.ndarray) -> np.ndarray:
    """w/(w + Z): how far a point looks like a draw rather than a proposal."""
    return 0.5 * (1 + np.tanh(0.5 * log_ratio))


def acceptance_ratio(forward: Float[np.ndarray, " n"], reverse: Float[np.ndarray, " m"]) -> tuple[float, float]:
    """log(Z1/Z0) from the work of going from 0 to 1 and from 1 to 0 (Bennett 1976), with its standard error.

    It solves sum_F f(M + W_F - x) = sum_R f(-M + W_R + x) with f the Fermi function, W reduced work, x = -log(Z1/Z0),
    M = log(n/m).
    """
    forward, reverse = forward[~np.isnan(forward)], reverse[~np.isnan(reverse)]
    if len(forward) < 2 or len(reverse) < 2:
        return np.nan, np.nan
    offset = np.log(len(forward) / len(reverse))

    def sides(x: float) -> tuple[np.ndarray, np.ndarray]:
        return _shares(-(offset + forward - x)), _shares(-(-offset + reverse + x))

    low, high = (
        float(v) for v in (min(np.min(forward), -np.max(reverse)) - 50, max(np.max(forward), -np.min(reverse)) + 50)
    )
    if not (np.isfinite(low) and np.isfinite(high)):
        finite = np.concatenate([forward[np.isfinite(forward)], -reverse[np.isfinite(reverse)]])
        if len(finite) == 0:
            return np.nan, np.nan
        low, high = float(finite.min() - 50), float(finite.max() + 50)
    for _ in range(100):
        middle = 0.5 * (low + high)
        there, back = sides(middle)
        low, high = (middle, high) if there.sum() < back.sum() else (low, middle)
    there, back = sides(0.5 * (low + high))
    if there.mean() == 0 or back.mean() == 0:
        return np.nan, np.nan
    variance = sum(side.var(ddof=1) / len(side) / side.mean() ** 2 for side in (there, back))
    return -0.5 * (low + high), float(np.sqrt(variance))
