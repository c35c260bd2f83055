"""A bent chart for the draws of one mode, by maximum likelihood. All NumPy.

In coordinates z that whiten the draws, a bend along v says

    z = B φ(s) + s v + e^{a c(s)} y,   s = v·z ~ N(m, σ²),   y ~ N(0, C) at right angles to v,   φ(s) = (1, s, s²).

Given v and a, the curve B is a weighted least-squares fit and C the covariance of what it leaves. So the mean negative
log likelihood is, but for a constant, a function of v and a alone,

    ½ log det C + (D - 1) a E c(s) + log σ,

which is zero for one Gaussian (a = 0 and B = 0). With residuals r = e^{-a c} (z - s v - B φ), q = r·C⁻¹r and averages
over the draws its gradients are

    in v:  E[(-a c' q - e^{-a c} r·C⁻¹B φ'(s) + (D - 1) a c' + (s - m)/σ²) z],      in a:  E[c (D - 1 - q)],

for B, C, m and σ are at their best, and r is at right angles to v and to every column of φ.
"""

import dataclasses

import numpy as np
from jaxtyping import Float

from whmc.modes.bend import REACH, BendShapes
from whmc.modes.library import ModeLibrary

STEEPEST = 1.5
"""Largest stretch: over one standard deviation along the bend the width changes by e^1.5 at most."""

NUM_STARTS = 3
"""Directions that the likelihood is climbed from: the best of those that moments of the draws suggest."""

MOST_STEPS = 60

TOLERANCE = 1e-5
"""Relative change of the height at which a climb ends: far below what a chart's own draws tell."""


@dataclasses.dataclass(frozen=True)
class BentChart:
    """A bent chart: location, scale, and the bend's v, b and a in whitened coordinates."""

    location: Float[np.ndarray, " dim"]
    scale: Float[np.ndarray, "dim dim"]
    axis: Float[np.ndarray, " dim"]
    curve: Float[np.ndarray, " dim"]
    stretch: float

    @classmethod
    def of(cls, library: ModeLibrary, k: int) -> "BentChart":
        """Chart k of a library."""
        bend = library.bends().rows(k)
        charts = library.charts()
        return cls(charts.location[k], charts.scale[k], bend.axis, bend.curve, float(bend.stretch))

    @property
    def bends(self) -> BendShapes:
        return BendShapes(self.axis[None], self.curve[None], np.array([self.stretch]))

    def log_density(self, draws: Float[np.ndarray, "n dim"]) -> Float[np.ndarray, " n"]:
        """That of the chart with a Gaussian base."""
        z = np.linalg.solve(self.scale, (draws - self.location).T).T
        x, log_volume = self.bends.straighten(0, z)
        log_det = np.sum(np.log(np.diagonal(self.scale)))
        return -0.5 * np.sum(x**2, axis=1) - log_volume - log_det - 0.5 * z.shape[1] * np.log(2 * np.pi)


def fit_bend(draws: Float[np.ndarray, "n dim"]) -> BentChart | None:
    """The bent chart that makes the draws most likely; None where they are too few, or lie in a plane."""
    location = draws.mean(axis=0)
    try:
        scale = np.linalg.cholesky(np.cov(draws.T, bias=True))
        z = np.linalg.solve(scale, (draws - location).T).T
        starts = sorted(_directions(z), key=lambda v: _at_first_stretch(v, z)[0])[:NUM_STARTS]
        fits = [_climb(v, _at_first_stretch(v, z)[1], z) for v in starts]
        best = min(fits, key=lambda fit: fit.height)
        return best.chart(location, scale)
    except np.linalg.LinAlgError:
        return None


@dataclasses.dataclass(frozen=True)
class _Fit:
    """The best B, C, m and σ for a direction v and a stretch a, in whitened coordinates.

    height: the mean negative log likelihood; slope_v, slope_a: its slopes.
    """

    v: Float[np.ndarray, " dim"]
    a: float
    curve: Float[np.ndarray, "3 dim"]
    covariance: Float[np.ndarray, "dim dim"]
    mean: float
    sd: float
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
        mean, sd = float(s.mean()), float(s.std())
        q = np.einsum("nd,nd->n", r, solved)
        bending = np.einsum("nd,nd->n", shrink * solved, curve[1] + 2 * s[:, None] * curve[2])
        pull = a * inside * (dim - 1 - q) - bending + (s - mean) / sd**2
        slope_v = pull @ z / num
        log_det = 2 * np.sum(np.log(np.diagonal(np.linalg.cholesky(full))))
        height = 0.5 * log_det + (dim - 1) * a * float(c.mean()) + np.log(sd)
        slope_a = float(np.mean(c * (dim - 1 - q)))
        return cls(v, a, curve, covariance, mean, sd, float(height), slope_v - (slope_v @ v) * v, slope_a)

    def chart(self, location: Float[np.ndarray, " dim"], scale: Float[np.ndarray, "dim dim"]) -> BentChart:
        """In the coordinates of the draws, which `location` and `scale` have whitened: s is made standard, and what is
        linear becomes part of the scale."""
        m, sd = self.mean, self.sd
        centre = self.curve[0] + m * (self.v + self.curve[1]) + m**2 * self.curve[2]
        along = sd * (self.v + self.curve[1] + 2 * m * self.curve[2])
        covariance = np.outer(along, along) + np.exp(2 * self.a * m) * self.covariance
        factor = scale @ np.linalg.cholesky(covariance)
        axis, curve = (np.linalg.solve(factor, scale @ part) for part in (along, sd**2 * self.curve[2]))
        axis = axis / np.linalg.norm(axis)  # one already but for rounding
        return BentChart(location + scale @ centre, factor, axis, curve - (curve @ axis) * axis, self.a * sd)


def _climb(v: Float[np.ndarray, " dim"], a: float, z: Float[np.ndarray, "n dim"]) -> _Fit:
    """The likeliest direction and stretch near these."""
    from scipy.optimize import minimize  # takes as long to import as half of JAX, and most runs have no bends

    def height(place: Float[np.ndarray, " more"]) -> tuple[float, Float[np.ndarray, " more"]]:
        length = float(np.linalg.norm(place[:-1]))
        fit = _Fit.of(place[:-1] / length, float(place[-1]), z)
        return fit.height, np.append(fit.slope_v / length, fit.slope_a)

    bounds = [(None, None)] * len(v) + [(-STEEPEST, STEEPEST)]
    options = {"maxiter": MOST_STEPS, "ftol": TOLERANCE}
    found = minimize(height, np.append(v, a), jac=True, method="L-BFGS-B", bounds=bounds, options=options).x
    return _Fit.of(found[:-1] / np.linalg.norm(found[:-1]), float(found[-1]), z)


def _at_first_stretch(v: Float[np.ndarray, " dim"], z: Float[np.ndarray, "n dim"]) -> tuple[float, float]:
    """The least height along a direction, of a few stretches, and that stretch."""
    return min((_Fit.of(v, a, z).height, a) for a in (0.0, -0.3, 0.3))


def _directions(z: Float[np.ndarray, "n dim"]) -> list[Float[np.ndarray, " dim"]]:
    """Directions that may be those of a bend.

    Along a funnel |z|² grows, so E z|z|² points along it. A banana along v has E z|z|² at right angles to v, along its
    curve, and there E[(curve·z) z z^T] is largest in v. Where several curves cancel, E |z|² z z^T may still tell v.
    """
    square = np.sum(z**2, axis=1)
    third = square @ z / len(z)
    third = third / max(float(np.linalg.norm(third)), 1e-300)
    turned = np.linalg.eigh((z * (z @ third)[:, None]).T @ z / len(z))
    fourth = np.linalg.eigh((z * square[:, None]).T @ z / len(z))[1]
    order = np.argsort(-np.abs(turned[0]))
    axes = np.eye(z.shape[1])
    explained = [float(np.sum(((z @ v) ** 2 @ z / len(z))[v == 0] ** 2)) for v in axes]
    return [third, *turned[1][:, order[:3]].T, fourth[:, 0], fourth[:, -1], axes[int(np.argmax(explained))]]
