"""What a run was asked for: plain numbers, and what the user brought besides the target."""

import dataclasses
from collections.abc import Sequence

import numpy as np

from whmc._shapes import Float
from whmc.kernels.base import AbstractKernel
from whmc.modes.library import ModeLibrary
from whmc.search.effort import Effort
from whmc.search.find import MAX_MODES
from whmc.search.finders import AbstractFinder
from whmc.target.folding import Fold


@dataclasses.dataclass(frozen=True)
class Plan:
    """What was asked for, in plain numbers; see `sample`."""

    adapt: str = "warmup"
    max_modes: int = MAX_MODES
    seed: int = 0
    chains: int = 16
    draws: int = 1000
    warmup: int = 500
    search: float | None = None

    @property
    def effort(self) -> Effort:
        """How long to search by default, beside what the run takes."""
        return Effort.of_search(self.search) if self.search is not None else Effort.of_run(self.num_steps)

    @property
    def num_steps(self) -> int:
        """Of all chains together."""
        return self.chains * (self.warmup + self.draws)

    @property
    def adaptive(self) -> bool:
        """Whether kernels change at regenerations while chains sample."""
        return self.adapt == "regeneration"


@dataclasses.dataclass(frozen=True)
class Inputs:
    """What the user brought, see `sample`. fold: which image of its modes a target with symmetries keeps."""

    library: ModeLibrary | None = None
    finder: AbstractFinder | Sequence[AbstractFinder] | None = None
    kernel: AbstractKernel | None = None
    initial: Float[np.ndarray, "chains dim"] | None = None
    fold: Fold | None = None
