"""Bounds: maps, Jacobians, starts, named values, evidence, errors."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import whmc
from contracts import columns
from whmc.modes.curvature import library_at
from whmc.target.bounds import Bounds

pytestmark = pytest.mark.models

NAMES = ("a", "b", "c", "d")
MIXED = Bounds.of([(0.0, 1.0), (2.0, None), (None, -1.0), (None, None)], NAMES)


def test_there_and_back_again():
    free = 4 * jax.random.normal(jax.random.key(0), (100, 4))
    inside = jax.vmap(MIXED.constrain)(free)
    MIXED.require_inside("x", inside, NAMES)
    np.testing.assert_allclose(MIXED.unconstrain(inside), free, rtol=1e-9, atol=1e-9)


def test_the_jacobian_is_the_derivative():
    free = 3 * jax.random.normal(jax.random.key(1), (100, 4))
    slopes = jax.vmap(lambda u: jnp.linalg.slogdet(jax.jacfwd(MIXED.constrain)(u))[1])(free)
    np.testing.assert_allclose(jax.vmap(MIXED.log_jacobian)(free), slopes, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("far", [-800.0, 800.0])
def test_values_and_slopes_stay_finite_far_out(far):
    target = whmc.Target(lambda x: -0.5 * x[3] ** 2, dim=4, names=NAMES, bounds=MIXED)
    found = target.evaluate(jnp.array([far, min(far, 700.0), min(far, 700.0), 0.0]))
    assert np.isfinite(found.logdensity) and not bool(found.failed)


@pytest.mark.parametrize(
    "given",
    [
        ([0.0, 2.0, None, None], [1.0, None, -1.0, None]),
        [(0.0, 1.0), (2.0, np.inf), (-np.inf, -1.0), (None, None)],
        {"a": (0.0, 1.0), "b": (2.0, None), "c": (None, -1.0)},
    ],
)
def test_three_ways_to_say_the_same(given):
    found = Bounds.of(given, NAMES)
    np.testing.assert_array_equal(found.low, MIXED.low)
    np.testing.assert_array_equal(found.high, MIXED.high)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ([(0.0, 1.0)], "list of 4 pairs"),
        ((1.0, 0.0), "low < high"),
        ([(0.0, 1.0)] * 3 + [(0.0, np.nan)], "bounds of d"),
        ({"z": (0.0, 1.0)}, "'z'"),
        (([0.0, 1.0], 2.0), "shape"),
    ],
)
def test_wrong_bounds_are_named(given, message):
    with pytest.raises(ValueError, match=message):
        whmc.Target(lambda x: -jnp.sum(x**2), dim=4, names=NAMES, bounds=given)


def test_starts_modes_and_tables_are_in_the_users_values():
    """Two betas: 0.25 of Beta(8, 24) and 0.75 of Beta(24, 8), each in every coordinate."""

    def logdensity(x):
        low = jnp.sum(7 * jnp.log(x) + 23 * jnp.log1p(-x))
        high = jnp.sum(23 * jnp.log(x) + 7 * jnp.log1p(-x))
        return jnp.logaddexp(jnp.log(0.25) + low, jnp.log(0.75) + high) - 3 * LOG_BETA

    target = whmc.Target(logdensity, dim=3, bounds=(0.0, 1.0))
    with jax.enable_x64(True):
        starts = target.draw_starts(jax.random.key(0), 500)
        assert 0.4 < float(jnp.mean(jax.nn.sigmoid(starts))) < 0.6  # a finite box is where searches start
    result = whmc.sample(target, seed=3, draws=500)
    by_place = np.argsort(result.modes.location[:, 0])
    # on the logistic scale Beta(8, 24) has its peak at 0.25 and its mean at 0.242
    np.testing.assert_allclose(result.modes.location[by_place], [[0.25] * 3, [0.75] * 3], atol=0.02)
    with jax.enable_x64(True):
        again = library_at(target, result.modes.location)  # they are what modes= takes
    np.testing.assert_allclose(jax.nn.sigmoid(columns(again).location), result.modes.location, rtol=1e-9)
    weight, se = result.modes.weight[by_place], result.modes.weight_se[by_place]
    assert np.all(np.abs(weight - [0.25, 0.75]) < 5 * se)
    assert abs(result.log_evidence) < 3 * result.log_evidence_se + 1e-6
    values = result.constrained()["x"]
    assert values.min() > 0 and values.max() < 1
    mean, ess = values.mean(axis=(0, 1)), result.parameters.ess
    assert np.all(np.abs(mean - (0.25 * 0.25 + 0.75 * 0.75)) < 5 * values.std(axis=(0, 1)) / np.sqrt(ess))
    known = whmc.sample(target, modes=[[0.23] * 3, [0.77] * 3], draws=100, warmup=100)
    assert known.library.num_modes == 2 and known.constrained()["x"].max() < 1


LOG_BETA = float(jax.scipy.special.betaln(8.0, 24.0))


def test_the_evidence_counts_the_jacobian():
    """Left out, the log evidence of an exponential would be infinite, of a uniform 0 instead of log 6."""
    target = whmc.Target(
        lambda x: -x[0] / 3, dim=2, bounds=[(0.0, None), (-1.0, 1.0)], starts=([0.1, -0.9], [9.0, 0.9])
    )
    result = whmc.sample(target, seed=1, draws=300)
    assert abs(result.log_evidence - np.log(6.0)) < 5 * result.log_evidence_se


def test_points_outside_are_refused():
    with pytest.raises(ValueError, match="reach outside the bounds"):
        whmc.Target(lambda x: 0.0 * x[0], dim=1, bounds=(0.0, 1.0), starts=(-1.0, 1.0))
    with pytest.raises(ValueError, match=r"x\[0\] = 2, its bounds are \(0, 1\)"):
        whmc.Target(lambda x: 0.0 * x[0], dim=1, bounds=(0.0, 1.0), starts=np.array([[0.5], [2.0]]))
    target = whmc.Target(lambda x: -(x[0] ** 2), dim=1, bounds=(0.0, 1.0))
    with pytest.raises(ValueError, match="strictly inside"):
        whmc.sample(target, modes=[[0.0]])


def test_bounds_of_a_template():
    template = {"rate": np.zeros(()), "place": np.zeros(2)}
    density = lambda p: -p["rate"] - 0.5 * jnp.sum(p["place"] ** 2)  # noqa: E731
    by_name = whmc.Target(density, template=template, bounds={"rate": (0.0, None)})
    by_tree = whmc.Target(
        density,
        template=template,
        bounds=({"rate": 0.0, "place": [-np.inf, -np.inf]}, {"rate": np.inf, "place": [np.inf] * 2}),
    )
    u = jnp.array([0.3, -0.2, 0.7])  # place, place, rate: leaves are sorted by name
    assert float(by_name(u)) == float(by_tree(u)) == pytest.approx(-np.exp(0.7) - 0.5 * (0.3**2 + 0.2**2) + 0.7)
    np.testing.assert_allclose(by_name.flatten(by_name.unflatten(u)), u)
