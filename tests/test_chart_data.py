"""Charts on the host: what they refuse, and that a library gives back what it was made of."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import whmc
from contracts import CHARTS
from whmc.modes.chart_data import ChartData, locations_of, log_weights_of, step_sizes_of, with_numbers
from whmc.modes.layers.banded import Banded
from whmc.modes.layers.bend import Bend
from whmc.modes.layers.places import Shift
from whmc.modes.layers.scales import Diagonal
from whmc.modes.layers.tails import Radial, Tail
from whmc.modes.mixture import log_components

DIM = 3
BEND = Bend.of(np.array([1.0, 0.0, 0.0]), np.array([0.0, 0.3, 0.0]), np.array(0.1))
OTHER_BEND = Bend.of(np.array([0.0, 1.0, 0.0]), np.zeros(DIM), np.array(-0.1))
TAIL = Tail.of(np.array([0.1, 0.0, 0.2]), DIM)
RADIAL = Radial.of(np.array([0.1]), DIM)


def chart(**changes):
    return ChartData.of(np.zeros(DIM), changes.pop("scale", np.eye(DIM)), **changes)


@pytest.mark.parametrize("kind", CHARTS)
def test_a_library_gives_back_the_charts_it_was_made_of(kind):
    rng = np.random.default_rng(0)
    scale = np.tril(0.3 * rng.standard_normal((3, DIM, DIM)), -1) + np.eye(DIM)
    made = whmc.ModeLibrary.from_charts(
        rng.standard_normal((3, DIM)), scale, log_weight=np.log([0.5, 0.3, 0.2]), step_size=[1.0, 0.5, 0.2], capacity=5
    )
    library = CHARTS[kind](made)
    again = whmc.ModeLibrary.of(library.charts(), 5, dof=float(library.dof))
    for one, other in zip(jax.tree.leaves(library), jax.tree.leaves(again), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-14, atol=1e-14)
    assert jax.tree.structure(library) == jax.tree.structure(again)
    assert [one.mode for one in again.charts()] == [0, 1, 2]


@pytest.mark.parametrize("kind", [kind for kind in CHARTS if kind != "Student-t"])
def test_densities_of_charts_are_those_of_the_library(kind):
    rng = np.random.default_rng(1)
    library = CHARTS[kind](whmc.ModeLibrary.from_charts(rng.standard_normal((2, DIM)), np.tile(np.eye(DIM), (2, 1, 1))))
    draws = rng.standard_normal((4, DIM))
    found = np.stack([one.log_density(draws) + one.log_weight for one in library.charts()])
    expected = [log_components(library, jnp.asarray(row)) for row in draws]
    np.testing.assert_allclose(found.T, expected, rtol=1e-12)


def test_warps_stand_in_the_order_in_which_a_point_goes_through_them():
    both = chart(warps=[BEND, TAIL])
    assert both.warps == (TAIL, BEND) == chart(warps=[TAIL]).with_warp(BEND).warps
    assert both.with_warp(OTHER_BEND).warps == (TAIL, OTHER_BEND)
    assert both.warp(Bend) is BEND
    np.testing.assert_array_equal(both.warp(Radial).heaviness, 0.0)


@pytest.mark.parametrize(
    ("make", "told"),
    [
        (lambda: chart(scale=np.full((DIM, DIM), 0.5)), "lower triangular"),
        (lambda: chart(scale=np.zeros(DIM)), "positive"),
        (lambda: chart(scale=Diagonal.of(np.full(DIM, np.inf))), "finite"),
        (lambda: chart(scale=np.ones(2)), "scale has shape"),
        (lambda: chart(scale=Banded.of(np.ones(DIM), np.zeros((3, DIM)))), "couplings have shape"),
        (lambda: chart(log_weight=np.nan), "log_weight must be a finite number"),
        (lambda: chart(step_size=0.0), "step_size must be positive"),
        (lambda: chart(warps=[Tail.of(np.full(DIM, 11.0), DIM)]), "heaviness must be from 0 to 10"),
        (lambda: chart(warps=[Tail.of(np.full(2, 0.1), 2)]), "heaviness has shape"),
        (lambda: chart(warps=[Radial.of(np.array([-0.1]), DIM)]), "heaviness must be"),
        (lambda: chart(warps=[Bend(2 * BEND.axis, BEND.curve, BEND.stretch)]), "length one"),
        (lambda: chart(warps=[Bend(BEND.axis, BEND.axis, BEND.stretch)]), "right angles"),
        (lambda: chart(warps=[Bend(BEND.axis, BEND.curve, np.array(11.0))]), "at most 10"),
        (lambda: chart(warps=[Bend(BEND.axis, np.full(DIM, np.nan), BEND.stretch)]), "finite"),
        (lambda: chart(warps=[Bend.identity(2)]), "3 dimensions"),
        (lambda: chart(warps=[TAIL, RADIAL]), "not both"),
        (lambda: chart().with_warp(Shift(np.ones(DIM))), "WARPS names those"),
        (lambda: whmc.ModeLibrary.of([]), "empty"),
        (lambda: whmc.ModeLibrary.of([chart(warps=[RADIAL])]), "bends or tails"),
        (lambda: whmc.ModeLibrary.of([chart(warps=[TAIL]), chart(warps=[BEND], mode=1)]), "bends or tails"),
        (lambda: whmc.ModeLibrary.of([chart(), chart(scale=np.ones(DIM), mode=1)]), "one kind of scale"),
        (lambda: whmc.ModeLibrary.of([chart(scale=np.ones(DIM), warps=[BEND])]), "diagonal"),
        (lambda: whmc.ModeLibrary.of([chart(mode=1)]), "counted from zero"),
        (lambda: whmc.ModeLibrary.of([chart()], capacity=0), "must hold 1"),
        (lambda: whmc.ModeLibrary.of([chart()], dof=2.5), "dof must be a whole number"),
    ],
)
def test_what_is_no_chart_or_no_library_is_refused(make, told):
    with pytest.raises(ValueError, match=told), np.errstate(all="ignore"):
        make()


def test_numbers_of_charts():
    charts = with_numbers([chart(), chart(mode=1)], log_weight=[-1.0, -2.0], step_size=[0.5, 0.25])
    np.testing.assert_array_equal(log_weights_of(charts), [-1.0, -2.0])
    np.testing.assert_array_equal(step_sizes_of(with_numbers(charts, log_weight=[0.0, 0.0])), [0.5, 0.25])
    np.testing.assert_array_equal(locations_of(charts), np.zeros((2, DIM)))
