"""The live view: a first line after two seconds, shares that grow, times left that come true."""

import dataclasses
import re
import threading
from itertools import pairwise

import numpy as np
import pytest

import whmc
from contracts import problem
from whmc.run import progress
from whmc.run.progress import Progress
from whmc.search.doing import Doing
from whmc.search.mode_search import start_search
from whmc.testing import gaussian_mixture


@dataclasses.dataclass
class Clock:
    """Time as the test wants it."""

    seconds: float = 0.0

    def __call__(self) -> float:
        return self.seconds


class Lines(Progress):
    """A view without a terminal that keeps what it prints, with its time. Only the test looks at the clock."""

    def __init__(self, clock: Clock, shown: bool | None = None) -> None:
        super().__init__(shown, clock)
        self.terminal = False
        self.lines: list[tuple[float, str]] = []

    def _tick(self) -> None:
        pass

    def _print(self, now: float) -> None:
        self.lines.append((now, self._line(now)))

    def wait(self, seconds: float) -> None:
        """The run says nothing for so long."""
        end = self.now.seconds + seconds
        while self.now.seconds < end:
            self.now.seconds = min(self.now.seconds + progress.TICK, end)
            self.look()


class Frames(Lines):
    """A view on a terminal that keeps every picture; each block of draws takes a second."""

    def __init__(self) -> None:
        super().__init__(Clock(), True)
        self.terminal = True
        self.pictures: list[str] = []

    def take(self, trace, library) -> None:
        self.now.seconds += 1.0
        super().take(trace, library)

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


def test_the_speed_is_gradients_by_seconds_from_the_first_block_on(frames):
    """The first picture of the sampling used to divide a block by no time at all."""
    pictures, result = frames
    speeds = [
        float(found[1].replace(",", "")) for one in pictures if (found := re.search(r"([\d,]+) gradients/s", one))
    ]
    num_blocks = 6  # of at most a hundred steps, a second each
    mean = result.num_gradients / num_blocks
    assert len(speeds) >= num_blocks and speeds[-1] == pytest.approx(mean, abs=0.5)
    assert max(speeds) < 1.5 * mean  # blocks are alike


@pytest.mark.parametrize(
    ("adapt", "says"), [("warmup", "\n     modes by charts 2  "), ("regeneration", "  2 modes by charts, ")]
)
def test_what_charts_tell_of_modes_is_called_so(adapt, says):
    """Two Gaussians three standard deviations apart have two charts, and are one mode in the result."""
    case, view = gaussian_mixture([0.6, 0.4], [[-1.5], [1.5]], np.ones((2, 1, 1))), Frames()
    result = whmc.sample(case.target, modes=case.locations, draws=100, warmup=100, adapt=adapt, progress=view)
    told = [one for one in view.pictures if one.startswith("whmc sampling")]
    assert len(result.modes) == 1 and says in told[-1]
    assert told[-1].count("mode") == told[-1].count("modes by charts") == 1


def test_every_phase_of_a_run_is_told(frames):
    told = [re.match(r"whmc (\S+)", one)[1] for one in frames[0]]
    assert list(dict.fromkeys(told)) == ["compile", "warm-up", "sampling", "evidence", "modes"]


def test_the_search_tells_its_parts_and_promises_nothing(monkeypatch):
    monkeypatch.setattr(progress, "REFRESH", 0.0)
    view, case = Frames(), problem("pair")
    whmc.sample(case.target, draws=20, warmup=20, progress=view)
    told = [one for one in view.pictures if one.startswith("whmc search")]
    assert "compiling the density" in told[0] and "weighing what was found  2 charts so far" in told[-1]
    parts = (r"\d+ starts  2 charts so far, \d+ gradients", r"of at most 200 temp")
    assert all(any(re.search(part, one) for one in told) for part in parts)
    assert not any("%" in one or "left" in one for one in told)
    # a population is told of at every temperature
    rises = [int(found[1]) for one in told if (found := re.search(r"(\d+) of at most 200", one))]
    first = rises[: rises.index(max(rises)) + 1]
    assert first == list(range(1, len(first) + 1)) and len(first) > 3


@pytest.mark.parametrize("budget", [1000.0, np.inf])
def test_a_search_tells_a_bound_where_its_most_is_near_and_never_that_it_is_done(budget):
    """An unlimited search used to be at 100 %, and one on a budget promised times that never came."""
    view = Lines(Clock())
    search = dataclasses.replace(start_search(problem("pair").target, 256), num_gradients=2000)
    for taken in range(256, 4097, 256):
        view.wait(10.0)
        view.searching(search, Doing("starts", taken, 4096), budget)
    lines = [line for _, line in view.lines]
    assert not any("%" in line or "left" in line or "unless" in line for line in lines)
    bounds = [re.search(r"at most (\d+) s more", line) for line in lines]
    early = bounds.index(next(filter(None, bounds)))
    assert early >= 3 and all(bounds[early:])
    for (now, _), bound in zip(view.lines[early:], bounds[early:], strict=True):
        assert int(bound[1]) == pytest.approx(160.0 - now, abs=1.0)


def test_without_a_terminal_the_first_line_comes_after_two_seconds_and_then_few():
    view = Lines(Clock())
    view.say("search", unit="compiling the density")
    view.wait(1.0)
    assert not view.lines
    view.wait(3600.0)  # nothing is heard of the run for an hour
    times = [now for now, _ in view.lines]
    assert times[0] == pytest.approx(2.0) and len(times) < 13
    assert all(after == pytest.approx(2 * now, abs=progress.TICK) for now, after in pairwise(times))
    assert all("compiling the density" in line for _, line in view.lines)


@pytest.mark.parametrize("shown", [None, True, False])
def test_a_phase_is_told_after_two_seconds_a_short_one_only_if_asked_and_quiet_is_quiet(shown):
    view = Lines(Clock(), shown)
    with view:
        for phase, seconds in {
            "search": 40.0,
            "compile": 5.0,
            "warm-up": 0.1,
            "sampling": 30.0,
            "evidence": 0.1,
        }.items():
            view.say(phase, unit="something")
            view.wait(seconds)
    told = {line.split()[1] for _, line in view.lines}
    long = {"search", "compile", "sampling"}
    assert told == {None: long, True: long | {"warm-up", "evidence"}, False: set()}[shown]


def test_a_line_comes_also_while_the_run_is_busy(monkeypatch):
    """By a thread: here nothing is told after the first word."""
    printed = threading.Event()

    class View(Progress):
        def _print(self, now: float) -> None:
            printed.set()

    monkeypatch.setattr(progress, "TICK", 0.01)
    clock = Clock()
    with View(None, clock) as view:
        view.terminal = False
        view.say("compile", unit="something")
        assert not printed.is_set()
        clock.seconds = 2.0
        assert printed.wait(60)
    assert view.ticker is None


def _steady(view: Lines) -> None:
    for done in range(0, 1001, 20):
        view.say("sampling", done, 1000, unit="draws")
        view.wait(3.0 if done < 1000 else 0.0)


def _slower(view: Lines) -> None:
    """Blocks that take up to twice as long."""
    for done in range(0, 1001, 20):
        view.say("sampling", done, 1000, unit="draws")
        view.wait(2.0 + 2.0 * done / 1000 if done < 1000 else 0.0)


def _rounds(pauses: tuple[float, ...], compiling: float = 0.0, alike: int = 5):
    """A warm-up: rounds that double, a pause after each, of which so many are alike; and a compilation on the way."""

    def run(view: Lines) -> None:
        made, ends = 0, (16, 48, 113, 242, 500)
        for n, (end, pause) in enumerate(zip(ends, pauses, strict=True)):
            view.say("warm-up", made, 500, unit="steps", pauses=alike - n)
            while made < end:
                view.wait(0.1 * min(16, end - made))
                made = min(made + 16, end)
                view.say("warm-up", made, 500, unit="steps", pauses=alike - n)
            view.say("warm-up", made, 500, unit="steps", pauses=alike - n, more="tuning")
            view.wait(pause)
            if n == 1 and compiling:
                view.say("compile", unit="steps")
                view.wait(compiling)

    return run


def _evidence(view: Lines) -> None:
    """Two compilations, then paths at one speed."""
    view.say("evidence", unit="by bridge sampling")
    view.wait(2.0)
    for _ in range(2):
        view.say("evidence", 0, 2048, unit="paths")
        view.wait(20.0)
    for done in range(0, 2049, 64):
        view.say("evidence", done, 2048, unit="paths")
        view.wait(0.5 if done < 2048 else 0.0)


LONGEST_BLOCK = 4.0
"""Seconds of a block in the courses below, at most."""

COURSES = {
    "steady": _steady,
    "slower": _slower,
    "rounds": _rounds((0.1,) * 5),
    "rounds with tuning that grows": _rounds((1.0, 2.0, 10.0, 20.0, 20.0)),
    "rounds with long searches between": _rounds((30.0, 30.0, 30.0, 30.0, 1.0), alike=4),
    "rounds with a compilation": _rounds((1.0,) * 5, compiling=60.0),
    "evidence": _evidence,
}


@pytest.mark.parametrize("course", COURSES)
def test_the_time_left_comes_true_within_a_factor_of_three(course):
    """From a quarter of the work on, at every look at the clock but those in the last block, of which nothing is known
    before it is there."""
    view = Lines(Clock())
    told: list[tuple[float, float]] = []
    look = view.look

    def look_and_note() -> None:
        look()
        news = view.news
        left = view.paces[news.part].left(view.now(), news.most, news.pauses)
        if left is not None and news.done >= 0.25 * news.most:
            assert f", {left:.0f} s left" in view._line(view.now())
            told.append((view.now(), left))

    view.look = look_and_note
    COURSES[course](view)
    end = view.now()
    assert len(told) >= 10
    wrong = [(now, left, end - now) for now, left in told if not (end - now) / 3 < left < 3 * (end - now)]
    wrong = [one for one in wrong if one[2] > LONGEST_BLOCK]
    assert not wrong


def test_a_run_that_goes_on_counts_what_it_does_itself():
    """800 of 1000 draws were made before it was stopped: no time of ours."""
    view = Lines(Clock())
    for done in (800, 900):
        view.say("sampling", done, 1000, unit="draws")
        view.wait(10.0)
    assert view.paces["sampling", "draws"].left(view.now(), 1000, 0) is None  # it takes longer than it should have
    view.say("sampling", 950, 1000, unit="draws")
    assert view.paces["sampling", "draws"].left(view.now(), 1000, 0) == pytest.approx(50 * 20 / 150)
