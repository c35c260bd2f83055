"""Evaluations from the host: the same as in compiled code, in one shape; and the curvature that is made of them."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import whmc
from whmc.frontends.workers import Message, Workers
from whmc.modes.curvature import expand
from whmc.target.rows import ROWS, _evaluate, evaluate_rows, evaluate_slopes

pytestmark = pytest.mark.xdist_group("rows")  # its targets are compiled once, not in every worker


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


@pytest.mark.parametrize("bounds", [None, (-9.0, 9.0)])
def test_a_function_outside_of_jax_is_compiled_once_and_called_for_no_more_rows_than_asked_for(bounds):
    called = []

    def logp(x):
        called.append(x)
        return -0.5 * float(np.sum(x**2)), -x

    target, before = whmc.from_numpy(logp, dim=2, grad=True, bounds=bounds), _evaluate._cache_size()
    for num in (3, 1, ROWS + 2):
        called.clear()
        rows = np.random.default_rng(num).standard_normal((num, 2))
        found = evaluate_rows(target, rows)
        assert len(called) == num and found.score.shape == (num, 2)
        assert np.all(np.isfinite(found.logdensity)) and not found.failed.any()
    assert _evaluate._cache_size() == before + 1


def test_search_batches_reach_worker_processes_that_start_once(monkeypatch):
    shares, starts, start, send = [], [], Workers._start, Message.send
    monkeypatch.setattr(Workers, "_start", lambda self: (starts.append(1), start(self))[1])
    monkeypatch.setattr(Message, "send", lambda self, to: (shares.append(len(self.content)), send(self, to))[1])
    target = whmc.from_numpy(lambda x: (-0.5 * float(np.sum(x**2)), -x), dim=2, grad=True, parallel=2)
    for _ in range(2):
        evaluate_rows(target, np.random.default_rng(0).standard_normal((6, 2)))
        evaluate_rows(target, np.random.default_rng(1).standard_normal((ROWS, 2)))
    half, six = ROWS // 2 * 2 * 8, 3 * 2 * 8
    assert starts == [1]
    assert shares[2:] == [six, six, half, half] * 2  # after the function itself, to each


def half_slopeless(x):
    """`bent`, whose first derivative is NaN where x[1] < 0.3: the root is there a branch that is not taken."""
    return bent(x) + jnp.where(x[1] > 0.3, 0 * x[0] * jnp.sqrt(x[1] - 0.3), 0.0)


def test_slopes_are_there_wherever_the_density_is_and_their_cost_is_told():
    target, rows = whmc.Target(half_slopeless, dim=3), np.random.default_rng(4).standard_normal((40, 3))
    below = rows[:, 1] < 0.3
    raw = np.asarray(jax.vmap(jax.grad(half_slopeless))(jnp.asarray(rows)))
    assert 5 < below.sum() < 35 and np.array_equal(np.isnan(raw).any(axis=1), below)
    found, besides = evaluate_slopes(target, rows)
    np.testing.assert_allclose(found.score, jax.vmap(jax.grad(bent))(jnp.asarray(rows)), rtol=1e-7, atol=1e-8)
    assert besides == 2 * np.isnan(raw).sum()
    assert evaluate_slopes(target, rows[~below])[1] == 0


def test_curvature_where_slopes_fail_is_that_of_the_density():
    at = np.array([0.3, -0.7, 0.2])
    found, whole = expand(whmc.Target(half_slopeless, dim=3), at), expand(whmc.Target(bent, dim=3), at)
    np.testing.assert_allclose(found.precision, whole.precision, rtol=1e-4, atol=1e-5)
    assert found.num_gradients > 2 * whole.num_gradients


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
