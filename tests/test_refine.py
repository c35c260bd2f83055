"""Charts of the same mode merged, heavy tails met."""

import numpy as np
import pytest

from contracts import columns
from whmc.modes.library import ModeLibrary
from whmc.modes.mixture import log_components_of
from whmc.modes.refine import (
    MAX_STEP_SIZE,
    merge_duplicates,
    with_best_dof,
    with_gaussian_base,
    with_student_base,
)


def library_of(locations, scales, **changes):
    return ModeLibrary.from_charts(np.asarray(locations, float), np.asarray(scales, float), **changes)


def round_pair(gap, scale=1.0):
    """Two charts `gap` apart, the second with another scale."""
    return library_of([[0.0, 0.0], [gap, 0.0]], [np.eye(2), scale * np.eye(2)], log_weight=np.log([0.75, 0.25]))


# duplicates


@pytest.mark.parametrize(("gap", "scale", "size"), [(0.6, 1.0, 1), (0.66, 1.0, 2), (0.0, 1.2, 1), (0.0, 2.0, 2)])
def test_charts_are_merged_by_their_bhattacharyya_distance(gap, scale, size):
    """Equal shapes d apart: d²/8, which is .05 at d = .632. Equal places, scales 1 and s: log((1 + s²)/2s) in D = 2."""
    assert merge_duplicates(round_pair(gap, scale)).size == size


def test_the_merged_chart_has_the_moments_of_both():
    merged = merge_duplicates(round_pair(0.4))
    location, scale, log_weight, _ = columns(merged)
    np.testing.assert_allclose(location[0], [0.1, 0.0])
    np.testing.assert_allclose(scale[0] @ scale[0].T, np.diag([1 + 0.75 * 0.25 * 0.4**2, 1.0]))
    np.testing.assert_allclose(log_weight, 0.0, atol=1e-12)
    assert merged.num_modes == 1


@pytest.mark.parametrize("diagonal", [True, False])
def test_three_of_five_charts_are_one_mode(diagonal):
    locations = [[0.0, 0.0], [9.0, 0.0], [0.1, 0.0], [0.0, 9.0], [0.0, 0.1]]
    scales = np.ones((5, 2)) if diagonal else np.tile(np.eye(2), (5, 1, 1))
    merged = merge_duplicates(library_of(locations, scales))
    np.testing.assert_allclose(np.exp(columns(merged)[2]), [0.6, 0.2, 0.2])
    np.testing.assert_allclose(columns(merged)[0], [[0.1 / 3, 0.1 / 3], [9.0, 0.0], [0.0, 9.0]])


# the base


def absolute_steps(library):
    """Step sizes times scales: how far a step goes."""
    _, scale, _, step_size = columns(library)
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
    for one, other in zip(columns(gaussian), columns(back), strict=True):
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
    np.testing.assert_allclose(columns(with_student_base(library, 3.0))[3], MAX_STEP_SIZE)


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


def test_a_bent_mode_gets_heavier_tails_where_they_cost_nothing():
    """Two charts on Gaussian draws: a Student-t of 30 degrees of freedom loses .01 nats, one of 3 a third of one."""
    draws = np.random.default_rng(2).standard_normal((4000, 2))
    places, scales = [[0.0, 0.0], [0.1, 0.0]], np.tile(np.eye(2), (2, 1, 1))
    assert np.isinf(with_best_dof(library_of(places, scales), draws).dof)
    assert 10 <= float(with_best_dof(library_of(places, scales, mode=[0, 0]), draws).dof) <= 30
