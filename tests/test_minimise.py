"""Descents side by side: what BFGS learns, when descents end, and what they cost."""

import numpy as np
import pytest

from whmc.minimise import DENSE_UP_TO, MAX_EVALUATIONS, Dense, Limited, minimise


def bowl(scale):
    """Half the squared distance from one, in units of `scale`."""

    def energy(position, rows):
        shift = (position - 1.0) / scale
        return 0.5 * np.sum(shift**2, axis=1), shift / scale

    return energy


def rosenbrock(position, rows):
    x, y = position.T
    value = (1 - x) ** 2 + 100 * (y - x**2) ** 2
    return value, np.stack([-2 * (1 - x) - 400 * x * (y - x**2), 200 * (y - x**2)], axis=1)


@pytest.mark.parametrize("kind", [Dense, Limited])
def test_what_was_learnt_maps_the_last_change_of_slope_to_the_last_step(kind):
    """The secant equation H y = s, which every quasi-Newton method has to keep."""
    rng = np.random.default_rng(0)
    curvature = np.diag([1.0, 4.0, 0.3, 10.0])
    hessians, rows = kind(np.ones((3, 4))), np.arange(3)
    for _ in range(6):
        s = rng.standard_normal((3, 4))
        hessians.learn(rows, s, s @ curvature)
        np.testing.assert_allclose(hessians.times(rows, s @ curvature), s, rtol=1e-9, atol=1e-12)
    other = rng.standard_normal((3, 4))
    assert np.all(np.sum(other * hessians.times(rows, other), axis=1) > 0)


@pytest.mark.parametrize("dim", [3, DENSE_UP_TO + 20])
def test_a_bowl_is_descended_whatever_its_units(dim):
    starts = np.random.default_rng(1).uniform(-9, 9, (20, dim))
    spent = []
    for unit in (1.0, 1e-4, 1e5):
        found = minimise(bowl(unit), 1 + (starts - 1) * unit, np.full(dim, 18 * unit))
        np.testing.assert_allclose(found.position, 1.0, atol=1e-3 * unit)
        spent.append(found.num_evaluations / 20)
    assert max(spent) < 25


def test_a_bent_valley_is_followed_to_its_end():
    starts = np.random.default_rng(2).uniform(-2, 2, (50, 2))
    found = minimise(rosenbrock, starts, np.full(2, 4.0))
    np.testing.assert_allclose(found.position, 1.0, atol=1e-2)
    assert found.num_evaluations < 50 * 100


def test_starts_without_energy_are_told_and_walls_are_not_crossed():
    def energy(position, rows):
        value, slope = bowl(1.0)(position, rows)
        return np.where(position[:, 0] > 3, np.nan, np.where(position[:, 1] > 3, np.inf, value)), slope

    starts = np.array([[4.0, 0.0], [0.0, 4.0], [-2.0, -1.0], [2.9, 2.9]])
    found = minimise(energy, starts, np.full(2, 8.0))
    np.testing.assert_array_equal(found.able, [False, False, True, True])
    np.testing.assert_allclose(found.position[2:], 1.0, atol=1e-3)
    np.testing.assert_array_equal(found.position[:2], starts[:2])


def test_every_evaluation_is_counted_and_none_is_made_after_a_descent_has_ended():
    made = np.zeros(10, int)

    def energy(position, rows):
        made[rows] += 1
        return bowl(1.0)(position, rows)

    def stop(position, slope, rows):
        return rows < 5

    found = minimise(energy, np.random.default_rng(3).uniform(-9, 9, (10, 3)), np.full(3, 18.0), stop)
    assert found.num_evaluations == made.sum() and np.all(made[:5] == 1) and np.all(made[5:] > 1)


def test_a_plane_ends_after_the_most_evaluations():
    def plane(position, rows):
        return -position[:, 0], np.tile([-1.0, 0.0], (len(position), 1))

    found = minimise(plane, np.zeros((2, 2)), np.ones(2))
    assert found.num_evaluations <= 2 * MAX_EVALUATIONS and np.all(found.position[:, 0] > 1e6)


def test_a_slope_whose_square_is_nil_ends_a_descent():
    """A ramp, and beyond its foot a slope of 1e-170: no step along it can be told from none."""

    def ramp(position, rows):
        foot = position < 0.5
        return np.maximum(position[:, 0], 0.5), np.where(foot, 1e-170, 1.0)

    found = minimise(ramp, np.array([[0.55]]), np.ones(1))
    assert found.num_evaluations == 2 and found.position[0, 0] < 0.5


def test_a_slope_whose_square_is_infinite_is_no_warning():
    def cliff(position, rows):
        return 1e170 * position[:, 0], np.full_like(position, 1e170)

    found = minimise(cliff, np.zeros((1, 1)), np.ones(1))
    assert found.able.all() and np.isfinite(found.position).all()
