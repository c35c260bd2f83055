"""The progress line: one line on a terminal, rewritten; nothing where nobody looks."""

import sys
import time


class Progress:
    """Says where the run is. Shown by default only if standard error is a terminal."""

    def __init__(self, shown: bool | None) -> None:
        self.shown = sys.stderr.isatty() if shown is None else shown
        self.started = time.perf_counter()
        self.width = 0

    def say(self, phase: str, done: int, total: int, more: str = "") -> None:
        if not self.shown:
            return
        seconds = time.perf_counter() - self.started
        share = done / total if total else 1.0
        line = f"whmc {phase:<9s} {share:4.0%}  {done}/{total}  {seconds:.0f} s  {more}"
        print("\r" + line.ljust(self.width), end="", file=sys.stderr, flush=True)
        self.width = len(line)

    def close(self) -> None:
        if self.shown and self.width:
            print(file=sys.stderr)
