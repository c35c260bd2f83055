"""Charts with bands: factors of a precision, the map and its inverse, the curvature that gives them, whole runs."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

import whmc
from whmc.kernels.trajectory import mean_precision
from whmc.modes.band import band_product, banded_scale
from whmc.modes.chart_data import ChartData, with_numbers
from whmc.modes.curvature import BAND_WIDTHS, expand
from whmc.modes.layers.banded import Banded
from whmc.modes.mixture import log_components, log_components_of, log_mixture
from whmc.modes.refine import merge_duplicates, with_gaussian_base, with_student_base
from whmc.search.peak import Peak
from whmc.search.polish import polish
from whmc.search.residual import log_tempered
from whmc.storage.serialize import pack, unpack
from whmc.testing.shapes import ar1_pair

SIZES = [(10, 2), (11, 3), *(pytest.param(*size, marks=pytest.mark.ci) for size in ((7, 1), (40, 4), (65, 1)))]
"""Dimensions and widths; blocks of the width divide some of the dimensions and not others."""


def precision_of(dim, width, seed=0):
    """A banded precision: its matrix, its diagonal and what is beside."""
    rng = np.random.default_rng(seed)
    factor = np.eye(dim) + sum(np.diag(0.5 * rng.standard_normal(dim - m), m) for m in range(1, width + 1))
    whole = factor / np.exp(rng.standard_normal(dim))
    matrix = whole.T @ whole
    beside = np.zeros((width, dim))
    for m in range(1, width + 1):
        beside[m - 1, : dim - m] = np.diagonal(matrix, -m)
    return matrix, np.diagonal(matrix).copy(), beside


def library_of(dim, width, dof=np.inf):
    """Two charts with bands, one without, and an unused place; and the precisions of the charts."""
    found = [precision_of(dim, width, seed) for seed in range(2)]
    scales, couplings = zip(*(banded_scale(*one[1:]) for one in found), strict=True)
    location = np.random.default_rng(2).standard_normal((3, dim))
    bands = [*map(Banded.of, scales, couplings), np.ones(dim)]
    charts = [ChartData.of(*two, mode=k) for k, two in enumerate(zip(location, bands, strict=True))]
    library = whmc.ModeLibrary.of(with_numbers(charts, log_weight=np.log([0.5, 0.3, 0.2])), capacity=4, dof=dof)
    return library, [*(one[0] for one in found), np.eye(dim)]


def points(dim, num=4):
    return np.random.default_rng(1).standard_normal((num, dim))


@pytest.mark.parametrize(("dim", "width"), SIZES)
def test_factors_of_a_band_give_it_back(dim, width):
    matrix, diagonal, beside = precision_of(dim, width)
    scale, coupling = banded_scale(diagonal, beside)
    factor = np.eye(dim) + sum(np.diag(coupling[m - 1, : dim - m], m) for m in range(1, width + 1))
    np.testing.assert_allclose((factor / scale).T @ (factor / scale), matrix, rtol=1e-9, atol=1e-9)
    rows = points(dim)
    np.testing.assert_allclose(band_product(diagonal, beside, rows[0]), matrix @ rows[0], rtol=1e-9)
    band = Banded.of(scale, coupling)
    np.testing.assert_allclose(band.inverse(rows)[0], (rows / scale) @ factor.T, atol=1e-12)
    np.testing.assert_allclose(band.transposed(rows) @ factor, rows * scale, rtol=1e-9, atol=1e-9)


def test_what_is_not_positive_has_no_factors():
    assert banded_scale(np.ones(3), np.array([[2.0, 0.0, 0.0]])) is None


@pytest.mark.parametrize(("dim", "width"), SIZES)
def test_whiten_and_back_with_the_volume_of_the_scale(dim, width):
    library, _ = library_of(dim, width)
    for k in range(3):
        chart = library.chart(k)
        for x in points(dim):
            there = chart.unwhiten(jnp.asarray(x))
            np.testing.assert_allclose(chart.whiten(there), x, atol=1e-9)
            volume = jnp.linalg.slogdet(jax.jacfwd(chart.unwhiten)(jnp.asarray(x)))[1]
            np.testing.assert_allclose(chart.log_volume(there), volume, atol=1e-9)


@pytest.mark.parametrize(("dim", "width"), SIZES)
def test_the_pulled_score_is_the_gradient_in_displacements(dim, width):
    library, _ = library_of(dim, width)

    def log_density(position):
        return jnp.sum(jnp.cos(position)) + jnp.sin(position[0] + position[-1])

    for k in range(3):
        chart, displacement = library.chart(k), jnp.asarray(points(dim)[k])
        score = jax.grad(log_density)(chart.position(displacement))
        expected = jax.grad(lambda d, chart=chart: log_density(chart.position(d)))(displacement)
        np.testing.assert_allclose(chart.pulled(displacement, score), expected, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize(("dim", "width"), SIZES[:3])
def test_components_are_those_gaussians(dim, width):
    """In JAX, in NumPy, and as the residual search knows them."""
    library, precisions = library_of(dim, width)
    location, weight = np.asarray(library.location), [0.5, 0.3, 0.2]
    laws = [stats.multivariate_normal(location[k], np.linalg.inv(precisions[k])) for k in range(3)]
    theta = points(dim)
    expected = np.array([np.log(weight[k]) + laws[k].logpdf(theta) for k in range(3)])
    np.testing.assert_allclose(log_components_of(library, theta), expected, rtol=1e-8)
    for row, heights in zip(theta, expected.T, strict=True):
        np.testing.assert_allclose(log_components(library, jnp.asarray(row))[:3], heights, rtol=1e-8)

    def log_q(x):
        return log_mixture(log_components(library, x))

    height, pull = log_tempered(library, theta, 1.0)
    np.testing.assert_allclose(height, [log_q(jnp.asarray(x)) for x in theta], rtol=1e-8)
    np.testing.assert_allclose(pull, [jax.grad(log_q)(jnp.asarray(x)) for x in theta], rtol=1e-7, atol=1e-9)


def test_libraries_with_bands_grow_and_shrink_and_are_stored():
    library, _ = library_of(10, 2)

    def couplings(one):
        return np.stack([chart.scale.coupling for chart in one.charts()])

    wide = np.zeros((3, 10))
    wide[2, :7] = 0.4
    grown = library.add(np.zeros(10), Banded.of(np.ones(10), wide))
    assert couplings(grown).shape == (4, 3, 10)
    np.testing.assert_array_equal(couplings(grown)[:3, :2], couplings(library))
    np.testing.assert_array_equal(couplings(grown)[3], wide)
    np.testing.assert_array_equal(couplings(library.add(np.zeros(10), np.ones(10)))[3], 0.0)
    np.testing.assert_array_equal(couplings(library.drop(0)), couplings(library)[1:])
    np.testing.assert_array_equal(couplings(library.merge(1, 0))[0], couplings(library)[1])
    np.testing.assert_array_equal(couplings(library.padded(9)), couplings(library))
    back = with_gaussian_base(with_student_base(library, 5.0))
    np.testing.assert_array_equal(couplings(back), couplings(library))
    first = whmc.ModeLibrary.from_charts(np.zeros((1, 10)), np.ones((1, 10))).add(
        np.ones(10), Banded.of(np.ones(10), wide)
    )
    np.testing.assert_array_equal(couplings(first), np.stack([np.zeros_like(wide), wide]))
    again = unpack(pack({"library": library}))["library"]
    theta = jnp.asarray(points(10)[0])
    np.testing.assert_array_equal(again.whiten(0, theta), library.whiten(0, theta))


def test_a_chart_given_twice_is_merged():
    library, _ = library_of(10, 2)
    twice = library.add(library.location[0], library.charts()[0].scale)
    assert merge_duplicates(twice).size == 3


@pytest.mark.parametrize(
    ("scale", "coupling", "told"),
    [
        (np.ones(4), np.zeros((4, 4)), "width from 1 to 3"),
        (np.ones(4), np.full((1, 4), np.nan), "no inverse"),
        (-np.ones(4), np.zeros((1, 4)), "positive"),
    ],
)
def test_what_is_no_band_is_refused(scale, coupling, told):
    with pytest.raises(ValueError, match=told), np.errstate(invalid="ignore"):
        ChartData.of(np.zeros(4), Banded.of(scale, coupling))


def gaussian(matrix):
    whole = jnp.asarray(matrix)
    return whmc.Target(lambda x: -0.5 * x @ whole @ x, dim=len(matrix), starts=(-2.0, 2.0))


@pytest.mark.parametrize("width", BAND_WIDTHS[1:])
def test_curvature_that_is_a_band_is_known_exactly(width):
    matrix, diagonal, beside = precision_of(40, width)
    around = expand(gaussian(matrix), np.full(40, 0.1), diagonal=True)
    np.testing.assert_allclose(around.precision, diagonal, rtol=1e-5)
    np.testing.assert_allclose(around.beside, beside, rtol=1e-5, atol=1e-5 * np.abs(beside).max())


def test_other_curvature_is_not_taken_for_a_band():
    rng = np.random.default_rng(0)
    factor = rng.standard_normal((40, 40)) / np.sqrt(40) + np.eye(40)
    assert expand(gaussian(factor.T @ factor), np.zeros(40), diagonal=True).beside is None
    assert expand(gaussian(np.diag(rng.uniform(1, 5, 40))), np.zeros(40), diagonal=True).beside is None


def test_stiff_coordinates_do_not_speak_for_a_band_beside_them():
    matrix, _, beside = precision_of(40, 1)
    whole = np.zeros((50, 50))
    whole[:40, :40], whole[40:, 40:] = matrix, 1e6 * np.eye(10)
    around = expand(gaussian(whole), np.full(50, 0.1), diagonal=True)
    np.testing.assert_allclose(around.beside[:, :40], beside, rtol=1e-4, atol=1e-4 * np.abs(beside).max())


def test_a_direction_without_curvature_makes_no_band():
    """A random walk without a level."""
    walk = np.diff(np.eye(30), axis=0)
    around = expand(gaussian(walk.T @ walk), np.zeros(30), diagonal=True)
    assert around.beside is not None
    assert around.curvature(10.0).coupling is None


def test_precisions_of_bands():
    library, precisions = library_of(10, 2)
    expected = np.array([0.5, 0.3, 0.2]) @ [np.diagonal(matrix) for matrix in precisions]
    np.testing.assert_allclose(mean_precision(library), expected, rtol=1e-9)


def test_bands_that_differ_are_two_modes():
    library, _ = library_of(10, 2)
    twice = library.add(
        library.location[0], Banded.of(library.charts()[0].scale.sd, -library.charts()[0].scale.coupling)
    )
    assert merge_duplicates(twice).size == 4


def test_newton_steps_polish_a_band_in_high_dimension():
    """From far away: a start of the region, where a descent would take hundreds of gradients."""
    matrix, _, _ = precision_of(1200, 2)
    target = gaussian(matrix)
    found, cost = polish(target, points(1200)[0], widest=4.0)
    assert isinstance(found, Peak)
    np.testing.assert_allclose(found.whiten(np.zeros((1, 1200))), 0.0, atol=1e-3)
    np.testing.assert_allclose(
        found.log_laplace, 600 * np.log(2 * np.pi) - 0.5 * np.linalg.slogdet(matrix)[1], rtol=1e-6
    )
    assert cost < 1000
    rows = points(1200)
    np.testing.assert_allclose(found.whiten(found.unwhiten(rows)), rows, atol=1e-8)
    # L^T score: the Newton step leads to the peak
    there = found.unwhiten(rows)
    np.testing.assert_allclose(found.pulled(-there @ matrix), -rows, atol=1e-3)


@pytest.mark.ci
def test_neighbours_that_are_coupled_in_a_thousand_dimensions():
    """Modes of an AR(1) pair found, weighed and normalised; a diagonal chart misses the evidence by hundreds."""
    shape = ar1_pair(1000)
    result = whmc.sample(shape.target, seed=0)
    assert not result.alarms
    heavier = result.modes.weight.max()
    se = result.modes.weight_se.max()
    assert se < 0.01 and abs(heavier - 0.6) < 4 * se
    assert result.log_evidence_se < 0.2
    assert abs(result.log_evidence - shape.log_evidence) < 4 * result.log_evidence_se
    assert result.acceptance["Wormhole"] > 0.4
