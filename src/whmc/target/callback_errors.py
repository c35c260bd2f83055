"""Exceptions of functions that JAX calls back: JAX wraps them in its own, here the user gets theirs."""

import contextlib
import logging
from collections.abc import Iterator
from types import TracebackType
from typing import Any


@contextlib.contextmanager
def own_errors(target: Any) -> Iterator[None]:
    """What the target's black box has raised, instead of JAX's account of it."""
    box = getattr(target.logdensity, "box", None)
    if box is None:
        yield
        return
    box.trouble = None
    logger = logging.getLogger("jax._src.callback")
    logger.addFilter(_unwanted)
    try:
        yield
    except Exception as error:
        own, box.trouble = box.trouble, None
        if own is None or own is error:
            raise
        for note in getattr(error, "__notes__", ()):
            if note.startswith("whmc"):
                own.add_note(note)
        # the cause is where it came from in a worker, or nothing
        raise own.with_traceback(_users_part(own.__traceback__)) from own.__cause__
    finally:
        logger.removeFilter(_unwanted)


def _unwanted(record: logging.LogRecord) -> bool:
    """JAX writes every exception of a callback to its log; the user will see this one."""
    return record.exc_info is None


def _users_part(trace: TracebackType | None) -> TracebackType | None:
    """Without the frames between JAX and the user's function."""
    while trace is not None and trace.tb_next is not None:
        if trace.tb_frame.f_globals.get("__name__", "").partition(".")[0] not in ("jax", "whmc"):
            break
        trace = trace.tb_next
    return trace
