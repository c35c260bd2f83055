"""Target: pytrees, starts, safe evaluation, check()."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import whmc
from whmc.estimate.alarms_of_density import failures
from whmc.kernels.local import LocalHMC
from whmc.kernels.settings import default_kernel
from whmc.run.plan import Plan
from whmc.target.check import find_failure
from whmc.target.noticed import slopeless
from whmc.target.price import GRADIENTS_A_STEP, VALUES_A_STEP, Price, duration


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


def test_positions_may_be_dictionaries_of_the_models_values():
    """As `template` has them, where `constrain` has an inverse: one by one, or all in one with an axis before."""

    def unconstrain(values):
        return jnp.append(jnp.log(values["scale"]), values["place"])

    target = whmc.Target(
        normal, dim=3, constrain=lambda x: {"scale": jnp.exp(x[0]), "place": x[1:]}, unconstrain=unconstrain
    )
    several = [{"scale": 2.0, "place": [0.0, 3.0]}, {"scale": 0.5, "place": [1.0, 0.0]}]
    wanted = [[np.log(2.0), 0.0, 3.0], [-np.log(2.0), 1.0, 0.0]]
    np.testing.assert_allclose(target.flatten_all(several), wanted)
    together = {name: np.array([one[name] for one in several]) for name in ("scale", "place")}
    np.testing.assert_allclose(target.flatten_all(together), wanted)
    np.testing.assert_allclose(target.flatten(several[0]), wanted[0])
    with pytest.raises(ValueError, match=r"a list of one, \[\{"):
        target.flatten_all(several[0])
    with pytest.raises(TypeError, match="'a', but this target takes vectors of 2 numbers"):
        whmc.sample(whmc.Target(normal, dim=2), modes=[{"a": [0.0, 0.0]}])


def test_starts_from_box_points_and_function():
    key = jax.random.key(0)
    box = whmc.Target(normal, dim=2, starts=([-1.0, 0.0], [1.0, 5.0])).draw_starts(key, 200)
    assert box.shape == (200, 2)
    assert float(box[:, 1].min()) > 0 and float(box[:, 1].max()) > 4
    points = np.arange(6.0).reshape(3, 2)
    given = whmc.Target(normal, dim=2, starts=np.repeat(points, 2, axis=0)).draw_starts(key, 3)
    np.testing.assert_array_equal(np.sort(given, axis=0), points)  # each once, in random order, before any comes again
    assert whmc.Target(normal, dim=2, starts=points).draw_starts(key, 7).shape == (7, 2)
    drawn = whmc.Target(normal, dim=2, starts=lambda key, n: jnp.ones((n, 2))).draw_starts(key, 4)
    np.testing.assert_array_equal(drawn, np.ones((4, 2)))
    template = {"a": np.zeros(2)}
    tree = whmc.Target(lambda p: normal(p["a"]), template=template, starts=({"a": [0.0, 0.0]}, {"a": [1.0, 9.0]}))
    assert tree.draw_starts(key, 5).shape == (5, 2)


def test_all_but_density_dim_and_starts_are_given_by_keyword():
    assert whmc.Target(normal, 2, (-1.0, 1.0)).dim == 2
    with pytest.raises(TypeError, match="positional"):
        whmc.Target(normal, 2, (-1.0, 1.0), ["a", "b"])


PAIRS = [
    ({"starts": [[-6.0, 6.0], [-5.0, 5.0]]}, r"the box \[-6, 6\] x \[-5, 5\], or two points"),
    ({"starts": [(-6.0, 6.0), (-6.0, 6.0)]}, r"starts=\(\[-6.0, -6.0\], \[6.0, 6.0\]\) for the box"),
    ({"starts": np.array([[-6.0, 6.0], [-6.0, 6.0]])}, "or one point twice"),
    ({"starts": ((0.0, 1.0), (2.0, 3.0))}, r"\[0.0, 2.0\] x \[1.0, 3.0\] as \(low, high\), or \[0.0, 1.0\] x \[2.0, "),
    ({"bounds": ((0.0, 1.0), (2.0, 3.0))}, r"bounds=\(\[0.0, 2.0\], \[1.0, 3.0\]\) for the second"),
    ({"bounds": ((0.0, 1.0), (2.0, None))}, "two readings"),
]  # fmt: skip


@pytest.mark.parametrize(("given", "message"), PAIRS)
def test_pairs_with_two_readings_are_refused(given, message):
    with pytest.raises(ValueError, match=message):
        whmc.Target(normal, dim=2, **given)


@pytest.mark.parametrize(
    ("given", "low", "high"),
    [
        ({"bounds": ([0.0, 1.0], [2.0, 3.0])}, [0, 1], [2, 3]),
        ({"bounds": [(0.0, 1.0), (2.0, 3.0)]}, [0, 2], [1, 3]),
        ({"bounds": ((0.0, 0.0), (1.0, 1.0))}, [0, 0], [1, 1]),  # no pairs low < high
        ({"bounds": ((0.0, 1.0), (1.0, 3.0))}, [0, 1], [1, 3]),  # the same box either way
        ({"bounds": ((0.0, None), (None, 5.0))}, [0, -np.inf], [np.inf, 5]),  # the same box either way
        ({"bounds": (0.0, 1.0)}, [0, 0], [1, 1]),
    ],
)
def test_bounds_with_one_reading_are_taken(given, low, high):
    bounds = whmc.Target(normal, dim=2, **given).bounds
    np.testing.assert_array_equal((bounds.low, bounds.high), (low, high))


@pytest.mark.parametrize(
    "points",
    [
        np.array([[-6.0, 6.0], [-5.0, 5.0]]),  # an array holds points
        [np.array([-6.0, 6.0]), np.array([-5.0, 5.0])],
        [[-6.0, 6.0], [5.0, -5.0]],  # 5 < -5 is no interval
        [[-6.0, 6.0], [-5.0, 5.0], [0.0, 1.0]],
    ],
)
def test_points_with_one_reading_are_taken(points):
    found = whmc.Target(normal, dim=2, starts=points).draw_starts(jax.random.key(0), len(points))
    np.testing.assert_array_equal(np.unique(found, axis=0), np.unique(np.asarray(points), axis=0))


def test_other_shapes_say_how_a_box_is_written():
    with pytest.raises(
        ValueError, match=r"a tuple \(low, high\), here starts=\(\[-6.0, 0.0, 1.0\], \[6.0, 2.0, 3.0\]\)"
    ):
        whmc.Target(normal, dim=3, starts=[(-6.0, 6.0), (0.0, 2.0), (1.0, 3.0)])
    with pytest.raises(ValueError, match=r"is a tuple \(low, high\), got 3 entries"):
        whmc.Target(normal, dim=3, starts=((-6.0, 6.0),) * 3)


def test_a_name_that_occurs_twice_is_refused():
    with pytest.raises(ValueError, match="names has 'x' 2 times"):
        whmc.Target(normal, dim=3, names=["x", "y", "x"], bounds={"x": (0.0, 1.0)})
    with pytest.raises(ValueError, match=re.escape("names has 'a.b' 2 times")):
        whmc.Target(lambda p: -(p["a"]["b"] ** 2), template={"a": {"b": 0.0}, "a.b": 0.0})


@pytest.mark.parametrize("bad", [jnp.nan, jnp.inf])
def test_evaluate_never_lets_nan_or_infinity_through(bad):
    target = whmc.Target(lambda x: jnp.where(x[0] > 1, bad, normal(x)), dim=2)
    found = target.evaluate(jnp.array([2.0, 0.0]))
    assert bool(found.failed) and float(found.logdensity) == -np.inf
    np.testing.assert_array_equal(found.score, [0.0, 0.0])
    assert not bool(target.evaluate(jnp.array([0.5, 0.0])).failed)


def test_minus_infinity_is_no_failure_and_a_bad_gradient_costs_no_density():
    """The force may be any function of the position; a density that is left out is mass that is lost."""
    edge = whmc.Target(lambda x: jnp.where(x[0] > 1, -jnp.inf, normal(x)), dim=1)
    found = edge.evaluate(jnp.array([2.0]))
    assert not bool(found.failed) and float(found.logdensity) == -np.inf
    kink = whmc.Target(lambda x: 3.0 - jnp.sqrt(x[0] ** 2) - x[1], dim=2)
    found = kink.evaluate(jnp.array([0.0, 1.0]))
    assert bool(found.failed) and float(found.logdensity) == 2.0
    np.testing.assert_array_equal(found.score, [0.0, -1.0])  # what is finite is kept


def test_check_ticks_a_good_target():
    report = whmc.Target(normal, dim=3, starts=(-1.0, 1.0)).check()
    assert report.passed
    assert str(report).count("✓") == 10
    assert "100% of 256 starts (256 distinct) in the box x[0] in (-1, 1), x[1] in (-1, 1), x[2]" in str(report)


def test_check_counts_distinct_starts():
    report = whmc.Target(normal, dim=2, starts=np.array([[0.0, 0.1], [0.5, 0.2], [0.0, 0.1]])).check()
    assert report.passed and "256 starts (2 distinct) among the given points" in str(report)


def half_differentiable(x):
    """The gradient is NaN where x[0] > 0: the other branch has the square root of a negative number."""
    return normal(x) + jnp.where(x[0] > 0, -x[0], x[0] - 0 * jnp.sqrt(-x[0]))


def test_check_finds_and_counts_bad_gradients_anywhere():
    target = whmc.Target(half_differentiable, dim=2, starts=(-1.0, 1.0))
    report = target.check()
    (seen,) = [seen for ok, what, seen in report.lines if not ok]
    bad, first, second = re.match(
        r"not finite at (\d+) of 256 positions, first for x\[0\] at \[ ?(.*), +(.*)\]", seen
    ).groups()
    assert abs(int(bad) - 128) < 5 * 8  # half of the starts, 5 standard errors
    draws = np.array([[-1.0, 0.0], [float(first), float(second)], [-2.0, 0.0]])
    share, at = slopeless(target, draws)
    assert share == 1 / 3 and at.tolist() == [float(first), float(second)]
    assert slopeless(target, draws[::2]) == (0.0, None)
    assert find_failure(target, draws) is None  # nothing is wrong with the density


def test_a_failure_is_told_whatever_the_template():
    target = whmc.Target(
        lambda p: jnp.where(p["a"] > 0.5, jnp.nan, -p["a"]), template={"a": 0.0}, bounds={"a": (0.0, 1.0)}
    )
    points = np.array([[-1.0]] * 300 + [[3.0]])
    at = find_failure(target, points)
    assert at == pytest.approx([1 / (1 + np.exp(-3.0))])
    assert not target.check(at=at).passed and not target.check(at=target.unflatten(jnp.array([3.0]))).passed
    (alarm,) = failures(1, 1, at, 0.0)
    assert "such as at [0.952574]" in alarm.message


def test_durations_have_the_unit_that_suits_them():
    assert [duration(s) for s in (3e-7, 0.0114, 5.0, 1140.0, 22800.0, 1e6)] == [
        "0.3 µs", "11.4 ms", "5 s", "19 min", "6.33 h", "11.6 days",
    ]  # fmt: skip


@pytest.mark.parametrize(
    "logdensity",
    [
        lambda x: -jnp.sum(jnp.log1p(x**2)),  # Cauchy
        lambda x: -jnp.sum((x / 1e8) ** 2),  # far wider than its starts
        lambda x: -jnp.sum(jnp.exp(x) - x),  # the log of an exponential variable
    ],
)
def test_check_takes_heavy_and_wide_tails_for_what_they_are(logdensity):
    report = whmc.Target(logdensity, dim=2, starts=(-1.0, 1.0)).check()
    assert report.passed, report


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
        (lambda x: normal(x) + jnp.where(x[0] > 0, jax.lax.stop_gradient(x[0]), 0.0), (-1.0, 1.0), "disagrees with"),
        (lambda x: jnp.sum(x), (-1.0, 1.0), "does not fall off along x[0] -> inf"),
        (lambda x: -0.5 * x[0] ** 2 + jnp.cos(x[1]), (-1.0, 1.0), "does not fall off along x[1]"),
    ],
)
def test_check_says_what_to_do(logdensity, starts, says):
    report = whmc.Target(logdensity, dim=2, starts=starts).check()
    assert not report.passed
    assert says in str(report), str(report)


@pytest.mark.parametrize(
    ("logdensity", "what", "says"),
    [
        (lambda x: jnp.maximum(normal(x), -20.0), "tails", "does not fall off"),
        (lambda x: jnp.logaddexp(normal(x), -300.0), "tails", "does not fall off"),
        (lambda x: jnp.where(x[0] > 1, -1e10, normal(x)), "floor", "-1e+10 without a slope at"),
        (lambda x: -jnp.abs(jnp.floor(x)).sum(), "floor", "without a slope at"),
        (lambda x: normal(x) - jnp.floor(x[0]), "edges", "jumps from"),
        (lambda x: normal(x) + jnp.where(x[0] > 1, 0.01, 0.0), "edges", "jumps from"),
        (lambda x: jnp.where(x[0] > 1, -jnp.inf, normal(x)), "edges", "the support ends at [1. "),
    ],
)
def test_check_does_not_tick_floors_and_edges(logdensity, what, says):
    report = whmc.Target(logdensity, dim=2, starts=(-3.0, 3.0)).check()
    (seen,) = [seen for passed, name, seen in report.lines if name == what and not passed]
    assert says in seen


@pytest.mark.parametrize(
    "logdensity",
    [
        lambda x: -1e3 * jnp.sum(jnp.abs(x - 0.1)),  # a kink
        lambda x: -jnp.sum(jnp.sqrt(jnp.abs(x - 0.1))),  # a cusp
        lambda x: -0.5e8 * jnp.sum(x**2),  # steep
        lambda x: -0.5 * jnp.sum(x**2) + jnp.tanh(1e3 * x[0]),  # a rise that is as good as an edge, and is none
    ],
)
def test_check_takes_steep_densities_for_what_they_are(logdensity):
    report = whmc.Target(logdensity, dim=2, starts=(-3.0, 3.0)).check()
    assert {name: passed for passed, name, _ in report.lines}["edges"], report


def test_bounds_leave_no_edge():
    assert whmc.Target(lambda x: -jnp.sum(x), dim=2, bounds=(0.0, None), starts=(0.1, 3.0)).check().passed


def test_the_price_is_that_of_a_default_run():
    plan, price = Plan(), Price()
    assert (price.chains, price.warmup, price.draws) == (plan.chains, plan.warmup, plan.draws)
    assert price.search == plan.effort.frugal
    local, jump, _ = default_kernel().kernels
    costs = [int(one.cost()) + int(jump.cost()) + 1 for one in (LocalHMC(1), local)]
    assert tuple(costs) == GRADIENTS_A_STEP
    assert sum(int(one.cost()) for one in default_kernel(scores=False).kernels[:-1]) + 1 == VALUES_A_STEP


def test_check_tells_evaluations_their_seconds_and_compilation():
    (told,) = [
        seen for _, name, seen in whmc.Target(normal, dim=3, starts=(-1.0, 1.0)).check().lines if name == "price"
    ]
    assert re.search(r"^[\d.]+ .?s a gradient; search some 3 s on one core, more while", told)
    assert "search 18,000 gradients, 15 min, more where" in Price().tell(0.05)
    assert "warm-up 24,000 to 48,000 gradients, " in told and "sampling 48,000 to 96,000 gradients, " in told
    assert re.search(r"compiling the target [\d.]+ m?s, twice in a run", told)
    one = Price(search=0.0, has_gradient=False, calls=5).tell(0.05)
    assert one == "50 ms a gradient (5 calls); warm-up 40,000 values, 6.67 min; sampling 80,000 values, 13.3 min"
