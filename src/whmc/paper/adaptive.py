"""Runs that start from a few modes and find the others at regenerations (Algorithm 2), for a given time."""

import dataclasses
import time
from collections.abc import Callable

import numpy as np

from whmc._shapes import Array, Float
from whmc.kernels.base import AbstractKernel
from whmc.kernels.settings import arrays
from whmc.modes.library import ModeLibrary
from whmc.paper import dirichlet
from whmc.paper.dirichlet import DirichletSearch, modes_from_chains
from whmc.paper.problems import Case
from whmc.paper.samplers import Budget, Pilot, darting_cycle, starts
from whmc.run import regeneration
from whmc.run.plan import Plan
from whmc.run.prepare import mover_of, prepare
from whmc.run.progress import Progress
from whmc.run.regeneration import Look
from whmc.run.sample import begin
from whmc.run.state import Learned, RunState
from whmc.search import ongoing
from whmc.search.finders import MultiStart
from whmc.storage.draws_file import DrawsInMemory
from whmc.target.target import Target
from whmc.warmup.charts import ChartShapes
from whmc.warmup.warmup import Warmup

FIRST_STARTS = 4
"""Of the optimisers and chains that look for modes beforehand, as in section 5.3."""


REHEARSED = 4
"""Periods of the rehearsal: enough for the first updates."""


@dataclasses.dataclass(frozen=True)
class Curve:
    """REM of every chain and the number of modes known, at some times."""

    method: str
    seconds: Float[np.ndarray, " times"]
    rem: Float[np.ndarray, "times chains"]
    num_modes: Float[np.ndarray, " times"]
    weights: Float[np.ndarray, " modes"]
    num_gradients: int


@dataclasses.dataclass(frozen=True)
class Chase:
    """A run under way: its state, the target that it samples, its draws, and how it looks for modes."""

    state: RunState
    target: Target
    log: DrawsInMemory
    look: Look

    def advanced(self) -> "Chase":
        """After one more block of all chains."""
        everyone, length = np.ones(self.state.plan.chains, bool), self.state.chains.block_length
        state = regeneration.advance(self.state, self.target, self.log, everyone, length, self.look)
        return dataclasses.replace(self, state=state)

    def positions(self) -> list[Float[np.ndarray, "n dim"]]:
        """The draws of each chain so far."""
        return regeneration.positions(self.state, self.log)


def exact(case: Case, budget: Budget) -> Curve:
    """`whmc.sample(adapt="regeneration")` from four starts."""

    def start() -> Chase:
        plan = Plan(adapt="regeneration", seed=budget.seed, chains=budget.chains)
        target, state = begin(case.target, plan, finder=MultiStart(FIRST_STARTS))
        state = regeneration.begin(prepare(state, target, Progress(False)))
        return Chase(state, target, DrawsInMemory(), ongoing.look)

    return _rehearsed(start, case, budget, "whmc")


def regeneration_darting(case: Case, budget: Budget, tuned: Pilot) -> Curve:
    """RDMC: modes from four parallel HMC chains, then Dirichlet process mixtures at regenerations."""

    def start() -> Chase:
        library = modes_from_chains(
            case.target, FIRST_STARTS, step_size=tuned.step_size, num_steps=tuned.num_steps, seed=budget.seed
        )
        library = library.padded(max(16, 2 * library.size))
        kernel = arrays(darting_cycle(case.target, library, tuned))
        state = state_at(case.target, kernel, library, starts(library, budget.chains), budget.seed)
        return Chase(state, case.target, DrawsInMemory(), dirichlet.look)

    return _rehearsed(start, case, budget, "RDMC")


def state_at(
    target: Target, kernel: AbstractKernel, library: ModeLibrary, positions: Float[Array, "chains dim"], seed: int
) -> RunState:
    """A run that needs no warm-up and looks for modes by Dirichlet process mixtures, before its first block."""
    warmup = Warmup(kernel, library, ChartShapes.of(library.charts()), fixed=True)
    plan = Plan(adapt="regeneration", seed=seed, chains=len(positions), warmup=0)
    state = RunState(plan, learned=Learned(None, DirichletSearch(seed=seed), warmup))
    chains, num_failed = mover_of(state, target).start(library, np.asarray(positions))
    return regeneration.begin(state.at(chains=chains, num_failed=num_failed))


def _rehearsed(start: Callable[[], Chase], case: Case, budget: Budget, method: str) -> Curve:
    """The run, after one of a few periods that compiles everything: seconds are of search, adaptation and sampling."""
    rehearsal = start()
    for _ in range(REHEARSED):
        rehearsal = rehearsal.advanced()
    began = time.perf_counter()
    chase = start()
    return _follow(chase, case, budget, method, time.perf_counter() - began)


def _follow(chase: Chase, case: Case, budget: Budget, method: str, spent: float) -> Curve:
    """Periods until the seconds are over; the errors at times that grow by a tenth."""
    times: list[float] = []
    errors, sizes = [], []
    elapsed = spent
    while elapsed < budget.seconds or not times:
        began = time.perf_counter()
        chase = chase.advanced()
        elapsed += time.perf_counter() - began
        if not times or elapsed > 1.1 * times[-1] or elapsed >= budget.seconds:
            means = np.array([rows.mean(axis=0) for rows in chase.positions()])
            times.append(elapsed)
            errors.append(case.rem(means))
            sizes.append(chase.state.newest.library.num_modes)
    label = case.label(np.concatenate(chase.positions()))
    weights = np.bincount(label, minlength=len(case.weights)) / len(label)
    gradients = chase.state.moment.gradients.total
    return Curve(method, np.array(times), np.array(errors), np.array(sizes, float), weights, gradients)
