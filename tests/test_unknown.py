"""Whole runs with nothing known but a start region, and calibration with discovery included."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import whmc
from traps.basin_truth import shares
from whmc.testing import (
    Problem,
    eggbox,
    gmm40,
    himmelblau,
    liang_wong,
    loggamma_pair,
    many_well,
    shells,
    two_scale_pair,
)


def assert_right(case: Problem, result: whmc.Result, *, se: float = 0.02) -> None:
    """Weights within five standard errors, log evidence within four, both errors small."""
    truth, error = shares(result, case.draw(np.random.default_rng(99), min(100_000, 1_000_000 // case.target.dim))[0])
    table = result.modes
    assert np.all(np.abs(table.weight - truth) < 5 * np.hypot(table.weight_se, error) + 1e-4), (table.weight, truth)
    assert np.all(table.weight_se < se)
    assert abs(result.log_evidence - case.log_evidence) < 4 * result.log_evidence_se + 1e-3
    assert result.log_evidence_se < 0.05


def found_all(case: Problem, result: whmc.Result) -> bool:
    """Every component has a peak, and there is no other. Two that are .9 nats apart are one mode."""
    peaks = result.basins.location[np.unique(result.basins.of_chart)]
    gaps = np.linalg.norm(peaks[:, None] - case.locations, axis=-1)
    return result.modes.peaks.sum() == len(case.weights) == len(set(gaps.argmin(axis=1)))


@pytest.mark.ci
def test_liang_wong_twenty_modes():
    case = liang_wong("A")
    result = whmc.sample(case.target, seed=0)
    assert found_all(case, result)
    assert_right(case, result)
    assert result.alarms == ()
    assert result.search is not None and result.search.missing.expected < 0.01


@pytest.mark.ci
def test_eggbox_bounded_by_a_transform():
    case = eggbox()
    result = whmc.sample(case.target, seed=0)
    assert_right(case, result)


WHOLE_RUNS = {
    "Liang-Wong B": lambda: liang_wong("B"),
    "GMM40": gmm40,
    "Himmelblau": lambda: himmelblau(1.0),
    "Himmelblau, hot": lambda: himmelblau(10.0),
    "3 wells": lambda: many_well(3),
    "4 wells": lambda: many_well(4),
    "8 wells": lambda: many_well(8),
    "shells D=2": lambda: shells(2),
    "shells D=5": lambda: shells(5),
    "shells D=10": lambda: shells(10),
    "two-scale D=2": lambda: two_scale_pair(2, (0.8, 0.2)),
    "two-scale D=20": lambda: two_scale_pair(20, (0.8, 0.2)),
    "two-scale D=50": lambda: two_scale_pair(50, (0.8, 0.2)),
    "two-scale D=200": lambda: two_scale_pair(200, (0.8, 0.2)),
    "log-gamma D=20": lambda: loggamma_pair(20),
}
ONE_OF_A_KIND = ("GMM40", "Himmelblau", "4 wells", "shells D=5", "two-scale D=20", "log-gamma D=20")
# components that share a peak, or overlap so much that they are one mode; the lightest of 2^8 wells, below the floor
WITHOUT_SOME = ("Liang-Wong B", "GMM40", "8 wells")


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=pytest.mark.ci if name in ONE_OF_A_KIND else pytest.mark.slow) for name in WHOLE_RUNS],
)
def test_whole_runs_on_known_truth(name):
    case = WHOLE_RUNS[name]()
    result = whmc.sample(case.target, seed=1)
    assert name in WITHOUT_SOME or len(result.modes) == len(case.weights)
    assert_right(case, result)


@pytest.mark.ci
def test_more_modes_than_charts_are_said():
    """65 536 modes: the library is capped, and the result says so in so many words."""

    def logdensity(x):
        well, other = x[0::2], x[1::2]
        return jnp.sum(0.5 * well + 6 * well**2 - well**4 - 0.5 * other**2)

    target = whmc.Target(logdensity, dim=32, starts=(-3.0, 3.0))
    finder = whmc.MultiStart(256)
    result = whmc.sample(target, finder=finder, seed=0, chains=4, draws=50, warmup=50, max_modes=32)
    names = [alarm.name for alarm in result.alarms]
    assert "library capped" in names and "mass may be missing" in names
    assert "describe the modes that were kept" in result.summary()
    assert result.search is not None and result.search.missing.expected > 0.5


SHARE, NUM_DATA = 0.3, 12
DATA = np.zeros(NUM_DATA)


def two_components(x):
    """Means of two components of shares .3 and .7, unit variance, prior N(0, 3²) each: often two modes.

    The data are read when the density is evaluated, so that all data sets share one compilation.
    """
    data = jax.pure_callback(lambda: DATA, jax.ShapeDtypeStruct((NUM_DATA,), x.dtype))
    first, second = -0.5 * (data - x[0]) ** 2, -0.5 * (data - x[1]) ** 2
    return jnp.sum(jnp.logaddexp(np.log(SHARE) + first, np.log(1 - SHARE) + second)) - jnp.sum(x**2) / 18


@pytest.mark.ci
def test_simulation_based_calibration_of_a_mixture_model():
    """Ranks of the true parameters among the draws are uniform, with search and weights a part of the procedure.

    Ranked: the sum, the larger and the first of the two means. 160 data sets, ranks among 63 thinned draws, a
    chi-square of 8 bins each.
    """
    target = whmc.Target(two_components, dim=2, starts=(-9.0, 9.0))
    rng = np.random.default_rng(0)
    ranks = []
    for run in range(160):
        means = rng.normal(0, 3, 2)
        DATA[:] = rng.normal(np.where(rng.uniform(size=NUM_DATA) < SHARE, *means), 1)
        result = whmc.sample(target, finder=whmc.MultiStart(128), seed=run, chains=7, draws=270, warmup=150)
        draws = result.draws[:, ::30].reshape(-1, 2)[:63]
        below = [draws.sum(axis=1) < means.sum(), draws.max(axis=1) < means.max(), draws[:, 0] < means[0]]
        ranks.append([np.sum(one) for one in below])
    for column in np.array(ranks).T:
        counts = np.bincount(column // 8, minlength=8)
        square = np.sum((counts - 20.0) ** 2 / 20.0)
        assert square < 26.1, (counts, square)  # chi-square of 7 degrees of freedom, one in two thousand
