"""Ctrl-C while sampling: the first time the block ends and what exists is returned, the second time it aborts."""

import contextlib
import os
import signal
import threading
from types import FrameType, TracebackType
from typing import Any


class Interrupt:
    """While it is open, the first SIGINT only sets `asked`."""

    def __init__(self) -> None:
        self.asked = False
        self.before: Any = None
        # only the main thread may have a handler
        self.able = threading.current_thread() is threading.main_thread()

    def __enter__(self) -> "Interrupt":
        if self.able:
            self.before = signal.signal(signal.SIGINT, self._handle)
        return self

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self.asked:
            raise KeyboardInterrupt
        self.asked = True
        with contextlib.suppress(OSError):  # not by print: it may be what was interrupted
            os.write(2, b"\nwhmc: stopping after this block; once more to abort\n")

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.able:
            signal.signal(signal.SIGINT, self.before or signal.SIG_DFL)
