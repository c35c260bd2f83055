"""Heavy tails fitted to draws, and which charts get them. The map itself is tested with that of bends."""

import dataclasses

import numpy as np
import pytest
from scipy import stats

from test_bending import twisted
from whmc.modes.bending import bend_charts
from whmc.modes.chart_data import ChartData, log_weights_of
from whmc.modes.fit_tail import fit_tail
from whmc.modes.layers.tails import Tail
from whmc.modes.library import ModeLibrary
from whmc.modes.mixture import log_ratio_of
from whmc.modes.tailing import tail_charts


def product_t(num, dim=5, dof=3, seed=0):
    """Draws and log densities of a product of Student-t, each coordinate in units of its own."""
    z = np.random.default_rng(seed).standard_t(dof, (num, dim))
    scale = np.linspace(0.5, 2, dim)
    return z * scale, np.sum(stats.t(dof).logpdf(z) - np.log(scale), axis=1)


def moments(draws):
    return ChartData.of(draws.mean(axis=0), np.diag(draws.std(axis=0)))


@pytest.mark.parametrize("dof", [2, 3, 10])
def test_tails_fit_student_t(dof):
    """KL of .03 a coordinate or less, where one Gaussian has .2 at three degrees of freedom and does not end at two."""
    draws, held = product_t(2000, dof=dof)[0], product_t(4000, dof=dof, seed=1)
    found = fit_tail(moments(draws), draws)
    assert np.mean(held[1] - found.log_density(held[0])) < 0.03 * 5
    assert np.all(found.warp(Tail).heaviness > 0)


@pytest.mark.parametrize("seed", range(5))
def test_a_gaussian_gets_no_tails(seed):
    rng = np.random.default_rng(seed)
    draws = 3.0 + rng.standard_normal((1000, 6)) @ rng.standard_normal((6, 6))
    chart = ChartData.of(draws.mean(axis=0), np.linalg.cholesky(np.cov(draws.T)))
    found = fit_tail(chart, draws)
    assert np.all(found.warp(Tail).heaviness <= 0.06)
    assert np.mean(found.log_density(draws) - chart.log_density(draws)) < 0.03


@pytest.mark.parametrize("draws", [np.zeros((300, 2)), np.full((300, 2), 1e8), np.repeat([[0.0, 1.0]], 300, axis=0)])
def test_chains_that_do_not_move_tell_nothing_of_tails(draws):
    chart = ChartData.of(np.zeros(2), np.eye(2))
    assert fit_tail(chart, draws) is None
    library = ModeLibrary.from_charts(np.zeros((1, 2)), np.eye(2)[None], capacity=4)
    assert tail_charts(library, draws, -0.5 * np.sum(draws**2, axis=1)) is library


def two_modes(shape):
    """A library of two modes with their moments, one straight and Gaussian in its tails, and their draws."""
    z = 30 + np.random.default_rng(1).standard_normal((1500, 5))
    draws, log_density = shape(1500)
    parts = [(draws, log_density), (z, stats.multivariate_normal(np.full(5, 30.0)).logpdf(z))]
    charts = [dataclasses.replace(moments(part[0]), step_size=0.5 + 0.5 * k, mode=k) for k, part in enumerate(parts)]
    library = ModeLibrary.of(charts, capacity=8)
    return library, np.concatenate([part[0] for part in parts]), np.concatenate([part[1] for part in parts]) - np.log(2)


def test_charts_with_tails_have_flatter_ratios():
    library, position, logdensity = two_modes(product_t)
    found = tail_charts(library, position, logdensity)
    np.testing.assert_array_equal(found.bent, [True, False])
    before, after = (np.std(log_ratio_of(one, position, logdensity)) for one in (library, found))
    assert after < 0.5 * before
    np.testing.assert_allclose(log_weights_of(found.charts()), log_weights_of(library.charts()))
    assert found.charts()[0].step_size >= 0.5 and found.charts()[1].step_size == 1.0
    again = tail_charts(found, position, logdensity)
    assert again.kinds == (Tail,)


def test_gaussian_modes_and_bent_ones_get_no_tails():
    def gaussian(num):
        z = np.random.default_rng(2).standard_normal((num, 5))
        return z, stats.multivariate_normal(np.zeros(5)).logpdf(z)

    library, position, logdensity = two_modes(gaussian)
    assert tail_charts(library, position, logdensity) is library
    draws, logdensity = twisted(1500)
    chart = ModeLibrary.from_charts([draws.mean(axis=0)], [np.linalg.cholesky(np.cov(draws.T))], capacity=4)
    bent = bend_charts(chart, draws, logdensity)
    assert bent.bent[0] and tail_charts(bent, draws, logdensity) is bent
