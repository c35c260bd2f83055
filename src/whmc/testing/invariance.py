"""Tests that a kernel leaves its target invariant, and that it is reversible between modes.

Both start from exact draws. A kernel that is exact leaves them exact draws, whatever the charts are; a kernel that is
not shows it in the first steps, long before a chain would. Each comparison's level is chosen so that the whole report
raises a false alarm with chance `level`, and the report says how large a gap it could have seen.

The draws are moved by the compiled block that `sample` moves its chains by, with its random numbers.
"""

import dataclasses
from collections.abc import Sequence
from functools import lru_cache

import jax
import numpy as np
from scipy.special import chdtrc, kolmogi, kolmogorov

from whmc._shapes import Float, Int
from whmc.kernels.base import AbstractKernel, place_all
from whmc.kernels.block import draw_block, move_chains, unpack_trace
from whmc.kernels.settings import arrays, target_of
from whmc.modes.chart import whiten_rows
from whmc.modes.library import ModeLibrary
from whmc.target.rows import evaluate_rows, logdensities
from whmc.testing.targets import Problem

LEVEL = 1e-6
"""False alarms of one report: a hundred of them in a test suite still raise one with chance 1e-4."""

AT_ONCE = 1000
"""Chains of a block: their states stay in the processor's cache."""

LONGEST_BLOCK = 10
"""Steps of a block. All tests of a kernel with ten steps or more then share what is compiled."""


@dataclasses.dataclass(frozen=True)
class Comparison:
    """One statistic after some steps: the gap seen, the gap that could just be seen, and the p-value."""

    name: str
    num_steps: int
    gap: float
    detectable: float
    p_value: float


@dataclasses.dataclass(frozen=True)
class ReversibilityReport:
    """Moves from mode to mode seen from stationary draws; `passed` if the flow i -> j equals j -> i."""

    flow: Int[np.ndarray, "size size"]
    p_value: float
    level: float

    @property
    def passed(self) -> bool:
        return self.p_value > self.level


@dataclasses.dataclass(frozen=True)
class InvarianceReport:
    """`passed` if no comparison is surprising at the report's level; `moved`: share of draws that left their place.

    reversibility: what `reversibility_test` says of the first step of the same draws.
    """

    comparisons: tuple[Comparison, ...]
    moved: float
    level: float
    reversibility: ReversibilityReport

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
        start, expected = _draws(problem, num_draws, seed)
        library = problem.library if library is None else library
        moved = move_draws(kernel, problem, library, start, sorted({1, *num_steps}), seed)
        comparisons = tuple(
            comparison
            for steps in num_steps
            for comparison in _compare(_statistics(problem, moved[steps]), expected, steps, level)
        )
    left = float(np.mean(np.any(moved[max(moved)] != start, axis=1)))
    return InvarianceReport(comparisons, left, level, _flow(problem, start, moved[1], level))


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
        return _flow(problem, start, move_draws(kernel, problem, library, start, [1], seed)[1], level)


def move_draws(
    kernel: AbstractKernel,
    problem: Problem,
    library: ModeLibrary,
    start: Float[np.ndarray, "n dim"],
    num_steps: Sequence[int],
    seed: int,
) -> dict[int, Float[np.ndarray, "n dim"]]:
    """Where the draws are after so many steps (rising), moved as a run moves its chains: draw n is chain n."""
    kernel, key = arrays(kernel), jax.random.key(seed)
    target, length, num = target_of(kernel, problem.target), min(LONGEST_BLOCK, num_steps[-1]), len(start)
    found = evaluate_rows(target, start)
    reached = {steps: np.empty_like(start) for steps in num_steps}
    for first in range(0, num, AT_ONCE):
        mine = np.arange(first, first + AT_ONCE)
        here, active = np.minimum(mine, num - 1), mine < num
        rows = mine[active]
        states = place_all(start[here], found.logdensity[here], found.score[here], library)
        for made in range(0, num_steps[-1], length):
            noise = draw_block(kernel, library, key, np.full(AT_ONCE, made), length, first)
            states, packed, _ = move_chains(kernel, target, library, states, noise, length, active, False)
            positions = unpack_trace(kernel, packed).position
            for steps in num_steps:
                if made < steps <= made + length:
                    reached[steps][rows] = positions[steps - made - 1][active]
    return reached


def _flow(
    problem: Problem, before: Float[np.ndarray, "n dim"], after: Float[np.ndarray, "n dim"], level: float
) -> ReversibilityReport:
    """The moves between modes, and whether as many lead one way as the other."""
    size = len(problem.weights)
    flow = np.zeros((size, size), int)
    np.add.at(flow, (nearest(problem, before)[0], nearest(problem, after)[0]), 1)
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


@lru_cache(maxsize=4)
def _draws(problem: Problem, num_draws: int, seed: int) -> tuple[Float[np.ndarray, "n dim"], dict[str, np.ndarray]]:
    """Exact draws to start from, and what is known of four times as many others, in order where order counts."""
    rng = np.random.default_rng(seed)
    start, fresh = problem.draw(rng, num_draws)[0], problem.draw(rng, 4 * num_draws)[0]
    return start, {
        name: column if name == "mode" else np.sort(column) for name, column in _statistics(problem, fresh).items()
    }


def _statistics(problem: Problem, position: Float[np.ndarray, "n dim"]) -> dict[str, np.ndarray]:
    label, distance = nearest(problem, position)
    columns = {f"x[{i}]": position[:, i] for i in range(position.shape[1])}
    return columns | {"log density": logdensities(problem.target, position), "distance": distance, "mode": label}


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
    """`expected` is in order. Between two values seen their distribution function is flat and the other rises, so the
    largest gap is next to one of them."""
    order = np.sort(seen)
    gaps = [
        np.searchsorted(order, order, side) / len(seen) - np.searchsorted(expected, order, side) / len(expected)
        for side in ("left", "right")
    ]
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
