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
    from scipy.special import log_expit, logsumexp  # late: not needed to import whmc

    if not np.any(np.isfinite(proposals)):
        return NOTHING

    def sides(log_z: float) -> tuple[np.ndarray, np.ndarray]:
        """log of w/(w + Z) at the proposals and of Z/(w + Z) at the draws."""
        return log_expit(proposals - log_z), log_expit(log_z - draws)

    def excess(log_z: float) -> float:
        there, here = sides(log_z)
        return float(logsumexp(there) - logsumexp(here))

    # the excess falls with log Z: bisect, since plain iteration of the equation need not converge
    finite = np.concatenate([draws.ravel(), proposals[np.isfinite(proposals)]])
    low, high = float(finite.min()) - 1, float(finite.max()) + 1
    for _ in range(60):
        middle = 0.5 * (low + high)
        low, high = (middle, high) if excess(middle) > 0 else (low, middle)
    log_z = 0.5 * (low + high)
    there, here = (np.exp(side - (logsumexp(side) - np.log(side.size))) for side in sides(log_z))
    se = float(standard_error((there - here)[..., None])[0])
    # twice the mean: one where w is constant, nil where no proposal lies near a draw
    overlap = float(2 * np.exp(logsumexp(sides(log_z)[0]) - np.log(proposals.size)))
    return Evidence(log_z, se, overlap, "bridge")


def acceptance_ratio(forward: Float[np.ndarray, " n"], reverse: Float[np.ndarray, " m"]) -> Evidence:
    """log(Z1/Z0) from the work of going from 0 to 1 and from 1 to 0 (Bennett 1976).

    It solves sum_F f(M + W_F - x) = sum_R f(-M + W_R + x) with f the Fermi function, W reduced work, x = -log(Z1/Z0),
    M = log(n/m).
    """
    from scipy.special import log_expit, logsumexp

    forward, reverse = forward[~np.isnan(forward)], reverse[~np.isnan(reverse)]
    finite = np.concatenate([forward[np.isfinite(forward)], -reverse[np.isfinite(reverse)]])
    if len(forward) < 2 or len(reverse) < 2 or len(finite) == 0:
        return NOTHING
    offset = np.log(len(forward) / len(reverse))

    def sides(x: float) -> tuple[np.ndarray, np.ndarray]:
        return log_expit(x - offset - forward), log_expit(offset - reverse - x)

    low, high = float(finite.min() - 50), float(finite.max() + 50)
    for _ in range(60):
        middle = 0.5 * (low + high)
        there, back = map(logsumexp, sides(middle))
        low, high = (middle, high) if there < back else (low, middle)
    log_sides = sides(0.5 * (low + high))
    means = [float(logsumexp(side) - np.log(len(side))) for side in log_sides]
    if not np.all(np.isfinite(means)):
        return NOTHING
    shares = [np.exp(side - mean) for side, mean in zip(log_sides, means, strict=True)]
    se = float(np.sqrt(sum(share.var(ddof=1) / len(share) for share in shares)))
    return Evidence(-0.5 * (low + high), se, float(2 * np.exp(min(means))), "work")
