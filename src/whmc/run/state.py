"""The run as data: one frozen tree. What advances it are functions; a checkpoint is its serialisation.

    RunState ── plan      what was asked for, in plain numbers
             ├─ inputs    what the user brought, and the fold
             ├─ learned   what is known of modes and kernel: changes between rounds and at updates    (None at first)
             └─ moment    where the chains are, and what it has cost: changes with every block

The stage of a run is not stored: it follows from what is there. Random numbers belong to seed, chain and step, so a
run that was stopped anywhere and resumed gives the same draws, bit by bit, as one that was not.
"""

import dataclasses
import enum
from typing import Any, Protocol, runtime_checkable

import numpy as np

from whmc._shapes import Float, Int
from whmc.estimate.basins import Basins
from whmc.estimate.evidence import Evidence
from whmc.kernels.base import AbstractKernel
from whmc.modes.library import ModeLibrary
from whmc.result import Gradients, Timings
from whmc.run.chains import Chains
from whmc.run.plan import Inputs, Plan
from whmc.search import ongoing
from whmc.search.ongoing import OngoingSearch
from whmc.search.report import SearchReport
from whmc.target.noticed import Noticed
from whmc.warmup.warmup import Warmup, round_lengths


class Stage(enum.Enum):
    """Where a run is."""

    SEARCH = "search"
    WARMUP = "warm-up"
    SAMPLING = "sampling"
    COMPLETE = "complete"


@runtime_checkable
class GoesOn(Protocol):
    """A search that goes on, such as an `OngoingSearch`: frozen data."""

    @property
    def looks(self) -> int:
        """How often it has looked."""

    @property
    def num_gradients(self) -> int:
        """What all searches have cost so far."""


@dataclasses.dataclass(frozen=True)
class Version:
    """A kernel and a library that belong together."""

    kernel: AbstractKernel
    library: ModeLibrary


@dataclasses.dataclass(frozen=True)
class Learned:
    """What a run knows of modes and kernel.

    report: of the first search. ongoing: the search that goes on, where one does. rounds: of the warm-up, made so far.
    versions: what chains sample with; the first is that of the warm-up, the others came at regenerations.
    """

    report: SearchReport | None
    ongoing: GoesOn | None
    warmup: Warmup
    rounds: int = 0
    versions: tuple[Version, ...] = ()


@dataclasses.dataclass(frozen=True)
class Adaptation:
    """Chains whose kernels change at regenerations.

    version: which of `Learned.versions` each chain has. segments: for each chain the rows (first, number) of the draw
    log that count. period: blocks so far. next_refit: draws of a chain at which charts are learned anew. patience:
    blocks left for chains that lack a mode when all others are done.
    """

    version: Int[np.ndarray, " chains"]
    segments: tuple[Int[np.ndarray, "_ 2"], ...]
    next_refit: int
    patience: int
    period: int = 0
    num_regenerations: int = 0

    @property
    def num_draws(self) -> Int[np.ndarray, " chains"]:
        """Draws of each chain that count."""
        return np.array([int(rows[:, 1].sum()) for rows in self.segments])


@dataclasses.dataclass(frozen=True)
class Moment:
    """Where the chains are, how many draws they have, what it has cost.

    work: the evidence by annealing, if made. basins: which modes there are, told by ascents from the draws.
    failed_at: a position where the density fails, if many evaluations did.
    noticed: what else was noticed of the density.
    """

    chains: Chains | None = None
    num_drawn: int = 0
    adaptation: Adaptation | None = None
    gradients: Gradients = Gradients()
    num_failed: int = 0
    timings: Timings = Timings()
    work: Evidence | None = None
    basins: Basins | None = None
    failed_at: Float[np.ndarray, " dim"] | None = None
    noticed: Noticed = dataclasses.field(default_factory=Noticed)


@dataclasses.dataclass(frozen=True)
class RunState:
    """A run between two units of work."""

    plan: Plan
    inputs: Inputs = Inputs()
    learned: Learned | None = None
    moment: Moment = Moment()

    @property
    def stage(self) -> Stage:
        """Follows from what is there."""
        if self.learned is None:
            return Stage.SEARCH
        if self.learned.rounds < len(round_lengths(self.plan.warmup)):
            return Stage.WARMUP
        lacking = self.moment.num_drawn < self.plan.draws or waits_for_modes(self)
        return Stage.SAMPLING if lacking else Stage.COMPLETE

    @property
    def newest(self) -> Version:
        """Kernel and library as they are now; after the search only."""
        learned = self.knowledge
        return learned.versions[-1] if learned.versions else Version(learned.warmup.kernel, learned.warmup.library)

    @property
    def knowledge(self) -> Learned:
        """What is learned, which after the search is there."""
        if self.learned is None:
            raise RuntimeError("this run has not found its modes yet")
        return self.learned

    @property
    def chains(self) -> Chains:
        """The chains, which after the search are there."""
        if self.moment.chains is None:
            raise RuntimeError("this run has no chains yet")
        return self.moment.chains

    @property
    def search_report(self) -> SearchReport | None:
        """The account of all searches so far."""
        learned = self.knowledge
        if isinstance(learned.ongoing, OngoingSearch):
            return ongoing.report_of(learned.ongoing, self.newest.library)
        return learned.report

    def with_learned(self, **changes: Any) -> "RunState":
        """With other fields of what is learned."""
        return dataclasses.replace(self, learned=dataclasses.replace(self.knowledge, **changes))

    def at(self, **changes: Any) -> "RunState":
        """With other fields of the moment."""
        return dataclasses.replace(self, moment=dataclasses.replace(self.moment, **changes))

    def charged(
        self, gradients: Gradients = Gradients(), seconds: Timings = Timings(), *, num_failed: int = 0
    ) -> "RunState":
        """With these costs added."""
        moment = self.moment
        return self.at(
            gradients=moment.gradients + gradients,
            timings=moment.timings + seconds,
            num_failed=moment.num_failed + num_failed,
        )


def behind(state: RunState) -> np.ndarray:
    """Chains that do not know a mode that was found."""
    adaptation, versions = state.moment.adaptation, state.knowledge.versions
    if adaptation is None:
        return np.zeros(state.plan.chains, bool)
    return np.array([versions[v].library.size < versions[-1].library.size for v in adaptation.version])


def waits_for_modes(state: RunState) -> bool:
    """Whether some chains lack a mode that was found, and there is patience left for them."""
    adaptation = state.moment.adaptation
    return adaptation is not None and adaptation.patience > 0 and bool(behind(state).any())
