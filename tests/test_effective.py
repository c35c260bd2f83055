"""Effective draws and R-hat, beside ArviZ and where the truth is known."""

import numpy as np
import pytest
from arviz_stats.base.array import array_stats

from whmc.estimate.effective import effective_draws, effective_draws_of_mean, r_hat


def autoregression(seed: int, chains: int, draws: int, correlation: float) -> np.ndarray:
    values = np.random.default_rng(seed).standard_normal((chains, draws))
    for t in range(1, draws):
        values[:, t] += correlation * values[:, t - 1]
    return values


@pytest.mark.parametrize("rounded", [False, True])
@pytest.mark.parametrize("correlation", [0.0, 0.5, 0.95, -0.6])
@pytest.mark.parametrize(("chains", "draws"), [(1, 139), (2, 48), (3, 5), (4, 1001), (16, 250)])
def test_numbers_are_those_of_arviz(chains, draws, correlation, rounded):
    values = autoregression(draws, chains, draws, correlation)
    values = np.round(values) if rounded else values
    axes = {"chain_axis": 0, "draw_axis": 1}
    assert effective_draws(values) == pytest.approx(array_stats.ess(values, **axes), rel=1e-8)
    assert effective_draws_of_mean(values) == pytest.approx(array_stats.ess(values, method="mean", **axes), rel=1e-8)
    if chains > 1:
        assert r_hat(values) == pytest.approx(array_stats.rhat(values, **axes), rel=1e-8)


def test_effective_draws_of_an_autoregression():
    """The sum of its correlations is known: n (1 - rho)/(1 + rho)."""
    values = autoregression(0, 8, 20_000, 0.8)
    assert effective_draws_of_mean(values) == pytest.approx(values.size * 0.2 / 1.8, rel=0.1)


def test_what_cannot_be_said_is_nan():
    assert np.isnan(effective_draws(np.zeros((4, 3)))) and np.isnan(effective_draws(np.ones((4, 100))))
    assert np.isnan(r_hat(np.random.default_rng(0).standard_normal((1, 100))))


def test_chains_that_stand_in_two_modes_have_a_large_r_hat():
    values = np.random.default_rng(0).standard_normal((4, 500)) + np.array([0, 0, 5, 5])[:, None]
    assert r_hat(values) > 1.5 and effective_draws(values) < 20


@pytest.mark.parametrize("draws", [100, 3001])
def test_r_hat_of_chains_that_never_move_is_infinite(draws):
    """Not some 1e15, which is what rounding leaves of a variance that is nil."""
    values = np.tile([[0.0], [1.0], [0.0], [0.0], [1.0], [0.0], [0.0]], (1, draws))
    assert r_hat(values) == np.inf and effective_draws(values) < 20
