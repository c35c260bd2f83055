"""Log evidence by the bridge and by work: right, and with an error that covers."""

import itertools

import numpy as np
import pytest
from scipy.stats import norm

from whmc.estimate.annealed_evidence import GOOD_SE, needs_annealing
from whmc.estimate.evidence import NOTHING, Evidence, acceptance_ratio, bridge

# evidence by the bridge

LOG_Z = -7.0


def log_w(x, location=0.3, scale=1.2):
    """A normal density times Z over that of the proposals."""
    return LOG_Z + norm.logpdf(x) - norm.logpdf(x, location, scale)


def independent(rng, location=0.3, scale=1.2, shape=(32, 200)):
    proposals = rng.normal(location, scale, shape)
    return log_w(rng.normal(size=shape), location, scale), log_w(proposals, location, scale)


def independence_chain(rng, shape=(32, 200)):
    """Draws of the Metropolis chain that accepts and rejects these very proposals."""
    proposals, here, draws = log_w(rng.normal(0.3, 1.2, shape)), log_w(rng.normal(size=shape[0])), []
    for there in proposals.T:
        here = np.where(np.log(rng.random(shape[0])) < there - here, there, here)
        draws.append(here)
    return np.stack(draws, axis=1), proposals


def truncated(rng, shape=(32, 200)):
    """Half of the normal density: many proposals are impossible."""
    proposals = rng.normal(0.3, 1.2, shape)
    draws = log_w(np.abs(rng.normal(size=shape)))
    return draws, np.where(proposals > 0, log_w(proposals), -np.inf)


@pytest.mark.parametrize(
    ("law", "truth"), [(independent, LOG_Z), (independence_chain, LOG_Z), (truncated, LOG_Z - np.log(2))]
)
def test_bridge_is_right_and_its_error_too(law, truth):
    rng = np.random.default_rng(5)
    found = [bridge(*law(rng)) for _ in range(100)]
    score = np.array([(one.log_evidence - truth) / one.se for one in found])
    # of 100 scores the mean is known to .1, the spread to .07
    assert np.max(np.abs(score)) < 4 and abs(score.mean()) < 0.5
    assert 0.8 < score.std() < 1.25, score.std()
    assert max(one.se for one in found) < 0.05


def test_bridge_follows_the_scale_of_the_density():
    draws, proposals = truncated(np.random.default_rng(6))
    small, large = bridge(draws, proposals), bridge(draws + 1000, proposals + 1000)
    assert abs(large.log_evidence - small.log_evidence - 1000) < 1e-9
    assert large.se == pytest.approx(small.se, rel=1e-6) and large.overlap == pytest.approx(small.overlap, rel=1e-6)


def test_bridge_with_perfect_proposals_has_no_error():
    found = bridge(np.full((4, 50), LOG_Z), np.full((4, 50), LOG_Z))
    assert found.log_evidence == pytest.approx(LOG_Z) and found.se < 1e-12 and found.overlap == pytest.approx(1.0)


def test_bridge_to_proposals_far_away_is_less_certain():
    rng = np.random.default_rng(7)
    found = [bridge(*independent(rng, location)) for location in (0.3, 2.5, 5.0)]
    for near, far in itertools.pairwise(found):
        assert far.se > 1.5 * near.se and far.overlap < 0.7 * near.overlap
    assert all(abs(one.log_evidence - LOG_Z) < 4 * one.se for one in found)


def test_bridge_to_nowhere_is_nothing():
    assert bridge(np.zeros((4, 10)), np.full((4, 10), -np.inf)) is NOTHING


# evidence by work


def work_ratio(forward: np.ndarray, reverse: np.ndarray) -> tuple[float, float]:
    found = acceptance_ratio(forward[None], reverse[None])
    return found.log_evidence, found.se


def gaussian_work(rng, log_ratio, spread, num, back):
    """Work both ways that obeys Crooks' theorem."""
    forward = rng.normal(-log_ratio + spread**2 / 2, spread, num)
    return forward, rng.normal(log_ratio + spread**2 / 2, spread, back)


def test_work_both_ways_gives_the_ratio_and_its_error():
    rng = np.random.default_rng(8)
    found = np.array([work_ratio(*gaussian_work(rng, 12.0, 1.5, 400, 200)) for _ in range(100)])
    score = (found[:, 0] - 12) / found[:, 1]
    assert np.max(np.abs(score)) < 4 and abs(score.mean()) < 0.5
    assert 0.8 < score.std() < 1.25, score.std()
    assert np.max(found[:, 1]) < 0.15


def test_paths_that_are_impossible_have_their_share():
    """Three in ten ways there end outside the support; nothing comes back from there."""
    rng = np.random.default_rng(9)
    forward, reverse = gaussian_work(rng, -3.0, 1.0, 4000, 4000)
    forward[rng.random(4000) < 0.3] = np.inf
    found, se = work_ratio(forward, reverse)
    assert abs(found - (-3.0 + np.log(0.7))) < 4 * se < 0.2


def test_infinite_work_of_either_sign_leaves_the_ratio_finite():
    forward, reverse = gaussian_work(np.random.default_rng(10), 1.0, 1.0, 1000, 1000)
    plain = work_ratio(forward, reverse)
    forward[0], reverse[0], forward[1], reverse[1] = np.inf, np.inf, -np.inf, -np.inf
    found = work_ratio(forward, reverse)
    # one in a thousand of about a third
    assert abs(found[0] - plain[0]) < 0.02 and found[1] == pytest.approx(plain[1], rel=0.1)


def test_work_that_is_no_number_is_that_of_an_impossible_path():
    """Leaving it out would be a bias: a path that fails has no density at its end."""
    forward, reverse = gaussian_work(np.random.default_rng(11), 1.0, 1.0, 100, 100)
    impossible = [np.append(forward, bad) for bad in (np.nan, np.inf)]
    assert work_ratio(impossible[0], reverse) == work_ratio(impossible[1], reverse) != work_ratio(forward, reverse)


@pytest.mark.parametrize("absurd", [1e30, 1e300, np.finfo(float).max])
def test_absurd_work_weighs_nothing_however_absurd(absurd):
    """The root is bracketed by the bulk of the work: one value in eight hundred does not move it."""
    forward, reverse = gaussian_work(np.random.default_rng(12), 12.0, 1.5, 400, 400)
    plain = work_ratio(forward, reverse)
    for n, sign in itertools.product((0, 1), (-1.0, 1.0)):
        sides = [forward.copy(), reverse.copy()]
        sides[n][7] = sign * absurd
        with_absurd = acceptance_ratio(sides[0][None], sides[1][None])
        sides[n][7] = sign * np.inf
        assert (with_absurd.log_evidence, with_absurd.se) == pytest.approx(work_ratio(*sides), abs=1e-6)
        assert abs(with_absurd.log_evidence - plain[0]) < 0.1


def test_a_figure_that_the_work_does_not_allow_is_never_given():
    """All that is known of Z lies at 1e300 on one side and at 0 on the other."""
    found = acceptance_ratio(np.full((1, 50), 1e300), np.zeros((1, 50)))
    assert found is NOTHING


@pytest.mark.parametrize("side", [np.zeros(0), np.zeros(1), np.full(5, np.nan), np.full(5, np.inf)])
def test_no_work_gives_no_ratio(side):
    some = np.array([-1.0, 0.0, 1.0])
    assert np.all(np.isnan([work_ratio(side, some), work_ratio(some, side), work_ratio(side, side)]))


def test_bridge_without_overlap_says_so():
    found = bridge(np.zeros((4, 100)), np.full((4, 100), -25.0))
    assert found.log_evidence == pytest.approx(-12.5) and found.overlap < 1e-4


def test_bridge_far_apart_does_not_underflow():
    found = bridge(np.full((4, 100), 60.0), np.full((4, 100), -60.0))
    assert found.log_evidence == pytest.approx(0.0, abs=1e-6) and found.overlap < 1e-20


# an error that covers where charts fit badly


def correlated(rng, shape, dim, memory):
    """Draws of the standard normal law with this correlation from step to step."""
    position, rows = rng.standard_normal((shape[0], dim)), []
    for _ in range(shape[1]):
        rows.append(position)
        position = memory * position + np.sqrt(1 - memory**2) * rng.standard_normal(position.shape)
    return np.stack(rows, axis=1)


def too_narrow(rng, scale, memory, shape=(16, 200), dim=2):
    """Charts narrower than the target: w = pi/q under q has a Pareto tail of shape k = 1 - scale²."""

    def log_weight(x):
        return 0.5 * (scale**-2 - 1) * np.sum(x**2, axis=-1) + dim * np.log(scale)

    proposals = scale * rng.standard_normal((*shape, dim))
    return log_weight(correlated(rng, shape, dim, memory)), log_weight(proposals)


def rarely_entered(rng, stay, mass=0.04, shape=(16, 200)):
    """Four per cent of the mass lie in a tail that q never reaches, where a chain stays for so many steps."""
    inside, rows = rng.random(shape[0]) < mass, []
    for _ in range(shape[1]):
        rows.append(inside)
        uniform = rng.random(shape[0])
        inside = np.where(inside, uniform >= 1 / stay, uniform < mass / (1 - mass) / stay)
    spread = 0.3  # of log w in the rest, log-normal on both sides
    noise, log_rest = spread * rng.standard_normal((2, *shape)), np.log(1 - mass)
    draws = np.where(np.stack(rows, axis=1), 9.0, log_rest + spread**2 / 2 + noise[0])
    return draws, log_rest - spread**2 / 2 + noise[1]


def scores_of(law, num, **settings):
    rng = np.random.default_rng(13)
    found = [bridge(*law(rng, **settings)) for _ in range(num)]
    return np.array([one.log_evidence / one.se for one in found]), np.array([one.se for one in found])


@pytest.mark.parametrize(
    ("scale", "memory"),
    [(0.8, 0.9), *(pytest.param(*law, marks=pytest.mark.ci) for law in ((1.2, 0.0), (0.6, 0.0), (0.6, 0.9)))],
)
def test_intervals_cover_in_91_to_98_per_cent_of_short_runs(scale, memory):
    """k up to .64. Of 400 runs the share is known to .011; the largest of three errors may cover a little more."""
    score, se = scores_of(too_narrow, 400, scale=scale, memory=memory)
    assert 0.91 <= np.mean(np.abs(score) < 1.96) <= 0.985
    assert np.abs(score).max() < 4.5 and se.max() < 0.1


@pytest.mark.ci
@pytest.mark.parametrize("memory", [0.0, 0.9])
def test_errors_are_wider_or_alarmed_where_w_has_no_useful_tail(memory):
    """k of .8 and .91, above the .7 from which importance ratios are not to be trusted (Vehtari et al. 2024)."""
    for scale, alarmed in ((0.45, False), (0.3, True)):
        score, se = scores_of(too_narrow, 100, scale=scale, memory=memory)
        assert np.abs(score).max() < 2.5 and np.median(se) > 0.03
        assert not alarmed or np.mean(se > 0.1) > 0.95


@pytest.mark.ci
def test_errors_cover_mass_that_chains_enter_rarely():
    """About nine visits to the tail in a run: neither batches nor chains show the error, the uncovered share does."""
    score, _ = scores_of(rarely_entered, 400, stay=15)
    assert np.mean(np.abs(score) < 1.96) >= 0.91
    assert np.mean(np.abs(score) > 4.5) < 0.02  # nobody came there at all


def test_evidence_by_work_is_asked_for_where_the_bridge_is_poor():
    assert not needs_annealing(Evidence(0.0, GOOD_SE, 1.0, "bridge"))
    assert all(needs_annealing(Evidence(0.0, se, 1.0, "bridge")) for se in (2 * GOOD_SE, np.inf, np.nan))
    assert not needs_annealing(NOTHING)
