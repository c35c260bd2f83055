"""ModeLibrary, its mixture, and charts from curvature."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

import whmc
from contracts import columns, problem
from whmc.kernels.random import draw_noise
from whmc.modes.curvature import library_at
from whmc.modes.mixture import NUM_UNIFORM, draw_mixture, log_components, log_mixture, pick


def _library(diagonal: bool) -> whmc.ModeLibrary:
    rng = np.random.default_rng(0)
    scales = rng.uniform(0.5, 2, (3, 4))
    if not diagonal:
        scales = np.tril(rng.standard_normal((3, 4, 4)) * 0.3, -1) + scales[:, :, None] * np.eye(4)
    return whmc.ModeLibrary.from_charts(
        rng.standard_normal((3, 4)), scales, log_weight=np.log([0.5, 0.3, 0.2]), capacity=5
    )


@pytest.mark.parametrize("diagonal", [True, False])
@pytest.mark.parametrize("dof", [np.inf, 3.0])
def test_mixture_is_scipys(diagonal, dof):
    library = dataclasses.replace(_library(diagonal), dof=jnp.asarray(dof))
    x = np.random.default_rng(1).standard_normal(4)
    parts = []
    for k in range(3):
        covariance = np.asarray(library.covariance[k])
        covariance = np.diag(covariance) if diagonal else covariance
        law = stats.multivariate_normal if np.isinf(dof) else stats.multivariate_t
        args = () if np.isinf(dof) else (dof,)
        parts.append(np.log([0.5, 0.3, 0.2][k]) + law(np.asarray(library.location[k]), covariance, *args).logpdf(x))
    components = log_components(library, jnp.asarray(x))
    np.testing.assert_allclose(components[:3], parts, rtol=1e-10)
    assert np.all(np.isneginf(components[3:]))
    np.testing.assert_allclose(log_mixture(components), np.logaddexp.reduce(parts), rtol=1e-10)


@pytest.mark.parametrize("diagonal", [True, False])
def test_whiten_and_back(diagonal):
    library = _library(diagonal)
    x = jnp.arange(4.0)
    for k in range(3):
        np.testing.assert_allclose(library.unwhiten(k, library.whiten(k, x)), x, atol=1e-12)


@pytest.mark.parametrize("dof", [np.inf, 5.0, 4.0])
def test_draws_have_the_law_of_the_mixture(dof):
    library = dataclasses.replace(_library(False), dof=jnp.asarray(dof))

    def one(key):
        noise = draw_noise(key, NUM_UNIFORM, 5)
        return draw_mixture(noise.uniform, noise.normal, library)

    n = 40_000
    label, x = jax.vmap(one)(jax.random.split(jax.random.key(0), n))
    counts = np.bincount(label, minlength=3)
    assert stats.chisquare(counts, n * np.array([0.5, 0.3, 0.2])).pvalue > 1e-6
    for k in range(3):
        z = jax.vmap(library.whiten, (None, 0))(k, x[label == k])
        law = stats.norm if np.isinf(dof) else stats.t(dof)
        assert stats.kstest(np.asarray(z[:, 1]), law.cdf).pvalue > 1e-6


def test_pick_follows_the_weights_and_never_takes_the_impossible():
    log_weights = jnp.array([-jnp.inf, 0.0, -jnp.inf, jnp.log(3.0), -jnp.inf])
    grid = (jnp.arange(10_000.0) + 0.5) / 10_000
    seen = np.bincount(jax.vmap(pick, (0, None))(grid, log_weights), minlength=5)
    np.testing.assert_array_equal(seen, [0, 2500, 0, 7500, 0])
    assert int(pick(jnp.asarray(np.nextafter(1.0, 0.0)), log_weights)) == 3


def test_add_doubles_capacity_drop_and_merge():
    library = whmc.ModeLibrary.empty(2)
    assert (library.size, library.capacity) == (0, 1)
    for k in range(3):
        library = library.add([float(k), 0.0], np.eye(2), log_weight=0.0)
    assert (library.size, library.capacity) == (3, 4)
    dropped = library.drop(1)
    np.testing.assert_array_equal(dropped.location[:2, 0], [0.0, 2.0])
    np.testing.assert_allclose(jnp.exp(dropped.log_weight[:2]).sum(), 1.0)
    two = whmc.ModeLibrary.from_charts(
        [[0.0, 0.0], [2.0, 0.0]], np.tile(np.eye(2), (2, 1, 1)), log_weight=np.log([0.75, 0.25])
    )
    merged = two.merge(0, 1)
    np.testing.assert_allclose(merged.location[0], [0.5, 0.0])
    np.testing.assert_allclose(merged.covariance[0], np.diag([1 + 0.75 * 0.25 * 4, 1.0]))
    with pytest.raises(IndexError, match="no chart 5"):
        library.drop(5)
    with pytest.raises(ValueError, match="twice"):
        library.merge(1, 1)


@pytest.mark.ci
def test_more_capacity_changes_no_draw():
    """An unused place is invisible."""
    case = problem("rotated")
    small = case.library
    location, scale, log_weight, step_size = columns(small)
    large = whmc.ModeLibrary.from_charts(location, scale, log_weight=log_weight, step_size=step_size, capacity=7)
    kernel = whmc.Cycle((whmc.LocalHMC(), whmc.Wormhole(throat=3), whmc.GibbsWormhole(), whmc.Independence()))
    positions = []
    for library in (small, large):
        state = whmc.init(jnp.asarray(case.means[0]), case.target, library)
        step = jax.jit(kernel.step)
        for n in range(5):
            state, _ = step(jax.random.key(n), state, case.target, library)
        positions.append(state.position)
    np.testing.assert_allclose(positions[0], positions[1], atol=1e-9)


@pytest.mark.parametrize("diagonal", [True, False])
def test_chart_of_a_gaussian_is_that_gaussian(diagonal):
    case = problem("three") if not diagonal else problem("many-well")
    library = library_at(case.target, case.locations, diagonal=diagonal)
    if diagonal:
        hessian = jax.vmap(lambda x: jnp.diagonal(jax.hessian(case.target)(x)))(jnp.asarray(case.locations))
        np.testing.assert_allclose(library.scale, 1 / jnp.sqrt(-hessian), rtol=1e-8)
    else:
        np.testing.assert_allclose(library.scale, case.scales, atol=1e-8)
        np.testing.assert_allclose(jnp.exp(library.log_weight), case.weights, atol=1e-8)


def test_flat_and_negative_curvature_is_mended_and_said():
    target = whmc.Target(lambda x: -0.5 * x[0] ** 2 + 0.5 * x[1] ** 2 - x[1] ** 4, dim=3, starts=(-2.0, 2.0))
    with pytest.warns(UserWarning, match=r"mode 0 \(1 flat, 1 negative\)"):
        library = library_at(target, [[0.0, 0.0, 0.0]])
    np.testing.assert_allclose(np.sort(np.diagonal(library.scale[0])), [1.0, 1.0, 4.0])


def test_diagonal_from_dimension_one_thousand_on():
    assert whmc.ModeLibrary.empty(1000).diagonal
    assert not whmc.ModeLibrary.empty(999).diagonal
