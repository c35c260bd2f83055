"""The live view of a run: where it is, the modes with their weights so far, speed, time left.

On a terminal it is a picture that changes. Elsewhere, in notebooks and in logs, it is a plain line now and then.
"""

import sys
import time
from typing import Any

import numpy as np

from whmc._shapes import Float
from whmc.kernels.block import Trace, regenerated
from whmc.modes.library import ModeLibrary

SHOWN = 6
"""Modes in the view, the heaviest first."""

REFRESH = 0.1
"""Seconds between two pictures at least: the view takes no time from the run."""


PLAIN_EVERY = 30.0
"""Seconds between two plain lines: where there is no terminal a short run says nothing, unless it is asked to."""


class Progress:
    """Says where the run is. None: as True, but where there is no terminal only what takes long is told."""

    def __init__(self, shown: bool | None = False) -> None:
        self.shown, self.asked = shown is not False, shown is True
        self.terminal = self.shown and sys.stderr.isatty()
        self.started = self.drawn_at = time.perf_counter()
        self.phase, self.phase_started, self.phase_done = "", self.started, 0
        self.counts: Float[np.ndarray, "chains modes"] | None = None
        self.num_steps = self.num_jumps = self.num_regenerations = self.num_gradients = 0
        self.live: Any = None

    def say(self, phase: str, done: int, total: int, more: str = "") -> None:
        """The phase, how much of it is done, and a word besides."""
        if not self.shown:
            return
        now = time.perf_counter()
        if phase != self.phase:
            self.phase, self.phase_started, self.phase_done = phase, now, done
            self.drawn_at = 0.0 if self.terminal else self.drawn_at
        if not self.terminal:
            if now - self.drawn_at >= PLAIN_EVERY or (self.asked and done >= total):
                self.drawn_at = now
                print(self._line(now, done, total, more), file=sys.stderr, flush=True)
            return
        if now - self.drawn_at < REFRESH and done < total:
            return
        self.drawn_at = now
        self._draw([self._line(now, done, total, more), *self._modes()])

    def searching(self, num_starts: int, num_modes: int, num_gradients: int, budget: float) -> None:
        """The search: how much of its budget is used. It may go beyond, where there is more to be found."""
        spent = min(num_gradients, int(budget)) if np.isfinite(budget) else num_gradients
        total = int(budget) if np.isfinite(budget) and num_gradients < budget else num_gradients + 1
        self.say("search", spent, total, f"gradients; {num_starts} starts, {num_modes} modes so far")

    def take(self, trace: Trace, library: ModeLibrary) -> None:
        """Adds up the modes, jumps and costs of a block, (steps, chains, ...)."""
        if not self.shown:
            return
        modes = library.mode_of[np.asarray(trace.label)]
        new = np.stack([(modes == k).sum(axis=0) for k in range(library.num_modes)], axis=1).astype(float)
        same = self.counts is not None and self.counts.shape == new.shape
        self.counts = self.counts + new if same and self.counts is not None else new
        parts = trace.info if isinstance(trace.info, tuple) else (trace.info,)
        self.num_steps += modes.size
        self.num_regenerations += int(np.sum(regenerated(trace.info)))
        for part in parts:
            changed = library.mode_of[np.asarray(part.label)] != library.mode_of[np.asarray(part.proposed)]
            self.num_jumps += int(np.sum(part.accepted & changed))
            self.num_gradients += int(np.sum(part.num_gradients))

    def close(self) -> None:
        """The last picture stays."""
        if self.live is not None:
            self.live.stop()
            self.live = None

    def _line(self, now: float, done: int, total: int, more: str) -> str:
        share = done / total if total else 1.0
        text = f"whmc {self.phase:<9s}{share:5.0%}  {done}/{total}  {now - self.started:.0f} s"
        made = done - self.phase_done
        if made > 0 and done < total:
            text += f", {(now - self.phase_started) * (total - done) / made:.0f} s left"
        return f"{text}  {more}".rstrip()

    def _modes(self) -> list[str]:
        """Weights with errors across chains, and how the chains move."""
        if self.counts is None or self.phase != "sampling":
            return []
        shares = self.counts / self.counts.sum(axis=1, keepdims=True)
        weight, error = shares.mean(axis=0), shares.std(axis=0, ddof=1 if len(shares) > 1 else 0) / len(shares) ** 0.5
        order = np.argsort(-weight, kind="stable")[:SHOWN]
        found = "  ".join(f"{k}: {weight[k]:.3f} ± {error[k]:.3f}" for k in order)
        rest = f"  and {len(weight) - SHOWN} more" if len(weight) > SHOWN else ""
        rate = self.num_gradients / max(time.perf_counter() - self.phase_started, 1e-9)
        return [
            f"     modes {len(weight)}  {found}{rest}",
            f"     mode changes {self.num_jumps / self.num_steps:.2f} a step, regenerations {self.num_regenerations}, "
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
