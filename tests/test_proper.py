"""Densities without a finite integral, densities that fail or end within rounding: each is named, and no other is."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.special import betainc

import whmc
from reported import one_mode
from whmc.estimate import alarms_of_density
from whmc.run.plan import Inputs, Plan
from whmc.run.prepare import _look_at_ends
from whmc.run.state import RunState
from whmc.target.counted import counted
from whmc.target.noticed import at_bounds
from whmc.target.proper import improper_ends, reaches

EFFECTS = jnp.array([28.0, 8.0, -3.0, 7.0, -1.0, 1.0, 18.0, 12.0])
ERRORS = jnp.array([15.0, 10.0, 16.0, 11.0, 9.0, 11.0, 10.0, 18.0])


def eight_schools(power):
    """With a prior τ^-power; the population's mean is free."""

    def logdensity(x):
        variance = ERRORS**2 + x[1] ** 2
        return -0.5 * jnp.sum((EFFECTS - x[0]) ** 2 / variance + jnp.log(variance)) - power * jnp.log(x[1])

    return whmc.Target(
        logdensity, dim=2, names=["mu", "tau"], bounds={"tau": (0, None)}, starts=([-20.0, 0.1], [40.0, 30.0])
    )


def beta(a, b):
    return lambda x: jnp.sum((a - 1) * jnp.log(x) + (b - 1) * jnp.log1p(-x))


def power_law(power):
    return lambda x: -0.5 * power * jnp.log1p(x[0] ** 2)


def scales_of(x):
    """Eight effects without data, their scale half-Cauchy: at effects of zero it has no integral, elsewhere it has."""
    return -jnp.log1p(x[0] ** 2) - jnp.sum(0.5 * (x[1:] / x[0]) ** 2 + jnp.log(x[0]))


def target(logdensity, dim=1, starts=(-1.0, 1.0), bounds=None):
    return whmc.Target(logdensity, dim=dim, starts=starts, bounds=bounds)


IMPROPER = {
    "prior 1/τ": (eight_schools(1), ["tau -> 0"]),
    "scale 1/x": (target(lambda x: -jnp.log(x[0]), bounds=(0, None), starts=(0.5, 2.0)), ["x[0] -> 0", "x[0] -> inf"]),
    "constant": (target(lambda x: 0 * x[0]), ["x[0] -> -inf", "x[0] -> inf"]),
    "phase": (target(lambda x: 3 * jnp.cos(x[1]) - x[0] ** 2, 2), ["x[1] -> -inf", "x[1] -> inf"]),
    "1/|x|": (target(power_law(1.0)), ["x[0] -> -inf", "x[0] -> inf"]),
    "wrong sign": (target(lambda x: 0.5 * x[0] ** 2), ["x[0] -> -inf", "x[0] -> inf"]),
    "exponential": (target(lambda x: x[0]), ["x[0] -> inf"]),
    "Beta(.1, 0)": (target(beta(0.1, 0.0), bounds=(0, 1), starts=None), ["x[0] -> 1"]),
    "far bound": (
        target(lambda x: -jnp.log(x[0] - 1e3) - x[0], bounds=(1e3, None), starts=(1001.0, 1002.0)),
        ["x[0] -> 1000"],
    ),
    "upper bound": (target(lambda x: x[0] - jnp.log(5 - x[0]), bounds=(None, 5), starts=(1.0, 4.0)), ["x[0] -> 5"]),
    "means without a prior": (
        target(lambda x: jnp.sum(jnp.logaddexp(-0.5 * (EFFECTS - x[0]) ** 2, -0.5 * EFFECTS**2))),
        ["x[0] -> -inf", "x[0] -> inf"],
    ),
    # one mean far away leaves all data to the other: constant from there on, 400 nats down or more, and all ends alike
    "two means without a prior": (
        target(lambda x: jnp.sum(jnp.logaddexp(*(-0.5 * (EFFECTS - mean) ** 2 for mean in x))), 2, (-10.0, 30.0)),
        ["x[0] -> -inf", "x[0] -> inf", "x[1] -> -inf", "x[1] -> inf"],
    ),
}  # fmt: skip

PROPER = {
    "flat prior on τ": eight_schools(0),
    "Cauchy": target(power_law(2.0)),
    "|x|^-1.1": target(power_law(1.1)),
    "half-Cauchy": target(power_law(2.0), bounds=(0, None), starts=(0.1, 1.0)),
    "Beta(.1, .1)": target(beta(0.1, 0.1), bounds=(0, 1), starts=None),
    "Beta(.01, .01)": target(beta(0.01, 0.01), bounds=(0, 1), starts=None),
    "far bound": target(lambda x: -0.9 * jnp.log(x[0] - 1e3) - x[0], bounds=(1e3, None), starts=(1001.0, 1002.0)),
    "upper bound": target(lambda x: x[0] - 0.5 * jnp.log(5 - x[0]), bounds=(None, 5), starts=(1.0, 4.0)),
    "wide": target(lambda x: -((x[0] / 1e8) ** 2)),
    "wide lognormal": target(lambda x: -jnp.log(x[0]) - 5e-7 * jnp.log(x[0]) ** 2, bounds=(0, None), starts=(0.1, 5.0)),
    # the model's own transform: e^u is kept from becoming zero, and the density is constant from u = -708 on
    "transform of one's own": target(
        lambda u: 0.1 * jnp.log(jnp.maximum(jax.nn.sigmoid(u[0]), 3e-308)) + 0.1 * jax.nn.log_sigmoid(-u[0])
    ),
    "hard edges": target(lambda x: jnp.where(jnp.abs(x[0]) < 1e3, 0.0, -jnp.inf)),
    "effects without data": target(
        scales_of, 9, bounds=([0] + [None] * 8, None), starts=([0.1] + [-3.0] * 8, [3.0] * 9)
    ),
}


def ends_of(case):
    points = case.draw_starts(jax.random.key(1), 64)
    found, num, spent = improper_ends(
        case, lambda rows: np.asarray(jax.vmap(case)(jnp.asarray(rows))), points, np.random.default_rng(0)
    )
    assert num == case.dim and spent <= 64 + 16 * case.dim
    return [end.told for end in found]


@pytest.mark.parametrize("name", IMPROPER)
def test_an_improper_density_is_named_with_its_ends(name):
    case, ends = IMPROPER[name]
    assert ends_of(case) == ends


def test_an_end_is_named_though_the_two_highest_points_are_mirror_images():
    """From the second the ends of x[1] lie below what float64 holds, as from the first do those of x[0]."""
    case, _ = IMPROPER["two means without a prior"]
    points = np.array([[5.0, 24.2], [20.8, 4.5]])
    found, _, _ = improper_ends(
        case, lambda rows: np.asarray(jax.vmap(case)(jnp.asarray(rows))), points, np.random.default_rng(0)
    )
    assert [end.told for end in found] == ["x[1] -> -inf", "x[1] -> inf"]


@pytest.mark.parametrize("name", PROPER)
def test_a_proper_density_is_not_called_improper_however_slowly_it_converges(name):
    assert ends_of(PROPER[name]) == []


def test_no_chain_runs_to_the_limits_of_float64():
    case = IMPROPER["phase"][0]
    with pytest.raises(ValueError, match=r"does not fall off along x\[1\] -> -inf or x\[1\] -> inf.*improper.*bounds"):
        whmc.sample(case)


def test_a_run_that_is_given_modes_looks_at_ends_too():
    """And does not follow lines through their locations: at effects of zero these have no integral here."""
    case = IMPROPER["phase"][0]
    modes = whmc.ModeLibrary.from_charts([[0.0, 0.0]], np.eye(2)[None])
    with pytest.raises(ValueError, match=r"does not fall off along x\[1\] -> -inf or x\[1\] -> inf"):
        whmc.sample(dataclasses.replace(case, starts=None), modes=modes)
    special = whmc.ModeLibrary.from_charts([[0.1] + [0.0] * 8], 0.1 * np.eye(9)[None])
    state = RunState(Plan(), Inputs(library=special))
    assert _look_at_ends(state, PROPER["effects without data"]).moment.noticed.improper == ()


@jax.custom_vjp
def stepped(x):
    """A solver whose steps are as many as its data say; at 3e12 it would not return."""
    steps = jax.lax.while_loop(lambda n: n < jnp.minimum(jnp.abs(x[0]), 1e5), lambda n: n + 1, 0)
    return 0.0 * steps - 0.5 * jnp.sum(x**2)


stepped.defvjp(lambda x: (stepped(x), x), lambda x, force: (-force * x,))


def test_a_loop_whose_length_depends_on_the_data_is_not_followed_and_not_ticked():
    case = target(stepped, 2)
    with counted() as spent:
        assert _look_at_ends(RunState(Plan()), case) == RunState(Plan())
    assert spent.num == 0
    outside = whmc.from_numpy(lambda x: -0.5 * x @ x, lambda x: -x, dim=2, starts=(-1.0, 1.0))
    for one in (case, outside):
        report = one.check()
        assert report.passed
        (line,) = [line for line in str(report).splitlines() if "tails" in line]
        assert line.startswith("- tails: not looked at")


def test_an_integral_that_float64_ends_is_alarmed_also_after_loading(tmp_path):
    case = eight_schools(1)
    with counted() as spent:
        state = _look_at_ends(RunState(Plan()), case)
    assert state.moment.noticed.improper == ("tau -> 0",) and 64 < spent.num <= 64 + 18
    result = dataclasses.replace(one_mode(), noticed=state.moment.noticed)
    (alarm,) = [one for one in result.alarms if one.name == "improper"]
    assert "tau -> 0" in alarm.message and "evidence" in alarm.message
    loaded = whmc.load(result.save(tmp_path / "run.nc"))
    assert alarm in loaded.alarms
    (line,) = [line for line in case.check().lines if not line[0]]
    assert line[1] == "tails" and "tau -> 0" in line[2]


def logits(a, b, num, seed):
    """Exact draws of Beta(a, b) as logits, where nothing rounds: a gamma variable of shape a is one of a + 1 times
    U^(1/a)."""
    rng = np.random.default_rng(seed)
    first, second = (np.log(rng.gamma(shape + 1, size=num)) + np.log(rng.random(num)) / shape for shape in (a, b))
    return first - second


def test_mass_within_rounding_of_a_bound_is_told_and_how_much():
    num, a = 200_000, 0.1
    crowded, spread = PROPER["Beta(.1, .1)"], target(beta(2.0, 1.0), bounds=(0, 1), starts=None)
    (found,) = at_bounds(crowded, logits(a, a, num, 0)[:, None])
    assert (found.name, found.bound) == ("x[0]", 1.0)  # at 0 there are numbers down to 1e-308
    share = betainc(a, a, 1024 * np.spacing(1.0))
    assert abs(found.share - share) < 4.5 * np.sqrt(share / num)
    (alarm,) = alarms_of_density.at_bound([found])
    assert "x[0] lie within rounding of its bound 1" in alarm.message
    assert at_bounds(spread, logits(2.0, 1.0, num, 1)[:, None]) == ()


@pytest.mark.parametrize(
    ("bounds", "wanted"),
    [
        ((0, 1), (np.log(2.225e-305), -np.log(1000 * np.spacing(1.0)))),
        ((-3, 5), (np.log(1000 * np.spacing(3.0) / 8), -np.log(1000 * np.spacing(5.0) / 8))),
        ((100, None), (np.log(1000 * np.spacing(100.0)), np.inf)),
        ((None, 100), (-np.inf, np.log(1000 * np.spacing(100.0)))),
    ],
)
def test_where_float64_has_few_numbers_left_beside_a_bound(bounds, wanted):
    case = target(
        lambda x: 0 * x[0], bounds=bounds, starts=(max(bounds[0] or 0, -1) + 0.1, max(bounds[0] or 0, -1) + 0.2)
    )
    low, high = reaches(case, 0, 1000)
    np.testing.assert_allclose((low, high), wanted, rtol=1e-6)
    for reach, edge in zip((low, high), bounds, strict=True):
        if edge:
            value = float(case.unflatten(jnp.array([reach]))[0])
            assert 500 <= abs(value - edge) / np.spacing(abs(float(edge))) <= 2000


def two_halves(x):
    """Two Gaussians of one mass; the score is NaN in all of the first."""
    density = jnp.logaddexp(-0.5 * jnp.sum((x + 4) ** 2), -0.5 * jnp.sum((x - 4) ** 2))
    return density + jnp.where(x[0] > 0, 0 * jnp.sum(x) * jnp.sqrt(x[0]), 0.0)


def test_a_mode_without_a_score_is_found_and_sampled_and_told():
    case = whmc.Target(two_halves, dim=2, starts=(-8.0, 8.0))
    result = whmc.sample(case, chains=8, draws=400, warmup=300, search=3000.0)
    assert result.search.num_found == 2
    assert np.all(np.abs(result.modes.weight - 0.5) < 4.5 * result.modes.weight_se)
    assert abs(result.log_evidence - np.log(4 * np.pi)) < max(4.5 * result.log_evidence_se, 1e-3)
    (alarm,) = [one for one in result.alarms if one.name == "gradient not finite"]
    assert alarm.figure == pytest.approx(0.5, abs=0.1) and "jnp.where" in alarm.remedy
    assert "evaluations failed" not in [one.name for one in result.alarms]
