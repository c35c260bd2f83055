"""Log evidence from weights w = pi/q that were computed anyway: bridge sampling, and Bennett's form of it for work."""

import dataclasses
from collections.abc import Callable

import numpy as np

from whmc._shapes import Float
from whmc.estimate.effective import effective_draws_of_mean
from whmc.estimate.weights import standard_error

TOLERANCE = 1e-9
"""Of the root, in log Z. Both sides of its equation change by at most as much as log Z does, so their difference at
the root is at most `RESIDUAL`; a larger one means that the equation was not solved."""

RESIDUAL = 1e-6

MAX_DOUBLINGS = 64
"""Of the first step of one, while the root is bracketed: roots further than 1e19 from the bulk are not looked for."""

MAX_HALVINGS = 128


@dataclasses.dataclass(frozen=True)
class Evidence:
    """log of the integral of the target's density as it is written, with its standard error.

    overlap: share of what the optimal bridge would have if the two sets of draws were of one law; near zero the
    estimate depends on few draws. uncovered: share of the draws that lie where no proposal came; it is part of the
    error. num_gradients: gradients spent on this estimate alone.
    """

    log_evidence: float
    se: float
    overlap: float
    method: str
    uncovered: float = 0.0
    num_gradients: int = 0


NOTHING = Evidence(np.nan, np.nan, 0.0, "none")


def bridge(draws: Float[np.ndarray, "chains draws"], proposals: Float[np.ndarray, "chains draws"]) -> Evidence:
    """Z by the optimal bridge (Meng and Wong 1996) between the draws and the independence move's proposals.

    Both are given as log w, w = pi/q, -inf where pi is zero. With s1, s2 the shares of the two, Z solves

        Z = mean_q[ w/(s1 w + s2 Z) ] / mean_pi[ 1/(s1 w + s2 Z) ].

    A proposal that was accepted is also a draw, so the error is that of the two means' difference, step by step.
    `_evidence` adds to it where the proposals do not reach all draws.
    """
    log_z = _root(draws, proposals)
    if log_z is None:
        return NOTHING
    here, there = _shares(draws, proposals, log_z)
    return _evidence(draws, proposals, log_z, _mean_error(there - here), "bridge")


def acceptance_ratio(forward: Float[np.ndarray, "groups n"], reverse: Float[np.ndarray, "chains draws"]) -> Evidence:
    """log(Z1/Z0) from the work of going from 0 to 1 and from 1 to 0 (Bennett 1976).

    It solves sum_F f(M + W_F - x) = sum_R f(-M + W_R + x) with f the Fermi function, W reduced work, x = -log(Z1/Z0),
    M = log(n/m). That is the bridge with log w = -W_F at the draws of 0, and log w = W_R at the draws of 1. Work that
    is not a number belongs to a path that is impossible, as infinite work does: it counts, with weight zero.
    """
    draws, proposals = _without_nan(reverse), -_without_nan(forward)
    log_z = _root(draws, proposals)
    if log_z is None:
        return NOTHING
    here, there = (_mean_error(shares) for shares in _shares(draws, proposals, log_z))
    return _evidence(draws, proposals, log_z, float(np.hypot(here, there)), "work")


def _without_nan(work: np.ndarray) -> np.ndarray:
    return np.where(np.isnan(work), np.inf, work)


def _log_sides(draws: np.ndarray, proposals: np.ndarray, log_z: float) -> tuple[np.ndarray, np.ndarray]:
    """log of s2 Z/(s1 w + s2 Z) at the draws and of s1 w/(s1 w + s2 Z) at the proposals."""
    offset = log_z + np.log(proposals.size / draws.size)
    return -np.logaddexp(0.0, draws - offset), -np.logaddexp(0.0, offset - proposals)


def _log_mean(logs: np.ndarray) -> float:
    """log of the mean of exp(logs), none of which is above zero."""
    highest = float(logs.max())
    return highest + float(np.log(np.mean(np.exp(logs - highest)))) if highest > -np.inf else -np.inf


def _root(draws: np.ndarray, proposals: np.ndarray) -> float | None:
    """log Z for which both sides have the same sum; None if there is none.

    The bracket grows from the median of the finite weights, so that a few absurd ones do not matter: each is a share
    of nought or one, however absurd. A root is returned only if it solves the equation and lies where w allows it:
    see `_within`.
    """
    finite = np.concatenate([draws[np.isfinite(draws)], proposals[np.isfinite(proposals)]])
    if min(draws.size, proposals.size) < 2 or len(finite) == 0:
        return None
    centre = float(np.median(finite))
    near, far = draws - centre, proposals - centre

    def excess(shift: float) -> float:
        """Of the proposals' side over the draws' side; it falls as log Z rises."""
        here, there = (_log_mean(side) + np.log(side.size) for side in _log_sides(near, far, shift))
        return there - here if np.isfinite(here) and np.isfinite(there) else np.nan

    bracket = _bracket(excess)
    if bracket is None:
        return None
    shift = _between(excess, *bracket)
    solved = abs(excess(shift)) < RESIDUAL and _within(near, far, shift)
    return centre + shift if solved else None


def _bracket(excess: Callable[[float], float]) -> tuple[float, float] | None:
    """Two numbers between which a falling function changes its sign, found by doubling steps from zero."""
    first = excess(0.0)
    if np.isnan(first):
        return None
    inner, outer = 0.0, 1.0 if first > 0 else -1.0
    for _ in range(MAX_DOUBLINGS):
        if excess(outer) * first <= 0:
            return min(inner, outer), max(inner, outer)
        inner, outer = outer, 2 * outer
    return None


def _between(excess: Callable[[float], float], low: float, high: float) -> float:
    """Where a falling function is zero, by halving: the sums are cheap, and nothing can go wrong."""
    for _ in range(MAX_HALVINGS):
        middle = 0.5 * (low + high)
        if high - low < TOLERANCE or not low < middle < high:
            break
        low, high = (middle, high) if excess(middle) > 0 else (low, middle)
    return 0.5 * (low + high)


def _within(draws: np.ndarray, proposals: np.ndarray, log_z: float) -> bool:
    """Whether log w allows log Z.

    Z is a mean of w over the proposals and 1/Z one of 1/w over the draws, so log Z lies between the smallest and the
    largest finite log w; lower where some proposals have no density, higher where some draws cannot be proposed.
    """
    usable = np.isfinite(draws), np.isfinite(proposals)
    finite = np.concatenate([draws[usable[0]], proposals[usable[1]]])
    slack = [-np.log(max(float(np.mean(some)), np.finfo(float).tiny)) + TOLERANCE for some in usable]
    return bool(finite.min() - slack[1] <= log_z <= finite.max() + slack[0])


def _shares(draws: np.ndarray, proposals: np.ndarray, log_z: float) -> tuple[np.ndarray, np.ndarray]:
    """Both sides of the equation, each divided by its mean: the relative errors of the means are that of Z."""
    here, there = (np.exp(side - _log_mean(side)) for side in _log_sides(draws, proposals, log_z))
    return here, there


def _mean_error(values: Float[np.ndarray, "chains draws"]) -> float:
    """Standard error of the mean: by batches, by chains, or by effective draws, whichever is largest.

    Batches are blind to what takes longer than a batch, and the spread of few chains is itself uncertain.
    """
    errors = [float(standard_error(values[..., None])[0])]
    if values.size > 1:
        errors.append(float(np.std(values, ddof=1) / np.sqrt(effective_draws_of_mean(values))))
    return float(np.nanmax(errors)) if np.any(np.isfinite(errors)) else np.nan


def _evidence(draws: np.ndarray, proposals: np.ndarray, log_z: float, se: float, method: str) -> Evidence:
    """The estimate with all of its error.

    If w has a finite variance under q, then hardly any draw has a w above sqrt(n) times the largest w of n proposals:
    for P_q(w > c) = c^-2 the largest is about sqrt(n), and P_pi(w > n) about 1/n. Draws beyond that lie where q does
    not reach. Only local moves tell how much mass there is, and they enter and leave such tails so rarely that neither
    batches nor chains show the error. So their share u is an error of its own: without that mass log Z would be lower
    by -log(1 - u).
    """
    uncovered = float(np.mean(draws > proposals.max() + 0.5 * np.log(proposals.size)))
    with np.errstate(divide="ignore"):
        total = float(np.hypot(se, -np.log1p(-uncovered)))
    # twice the smaller mean: one where w is constant, nil where no proposal lies near a draw
    overlap = 2 * min(float(np.exp(_log_mean(side))) for side in _log_sides(draws, proposals, log_z))
    return Evidence(log_z, total, overlap, method, uncovered) if overlap > 0 else NOTHING
