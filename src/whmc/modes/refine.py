"""Which charts there are and of what family: duplicates merged, bent modes split, heavy tails met. All NumPy."""

import dataclasses

import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, Int

from whmc.modes.library import ModeLibrary
from whmc.modes.mixture import log_components_of

SAME = 0.05
"""Charts nearer than this in Bhattacharyya's distance describe one mode twice."""

SPLIT_GAIN = 0.4
"""Mean log density, in nats a draw and on draws that were held out, that several charts must gain over one. Jumps and
independence moves gain about as much in their log ratios; below, it is lost again to local moves at the seams."""

CHART_GAIN = 0.2
"""What four charts must gain over two."""

MAX_ROOM = 36
"""Places at most that are kept for splits: every place costs time at every step."""

SPLITS_UP_TO = 50
"""Up to this dimension room is kept for splits. Above, a warm-up hardly ever has the draws to learn one."""

DOFS = (30.0, 10.0, 5.0, 3.0)
DOF_GAIN = 0.05
"""Mean log density a draw that a Student-t base must gain over the Gaussian, which is the simpler and has throats."""


def merge_duplicates(library: ModeLibrary) -> ModeLibrary:
    """The library with charts that describe the same mode merged."""
    first = 0
    while first < library.size:
        second = first + 1
        while second < library.size:
            if _distance(library, first, second) < SAME:
                library = library.merge(first, second)
            else:
                second += 1
        first += 1
    return library


def _distance(library: ModeLibrary, first: int, second: int) -> float:
    """Bhattacharyya's distance of two charts."""
    gap = np.asarray(library.location[first] - library.location[second])
    a, b = (np.asarray(library.covariance[k]) for k in (first, second))
    mean = 0.5 * (a + b)
    log_dets = np.asarray(library.log_det)[[first, second]]
    if library.diagonal:
        square, log_det = np.sum(gap**2 / mean), 0.5 * np.sum(np.log(mean))
    else:
        factor = np.linalg.cholesky(mean)
        square, log_det = np.sum(np.linalg.solve(factor, gap) ** 2), np.sum(np.log(np.diagonal(factor)))
    return float(0.125 * square + log_det - 0.5 * log_dets.sum())


def with_best_dof(library: ModeLibrary, position: Float[np.ndarray, "n dim"]) -> ModeLibrary:
    """Gaussian or Student-t base, whichever gives the draws more density under q.

    A Student-t of the same covariance has its scales smaller by sqrt((nu - 2)/nu).
    """
    plain = dataclasses.replace(library, dof=jnp.asarray(np.inf, float))
    position = position[:: max(1, len(position) // 2000)]  # enough to tell
    best, height = plain, _log_density(plain, position) + DOF_GAIN
    for dof in DOFS:
        tried = rescaled(plain, np.sqrt((dof - 2) / dof), dof)
        seen = _log_density(tried, position)
        if seen > height:
            best, height = tried, seen
    return best


def rescaled(library: ModeLibrary, factor: float, dof: float) -> ModeLibrary:
    """All scales times `factor`, on a base of `dof` degrees of freedom."""
    location, scale, log_weight, step_size = library.charts()
    step_size = np.minimum(step_size / factor, np.pi / 2)
    return library.with_charts(location, scale * factor, log_weight=log_weight, step_size=step_size, dof=dof)


def with_gaussian_base(library: ModeLibrary) -> ModeLibrary:
    """The library with a Gaussian base of the same covariance: the inverse of what `with_best_dof` did.

    Scales and step sizes are then in the units in which charts are fitted and steps are tuned.
    """
    dof = float(library.dof)
    return library if np.isinf(dof) or dof <= 2 else rescaled(library, np.sqrt(dof / (dof - 2)), np.inf)


def _log_density(library: ModeLibrary, position: Float[np.ndarray, "n dim"]) -> float:
    return float(np.mean(np.logaddexp.reduce(log_components_of(library, position), axis=0)))


def split_charts(
    library: ModeLibrary, position: Float[np.ndarray, "n dim"], label: Int[np.ndarray, " n"]
) -> ModeLibrary:
    """The library with the charts of bent modes replaced by several, which stay one mode.

    Where there is not room for all, those come first that gain most in all: log density a draw times draws.
    """
    room = library.capacity - library.size
    if library.diagonal or room == 0:
        return library
    found = {k: split for k in range(library.size) if (split := _mixture(position[label == k])) is not None}
    splits: dict[int, _Gaussians] = {}
    for k in sorted(found, key=lambda k: -found[k][0]):
        more = len(found[k][1].weight) - 1
        if more <= room:
            splits[k], room = found[k][1], room - more
    charts = [row for k in range(library.size) for row in _pieces(library, k, splits.get(k))]
    location, scale, log_weight, step_size, mode = (np.array(column) for column in zip(*charts, strict=True))
    return library.with_charts(location, scale, log_weight=log_weight, step_size=step_size, mode=mode)


def room_to_split(library: ModeLibrary) -> int:
    """Places for the charts that splitting may add: it is no new compilation then, and there is none without."""
    return min(4 + library.size, MAX_ROOM) if library.dim <= SPLITS_UP_TO and not library.diagonal else 0


def _fewest_draws(dim: int) -> int:
    """Below this no second covariance is learned."""
    return 20 * (dim + 1)


Piece = tuple[np.ndarray, np.ndarray, float, float, int]


def _pieces(library: ModeLibrary, k: int, mixture: "_Gaussians | None") -> list[Piece]:
    """Chart k, or the charts that it is split into."""
    location, scale, log_weight, step_size = (rows[k] for rows in library.charts())
    mode = int(library.mode_of[k])
    if mixture is None:
        return [(location, scale, float(log_weight), float(step_size), mode)]
    pieces = []
    for weight, mean, factor in zip(mixture.weight, mixture.mean, mixture.factor, strict=True):
        # a step is measured in the chart's own scale: in the stiffest direction it stays as long as it was
        ratio = np.linalg.norm(np.linalg.solve(factor, scale), 2)
        size = float(min(step_size * ratio, np.pi / 2))
        pieces.append((mean, factor, float(log_weight + np.log(weight)), size, mode))
    return pieces


def _mixture(draws: Float[np.ndarray, "n dim"]) -> "tuple[float, _Gaussians] | None":
    """Two or four Gaussians, if they give held-out draws more density than one, and what they gain in all draws.

    Four see rings, two do not.
    """
    whole, dim = draws.shape
    if whole < _fewest_draws(dim):
        return None
    draws = draws[:: max(1, whole // (20 * _fewest_draws(dim)))]  # more would take long and tell nothing new
    fit, held = draws[::2], draws[1::2]
    single = _Gaussians.of(fit, np.ones((len(fit), 1))).log_density(held).mean()
    best, least = None, SPLIT_GAIN
    for size in (2, 4):
        found = _expectation(fit, size)
        gain = float(found.log_density(held).mean() - single)
        if gain > least and len(draws) * found.weight.min() > 5 * (dim + 1):
            best, least = (gain, size), gain + CHART_GAIN
    return None if best is None else (whole * best[0], _expectation(draws, best[1]))


def _expectation(draws: Float[np.ndarray, "n dim"], size: int) -> "_Gaussians":
    """Expectation-maximisation, started from the draws nearest to each of `size` seeds that lie far apart."""
    z = (draws - draws.mean(axis=0)) / (draws.std(axis=0) + 1e-300)
    seeds = [int(np.argmax(np.sum(z**2, axis=1)))]
    square = np.sum((z - z[seeds[0]]) ** 2, axis=1)
    while len(seeds) < size:
        seeds.append(int(np.argmax(square)))
        square = np.minimum(square, np.sum((z - z[seeds[-1]]) ** 2, axis=1))
    nearest = np.argmin([np.sum((z - z[seed]) ** 2, axis=1) for seed in seeds], axis=0)
    shares = (nearest[:, None] == np.arange(size)).astype(float)
    for _ in range(30):
        found = _Gaussians.of(draws, shares)
        shares = found.shares(draws)
    return found


@dataclasses.dataclass(frozen=True)
class _Gaussians:
    """A small mixture of Gaussians with full covariances."""

    weight: np.ndarray
    mean: np.ndarray
    factor: np.ndarray

    @classmethod
    def of(cls, draws: np.ndarray, shares: np.ndarray) -> "_Gaussians":
        total = shares.sum(axis=0) + 1e-12
        mean = (shares.T @ draws) / total[:, None]
        ridge = 1e-6 * np.diag(draws.var(axis=0) + 1e-300)
        factor = [
            np.linalg.cholesky((s[:, None] * (draws - m)).T @ (draws - m) / t + ridge)
            for s, m, t in zip(shares.T, mean, total, strict=True)
        ]
        return cls(total / total.sum(), mean, np.array(factor))

    def log_components(self, draws: np.ndarray) -> np.ndarray:
        rows = []
        for weight, mean, factor in zip(self.weight, self.mean, self.factor, strict=True):
            z = np.linalg.solve(factor, (draws - mean).T)
            rows.append(np.log(weight) - np.sum(np.log(np.diagonal(factor))) - 0.5 * np.sum(z**2, axis=0))
        return np.array(rows).T

    def log_density(self, draws: np.ndarray) -> np.ndarray:
        return np.logaddexp.reduce(self.log_components(draws), axis=1)

    def shares(self, draws: np.ndarray) -> np.ndarray:
        rows = self.log_components(draws)
        return np.exp(rows - np.logaddexp.reduce(rows, axis=1)[:, None])
