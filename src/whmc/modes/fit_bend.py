"""A bent chart for the draws of one mode, by maximum likelihood. All NumPy.

In coordinates z that whiten the draws, a bend along v says

    z = B φ(s) + s v + e^{a c(s)} y,   s = v·z ~ N(0, 1),   y ~ N(0, C) at right angles to v,   φ(s) = (1, s, s²).

Given v and a, the curve B is a weighted least-squares fit and C the covariance of what it leaves. So the mean negative
log likelihood is, but for a constant, a function of v and a alone,

    ½ log det C + (D - 1) a E c(s),

which is zero for one Gaussian (a = 0 and B = 0). With residuals r = e^{-a c} (z - s v - B φ), q = r·C⁻¹r and averages
over the draws its gradients are

    in v:  E[(a c' (D - 1 - q) - e^{-a c} r·C⁻¹B φ'(s)) z],      in a:  E[c (D - 1 - q)],

for B and C are at their best, and r is at right angles to v and to every column of φ.
"""

import dataclasses
from typing import Any

import numpy as np

from whmc._shapes import Float
from whmc.minimise import minimise
from whmc.modes.chart_data import ChartData
from whmc.modes.layers.bend import Bend
from whmc.modes.layers.layer import REACH
from whmc.modes.layers.places import Shift
from whmc.modes.layers.scales import Dense

STEEPEST = 1.5
"""Largest stretch: over one standard deviation along the bend the width changes by e^1.5 at most."""

MOMENT_STEPS = 30
NUM_BANANAS = 5
SAME_DIRECTION = 0.95
"""Steps uphill in third moments, how many of the directions that they lead to are tried, and the cosine from which on
two of them are one."""

NUM_STARTS = 3
"""Directions that the likelihood is climbed from: the best of those that moments of the draws suggest."""

LEAST_START_GAIN = 0.02
"""Nats a draw that one of them must gain before anything is climbed: where a bend is worth it, it gains more."""

TOLERANCE = 1e-3
"""Change of direction and height at which a climb ends: far below what the draws tell."""


def fit_bend(
    draws: Float[np.ndarray, "n dim"], near: ChartData | None = None, *, afresh: bool = True
) -> ChartData | None:
    """The bent chart that makes the draws most likely; None where nothing is bent, or the draws lie in a plane.

    near: a chart whose bend may be about right. afresh: looks for others too.
    """
    location = draws.mean(axis=0)
    try:
        scale = np.linalg.cholesky(np.cov(draws.T, bias=True))
        z = np.linalg.solve(scale, (draws - location).T).T
        if not np.allclose(z.T @ z / len(z), np.eye(z.shape[1]), atol=1e-3):
            return None  # a plane, but for rounding
        starts = [*(_starts(z) if afresh else []), *([] if near is None else [_direction(near, scale)])]
        return None if not starts else _climb(starts, z).chart(location, scale)
    except np.linalg.LinAlgError:
        return None


@dataclasses.dataclass(frozen=True)
class _Fit:
    """The best B and C for a direction v and a stretch a, in whitened coordinates.

    height: the mean negative log likelihood; slope_v, slope_a: its slopes.
    """

    v: Float[np.ndarray, " dim"]
    a: float
    curve: Float[np.ndarray, "3 dim"]
    covariance: Float[np.ndarray, "dim dim"]
    height: float
    slope_v: Float[np.ndarray, " dim"]
    slope_a: float

    @classmethod
    def of(cls, v: Float[np.ndarray, " dim"], a: float, z: Float[np.ndarray, "n dim"]) -> "_Fit":
        num, dim = z.shape
        s = z @ v
        c, inside = np.clip(s, -REACH, REACH), np.abs(s) < REACH
        shrink = np.exp(-a * c)[:, None]
        powers = np.stack([np.ones(num), s, s**2], axis=1)
        beside = z - s[:, None] * v
        left = shrink * powers
        curve = np.linalg.solve(left.T @ left, left.T @ (shrink * beside))
        r = shrink * (beside - powers @ curve)
        covariance = r.T @ r / num
        full = covariance + np.outer(v, v)
        solved = np.linalg.solve(full, r.T).T
        q = np.einsum("nd,nd->n", r, solved)
        bending = np.einsum("nd,nd->n", shrink * solved, curve[1] + 2 * s[:, None] * curve[2])
        pull = a * inside * (dim - 1 - q) - bending
        slope_v = pull @ z / num
        log_det = 2 * np.sum(np.log(np.diagonal(np.linalg.cholesky(full))))
        height = 0.5 * log_det + (dim - 1) * a * float(c.mean())
        slope_a = float(np.mean(c * (dim - 1 - q)))
        return cls(v, a, curve, covariance, float(height), slope_v - (slope_v @ v) * v, slope_a)

    def chart(self, location: Float[np.ndarray, " dim"], scale: Float[np.ndarray, "dim dim"]) -> ChartData:
        """In the coordinates of the draws, which `location` and `scale` have whitened. What is linear goes into the
        scale."""
        along = self.v + self.curve[1]
        factor = scale @ np.linalg.cholesky(np.outer(along, along) + self.covariance)
        axis, curve = (np.linalg.solve(factor, scale @ part) for part in (along, self.curve[2]))
        bend = Bend.of(axis, curve, np.asarray(self.a))
        return ChartData(Shift(location + scale @ self.curve[0]), Dense.of(factor), (bend,))


def _climb(starts: list[tuple[Float[np.ndarray, " dim"], float]], z: Float[np.ndarray, "n dim"]) -> _Fit:
    """The likeliest of the directions and stretches that lie uphill from these."""

    def heights(places: Float[np.ndarray, "m more"], rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        del rows
        found = [_height(place, z) for place in places]
        return np.array([height for height, _ in found]), np.array([slope for _, slope in found])

    places = np.array([np.append(v, a) for v, a in starts])
    found = minimise(heights, places, np.ones(places.shape[1]), tolerance=TOLERANCE)
    best = found.position[int(np.argmin(np.where(found.able, found.energy, np.inf)))]
    return _Fit.of(best[:-1] / np.linalg.norm(best[:-1]), float(best[-1]), z)


def _height(place: Float[np.ndarray, " more"], z: Float[np.ndarray, "n dim"]) -> tuple[float, np.ndarray]:
    """The height for a direction of any length and a stretch, and its slope; infinite where there is no such fit."""
    length = float(np.linalg.norm(place[:-1]))
    if abs(place[-1]) > STEEPEST or not 1e-3 < length < 1e3:
        return np.inf, np.zeros_like(place)
    try:
        fit = _Fit.of(place[:-1] / length, float(place[-1]), z)
    except np.linalg.LinAlgError:
        return np.inf, np.zeros_like(place)
    return fit.height, np.append(fit.slope_v / length, fit.slope_a)


def _starts(z: Float[np.ndarray, "n dim"]) -> list[tuple[Float[np.ndarray, " dim"], float]]:
    """Directions and stretches to climb from, the best first; none where none is better than one Gaussian."""
    tried = [(min((_height(np.append(v, a), z)[0], a) for a in (0.0, -0.3, 0.3)), v) for v in _directions(z)]
    order = np.argsort([height for (height, _), _ in tried])[:NUM_STARTS]
    return [(tried[n][1], tried[n][0][1]) for n in order.tolist() if tried[n][0][0] < -LEAST_START_GAIN]


def _direction(near: ChartData, scale: Float[np.ndarray, "dim dim"]) -> tuple[Float[np.ndarray, " dim"], float]:
    """The direction and the stretch of a chart in coordinates that another scale has whitened."""
    bend: Any = near.warp(Bend)
    slope = scale.T @ near.scale.pushed(bend.axis[None], bend.axis[None])[0]
    length = float(np.linalg.norm(slope))
    return slope / length, float(np.clip(bend.stretch * length, -STEEPEST, STEEPEST))


def _directions(z: Float[np.ndarray, "n dim"]) -> list[Float[np.ndarray, " dim"]]:
    """Directions that may be those of a bend.

    Along a funnel |z|² grows, so E z|z|² points along it. A banana along v has draws whose other coordinates follow
    s² = (v·z)²: the vector t(v) = E z s², without its part u along v, is long. Steps along E z s (t·z) - ½ u E z s²,
    a quarter of the gradient of |t|², climb it, from all axes at once. All this needs the third moments only.
    """
    dim = z.shape[1]
    third = np.einsum("ni,nj,nk->ijk", z, z, z, optimize=True) / len(z)
    funnel = np.einsum("iij->j", third)
    v = np.eye(dim)
    for _ in range(MOMENT_STEPS):
        whole = np.einsum("ijk,mi,mj->mk", third, v, v, optimize=True)
        along = np.sum(whole * v, axis=1, keepdims=True)
        curve = whole - along * v
        length = np.sum(curve**2, axis=1)
        slope = np.einsum("ijk,mi,mk->mj", third, v, curve, optimize=True) - 0.5 * along * whole
        # half a radian at most: where nothing is curved both are rounding errors
        share = np.minimum(1 / np.maximum(length, 1e-12), 0.5 / np.maximum(np.linalg.norm(slope, axis=1), 1e-12))
        v = v + share[:, None] * slope
        v /= np.linalg.norm(v, axis=1, keepdims=True)
    bananas: list[np.ndarray] = []
    for k in np.argsort(-length).tolist():
        if all(abs(v[k] @ other) < SAME_DIRECTION for other in bananas):
            bananas.append(v[k])
    return [funnel / max(float(np.linalg.norm(funnel)), 1e-300), *bananas[:NUM_BANANAS]]
