"""The report: complete, self-contained, escaped, and the same for a result that was loaded."""

import builtins
import dataclasses
import itertools
import re
from html.parser import HTMLParser

import numpy as np
import pytest
from matplotlib.figure import Figure

import whmc
from reported import SCRIPT, exact, many_modes, one_mode, two_modes
from whmc import plots
from whmc.estimate.evidence import Evidence
from whmc.plots.modes import Plane, brief, gathered_jumps, short_count
from whmc.plots.pairs import between_modes
from whmc.plots.style import COLOURS, mode_styles, picture_text, style_numbers
from whmc.report import write_report
from whmc.report.alt_text import number
from whmc.testing import gaussian_mixture

pytestmark = pytest.mark.xdist_group("report")  # its runs are made once, not in every worker


ON_AXES = [
    plots.weights_of_modes,
    plots.network,
    plots.jumps,
    plots.evidences,
    plots.label_traces,
    plots.running_weights,
    plots.energies,
    plots.discovery,
    plots.hits_by_volume,
    plots.missing_mass,
    plots.step_sizes,
]


class Reader(HTMLParser):
    """The tags of a page with their attributes, in order; what is opened is closed."""

    VOID = ("meta", "link", "img")

    def __init__(self, text):
        super().__init__()
        self.tags, self.opened = [], []
        self.feed(text)
        assert not self.opened

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        if tag not in self.VOID:
            self.opened.append(tag)

    def handle_endtag(self, tag):
        assert self.opened.pop() == tag

    def all(self, *names):
        return [attributes for tag, attributes in self.tags if tag in names]


@pytest.fixture(scope="module")
def results():
    return {"two": two_modes(), "one": one_mode(), "many": many_modes()}


@pytest.fixture(scope="module")
def pages(results, tmp_path_factory):
    folder = tmp_path_factory.mktemp("reports")
    return {name: write_report(result, folder / f"{name}.html") for name, result in results.items()}


CASES = ["two", "one", "many"]


@pytest.mark.parametrize("name", CASES)
def test_every_picture_has_a_text_alternative_with_figures(pages, name):
    pictures = Reader(pages[name].read_text()).all("img", "svg")
    assert len(pictures) >= {"two": 12, "one": 4, "many": 9}[name]
    for picture in pictures:
        assert len(picture["alt"]) > 20 and re.search(r"\d", picture["alt"])
        assert int(picture["width"]) > 100 and int(picture["height"]) > 100


@pytest.mark.parametrize("name", CASES)
def test_nothing_is_asked_for_outside_the_file(pages, name):
    text = pages[name].read_text()
    assert "http://" not in text and "https://" not in text and "@import" not in text and "url(" not in text
    reader = Reader(text)
    assert not reader.all("script", "iframe", "object", "embed")
    for _, attributes in reader.tags:
        for key in ("src", "href", "srcset", "action", "poster"):
            assert attributes.get(key, "#").startswith(("data:", "#"))
    links = {attributes["href"][1:] for attributes in reader.all("a")}
    assert links <= {attributes.get("id") for _, attributes in reader.tags}
    assert len(text) < 1_000_000


@pytest.mark.parametrize("name", CASES)
def test_structure_for_screen_readers(pages, name):
    reader = Reader(pages[name].read_text())
    assert reader.all("html") == [{"lang": "en"}]
    levels = [int(tag[1]) for tag, _ in reader.tags if re.fullmatch("h[1-6]", tag)]
    assert levels[0] == 1 and levels.count(1) == 1
    assert all(after <= before + 1 for before, after in itertools.pairwise(levels))
    assert [tag for tag, _ in reader.tags if tag in ("header", "nav", "main", "footer")] == [
        "header", "main", "nav", "footer",
    ]  # fmt: skip
    assert len(reader.all("caption")) == len(reader.all("table")) >= 4
    assert all(cell["scope"] in ("row", "col") for cell in reader.all("th"))
    ids = [attributes["id"] for _, attributes in reader.tags if "id" in attributes]
    assert len(ids) == len(set(ids))


def test_alarms_come_first(results, pages):
    assert results["two"].alarms
    text = pages["two"].read_text()
    for alarm in results["two"].alarms:
        for part in (alarm.name, alarm.remedy.split("'")[0]):
            assert 0 < text.index(part) < text.index("<table")
    calm = [name for name, result in results.items() if not result.alarms]
    for name in calm:
        assert 0 < pages[name].read_text().index("No alarms") < pages[name].read_text().index("<table")


def test_names_of_users_are_text(pages):
    text = pages["two"].read_text()
    assert SCRIPT not in text and "&lt;script&gt;alert(1)&lt;/script&gt;" in text and "$y_$ &amp; more" in text


def test_traces_say_how_mixed_chains_look(pages):
    assert "Where all lanes look alike, the chains have mixed." in pages["two"].read_text()


def test_tables_hold_the_numbers(results, pages):
    result, text = results["two"], pages["two"].read_text()
    for k in range(2):
        assert f"<td>{result.modes.weight[k]:.4f}</td><td>{result.modes.weight_se[k]:.4f}</td>" in text
    assert number(result.log_evidence, ".3f") in text
    for said in ("plan.draws", "versions.jax", "seed", "acceptance of Wormhole", "log_threshold", "warmup=20"):
        assert said in text
    assert "<details>" not in text and "10 more modes" in pages["many"].read_text()


@pytest.mark.parametrize("name", ["two", "many"])
def test_the_same_from_a_file_and_again(results, pages, tmp_path, name):
    result = results[name]
    loaded = whmc.load(result.save(tmp_path / "result.nc"))
    again = write_report(loaded, str(tmp_path / "report.html"))
    assert again.read_bytes() == pages[name].read_bytes()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["report.html", "result.nc"]


def test_a_report_that_fails_leaves_the_old_one(results, tmp_path, monkeypatch):
    path = tmp_path / "report.html"
    path.write_text("old")
    monkeypatch.setattr(type(results["one"]), "parameters", property(lambda self: 1 / 0))
    with pytest.raises(ZeroDivisionError):
        write_report(results["one"], path)
    assert [found.read_text() for found in tmp_path.iterdir()] == ["old"]


def test_results_that_lack_this_and_that(results, tmp_path):
    """No independence move, evidence by work, values that do not vary or are no numbers, odd settings; one draw."""
    whole = results["many"]
    shape = whole.label.shape
    odd = dataclasses.replace(
        whole,
        steps={"LocalHMC": whole.steps["Independence"]},
        work=Evidence(-0.1, 0.02, 0.5, "the throat's work"),
        named={"flag": whole.chart > 9, "same": np.ones((*shape, 2)), "nan": np.full(shape, np.nan)},
        settings={"plan": {"x": "</pre><script>"}, "long": list(range(10_000)), "<b>": {"none": None}},
    )
    text = write_report(odd, tmp_path / "odd.html").read_text()
    assert "by work" in text and "same[1]" in text and "<script>" not in text and len(text) < 1_000_000
    Reader(text)
    Reader(
        write_report(exact(gaussian_mixture([1.0], [[0.0]], np.ones((1, 1, 1))), 1, 1), tmp_path / "few").read_text()
    )


def test_errors(results, tmp_path, monkeypatch):
    with pytest.raises(FileNotFoundError, match=r"there is no folder .*nowhere"):
        write_report(results["one"], tmp_path / "nowhere" / "report.html")
    with pytest.raises(IsADirectoryError, match=r"report\.html"):
        write_report(results["one"], tmp_path)
    real = builtins.__import__

    def without(name, *rest, **more):
        if name.startswith("matplotlib"):
            raise ModuleNotFoundError(f"No module named {name!r}")
        return real(name, *rest, **more)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(ImportError, match="pip install matplotlib"):
        write_report(results["one"], tmp_path / "report.html")


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("draw", ON_AXES)
def test_every_picture_draws_on_given_axes(results, name, draw):
    figure = Figure()
    draw(figure.subplots(), results[name])
    figure.draw_without_rendering()


def test_colours_are_those_of_the_heaviest():
    weight = np.linspace(0, 1, 256)
    shown = mode_styles(weight)
    assert [style.mode for style in shown] == list(range(255, 247, -1))
    assert [style.colour for style in shown] == list(COLOURS)
    assert style_numbers(weight)[255] == 0 and style_numbers(weight)[247] == 8 and style_numbers(weight).max() == 8


def test_jumps_of_light_modes_are_gathered(results):
    for result in results.values():
        assert gathered_jumps(result).sum() == result.jumps.sum()
    assert len(gathered_jumps(results["many"])) == 9


def test_plane_of_modes_on_a_line(results):
    plane = Plane.of(results["many"].modes)
    np.testing.assert_allclose(plane.share, [1, 0])
    np.testing.assert_allclose(np.abs(np.diff(plane.places[:, 0])), 8, atol=1.0)
    np.testing.assert_allclose(Plane.of(results["one"].modes).share, 0)


def test_pairs_leave_out_what_does_not_vary(results):
    whole = results["many"]
    named = {"same": np.ones(whole.label.shape), "nan": np.full(whole.label.shape, np.nan), "x": whole.draws[..., 0]}
    assert plots.DistinguishingParameters.of(dataclasses.replace(whole, named=named)).names == ["x"]


def test_share_between_modes():
    label = np.repeat([0, 1], 500)
    noise = np.random.default_rng(0).normal(size=(1000, 2))
    columns = np.stack([10.0 * label + noise[:, 0], noise[:, 1], np.ones(1000)], axis=1)
    share = between_modes(columns, label)
    assert share[0] > 0.9 and share[1] < 0.02 and np.isnan(share[2])


def test_words():
    assert [number(x) for x in (np.nan, np.inf, -np.inf, -1.5)] == ["–", "∞", "−∞", "−1.5"]
    assert number(-1e-9, ".3f") == "0.000" and number(1234.0, "#.4g") == "1234"
    assert [brief(x) for x in (0.45, 0.05, 0.0057, 2e-4, 1e-9, 0.0)] == [
        "0.45",
        "0.050",
        "0.0057",
        "0.0002",
        "<1e-4",
        "0",
    ]
    assert [short_count(n) for n in (0, 9999, 12345, 123456, 2 * 10**6)] == ["0", "9999", "12.3k", "123k", "2M"]
    assert picture_text("a$b\n" + "c" * 30, 8) == r"a\$b ccc…"
