"""Evaluations from the host: the same as in compiled code, in one shape; and the curvature that is made of them."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import whmc
from whmc.modes.curvature import expand
from whmc.target.rows import ROWS, _evaluate, evaluate_rows


def bent(x):
    """A density with all second derivatives, none of them constant."""
    return -0.5 * jnp.sum(x**2) - jnp.sum(jnp.cosh(0.3 * x)) - 0.2 * x[0] ** 2 * x[1] + 0.1 * x[1] * x[2]


def edge(x):
    return jnp.where(x[0] > 0, -x[0] - 0.5 * jnp.sum(x**2), -jnp.inf)


@pytest.mark.parametrize("num", [0, 1, ROWS, ROWS + 1])
def test_rows_are_those_of_the_target(num):
    target = whmc.Target(edge, dim=3)
    rows = np.random.default_rng(num).standard_normal((num, 3))
    found = evaluate_rows(target, rows)
    assert found.score.shape == (num, 3)
    if num:
        wanted = jax.vmap(target.evaluate)(jnp.asarray(rows))
        np.testing.assert_allclose(found.logdensity, wanted.logdensity)
        np.testing.assert_allclose(found.score, wanted.score)
        np.testing.assert_array_equal(found.failed, wanted.failed)


def test_any_number_of_rows_is_one_compilation():
    target, before = whmc.Target(lambda x: bent(x) - 1.0, dim=3), _evaluate._cache_size()
    for num in (1, 5, 200):
        evaluate_rows(target, np.zeros((num, 3)))
    assert _evaluate._cache_size() == before + 1


def test_a_function_outside_of_jax_is_called_for_no_more_rows_than_asked_for():
    called = []

    def logp(x):
        called.append(x)
        return -0.5 * float(np.sum(x**2)), -x

    target = whmc.from_numpy(logp, dim=2, grad=True)
    evaluate_rows(target, np.arange(6.0).reshape(3, 2))
    assert len(called) == 3


@pytest.mark.parametrize("width", [1.0, 1e3, 1e-4])
def test_curvature_by_differences_is_that_by_derivatives(width):
    target, x = whmc.Target(bent, dim=3), np.array([0.3, -0.7, 0.2])
    found = expand(target, x, width)
    np.testing.assert_allclose(found.precision, -jax.hessian(bent)(jnp.asarray(x)), rtol=1e-6, atol=1e-7)
    np.testing.assert_allclose(found.score, jax.grad(bent)(jnp.asarray(x)))
    assert found.logdensity == pytest.approx(float(bent(jnp.asarray(x))))
    assert 7 <= found.num_gradients <= 1 + 4 * 6


def test_curvature_beside_an_edge_is_measured_inside():
    found = expand(whmc.Target(edge, dim=2), np.array([1e-3, 0.0]), 1.0)
    np.testing.assert_allclose(found.precision, np.eye(2), atol=1e-5)


def test_the_diagonal_alone_costs_the_same_in_any_dimension():
    variance = np.linspace(0.5, 2.0, 400) ** 2
    target = whmc.Target(lambda x: -0.5 * jnp.sum(x**2 / variance), dim=400)
    found = expand(target, np.zeros(400), 1.0, diagonal=True)
    np.testing.assert_allclose(found.precision, 1 / variance, rtol=1e-6)
    assert found.num_gradients < 300
