"""As many charts for a mode as its draws call for."""

import numpy as np
import pytest

from contracts import columns
from whmc.modes.chart_data import with_numbers
from whmc.modes.gaussian_mixture import GaussianMixture, fit_gaussian_mixture
from whmc.modes.library import ModeLibrary
from whmc.modes.mixture import log_ratio_of
from whmc.modes.refine import MAX_STEP_SIZE
from whmc.modes.split import (
    HOME_SHARE,
    LEAST_ROOM,
    MAX_DIM_TO_SPLIT,
    MAX_ROOM,
    best_mixture,
    fit_mixtures,
    misfit_of,
    room_to_split,
)

NONE = GaussianMixture(np.zeros(0), np.zeros((0, 2)), np.zeros((0, 2, 2)))
MUCH = 10.0
"""A misfit that leaves all doors open."""


def ring(num, seed=0):
    """Draws, and the log density that they have."""
    rng = np.random.default_rng(seed)
    angle, radius = rng.uniform(0, 2 * np.pi, num), 3 + 0.2 * rng.standard_normal(num)
    logdensity = -0.5 * ((radius - 3) / 0.2) ** 2 - np.log(radius * 0.2 * (2 * np.pi) ** 1.5)
    return np.stack([radius * np.cos(angle), radius * np.sin(angle)], axis=1), logdensity


def banana(num, seed=0):
    x = np.random.default_rng(seed).standard_normal((num, 2))
    draws = np.stack([2 * x[:, 0], 0.3 * x[:, 1] + x[:, 0] ** 2], axis=1)
    return draws, -0.5 * np.sum(x**2, axis=1) - np.log(2 * np.pi * 0.6)


def split(draws, now=NONE, misfit=MUCH, room=16):
    return best_mixture(now, draws, misfit, room)


def gain(mixture, draws):
    """Of held-out draws over one Gaussian, in nats a draw."""
    one = fit_gaussian_mixture(draws, 1)
    return np.mean(mixture.log_density(draws) - one.log_density(draws))


# one mode


def test_a_ring_needs_four_and_two_would_not_do():
    draws, _ = ring(2000)
    assert split(draws, room=2) is None
    four = split(draws, room=4)
    np.testing.assert_allclose(four.weight, 0.25, atol=0.1)
    np.testing.assert_allclose(np.linalg.norm(four.mean, axis=1), 2.7, atol=0.2)


@pytest.mark.parametrize(("shape", "few"), [(ring, 4), (banana, 2)])
def test_more_charts_are_taken_while_they_gain(shape, few):
    draws, _ = shape(4000)
    held, _ = shape(4000, seed=1)
    found = split(draws)
    assert len(found.weight) > few and gain(found, held) > gain(split(draws, room=few), held) + 0.1


@pytest.mark.parametrize("seed", range(5))
def test_a_gaussian_is_not_split(seed):
    rng = np.random.default_rng(seed)
    draws = rng.standard_normal((500, 4)) @ rng.standard_normal((4, 4))
    none = GaussianMixture(np.zeros(0), np.zeros((0, 4)), np.zeros((0, 4, 4)))
    assert split(draws, none) is None


def test_what_cannot_gain_enough_is_not_even_tried():
    assert split(ring(2000)[0], misfit=0.19) is None


def test_too_few_draws_are_not_split():
    """20 (D + 1) = 60 of a ring in two dimensions."""
    assert split(ring(59)[0]) is None


@pytest.mark.parametrize(
    "draws", [np.zeros((300, 2)), np.stack([np.linspace(0, 1, 300)] * 2, axis=1), np.full((300, 2), 1e8)]
)
def test_degenerate_draws_are_not_split(draws):
    assert split(draws) is None


def test_charts_that_are_there_are_fitted_to_new_draws():
    rough, draws = split(ring(200)[0], room=4), ring(4000, seed=1)[0]
    held = ring(4000, seed=2)[0]
    better = split(draws, rough, room=0)
    assert len(better.weight) == 4 and gain(better, held) > gain(rough, held)


def test_the_misfit_is_the_divergence_from_the_mode():
    """KL(N(0, 1), N(0, s²)) = log s + 1/(2 s²) - 1/2, whatever the constants of both."""
    x = np.random.default_rng(0).standard_normal(100_000)
    log_ratio = 7.0 - 0.5 * x**2 + 0.5 * (x / 1.5) ** 2
    se = np.std(log_ratio) / np.sqrt(len(x))
    assert abs(misfit_of(log_ratio) - (np.log(1.5) + 1 / (2 * 1.5**2) - 0.5)) < 5 * se
    assert misfit_of(np.zeros(0)) == 0.0 and misfit_of(np.full(5, -800.0)) == 0.0


# a library


def ring_and_round(capacity):
    """A library of a round mode and a ring, each with its moments, and the draws of both with their log densities."""
    z = np.random.default_rng(1).standard_normal((2000, 2))
    draws, log_ring = ring(2000)
    position = np.concatenate([20 + z, draws])
    logdensity = np.concatenate(
        [np.log(0.25) - 0.5 * np.sum(z**2, axis=1) - np.log(2 * np.pi), np.log(0.75) + log_ring]
    )
    library = ModeLibrary.from_charts(
        [[20.0, 20.0], [0.0, 0.0]],
        [np.eye(2), np.linalg.cholesky(np.cov(draws.T))],
        log_weight=np.log([0.25, 0.75]),
        step_size=[0.9, 0.05],
        capacity=capacity,
    )
    return library, position, logdensity


def test_only_the_bent_mode_is_split_and_it_stays_one_mode():
    library, position, logdensity = ring_and_round(6)
    found = fit_mixtures(library, position, logdensity, grow=True)
    assert found.size == found.capacity == 6
    np.testing.assert_array_equal(found.mode_of, [0, 1, 1, 1, 1, 1])
    np.testing.assert_array_equal(found.home_of, [0, 1, 1, 1, 1, 1])
    weight = np.exp(columns(found).log_weight)
    np.testing.assert_allclose([weight[0], weight[1:].sum(), weight[1]], [0.25, 0.75, 0.75 * HOME_SHARE])
    for one, other in zip(columns(library)[:2], columns(found)[:2], strict=True):
        np.testing.assert_allclose(one, other[:2])  # the round mode and the home of the ring are as they were


def test_log_ratios_are_flatter_after_it():
    library, position, logdensity = ring_and_round(20)
    found = fit_mixtures(library, position, logdensity, grow=True)
    before, after = (np.std(log_ratio_of(one, position, logdensity)) for one in (library, found))
    assert found.size > 6 and after < 0.5 * before


def test_steps_of_new_charts_are_as_long_as_at_home_in_the_stiffest_direction():
    library, position, logdensity = ring_and_round(6)
    found = fit_mixtures(library, position, logdensity, grow=True)
    _, scale, _, step_size = columns(found)
    steps = step_size[:, None, None] * scale
    longest = [np.linalg.norm(np.linalg.solve(one, steps[1]), 2) for one in steps[2:]]
    np.testing.assert_allclose(longest, 1.0)
    assert np.all(step_size[2:] < MAX_STEP_SIZE) and np.all(step_size[2:] > step_size[1])  # arcs are narrower


def test_without_growth_charts_and_steps_stay_as_many_and_as_long():
    library, position, logdensity = ring_and_round(6)
    assert fit_mixtures(library, position, logdensity, grow=False) is library
    split = fit_mixtures(library, position[::4], logdensity[::4], grow=True)
    tuned = split.with_charts(with_numbers(split.charts(), step_size=np.full(6, 0.3)))
    again = fit_mixtures(tuned, position, logdensity, grow=False)
    assert again is not tuned and again.size == 6
    np.testing.assert_array_equal(columns(again).step_size, 0.3)


def test_where_room_is_short_nothing_is_overfilled():
    library, position, logdensity = ring_and_round(4)  # four charts for the ring would need four places
    assert fit_mixtures(library, position, logdensity, grow=True) is library


def test_room_to_split():
    def room(dim, size):
        return room_to_split(ModeLibrary.from_charts(np.zeros((size, dim)), np.tile(np.eye(dim), (size, 1, 1))))

    assert room(2, 3) == LEAST_ROOM and room(2, 20) == 24 and room(2, 100) == MAX_ROOM
    assert room(MAX_DIM_TO_SPLIT, 1) == LEAST_ROOM and room(MAX_DIM_TO_SPLIT + 1, 1) == 0
    assert room_to_split(ModeLibrary.from_charts(np.zeros((1, 2)), np.ones((1, 2)))) == 0
