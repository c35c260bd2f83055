"""Bends fitted to draws, and which modes get them."""

import numpy as np
import pytest

import whmc
from contracts import columns
from test_split import banana, ring
from whmc.modes.bending import LOOKED_AT, LOOKS, bend_charts, best_bend, may_bend
from whmc.modes.chart_data import ChartData
from whmc.modes.fit_bend import _Fit, fit_bend
from whmc.modes.gaussian_mixture import GaussianMixture
from whmc.modes.layers.bend import Bend
from whmc.modes.library import ModeLibrary
from whmc.modes.mixture import log_ratio_of
from whmc.modes.refine import merge_duplicates
from whmc.modes.split import best_mixture, fit_mixtures
from whmc.target.counted import counted
from whmc.testing import SHAPES


def twisted(num, dim=8, seed=0):
    """Draws and log densities of one mode of the twisted pair."""
    z = np.random.default_rng(seed).standard_normal((num, dim))
    x = z.copy()
    x[:, 0] = 8 * z[:, 0]
    x[:, 1] = z[:, 1] - 0.05 * (x[:, 0] ** 2 - 64)
    return x, -0.5 * np.sum(z**2, axis=1) - np.log(8) - 0.5 * dim * np.log(2 * np.pi)


def funnel(num, dim=6, seed=0):
    rng = np.random.default_rng(seed)
    v, z = 1.2 * rng.standard_normal(num), rng.standard_normal((num, dim - 1))
    log_density = -0.5 * (v / 1.2) ** 2 - np.log(1.2) - 0.5 * np.sum(z**2, axis=1) - 0.5 * (dim - 1) * v
    return np.column_stack([v, z * np.exp(v / 2)[:, None]]), log_density - 0.5 * dim * np.log(2 * np.pi)


def turned(shape, num, seed, rotate):
    """Rotated draws: a bend along no axis."""
    x, log_density = shape(num, seed=seed)
    turn = np.linalg.qr(np.random.default_rng(7).standard_normal((x.shape[1],) * 2))[0]
    return (x @ turn.T if rotate else x), log_density


@pytest.mark.parametrize("rotate", [False, True])
@pytest.mark.parametrize("shape", [twisted, funnel])
def test_a_bend_fits_where_it_is_the_truth(shape, rotate):
    """The divergence from the truth is that of some 60 fitted numbers, 60/(2n) = .01 nats; that of one Gaussian 1.5."""
    chart = fit_bend(turned(shape, 3000, 0, rotate)[0])
    x, log_density = turned(shape, 5000, 1, rotate)
    gap = log_density - chart.log_density(x)
    assert gap.mean() < 0.02 + 4 * gap.std() / np.sqrt(len(gap))


@pytest.mark.parametrize("a", [0.0, 0.3])
def test_slopes_of_the_likelihood_are_its_derivatives(a):
    x, _ = twisted(300, dim=5)
    z = np.linalg.solve(np.linalg.cholesky(np.cov(x.T, bias=True)), (x - x.mean(axis=0)).T).T
    v = np.random.default_rng(1).standard_normal(5)
    v, h = v / np.linalg.norm(v), 1e-6
    fit = _Fit.of(v, a, z)

    def height(v, a):
        return _Fit.of(v / np.linalg.norm(v), a, z).height

    numeric = [(height(v + h * e, a) - height(v - h * e, a)) / (2 * h) for e in np.eye(5)]
    np.testing.assert_allclose(fit.slope_v, numeric, atol=1e-7)
    np.testing.assert_allclose(fit.slope_a, (height(v, a + h) - height(v, a - h)) / (2 * h), atol=1e-7)


def test_the_height_is_the_likelihood_of_the_chart():
    """What a fit says to gain over one Gaussian is what its chart gives to the draws, whatever v and a are."""
    x, _ = turned(twisted, 500, 0, True)
    centre, scale = x.mean(axis=0), np.linalg.cholesky(np.cov(x.T, bias=True))
    z = np.linalg.solve(scale, (x - centre).T).T
    v = np.random.default_rng(1).standard_normal(8)
    fit = _Fit.of(v / np.linalg.norm(v), 0.2, z)
    gain = np.mean(fit.chart(centre, scale).log_density(x) - ChartData.of(centre, scale).log_density(x))
    np.testing.assert_allclose(gain, -fit.height, atol=1e-10)


def straight(draws):
    """The Gaussian of the draws as a chart, wide where they do not differ."""
    factor = np.linalg.cholesky(np.cov(draws.T, bias=True) + 1e-9 * np.eye(draws.shape[1]))
    return ChartData.of(draws.mean(axis=0), factor)


def bend_of(draws):
    """For draws of a mode that has the chart of their moments."""
    return best_bend(straight(draws), draws)


@pytest.mark.parametrize("seed", range(5))
def test_a_gaussian_is_not_bent(seed):
    rng = np.random.default_rng(seed)
    assert bend_of(rng.standard_normal((500, 4)) @ rng.standard_normal((4, 4))) is None


def test_too_few_draws_are_not_bent():
    assert bend_of(twisted(179)[0]) is None and bend_of(twisted(400)[0]) is not None


@pytest.mark.parametrize(
    "draws", [np.zeros((300, 2)), np.stack([np.linspace(0, 1, 300)] * 2, axis=1), np.full((300, 2), 1e8)]
)
def test_degenerate_draws_are_not_bent(draws):
    assert bend_of(draws) is None


def banana_ring_and_round():
    """Three modes and the draws of all, with their log densities; each chart has its mode's moments."""
    z = np.random.default_rng(1).standard_normal((1500, 2))
    parts = [banana(1500), ring(1500), (z, -0.5 * np.sum(z**2, axis=1) - np.log(2 * np.pi))]
    shifts = np.array([[0.0, 0.0], [40.0, 0.0], [0.0, 40.0]])
    draws = [part[0] + shift for part, shift in zip(parts, shifts, strict=True)]
    library = ModeLibrary.from_charts(
        [rows.mean(axis=0) for rows in draws], [np.linalg.cholesky(np.cov(rows.T)) for rows in draws], capacity=16
    )
    return library, np.concatenate(draws), np.concatenate([part[1] for part in parts]) - np.log(3)


def test_bananas_are_bent_rings_are_split_and_round_modes_stay():
    library, position, logdensity = banana_ring_and_round()
    found = bend_charts(library, position, logdensity)
    assert found.bent[0] and not found.bent[2]
    np.testing.assert_allclose(columns(found).log_weight, columns(library).log_weight)
    whole = fit_mixtures(found, position, logdensity, grow=True)
    np.testing.assert_array_equal(np.bincount(whole.mode_of)[[0, 2]], 1)
    assert np.bincount(whole.mode_of)[1] > 4
    assert whole.bent[0] and not np.any(whole.bent[whole.mode_of == 2])
    before, after = (np.std(log_ratio_of(one, position, logdensity)) for one in (library, whole))
    assert after < 0.5 * before


def test_charts_that_share_the_draws_of_one_mode_are_not_bent():
    """The draws of each end where the other begins; alone, the banana that they cover would be bent."""
    position, logdensity = banana(1500)
    spread = np.linalg.cholesky(np.cov(position.T))
    beside = position.mean(axis=0) + np.array([[0.2, 0.0], [-0.2, 0.0]])
    two = ModeLibrary.from_charts(beside, [spread, spread], capacity=4)
    assert bend_charts(two, position, logdensity) is two
    assert bend_charts(two.drop(1), position, logdensity).bent[0]


def test_bends_are_fitted_again_where_that_helps():
    few, many, held = (twisted(num, seed=seed)[0] for seed, num in enumerate((200, 4000, 4000)))
    rough = bend_of(few)
    better = best_bend(rough, many)
    assert np.mean(better.log_density(held) - rough.log_density(held)) > 0.05
    assert best_bend(better, few) is None  # fewer draws do no better


def test_a_bend_must_gain_on_the_chart_that_the_mode_has():
    """In D = 16 moments of few draws are so rough that a bend gains on them, and not on a chart that is right."""
    draws = np.random.default_rng(3).standard_normal((400, 16))
    draws[:, 1] += 0.7 * (draws[:, 0] ** 2 - 1)
    exact = ChartData.of(np.zeros(16), np.diag([1.0, np.sqrt(1.98), *np.ones(14)]))
    assert best_bend(straight(draws[::2]), draws) is not None
    assert best_bend(exact, draws) is None


def test_gaussians_stand_beside_a_bent_chart():
    """A banana with a blob beside it: the bend stays, and the blob gets a chart."""
    rng = np.random.default_rng(3)
    whole = np.concatenate([banana(3000)[0], np.array([0.0, 6.0]) + 0.5 * rng.standard_normal((1000, 2))])
    whole, held = np.split(whole[rng.permutation(4000)], 2)
    bend = fit_bend(banana(3000, seed=1)[0])
    none = GaussianMixture(np.zeros(0), np.zeros((0, 2)), np.zeros((0, 2, 2)))
    found = best_mixture(none, whole, 10.0, 16, bend)
    alone = best_mixture(none, whole, 10.0, len(found.weight))
    assert found.home is bend and 0.6 < found.home_share < 0.8
    assert np.min(np.linalg.norm(found.mean - [0.0, 6.0], axis=1)) < 0.2
    assert found.log_density(held).mean() > alone.log_density(held).mean() + 0.05


def test_what_fits_already_is_left_alone():
    """Misfits below the least gain cost no fit at all."""
    rng = np.random.default_rng(0)
    draws = rng.standard_normal((2000, 3))
    library = ModeLibrary.from_charts(np.zeros((1, 3)), np.eye(3)[None], capacity=4)
    assert bend_charts(library, draws, -0.5 * np.sum(draws**2, axis=1)) is library


@pytest.mark.parametrize(("shape", "bent"), [("twisted", True), ("funnel", True), ("rastrigin-2", False)])
def test_charts_that_fit_badly_are_seen_before_any_draw(shape, bent):
    target = SHAPES[shape]().target
    library = whmc.search_modes(target, seed=0).library
    with counted() as spent:
        assert may_bend(target, library) == bent
    assert 0 < spent.num <= LOOKS * LOOKED_AT


def test_two_bananas_that_bend_apart_are_two_modes():
    """Their Gaussians are the same: without their bends they would be merged."""
    bends = [Bend.of(np.array([1.0, 0.0]), np.array([0.0, curve]), np.zeros(())) for curve in (1.0, -1.0)]
    charts = [ChartData.of(np.zeros(2), np.eye(2), [bend], mode=k) for k, bend in enumerate(bends)]
    library = ModeLibrary.of(charts)
    assert merge_duplicates(library).size == 2


@pytest.mark.ci
@pytest.mark.xdist_group("runs with bends")
@pytest.mark.parametrize("adapt", ["warmup", "regeneration"])
def test_runs_with_bent_charts_go_on_where_they_stopped(tmp_path, adapt):
    shape = SHAPES["twisted"]()
    modes = [[0.0, 3.2, *[0.0] * 6], [0.0, 36.8, *[0.0] * 6]]
    settings = {"modes": modes, "seed": 1, "warmup": 300, "adapt": adapt, "progress": False}
    whole = whmc.sample(shape.target, draws=200, **settings)
    assert np.all(whole.library.bent) and whole.library.size == 2
    whmc.sample(shape.target, draws=80, store=tmp_path / "run", **settings)
    again = whmc.resume(tmp_path / "run", shape.target, draws=200, progress=False)
    np.testing.assert_array_equal(again.draws, whole.draws)
    assert np.all(np.abs(whole.modes.weight - [0.6, 0.4]) < 5 * whole.modes.weight_se)
