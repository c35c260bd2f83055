"""Finders: from points of the start region to points near modes.

A finder only proposes where to look. Whether an end is a mode, and which, is decided once for all finders in
`whmc.search.assign`.
"""

import abc
import dataclasses
from typing import ClassVar

import numpy as np

from whmc._shapes import Array, Float
from whmc.search.descent import DescentResult, KnownModes, descend, descend_residual
from whmc.search.doing import TellPart
from whmc.search.residual import TEMPERATURE, log_tempered
from whmc.target.rows import logdensities
from whmc.target.target import Target


class AbstractFinder(abc.ABC):
    """`num_starts`: how many starts in all; None: as many as the stopping rule asks for."""

    num_starts: int | None
    unit: ClassVar[str] = "starts"

    @abc.abstractmethod
    def find(self, key: Array, target: Target, num: int, known: KnownModes | None) -> DescentResult:
        """`num` starts, side by side."""

    def find_and_tell(
        self, key: Array, target: Target, num: int, known: KnownModes | None, tell: TellPart
    ) -> DescentResult:
        """As `find`; a finder whose starts take long says on the way how far it is."""
        del tell
        return self.find(key, target, num, known)

    def __post_init__(self) -> None:
        num = self.num_starts
        if num is not None and (isinstance(num, bool) or not isinstance(num, (int, np.integer)) or num < 1):
            raise ValueError(f"num_starts must be a positive integer or None, got {num!r}")


@dataclasses.dataclass(frozen=True)
class MultiStart(AbstractFinder):
    """Quasi-Newton descents of the energy from the start region, side by side."""

    num_starts: int | None = None

    def find(self, key: Array, target: Target, num: int, known: KnownModes | None) -> DescentResult:
        return descend_from(target, target.draw_starts(key, num), known)


def descend_from(target: Target, starts: Float[np.ndarray, "n dim"], known: KnownModes | None) -> DescentResult:
    """Plain descents from independent starts."""
    peaks = () if known is None else known.peaks
    return dataclasses.replace(descend(target, starts, peaks), independent=True)


@dataclasses.dataclass(frozen=True)
class Residual(AbstractFinder):
    """Descents of the residual energy (section 4.2): known modes are taken away, so none is found twice.

    A start where the known modes cover the target costs an evaluation or two and no more. It tells nothing about where
    a plain descent would have ended: a broad known mode may lie over the basin of an unknown one.
    """

    num_starts: int | None = None
    temperature: float = TEMPERATURE

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.temperature >= 1:
            raise ValueError(f"temperature must be at least 1, got {self.temperature}: it is T of U_r, try 1.05")

    def find(self, key: Array, target: Target, num: int, known: KnownModes | None) -> DescentResult:
        starts = target.draw_starts(key, num)
        if known is None:
            return dataclasses.replace(descend(target, starts), independent=True)
        ends = descend_residual(target, starts, known, self.temperature)
        log_pi = logdensities(target, starts) - known.log_evidence
        log_known, _ = log_tempered(known.library, starts, self.temperature)
        covered = ~ends.usable & (log_pi <= log_known)
        return dataclasses.replace(ends, covered=covered, num_gradients=ends.num_gradients + num)
