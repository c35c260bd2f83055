"""The live view: shares that grow, and a speed that is not absurd."""

import re

import pytest

import whmc
from contracts import problem
from whmc.run import progress


class Frames(progress.Progress):
    """A view that keeps every picture instead of drawing it."""

    def __init__(self) -> None:
        super().__init__(True)
        self.terminal = True
        self.pictures: list[str] = []

    def _draw(self, lines: list[str]) -> None:
        self.pictures.append("\n".join(lines))


@pytest.fixture(scope="module")
def frames():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(progress, "REFRESH", 0.0)
        case, view = problem("pair"), Frames()
        result = whmc.sample(case.target, modes=case.locations, draws=600, warmup=300, progress=view)
    return view.pictures, result


def _shares(pictures: list[str], phase: str) -> list[int]:
    return [int(found[1]) for one in pictures if (found := re.match(rf"whmc {phase}\s+(\d+)%", one))]


@pytest.mark.parametrize("phase", ["warm-up", "sampling"])
def test_the_share_that_is_done_never_falls_and_ends_at_all(frames, phase):
    shares = _shares(frames[0], phase)
    assert len(shares) > 3 and shares == sorted(shares) and shares[-1] == 100


def test_no_speed_is_beyond_what_the_whole_run_reached(frames):
    """The first picture of the sampling used to divide a block by no time at all."""
    pictures, result = frames
    speeds = [
        float(found[1].replace(",", "")) for one in pictures if (found := re.search(r"([\d,]+) gradients/s", one))
    ]
    # a block of sixth of the draws may be several times as quick as all of them, not a hundred times
    assert speeds and max(speeds) < 30 * result.num_gradients / result.timings.sampling


def test_the_search_tells_starts_modes_and_gradients():
    view, case = Frames(), problem("pair")
    whmc.sample(case.target, draws=20, warmup=20, progress=view)
    told = [one for one in view.pictures if one.startswith("whmc search")]
    assert re.search(r"gradients; \d+ starts, 2 modes so far", told[-1])


def test_where_there_is_no_terminal_a_plain_line_tells_now_and_then(capsys, monkeypatch):
    case = problem("pair")
    whmc.sample(case.target, modes=case.locations, draws=20, warmup=20)
    assert capsys.readouterr().err == ""  # a short run says nothing
    monkeypatch.setattr(progress, "PLAIN_EVERY", 0.0)
    whmc.sample(case.target, modes=case.locations, draws=300, warmup=20)
    lines = capsys.readouterr().err.splitlines()
    assert lines and all(line.startswith("whmc ") for line in lines)
    assert any(re.match(r"whmc sampling +100%", line) for line in lines)
    whmc.sample(case.target, modes=case.locations, draws=20, warmup=20, progress=False)
    assert capsys.readouterr().err == ""
