"""Tests that a kernel leaves its target invariant, and that it is reversible between modes.

Both start from exact draws. A kernel that is exact leaves them exact draws, whatever the charts are; a kernel that is
not shows it in the first steps, long before a chain would. Each comparison's level is chosen so that the whole report
raises a false alarm with chance `level`, and the report says how large a gap it could have seen.
"""

import dataclasses
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
from scipy.special import chdtrc, kolmogi, kolmogorov

from whmc._shapes import Array, Float, Int
from whmc.kernels.base import AbstractKernel, ChainState, init
from whmc.modes.chart import whiten_rows
from whmc.modes.library import ModeLibrary
from whmc.target.target import Target
from whmc.testing.targets import Problem

LEVEL = 1e-6
"""False alarms of one report: a hundred of them in a test suite still raise one with chance 1e-4."""


@dataclasses.dataclass(frozen=True)
class Comparison:
    """One statistic after some steps: the gap seen, the gap that could just be seen, and the p-value."""

    name: str
    num_steps: int
    gap: float
    detectable: float
    p_value: float


@dataclasses.dataclass(frozen=True)
class InvarianceReport:
    """`passed` if no comparison is surprising at the report's level; `moved`: share of draws that left their place."""

    comparisons: tuple[Comparison, ...]
    moved: float
    level: float

    @property
    def passed(self) -> bool:
        return all(one.p_value > self.level / len(self.comparisons) for one in self.comparisons)

    @property
    def worst(self) -> Comparison:
        return min(self.comparisons, key=lambda one: one.p_value)

    def __str__(self) -> str:
        one = self.worst
        return (
            f"{'invariant' if self.passed else 'NOT invariant'}: worst of {len(self.comparisons)} is {one.name} after "
            f"{one.num_steps} steps, gap {one.gap:.4f} (detectable {one.detectable:.4f}), p = {one.p_value:.2g}; "
            f"{self.moved:.1%} moved"
        )


@dataclasses.dataclass(frozen=True)
class ReversibilityReport:
    """Moves from mode to mode seen from stationary draws; `passed` if the flow i -> j equals j -> i."""

    flow: Int[np.ndarray, "size size"]
    p_value: float
    level: float

    @property
    def passed(self) -> bool:
        return self.p_value > self.level


def invariance_test(
    kernel: AbstractKernel,
    problem: Problem,
    *,
    library: ModeLibrary | None = None,
    num_steps: Sequence[int] = (1, 10, 100),
    num_draws: int = 50_000,
    seed: int = 0,
    level: float = LEVEL,
) -> InvarianceReport:
    """Moves exact draws by the kernel and compares them with fresh ones.

    Each coordinate, the log density and the distance to the nearest mode by the two-sample Kolmogorov test, the modes
    by chi-square. Give a wrong `library` on purpose: an exact kernel is invariant with any.
    """
    with jax.enable_x64(True):
        rng = np.random.default_rng(seed)
        library = problem.library if library is None else library
        start, fresh = problem.draw(rng, num_draws)[0], problem.draw(rng, 4 * num_draws)[0]
        states = _init_all(problem.target, library, jnp.asarray(start))
        expected = _statistics(problem, fresh)
        key, taken, comparisons = jax.random.key(seed), 0, []
        for steps in num_steps:
            states = _advance(kernel, problem.target, library, states, jax.random.fold_in(key, steps), steps - taken)
            taken = steps
            seen = _statistics(problem, np.asarray(states.position))
            comparisons += _compare(seen, expected, steps, level)
        moved = float(np.mean(np.any(np.asarray(states.position) != start, axis=1)))
    return InvarianceReport(tuple(comparisons), moved, level)


def reversibility_test(
    kernel: AbstractKernel,
    problem: Problem,
    *,
    library: ModeLibrary | None = None,
    num_draws: int = 100_000,
    seed: int = 0,
    level: float = LEVEL,
) -> ReversibilityReport:
    """One step from exact draws: the numbers of moves i -> j and j -> i must agree (chi-square over pairs)."""
    with jax.enable_x64(True):
        library = problem.library if library is None else library
        start = problem.draw(np.random.default_rng(seed), num_draws)[0]
        states = _init_all(problem.target, library, jnp.asarray(start))
        states = _advance(kernel, problem.target, library, states, jax.random.key(seed), 1)
        before, after = nearest(problem, start)[0], nearest(problem, np.asarray(states.position))[0]
    size = len(problem.weights)
    flow = np.zeros((size, size), int)
    np.add.at(flow, (before, after), 1)
    upper = np.triu_indices(size, 1)
    there, back = flow[upper], flow.T[upper]
    used = there + back > 0
    if not np.any(used):
        return ReversibilityReport(flow, 1.0, level)
    square = np.sum((there - back)[used] ** 2 / (there + back)[used])
    return ReversibilityReport(flow, float(chdtrc(int(used.sum()), square)), level)


def nearest(problem: Problem, position: Float[np.ndarray, "n dim"]) -> tuple[np.ndarray, np.ndarray]:
    """The mode whose chart is nearest, in standard deviations, and that distance."""
    distances = []
    for mean, scale in zip(problem.means, problem.scales, strict=True):
        distances.append(np.linalg.norm(whiten_rows(scale, position - mean), axis=1))
    table = np.stack(distances)
    return np.argmin(table, axis=0), np.min(table, axis=0)


@jax.jit
def _init_all(target: Target, library: ModeLibrary, positions: Float[Array, "n dim"]) -> ChainState:
    return jax.lax.map(lambda x: init(x, target, library), positions, batch_size=1000)


@jax.jit
def _advance(
    kernel: AbstractKernel,
    target: Target,
    library: ModeLibrary,
    states: ChainState,
    key: Array,
    num_steps: Int[Array, ""] | int,
) -> ChainState:
    def chain(state: ChainState, key: Array) -> ChainState:
        return jax.lax.fori_loop(
            0, num_steps, lambda n, s: kernel.step(jax.random.fold_in(key, n), s, target, library)[0], state
        )

    keys = jax.random.split(key, states.logdensity.shape[0])
    # in batches that stay in the cache
    return jax.lax.map(lambda pair: chain(*pair), (states, keys), batch_size=1000)


@jax.jit
def _logdensities(target: Target, positions: Float[Array, "n dim"]) -> Float[Array, " n"]:
    return jax.lax.map(target, positions, batch_size=1000)


def _statistics(problem: Problem, position: Float[np.ndarray, "n dim"]) -> dict[str, np.ndarray]:
    label, distance = nearest(problem, position)
    columns = {f"x[{i}]": position[:, i] for i in range(position.shape[1])}
    logdensity = np.asarray(_logdensities(problem.target, jnp.asarray(position)))
    return columns | {"log density": logdensity, "distance": distance, "mode": label}


def _compare(
    seen: dict[str, np.ndarray], expected: dict[str, np.ndarray], num_steps: int, level: float
) -> list[Comparison]:
    least = level / (10 * len(seen))  # about a report's share, for the gap that could just be seen
    return [
        _modes(seen[name], expected[name], num_steps, least)
        if name == "mode"
        else _kolmogorov(name, seen[name], expected[name], num_steps, least)
        for name in seen
    ]


def _kolmogorov(name: str, seen: np.ndarray, expected: np.ndarray, num_steps: int, least: float) -> Comparison:
    order = np.sort(np.concatenate([seen, expected]))
    gaps = np.searchsorted(np.sort(seen), order, side="right") / len(seen) - np.searchsorted(
        np.sort(expected), order, side="right"
    ) / len(expected)
    gap = float(np.max(np.abs(gaps)))
    root = np.sqrt(len(seen) * len(expected) / (len(seen) + len(expected)))
    return Comparison(name, num_steps, gap, float(kolmogi(least) / root), float(kolmogorov(gap * root)))


def _modes(seen: np.ndarray, expected: np.ndarray, num_steps: int, least: float) -> Comparison:
    size = int(max(seen.max(), expected.max())) + 1
    table = np.stack([np.bincount(seen, minlength=size), np.bincount(expected, minlength=size)])
    table = table[:, table.sum(axis=0) > 0]
    shares = table / table.sum(axis=1, keepdims=True)
    gap = float(np.max(np.abs(shares[0] - shares[1])))
    if table.shape[1] == 1:
        return Comparison("mode", num_steps, gap, 0.0, 1.0)
    expect = table.sum(axis=0) * table.sum(axis=1, keepdims=True) / table.sum()
    square = float(np.sum((table - expect) ** 2 / expect))
    # the gap of the most uncertain share at about five standard deviations
    sd = float(np.max(np.sqrt(shares[1] * (1 - shares[1]) * (1 / len(seen) + 1 / len(expected)))))
    return Comparison("mode", num_steps, gap, 5 * sd, float(chdtrc(table.shape[1] - 1, square)))
