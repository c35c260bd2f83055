"""The live view of a run: what it does and for how much longer, the modes by charts with their weights so far, speed.

Which charts belong to one mode only the ascents after the last draw tell, so there may be fewer modes in the result.

On a terminal it is a picture that changes. Elsewhere, in notebooks, logs and batch jobs, it is a line now and then: the
first after two seconds, then one each time that the time in a phase has doubled, so that logs stay short.

Most of what takes long says nothing on the way, such as compiling. So a thread looks at the clock, and shows again what
was told last.
"""

import dataclasses
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from whmc._shapes import Float
from whmc._words import counted
from whmc.kernels.block import Trace, regenerated
from whmc.modes.library import ModeLibrary
from whmc.run.pace import Pace
from whmc.search.doing import Doing
from whmc.search.mode_search import SearchState

SHOWN = 6
"""Modes by charts in the view, the heaviest first."""

REFRESH = 0.1
"""Seconds between two pictures at least: the view takes no time from the run."""

TICK = 1.0
"""Seconds between two looks at the clock: the view shows whole seconds."""

FIRST_LINE = 2.0
"""Seconds of a run, or of a phase, after which it says what it does where there is no terminal: who waits longer thinks
that it hangs. A run that is over by then says nothing, unless it is asked to."""

BOUND_FROM = 0.25
"""Share of the most that a part may take, from which on its seconds are told: the most is seldom reached, and a bound
many times too large would frighten for nothing."""


@dataclasses.dataclass(frozen=True)
class News:
    """What was told last. most: of `done`, or 0 where it is not known; exact: whether it will be reached. pauses: in
    which nothing is done before the end, this one counted."""

    phase: str
    done: int = 0
    most: int = 0
    unit: str = ""
    more: str = ""
    exact: bool = True
    pauses: int = 0

    @property
    def part(self) -> tuple[str, str]:
        """What has a pace of its own: the parts of a phase count in different units."""
        return self.phase, self.unit


class Progress:
    """Says where the run is. None: as True, but where there is no terminal only what takes long is told.

    Use it as a context: inside, it also shows that time goes by. now: the clock, in seconds.
    """

    def __init__(self, shown: bool | None = False, now: Callable[[], float] = time.perf_counter) -> None:
        self.shown, self.asked = shown is not False, shown is True
        self.terminal = self.shown and sys.stderr.isatty()
        self.now = now
        self.started = self.drawn_at = now()
        self.due = self.started + FIRST_LINE
        self.news, self.last_line = News("start"), ""
        self.phase_started = {self.news.phase: self.started}
        self.paces: dict[tuple[str, str], Pace] = {}
        self.counts: Float[np.ndarray, "chains modes"] | None = None
        self.num_steps = self.num_jumps = self.num_regenerations = self.num_gradients = 0
        self.live: Any = None
        self.lock = threading.RLock()
        self.over = threading.Event()
        self.ticker: threading.Thread | None = None

    def __enter__(self) -> "Progress":
        if self.shown:
            self.over.clear()
            self.ticker = threading.Thread(target=self._tick, name="whmc-progress", daemon=True)
            self.ticker.start()
        return self

    def __exit__(self, *_: object) -> None:
        """The last picture stays."""
        self.over.set()
        if self.ticker is not None:
            self.ticker.join()
            self.ticker = None
        if self.asked and self.paces:
            self._end_of_phase()
        if self.live is not None:
            self.live.stop()
            self.live = None

    def say(
        self,
        phase: str,
        done: int = 0,
        most: int = 0,
        *,
        unit: str = "",
        more: str = "",
        exact: bool = True,
        pauses: int = 0,
    ) -> None:
        """What the run does; see `News`."""
        if not self.shown:
            return
        with self.lock:
            now, before = self.now(), self.news
            news = News(phase, done, most, unit, more, exact, pauses)
            if news.part != before.part and before.part in self.paces:
                self.paces[before.part].leave(now)
            if news.part not in self.paces:
                self.paces[news.part] = Pace.at(now, done)
            elif news.part != before.part:
                self.paces[news.part].come_back(now)
            self.paces[news.part].reach(now, done)
            if phase != before.phase:
                if self.asked and before.phase != "start":
                    self._end_of_phase()
                self.phase_started.setdefault(phase, now)
                self.due = min(self.due, now + FIRST_LINE)
            self.news = news
            if not self.terminal:
                self._print_if_due(now)
            elif phase != before.phase or now - self.drawn_at >= REFRESH or (exact and done >= most):
                self._show(now)

    def sampling(self, done: int, most: int, more: str = "") -> None:
        """Draws of each chain."""
        self.say("sampling", done, most, unit="draws", more=more)

    def searching(self, search: SearchState, doing: Doing, budget: float) -> None:
        """What a search is at. How long it takes nobody knows: it goes on where there is more to be found. All it finds
        gets a chart."""
        spent = search.num_gradients + doing.num_gradients
        found = f"{counted(len(search.peaks), 'chart')} so far, {spent} gradients"
        if spent < budget < np.inf:
            found += f" of {budget:.0f} at most"
        self.say("search", doing.done, doing.most, unit=doing.what, more=found, exact=False)

    def take(self, trace: Trace, library: ModeLibrary) -> None:
        """Adds up the modes by charts, jumps and costs of a block, (steps, chains, ...)."""
        if not self.shown:
            return
        modes = library.mode_of[np.asarray(trace.label)]
        new = np.stack([(modes == k).sum(axis=0) for k in range(library.num_modes)], axis=1).astype(float)
        parts = trace.info if isinstance(trace.info, tuple) else (trace.info,)
        with self.lock:
            same = self.counts is not None and self.counts.shape == new.shape
            self.counts = self.counts + new if same and self.counts is not None else new
            self.num_steps += modes.size
            self.num_regenerations += int(np.sum(regenerated(trace.info)))
            for part in parts:
                changed = library.mode_of[np.asarray(part.label)] != library.mode_of[np.asarray(part.proposed)]
                self.num_jumps += int(np.sum(part.accepted & changed))
                self.num_gradients += int(np.sum(part.num_gradients))

    def look(self) -> None:
        """Shows again what was told last, if it is time."""
        if not self.shown:
            return
        with self.lock:
            now = self.now()
            if not self.terminal:
                self._print_if_due(now)
            elif now - self.drawn_at >= TICK:
                self._show(now)

    def _tick(self) -> None:
        while not self.over.wait(TICK):
            self.look()

    def _print_if_due(self, now: float) -> None:
        if now >= self.due:
            self.due = now + max(FIRST_LINE, now - self.phase_started[self.news.phase])
            self._print(now)

    def _end_of_phase(self) -> None:
        """The last line of a phase, where there is no terminal that has shown it."""
        if not self.terminal and self._line(self.paces[self.news.part].told) != self.last_line:
            self._print(self.paces[self.news.part].told)

    def _print(self, now: float) -> None:
        self.last_line = self._line(now)
        print(self.last_line, file=sys.stderr, flush=True)

    def _show(self, now: float) -> None:
        self.drawn_at = now
        self._draw([self._line(now), *self._modes()])

    def _line(self, now: float) -> str:
        news, seconds = self.news, f"{now - self.started:.0f} s"
        pace = self.paces.get(news.part)
        left = None if pace is None else pace.left(now, news.most, news.pauses)
        share = news.done / news.most if news.most else 0.0
        if not news.most:
            parts = [seconds, f"{news.done} {news.unit}" if news.done else news.unit]
        elif news.exact:
            told = "" if left is None else f", {left:.0f} s left"
            parts = [seconds + told, f"{news.done}/{news.most} {news.unit}"]
        else:
            told = "" if left is None or share < BOUND_FROM else f", at most {left:.0f} s more"
            parts = [seconds, f"{news.done} of at most {news.most} {news.unit}{told}"]
        start = f"{share:4.0%}" if news.most and news.exact else "    "
        return f"whmc {news.phase:<9s}{start}  {'  '.join(part for part in [*parts, news.more] if part)}".rstrip()

    def _modes(self) -> list[str]:
        """Weights of the modes by charts, with errors across chains, and how the chains move."""
        pace = self.paces.get(("sampling", "draws"))
        if self.counts is None or pace is None:
            return []
        shares = self.counts / self.counts.sum(axis=1, keepdims=True)
        weight, error = shares.mean(axis=0), shares.std(axis=0, ddof=1 if len(shares) > 1 else 0) / len(shares) ** 0.5
        order = np.argsort(-weight, kind="stable")[:SHOWN]
        found = "  ".join(f"{k}: {weight[k]:.3f} ± {error[k]:.3f}" for k in order)
        rest = f"  and {len(weight) - SHOWN} more" if len(weight) > SHOWN else ""
        rate = self.num_gradients / max(pace.told - pace.began, 1e-9)
        return [
            f"     modes by charts {len(weight)}  {found}{rest}",
            f"     jumps {self.num_jumps / self.num_steps:.2f} a step, regenerations {self.num_regenerations}, "
            f"{rate:,.0f} gradients/s",
        ]

    def _draw(self, lines: list[str]) -> None:
        from rich.console import Console
        from rich.live import Live
        from rich.text import Text

        if self.live is None:
            self.live = Live(console=Console(stderr=True), auto_refresh=False)
            self.live.start()
        self.live.update(Text("\n".join(lines), overflow="ellipsis", no_wrap=True), refresh=True)
