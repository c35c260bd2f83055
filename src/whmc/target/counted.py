"""How often a log density was evaluated from the host: counted where it is done, so that nothing is left out."""

import contextlib
from collections.abc import Iterator
from contextvars import ContextVar


class Count:
    """Evaluations so far."""

    num: int = 0


_counts: ContextVar[tuple[Count, ...]] = ContextVar("counts", default=())


@contextlib.contextmanager
def counted() -> Iterator[Count]:
    """Inside, every evaluation that this thread makes from the host is counted; by a count around this one too."""
    one = Count()
    before = _counts.set((*_counts.get(), one))
    try:
        yield one
    finally:
        _counts.reset(before)


def count(num: int) -> None:
    """So many positions were evaluated."""
    for one in _counts.get():
        one.num += num
