"""What a mode is: peaks taken together, dips of draws, paths, ascents, and the weights that follow."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import whmc
from traps.basin_truth import shares
from whmc.cli.as_json import as_json
from whmc.estimate.basins import NOWHERE, Basins, Partition
from whmc.estimate.correction import corrected, correction
from whmc.estimate.dip import FAR, dips
from whmc.estimate.modes import notes
from whmc.estimate.weights import Weights
from whmc.modes.chart_data import locations_of
from whmc.modes.curvature import library_at
from whmc.search.parted import parted_charts
from whmc.search.passes import FINE, straight, strings
from whmc.storage.netcdf import to_datatree
from whmc.testing import gaussian_mixture, loggamma_pair, shells, two_scale_pair


def pair_of_gaussians(dim, gap, widths=(1.0, 1.0), weights=(0.5, 0.5)):
    means = np.zeros((2, dim))
    means[1, 0] = gap
    return gaussian_mixture(weights, means, np.array(widths)[:, None, None] ** 2 * np.eye(dim))


def basins(height, pair, fall, dip=None, of_chart=(0,), peaked=True, **changes):
    size = len(height)
    some = {"row": np.zeros((0, 2), int), "end": np.zeros(0, int), "stratum": np.zeros((1, 1), int), "every": 1}
    return Basins(
        location=np.arange(size, dtype=float)[:, None],
        height=np.array(height, float),
        peaked=np.full(size, peaked),
        pair=np.array(pair, int).reshape(-1, 2),
        fall=np.array(fall, float),
        dip=np.full(len(fall), np.nan) if dip is None else np.array(dip, float),
        of_chart=np.array(of_chart),
        **(some | changes),
    )


# peaks taken together


def test_peaks_are_one_mode_where_neither_density_nor_draws_fall_by_the_valley():
    found = basins([0.0, -1.0, -2.0], [(0, 1), (1, 2)], [0.5, 1.5], [0.2, 0.3], of_chart=(0, 1, 2))
    assert found.partition(1.0).of_chart.tolist() == [0, 0, 1]
    assert found.partition(2.0).num_modes == 1 and found.partition(0.4).num_modes == 3
    assert found.partition(1.0).highest.tolist() == [0, 2] and found.partition(1.0).peaks.tolist() == [2, 1]
    assert found.partition(1.0).inner[0] == 0.5 and found.partition(1.0).depth[0, 1] == 1.5
    deep = dataclasses.replace(found, dip=np.array([1.2, 0.3]))
    assert deep.partition(1.0).num_modes == 3 and deep.partition(1.0).fall[0, 1] == 0.5


def test_the_valley_is_below_the_lower_of_the_highest_peaks():
    """A low peak on the way: from it both passes are shallow, from the outer peaks they are not."""
    found = basins([0.0, -3.0, 0.0], [(0, 1), (1, 2)], [0.5, 0.5], of_chart=(0, 1, 2))
    one = found.partition(1.0)
    assert one.num_modes == 2 and one.depth[one.of_chart[0], one.of_chart[2]] == 3.5


def test_what_nothing_leads_to_is_no_mode():
    found = basins([0.0, 0.0, -5.0], [(0, 1), (1, 2)], [9.0, 3.0], of_chart=(0, 1))
    assert found.partition(1.0).of_peak.tolist() == [0, 1, 1]


def test_modes_are_numbered_by_their_charts_and_those_of_draws_alone_come_last():
    found = basins(
        [0.0, 0.0, 0.0], [(0, 1), (1, 2)], [9.0, 9.0], of_chart=(2, 1), end=np.array([0]), row=np.zeros((1, 2), int)
    )
    assert found.partition().of_chart.tolist() == [0, 1] and found.partition().of_peak.tolist() == [2, 1, 0]


def test_words_say_what_overlaps_and_what_the_border_means():
    found = basins([0.0, -1.0, -1.0, -1.0], [(0, 1), (0, 2), (0, 3)], [0.3, 1.7, 0.2], [0.1, 0.4, 1.4], (0, 1, 2, 3))
    lines = list(notes(found.partition(), Weights(np.array([0.6, 0.3, 0.1]), np.zeros(3))))
    assert len(lines) == 3 and "Modes 0 and 1 overlap: the pass between them is 1.7 nats" in lines[0]
    assert "up to 0.002" in lines[0] and "Their sum, 0.900," in lines[0]
    assert "only 0.2 nats" in lines[1] and "not known" in lines[1]
    assert lines[2] == "Mode 0 has 2 peaks with at most 0.30 nats between them: one mode."


# dips and passes


@pytest.mark.parametrize(
    ("dim", "gap", "widths", "least", "most"),
    [
        (2, 2.0, (1.0, 1.0), 0.0, 0.35),
        (10, 2.0, (1.0, 1.0), 0.0, 0.45),
        (2, 4.0, (1.0, 1.0), 1.0, 1.6),
        (2, 20.0, (1.0, 1.0), FAR, np.inf),
        (10, 6.0, (1.0, 2.0), 1.0, 2.2),
    ],
)
def test_a_dip_is_the_valley_of_the_draws(dim, gap, widths, least, most):
    """Two equal Gaussians 4 sd apart fall by 1.31 nats on the way; widths 1 and 2 in D = 10 hide it in height."""
    case = pair_of_gaussians(dim, gap, widths)
    draws, own = case.draw(np.random.default_rng(0), 8000)
    found = dips(draws, own, np.arange(8000) < 128, case.locations, np.array([[0, 1]]))[0]
    assert least <= found <= most


def test_a_dip_of_too_few_draws_is_not_told():
    draws = np.random.default_rng(0).standard_normal((50, 2))
    group = (np.arange(50) < 5).astype(int)
    assert np.isnan(dips(draws, group, group < 0, np.zeros((2, 2)), np.array([[0, 1]]))[0])


@pytest.mark.parametrize("num", [4000, 32_000])
def test_a_dip_does_not_depend_on_how_many_draws_there_are(num):
    """A small shoulder, on which the density falls by .07 nats. Groups may be thinned by factors of their own."""
    rng = np.random.default_rng(2)
    small = rng.random(num) < 0.03
    draws = np.where(small, rng.normal(2.6, 0.3, num), rng.normal(0.0, 1.0, num))[:, None]
    group = (draws[:, 0] > 2.0).astype(int)
    found = dips(draws, group, np.zeros(num, bool), np.array([[0.0], [2.6]]), np.array([[0, 1]]))[0]
    assert found < 0.5


def test_one_gaussian_cut_in_two_has_no_dip():
    draws = np.random.default_rng(1).standard_normal((8000, 5))
    tops = np.array([[-0.3, 0, 0, 0, 0], [0.3, 0, 0, 0, 0]])
    assert dips(draws, (draws[:, 0] > 0).astype(int), np.zeros(8000, bool), tops, np.array([[0, 1]]))[0] < 0.2


def around(x):
    """Two peaks at the ends of half a circle, and nothing between them on the straight line."""
    radius, angle = jnp.hypot(x[0], x[1]), jnp.arctan2(x[1], x[0])
    return -0.5 * ((radius - 5.0) / 0.3) ** 2 + 0.5 * jnp.cos(2 * angle) - 3.0 * jnp.where(x[1] < 0, x[1] ** 2, 0.0)


def test_a_string_finds_the_way_round():
    target = whmc.Target(around, dim=2, starts=(-6.0, 6.0))
    ends, lower = 5.0 * np.array([[np.cos(0.3), np.sin(0.3)], [-np.cos(0.3), np.sin(0.3)]]), np.array([0.4])
    with jax.enable_x64(True):
        direct = straight(target, ends[:1], ends[1:], lower, FINE)
        bent = strings(target, ends[:1], ends[1:], lower, np.eye(2)[None] / 0.09, 1.5)
    assert direct[0] > 50 and 0.85 < bent[0] < 1.2  # cos(2 angle) / 2 falls from .41 to -.5


# whole runs


def test_equal_gaussians_part_where_their_pass_is_a_nat_deep():
    for gap, modes in ((1.5, 1), (3.0, 1), (4.0, 2)):
        case = pair_of_gaussians(2, gap)
        result = whmc.sample(case.target, modes=case.locations, seed=1, draws=500, progress=False)
        assert result.num_modes == modes and result.with_valley(0.3).num_modes == 1 + (gap > 2)
        assert np.isclose(result.modes.weight.sum(), 1.0)
        assert result.modes.peaks.sum() == 1 + (gap > 2) and bool(result.modes.notes) == (gap > 2)
        assert not result.modes.notes or ("overlap" in result.modes.notes[0]) == (modes == 2)


@pytest.fixture(scope="module")
def overlapping():
    case = pair_of_gaussians(2, 4.0, weights=(0.6, 0.4))
    return case, whmc.sample(case.target, modes=case.locations, seed=0, draws=500, progress=False)


def test_weights_are_those_of_the_basins(overlapping):
    case, result = overlapping
    truth, error = shares(result, case.draw(np.random.default_rng(5), 40_000)[0])
    assert np.all(np.abs(result.modes.weight - truth) < 5 * np.hypot(result.modes.weight_se, error))
    assert result.modes.weight_se.max() < 0.01
    own = result.mode(0)
    assert own.share == pytest.approx(np.mean(result.label == 0)) and "of all" in repr(own)


@pytest.mark.parametrize(
    ("share", "error", "told"), [(0.530, 0.009, True), (0.530, 0.011, False), (0.5019, 0.0, False), (0.4979, 0.0, True)]
)
def test_draws_of_a_mode_say_where_their_share_is_not_its_weight(overlapping, share, error, told):
    own = dataclasses.replace(overlapping[1].mode(0), weight=0.5, weight_se=error, share=share)
    assert ("from which that share differs" in repr(own)) is told


def test_another_valley_costs_no_evaluation_and_comes_back_from_a_file(overlapping, tmp_path):
    _, result = overlapping
    again = whmc.load(result.save(tmp_path / "result.nc"))
    one = again.with_valley(2.0)
    assert again.num_modes == 2 and one.num_modes == 1 and one.library.num_modes == 1
    np.testing.assert_allclose(again.modes.weight, result.modes.weight)
    assert one.with_valley(1.0).modes.weight.tolist() == again.modes.weight.tolist()
    assert whmc.load(one.save(tmp_path / "one.nc")).num_modes == 1
    with pytest.raises(ValueError, match="must be > 0 nats"):
        result.with_valley(0.0)


def test_labels_and_modes_of_a_file_are_those_of_the_result(overlapping, tmp_path):
    """Some draws do not bear the label of their chart; another valley is kept; `--json` agrees."""
    _, result = overlapping
    assert np.any(result.label != result.partition.of_chart[result.chart])
    for one in (result, result.with_valley(2.9)):
        loaded = whmc.load(one.save(tmp_path / "result.nc"))
        np.testing.assert_array_equal(loaded.label, one.label)
        for same in (one, loaded):
            tree, told, table = to_datatree(same), as_json(same), one.modes
            np.testing.assert_array_equal(tree["sample_stats"]["mode"].values, one.label)
            np.testing.assert_array_equal(tree["modes"]["visits"].values, np.bincount(one.label.ravel()))
            for name in ("location", "weight", "weight_se", "peaks"):
                np.testing.assert_array_equal(tree["modes"][name].values, getattr(table, name))
                np.testing.assert_array_equal([mode[name] for mode in told["modes"]], getattr(table, name))
            np.testing.assert_array_equal(tree["modes"]["pass"].values, table.pass_)
            assert tree["modes"].attrs["notes"].splitlines() == told["notes"] == list(table.notes)


def test_alarms_of_a_result_know_which_modes_overlap(overlapping):
    """The same draws, as if each chain had stayed in one of the modes."""
    _, result = overlapping
    chart = np.array([np.flatnonzero(result.partition.of_chart == k)[0] for k in (0, 1)])[np.arange(16) % 2]
    none = dataclasses.replace(result.basins, row=result.basins.row[:0], end=result.basins.end[:0])
    stuck = dataclasses.replace(result, chart=np.tile(chart[:, None], 500), basins=none)
    raised = {alarm.name: alarm for alarm in stuck.alarms}
    assert "overlaps with mode" in raised["jumps rare"].message
    valley = float(raised["jumps rare"].remedy.split("with_valley(")[1].split(")")[0])
    assert stuck.with_valley(valley).num_modes == 1 and "jumps rare" not in str(stuck.with_valley(valley).alarms)


def test_charts_along_a_banana_are_one_mode():
    target = whmc.Target(
        lambda x: -0.125 * x[0] ** 2 - 0.5 * (x[1] - x[0] ** 2) ** 2, dim=2, starts=(-6.0, 6.0)
    )  # fmt: skip
    along = np.array([-2.0, -0.7, 0.7, 2.0])
    with jax.enable_x64(True):
        library = library_at(target, np.stack([along, along**2], axis=1))
    result = whmc.sample(target, modes=library, seed=0, draws=300, progress=False)
    assert result.num_modes == 1 and result.modes.peaks.tolist() == [1]
    np.testing.assert_allclose(result.modes.location, [[0.0, 0.0]], atol=1e-2)


@pytest.mark.parametrize("dim", [50, 200])
def test_a_broad_gaussian_around_a_narrow_one_is_a_mode_without_a_peak(dim):
    """All ascents reach the narrow one's peak; no draw lies between the two."""
    result = whmc.sample(two_scale_pair(dim, (0.8, 0.2)).target, seed=0, draws=300, progress=False)
    assert result.modes.peaks.tolist() == [1, 0]
    assert np.all(np.abs(result.modes.weight - [0.8, 0.2]) < 4 * result.modes.weight_se)
    assert np.all(result.modes.weight_se < 0.02)
    radius = np.linalg.norm(result.draws, axis=-1) / np.sqrt(dim)
    assert np.all((radius > 2) == (result.label == 1))


def parted(draws, own):
    """Which of two charts with the moments of their draws are told apart, both leading to the same peak at zero."""
    groups = [draws[own == k] for k in (0, 1)]
    library = whmc.ModeLibrary.from_charts(
        np.stack([some.mean(axis=0) for some in groups]), np.stack([np.diag(some.std(axis=0)) for some in groups])
    )
    place = locations_of(library.charts())
    return parted_charts(library, np.zeros(2, int), place, np.zeros((1, draws.shape[1])), draws, own, draws.std(axis=0))


def test_mass_that_lies_apart_is_told_whose_ascents_reach_one_peak():
    """Log-gamma modes of opposite skew: their peaks are a third of a standard deviation apart, their means seven."""
    case = loggamma_pair(150, separation=7.2)
    assert np.linalg.norm(np.diff(case.locations, axis=0)) < 0.4
    lead, depth = parted(*case.draw(np.random.default_rng(0), 4000))
    assert sorted(lead.tolist()) in ([NOWHERE, 0], [NOWHERE, 1]) and np.all(depth >= FAR)


@pytest.mark.parametrize("heavy", [False, True])
def test_one_mode_that_two_charts_share_does_not_lie_apart(heavy):
    """Cut in two by a plane, or into its middle and its tails."""
    rng = np.random.default_rng(0)
    draws = rng.standard_normal((4000, 20)) / (np.sqrt(rng.chisquare(3.0, (4000, 1)) / 3) if heavy else 1.0)
    cut = np.linalg.norm(draws, axis=1) > 6 if heavy else draws[:, 0] > 0
    lead, depth = parted(draws, cut.astype(int))
    assert lead.tolist() == [NOWHERE, NOWHERE] and np.all(depth == np.inf)


def test_a_shell_is_a_mode_without_a_peak_and_its_location_lies_on_it():
    case = shells(2)
    result = whmc.sample(case.target, seed=0, draws=300, progress=False)
    assert result.modes.peaks.tolist() == [0, 0]
    centres = np.array([[-3.5, 0.0], [3.5, 0.0]])
    radius = np.linalg.norm(result.modes.location[:, None] - centres, axis=-1).min(axis=1)
    assert np.all(np.abs(radius - 2.0) < 0.3)


def test_shells_of_many_dimensions_are_one_mode_each_however_many_ascents_end_alone():
    result = whmc.sample(shells(10).target, seed=0, draws=300, progress=False)
    assert result.modes.peaks.tolist() == [0, 0] and len(result.basins.height) > 100
    assert np.all(np.abs(result.modes.weight - 0.5) < 4 * result.modes.weight_se)


# the correction


def test_a_correction_takes_what_ends_elsewhere_and_knows_its_error():
    """Of the draws a quarter is unclear; of these three in ten end in the other mode."""
    rng = np.random.default_rng(0)
    stratum = np.where(rng.uniform(size=(8, 500)) < 0.25, 1, 0)
    stratum[:, 250:] += 2
    chart = np.repeat((np.arange(500) >= 250).astype(int)[None], 8, axis=0)
    row = np.argwhere(stratum % 2 == 1)[::2]
    own = chart[row[:, 0], row[:, 1]]
    moved = rng.uniform(size=len(row)) < np.where(own == 0, 0.3, 0.0)
    end = np.where(moved, 1 - own, own)
    found = basins([0.0, 0.0], [(0, 1)], [2.0], of_chart=(0, 1), row=row, end=end, stratum=stratum, every=1)
    adds = correction(found, found.partition(), chart, np.array([0.5, 0.5]))
    expected = 0.5 * 0.25 * 0.3
    assert abs(adds.weight[1] - expected) < 4 * adds.se[1] < 0.04 and adds.weight.sum() == pytest.approx(0.0)
    charts = Weights(np.array([0.5, 0.5]), np.array([0.003, 0.003]))
    assert corrected(charts, adds).weight.sum() == pytest.approx(1.0)
    assert np.all(corrected(charts, adds).se > charts.se)


def test_ascents_that_agree_with_charts_change_nothing():
    row, end = np.array([[0, 0], [0, 3]]), np.array([0, 1])
    chart = np.array([[0, 0, 1, 1]])
    found = basins([0.0, 0.0], [(0, 1)], [9.0], of_chart=(0, 1), row=row, end=end, stratum=2 * chart)
    adds = correction(found, found.partition(), chart, np.array([0.5, 0.5]))
    assert not np.any(adds.weight) and not np.any(adds.se)


def test_charts_alone_tell_modes_where_no_ascent_was_made():
    assert Partition.of_charts(np.array([0, 1, 1])).num_modes == 2


EVEN = Weights(np.full(2, 0.5), np.zeros(2))


def shallow(fall):
    return basins([0.0, -1.0], [(0, 1)], [fall], [0.2], (0, 1))


def test_words_and_errors_are_those_of_the_valley_asked_for(overlapping):
    """A fall of less than a nat parts two modes where that was asked for; one mode has all of the mass for certain."""
    _, result = overlapping
    whole = result.with_valley(2.9).modes
    assert whole.weight.tolist() == [1.0] and whole.weight_se.tolist() == [0.0]
    fall = float(result.partition.fall[0, 1])
    assert "only" not in result.with_valley(0.5 * fall).modes.notes[0]
    lines = [next(iter(notes(shallow(0.6).partition(valley), EVEN, valley))) for valley in (0.5, 0.7)]
    assert "0.6 nats below the lower peak" in lines[0] and "up to 0.009" in lines[0] and "2 peaks" in lines[1]


def one_chart_for_two(chains, draws, ends):
    """Basins of two modes that one chart covers; ends: which of them each draw (chain, draw) climbs to."""
    row = np.argwhere(np.ones((chains, draws), bool))
    strata = np.ones((chains, draws), int)
    found = basins([0.0, 0.0], [(0, 1)], [9.0], row=row, end=ends.ravel(), stratum=strata)
    return found, found.partition(), np.zeros((chains, draws), int)


@pytest.mark.parametrize("stuck", [False, True])
def test_the_error_of_ascents_covers_where_draws_of_a_chain_end_alike(stuck):
    rng, z = np.random.default_rng(3), []
    for _ in range(200):
        ends = rng.random((16, 1 if stuck else 8)) < 0.5
        found = correction(*one_chart_for_two(16, 8, np.broadcast_to(ends, (16, 8)).astype(int)), np.array([1.0, 0.0]))
        z.append((found.weight[1] - 0.5) / found.se[1])
    assert 0.7 < np.mean(np.square(z)) < 1.4


def test_draws_of_a_chart_that_covers_two_modes_are_told_by_their_neighbours():
    case = pair_of_gaussians(2, 5.0)
    result = whmc.sample(case.target, modes=[[0.0, 0.0]], seed=0, draws=500, progress=False)
    truth = (result.draws[..., 0] > 2.5).astype(int)
    right = int(result.partition.of_peak[result.basins.location[:, 0].argmax()])
    assert result.num_modes == 2 and np.mean((result.label == right) == truth) > 0.98
    assert result.mode(right).share == pytest.approx(result.modes.weight[right], abs=0.05)
    assert np.abs(result.modes.weight - 0.5).max() < 5 * result.modes.weight_se.max() < 0.2
