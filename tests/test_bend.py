"""Charts that are bent or have tails: the map and its inverse, its volume, its force, the mixture that they make."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

import whmc
from contracts import bent, tailed
from whmc.kernels.random import draw_noise
from whmc.modes.bend import REACH
from whmc.modes.chart_data import ChartData
from whmc.modes.layers.bend import Bend
from whmc.modes.mixture import NUM_UNIFORM, draw_mixture, log_components, log_components_of, log_mixture
from whmc.modes.refine import with_gaussian_base, with_student_base
from whmc.search.residual import log_tempered

DIM = 4


KINDS = pytest.mark.parametrize("kind", [bent, tailed])


def library(kind=bent, dof=np.inf):
    """Two charts that are bent, or have tails, a straight one, and an unused place."""
    rng = np.random.default_rng(0)
    scales = np.tril(0.3 * rng.standard_normal((3, DIM, DIM)), -1) + rng.uniform(0.5, 2, (3, DIM, 1)) * np.eye(DIM)
    straight = whmc.ModeLibrary.from_charts(
        rng.standard_normal((3, DIM)), scales, log_weight=np.log([0.5, 0.3, 0.2]), capacity=4, dof=dof
    )
    whole = kind(straight)
    *charts, last = whole.charts()
    return whole.with_charts([*charts, dataclasses.replace(last, warps=())])


def parameters(library):
    """Of the warps that its charts have."""
    return jax.tree.leaves([one.warps for one in library.charts()])


def points(num=6):
    return np.random.default_rng(1).standard_normal((num, DIM))


@KINDS
@pytest.mark.parametrize("k", range(3))
def test_whiten_and_back(kind, k):
    chart = library(kind).chart(k)
    for x in points():
        np.testing.assert_allclose(chart.whiten(chart.unwhiten(jnp.asarray(x))), x, atol=1e-12)


@KINDS
@pytest.mark.parametrize("k", range(3))
@pytest.mark.parametrize("far", [1.0, 3 * REACH])  # the stretch is cut there
def test_volume_is_that_of_the_map(kind, k, far):
    chart = library(kind).chart(k)
    for x in far * points(3):
        jacobian = jax.jacfwd(chart.unwhiten)(jnp.asarray(x))
        volume = chart.log_volume(chart.unwhiten(jnp.asarray(x)))
        np.testing.assert_allclose(jnp.linalg.slogdet(jacobian)[1], volume, atol=1e-8)


@KINDS
@pytest.mark.parametrize("k", range(3))
@pytest.mark.parametrize("far", [1.0, 3 * REACH])
def test_the_pulled_score_is_the_gradient_in_displacements(kind, k, far):
    chart = library(kind).chart(k)

    def log_density(position):
        return jnp.sum(jnp.cos(position)) + jnp.sin(position[0] + position[1])

    def straightened(displacement):
        position = chart.position(displacement)
        return log_density(position) + chart.log_volume(position)

    for x in far * points(3):
        displacement = jnp.asarray(x)
        score = jax.grad(log_density)(chart.position(displacement))
        expected = jax.grad(straightened)(displacement)
        np.testing.assert_allclose(chart.pulled(displacement, score), expected, rtol=1e-9, atol=1e-9)


@KINDS
def test_a_straight_chart_beside_bent_ones_is_straight(kind):
    one, position = library(kind), jnp.asarray(points(1)[0])
    np.testing.assert_array_equal(one.bent, [True, True, False])
    np.testing.assert_allclose(one.whiten(2, position), one.inverse_scale[2] @ (position - one.location[2]), atol=1e-14)
    assert float(one.chart(2).log_volume(position)) == pytest.approx(float(one.log_det[2]))


@KINDS
@pytest.mark.parametrize("dof", [np.inf, 5.0])
def test_components_are_densities_of_the_bent_base(kind, dof):
    """omega_k b(x_k) / |d theta/d x_k|, the volume by automatic differentiation; in JAX and in NumPy."""
    one = library(kind, dof)
    law = stats.multivariate_normal(np.zeros(DIM)) if np.isinf(dof) else stats.multivariate_t(np.zeros(DIM), df=dof)
    for theta in points(3):
        position = jnp.asarray(theta)
        expected = [
            np.log([0.5, 0.3, 0.2][k])
            + law.logpdf(np.asarray(one.whiten(k, position)))
            + float(jnp.linalg.slogdet(jax.jacfwd(lambda x, k=k: one.whiten(k, x))(position))[1])
            for k in range(3)
        ]
        np.testing.assert_allclose(log_components(one, position)[:3], expected, rtol=1e-10)
        np.testing.assert_allclose(log_components_of(one, theta[None])[:, 0], expected, rtol=1e-10)


@KINDS
def test_draws_have_the_law_of_the_mixture(kind):
    """In each chart x is standard normal, and theta drawn from q has E[b/q] = 1 for another density b."""
    one, num = library(kind), 20_000

    def draw(key):
        noise = draw_noise(key, NUM_UNIFORM, DIM + 1)
        return draw_mixture(noise.uniform, noise.normal, one)

    label, theta = jax.vmap(draw)(jax.random.split(jax.random.key(0), num))
    for k in range(3):
        x = np.asarray(jax.vmap(one.whiten, (None, 0))(k, theta[label == k]))
        assert min(stats.kstest(x[:, d], stats.norm.cdf).pvalue for d in range(DIM)) > 1e-6
    other = stats.multivariate_normal(np.asarray(one.location[0]), 0.2 * np.eye(DIM))
    theta = np.asarray(theta)
    ratio = np.exp(other.logpdf(theta) - np.logaddexp.reduce(log_components_of(one, theta), axis=0))
    assert abs(ratio.mean() - 1) < 5 * ratio.std() / np.sqrt(num)


@KINDS
@pytest.mark.parametrize("dof", [np.inf, 5.0])
def test_the_residual_search_knows_bends(kind, dof):
    """At temperature one it takes away q itself, with its own gradient."""
    one, theta = library(kind, dof), points(4)
    height, pull = log_tempered(one, theta, 1.0)

    def log_q(x):
        return log_mixture(log_components(one, x))

    np.testing.assert_allclose(height, [log_q(jnp.asarray(x)) for x in theta], rtol=1e-10)
    np.testing.assert_allclose(pull, [jax.grad(log_q)(jnp.asarray(x)) for x in theta], atol=1e-9)


@KINDS
def test_a_student_base_keeps_the_bend(kind):
    """A chart stays where it is: theta of so many standard deviations, whatever the base."""
    one = library(kind)
    student, back = with_student_base(one, 5.0), with_gaussian_base(with_student_base(one, 5.0))
    factor = np.sqrt(1 - 2 / 5)
    x = points(1)[0]
    there, here = student.unwhiten(0, jnp.asarray(x / factor)), one.unwhiten(0, jnp.asarray(x))
    np.testing.assert_allclose(there, here, rtol=1e-12)
    for were, are in zip(parameters(one), parameters(back), strict=True):
        np.testing.assert_allclose(are, were, atol=1e-14)


@KINDS
def test_libraries_of_bent_charts_grow_and_shrink(kind):
    one = library(kind)
    grown = one.add(np.zeros(DIM), np.eye(DIM))
    np.testing.assert_array_equal(grown.bent, [True, True, False, False])
    np.testing.assert_array_equal(grown.drop(0).bent, [True, False, False])
    np.testing.assert_array_equal(one.merge(0, 1).bent, [False, False])
    np.testing.assert_array_equal(one.padded(9).bent, one.bent)
    assert not np.any(one.drop(0).drop(0).bent)


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"axis": np.ones(DIM)}, "length one"),
        ({"curve": np.ones(DIM)}, "right angles"),
        ({"stretch": np.array(np.nan)}, "finite"),
        ({"axis": np.zeros(3), "curve": np.zeros(3)}, "in 4 dimensions"),
        ({"stretch": np.array(100.0)}, "at most 10"),
    ],
)
def test_what_is_no_bend_is_refused(change, told):
    one = library().charts()[0]
    bend = dataclasses.replace(one.warp(Bend), **change)
    with pytest.raises(ValueError, match=told):
        ChartData.of(one.location, one.scale, [bend])


def test_bends_survive_single_precision():
    with jax.enable_x64(False):
        single = library().rebuilt()
        assert single.bend.axis.dtype == jnp.float32
        again = single.rebuilt().add(np.zeros(DIM), np.eye(DIM))
    for were, are in zip(parameters(library()), parameters(again), strict=True):
        np.testing.assert_allclose(are, were, atol=1e-6)


def test_diagonal_charts_are_not_bent():
    bend = Bend.of(np.array([1.0, 0.0]), np.array([0.0, 0.5]), np.zeros(()))
    with pytest.raises(ValueError, match="diagonal"):
        whmc.ModeLibrary.of([ChartData.of(np.zeros(2), np.ones(2), [bend])])
