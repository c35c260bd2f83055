"""The package as a whole: layers, what is imported, command line."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import whmc
from whmc.cli import main

SOURCE = Path(__file__).parent.parent / "src" / "whmc"
# a room imports from itself and from the rooms before it
ROOMS = (
    "_shapes", "_words", "_pytree", "_memmap", "keys", "minimise", "target", "modes", "kernels", "estimate", "warmup",
    "search", "storage", "result", "run", "frontends", "testing", "plots", "report", "paper", "cli",
)  # fmt: skip


# and inside the run a module imports from those before it
RUN = (
    "plan", "chains", "state", "settings", "pace", "progress", "interrupt", "ahead", "prepare", "regeneration",
    "outcome", "advance", "checkpoint", "sample", "load",
)  # fmt: skip


def _modules() -> dict[str, Path]:
    """Every module of the package, by its name below `whmc`."""
    paths = SOURCE.rglob("*.py")
    named = {".".join(path.relative_to(SOURCE).with_suffix("").parts): path for path in paths if path.parent != SOURCE}
    named |= {path.stem: path for path in SOURCE.glob("*.py") if path.stem not in ("__init__", "__main__")}
    return {name.removesuffix(".__init__"): path for name, path in named.items()}


def _imports(path: Path, modules: dict[str, Path]) -> set[str]:
    """Modules of whmc that a file imports, at its top or late; not those that only its types need."""
    tree = ast.parse(path.read_text())
    for node in ast.walk(tree):
        if isinstance(node, ast.If) and getattr(node.test, "id", "") == "TYPE_CHECKING":
            node.body = []
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "whmc":
            base = (node.module or "").partition(".")[2]
            names = [f"{base}.{alias.name}".strip(".") for alias in node.names]
            found |= {name if name in modules else base for name in names}
        elif isinstance(node, ast.Import):
            found |= {alias.name.partition(".")[2] for alias in node.names if alias.name.partition(".")[0] == "whmc"}
    return found - {""}


def test_imports_point_downward():
    modules = _modules()
    for module, path in modules.items():
        here = ROOMS.index(module.partition(".")[0])
        for imported in _imports(path, modules):
            assert ROOMS.index(imported.partition(".")[0]) <= here, f"{module} imports {imported}"


def test_public_modules_need_no_import_of_their_own():
    """In a fresh process, where nothing else has imported them."""
    code = "import whmc; print(whmc.testing.invariance_test, whmc.report.write_report, whmc.plots.pairs, whmc.paper)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_import_star_leaves_other_packages_alone():
    space: dict = {}
    exec("from whmc import *", space)
    assert "sample" in space and not {"numpyro", "blackjax"} & space.keys()
    assert whmc.numpyro.WHMC and whmc.blackjax.as_top_level_api and {"numpyro", "testing"} <= set(dir(whmc))


def test_the_run_has_an_order_inside():
    modules = _modules()
    inside = {name: path for name, path in modules.items() if name.startswith("run.")}
    assert {name.removeprefix("run.") for name in inside} == set(RUN)
    for module, path in inside.items():
        for imported in _imports(path, modules) & inside.keys() - {module}:
            order = [RUN.index(name.removeprefix("run.")) for name in (imported, module)]
            assert order == sorted(order), f"{module} imports {imported}"


def _cycle(imports: dict[str, set[str]]) -> list[str]:
    """Modules that import each other in a circle, first and last the same; empty if there are none."""
    done: set[str] = set()

    def follow(path: list[str]) -> list[str]:
        for name in sorted(imports.get(path[-1], set()) - done):
            if name in path:
                return [*path[path.index(name) :], name]
            if found := follow([*path, name]):
                return found
        done.add(path[-1])
        return []

    return next((found for name in sorted(imports) if (found := follow([name]))), [])


def test_there_are_no_import_cycles():
    """Late imports count: modules that need each other are one module, whenever they say so."""
    modules = _modules()
    imports = {name: _imports(path, modules) - {name} for name, path in modules.items()}
    assert " -> ".join(_cycle(imports)) == ""


def test_a_cycle_would_be_found():
    assert _cycle({"a": {"b"}, "b": {"c", "d"}, "c": set(), "d": {"b"}}) == ["b", "d", "b"]
    assert _cycle({"a": {"b", "c"}, "b": {"c"}, "c": set()}) == []


def test_files_are_small():
    for path in SOURCE.rglob("*.py"):
        assert len(path.read_text().splitlines()) <= 400, path


def _packages_after(code: str) -> set[str]:
    """Packages that are not Python's own, and are loaded in a fresh process after this code."""
    code += "\nimport sys; print(*{name.partition('.')[0] for name in sys.modules} - set(sys.stdlib_module_names))"
    out = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout
    return set(out.splitlines()[-1].split())


def test_importing_whmc_imports_nothing_besides_jax():
    assert _packages_after("import jax; import whmc") - _packages_after("import jax") == {"whmc"}


def test_help_and_errors_of_the_command_line(capsys, tmp_path):
    with pytest.raises(SystemExit) as stop:
        main(["--help"])
    assert stop.value.code == 0 and "demo" in capsys.readouterr().out
    (tmp_path / "file").write_text("")
    assert main(["demo", "--out", str(tmp_path / "file" / "such")]) == 2
    assert "Not a directory" in capsys.readouterr().err
    assert main(["demo", "--seed", "-1"]) == 2
    assert "--seed must be at least 0" in capsys.readouterr().err


def test_help_loads_no_numerical_package():
    code = "from whmc.cli import main\ntry: main(['--help'])\nexcept SystemExit: pass"
    assert _packages_after(code) - _packages_after("pass") == {"whmc"}


@pytest.mark.ci
def test_demo_prints_the_table_and_draws_the_picture(capsys, tmp_path):
    assert main(["demo", "--out", str(tmp_path), "--quiet"]) == 0
    out = capsys.readouterr().out
    assert "ALARM" not in out
    assert "REM" in out and "log evidence -14." in out and "sensor 0 is on its true side" in out
    assert out.rstrip().endswith(f"report:  {tmp_path / 'report.html'}")
    assert (tmp_path / "sensors.png").read_bytes().startswith(b"\x89PNG")
