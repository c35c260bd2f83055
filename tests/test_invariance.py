"""T2, T3: every kernel leaves every target invariant, with right charts and wrong, and changes modes reversibly.

A report of 50 000 draws against 200 000 fresh ones sees gaps in a distribution function of about .015.
"""

import numpy as np
import pytest

from contracts import CYCLE, KERNELS, PROBLEMS, problem, wrong_libraries
from whmc.testing import invariance_test, reversibility_test

# a mass that all modes share suits these two badly: their trajectories are mostly rejected
MOVES_LITTLE = {("trajectory", "three"), ("trajectory", "rotated")}


NUM_DRAWS = 50_000  # one number for all, so that a kernel compiles once for a target
COSTLY = {"many-well": [], "himmelblau": [], "shells": ["throat"], "three": ["wormhole"]}
"""Targets that take long, and the kernels that are tried on them all the same; the others are among the slow tests."""
PAIRS = [
    pytest.param(kernel, target, marks=pytest.mark.slow if kernel not in COSTLY.get(target, KERNELS) else ())
    for kernel in KERNELS
    for target in PROBLEMS
]


@pytest.mark.parametrize(("kernel", "target"), PAIRS)
def test_kernel_is_invariant_and_reversible_between_modes(kernel, target):
    case = problem(target)
    report = invariance_test(KERNELS[kernel], case, num_steps=(1, 10), num_draws=NUM_DRAWS)
    assert report.passed, str(report)
    assert report.moved > (0.02 if (kernel, target) in MOVES_LITTLE else 0.3), str(report)
    flow = reversibility_test(KERNELS[kernel], case, num_draws=NUM_DRAWS)
    assert flow.passed, f"{flow.flow} p = {flow.p_value}"
    if kernel in ("wormhole", "throat", "gibbs", "independence"):
        assert flow.flow.sum() - np.trace(flow.flow) > 500, flow.flow


@pytest.mark.parametrize("target", PROBLEMS)
def test_cycle_is_invariant(target):
    report = invariance_test(CYCLE, problem(target), num_steps=(1, 10, 100), num_draws=NUM_DRAWS // 5)
    assert report.passed, str(report)
    assert report.moved > 0.99, str(report)


CHARTED = ["local", "wormhole", "independence", "cycle"]


@pytest.mark.parametrize(
    "kernel",
    [pytest.param(name, marks=[pytest.mark.slow] * (name not in CHARTED)) for name in [*KERNELS, "cycle"]],
)
def test_wrong_charts_cost_speed_and_never_correctness(kernel):
    case = problem("two-scale")
    chosen = CYCLE if kernel == "cycle" else KERNELS[kernel]
    for name, library in wrong_libraries(case.library).items():
        report = invariance_test(chosen, case, library=library, num_steps=(1, 10))
        assert report.passed, f"{name}: {report}"
        still = name == "missing" and kernel in ("wormhole", "throat", "gibbs")  # one mode alone: no jumps
        assert (report.moved == 0) if still else (report.moved > 0.1), f"{name}: {report}"


@pytest.mark.slow
@pytest.mark.parametrize("target", PROBLEMS)
@pytest.mark.parametrize("kernel", KERNELS)
def test_kernel_is_invariant_over_a_hundred_steps(kernel, target):
    report = invariance_test(KERNELS[kernel], problem(target), num_steps=(1, 10, 100), seed=1)
    assert report.passed, str(report)


@pytest.mark.slow
@pytest.mark.parametrize("target", PROBLEMS)
def test_cycle_is_invariant_over_a_hundred_steps(target):
    report = invariance_test(CYCLE, problem(target), num_steps=(1, 10, 100), num_draws=100_000, seed=1)
    assert report.passed, str(report)
