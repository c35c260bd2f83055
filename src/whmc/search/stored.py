"""A finder of the user's own, as a store remembers it: its name, and not its code."""

import dataclasses

from whmc._shapes import Array
from whmc.search.descent import DescentResult, KnownModes
from whmc.search.finders import AbstractFinder
from whmc.target.target import Target


@dataclasses.dataclass(frozen=True)
class StoredFinder(AbstractFinder):
    """What is left of a finder whose class is not whmc's."""

    name: str
    num_starts: int | None = None

    def find(self, key: Array, target: Target, num: int, known: KnownModes | None) -> DescentResult:
        raise RuntimeError(f"the code of finder {self.name} is not stored: give it again")
