"""Numbers from draws, and their errors: weights, tours, what a search has not seen, alarms."""

import re
import tracemalloc
from types import SimpleNamespace

import numpy as np
import pytest

from whmc.estimate import alarms, alarms_of_density
from whmc.estimate.evidence import NOTHING, Evidence
from whmc.estimate.missing import MissingMass
from whmc.estimate.parameters import ParameterTable
from whmc.estimate.tours import FEWEST, Tours
from whmc.estimate.weights import (
    RARE,
    Flow,
    Weights,
    balance,
    jump_matrix,
    occupancy,
    round_trips,
    standard_error,
    with_floor,
)
from whmc.target.noticed import AtBound

THREE = np.array([0.6, 0.3, 0.1])


def two_states(rng, shape, draws, up, down):
    """Chains on {0, 1} that go up and down with these probabilities, from their stationary law; draws come last."""
    state = rng.random(shape) < up / (up + down)
    states = []
    for _ in range(draws):
        state = np.where(state, rng.random(shape) >= down, rng.random(shape) < up)
        states.append(state)
    return np.stack(states, axis=-1).astype(int)


# weights by occupancy


def test_occupancy_finds_the_shares_of_independent_labels():
    rng = np.random.default_rng(0)
    found = occupancy(rng.choice(3, (20, 500), p=THREE), 3)
    exact = np.sqrt(THREE * (1 - THREE) / 10_000)
    assert np.all(np.abs(found.weight - THREE) < 5 * exact)
    # the larger of an error with 20 x 22 batches and one with 20 chains
    assert np.all((0.8 * exact < found.se) & (found.se < 1.5 * exact))


def test_error_of_a_sticky_chain_is_its_asymptotic_one():
    rng = np.random.default_rng(1)
    up, down, chains, draws = 0.05, 0.15, 40, 4000
    found = occupancy(two_states(rng, chains, draws, up, down), 2)
    share, memory = up / (up + down), 1 - up - down
    exact = np.sqrt(share * (1 - share) * (1 + memory) / (1 - memory) / (chains * draws))
    assert abs(found.weight[1] - share) < 5 * exact
    assert np.all((found.se / exact > 0.7) & (found.se / exact < 1.4))


def test_chains_that_never_leave_their_mode_count_once_each():
    label = np.repeat(np.array([0, 0, 0, 1])[:, None], 400, axis=1)
    np.testing.assert_allclose(occupancy(label, 2).se, np.sqrt(0.75 * 0.25 / 3))


def test_one_chain_has_the_error_of_its_batches():
    value = np.repeat([1.0, 3.0, 1.0, 3.0], 4)
    np.testing.assert_allclose(standard_error(value[None, :, None]), np.sqrt(4 / 3) / 2)


def test_a_mode_never_seen_is_not_known_exactly():
    label = np.repeat([[0, 1], [1, 0]], 500, axis=1)
    # three times the error of independent draws in the modes seen: tau is nine
    se = np.array([3 * np.sqrt(0.25 / 2000), 3 * np.sqrt(0.25 / 2000), 0.0])
    np.testing.assert_allclose(with_floor(se, label, 3), [se[0], se[1], 2 * 3 / 2000])
    # no error is taken for less than that of independent draws
    np.testing.assert_allclose(with_floor(se / 100, label, 3)[2], 2 / 2000)
    # nor is the mode that has everything known exactly
    np.testing.assert_allclose(occupancy(np.zeros((4, 250), int), 2).se, 2 / 1000)


def test_the_floor_is_for_rare_modes_only():
    for visits, raised in ((RARE - 1, True), (RARE, False)):
        label = (np.arange(2000) < visits).astype(int)[None]
        found = with_floor(np.full(2, 1e-9), label, 2)
        np.testing.assert_allclose(found, np.sqrt(visits + 4) / 2000 if raised else 1e-9)


def test_one_mode_has_weight_one_and_no_error():
    found = occupancy(np.zeros((4, 100), int), 1)
    assert found.weight[0] == 1.0 and found.se[0] == 0.0


# weights by the balance of jumps


def metropolis(weight):
    """Acceptance of uniform proposals from i (row) to k (column)."""
    return np.minimum(1, weight / weight[:, None])


def uniform_jumps(rng, weight, groups, num):
    label, proposed = rng.choice(len(weight), (groups, num), p=weight), rng.choice(len(weight), (groups, num))
    return Flow.of(label, proposed, metropolis(weight)[label, proposed], len(weight))


def test_balance_is_exact_however_often_modes_are_visited():
    weight = np.array([0.5, 0.3, 0.15, 0.05])
    moves = np.random.default_rng(0).integers(1, 100, (8, 4)).astype(float)
    found = balance(Flow(moves[:, :, None] * metropolis(weight) / 4, moves))
    np.testing.assert_allclose(found.weight, weight, rtol=0, atol=1e-10)
    np.testing.assert_allclose(found.se, 0, atol=1e-10)


def test_balance_goes_through_modes_between():
    """Nothing jumps from the first to the last at once."""
    flow = metropolis(THREE) / 3
    flow[0, 2] = flow[2, 0] = 0.0
    found = balance(Flow(np.tile(flow, (4, 1, 1)), np.ones((4, 3))))
    np.testing.assert_allclose(found.weight, THREE, atol=1e-10)


def test_balance_leaves_out_modes_never_entered():
    moves = np.tile([60.0, 30.0, 0.0], (5, 1))
    found = balance(Flow(moves[:, :, None] * metropolis(THREE) / 3, moves))
    np.testing.assert_allclose(found.weight, [2 / 3, 1 / 3, 0], atol=1e-10)


def test_flow_adds_up_what_was_proposed_in_each_group():
    label, proposed = np.array([[0, 0, 1], [1, 1, 1]]), np.array([[1, 1, 0], [0, 1, 1]])
    flow = Flow.of(label, proposed, np.array([[0.5, 0.25, 1.0], [0.125, 1.0, 1.0]]), 2)
    np.testing.assert_array_equal(flow.accepted, [[[0, 0.75], [1, 0]], [[0, 0], [0.125, 2]]])
    np.testing.assert_array_equal(flow.moves, [[2, 1], [0, 3]])


def test_error_of_balance_is_that_of_its_repetitions():
    rng = np.random.default_rng(2)
    found = [balance(uniform_jumps(rng, THREE, 16, 100)) for _ in range(200)]
    score = np.stack([(one.weight - THREE) / one.se for one in found])
    # scores with 15 degrees of freedom spread by sqrt(15/13) = 1.07, known to 5 %
    assert np.all(np.abs(score.mean(axis=0)) < 5 * 1.07 / np.sqrt(200))
    spread = score.std(axis=0)
    assert np.all((spread > 0.7) & (spread < 1.4)), spread


@pytest.mark.parametrize(("groups", "size", "known"), [(3, 2, False), (4, 2, True), (8, 1, False)])
def test_balance_needs_four_groups_and_two_modes(groups, size, known):
    moves = np.where(np.arange(3) < size, 10.0, 0.0) * np.ones((groups, 1))
    found = balance(Flow(moves[:, :, None] * metropolis(THREE) / 3, moves))
    assert np.all(np.isfinite(found.weight) == known) and np.all(np.isfinite(found.se) == known)


def test_jumps_are_accepted_changes_of_mode():
    label, proposed = np.array([[0, 0, 1], [2, 1, 0]]), np.array([[1, 1, 0], [2, 2, 1]])
    accepted = np.array([[True, False, True], [True, True, True]])
    np.testing.assert_array_equal(jump_matrix(label, proposed, accepted, 3), [[0, 2, 0], [1, 0, 1], [0, 0, 0]])


def test_a_round_trip_ends_at_home_and_started_there():
    label = np.array(
        [
            [0, 0, 1, 0, 2, 1, 0],  # two trips from home
            [1, 0, 1, 1, 0, 0, 2],  # the first arrival is no return
            [1, 2, 2, 1, 2, 1, 1],  # never at home
            [2, 2, 2, 2, 2, 2, 0],  # home at last
            [0, 0, 0, 0, 0, 0, 0],  # never away
            [0, 1, 2, 1, 2, 1, 2],  # never back
        ]
    )
    np.testing.assert_array_equal(round_trips(label, 0), [2, 1, 0, 0, 0, 0])
    np.testing.assert_array_equal(round_trips(label, 2), [0, 0, 1, 0, 0, 2])


# tours


def regenerative(rng, shape, draws, chance, up, down):
    """Chains on {0, 1} that forget all with this chance, for a fair coin, and go up and down otherwise.

    Returns states, flags of what was made by the coin, and the stationary share of 1.
    """
    state, states, flags = rng.random(shape) < 0.5, [], []
    for _ in range(draws):
        flag = rng.random(shape) < chance
        moved = np.where(state, rng.random(shape) >= down, rng.random(shape) < up)
        state = np.where(flag, rng.random(shape) < 0.5, moved)
        states.append(state)
        flags.append(flag)
    up, down = 0.5 * chance + (1 - chance) * up, 0.5 * chance + (1 - chance) * down
    return np.stack(states, axis=-1).astype(int), np.stack(flags, axis=-1), up / (up + down)


FLAGS = np.array([[0, 1, 0, 0, 1, 1, 0], [0, 0, 1, 0, 0, 0, 0], [1, 0, 0, 0, 0, 0, 1]], bool)


def test_tours_are_whole_and_within_one_chain():
    tours = Tours.of(FLAGS)
    np.testing.assert_array_equal(tours.chain, [0, 0, 2])
    np.testing.assert_array_equal(tours.start, [1, 4, 0])
    np.testing.assert_array_equal(tours.length, [3, 1, 6])
    assert len(tours) == 3 and len(Tours.of(np.zeros((2, 5), bool))) == 0


def test_shares_by_tours_and_their_error_by_hand():
    """Tours of 3, 1 and 6 draws, repeated: with Y of N draws in a mode, sum Y / sum N and its error."""
    label = np.array([[1, 0, 0, 1, 1, 0, 0], [1, 1, 1, 0, 0, 1, 1], [0, 1, 0, 0, 1, 1, 1]])
    tours = Tours.of(FLAGS)
    times = FEWEST // len(tours)
    many = Tours(np.tile(tours.chain, times), np.tile(tours.start, times), np.tile(tours.length, times))
    visits, length = np.tile([[2.0, 1.0, 0.0], [0.0, 1.0, 0.0], [3.0, 3.0, 0.0]], (times, 1)), many.length[:, None]
    share = visits.sum(axis=0) / length.sum()
    se = np.sqrt(np.sum((visits - share * length) ** 2, axis=0) * FEWEST / (FEWEST - 1)) / length.sum()
    found = many.shares(label, 3)
    np.testing.assert_allclose(found.weight, share)
    np.testing.assert_allclose(found.se, se)


def test_error_of_tours_is_that_of_their_repetitions():
    rng = np.random.default_rng(3)
    states, flags, truth = regenerative(rng, (300, 4), 600, chance=0.2, up=0.05, down=0.15)
    found = [Tours.of(flag).shares(state, 2) for state, flag in zip(states, flags, strict=True)]
    score = np.array([(one.weight[1] - truth) / one.se[1] for one in found])
    # of 300 scores the mean is known to .058, the spread to .041
    assert abs(score.mean()) < 0.25 and 0.85 < score.std() < 1.15, (score.mean(), score.std())


def test_tours_are_independent_and_other_stretches_are_not():
    rng = np.random.default_rng(4)
    states, flags, truth = regenerative(rng, (16,), 2000, chance=0.1, up=0.01, down=0.01)
    correlation = []
    for cuts in (flags, rng.random(flags.shape) < 0.1):
        tours = Tours.of(cuts)
        stretches = zip(tours.chain, tours.start, tours.length, strict=True)
        excess = np.array([np.sum(states[chain, start : start + num] - truth) for chain, start, num in stretches])
        together = tours.chain[1:] == tours.chain[:-1]
        correlation.append(np.corrcoef(excess[:-1][together], excess[1:][together])[0, 1])
    assert abs(correlation[0]) < 5 / np.sqrt(3000) < correlation[1], correlation


def test_few_tours_give_no_estimate():
    for num, known in ((FEWEST - 1, False), (FEWEST, True)):
        found = Tours.of(np.ones((1, num + 1), bool)).shares(np.arange(num + 1)[None] % 2, 2)
        assert np.all(np.isfinite(found.weight) == known) and np.all(np.isfinite(found.se) == known)


# memory


def test_memory_does_not_grow_with_modes_times_draws():
    """Indicators of 160 000 draws and 256 modes would be 330 MB, and several times over."""
    rng = np.random.default_rng(16)
    label, flags = rng.integers(256, size=(16, 10_000)), rng.random((16, 10_000)) < 0.3
    tracemalloc.start()
    found = [occupancy(label, 256), Tours.of(flags).shares(label, 256)]
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 32e6, peak
    for one in found:
        assert np.all(np.abs(one.weight - 1 / 256) < 5 * np.sqrt(1 / 256 / 110_000))


# alarms


def close_to(figure):
    return pytest.approx(figure, rel=1e-6, nan_ok=True)


def weighing(share, se=0.01):
    return Weights(np.array([share, 1 - share]), np.full(2, se))


def changing(times):
    """Two chains of a thousand steps, the first with so many changes of mode."""
    return np.stack([np.minimum(np.arange(1001), times) % 2, np.zeros(1001, int)])


def visited(*times):
    """Chains of twenty draws, with so many in the second mode."""
    return np.stack([(np.arange(20) < num).astype(int) for num in times])


def searched(fewest=500, capped=0):
    """A search of a thousand starts, so many of which hit a mode that holds a tenth of the mass."""
    missing = MissingMass.of(np.array([fewest, 1000 - fewest]), np.log([0.1, 0.9]), 1000)
    return SimpleNamespace(missing=missing, num_gradients=20_000, num_found=2, num_capped=capped)


def evidence(value, se):
    return Evidence(value, se, 0.5, "bridge")


def judged(found, num_draws=16_000, proposes=True):
    return alarms.evidence_uncertain(found, num_draws, proposes=proposes)


def tours(num):
    return Tours.of(np.ones((1, num + 1), bool))


HALVES = np.array([0.5, 0.5])
APART, CLOSE = {"a": weighing(0.5), "b": weighing(0.5455, 0.0)}, {"a": weighing(0.5), "b": weighing(0.5445, 0.0)}


def crowded(share):
    return [AtBound("p", 1.0, share)]


@pytest.mark.parametrize(
    ("alarm", "bad", "good", "name", "figure"),
    [
        (alarms.weights_disagree, (APART,), (CLOSE,), "weights disagree", 4.55),
        (
            alarms.weights_disagree,
            ({"a": weighing(0.5, 1e-6), "b": weighing(0.5021, 0.0), "c": weighing(0.5, np.nan)},),
            ({"a": weighing(0.5, 1e-6), "b": weighing(0.5019, 0.0), "c": weighing(0.9, np.nan)},),
            "weights disagree",
            2100,
        ),
        (alarms.one_chain_only, (visited(10, 0), 2), (visited(9, 0), 2), "one chain only", 1),
        (alarms.one_chain_only, (visited(0, 12), 2), (visited(1, 12), 2), "one chain only", 1),
        (alarms.one_chain_only, (visited(20, 0), 2), (visited(20), 2), "one chain only", 2),
        (alarms.jumps_rare, (changing(9), HALVES), (changing(11), HALVES), "jumps rare", 0.0045),
        (alarms.jumps_rare, (changing(0), HALVES), (changing(0), np.array([1.0, 0.0])), "jumps rare", 0),
        (alarms.jumps_rare, (changing(0), HALVES), (changing(0), np.array([1.0])), "jumps rare", 0),
        (alarms.modes_missing, (searched(2),), (searched(9),), "mass may be missing", searched(2).missing.expected),
        (alarms.modes_missing, (searched(capped=3),), (searched(),), "library capped", 3),
        (alarms.kernel_inexact, (False,), (True,), "kernel is not exact", np.nan),
        (
            alarms.evidences_disagree,
            ({"a": evidence(3.0, 0.01), "b": evidence(3.046, 0.0)},),
            ({"a": evidence(3.0, 0.01), "b": evidence(3.044, 0.0)},),
            "evidences disagree",
            4.6,
        ),
        (
            alarms.evidences_disagree,
            ({"a": evidence(3.0, 0.001), "b": evidence(3.011, 0.0)},),
            ({"a": evidence(3.0, 0.001), "b": evidence(3.009, 0.0), "c": NOTHING},),
            "evidences disagree",
            11,
        ),
        (alarms.far_draws, (0.011,), (0.01,), "draws far from every chart", 0.011),
        (alarms.few_tours, (tours(29),), (tours(30),), "few regenerations", 29),
        (alarms.few_tours, (tours(0),), (None,), "few regenerations", 0),
        (
            judged,
            (Evidence(3.0, 0.11, 0.5, "bridge"),),
            (Evidence(3.0, 0.1, 0.5, "bridge"),),
            "evidence uncertain",
            0.11,
        ),
        (
            judged,
            (Evidence(3.0, 0.01, 9e-4, "bridge"),),
            (Evidence(3.0, 0.01, 1e-3, "bridge"),),
            "evidence uncertain",
            0.01,
        ),
        (judged, (NOTHING,), (Evidence(3.0, 0.0, 1.0, "bridge"),), "no evidence", np.nan),
        (alarms_of_density.failures, (11, 1000, np.ones(2), 0.0), (10, 1000, None, 0.0), "evaluations failed", 0.011),
        (alarms_of_density.failures, (1, 0, None, 0.0), (0, 0, None, 0.0), "evaluations failed", 1),
        (alarms_of_density.failures, (11, 1000, np.ones(2), 0.5), (11, 1000, None, 0.5), "evaluations failed", 0.011),
        (alarms_of_density.gradient_fails, (0.001, np.ones(2)), (0.0, None), "gradient not finite", 0.001),
        (
            alarms_of_density.at_bound,
            ([AtBound("p", 1.0, 0.0011)],),
            ([AtBound("p", 1.0, 0.001)],),
            "bound reached",
            0.0011,
        ),
        (alarms_of_density.improper, (("x -> 0", "x -> inf"),), ((),), "improper", 2),
    ],
)
def test_alarm_is_raised_where_it_must_and_not_before(alarm, bad, good, name, figure):
    (raised,) = alarm(*bad)
    assert raised.name == name and raised.figure == close_to(figure)
    assert raised.message and raised.remedy and str(raised).startswith(f"{name}: ")
    assert alarm(*good) == []


@pytest.mark.parametrize(
    ("num_draws", "proposes", "says", "remedy"),
    [
        (1, True, "single draw", "Increase draws="),
        (100, True, "came near the target", "Increase warmup= and draws="),
        (100, False, "does not end with an independence move", "Use the default kernel"),
        (1, False, "does not end with an independence move", "Use the default kernel"),
    ],
)
def test_the_remedy_for_no_evidence_is_that_of_its_cause(num_draws, proposes, says, remedy):
    (raised,) = judged(NOTHING, num_draws, proposes)
    assert says in raised.message and remedy in raised.remedy
    assert ("default kernel" in raised.remedy) is not proposes


def in_the_tail(visits, num=120, height=6):
    """log w of 16 chains of a thousand draws, about `height` for `num` of them, in so many visits to the tail."""
    log_ratio = 0.1 * np.random.default_rng(15).standard_normal((16, 1000))
    for n in range(visits):
        start = 100 + 150 * (n // 16)
        log_ratio[n % 16, start : start + num // visits] += height
    return log_ratio


@pytest.mark.parametrize("visits", [1, 2, 3])
def test_a_tail_of_few_visits_is_told(visits):
    (raised,) = alarms.tails_rare(in_the_tail(visits), 0.0)
    assert raised.name == "tails visited rarely" and visits / 2 < raised.figure < 2 * visits
    assert "0.50% of the draws" in raised.message and raised.remedy


def test_a_tail_that_no_jump_leaves_must_be_visited_more_often():
    """A share of .003, in eight visits: enough where log w is 6, not where it is 12."""
    assert alarms.tails_rare(in_the_tail(8, num=48), 0.0) == []
    (raised,) = alarms.tails_rare(in_the_tail(8, num=48, height=12), 0.0)
    assert 4 < raised.figure < 10 and "0.25% of the draws" in raised.message
    assert alarms.tails_rare(in_the_tail(24, num=48, height=12), 0.0) == []


def test_a_tail_of_many_visits_or_one_that_charts_cover_is_not_told():
    assert alarms.tails_rare(in_the_tail(40), 0.0) == []
    assert alarms.tails_rare(in_the_tail(2), 1.5) == []  # one proposal in e^4.5 is accepted there
    assert alarms.tails_rare(np.random.default_rng(16).standard_t(2, (16, 1000)), 0.0) == []
    for few in (np.zeros((16, 1000)), np.zeros((2, 3)), np.full((2, 10), np.nan)):
        assert alarms.tails_rare(few, 0.0) == []
    assert alarms.tails_rare(in_the_tail(2), np.nan) == []


def test_a_chain_that_stands_still_is_told():
    """All its draws are one: the edge of the tail is their own log w."""
    log_ratio = 0.1 * np.random.default_rng(17).standard_normal((16, 1000))
    log_ratio[3, 200:320] = 6.0
    (raised,) = alarms.tails_rare(log_ratio, 0.0)
    assert raised.figure < 3


def test_a_capped_search_may_miss_modes_besides():
    assert [one.name for one in alarms.modes_missing(searched(2, capped=2))] == [
        "library capped",
        "mass may be missing",
    ]


def test_the_worst_pair_of_estimates_is_named():
    several = {"a": weighing(0.5), "b": weighing(0.56), "c": weighing(0.6)}
    (raised,) = alarms.weights_disagree(several)
    assert raised.figure == pytest.approx(10 / np.sqrt(2)) and "0.5 by a and 0.6 by c" in raised.message


def neighbours(valley):
    """Three modes, the first two with such a valley between them."""
    depth = np.full((3, 3), np.inf)
    depth[0, 1] = depth[1, 0] = valley
    return depth


ALONE = Weights(np.array([0.45, 0.45, 0.1]), np.full(3, 0.001))


@pytest.mark.parametrize(
    ("alarm", "near", "far"),
    [
        (
            alarms.weights_disagree,
            ({"a": ALONE, "b": Weights(np.array([0.5, 0.4, 0.1]), ALONE.se)},),
            ({"a": ALONE, "b": Weights(np.array([0.45, 0.4, 0.15]), np.array([0.001, 1.0, 0.001]))},),
        ),
        (alarms.one_chain_only, (visited(20, 0), 3), (2 * visited(10, 0), 3)),
        (alarms.jumps_rare, (changing(0), np.array([0.4, 0.5, 0.1])), (changing(0), np.array([0.4, 0.1, 0.5]))),
    ],
)
def test_alarms_say_where_the_border_of_a_mode_is_not_sharp(alarm, near, far):
    """Of the modes concerned one overlaps with another, or none; a valley that takes them together is named."""
    (raised,) = alarm(*near, neighbours(1.47))
    assert re.search(r"mode (0 overlaps with mode 1|1 overlaps with mode 0), and the border", raised.message)
    assert raised.remedy.endswith("result.with_valley(1.5) takes these two for one mode")
    for plain in (alarm(*near, neighbours(3.0)), alarm(*near), alarm(*far, neighbours(1.47))):
        assert len(plain) == 1 and "overlaps" not in plain[0].message and "valley" not in plain[0].remedy


def test_independent_draws_mix():
    assert alarms.mixing(ParameterTable.of({"x": np.random.default_rng(13).standard_normal((4, 500))}), (4, 500)) == []


def test_chains_that_differ_do_not_mix():
    rng = np.random.default_rng(14)
    good, bad = rng.standard_normal((4, 500)), rng.standard_normal((4, 500)) + np.arange(4)[:, None]
    few, disagree = alarms.mixing(ParameterTable.of({"good": good, "bad": bad}), (4, 500))
    assert few.name == "few effective draws" and few.figure < alarms.ESS
    assert disagree.name == "chains disagree" and alarms.RHAT < disagree.figure < 5
    for one in (few, disagree):
        assert "bad" in one.message and one.remedy


def test_chains_stuck_in_different_modes_do_not_mix():
    stuck = np.repeat(np.array([0.0, 0.0, 0.0, 1.0])[:, None], 500, axis=1)
    raised = alarms.mixing(ParameterTable.of({"mode 1": stuck}), (4, 500))
    assert [one.name for one in raised] == ["few effective draws", "chains disagree"]
    assert raised[1].figure == np.inf and "R-hat of mode 1 is infinite" in raised[1].message


def test_short_runs_that_mix_have_few_effective_draws_only():
    (few,) = alarms.mixing(ParameterTable.of({"x": np.random.default_rng(15).standard_normal((4, 50))}), (4, 50))
    assert few.name == "few effective draws" and 50 < few.figure < alarms.ESS


@pytest.mark.parametrize("num", [1, 3])
def test_too_few_draws_for_an_effective_number_are_few(num):
    """ESS is not a number below four draws, which is not the same as enough."""
    table = ParameterTable.of({"x": np.random.default_rng(15).standard_normal((16, num))})
    assert np.isnan(table.ess).all()
    (few,) = alarms.mixing(table, (16, num))
    assert few.name == "few effective draws" and few.figure == 16 * num


def test_balance_is_exact_for_tiny_flows_and_silent_without_any():
    flow = np.tile(metropolis(THREE) * 1e-40, (4, 1, 1))
    np.testing.assert_allclose(balance(Flow(flow, np.ones((4, 3)))).weight, THREE, atol=1e-10)
    assert np.all(np.isnan(balance(Flow(np.zeros((4, 3, 3)), np.ones((4, 3)))).weight))
