"""What a search is at, for whoever shows its progress."""

from collections.abc import Callable
from typing import NamedTuple


class Doing(NamedTuple):
    """A part of a search: what it does, how much of that is done, and of at most how much.

    No part knows how long it will take: each stops when it has seen enough. most: 0 where even that is not known.
    num_gradients: spent in this part so far, where the search has not counted them yet.
    """

    what: str
    done: int = 0
    most: int = 0
    num_gradients: int = 0


TellPart = Callable[[Doing], None]


def unheard(doing: Doing) -> None:
    """Where nobody asks for progress."""
