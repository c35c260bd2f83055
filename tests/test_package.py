"""The package as a whole: layers, import time, command line."""

import ast
import subprocess
import sys
import time
from pathlib import Path

import pytest

from whmc.cli import main

SOURCE = Path(__file__).parent.parent / "src" / "whmc"
# a file may import from its own layer and from those before it
LAYERS = [
    ["pytree", "plain", "paging", "trouble", "bounds", "symmetry"],
    ["noise"],
    ["target"],
    ["modes.library"],
    ["modes.mixture", "modes.charts", "modes.unseen"],
    ["modes.residual", "modes.polish", "check"],
    ["modes.finders"],
    ["modes.tempered", "modes.search"],
    ["kernels"],
    ["estimate"],
    ["result", "files"],
    ["run"],
    ["frontends"],
    ["testing", "plots"],
    ["report"],
    ["paper"],
    ["demo"],
    ["sources"],
    ["cli"],
    ["commands"],
]


def _layer(module: str) -> int:
    for n, names in enumerate(LAYERS):
        if any(module == name or module.startswith(name + ".") for name in names):
            return n
    raise AssertionError(f"{module} has no layer: add it to LAYERS")


def _imports(path: Path) -> set[str]:
    """Modules of whmc imported at the top of a file; what is imported late is no layer's business."""
    found = set()
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("whmc."):
            found.add(node.module.removeprefix("whmc."))
    return found


def test_imports_point_downward():
    for path in sorted(SOURCE.rglob("*.py")):
        module = ".".join(path.relative_to(SOURCE).with_suffix("").parts).removesuffix(".__init__")
        if module == "__init__" or path.read_text().count("\n") <= 1:
            continue
        for imported in _imports(path):
            assert _layer(imported) <= _layer(module), f"{module} imports {imported}"


def test_files_are_small():
    for path in SOURCE.rglob("*.py"):
        assert len(path.read_text().splitlines()) <= 400, path


def _import_seconds(module: str) -> float:
    code = f"import time; t = time.perf_counter(); import {module}; print(time.perf_counter() - t)"
    out = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    return float(out.stdout)


def test_import_takes_less_than_one_and_a_half_times_jax():
    """Best of five each, taken in turn: the machine may be busy."""
    pairs = [(_import_seconds("whmc"), _import_seconds("jax")) for _ in range(5)]
    ours, jax = min(a for a, _ in pairs), min(b for _, b in pairs)
    assert ours < 1.5 * jax, (ours, jax)


def test_help_and_errors_of_the_command_line(capsys, tmp_path):
    with pytest.raises(SystemExit) as stop:
        main(["--help"])
    assert stop.value.code == 0 and "demo" in capsys.readouterr().out
    (tmp_path / "file").write_text("")
    assert main(["demo", "--out", str(tmp_path / "file" / "such")]) == 2
    assert "Not a directory" in capsys.readouterr().err
    assert main(["demo", "--seed", "-1"]) == 2
    assert "--seed must be at least 0" in capsys.readouterr().err


def test_help_is_quick():
    """Best of five whole processes."""
    seconds = []
    for _ in range(5):
        began = time.perf_counter()
        subprocess.run([sys.executable, "-m", "whmc.cli", "--help"], check=True, capture_output=True)
        seconds.append(time.perf_counter() - began)
    assert min(seconds) < 0.3, seconds


def test_demo_prints_the_table_and_draws_the_picture(capsys, tmp_path):
    assert main(["demo", "--out", str(tmp_path), "--quiet"]) == 0
    out = capsys.readouterr().out
    assert "REM" in out and "log evidence -14." in out and "sensor 0 is on its true side" in out
    assert out.rstrip().endswith(f"report:  {tmp_path / 'report.html'}")
    assert (tmp_path / "sensors.png").read_bytes().startswith(b"\x89PNG")
