"""How much mass a search has not found: the estimate, its calibration, and how long a search goes on."""

import dataclasses
import itertools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import whmc
from simulated import population
from whmc.estimate.alarms import modes_missing
from whmc.estimate.missing import BOUND, FEW_STARTS, GO_ON, MissingMass, missed, percent
from whmc.search.effort import MOST_FREE_STARTS, Effort, Starts
from whmc.target.operations import count_operations
from whmc.target.price import FEWEST_STARTS, FREE_OPERATIONS


def of(hits, share, num_starts=1000):
    return MissingMass.of(np.array(hits), np.log(np.array(share, float)), num_starts)


@pytest.mark.parametrize("part", [1 / 8, 1 / 4, 1 / 2])
def test_missed_mass_is_the_average_over_all_parts_of_the_starts(part):
    """Each start is kept with chance t: all 2^9 parts, each with its chance."""
    owner, share = np.array([0, 0, 0, 0, 0, 1, 1, 2, 3]), np.array([0.4, 0.1, 0.3, 0.2])
    average = 0.0
    for kept in itertools.product([False, True], repeat=len(owner)):
        chance = part ** sum(kept) * (1 - part) ** (len(owner) - sum(kept))
        average += chance * share[~np.isin(np.arange(4), owner[list(kept)])].sum()
    assert missed(np.bincount(owner), share, part) == pytest.approx(average, rel=1e-12)


def test_missed_mass_is_nearly_the_average_over_all_orders_of_the_starts():
    """In each order the first quarter is kept, so that its number is not random: off by less than 1/n."""
    hits, share, num = np.array([1, 2, 5, 20, 372]), np.array([0.2, 0.2, 0.2, 0.2, 0.2]), 400
    chance = [math.comb(num - h, num // 4) / math.comb(num, num // 4) for h in hits.tolist()]
    average = float(share @ chance)
    assert abs(missed(hits, share, 1 / 4) - average) < 1 / num < 0.01 * average


def test_doublings_to_come_are_a_geometric_series():
    hits, share = [1, 30, 969], [0.1, 0.2, 0.7]
    found = of(hits, share)
    quarter, half = missed(np.array(hits), np.array(share), 1 / 4), missed(np.array(hits), np.array(share), 1 / 2)
    series = sum(half * 0.9**n for n in range(1, 500))  # half / (quarter - half) is above .9
    assert found.expected == pytest.approx(series / (1 + series)) and found.bound == pytest.approx(BOUND * quarter)
    assert found.brought == quarter and found.rarely == pytest.approx(0.1) and found.fewest == 1
    shrinking = of([4, 996], [0.1, 0.9])
    ratio = (1 / 2) ** 4 / ((3 / 4) ** 4 - (1 / 2) ** 4)
    series = sum(0.1 * (1 / 2) ** 4 * ratio**n for n in range(1, 200))
    assert shrinking.expected == pytest.approx(series / (1 + series))
    assert shrinking.next_gain == pytest.approx(0.1 * (1 / 2) ** 4 * ratio)


def test_modes_without_mass_and_modes_that_no_start_hit_weigh_nothing():
    heavy = of([400, 600], [0.4, 0.6])
    light = of([400, 600, *[1] * 700], [0.4, 0.6, *[1e-12] * 700])
    assert not heavy.alarming and not light.alarming and light.expected < 1e-8
    assert light.brought == pytest.approx(heavy.brought, abs=1e-8)
    assert of([400, 600, 0], [0.4, 0.6, 0.5]) == heavy


def test_nothing_is_known_without_independent_starts():
    nothing = of([0, 0], [0.5, 0.5], 0)
    assert not nothing.known and nothing.alarming and nothing.more_to_find
    assert "nothing tells" in str(nothing)


def test_starts_that_ended_at_no_peak_tell_nothing_and_do_not_claim_that_all_is_missing():
    """A cusp, found by a population alone. Several modes that no start has hit are a sign of more."""
    cusp = whmc.Target(lambda x: -jnp.sum(jnp.abs(x)), dim=2, starts=(-10.0, 10.0))
    search = whmc.search_modes(cusp, seed=0, finder=(whmc.MultiStart(64), whmc.Tempered(256)))
    missing = search.missing
    assert search.num_found == 1 and search.independent_hits.tolist() == [0] and missing.num_starts == 64
    assert not missing.known and np.isnan(missing.expected) and missing.more_to_find
    assert modes_missing(search) == []
    assert "none of 64 independent starts ended at a peak, so hits tell nothing of mass not found" in str(search)
    assert missing.brief == "hits tell nothing of mass not found" and "%" not in str(missing)
    (raised,) = modes_missing(dataclasses.replace(search, num_found=2))
    assert raised.name == "mass may be missing" and "tell nothing" in raised.message and "dropped" in raised.remedy


def test_from_many_starts_on_the_alarm_misses_less():
    hits, share = [8, 9992], [0.2, 0.8]
    few, many = of(hits, share, FEW_STARTS - 1), of(hits, share, FEW_STARTS)
    assert few.expected < 0.01 < few.brought and not few.alarming and many.alarming


def test_what_hits_cannot_show_is_said_and_nothing_is_ever_none():
    calm, late = of([500, 500], [0.5, 0.5]), of([1, 999], [0.05, 0.95])
    assert "hits show nothing missing" in str(calm) and "hit at least 500 times" in str(calm)
    assert "basin is under 1/330" in str(calm) and "(one of 1/1000: .37)" in str(calm)
    assert "brought 3.8 % of the mass" in str(late) and "(nine times in ten)" in str(late)
    assert percent(0.0) == percent(1e-9) == "less than 0.1 %" and percent(0.017) == "1.7 %"
    assert [percent(share) for share in (0.0994, 0.1, 0.994, 0.997, 1.0)] == ["9.9 %", "10 %", "99 %", "100 %", "100 %"]
    narrow = dataclasses.replace(calm, width_limit=0.84)
    assert "narrower than 0.84 times those found" in str(narrow)


def test_the_alarm_says_what_to_do():
    report = dataclasses.make_dataclass("Report", ["missing", "num_gradients", "num_capped", "num_found"])
    (raised,) = modes_missing(report(of([1, 999], [0.05, 0.95]), 25_000, 0, 2))
    assert raised.name == "mass may be missing" and raised.figure == of([1, 999], [0.05, 0.95]).expected
    assert "Modes holding 5 % were hit once or twice" in raised.message and "search=2e+05" in raised.remedy
    used_up = dataclasses.replace(of([1, 29], [0.05, 0.95], 30), num_given=30)
    (raised,) = modes_missing(report(used_up, 500, 0, 2))
    assert "Give more points" in raised.remedy and "Each of the 30 points" in raised.message
    assert modes_missing(report(of([500, 500], [0.5, 0.5]), 1, 0, 2)) == []


@pytest.mark.ci
def test_expected_missing_mass_is_calibrated_on_simulated_searches():
    """Free starts, then doublings: alarms where a trace is left, few where nothing is missing, the bound's cover."""
    rows = []
    for law in population(np.random.default_rng(5), 400):
        hits, num = law.hits(FEW_STARTS), FEW_STARTS
        while (found := MissingMass.of(hits, np.log(law.share), num)).more_to_find and num < MOST_FREE_STARTS:
            hits, num = hits + law.hits(num), 2 * num
        lost = float(law.share[hits == 0].sum())
        trace = bool(np.any((hits > 0) & (hits < 10) & (law.share > 0.01 * (1 - lost))))
        rows.append((lost, trace, found.alarming, found.brought > GO_ON, found.bound, found.expected))
    lost, trace, alarm, noticed, bound, expected = (np.array(column) for column in zip(*rows, strict=True))
    traced, whole = (lost > 0.01) & trace, lost < 0.001
    assert traced.sum() >= 20 and whole.sum() >= 200
    # all to within two standard errors of so many cases
    assert alarm[traced].mean() >= 0.9 - 2 * np.sqrt(0.09 / traced.sum())
    assert alarm[whole].mean() <= 0.1 + 2 * np.sqrt(0.09 / whole.sum())
    assert np.mean(lost[noticed] <= bound[noticed]) >= 0.9 - 2 * np.sqrt(0.09 / noticed.sum())
    gap = (expected - lost)[noticed | (lost < 0.01)]
    assert abs(gap.mean()) < 3 * gap.std() / np.sqrt(len(gap)) + 0.005


# how long a search goes on


def quadratic(x):
    return -0.5 * jnp.sum(x**2)


def scanned(length):
    def logdensity(x):
        return -jnp.sum(jax.lax.scan(lambda carry, _: (carry * 0.5 + x, None), x, None, length=length)[0] ** 2)

    return logdensity


def asked_outside(x):
    return jax.pure_callback(lambda y: np.asarray(-0.5 * np.sum(y**2)), jax.ShapeDtypeStruct((), x.dtype), x)


def test_operations_are_counted_by_hand():
    dim = 5
    assert count_operations(lambda x: jnp.sum(x * x), dim) == 5 + 5  # products, and the numbers that are summed
    matrix = jnp.ones((7, dim))
    assert count_operations(lambda x: matrix @ x, dim) == 2 * 7 * dim
    step = count_operations(lambda x: x * 0.5 + x, dim)
    assert step == 2 * dim
    loop = count_operations(lambda x: jax.lax.scan(lambda c, _: (c * 0.5 + x, None), x, None, length=1000)[0], dim)
    assert loop == 1000 * step
    either = count_operations(lambda x: jax.lax.cond(x[0] > 0, lambda y: y * y * y, lambda y: y, x), dim)
    assert 2 * dim <= either <= 2 * dim + 10  # the longer branch, and the question
    assert count_operations(jax.jit(lambda x: jnp.sum(x * x)), dim) == 10
    assert count_operations(lambda x: jnp.linalg.cholesky(jnp.outer(x, x)), dim) >= dim**3


def test_operations_that_nobody_can_know_are_not_counted():
    assert count_operations(asked_outside, 3) is None
    assert count_operations(lambda x: jax.lax.while_loop(lambda y: y[0] < 9, lambda y: y + 1, x), 3) is None
    assert (
        count_operations(lambda x: jax.lax.scan(lambda c, _: (asked_outside(x) + c, None), 0.0, None, 2)[0], 3) is None
    )


@pytest.fixture(scope="module")
def targets():
    """A cheap one, one that is too dear for free starts, and one that cannot be counted."""
    densities = {"cheap": quadratic, "middling": scanned(1000), "costly": scanned(100_000)}
    outside = whmc.from_numpy(lambda x: -0.5 * x @ x, lambda x: -x, dim=3, starts=(-9.0, 9.0))
    return {name: whmc.Target(one, dim=3, starts=(-9.0, 9.0)) for name, one in densities.items()} | {"outside": outside}


def starts_of(target, effort, gradients_each, *, more_to_find=True, even=False):
    """How many starts there are of so many gradients each, in batches."""
    starts = Starts()
    for _ in range(1000):
        starts, wanted = starts.wanted(effort, target, more_to_find=more_to_find, even=even)
        if not wanted:
            return starts.num
        num = min(wanted, max(48, starts.num))
        starts = dataclasses.replace(
            starts, num=starts.num + num, num_gradients=starts.num_gradients + num * gradients_each
        )
    raise AssertionError("it never ends")


def test_free_starts_are_made_whatever_they_hit(targets):
    run = Effort.of_run(24_000)
    assert starts_of(targets["cheap"], run, 10, more_to_find=False) == MOST_FREE_STARTS
    middling = starts_of(targets["middling"], run, 30, more_to_find=False)
    assert targets["middling"].operations is not None
    assert FEWEST_STARTS < middling < FREE_OPERATIONS / (30 * targets["middling"].operations) < MOST_FREE_STARTS
    assert starts_of(targets["cheap"], run, 10) == MOST_FREE_STARTS  # more would be much beside this run
    assert starts_of(targets["cheap"], Effort.of_run(24_000_000), 10) > 4 * MOST_FREE_STARTS


@pytest.mark.parametrize("name", ["costly", "outside"])
def test_costly_targets_are_searched_frugally(targets, name):
    run = Effort.of_run(24_000)
    alike = starts_of(targets[name], run, 30, more_to_find=False, even=True)
    assert 0.8 * run.frugal / 3 < 30 * alike <= run.frugal / 3
    assert starts_of(targets[name], run, 30, more_to_find=False) == FEWEST_STARTS
    assert starts_of(targets[name], run, 5) == 4 * FEWEST_STARTS  # 20 480 gradients, of 24 000 that hits may ask for
    assert starts_of(targets[name], run, 30) == FEWEST_STARTS


@pytest.mark.parametrize("name", ["cheap", "middling", "costly", "outside"])
def test_half_of_a_limit_is_for_starts(targets, name):
    for limit in (3_000.0, 30_000.0):
        num = starts_of(targets[name], Effort.of_search(limit), 10)
        assert 0.4 * limit <= 10 * num <= 0.5 * limit


def gaussians(means, sizes, starts):
    """Isolated Gaussians of equal weight, normalised."""
    means, sizes = jnp.asarray(means), jnp.asarray(sizes)
    num, dim = means.shape
    log_norm = -dim * jnp.log(sizes) - 0.5 * dim * jnp.log(2 * jnp.pi) - jnp.log(num)

    def logdensity(x):
        return jax.nn.logsumexp(log_norm - 0.5 * jnp.sum((x - means) ** 2, axis=1) / sizes**2)

    return whmc.Target(logdensity, dim=dim, starts=starts)


def found_share(search, means):
    gaps = np.linalg.norm(np.asarray(search.library.location)[:, None] - means, axis=-1)
    return float(np.mean(gaps[: search.library.size].min(axis=0) < 0.1))


def test_points_given_in_an_order_are_used_in_another():
    """Of 1000 points the first 700 lie around one of two modes."""
    rng = np.random.default_rng(0)
    means = np.array([[-20.0, -20.0], [20.0, 20.0]])
    points = np.repeat(means, [700, 300], axis=0) + rng.standard_normal((1000, 2))
    target = gaussians(means, np.ones(2), points)
    search = whmc.search_modes(target, seed=0, finder=whmc.MultiStart(64))
    assert found_share(search, means) == 1 and search.num_independent == 64
    whole = whmc.search_modes(
        dataclasses.replace(target, starts=np.repeat(points[-400:], 3, axis=0)), finder=whmc.MultiStart()
    )
    assert whole.num_independent == 400 == whole.independent_hits.sum()
    assert "Each of the 400 points given as starts was used once" in str(whole)


@pytest.mark.parametrize("num", [30, 300])
def test_few_points_given_as_starts_are_told_to_miss_mass(num):
    rng = np.random.default_rng(0)
    means = np.stack(np.meshgrid(np.arange(9.0), np.arange(9.0)), axis=-1).reshape(-1, 2)
    target = gaussians(means, np.full(81, 0.1), rng.uniform(-0.5, 8.5, (num, 2)))
    search = whmc.search_modes(target, seed=0, finder=whmc.MultiStart())
    lost = 1 - found_share(search, means)
    assert search.num_independent == num and 0.01 < lost < search.missing.bound
    assert search.missing.alarming


@pytest.mark.ci
def test_narrow_isolated_modes_are_found_or_told():
    """Twelve Gaussians in D = 10, sd .3 to 1: a thousandth of the region leads to the narrowest."""
    rng = np.random.default_rng(0)
    means, sizes = rng.uniform(-30, 30, (12, 10)), rng.uniform(0.3, 1, 12)
    target = gaussians(means, sizes, (-35.0, 35.0))
    first = whmc.search_modes(target, seed=0, finder=whmc.MultiStart(1024))
    search = whmc.search_modes(target, seed=0, effort=Effort.of_run(24_000))
    assert found_share(first, means) < 1
    assert found_share(search, means) == 1 or search.missing.alarming


@pytest.mark.parametrize("dim", [300, 1000])
def test_starts_in_many_dimensions_reach_modes_away_from_the_middle(dim):
    """Two Gaussians of weights .7 and .3 at 0 and 1.5 in every coordinate, box (-2, 4)."""
    target = whmc.Target(quadratic, dim=dim, starts=(-2.0, 4.0))
    points = target.draw_starts(jax.random.key(0), 600)
    assert np.all((points > -2) & (points < 4))
    nearer = np.log(0.7 / 0.3) - 0.5 * np.sum(points**2 - (points - 1.5) ** 2, axis=1) > 0
    # a half of them is uniform, of which hardly one goes either way
    assert 100 < nearer.sum() < 500
    again = target.draw_starts(jax.random.key(0), 600)
    np.testing.assert_array_equal(points, again)


def test_starts_stay_inside_bounds_in_many_dimensions():
    target = whmc.Target(quadratic, dim=40, bounds=(0.0, 1.0))
    assert np.all(np.isfinite(target.draw_starts(jax.random.key(1), 2000)))


def test_no_clock_decides_how_long_a_search_goes_on(targets, monkeypatch):
    """The same search with clocks that stand still and with clocks that race."""

    def searched(seconds_a_look):
        ticks = itertools.count(step=seconds_a_look)
        for clock in ("time", "monotonic", "perf_counter", "process_time"):
            monkeypatch.setattr(f"time.{clock}", lambda: float(next(ticks)))
        return [
            whmc.search_modes(one, seed=0, finder=whmc.MultiStart(), budget=4_000.0)
            for one in (targets["cheap"], targets["outside"])
        ]

    for slow, quick in zip(searched(1000), searched(0), strict=True):
        assert (slow.num_gradients, slow.num_starts) == (quick.num_gradients, quick.num_starts)
        np.testing.assert_array_equal(slow.library.location, quick.library.location)
        np.testing.assert_array_equal(slow.discovery, quick.discovery)


def test_the_limit_of_width_is_where_a_tenth_of_the_modes_would_be_missed():
    """Modes put anywhere in the box beside three that are known, as the search's own copies, but descended to."""
    rng = np.random.default_rng(3)
    means, dim = rng.uniform(-20, 20, (3, 6)), 6
    target = gaussians(means, np.ones(3), (-25.0, 25.0))
    search = whmc.search_modes(target, seed=0, finder=whmc.MultiStart(1024))
    limit = search.missing.width_limit
    assert 0.2 < limit < 1 and f"narrower than {limit:.2g} times" in str(search)
    starts = np.asarray(target.draw_starts(jax.random.key(9), 1024))
    heights = np.max(-0.5 * np.sum((starts[:, None] - means) ** 2, axis=-1), axis=1) + np.log(0.3)

    def share_met(width, num=400):
        places = rng.uniform(-25, 25, (num, dim))
        places += rng.random((num, 1)) * (means.mean(axis=0) - places)
        square = np.sum((starts[:, None] - places) ** 2, axis=-1)
        return np.mean(np.any(np.log(0.1) - dim * np.log(width) - 0.5 * square / width**2 > heights[:, None], axis=0))

    # a hundred copies tell .9 to within .03, and each width is a tenth more than the one before
    assert share_met(0.75 * limit) < 0.9 < share_met(1.3 * limit)


def test_no_limit_of_width_is_told_where_charts_do_not_explain_the_basins():
    """A bent mode beside a round one; and starts that are drawn by a function."""

    def bent(x):
        curve = -0.5 * x[0] ** 2 / 16 - 2 * (x[1] - 0.3 * x[0] ** 2) ** 2
        return jnp.logaddexp(curve, -0.5 * jnp.sum((x - jnp.array([0.0, 30.0])) ** 2))

    search = whmc.search_modes(whmc.Target(bent, dim=2, starts=(-20.0, 40.0)), seed=0, finder=whmc.MultiStart(256))
    assert search.library.size == 2 and np.isnan(search.missing.width_limit)
    drawn = whmc.Target(quadratic, dim=2, starts=lambda key, num: jax.random.normal(key, (num, 2)))
    assert np.isnan(whmc.search_modes(drawn, seed=0, finder=whmc.MultiStart(64)).missing.width_limit)
