"""Which charts a library has: duplicates merged, bent modes split, heavy tails met."""

import numpy as np
import pytest

from whmc.modes.library import ModeLibrary
from whmc.modes.mixture import log_components_of
from whmc.modes.refine import (
    MAX_DIM_TO_SPLIT,
    MAX_ROOM_TO_SPLIT,
    MAX_STEP_SIZE,
    find_split,
    merge_duplicates,
    room_to_split,
    split_charts,
    with_best_dof,
    with_gaussian_base,
    with_student_base,
)


def library_of(locations, scales, **changes):
    return ModeLibrary.from_charts(np.asarray(locations, float), np.asarray(scales, float), **changes)


def round_pair(gap, scale=1.0):
    """Two charts `gap` apart, the second with another scale."""
    return library_of([[0.0, 0.0], [gap, 0.0]], [np.eye(2), scale * np.eye(2)], log_weight=np.log([0.75, 0.25]))


def ring(num, seed=0):
    rng = np.random.default_rng(seed)
    angle, radius = rng.uniform(0, 2 * np.pi, num), 3 + 0.2 * rng.standard_normal(num)
    return np.stack([radius * np.cos(angle), radius * np.sin(angle)], axis=1)


def banana(num, seed=0):
    x = np.random.default_rng(seed).standard_normal((num, 2))
    return np.stack([2 * x[:, 0], 0.3 * x[:, 1] + x[:, 0] ** 2], axis=1)


# duplicates


@pytest.mark.parametrize(("gap", "scale", "size"), [(0.6, 1.0, 1), (0.66, 1.0, 2), (0.0, 1.2, 1), (0.0, 2.0, 2)])
def test_charts_are_merged_by_their_bhattacharyya_distance(gap, scale, size):
    """Equal shapes d apart: d²/8, which is .05 at d = .632. Equal places, scales 1 and s: log((1 + s²)/2s) in D = 2."""
    assert merge_duplicates(round_pair(gap, scale)).size == size


def test_the_merged_chart_has_the_moments_of_both():
    merged = merge_duplicates(round_pair(0.4))
    location, scale, log_weight, _ = merged.charts()
    np.testing.assert_allclose(location[0], [0.1, 0.0])
    np.testing.assert_allclose(scale[0] @ scale[0].T, np.diag([1 + 0.75 * 0.25 * 0.4**2, 1.0]))
    np.testing.assert_allclose(log_weight, 0.0, atol=1e-12)
    assert merged.num_modes == 1


@pytest.mark.parametrize("diagonal", [True, False])
def test_three_of_five_charts_are_one_mode(diagonal):
    locations = [[0.0, 0.0], [9.0, 0.0], [0.1, 0.0], [0.0, 9.0], [0.0, 0.1]]
    scales = np.ones((5, 2)) if diagonal else np.tile(np.eye(2), (5, 1, 1))
    merged = merge_duplicates(library_of(locations, scales))
    np.testing.assert_allclose(np.exp(merged.charts()[2]), [0.6, 0.2, 0.2])
    np.testing.assert_allclose(merged.charts()[0], [[0.1 / 3, 0.1 / 3], [9.0, 0.0], [0.0, 9.0]])


# the base


def absolute_steps(library):
    """Step sizes times scales: how far a step goes."""
    _, scale, _, step_size = library.charts()
    return step_size[:, None, None] * scale


def covariances(library):
    dof = float(library.dof)
    return np.asarray(library.covariance) * (1.0 if np.isinf(dof) else dof / (dof - 2))


@pytest.mark.parametrize("dof", [3.0, 5.0, 30.0])
def test_another_base_changes_neither_covariances_nor_steps(dof):
    gaussian = library_of([[0.0, 0.0], [5.0, 0.0]], [np.eye(2), [[2.0, 0.0], [1.0, 0.5]]], step_size=[0.3, 0.8])
    student = with_student_base(gaussian, dof)
    assert float(student.dof) == dof
    np.testing.assert_allclose(covariances(student), covariances(gaussian))
    np.testing.assert_allclose(absolute_steps(student), absolute_steps(gaussian))
    back = with_gaussian_base(student)
    assert np.isinf(back.dof)
    for one, other in zip(gaussian.charts(), back.charts(), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-12)


def test_steps_stay_what_they_are_round_after_round():
    """A round reads a library, fits the same draws again and chooses the base again: nothing may creep."""
    draws = np.random.default_rng(0).standard_t(4, (4000, 2))
    library = first = with_best_dof(library_of([[0.0, 0.0]], [np.sqrt(2) * np.eye(2)], step_size=[0.4]), draws)
    assert float(first.dof) < 30
    for _ in range(5):
        library = with_best_dof(with_gaussian_base(library), draws)
    np.testing.assert_allclose(absolute_steps(library), absolute_steps(first), rtol=1e-12)


def test_a_step_is_never_longer_than_a_quarter_turn():
    library = library_of([[0.0, 0.0]], [np.eye(2)], step_size=[1.5])
    np.testing.assert_allclose(with_student_base(library, 3.0).charts()[3], MAX_STEP_SIZE)


@pytest.mark.parametrize(("dof", "chosen"), [(np.inf, {np.inf}), (3, {3.0, 5.0}), (10, {5.0, 10.0, 30.0})])
def test_the_base_is_as_heavy_as_the_draws(dof, chosen):
    rng = np.random.default_rng(1)
    draws = rng.standard_normal((8000, 5))
    if np.isfinite(dof):
        draws /= np.sqrt(rng.chisquare(dof, (8000, 1)) / dof)
    library = library_of([np.zeros(5)], [np.linalg.cholesky(np.cov(draws.T))])
    best = with_best_dof(library, draws)
    assert float(best.dof) in chosen

    def height(one):
        return np.mean(np.logaddexp.reduce(log_components_of(one, draws), axis=0))

    assert height(best) >= height(library)


def test_the_base_is_chosen_in_gaussian_units_only():
    library = with_student_base(library_of([[0.0, 0.0]], [np.eye(2)]), 5.0)
    with pytest.raises(ValueError, match=r"base of 5\.0 degrees of freedom: take with_gaussian_base"):
        with_best_dof(library, np.zeros((10, 2)))


# bent modes


def test_a_ring_is_split_into_four_and_two_would_not_do():
    found = find_split(ring(2000))
    assert found is not None and len(found.mixture.weight) == 4
    # four arcs of a quarter each, about three from the centre
    np.testing.assert_allclose(found.mixture.weight, 0.25, atol=0.1)
    np.testing.assert_allclose(np.linalg.norm(found.mixture.mean, axis=1), 2.7, atol=0.2)
    assert found.gain > 0.4 * 2000


def test_a_banana_is_split():
    assert find_split(banana(2000)) is not None


@pytest.mark.parametrize("seed", range(5))
def test_a_gaussian_is_not_split(seed):
    rng = np.random.default_rng(seed)
    assert find_split(rng.standard_normal((500, 4)) @ rng.standard_normal((4, 4))) is None


def test_too_few_draws_are_not_split():
    """20 (D + 1) = 60 of a ring in two dimensions."""
    assert find_split(ring(59)) is None


@pytest.mark.parametrize(
    "draws", [np.zeros((300, 2)), np.stack([np.linspace(0, 1, 300)] * 2, axis=1), np.full((300, 2), 1e8)]
)
def test_degenerate_draws_are_not_split(draws):
    assert find_split(draws) is None


def ring_and_round(capacity, *, dof=np.inf):
    """A library of a round mode and a ring, each with its moments, and the draws of both."""
    round_draws = 20 + np.random.default_rng(1).standard_normal((2000, 2))
    draws = np.concatenate([round_draws, ring(2000)])
    scales = [np.eye(2), np.linalg.cholesky(np.cov(ring(2000).T))]
    library = library_of(
        [[20.0, 20.0], [0.0, 0.0]],
        scales,
        log_weight=np.log([0.25, 0.75]),
        step_size=[0.9, 0.05],
        capacity=capacity,
    )
    return with_student_base(library, dof), draws, np.repeat([0, 1], 2000)


@pytest.mark.parametrize("dof", [np.inf, 5.0])
def test_only_the_bent_mode_is_split_and_it_stays_one_mode(dof):
    library, draws, label = ring_and_round(6, dof=dof)
    split = split_charts(library, draws, label)
    assert split.size == 5 and split.capacity == 6 and float(split.dof) == dof
    np.testing.assert_array_equal(split.mode_of, [0, 1, 1, 1, 1])
    weights = np.exp(split.charts()[2])
    np.testing.assert_allclose([weights[0], weights[1:].sum()], [0.25, 0.75])
    np.testing.assert_allclose(covariances(split)[0], covariances(library)[0])  # the round mode is as it was
    # the charts of the ring have the covariances of its arcs, whatever the base
    found = find_split(ring(2000)).mixture
    arcs = found.factor @ np.swapaxes(found.factor, 1, 2)
    np.testing.assert_allclose(covariances(split)[1:5], arcs, rtol=1e-9)


def test_steps_of_split_charts_are_as_long_as_before_in_the_stiffest_direction():
    library, draws, label = ring_and_round(6)
    split = split_charts(library, draws, label)
    before, after, step_size = absolute_steps(library)[1], absolute_steps(split)[1:5], split.charts()[3][1:5]
    longest = [np.linalg.norm(np.linalg.solve(one, before), 2) for one in after]
    np.testing.assert_allclose(longest, 1.0)
    assert np.all(step_size < MAX_STEP_SIZE) and np.all(step_size > 0.1)  # the arcs are narrower than the ring


def test_where_room_is_short_nothing_is_overfilled():
    library, draws, label = ring_and_round(4)
    assert split_charts(library, draws, label).size == 2  # four charts for the ring would need three places
    library, draws, label = ring_and_round(2)
    assert split_charts(library, draws, label) is library


def test_room_to_split():
    def room(dim, size):
        return room_to_split(library_of(np.zeros((size, dim)), np.tile(np.eye(dim), (size, 1, 1))))

    assert room(2, 3) == 7 and room(2, 100) == MAX_ROOM_TO_SPLIT
    assert room(MAX_DIM_TO_SPLIT, 1) == 5 and room(MAX_DIM_TO_SPLIT + 1, 1) == 0
    assert room_to_split(library_of(np.zeros((1, 2)), np.ones((1, 2)))) == 0
