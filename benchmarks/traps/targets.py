"""The targets of `benchmarks/honesty.py`, each made to mislead a sampler, with its exact truth.

A trap is a function of a seed: where places, widths and weights are drawn, every seed draws others. Truths are closed
forms, quadratures, or the algebra of a mixture: its evidence is one, and the mean of a component's responsibility is
its weight. An improper density has the evidence infinity.
"""

import dataclasses
import itertools

import jax
import jax.numpy as jnp
import numpy as np
from scipy.special import betainc, betaln, gammaln, ndtr
from scipy.stats import multivariate_normal

import whmc
from whmc.testing import SHAPES, Shape

NUM_LOOKED_AT, NUM_PARTS = 1 << 22, 64

GROUPS = 12
"""Components of a mixture whose weights are looked at, at most; of more, neighbours in the list are taken together."""


def shape(name, target, log_evidence, statistics=lambda x: {}, expected=None, num_modes=None):
    """A Shape without draws, which no trap needs."""
    nothing = np.zeros((0, target.dim))
    return Shape(name, target, lambda rng, n: nothing, float(log_evidence), statistics, expected or {}, num_modes)


def mixture(name, weights, own, log_one, num_modes=None, **target):
    """Σ_k w_k p(y_k), y_k = own(x)_k; log_one: (y, k) -> log of a normalised density."""
    weights = np.asarray(weights, float)
    group = np.arange(len(weights)) * min(GROUPS, len(weights)) // len(weights)
    which = np.eye(group[-1] + 1)[group]

    def heights(x):
        return jax.vmap(log_one)(own(x), jnp.arange(len(weights))) + jnp.log(jnp.asarray(weights))

    made = whmc.Target(lambda x: jax.nn.logsumexp(heights(x)), **target)
    statistics = {"weight": weights @ which} if len(weights) > 1 else {}
    return shape(name, made, 0.0, lambda x: {"weight": jax.nn.softmax(heights(x)) @ which}, statistics, num_modes)


def gaussians(weights, means, sds, starts, **target):
    """A mixture of Gaussians with independent coordinates; sds: one for each component, or one for each coordinate."""
    means = np.asarray(means, float)
    sds = np.broadcast_to(np.asarray(sds, float).reshape(len(means), -1), means.shape)

    def own(x):
        return (x - means) / sds

    def log_one(z, k):
        return -0.5 * z @ z - jnp.log(jnp.asarray(sds))[k].sum() - 0.5 * len(z) * np.log(2 * np.pi)

    return mixture("gaussians", weights, own, log_one, len(means), dim=means.shape[1], starts=starts, **target)


@dataclasses.dataclass(frozen=True)
class Isolated:
    """Centres uniform in ±30, widths of (.3, 1) or log-normal, Dirichlet weights; the starts in a box of ±room."""

    size: int
    dim: int
    widths: str = "uniform"
    room: float = 35.0

    def layout(self, seed):
        """Weights, centres and widths."""
        rng = np.random.default_rng([self.size, self.dim, seed])
        means, weights = rng.uniform(-30, 30, (self.size, self.dim)), rng.dirichlet(np.full(self.size, 2.0))
        uniform = self.widths == "uniform"
        sds = rng.uniform(0.3, 1.0, self.size) if uniform else 0.6 * np.exp(0.5 * rng.standard_normal(self.size))
        return weights, means, sds

    def __call__(self, seed):
        return gaussians(*self.layout(seed), (-self.room, self.room))

    def missed_basin(self, seed, found):
        """The largest share of the start region that is the basin of a component without a place in `found`.

        A start belongs to the component that is highest there; looked at are four million.
        """
        weights, means, sds = self.layout(seed)
        gaps = np.linalg.norm(means[:, None] - found, axis=2).min(axis=1)
        missed = gaps > sds * np.sqrt(self.dim)
        hits, rng = np.zeros(self.size), np.random.default_rng(0)
        heights = np.log(weights) - self.dim * np.log(sds)
        for _ in range(NUM_PARTS):
            x = rng.uniform(-self.room, self.room, (NUM_LOOKED_AT // NUM_PARTS, self.dim))
            square = np.sum(x**2, axis=1)[:, None] - 2 * x @ means.T + np.sum(means**2, axis=1)
            hits += np.bincount(np.argmax(heights - 0.5 * square / sds**2, axis=1), minlength=self.size)
        return float(hits[missed].max(initial=0.0) / NUM_LOOKED_AT)


def late_points(num_late):
    """Two Gaussians and a thousand points as starts, of which only the last lie around the second."""

    def make(seed):
        rng = np.random.default_rng(seed)
        means = np.array([[-20.0, -20.0], [20.0, 20.0]])
        side = (np.arange(1000) >= 1000 - num_late).astype(int)
        return gaussians([0.3, 0.7], means, [1.0, 1.0], means[side] + 3 * rng.standard_normal((1000, 2)))

    return make


def grid_of_points(num):
    """Eighty-one modes, and few points to find them from."""

    def make(seed):
        means = np.stack(np.meshgrid(*[10.0 * np.arange(9)] * 2), axis=-1).reshape(-1, 2)
        points = np.random.default_rng(seed).uniform(-5, 85, (num, 2))
        return gaussians(np.full(81, 1 / 81), means, np.ones(81), points)

    return make


def box(dim, pattern):
    """Two Gaussians on a line through the box (-2, 4)^D, whose middle lies in the basin of the second."""

    def make(seed):
        way = {"level": np.ones(dim), "halves": np.where(np.arange(dim) < dim // 2, 1.0, -1.0)}[pattern]
        return gaussians([0.7, 0.3], np.stack([1 - way, 1 + 0.5 * way]), [1.0, 1.0], (-2.0, 4.0))

    return make


def spike(dim, sd, share=0.3):
    """A narrow mode inside of a broad one."""
    means = np.r_[np.zeros((1, dim)), np.ones((1, dim))]
    return lambda seed: gaussians([1 - share, share], means, [1.0, sd], (-6.0, 6.0))


def two_widths(dim, sd, edge):
    """Half of the mass is in a mode that is narrow, far from the other."""
    means = np.full((2, dim), 10.0) * [[-1.0], [1.0]]
    return lambda seed: gaussians([0.5, 0.5], means, [1.0, sd], (-edge, edge))


def heavy(dim, dof):
    """Two products of Student's t."""
    places = np.full((2, dim), 15.0) * [[-1.0], [1.0]]
    log_scale = gammaln((dof + 1) / 2) - gammaln(dof / 2) - 0.5 * np.log(dof * np.pi)

    def log_one(y, k):
        return jnp.sum(log_scale - (dof + 1) / 2 * jnp.log1p(y * y / dof))

    return lambda seed: mixture("t", [0.7, 0.3], lambda x: x - places, log_one, 2, dim=dim, starts=(-30.0, 30.0))


def improper(logdensity, dim, starts=(-3.0, 3.0), **target):
    return lambda seed: shape("improper", whmc.Target(logdensity, dim=dim, starts=starts, **target), np.inf)


EFFECTS, ERRORS = np.array([28.0, 8, -3, 7, -1, 1, 18, 12]), np.array([15.0, 10, 16, 11, 9, 11, 10, 18])


def schools(x):
    """Eight schools with the prior 1/τ."""
    variance = ERRORS**2 + x[1] ** 2
    return -0.5 * jnp.sum((EFFECTS - x[0]) ** 2 / variance + jnp.log(variance)) - jnp.log(x[1])


def without_score(edge):
    """Two Gaussians, whose score is NaN below an edge: the root is there a branch that jnp.where does not take."""

    def make(seed):
        whole = gaussians([0.5, 0.5], [[0.0, 0.0], [8.0, 8.0]], [1.0, 1.0], (-6.0, 14.0))
        density = whole.target.logdensity

        def logdensity(x):
            return density(x) + jnp.where(x[0] > edge, 0 * jnp.sqrt(x[0] - edge), 0.0)

        target = whmc.Target(logdensity, dim=2, starts=(-6.0, 14.0))
        return shape("no score", target, 0.0, whole.statistics, whole.expected, 2)

    return make


def plateau(seed):
    """A plateau with soft edges, and a peak beside it."""

    def soft(x):
        return jax.nn.log_sigmoid((x + 5) / 0.1) + jax.nn.log_sigmoid((5 - x) / 0.1)

    grid = np.linspace(-9.0, 9.0, 100_001)
    height = 1 / ((1 + np.exp(-(grid + 5) / 0.1)) * (1 + np.exp((grid - 5) / 0.1)))
    log_width = np.log(np.trapezoid(height, grid))

    def log_one(y, k):
        peak = -0.5 * jnp.sum(((y - 9) / 0.2) ** 2) - 2 * np.log(0.2) - np.log(2 * np.pi)
        return jnp.where(k == 0, jnp.sum(soft(y)) - 2 * log_width, peak)

    return mixture("plateau", [0.6, 0.4], lambda x: jnp.stack([x, x]), log_one, 2, dim=2, starts=(-12.0, 12.0))


def single(seed):
    """Two Gaussians in single precision: the casts limit every difference of energies."""
    whole = gaussians([0.6, 0.4], np.r_[np.full((1, 5), 300.0), np.full((1, 5), 308.0)], [0.3, 0.5], (290.0, 315.0))
    density = whole.target.logdensity
    target = whmc.Target(lambda x: density(x.astype(jnp.float32)).astype(jnp.float32), dim=5, starts=(290.0, 315.0))
    return shape("float32", target, 0.0, whole.statistics, whole.expected, 2)


def edges(seed):
    """Two correlated Gaussians, of each of which a quarter plane is left: -inf elsewhere."""
    covariance = np.array([[1.0, 0.7], [0.7, 1.0]])
    precision, places, corner = np.linalg.inv(covariance), np.array([[0.0, 0.0], [12.0, 12.0]]), np.array([-1.0, 0.3])
    left = multivariate_normal([0, 0], covariance).cdf(-corner)  # of each: what lies beyond the corner
    log_norm = -np.log(2 * np.pi) - 0.5 * np.linalg.slogdet(covariance)[1] - np.log(left)

    def log_one(y, k):
        inside = jnp.all(y > corner)
        return jnp.where(inside, -0.5 * y @ precision @ y + log_norm, -jnp.inf)

    return mixture("edges", [0.6, 0.4], lambda x: x - places, log_one, 2, dim=2, starts=(-4.0, 16.0))


def beta(a, dim):
    """Beta(a, a) in each coordinate: its cusps lie at the bounds, one of them where float64 has few numbers."""

    def make(seed):
        target = whmc.Target(lambda x: (a - 1) * jnp.sum(jnp.log(x) + jnp.log1p(-x)), dim=dim, bounds=(0.0, 1.0))
        share = float(betainc(a, a, 1e-3))
        statistics = {"weight": np.full(dim, share)}
        return shape("beta", target, dim * betaln(a, a), lambda x: {"weight": (x < 1e-3).astype(x.dtype)}, statistics)

    return make


DATA = np.array([-1.2, -0.4, 0.3, 0.9, 2.1])


def narrow_component(seed):
    """Five data of an even mixture of N(m, 1) and N(n, s²), s < 10: a cusp at s = 0 wherever n is a datum.

    The likelihood is a sum over which data belong to which component, and all but s integrates in closed form.
    """

    def whole(some, s):
        """∫ Π N(y; n, s²) dn over (-10, 10)."""
        k = len(some)
        if k == 0:
            return 20.0
        sd, mean = s / np.sqrt(k), np.mean(some)
        log = -0.5 * np.sum((some - mean) ** 2) / s**2 - (k - 1) * np.log(s * np.sqrt(2 * np.pi)) - 0.5 * np.log(k)
        return np.exp(log) * (ndtr((10 - mean) / sd) - ndtr((-10 - mean) / sd))

    def mass(low, high):
        """Over log s, where the integrand is smooth; below e^-30 nothing is left."""
        points, weights = np.polynomial.legendre.leggauss(200)
        sizes = np.exp(0.5 * (high - low) * points + 0.5 * (high + low))
        each = np.array([sum(whole(DATA[one], 1.0) * whole(DATA[~one], s) for one in subsets) for s in sizes])
        return 0.5 * (high - low) * np.sum(weights * each * sizes)

    subsets = np.array(list(itertools.product((False, True), repeat=len(DATA))))
    cuts = np.array([-30.0, np.log(0.1), np.log(0.5), np.log(10.0)])
    masses = np.array([mass(low, high) for low, high in itertools.pairwise(cuts)]) / 2 ** len(DATA)

    def logdensity(x):
        first, second = -0.5 * (DATA - x[0]) ** 2, -0.5 * ((DATA - x[1]) / x[2]) ** 2 - jnp.log(x[2])
        return jnp.sum(jnp.logaddexp(first, second) - np.log(2 * np.sqrt(2 * np.pi)))

    def statistics(x):
        return {"weight": jnp.stack([x[2] < 0.1, x[2] < 0.5]).astype(x.dtype)}

    target = whmc.Target(logdensity, dim=3, bounds=([-10.0, -10.0, 0.0], [10.0, 10.0, 10.0]))
    return shape("cusp", target, np.log(masses.sum()), statistics, {"weight": np.cumsum(masses)[:2] / masses.sum()})


def alias(seed):
    """Two exchangeable blocks, an alias with a fifth of the mass and a small basin, and sixty modes without weight."""
    rng = np.random.default_rng(seed)
    light = 60
    means = np.r_[[[0.0, 0, 6, 6], [0.0, 0, -7, 5]], rng.uniform(-15, 15, (light, 4))]
    sds = np.r_[[1.0, 0.3], np.full(light, 0.8)]
    weights = np.r_[[0.8, 0.2], np.full(light, 1e-9)]
    weights /= weights.sum()
    image = [2, 3, 0, 1]

    def both(weights, means, sds):
        made = gaussians(np.tile(weights / 2, 2), np.r_[means, means[:, image]], np.tile(sds, 2), (-15.0, 15.0))
        return made.target.logdensity

    whole, alias = both(weights, means, sds), both(np.ones(1), means[1:2], sds[1:2])

    def statistics(x):
        return {"weight": jnp.exp(alias(x) + np.log(weights[1]) - whole(x))[None]}

    target = whmc.Target(whole, dim=4, starts=(-15.0, 15.0), symmetries=[whmc.Exchange([0, 1], [2, 3])])
    return shape("alias", target, 0.0, statistics, {"weight": weights[1:2]})


def scales(seed):
    """Coordinates in units that differ by twelve orders of magnitude."""
    unit = 10.0 ** np.linspace(-6, 6, 4)
    means = np.array([[0.0] * 4, [8.0, -8.0, 8.0, -8.0]]) * unit
    return gaussians([0.7, 0.3], means, np.stack([unit, 0.5 * unit]), (-15 * unit, 15 * unit))


def steps(seed):
    """A density that is constant in pieces: no score says where to go."""
    height = np.log(np.array([1.0, 20.0, 1.0, 5.0, 1.0]))

    def logdensity(x):
        cell = jnp.clip(jnp.floor(5 * x).astype(int), 0, 4)
        return jnp.sum(jnp.asarray(height)[cell])

    share = np.exp(height) / np.exp(height).sum()
    target = whmc.Target(logdensity, dim=2, bounds=(0.0, 1.0))

    def statistics(x):
        return {"weight": (jnp.floor(5 * x)[:, None] == jnp.array([1, 3])).ravel().astype(x.dtype)}

    return shape("steps", target, 2 * np.log(np.exp(height).mean()), statistics, {"weight": np.tile(share[[1, 3]], 2)})


def truncated(seed):
    """Bounds that cut through a mode and leave the tail of another."""
    places, low, high = np.array([-1.0, 4.5]), 0.0, 4.0
    masses = np.array([ndtr(high - place) - ndtr(low - place) for place in places]) * [0.5, 0.5]

    def heights(x):
        return -0.5 * (x[0] - places) ** 2 - 0.5 * np.log(2 * np.pi) + np.log(0.5)

    target = whmc.Target(lambda x: jax.nn.logsumexp(heights(x)), dim=1, bounds=(low, high))

    def statistics(x):
        return {"weight": jax.nn.softmax(heights(x))}

    return shape("truncated", target, np.log(masses.sum()), statistics, {"weight": masses / masses.sum()})


def outside(seed):
    """A third of the mass is in a mode outside of the start region, and no start descends to it."""
    return gaussians([0.7, 0.3], [[0.0, 0.0, 0.0], [40.0, 40.0, 40.0]], [1.0, 1.0], (-5.0, 5.0))


TRAPS = {
    "gaussians-12-10": Isolated(12, 10),
    "gaussians-16-8": Isolated(16, 8),
    "gaussians-50-6": Isolated(50, 6),
    "gaussians-200-4": Isolated(200, 4),
    "gaussians-lognormal": Isolated(20, 5, "log-normal"),
    "gaussians-wide-box": Isolated(10, 4, room=150.0),
    "points-late": late_points(744),
    "points-few": late_points(3),
    "points-grid-30": grid_of_points(30),
    "points-grid-100": grid_of_points(100),
    "box-300-level": box(300, "level"),
    "box-300-halves": box(300, "halves"),
    "box-1000-level": box(1000, "level"),
    "improper-schools": improper(
        schools, 2, ([-20.0, 0.1], [40.0, 30.0]), names=["mu", "tau"], bounds={"tau": (0, None)}
    ),
    "improper-scale": improper(
        lambda x: -0.5 * x[0] ** 2 - jnp.log(x[1]), 2, ([-1.0, 0.5], [1.0, 2.0]), bounds=([None, 0], [None, None])
    ),
    "improper-beta": improper(lambda x: -jnp.sum(jnp.log(x) + jnp.log1p(-x)), 2, None, bounds=(0.0, 1.0)),
    "improper-constant": improper(lambda x: 0 * x[0], 2),
    "improper-phase": improper(lambda x: -0.5 * x[0] ** 2 + 3 * jnp.cos(x[1]), 2),
    "improper-tail": improper(lambda x: -0.5 * jnp.log1p(x[0] ** 2), 1),
    "improper-sign": improper(lambda x: 0.5 * jnp.sum(x**2), 2),
    "improper-means": improper(
        lambda x: jnp.sum(jnp.logaddexp(-0.5 * (EFFECTS - x[0]) ** 2, -0.5 * (EFFECTS - x[1]) ** 2)), 2, (-10.0, 30.0)
    ),
    "no-score-little": without_score(-2.2),
    "no-score-half": without_score(0.0),
    "no-score-mode": without_score(5.0),
    "plateau": plateau,
    "cauchy": heavy(1, 1.0),
    "t2-5": heavy(5, 2.0),
    "t2-20": heavy(20, 2.0),
    "spike-2": spike(2, 0.05),
    "spike-3": spike(3, 0.1),
    "spike-6": spike(6, 0.3),
    "few-draws": lambda seed: gaussians([0.9, 0.1], [[0.0, 0.0], [9.0, 0.0]], [1.0, 0.3], (-15.0, 15.0)),
    "float32": single,
    "hard-edges": edges,
    "truncated": truncated,
    "steps": steps,
    "cusp": narrow_component,
    "beta-half": beta(0.5, 3),
    "beta-tenth": beta(0.1, 5),
    "alias": alias,
    "scales": scales,
    "funnel": lambda seed: SHAPES["funnel"](),
}
"""Part one: every loss can be noticed."""

HIDDEN = {
    "two-widths-10": two_widths(10, 0.3, 35.0),
    "two-widths-20": two_widths(20, 0.5, 35.0),
    "spike-6-thin": spike(6, 0.05),
    "gaussians-8-15": Isolated(8, 15),
    "outside": outside,
}
"""Part two: a basin smaller than 3/n that leaves no trace among n starts, or none at all."""

SETTINGS = {"few-draws": {"draws": 20}}
"""Where a trap is not about defaults."""
