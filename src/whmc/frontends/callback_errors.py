"""Re-raise the user's own exception where a function that compiled code calls back fails, instead of JAX's account.

JAX wraps an exception of a callback in one of its own, and writes it to its log. So a black box keeps what its function
has raised (`BlackBox.trouble`), and `own_errors` raises that.
"""

import contextlib
import logging
from collections.abc import Iterator
from types import TracebackType
from typing import Protocol, runtime_checkable


@runtime_checkable
class Box(Protocol):
    """What keeps an exception: see `whmc.frontends.blackbox.BlackBox`."""

    trouble: BaseException | None


@contextlib.contextmanager
def own_errors(box: Box) -> Iterator[None]:
    """What the box has kept is raised in place of JAX's exception. May be nested."""
    box.trouble = None
    logger = logging.getLogger("jax._src.callback")
    silence = _Silence()  # one for each use: the end of an inner one leaves that of an outer one
    logger.addFilter(silence)
    try:
        yield
    except Exception as error:
        own = _taken(box)
        if own is None or own is error:
            raise
        for note in getattr(error, "__notes__", ()):
            if note.startswith("whmc"):
                own.add_note(note)
        # the cause is where it came from in a worker, or nothing
        raise own.with_traceback(_users_part(own.__traceback__)) from own.__cause__
    finally:
        logger.removeFilter(silence)


def _taken(box: Box) -> BaseException | None:
    own, box.trouble = box.trouble, None
    return own


class _Silence(logging.Filter):
    """Drops what JAX logs of a callback's exception: the user will see the exception itself."""

    def filter(self, record: logging.LogRecord) -> bool:
        return record.exc_info is None


def _users_part(trace: TracebackType | None) -> TracebackType | None:
    """Without the frames between JAX and the user's function."""
    while trace is not None and trace.tb_next is not None:
        if trace.tb_frame.f_globals.get("__name__", "").partition(".")[0] not in ("jax", "whmc"):
            break
        trace = trace.tb_next
    return trace
