"""What a search has not found, in pictures and words."""

import dataclasses

import numpy as np
import pytest
from matplotlib.colors import to_hex
from matplotlib.figure import Figure

import whmc
from reported import one_mode, two_modes
from whmc import plots
from whmc.estimate.missing import GO_ON, MissingMass
from whmc.plots.missing import LEAST_MASS, Hits
from whmc.plots.style import mode_styles
from whmc.report import alt_text, write_report
from whmc.report.pictures import pictures_of
from whmc.report.tables import unseen

pytestmark = pytest.mark.xdist_group("report")

HITS, SHARE, NUM_STARTS, SCALES = np.array([2, 998]), np.array([0.2, 0.8]), 1000, np.array([[0.5, 0.2], [2.0, 1.0]])
TITLES = {"Hits and volumes of the modes", "Mass not found"}


@pytest.fixture(scope="module")
def result():
    return two_modes()


def searched(result, *, hits=HITS, share=SHARE, num_flat_hits=0, **missing):
    """The result with another search: its modes in the other order, the first one narrow and hit rarely."""
    library = whmc.ModeLibrary.from_charts(result.modes.location[::-1], SCALES, log_weight=np.log(share))
    told = dataclasses.replace(MissingMass.of(hits, np.log(share), NUM_STARTS), **missing)
    state = dataclasses.replace(result.search.state, num_flat_hits=num_flat_hits)
    search = dataclasses.replace(
        result.search, library=library, independent_hits=hits, num_independent=NUM_STARTS, missing=told, state=state
    )
    return dataclasses.replace(result, search=search)


def drawn(draw, result):
    axes = Figure().subplots()
    draw(axes, result)
    return axes


def marked(axes, name):
    """The points of the marks with this name in the legend."""
    (line,) = (line for line in axes.lines if line.get_label() == name)
    return line.get_xydata()


def test_the_curve_is_what_parts_of_the_starts_would_have_missed(result):
    changed = searched(result)
    axes, missing = drawn(plots.missing_mass, changed), changed.search.missing
    starts, mass = axes.lines[0].get_xydata().T
    part = starts / NUM_STARTS
    exact = 0.2 * (1 - part) ** 2 + 0.8 * (1 - part) ** 998
    shown = exact >= LEAST_MASS
    np.testing.assert_allclose(mass[shown], exact[shown], rtol=1e-9)
    assert np.isnan(mass[~shown]).all() and 300 < shown.sum() < len(shown) and part[0] == 1 / NUM_STARTS
    np.testing.assert_allclose(marked(axes, "an eighth of the starts"), [[125, 0.2 * (7 / 8) ** 2]], rtol=1e-9)
    np.testing.assert_allclose(marked(axes, "a quarter"), [[250, 0.2 * (3 / 4) ** 2]], rtol=1e-9)
    assert marked(axes, "all: expected, and its bound")[0, 1] == missing.expected > 0.01
    assert marked(axes, "gain of as many again")[0, 1] == missing.next_gain > 0.001
    assert any(missing.bound in line.get_ydata() for line in axes.lines)


def test_what_hits_cannot_show_is_never_drawn_as_nothing(result):
    axes = drawn(plots.missing_mass, searched(result, hits=np.array([400, 600])))
    assert marked(axes, "a quarter")[0, 1] == LEAST_MASS
    for name in ("all: expected, and its bound", "gain of as many again"):
        assert marked(axes, name)[0, 1] == GO_ON


def test_hits_stand_over_volumes_in_the_colour_of_their_mode(result):
    changed = searched(result, width_limit=0.5)
    axes = drawn(plots.hits_by_volume, changed)
    narrow = np.log(0.1 / 2.0)
    for style in mode_styles(result.modes.weight):
        (marks,) = (marks for marks in axes.collections if marks.get_label() == style.name)
        place = [[narrow, 2]] if style.mode == 1 else [[0, 998]]
        np.testing.assert_allclose(marks.get_offsets(), place, atol=1e-12)
        assert to_hex(marks.get_facecolor()[0]) == style.colour.lower()
        assert (marks.get_linewidth()[0] > 1) == (style.mode == 1)  # a trace
    # half of the mass is in modes no larger than the wide one, in two dimensions
    assert Hits.of(changed).limit == pytest.approx(2 * np.log(0.5))
    said = alt_text.of_hits(changed)
    for part in (
        "2 modes by 1000",
        "from 2 to 998",
        "mode 1, whose log volume is 3.00 less, 2 times",
        "1 mode of more",
    ):
        assert part in said
    assert "−1.39" in said and "log volume of −" not in alt_text.of_hits(searched(result))


def test_alternatives_give_the_numbers(result):
    said = alt_text.of_missing(searched(result))
    for share in (0.2 * (7 / 8) ** 2, 0.2 * (3 / 4) ** 2, 0.2 / 2**2):
        assert f" {100 * share:.2g} %" in said


def test_modes_without_a_peak_share_their_hits(result):
    """A ring is hit all over: its peaks are none, its hits many."""
    found = Hits.of(searched(result, hits=np.array([0, 400]), num_flat_hits=600))
    np.testing.assert_array_equal(found.hits, [600, 400])
    assert found.missed(0.01) == pytest.approx(0.2 * 0.99**600 + 0.8 * 0.99**400)
    # one that only the population has found says nothing about what starts miss, and is drawn at no hits
    unhit = searched(result, hits=np.array([0, 400]))
    assert Hits.of(unhit).missed(0.01) == pytest.approx(0.99**400) and Hits.of(unhit).rare[0]
    axes = drawn(plots.hits_by_volume, unhit)
    assert axes.get_ylim()[0] < 0


def test_pictures_are_left_out_where_hits_say_nothing(result, tmp_path):
    def titles(result):
        return {picture.title for picture in pictures_of(result)} & TITLES

    assert titles(result) == TITLES
    assert titles(one_mode()) == titles(searched(result, hits=np.array([0, 0]))) == set()
    assert titles(searched(result, num_starts=0)) == set()
    search = whmc.search_modes(one_mode().target, seed=0, finder=whmc.MultiStart(32))
    alone = dataclasses.replace(one_mode(), search=search)
    assert titles(alone) == {"Mass not found"}
    assert titles(whmc.load(result.save(tmp_path / "result.nc"))) == TITLES


@pytest.mark.parametrize("hits", [[2, 998], [400, 600]])
@pytest.mark.parametrize("calm", [False, True])
def test_what_was_not_found_is_told_once(result, tmp_path, monkeypatch, hits, calm):
    changed = searched(result, hits=np.array(hits))
    assert changed.alarms and changed.search.missing.alarming == (hits[0] == 2)
    if calm:
        monkeypatch.setattr(type(changed), "alarms", ())
    text = write_report(changed, tmp_path / "report.html").read_text()
    assert text.count(str(changed.search.missing).rstrip(".")) == 1
    alone = dataclasses.replace(changed, search=None)
    assert write_report(alone, tmp_path / "alone.html").read_text().count(unseen(alone)) == 1
