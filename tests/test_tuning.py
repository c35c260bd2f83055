"""What is learned between rounds."""

import dataclasses
import itertools

import numpy as np
import pytest

from whmc.modes.chart_data import ChartData, locations_of
from whmc.modes.library import ModeLibrary
from whmc.modes.refine import UNTRIED_STEP
from whmc.warmup.charts import fit_charts
from whmc.warmup.step_size import QUARTER_TURN, carry_step_sizes, quarter_turn, tune_step_sizes
from whmc.warmup.throat import LEAST_DIVERSITY, ThroatSearch
from whmc.warmup.warmup import round_lengths
from whmc.warmup.weights import tune_weights


@pytest.mark.parametrize("warmup", [0, 1, 20, 100, 500, 3000])
def test_rounds_double_and_add_up(warmup):
    lengths = round_lengths(warmup)
    assert sum(lengths) == warmup
    assert all(1.8 < b / a < 2.2 for a, b in itertools.pairwise(lengths))


def test_step_sizes_follow_acceptance():
    label = np.repeat([0, 1, 2], 400)
    acceptance = np.repeat([0.2, 0.8, 0.99], 400)
    tuned = tune_step_sizes(np.full(3, 0.5), label, acceptance)
    assert tuned[0] < 0.35 < 0.48 < tuned[1] < 0.52 < 0.6 < tuned[2] <= 1.0
    # a chart that nothing was seen of keeps its step
    assert tune_step_sizes(np.array([0.5]), np.zeros(0, int), np.zeros(0))[0] == pytest.approx(0.5, rel=1e-6)


@pytest.mark.parametrize("diagonal", [True, False])
def test_a_step_is_carried_over_where_a_chart_was_far_too_wide(diagonal):
    def charts(*widths):
        scale = np.array([[1.0, 1.0, width] for width in widths])
        return charts_at(np.zeros((len(widths), 3)), scale if diagonal else np.eye(3) * scale[:, None, :])

    draws = np.random.default_rng(0).standard_normal((400, 3))
    label = np.repeat([0, 1, 2, 3], [100, 100, 190, 10])
    step_size = np.array([0.02, 0.3, 0.3, 0.02])
    carried = carry_step_sizes(step_size, charts(20, 20, 1.5, 20), charts(1, 1, 1, 1), draws, label)
    assert carried[0] == pytest.approx(0.4, rel=0.2)  # as long as before in the direction that limits it
    assert carried[1] == UNTRIED_STEP
    np.testing.assert_array_equal(carried[2:], step_size[2:])  # hardly changed; too few draws to tell
    kept = carry_step_sizes(step_size, charts(20, 20, 20, 20), charts(20, 20, 20, 20), draws, label)
    np.testing.assert_array_equal(kept, step_size)


def test_a_quarter_turn_is_made_in_equal_steps():
    num_steps, step_size = quarter_turn(np.array([0.5, 2.0]), np.array([1.0, 0.0]))
    assert num_steps == 4
    np.testing.assert_allclose(step_size, [QUARTER_TURN / 4] * 2)


def test_weights_come_from_acceptance_even_of_modes_never_entered():
    """Three modes .6/.3/.1, all chains in the first two; jumps to the third are seen only as probabilities."""
    truth, rng = np.array([0.6, 0.3, 0.1]), np.random.default_rng(0)
    label = rng.choice(2, 4000, p=[2 / 3, 1 / 3])
    label = np.concatenate([label, np.full(40, 2)])
    proposed = rng.choice(3, label.size)
    acceptance = np.minimum(1, truth[proposed] / truth[label])
    log_weight = tune_weights(np.log([0.01, 0.01, 0.98]), np.arange(3), label, proposed, acceptance)
    np.testing.assert_allclose(np.exp(log_weight), truth, atol=0.03)


def test_a_chart_of_no_weight_at_all_keeps_the_weights_finite():
    """A location far from everything weighs exp(-5000), which is nought: the others are weighed as if it were not."""
    label, proposed = np.array([0, 0, 1, 1] * 50), np.array([1, 2, 0, 2] * 50)
    acceptance = np.where(proposed == 2, 0.0, 0.5)
    log_weight = tune_weights(np.array([0.0, -1.0, -5000.0]), np.arange(3), label, proposed, acceptance)
    assert np.all(np.isfinite(log_weight))
    assert np.exp(log_weight[2]) < 0.02 and abs(log_weight[0] - log_weight[1]) < 0.1


def test_charts_of_one_mode_share_what_the_flows_give_it():
    """The balance is that of modes: a mode of two charts, .1 and .3 of it, weighs what one chart in its place would."""
    label, proposed = np.array([0, 1, 2, 2] * 50), np.array([2, 2, 0, 1] * 50)
    acceptance = np.where(label == 2, 0.3, 0.6)
    log_weight = tune_weights(np.log([0.1, 0.3, 0.6]), np.array([0, 0, 1]), label, proposed, acceptance)
    moved = np.array([0, 0, 1])
    one = tune_weights(np.log([0.4, 0.6]), np.arange(2), moved[label], moved[proposed], acceptance)
    np.testing.assert_allclose(np.exp(log_weight), np.exp(one)[moved] * [0.25, 0.75, 1.0])


def charts_at(location, scale):
    return [ChartData.of(*parts, mode=k) for k, parts in enumerate(zip(location, scale, strict=True))]


def matrices_of(charts):
    return np.stack([one.scale.matrix for one in charts])


def test_the_home_of_a_mode_is_fitted_to_all_its_draws_and_the_others_stay():
    rng = np.random.default_rng(2)
    x = np.concatenate([rng.standard_normal((400, 2)) - 2, rng.standard_normal((400, 2)) + 2])
    start = charts_at(np.array([[0.0, 0.0], [-2.0, -2.0], [2.0, 2.0]]), np.tile(np.eye(2), (3, 1, 1)))
    logdensity = np.logaddexp(-0.5 * np.sum((x + 2) ** 2, axis=1), -0.5 * np.sum((x - 2) ** 2, axis=1))
    library = ModeLibrary.of([dataclasses.replace(one, mode=0) for one in start])
    learned = fit_charts(start, library, x, logdensity, np.repeat([1, 2], 400))
    np.testing.assert_array_equal(locations_of(learned[1:]), locations_of(start[1:]))
    np.testing.assert_array_equal(matrices_of(learned[1:]), matrices_of(start[1:]))
    assert np.trace(learned[0].scale.matrix @ learned[0].scale.matrix.T) > 5  # 10 in all: 1 + 4 in each direction


def _draws(n, dim, rng):
    factor = np.tril(rng.standard_normal((dim, dim))) * 0.4 + np.eye(dim)
    z = rng.standard_normal((n, dim))
    return factor, z @ factor.T, -0.5 * np.sum(z**2, axis=1)


def test_right_curvature_is_kept_wrong_curvature_is_replaced():
    rng = np.random.default_rng(0)
    dim, n = 12, 500
    factor, x, logdensity = _draws(n, dim, rng)
    label = np.zeros(n, int)
    right = charts_at(np.zeros((1, dim)), factor[None])
    kept = fit_charts(right, ModeLibrary.of(right), x, logdensity, label)
    np.testing.assert_array_equal(matrices_of(kept), matrices_of(right))
    wrong = charts_at(np.full((1, dim), 2.0), 3 * np.eye(dim)[None])
    (learned,) = fit_charts(wrong, ModeLibrary.of(wrong), x, logdensity, label)
    covariance = learned.scale.matrix @ learned.scale.matrix.T
    assert np.linalg.norm(covariance - factor @ factor.T) < 0.35 * np.linalg.norm(factor @ factor.T)
    np.testing.assert_allclose(learned.location, 0.0, atol=0.3)


def test_few_draws_are_shrunk_and_none_change_nothing():
    rng = np.random.default_rng(1)
    dim = 30
    factor, x, logdensity = _draws(100, dim, rng)
    start = charts_at(np.zeros((2, dim)), np.stack([factor * 1.3, factor]))
    learned = matrices_of(fit_charts(start, ModeLibrary.of(start), x, logdensity, np.zeros(100, int)))
    assert np.all(np.isfinite(learned))
    np.testing.assert_array_equal(learned[1], factor)
    # a hundred draws in thirty dimensions tell the size, though hardly the shape
    assert abs(np.linalg.slogdet(learned[0])[1] - np.linalg.slogdet(factor)[1]) < 0.2 * dim * np.log(1.3)


def test_throat_is_not_tried_where_direct_jumps_are_good():
    search = ThroatSearch(diversity=0.8, other_cost=3)
    assert search.plan() == [(0, 1.0)]
    search = ThroatSearch(diversity=0.8, other_cost=3, acceptance={(0, 1.0): 0.75})
    assert search.plan() == [(0, 1.0)]


def test_unequal_weights_are_not_taken_for_hopeless_jumps():
    """.995/.005: a perfect direct jump is accepted once in a hundred times, and independent draws change no more."""
    search = ThroatSearch(diversity=2 * 0.995 * 0.005, other_cost=2, acceptance={(0, 1.0): 0.01})
    assert search.plan() == [(0, 1.0)] and search.best() == (0, 1.0)


def test_no_throat_is_tried_where_all_modes_but_one_are_negligible():
    search = ThroatSearch(diversity=LEAST_DIVERSITY, other_cost=2, acceptance={(0, 1.0): 0.0})
    assert search.plan() == [(0, 1.0)] and search.best() == (0, 1.0)


def test_the_floor_of_weights_is_not_taken_for_mass():
    """One heavy mode and fifteen at the floor: the shares are one and nought."""
    weight = np.append(0.99, np.full(15, 0.01 / 16))
    library = ModeLibrary.from_charts(np.arange(16.0)[:, None], np.ones((16, 1)), log_weight=np.log(weight))
    np.testing.assert_allclose(library.shares(), np.eye(16)[0], atol=1e-3)


def test_no_throat_is_kept_where_none_helps():
    search = ThroatSearch(diversity=0.5, other_cost=2, acceptance={(512, 1.0): 1e-9})
    assert search.best() == (0, 1.0)


def test_a_throat_must_be_better_than_the_present_one_beyond_doubt():
    """At the same cost a stride wins with an acceptance that is more than a standard error higher."""
    acceptance = {(4, 1.0): 0.48, (4, 1.4): 0.55}
    assert ThroatSearch(0.5, 4, acceptance).best() == (4, 1.4)
    assert ThroatSearch(0.5, 4, acceptance, {(4, 1.0): 0.01, (4, 1.4): 0.06}).best() == (4, 1.4)
    assert ThroatSearch(0.5, 4, acceptance, {(4, 1.0): 0.01, (4, 1.4): 0.08}).best() == (4, 1.0)
    assert ThroatSearch(0.5, 4, {(4, 1.0): 0.001, (4, 1.4): 0.55}, {(4, 1.4): 0.2}).best() == (4, 1.4)  # no hope left


def test_throat_search_escalates_then_settles():
    def world(setting):
        throat, stride = setting
        return 0.9 * max(0.0, 1 - 12 / (throat * stride + 1e-9)) if 0.6 < stride < 1.3 else 0.0

    search = ThroatSearch(diversity=0.5, other_cost=5)
    for _ in range(8):
        search = ThroatSearch(0.5, 5, {setting: world(setting) for setting in search.plan()})
    throat, stride = search.best()
    assert 16 <= throat <= 64 and stride == 1.0
