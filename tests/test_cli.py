"""The command line: whole runs, and wrong input, each with one line that names the value and the remedy."""

import contextlib
import json
import os
import re
import subprocess
import sys

import numpy as np
import pytest

import whmc
from whmc.cli import main
from whmc.cli.load_target import parse_starts
from whmc.run import progress

pytestmark = pytest.mark.xdist_group("cli")  # its runs are made once, not in every worker


MODEL = """
import jax.numpy as jnp
import whmc

def logp(x):
    return jnp.logaddexp(-0.5 * jnp.sum((x - 3) ** 2), -0.5 * jnp.sum((x + 3) ** 2) - 1)

def constrain(x):
    return {"scale": jnp.exp(x[0]), "place": x[1]}

target = whmc.Target(logp, dim=2, starts=(-6.0, 6.0), constrain=constrain)
shifted = whmc.Target(lambda x: logp(x) + 1, dim=2, starts=(-6.0, 6.0), constrain=constrain)
nowhere = whmc.Target(logp, dim=2)
# the mode of Beta(1, 3) on the logistic scale
bounded = whmc.Target(lambda x: 2 * jnp.log1p(-x[0]), dim=1, names=["share"], bounds=(0.0, 1.0))
number = 3

def vector(x):
    return x

def broken(x):
    return {}["no such key"]

def nan(x):
    return jnp.sum(x) * jnp.nan

def numpy_only(x):
    import numpy as np
    return float(np.sum(x))
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A model, a run of it by the command line, and things that are none."""
    folder = tmp_path_factory.mktemp("cli")
    (folder / "model.py").write_text(MODEL)
    (folder / "syntax.py").write_text("def f(:\n")
    (folder / "raises.py").write_text("import whmc\n1 / 0\n")
    (folder / "notes.txt").write_text("mine")
    (folder / "full").mkdir()
    (folder / "full" / "notes.txt").write_text("mine")
    code = main(["sample", f"{folder}/model.py:target", "--out", f"{folder}/run", *SMALL])
    assert code == 0
    return folder


SMALL = ["--draws", "200", "--warmup", "60", "--chains", "4", "--quiet"]

WRONG = [
    (["sample", "model.py"], "write FILE.py:NAME"),
    (["sample", ":target"], "write FILE.py:NAME"),
    (["sample", "{}/none.py:target"], "there is no file"),
    (["sample", "{}/model.py:nothing"], "has no 'nothing': it has"),
    (["sample", "{}/model.py:number"], "is a int: name a whmc.Target"),
    (["sample", "{}/syntax.py:f"], "cannot be loaded: invalid syntax, line 1"),
    (["sample", "{}/raises.py:f"], "ZeroDivisionError: division by zero, raises.py line 2"),
    (["sample", "{}/model.py:logp", "--starts=-1:1"], "say how many numbers it takes, --dim"),
    (["sample", "{}/model.py:logp", "--dim", "2"], "--starts=LOW:HIGH"),
    (["modes", "{}/model.py:logp", "--dim", "2", "--starts=1"], "write LOW:HIGH"),
    (["modes", "{}/model.py:logp", "--dim", "2", "--starts=a:b"], "write LOW:HIGH"),
    (["modes", "{}/model.py:logp", "--dim", "2", "--starts=1:-1"], "finite box with low < high"),
    (["modes", "{}/model.py:logp", "--dim", "2", "--starts=1,2,3:4"], "give scalars or 2 values each"),
    (["modes", "{}/model.py:logp", "--dim", "0", "--starts=-1:1"], "--dim must be at least 1, got 0"),
    (["modes", "{}/model.py:target", "--dim", "2"], "a Target already: leave --dim and --starts out"),
    (["modes", "{}/model.py:nowhere"], "nowhere to start a search"),
    (["modes", "{}/model.py:target", "--max-modes", "0"], "--max-modes must be at least 1, got 0"),
    (["modes", "{}/model.py:vector", "--dim", "2", "--starts=-1:1"], "must return a scalar"),
    (["modes", "{}/model.py:broken", "--dim", "2", "--starts=-1:1"], "no such key"),
    (["modes", "{}/model.py:nan", "--dim", "2", "--starts=-1:1"], "no mode was found"),
    (["modes", "{}/model.py:numpy_only", "--dim", "2", "--starts=-1:1"], "write it in jax.numpy"),
    (["sample", "{}/model.py:target", "--draws", "0"], "--draws must be at least 1, got 0"),
    (["sample", "{}/model.py:target", "--chains", "-2"], "--chains must be at least 1, got -2"),
    (["sample", "{}/model.py:target", "--warmup", "-1"], "--warmup must be at least 0, got -1"),
    (["sample", "{}/model.py:target", "--seed", "-1"], "--seed must be at least 0, got -1"),
    (["sample", "{}/model.py:target", "--out", "{}/run"], "holds a run: continue it"),
    (["sample", "{}/model.py:target", "--out", "{}/full"], "not empty: choose another"),
    (["sample", "{}/model.py:target", "--out", "{}/notes.txt"], "is a file: give a folder"),
    (["sample", "{}/model.py:target", "--out", "{}/notes.txt/run"], "cannot be made: Not a directory"),
    (["resume", "{}/nothing"], "nothing does not exist: give the folder of a run"),
    (["resume", "{}/full"], "is not a run of whmc"),
    (["resume", "{}/run", "--draws", "10"], "the run has 200 already"),
    (["resume", "{}/run", "{}/model.py:shifted"], "the target is not the one of the run"),
    (["resume", "{}/run", "{}/gone.py:target"], "there is no file"),
    (["report", "{}/nothing"], "does not exist"),
    (["report", "{}/full"], "is not a run of whmc"),
    (["report", "{}/run", "{}/model.py:shifted"], "the target is not the one of the run"),
    (["report", "{}/run", "{}/gone.py:target"], "there is no file"),
    (["report", "{}/notes.txt", "--run-model"], "leave FILE.py:NAME and --run-model out"),
    (["report", "{}/notes.txt"], "no result of whmc, or damaged"),
    (["report", "{}/run", "--out", "{}/no/such/report.html"], "no folder"),
    (["check", "{}/none.py:target"], "there is no file"),
    (["paper", "fig1", "--chains", "1"], "--chains must be at least 2, got 1"),
    (["paper", "fig1", "--seconds", "0"], "--seconds must be positive, got 0"),
    (["paper", "fig1", "--out", "{}/notes.txt"], "File exists"),
    (["demo", "--out", "{}/notes.txt"], "File exists"),
]


@pytest.mark.parametrize(("arguments", "says"), WRONG, ids=[f"{arguments[0]}: {says}" for arguments, says in WRONG])
def test_wrong_input_is_one_line_and_nothing_is_lost(folder, capsys, monkeypatch, arguments, says):
    monkeypatch.setattr(progress, "FIRST_LINE", np.inf)  # on a slow machine a search tells how far it is
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    assert main([text.replace("{}", str(folder)) for text in arguments]) in (1, 2)
    printed = capsys.readouterr()
    lines = printed.err.strip().splitlines()
    assert says in lines[0] and lines[0].startswith("whmc: "), printed.err
    assert len(lines) <= 2 and "Traceback" not in printed.err and not printed.out
    lost = [path for path, content in before.items() if path.suffix != ".pyc" and path.read_bytes() != content]
    assert not lost, lost


@pytest.mark.parametrize(
    "arguments",
    [[], ["fly"], ["sample"], ["paper", "fig9"], ["sample", "x.py:y", "--draws", "many"], ["demo", "--fast"]],
)
def test_wrong_words_are_told_by_the_parser(capsys, arguments):
    with pytest.raises(SystemExit) as stop:
        main(arguments)
    assert stop.value.code == 2 and "usage: whmc" in capsys.readouterr().err


def test_a_run_its_result_and_its_report(folder, capsys):
    assert (folder / "run" / "report.html").read_text().startswith("<!doctype html>")
    assert main(["resume", f"{folder}/run", "--json", "--quiet"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert len(found["modes"]) == 2 and set(found["parameters"]) == {"scale", "place"}
    # the lighter mode has e^-1 of the heavier one's density, and the same shape
    share = 1 / (1 + np.exp(-1))
    weight, error = found["modes"][0]["weight"], found["modes"][0]["weight_se"]
    assert abs(max(weight, 1 - weight) - share) < 5 * error


def test_the_report_names_the_run_its_target_and_its_date(folder):
    text = (folder / "run" / "report.html").read_text()
    assert "<h1>run: 2 modes in 2 dimensions</h1>" in text and f"{folder}/model.py:target; started 20" in text


def parameters_of(page):
    """Names in the report's table of parameters."""
    return re.findall(r'<th scope="row">([^<]*)</th>', page.read_text().split("Parameters over all modes")[-1])[:2]


@contextlib.contextmanager
def edited_model(folder, text):
    """The file that the run names, with another text for a while."""
    (folder / "model.py").write_text(text)
    try:
        yield
    finally:
        (folder / "model.py").write_text(MODEL)


def test_neither_report_nor_load_runs_the_model(folder, tmp_path, capsys):
    """The model leaves a mark when it is run."""
    mark, run = tmp_path / "mark", folder / "run"
    with edited_model(folder, f"open({str(mark)!r}, 'w').close()\n{MODEL}"):
        assert main(["report", f"{run}", "--out", f"{tmp_path}/plain.html"]) == 0
        with pytest.warns(UserWarning, match="values are unconstrained"):
            assert whmc.load(run).draws.shape[-1] == 2
        assert not mark.exists()
        said = capsys.readouterr().err
        assert main(["report", f"{run}", "--run-model", "--out", f"{tmp_path}/own.html"]) == 0
        assert mark.exists() and not capsys.readouterr().err
    assert (
        said.count("\n") == 1 and f"--run-model`, which runs {folder}/model.py, or" in said and "FILE.py:NAME" in said
    )
    assert parameters_of(tmp_path / "plain.html") == ["x[0]", "x[1]"]
    assert sorted(parameters_of(tmp_path / "own.html")) == ["place", "scale"]


def test_report_with_a_given_target(folder, tmp_path, capsys):
    (tmp_path / "moved.py").write_text(MODEL)
    assert main(["report", f"{folder}/run", f"{tmp_path}/moved.py:target", "--out", f"{tmp_path}/given.html"]) == 0
    assert not capsys.readouterr().err and sorted(parameters_of(tmp_path / "given.html")) == ["place", "scale"]


CHANGED = {
    "another density": (MODEL.replace("- 1)", "- 2)"), "the target is not the one of the run"),
    "an error": ("1 / 0", "cannot be loaded: ZeroDivisionError"),
    "an exit": ("import sys\nsys.exit(5)", "cannot be loaded: SystemExit"),
    "no values": (MODEL.replace('"place": x[1]', '"place": {}["y"]'), "KeyError: 'y', model.py line"),
}


@pytest.mark.parametrize("change", CHANGED)
def test_a_model_that_has_changed_is_no_reason_to_refuse_a_report(folder, tmp_path, capsys, change):
    text, says = CHANGED[change]
    with edited_model(folder, text):
        assert main(["report", f"{folder}/run", "--run-model", "--out", f"{tmp_path}/page.html"]) == 0
    said = capsys.readouterr().err
    assert says in said and said.endswith("; values are shown unconstrained\n") and said.count("\n") == 1
    assert parameters_of(tmp_path / "page.html") == ["x[0]", "x[1]"]


CHATTY = """
import os
print("loaded")
os.system("echo from another process")

def constrain(x):
    print("traced")
    return {"scale": x[0] ** 2}
"""


def test_json_is_all_that_comes_on_standard_output(folder, tmp_path, capfd):
    model = MODEL.replace("def constrain", "def unused").replace("import whmc\n", f"import whmc\n{CHATTY}", 1)
    (tmp_path / "chatty.py").write_text(model)
    assert main(["resume", f"{folder}/run", f"{tmp_path}/chatty.py:target", "--quiet", "--json"]) == 0
    printed = capfd.readouterr()
    assert list(json.loads(printed.out)["parameters"]) == ["scale"]
    assert all(text in printed.err for text in ("loaded", "from another process", "traced"))


def test_a_reader_who_leaves_is_no_error(folder, monkeypatch, capsys):
    reader, writer = os.pipe()
    os.close(reader)
    with open(writer, "w") as nobody_reads:
        monkeypatch.setattr(sys, "stdout", nobody_reads)
        assert main(["check", f"{folder}/model.py:target"]) == 141
    assert not capsys.readouterr().err


def test_errors_of_whmc_name_no_line_of_code(folder, capsys):
    """Only the user's own lines are named: whmc's and Python's say nothing to the user."""
    assert main(["modes", f"{folder}/model.py:vector", "--dim", "2", "--starts=-1:1"]) == 2
    assert not re.search(r"\.py line \d", capsys.readouterr().err)
    assert main(["report", f"{folder}/run", "--out", f"{folder}/run"]) == 2
    assert not re.search(r"\.py line \d", capsys.readouterr().err)


def test_resume_makes_more_draws_of_the_same_chains(folder, capsys):
    before = np.array(whmc.load(folder / "run", whmc.Target(*_target(folder))).draws)
    assert main(["resume", f"{folder}/run", "--draws", "300", "--quiet"]) == 0
    assert "4 chains x 300 draws" in capsys.readouterr().out
    after = whmc.load(folder / "run", whmc.Target(*_target(folder)))
    assert np.array_equal(after.draws[:, :200], before)


def _target(folder):
    """The model's own function, in the order of Target's fields."""
    space: dict = {}
    exec((folder / "model.py").read_text(), space)
    return space["logp"], 2, (-6.0, 6.0)


def test_check_and_modes(folder, capsys):
    assert main(["check", f"{folder}/model.py:target"]) == 0
    assert "✓" in capsys.readouterr().out
    assert main(["check", f"{folder}/model.py:nan", "--dim", "2", "--starts=-1:1"]) == 2
    assert "✗" in capsys.readouterr().out
    assert main(["modes", f"{folder}/model.py:logp", "--dim", "2", "--starts=-6,-6:6,6", "--json"]) == 0
    modes = json.loads(capsys.readouterr().out)["modes"]
    np.testing.assert_allclose(sorted(mode["location"][0] for mode in modes), [-3, 3], atol=1e-4)


def test_modes_are_told_in_the_models_own_values(folder, capsys):
    """`scale` is the exponential of a coordinate, e^3 and e^-3 at the modes; `share` has bounds."""
    assert main(["modes", f"{folder}/model.py:target", "--json"]) == 0
    named = sorted((mode["values"] for mode in json.loads(capsys.readouterr().out)["modes"]), key=lambda v: v["place"])
    assert [set(values) for values in named] == [{"scale", "place"}] * 2
    np.testing.assert_allclose([values["scale"] for values in named], np.exp([-3, 3]), rtol=1e-3)
    assert main(["modes", f"{folder}/model.py:bounded"]) == 0
    printed = capsys.readouterr().out
    assert "in the model's own values" in printed and "share 0.25" in printed
    assert main(["modes", f"{folder}/model.py:bounded", "--json"]) == 0
    (mode,) = json.loads(capsys.readouterr().out)["modes"]
    np.testing.assert_allclose(mode["location"], [mode["values"]["share"]], rtol=1e-12)


def test_alarms_end_with_three_if_asked(folder, capsys, tmp_path):
    few = ["--draws", "20", "--warmup", "20", "--chains", "2", "--quiet"]
    assert main(["sample", f"{folder}/model.py:target", "--out", f"{tmp_path}/run", *few, "--strict"]) == 3
    assert "ALARM" in capsys.readouterr().out


def test_starts_of_the_command_line():
    low, high = parse_starts("-5,0:5,1")
    assert low.tolist() == [-5, 0] and high.tolist() == [5, 1]
    assert parse_starts("-5:5") == (-5.0, 5.0)


def in_a_process(*arguments):
    return subprocess.run([sys.executable, "-m", "whmc", *arguments], capture_output=True, text=True)


def test_completion_and_version():
    assert "whmc" in in_a_process("--print-completion", "bash").stdout
    assert whmc.__version__ in in_a_process("--version").stdout
    bad = in_a_process("--print-completion", "none")
    assert bad.returncode == 2 and "choose one of bash" in bad.stderr


@pytest.mark.ci
def test_compiled_code_is_kept_unless_told(folder, tmp_path, monkeypatch):
    """In fresh processes: JAX takes note of its cache once. A run, for what compiles in no time is not kept."""
    cache = tmp_path / "cache"
    monkeypatch.delenv("JAX_COMPILATION_CACHE_DIR")
    monkeypatch.setenv("XDG_CACHE_HOME", str(cache))
    sample = ("sample", f"{folder}/model.py:target", "--draws", "20", "--chains", "2", "--warmup", "20", "--out")
    assert in_a_process(*sample, str(tmp_path / "first"), "--no-cache").returncode == 0
    assert not (cache / "whmc").exists()  # matplotlib has its own there
    assert in_a_process(*sample, str(tmp_path / "second")).returncode == 0
    assert list((cache / "whmc" / "jax").iterdir())


@pytest.mark.parametrize("quiet", [False, True])
def test_a_search_tells_what_it_does_unless_quiet(folder, monkeypatch, capsys, quiet):
    monkeypatch.setattr(progress, "FIRST_LINE", 0.0)
    assert main(["modes", f"{folder}/model.py:target", *["--quiet"] * quiet]) == 0
    told = capsys.readouterr().err.splitlines()
    assert all(line.startswith("whmc search") for line in told)
    assert bool(told) is not quiet and any(" starts  2 charts so far" in line for line in told) is not quiet
