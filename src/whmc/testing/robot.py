"""The planar robot of Arenz, Neumann and Zhong (2018): two bundles of solutions on a thin surface, by reflection."""

import jax.numpy as jnp
import numpy as np
from scipy.special import ndtri

from whmc._shapes import Array, Float
from whmc.target.target import Target
from whmc.testing.targets import Shape

JOINTS, GOAL, NOISE = 10, 7.0, 0.01
SPREAD = np.array([1.0] + [0.2] * 9)

BENT = np.array([0.07, 0.17, 0.27, 0.33, 0.35, 0.29, 0.21, 0.11])
"""Mean angles of joints 1 to 4 and 6 to 9 in one half of the posterior: what proposals are centred at."""

LOG_EVIDENCE = -11.67953
SQUARES = np.array([1.14034, 0.045096, 0.070608, 0.109427, 0.146912, 0.166293, 0.158034, 0.126157, 0.085723, 0.053479])
"""E θ², and the log evidence, by `reached` with twelve scrambled Sobol sequences of 2¹⁹ points: all to 1e-5."""

BOUND = 8.0
"""What the weight of a proposal is at most, in units of its mean: the largest of two million was 6.8."""


def planar_robot() -> Shape:
    """Angles of ten joints, N(0, 1) the first and N(0, .2²) the others, given that the end is at (7, 0) ± .01.

    Links have length 1. A reflection turns θ into -θ, so all that is odd has mean zero and each half weighs 1/2.
    """

    def logdensity(angles: Float[Array, " 10"]) -> Float[Array, ""]:
        turned = jnp.cumsum(angles)
        miss = jnp.stack([jnp.sum(jnp.cos(turned)) - GOAL, jnp.sum(jnp.sin(turned))]) / NOISE
        prior = -0.5 * jnp.sum((angles / jnp.asarray(SPREAD)) ** 2) - np.sum(np.log(SPREAD))
        return prior - 0.5 * jnp.sum(miss**2) - 2 * np.log(NOISE) - 0.5 * (JOINTS + 2) * np.log(2 * np.pi)

    def draw(rng: np.random.Generator, n: int) -> np.ndarray:
        # a proposal by its weight over a bound, and one of its solutions by theirs
        kept: list[np.ndarray] = []
        while sum(map(len, kept)) < n:
            angles, weight = reached(rng.uniform(size=(4 * n, 11)))
            total = weight.sum(axis=0)
            pick = np.flatnonzero(rng.uniform(size=4 * n) * BOUND * np.exp(LOG_EVIDENCE) < total)
            which = np.sum(rng.uniform(size=len(pick)) * total[pick] > np.cumsum(weight[:, pick], axis=0), axis=0)
            kept.append(angles[which, pick])
        return np.concatenate(kept)[:n]

    def statistics(angles: Float[Array, " 10"]) -> dict[str, Array]:
        bent = jnp.sum(angles[1:]) > 0
        return {"weight": bent.astype(angles.dtype), "θ": angles, "θ²": angles**2}

    starts = (-4 * SPREAD, 4 * SPREAD)
    expected = {"weight": 0.5, "θ": np.zeros(JOINTS), "θ²": SQUARES}
    target = Target(logdensity, dim=JOINTS, starts=starts)
    return Shape("planar robot", target, draw, LOG_EVIDENCE, statistics, expected, 2)


def reached(
    uniform: Float[np.ndarray, "n 11"], noise: float = NOISE
) -> tuple[Float[np.ndarray, "6 n 10"], Float[np.ndarray, "6 n"]]:
    """Angles that reach the noisy goal exactly, and their weights, whose sum over six has the evidence as its mean.

    Eight of the angles are proposed, joints 0 and 5 solved for. Before joint 0 turns it, the arm ends at A + B e^{i(S +
    θ_5)}: links 0 to 4, the angle at which they end, and links 5 to 9. With ψ between the two parts the distance r of
    the end has r² = |A|² + |B|² + 2 |A| |B| cos ψ, so there are two solutions, and r dr dθ_0 = |A| |B| |sin ψ| dθ_5
    dθ_0 is their area. θ_0 may turn once more, to each side. Proposals: N(±BENT, .235²) and, one in ten, the prior.
    """
    spread, part = 0.235, 0.1
    z = ndtri(uniform)
    sign = np.where(uniform[:, 8] < (1 + part) / 2, 1, -1)[:, None]
    others = np.where(uniform[:, 8:9] < part, SPREAD[1] * z[:, :8], sign * (BENT + spread * z[:, :8]))
    log_prior = _log_normal(others, 0.0, SPREAD[1]).sum(axis=1)
    log_halves = [np.sum(_log_normal(others, centre, spread), axis=1) for centre in (BENT, -BENT)]
    log_proposal = np.logaddexp(np.log(part) + log_prior, np.log((1 - part) / 2) + np.logaddexp(*log_halves))

    goal = GOAL + noise * (z[:, 9] + 1j * z[:, 10])
    near = np.exp(1j * np.cumsum(others[:, :4], axis=1))
    far = np.exp(1j * np.cumsum(others[:, 4:], axis=1))
    lower, upper, end = 1 + near.sum(axis=1), 1 + far.sum(axis=1), near[:, -1]
    lengths = np.abs(lower) * np.abs(upper)
    cosine = (np.abs(goal) ** 2 - np.abs(lower) ** 2 - np.abs(upper) ** 2) / (2 * lengths)
    able = np.abs(cosine) < 1
    between = np.arccos(np.where(able, cosine, 0.0))
    solutions, weights = [], []
    for psi in (between, -between):
        fifth = np.angle(np.exp(1j * psi) * lower / upper / end)
        base = np.angle(goal / (lower + upper * end * np.exp(1j * fifth)))
        for first in (base - 2 * np.pi, base, base + 2 * np.pi):
            log_joints = _log_normal(fifth, 0.0, SPREAD[5]) + _log_normal(first, 0.0, SPREAD[0])
            log_weight = log_joints + log_prior - log_proposal - np.log(lengths * np.abs(np.sin(psi)))
            solutions.append(np.column_stack([first, others[:, :4], fifth, others[:, 4:]]))
            weights.append(np.where(able, np.exp(log_weight), 0.0))
    return np.stack(solutions), np.stack(weights)


def _log_normal(x: np.ndarray, mean: Float[np.ndarray, " n"] | float, sd: float) -> np.ndarray:
    # scipy.stats has it, and takes as long to import as JAX
    return -0.5 * ((x - mean) / sd) ** 2 - np.log(sd) - 0.5 * np.log(2 * np.pi)
