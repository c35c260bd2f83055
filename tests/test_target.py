"""Target: pytrees, starts, safe evaluation, check()."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import whmc


def normal(x):
    return -0.5 * jnp.sum(x**2)


def test_pytree_positions_are_flat_inside_and_named():
    template = {"mu": np.zeros(2), "tau": np.zeros(())}
    target = whmc.Target(lambda p: normal(p["mu"]) - 2.0 * p["tau"] ** 2, template=template)
    assert target.dim == 3
    assert target.names == ("mu[0]", "mu[1]", "tau")
    flat = jnp.array([1.0, 2.0, 3.0])
    assert float(target(flat)) == -0.5 * 5 - 18
    np.testing.assert_array_equal(target.flatten(target.unflatten(flat)), flat)


def test_pytree_target_samples():
    template = {"a": np.zeros(1), "b": np.zeros(1)}
    target = whmc.Target(lambda p: normal(p["a"]) + normal(p["b"] - 3.0), template=template)
    result = whmc.sample(target, modes=[{"a": [0.0], "b": [3.0]}], chains=8, draws=200, warmup=100)
    assert result.unflatten()["b"].shape == (8, 200, 1)
    np.testing.assert_allclose(result.draws.mean(axis=(0, 1)), [0.0, 3.0], atol=0.15)  # 5 se of 1600 draws


def test_starts_from_box_points_and_function():
    key = jax.random.key(0)
    box = whmc.Target(normal, dim=2, starts=([-1.0, 0.0], [1.0, 5.0])).draw_starts(key, 200)
    assert box.shape == (200, 2)
    assert float(box[:, 1].min()) > 0 and float(box[:, 1].max()) > 4
    points = np.arange(6.0).reshape(3, 2)
    np.testing.assert_array_equal(whmc.Target(normal, dim=2, starts=points).draw_starts(key, 2), points[:2])
    assert whmc.Target(normal, dim=2, starts=points).draw_starts(key, 7).shape == (7, 2)
    drawn = whmc.Target(normal, dim=2, starts=lambda key, n: jnp.ones((n, 2))).draw_starts(key, 4)
    np.testing.assert_array_equal(drawn, np.ones((4, 2)))
    template = {"a": np.zeros(2)}
    tree = whmc.Target(lambda p: normal(p["a"]), template=template, starts=({"a": [0.0, 0.0]}, {"a": [1.0, 9.0]}))
    assert tree.draw_starts(key, 5).shape == (5, 2)


@pytest.mark.parametrize("bad", [jnp.nan, jnp.inf])
def test_evaluate_never_lets_nan_or_infinity_through(bad):
    target = whmc.Target(lambda x: jnp.where(x[0] > 1, bad, normal(x)), dim=2)
    found = target.evaluate(jnp.array([2.0, 0.0]))
    assert bool(found.failed) and float(found.logdensity) == -np.inf
    np.testing.assert_array_equal(found.score, [0.0, 0.0])
    assert not bool(target.evaluate(jnp.array([0.5, 0.0])).failed)


def test_minus_infinity_is_no_failure_and_a_bad_gradient_is():
    edge = whmc.Target(lambda x: jnp.where(x[0] > 1, -jnp.inf, normal(x)), dim=1)
    found = edge.evaluate(jnp.array([2.0]))
    assert not bool(found.failed) and float(found.logdensity) == -np.inf
    kink = whmc.Target(lambda x: -jnp.sqrt(x[0] ** 2), dim=1)
    found = kink.evaluate(jnp.array([0.0]))
    assert bool(found.failed) and float(found.logdensity) == -np.inf


def test_check_ticks_a_good_target():
    report = whmc.Target(normal, dim=3, starts=(-1.0, 1.0)).check()
    assert report.passed
    assert str(report).count("✓") == 7 and "100% of 256 starts" in str(report)


def test_check_without_starts_looks_at_a_place():
    report = whmc.Target(normal, dim=3).check()
    assert report.passed and "to look for modes add starts=" in str(report)
    edge = whmc.Target(lambda x: normal(x) + jnp.log(x[0]), dim=2)
    assert edge.check(at=[1.0, 1.0]).passed


@pytest.mark.parametrize(
    ("logdensity", "starts", "says"),
    [
        (lambda x: x, (-1.0, 1.0), "missing .sum()"),
        (lambda x: jnp.sum(x.astype(complex)), (-1.0, 1.0), "real floating"),
        (lambda x: jnp.sum(x > 0), (-1.0, 1.0), "real floating"),
        (lambda x: jnp.sum(jnp.log(-1 - x**2)), (-1.0, 1.0), "none of 256 starts"),
        (lambda x: jnp.log(x[0] - 1.0), None, "check(at=...)"),
        (lambda x: normal(x.astype(jnp.float32)), (-1.0, 1.0), "remove casts"),
        (lambda x: x[7] + undefined_name, (-1.0, 1.0), "undefined_name"),
    ],
)
def test_check_says_what_to_do(logdensity, starts, says):
    report = whmc.Target(logdensity, dim=2, starts=starts).check()
    assert not report.passed
    assert says in str(report), str(report)
