"""The page that maps the paper to the code says what is there."""

import ast
import importlib
import re
from pathlib import Path

import pytest

pytestmark = pytest.mark.paper

TESTS = Path(__file__).parent
DOCS = TESTS.parent / "docs"
ROWS = [
    [cell.strip() for cell in line.strip().strip("|").split("|")]
    for line in (DOCS / "paper-map.md").read_text().splitlines()
    if line.startswith("|") and "`" in line
]


def _only(pattern, row):
    found = [match for cell in row for match in re.findall(pattern, cell)]
    assert len(found) == 1, row
    return found[0]


@pytest.mark.parametrize("row", ROWS, ids=lambda row: " ".join(row[:2]))
def test_function_and_test_and_erratum_exist(row):
    module, path = _only(r"`(whmc[\w.]*):([\w.]+)`", row)
    found = importlib.import_module(module)
    for name in path.split("."):
        found = getattr(found, name)
    file, test = _only(r"`(test_\w+\.py)::(test_\w+)`", row)
    names = {node.name for node in ast.parse((TESTS / file).read_text()).body if isinstance(node, ast.FunctionDef)}
    assert test in names, (file, test)
    headings = re.findall(r"^## (\d+)\.", (DOCS / "errata.md").read_text(), re.M)
    for number in re.findall(r"\d+", row[-1]):
        assert number in headings, row


def test_every_equation_algorithm_and_figure_has_its_row():
    keys = [row[0] for row in ROWS]
    body = [f"({n})" for n in range(1, 13)]
    appendix = [f"(A.{n})" for n in range(1, 7)] + [f"(B.{n})" for n in range(1, 6)]
    for key in [*body, *appendix, *map(str, range(1, 9))]:
        assert key in keys, key


def test_where_the_paper_is_cited_its_label_is_too():
    """`Eq. (6) [vicinity]`: the body counts flat, so a number alone is not enough to find the place."""
    labels = {row[0]: row[1] for row in ROWS if row[0].startswith("(")}
    for path in (TESTS.parent / "src" / "whmc" / "paper").glob("*.py"):
        for number, label in re.findall(r"Eq\. (\([AB]?\.?\d+\)) \[([\w:]+)\]", path.read_text()):
            assert labels[number] == label, (path.name, number, label)
