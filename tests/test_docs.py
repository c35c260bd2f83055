"""The documentation says what the code does: names of alarms and fields, links, code that runs."""

import ast
import dataclasses
import importlib.util
import operator
import re
import subprocess
import sys
from pathlib import Path

import pytest

import whmc
from doc_outputs import not_printed
from whmc.estimate.modes import ModeTable
from whmc.estimate.parameters import ParameterTable
from whmc.kernels.base import StepInfo
from whmc.result import Timings

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
PAGES = sorted([ROOT / "README.md", *DOCS.glob("*.md")])
GLOSSARY = (DOCS / "reading-a-result.md").read_text()


def alarm_names():
    """The first argument of every Alarm(...) in the source."""
    trees = [ast.parse(path.read_text()) for path in sorted((ROOT / "src/whmc/estimate").glob("alarms*.py"))]
    calls = [node for tree in trees for node in ast.walk(tree) if isinstance(node, ast.Call)]
    return [ast.literal_eval(call.args[0]) for call in calls if getattr(call.func, "id", None) == "Alarm"]


def sections(page):
    """The text below each heading, code left out."""
    text = re.sub(r"```.*?```", "", page, flags=re.DOTALL)
    parts = re.split(r"^#+ (.*)$", text, flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def test_every_alarm_has_its_entry():
    names, entries = alarm_names(), sections(GLOSSARY)
    assert len(names) >= 14
    assert [name for name in names if name not in entries] == []
    for name in names:
        assert all(word in entries[name] for word in ("*Raised*", "*Means*", "*Remedy*")), name


def test_no_alarm_is_explained_that_cannot_be_raised():
    after = GLOSSARY[GLOSSARY.index("\n## Alarms") :]
    assert set(re.findall(r"^### (.*)$", after, flags=re.MULTILINE)) == set(alarm_names())


@pytest.mark.parametrize("kind", [StepInfo, ModeTable, ParameterTable, Timings], ids=lambda kind: kind.__name__)
def test_every_field_is_explained(kind):
    fields = [field.name for field in dataclasses.fields(kind)]
    assert fields
    assert [name for name in fields if f"`{name}`" not in GLOSSARY] == []


def anchor(heading):
    """As GitHub makes it: lower case, no punctuation, hyphens for spaces."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page):
    text = re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL)
    for link in re.findall(r"\]\(([^)\s]+)\)", text):
        if re.match(r"[a-z]+:", link):
            continue
        name, _, place = link.partition("#")
        there = page.parent / name if name else page
        assert there.exists(), f"{page.name}: {link}"
        if place:
            assert place in map(anchor, sections(there.read_text())), f"{page.name}: {link}"


def test_every_page_is_linked_from_the_readme():
    text = (ROOT / "README.md").read_text()
    assert [page.name for page in DOCS.glob("*.md") if f"(docs/{page.name})" not in text] == []


def resolves(name):
    """Whether a dotted name below whmc is a public attribute, or a module."""
    try:
        operator.attrgetter(name)(whmc)
    except AttributeError:
        return importlib.util.find_spec(f"whmc.{name}") is not None
    return True


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_names_of_whmc_exist(page):
    names = set(re.findall(r"`whmc\.([a-zA-Z_][\w.]*)[`(]", page.read_text()))
    assert [name for name in sorted(names) if not resolves(name)] == []


def test_every_public_error_is_explained_by_its_public_name():
    public = [
        name for name in whmc.__all__ if isinstance(kind := getattr(whmc, name), type) and issubclass(kind, Exception)
    ]
    assert set(public) == {"Damaged", "StoreError"}
    assert [name for name in public if f"`whmc.{name}`" not in (DOCS / "errors.md").read_text()] == []


def test_every_benchmark_is_run_and_described():
    scripts = [path.name for path in (ROOT / "benchmarks").glob("*.py")]
    bench = (ROOT / "Makefile").read_text().partition("\nTIMED")[2]
    page = (DOCS / "benchmarks.md").read_text()
    assert len(scripts) >= 9
    assert [name for name in scripts if f" {name}" not in bench and f"benchmarks/{name}" not in bench] == []
    assert [name for name in scripts if f"`benchmarks/{name}`" not in page] == []


def test_both_tables_of_the_sensor_network_are_the_same():
    def rows(page):
        lines = re.findall(
            r"^\| (whmc|parallel tempering, tuned[^|]*|BlackJAX adaptive[^|]*?) \|(.*)$", page, re.MULTILINE
        )
        return [(name, *map(str.strip, cells.split("|")[:3])) for name, cells in lines if "_" not in cells]

    chosen = rows((DOCS / "choosing.md").read_text().partition("**The sensor network**")[2])
    measured = rows((DOCS / "benchmarks.md").read_text().partition("## The sensor network")[2].partition("\n## ")[0])
    assert len(chosen) == 3 and chosen == measured


SHOWN = "```python\nprint(1)\n```\n```output\nweight 0.9012 of 2 modes\n...\nseconds: search 8.3\n```\n"


def test_outputs_are_compared_line_by_line():
    printed = "weight   0.8985 of 2 modes\nmean 1\nseconds: search 120.9\n"
    assert not_printed(SHOWN, printed) == []
    assert not_printed(SHOWN, printed.replace("2 modes", "3 modes")) == ["weight 0.9012 of 2 modes"]
    assert not_printed(SHOWN, printed.replace("seconds:", "time:")) == ["seconds: search 8.3"]
    assert not_printed(SHOWN, "\n".join(reversed(printed.splitlines()))) == ["seconds: search 8.3"]


SAME = [
    ("search: 1536 starts, 15413 gradients", "search: 1160 starts, 20001 gradients"),
    ("log evidence -1.838 ± 0.000", "log evidence -1.700 ± 0.002"),
    ("[10.1 -0. ]", "[ 9.9  0.1]"),
    ("x[1]   0.008777   1.004   16386   1.000", "x[1]  -0.05   1.1   12001   1.002"),
    ("left out (together 1e-08)", "left out (together 2e-08)"),
    ("weight 0.0 ± nan", "weight 0.0 ± nan"),
]
OTHER = [
    ("search: 1536 starts, 60386 gradients", "search: 1536 starts, 15413 gradients"),
    ("log evidence 1.838 ± 0.000", "log evidence -1.838 ± 0.000"),
    ("log evidence 1.838 ± 0.000", "log evidence 1.838 ± 0.003"),
    ("weight 0.9013  0.0014", "weight 0.9013  0.0031"),
    ("2 modes in 16 chains", "3 modes in 16 chains"),
    ("chains: 16", "chains: 160"),
    ("x[1]   0.008777   1.004   16386   1.000", "x[1]   0.2   1.004   16386   1.000"),
    ("chance: 0", "chance: 0.26"),
    ("left out (together 1e-08)", "left out (together 1e-06)"),
    ("weight 0.0 ± 0.0", "weight 0.0 ± inf"),
]


CASES = [(True, *pair) for pair in SAME] + [(False, *pair) for pair in OTHER]


@pytest.mark.parametrize(("agrees", "shown", "printed"), CASES)
def test_numbers_of_outputs_have_to_have_their_magnitude(agrees, shown, printed):
    page = f"```output\n{shown}\n```"
    assert not_printed(page, f"before\n{printed}\n") == ([] if agrees else [shown])
    assert (not_printed(page.replace(shown, printed), shown) == []) == agrees


def test_lines_that_the_glossary_explains_are_those_of_the_quickstart():
    """Which are compared with what is printed."""
    explained = re.findall(
        r"^(?:- )?`((?:search|gradients|acceptance|log evidence|\d+ chains).*?)`", GLOSSARY, re.MULTILINE
    )
    shown = (DOCS / "quickstart.md").read_text()
    assert len(explained) == 5 and [line for line in explained if f"\n{line}" not in shown] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_outputs_are_marked_as_outputs(page):
    """So that they are compared with what is printed."""
    assert not re.search(r"```\n(\d+ chains|mode +weight|parameter +mean)", page.read_text())


@pytest.mark.ci
def test_the_quickstart_runs_as_a_newcomer_would_run_it(tmp_path):
    text = (DOCS / "quickstart.md").read_text()
    blocks = re.findall(r"```python\n(.*?)```", text, flags=re.DOTALL)
    assert len(blocks) == 6
    checks = """
assert abs(result.modes.weight[0] - 0.9) < 5 * result.modes.weight_se[0] + 1e-4 and result.alarms == ()
assert abs(result.log_evidence - 1.8379) < 5 * result.log_evidence_se + 1e-3
assert (lighter.draws[:, 0] > 5).all() and abs(lighter.draws[:, 0].mean() - 10) < 0.2
assert sorted(second.constrained()) == ["place", "scale"] and (second.constrained()["scale"] > 0).all()
assert all(name in tree for name in ("posterior", "sample_stats", "unconstrained_posterior", "modes"))
assert again.summary() == result.summary()
assert so_far.draws.shape == (16, 2000, 2) and (more.draws[:, :2000] == so_far.draws).all()
"""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", "\n".join(blocks) + checks],
        check=True,
        capture_output=True,
        text=True,
        cwd=tmp_path,
    )
    assert not_printed(text, done.stdout) == []


CHECKS = {
    "models": """
assert bounded.library.num_modes == 2 and (bounded.constrained()["amplitude"] > 0).all()
assert folded.library.num_modes == 1 and "one of 6 images" in folded.summary()
order = everywhere.constrained()["mean"].argmin(axis=-1)
assert all(abs((order == k).mean() - 1 / 3) < 0.02 for k in range(3))
""",
    "models-pymc": """
table = result.modes
assert result.alarms == () and len(table.weight) == 6 and (abs(table.weight - 1 / 6) < 3 * table.weight_se).all()
assert len(np.unique(order, axis=0)) == 6 and posterior["mean"].dims == ("chain", "draw", "component")
assert folded.library.num_modes == 1 and folded.alarms == ()
assert abs(folded.log_evidence - result.log_evidence) < 5 * np.hypot(folded.log_evidence_se, result.log_evidence_se)
from whmc.estimate.parameters import ParameterTable
names = ("weight", "mean", "spread")
runs = (folded.unfolded().constrained(), result.constrained())
one, other = (ParameterTable.of({name: values[name] for name in names}) for values in runs)
z = (one.mean - other.mean) / np.sqrt(one.sd**2 / one.ess + other.sd**2 / other.ess)
assert len(z) == 9 and abs(z).max() < 5
""",
}


@pytest.mark.models
@pytest.mark.parametrize("page", CHECKS)
def test_examples_of_models_run(page, tmp_path):
    """The other pages on models are run by the tests of their front ends."""
    blocks = re.findall(r"```python\n(.*?)```", (DOCS / f"{page}.md").read_text(), flags=re.DOTALL)
    script = tmp_path / "example.py"
    script.write_text("\n".join(blocks) + CHECKS[page])
    command = [sys.executable, script.name]
    done = subprocess.run(command, check=True, capture_output=True, text=True, cwd=tmp_path)
    assert not_printed((DOCS / f"{page}.md").read_text(), done.stdout) == []
