"""The parts of a search, each by itself: owners of ends, masses, counts, local chains, and the search that goes on."""

import dataclasses
from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import whmc
from contracts import columns
from whmc.keys import child
from whmc.modes.layers.places import Shift
from whmc.modes.library import ModeLibrary
from whmc.search import ongoing
from whmc.search.assign import NOBODY, KnownPeaks
from whmc.search.connect import LocalDraws, connect, drifting, explained_strays, group_chains, moments_chart
from whmc.search.descent import DescentResult
from whmc.search.masses import FEWEST_EFFECTIVE, NATS_A_DIMENSION, NUM_DRAWS, chart_library, log_mean, weigh
from whmc.search.mode_search import MAX_STARTS, SearchState, know, start_search, take, with_peaks
from whmc.search.peak import Peak
from whmc.search.report import tell_dropped
from whmc.storage.serialize import pack, unpack
from whmc.target.rows import logdensities
from whmc.testing import Problem, gaussian_mixture

WEIGHTS, DIM = np.array([0.5, 0.3, 0.15, 0.05]), 3


@cache
def four() -> Problem:
    """Four round Gaussians, well apart."""
    means = np.array([[0.0, 0, 0], [9, 0, 0], [0, 9, 0], [0, 0, 9]])
    return gaussian_mixture(WEIGHTS, means, np.full((4, DIM), [[1.0], [0.25], [1.0], [2.0]]), "four D=3")


@cache
def heavy_tails() -> tuple[whmc.Target, np.ndarray]:
    """Two products of Student-t with two degrees of freedom in D = 20, weights .7 and .3."""
    means = np.random.default_rng(0).uniform(-10, 10, (2, 20))
    log_norm = -0.5 * np.log(8.0)

    def logdensity(x):
        rows = jnp.sum(log_norm - 1.5 * jnp.log1p(0.5 * (x - jnp.asarray(means)) ** 2), axis=1)
        return jax.nn.logsumexp(jnp.log(jnp.array([0.7, 0.3])) + rows)

    return whmc.Target(logdensity, dim=20, starts=(-12.0, 12.0)), means


def peak(location, sd=1.0, logdensity=0.0, **more) -> Peak:
    location = np.asarray(location, float)
    return Peak(location, logdensity, sd * np.eye(len(location)), **more)


def peaks_of(case: Problem) -> list[Peak]:
    heights = logdensities(case.target, case.means)
    return [
        Peak(mean, float(height), np.diag(scale))
        for mean, height, scale in zip(case.means, heights, case.scales, strict=True)
    ]


def counted(independent: list[int], num: int, flat: int = 0) -> SearchState:
    """A search whose independent starts hit its peaks so often."""
    state = start_search(four().target, 10)
    hits = np.array(independent, int)
    return dataclasses.replace(state, hits=hits, independent_hits=hits, num_independent=num, num_flat_hits=flat)


def test_ends_belong_to_the_first_peak_within_whose_reach_they_lie():
    peaks = [peak([0.0, 0.0]), peak([1.0, 0.0], sd=100.0), peak([5.0, 0.0], reach=2.0)]
    ends = np.array([[0.05, 0.0], [0.5, 0.0], [6.5, 0.0], [50.0, 0.0]])
    np.testing.assert_array_equal(KnownPeaks(peaks, ends.shape[1]).owners(ends), [0, 1, 1, NOBODY])
    np.testing.assert_array_equal(KnownPeaks(peaks[2:], ends.shape[1]).owners(ends), [NOBODY, NOBODY, 0, NOBODY])
    assert len(KnownPeaks(peaks, ends.shape[1]).owners(ends[:0])) == 0


def test_only_plain_descents_from_the_start_region_count_as_independent():
    target, means = four().target, four().means
    ends = DescentResult(means[[0, 0, 1, 1]], np.ones(4, bool), 100)
    state = take(start_search(target, 10), target, dataclasses.replace(ends, independent=True))
    state = take(state, target, ends)
    covered = dataclasses.replace(ends, usable=np.zeros(4, bool), covered=np.array([True, True, True, False]))
    state = take(state, target, covered)
    assert state.num_starts == 12 and state.num_independent == 4
    assert state.hits.tolist() == [4, 4] and state.independent_hits.tolist() == [2, 2]
    assert state.dropped == {"unusable": 1}


def test_polishing_is_counted():
    """One end at a mode: a gradient and two for each column of the curvature, and its height."""
    target = four().target
    ends = DescentResult(four().means[:1] + 1e-4, np.ones(1, bool), 0)
    assert take(start_search(target, 10), target, ends).num_gradients >= 1 + 1 + 2 * DIM


def test_what_is_missing_comes_from_hits_of_independent_starts():
    even = np.zeros(2)
    assert counted([5, 1], 6).missing_of(even, -np.inf).brought == pytest.approx((0.75**5 + 0.75) / 2)
    # peaks that only a population has found say nothing about starts; all flat ends are one basin
    assert counted([5, 0], 6).missing_of(even, -np.inf) == counted([5], 6).missing_of(even[:1], -np.inf)
    assert counted([5], 6, flat=1).missing_of(even[:1], 0.0) == counted([5, 1], 6).missing_of(even, -np.inf)
    assert not counted([0, 0], 0).missing_of(even, -np.inf).known  # nothing was started: nothing is known


def test_a_chart_that_was_given_is_no_flat_mode():
    """Peaks: a chart given, with most of the mass and no hits; a mode with five; what local chains found of a flat one,
    which one start has hit."""
    library = ModeLibrary.from_charts(np.zeros((1, 2)), np.eye(2)[None])
    ring = peak([9.0, 0.0], at_peak=False)
    target = whmc.Target(lambda x: -jnp.sum(x**2), dim=2, starts=(-9.0, 9.0))
    state = know(start_search(target, 10), library, np.zeros(1))
    state = with_peaks(state, (*state.peaks, peak([5.0, 0.0]), ring), np.zeros(2, int))
    state = dataclasses.replace(state, independent_hits=np.array([0, 5, 0]), num_flat_hits=1, num_independent=6)
    missing = state.weighed(np.log([8.0, 1.0, 1.0])).missing
    assert missing.brought == pytest.approx((0.75**5 + 0.75) / 2)


def test_masses_of_gaussians_are_their_weights():
    masses = weigh(four().target, peaks_of(four()), jax.random.key(0))
    assert masses.num_gradients == 4 * NUM_DRAWS and np.all(masses.error < 0.07)
    assert np.all(np.abs(masses.log_mass - np.log(WEIGHTS)) < 4 * masses.error)


def test_new_modes_are_weighed_beside_known_ones_without_drawing_from_these():
    peaks = peaks_of(four())
    known = chart_library(peaks[:2], np.log(WEIGHTS[:2]))
    masses = weigh(four().target, peaks[2:], jax.random.key(0), beside=(known, float(np.log(np.sum(WEIGHTS[:2])))))
    assert masses.num_gradients == 2 * NUM_DRAWS
    assert np.all(np.abs(masses.log_share - np.log(WEIGHTS[2:])) < 4 * masses.error)


def test_the_owner_of_a_position_is_the_first_peak_within_reach():
    """As by the distance to every one of them; peaks that lie far away are not looked at."""
    rng = np.random.default_rng(0)
    factors = np.tril(rng.standard_normal((60, 3, 3))) + 2 * np.eye(3)
    peaks = [
        Peak(5 * rng.standard_normal(3), 0.0, factor * np.sign(np.diagonal(factor)), reach=1.5) for factor in factors
    ]
    positions = 5 * rng.standard_normal((500, 3))
    distances = np.stack([peak.distance(positions) for peak in peaks], axis=1) < 1.5
    wanted = np.where(distances.any(axis=1), np.argmax(distances, axis=1), NOBODY)
    assert np.sum(wanted != NOBODY) > 50
    np.testing.assert_array_equal(KnownPeaks(peaks, positions.shape[1]).owners(positions), wanted)


def test_a_mode_that_nobody_has_found_lends_its_mass_to_no_other():
    """Of draws from the tails of a light chart one falls into a heavy mode beside it, which has no chart."""

    def logdensity(x):
        light, hidden = -0.5 * jnp.sum(x**2, axis=-1), -0.5 * jnp.sum((x - 12) ** 2, axis=-1)
        return jnp.logaddexp(light - 20.0, hidden)

    target = whmc.Target(logdensity, dim=1, starts=(-3.0, 3.0))
    found = [weigh(target, [peak([0.0], logdensity=-20.0)], jax.random.key(seed)) for seed in range(20)]
    gain = np.array([masses.log_mass[0] for masses in found]) - peak([0.0], logdensity=-20.0).log_laplace
    lucky = np.isinf([masses.error[0] for masses in found])
    assert lucky.any() and not lucky.all()
    assert np.all(gain < NATS_A_DIMENSION + 0.2)


def test_a_chart_around_a_hollow_is_weighed_beside_others():
    """Its location has no density, so that Laplace's formula says nothing."""
    hollow = peak([9.0, 0.0, 0.0], logdensity=-np.inf, at_peak=False)
    masses = weigh(four().target, [peaks_of(four())[0], hollow], jax.random.key(0))
    assert np.all(np.isfinite(masses.log_mass))


def test_masses_do_not_hang_on_laplace_or_moments():
    """Relative to one another Laplace's formula and that of moments are off by more than e^10 here."""
    target, means = heavy_tails()
    curved = Peak(means[0], float(target(jnp.asarray(means[0]))), np.sqrt(2 / 3) * np.eye(20))
    draws = means[1] + np.random.default_rng(1).standard_t(2, (6400, 20))
    wide = moments_chart(draws, logdensities(target, draws))
    gap = wide.log_laplace - curved.log_laplace - np.log(0.3 / 0.7)
    assert gap > 10
    masses = weigh(target, [curved, wide], jax.random.key(0))
    # heavy-tailed weights: within e^2, where the two formulas differ by more than e^10
    assert np.all(np.abs(masses.log_mass - np.log([0.7, 0.3])) < 2.0)


def test_a_mass_that_few_draws_carry_has_no_finite_error():
    log_weight = np.zeros((3, 256))
    log_weight[1, 0] = 50.0
    log_weight[2] = -np.inf
    log_mass, error = log_mean(log_weight)
    assert error[0] == 0 and np.isinf(error[1]) and np.isinf(error[2])
    assert log_mass[0] == 0 and log_mass[1] == pytest.approx(50 - np.log(256)) and log_mass[2] == -np.inf
    half = np.where(np.arange(256) < 2 * FEWEST_EFFECTIVE, 0.0, -np.inf)[None]
    assert log_mean(half)[1][0] == pytest.approx(np.sqrt(1 / 20 - 1 / 256))


def test_heavy_tailed_modes_are_all_kept_and_agree_with_the_counts():
    target, means = heavy_tails()
    search = whmc.search_modes(target, seed=0, finder=(whmc.MultiStart(128), whmc.Tempered()))
    gaps = np.linalg.norm(columns(search.library)[0][:, None] - means, axis=-1)
    assert search.library.size == 2 and np.all(gaps.min(axis=0) < 0.01)
    assert search.missing.brought < 1e-3 and search.num_found == 2
    assert search.num_independent == 128 == search.independent_hits.sum() < search.hits.sum()


def test_chains_that_overlap_are_one_group_also_through_others():
    rng = np.random.default_rng(0)
    centres = np.array([0.0, 1.5, 3.0, 30.0])  # distances .56, 2.25 and more; below 1.06 is near
    draws = rng.standard_normal((100, 4, 2)) + centres[:, None]
    group = group_chains(draws)
    assert len(set(group[:3])) == 1 and group[3] != group[0]


def test_chains_that_climb_for_ever_drift_and_others_do_not():
    rng = np.random.default_rng(0)
    noise = rng.standard_normal((100, 8))
    position = np.zeros((100, 8, 2))
    assert drifting(LocalDraws(position, noise + np.arange(100)[:, None], 0))
    assert not drifting(LocalDraws(position, noise, 0))


def ring() -> whmc.Target:
    """A ring of radius 5 and width .2 in the plane, and a peak far from it."""

    def logdensity(x):
        radius = jnp.sqrt(jnp.sum(x**2) + 1e-12)
        return jnp.logaddexp(-12.5 * (radius - 5.0) ** 2, -0.5 * jnp.sum((x - 20.0) ** 2))

    return whmc.Target(logdensity, dim=2, starts=(-25.0, 25.0))


def test_points_that_local_chains_connect_become_one_chart():
    angle = np.linspace(0, 2 * np.pi, 20, endpoint=False)
    points = 5.0 * np.stack([np.cos(angle), np.sin(angle)], axis=1)
    there = peak([20.0, 20.0])
    found = connect(ring(), np.concatenate([points, [[20.0, 20.5], [19.5, 20.0]]]), [there], jax.random.key(0))
    # the ring is one chart; chains in the peak's own chart need none
    assert len(found.charts) == 1 and found.num_points.tolist() == [20] and not found.drifting
    chart = found.charts[0]
    # 20 chains of 100 steps that hardly go round: moments of a ring, mean 0 and standard deviation 5/sqrt(2)
    np.testing.assert_allclose(chart.location, 0.0, atol=0.7)
    np.testing.assert_allclose(np.diagonal(chart.scale), 5 / np.sqrt(2), rtol=0.15)
    assert not chart.at_peak and chart.start is not None
    assert abs(np.linalg.norm(chart.start) - 5) < 1.0
    assert found.num_gradients > 64 * (2 * 100 + 80)


def test_chains_that_never_moved_are_grouped_by_where_they_are():
    """Two at one place, one at another: no variance at all. The fourth moves, around the first two but far wider."""
    draws = np.tile(np.array([[2.0, -3.0], [2.0, -3.0], [2.0, 5.0], [0.0, 0.0]]), (100, 1, 1))
    draws[:, 3] = np.random.default_rng(0).normal([2.0, -3.0], 1.0, (100, 2))
    group = group_chains(draws)
    assert group[0] == group[1] and len(np.unique(group)) == 3


def test_tails_of_a_peak_are_explained_by_it_and_points_of_another_mode_are_not():
    target, means = heavy_tails()
    curved = Peak(means[0], 0.0, np.sqrt(2 / 3) * np.eye(20))
    tails = means[0] + np.random.default_rng(1).standard_t(2, (100, 20))
    explained, cost = explained_strays(target, tails, np.zeros(100, int), [curved], jax.random.key(0))
    assert explained.all() and cost > 0
    tails += means[1] - means[0]
    elsewhere, _ = explained_strays(target, tails, np.zeros(100, int), [curved], jax.random.key(0))
    assert not elsewhere.any()


def state_and_library(known: list[int], max_modes: int) -> tuple[ongoing.OngoingSearch, ModeLibrary]:
    case = four()
    scales = np.stack([np.diag(case.scales[k]) for k in known])
    library = ModeLibrary.from_charts(case.means[known], scales, log_weight=np.log(WEIGHTS[known]), capacity=16)
    return ongoing.begin(case.target, library, None, max_modes), library


def some_draws() -> tuple[np.ndarray, np.ndarray]:
    """Of the first mode alone, as chains have them that know no other."""
    case = four()
    draws = case.draw(np.random.default_rng(0), 400)
    mine = draws[0][draws[1] == 0]
    return mine, logdensities(case.target, mine)


def test_a_look_finds_what_is_missing_and_never_exceeds_max_modes():
    state, library = state_and_library([0], max_modes=3)
    state, library = ongoing.look(state, four().target, library, *some_draws(), jax.random.key(0))
    assert library.size == 3 and state.num_capped == 1 and state.looks == 1
    # the heaviest of those found, in the places after the known one
    np.testing.assert_allclose(columns(library)[0], four().means[:3], atol=1e-3)
    # the mass of the known one is what draws say; its height nobody has told
    np.testing.assert_allclose(np.sort(state.search.log_masses), np.sort(np.log(WEIGHTS)), atol=0.1)
    report = ongoing.report_of(state, library)
    assert report.num_found == 4 and report.num_capped == 1
    assert report.num_independent == ongoing.PLAIN_STARTS and report.num_starts > report.num_independent
    assert report.hits.shape == report.independent_hits.shape == (3,)
    assert np.all(report.independent_hits <= report.hits)


def test_looks_depend_on_their_stream_and_number_only_and_end():
    state, library = state_and_library([0], max_modes=10)
    stream = jax.random.key(7)
    last, grown = ongoing.look_on(state, four().target, library, *some_draws(), stream, 0.2)
    assert last.search.num_starts >= 0.2 * MAX_STARTS and grown.size == 4
    again, other = state, library
    for n in range(last.looks):
        key = child(stream, n)
        again, other = ongoing.look(again, four().target, other, *some_draws(), key)
    np.testing.assert_array_equal(grown.location, other.location)
    assert again.search.num_gradients == last.search.num_gradients


def test_a_search_goes_on_with_what_it_counted_whatever_became_of_the_charts():
    """Charts that were reordered, moved and merged since: hits belong to the mode that is there now."""
    report = whmc.search_modes(four().target, finder=(whmc.MultiStart(64), whmc.Tempered()), seed=1)
    assert report.num_independent == 64 == report.independent_hits.sum() < report.num_starts
    state = ongoing.begin(four().target, report.library, report, 256)
    assert state.search.missing.brought == pytest.approx(report.missing.brought, rel=0.1)
    assert state.search.num_independent == 64
    turned = report.library.with_charts(
        [
            dataclasses.replace(one, place=Shift(one.location + 0.2), mode=k)
            for k, one in enumerate(reversed(report.library.charts()))
        ]
    )
    np.testing.assert_array_equal(ongoing.report_of(state, turned).hits, report.hits[::-1])
    merged = ongoing.report_of(state, report.library.merge(0, 1))
    assert len(merged.hits) == 3 and merged.hits.sum() == report.hits.sum() and merged.num_found == 3


@pytest.mark.parametrize("case", [ring(), four().target], ids=["ring", "four"])
def test_a_search_that_goes_on_tells_what_is_missing_by_the_same_masses(case):
    """Also of modes without a peak, which Laplace's formula does not weigh, and with the limit of width."""
    report = whmc.search_modes(case, finder=whmc.MultiStart(512), seed=0)
    again = ongoing.report_of(ongoing.begin(case, report.library, report, 256), report.library)
    np.testing.assert_equal(dataclasses.asdict(again.missing), dataclasses.asdict(report.missing))
    assert again.num_gradients == report.num_gradients


def test_a_search_is_stored_as_data():
    state, library = state_and_library([0], max_modes=3)
    state, library = ongoing.look(state, four().target, library, *some_draws(), jax.random.key(0))
    stored = unpack(pack({"state": state, "report": ongoing.report_of(state, library)}))
    key = jax.random.key(3)
    wider = dataclasses.replace(state, search=dataclasses.replace(state.search, max_modes=10))
    copy = dataclasses.replace(stored["state"], search=dataclasses.replace(stored["state"].search, max_modes=10))
    first, _ = ongoing.look(wider, four().target, library, *some_draws(), key)
    second, _ = ongoing.look(copy, four().target, stored["report"].library, *some_draws(), key)
    np.testing.assert_array_equal(first.search.hits, second.search.hits)
    assert first.search.num_gradients == second.search.num_gradients


def test_descents_that_ended_in_no_mode_are_told_in_words():
    told = tell_dropped({"saddle": 12, "edge": 3})
    assert told == "15 descents did not end in a mode (3 at the edge of the support, 12 at saddle points)"


def sinusoid() -> whmc.Target:
    """Period, amplitude, phase and offset of a sinusoid seen twelve times: it has some forty modes."""
    rng = np.random.default_rng(0)
    time = np.sort(rng.uniform(0, 30, 12))
    data = 1 + 2 * np.sin(2 * np.pi * time / 3.7 + 1) + 0.8 * rng.standard_normal(12)

    def logdensity(x):
        mean = x[3] + x[1] * jnp.sin(2 * jnp.pi * jnp.asarray(time) / x[0] + x[2])
        return -0.5 * jnp.sum(((jnp.asarray(data) - mean) / 0.8) ** 2) - (x[3] / 3) ** 2 / 2 - jnp.log(x[0])

    bounds = (np.array([1.0, 0.0, 0.0, -10.0]), np.array([10.0, 6.0, 2 * np.pi, 10.0]))
    return whmc.Target(logdensity, dim=4, bounds=bounds)


def test_starts_on_known_ground_do_not_hide_that_modes_are_missing():
    """Eight descents among forty modes see little, and 256 starts of the residual search do not change that."""
    search = whmc.search_modes(sinusoid(), seed=0, finder=(whmc.MultiStart(8), whmc.Residual(256)))
    assert search.num_starts == 264 and search.missing.num_starts == 8 and search.missing.alarming
