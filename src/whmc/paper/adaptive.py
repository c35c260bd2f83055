"""Runs that start from a few modes and find the others at regenerations (Algorithm 2), for a given time."""

import dataclasses
import time
from collections.abc import Callable

import numpy as np
from jaxtyping import Float

from whmc.kernels.settings import arrays
from whmc.paper.dirichlet import DirichletLookout, modes_from_chains
from whmc.paper.problems import Case
from whmc.paper.samplers import Budget, Pilot, darting_cycle, starts
from whmc.run.chains import Chains
from whmc.run.course import Course, Plan
from whmc.run.progress import Progress
from whmc.run.regeneration import Adaptation
from whmc.search.finders import MultiStart

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


def exact(case: Case, budget: Budget) -> Curve:
    """`whmc.sample(adapt="regeneration")` from four starts."""

    def start() -> Adaptation:
        plan = Plan(adapt="regeneration", seed=budget.seed, chains=budget.chains)
        return Course(case.target, plan, finder=MultiStart(FIRST_STARTS)).prepare().adapt()

    return _rehearsed(start, case, budget, "whmc")


def regeneration_darting(case: Case, budget: Budget, tuned: Pilot) -> Curve:
    """RDMC: modes from four parallel HMC chains, then Dirichlet process mixtures at regenerations."""

    def start() -> Adaptation:
        library = modes_from_chains(
            case.target, FIRST_STARTS, step_size=tuned.step_size, num_steps=tuned.num_steps, seed=budget.seed
        )
        library = library.padded(max(16, 2 * library.size))
        kernel = arrays(darting_cycle(case.target, library, tuned))
        run = Chains.start(case.target, library, budget.seed, starts(library, budget.chains), Progress(False))
        return Adaptation(run, kernel, library, DirichletLookout(seed=budget.seed), budget.seed)

    return _rehearsed(start, case, budget, "RDMC")


def _rehearsed(start: Callable[[], Adaptation], case: Case, budget: Budget, method: str) -> Curve:
    """The run, after one of a few periods that compiles everything: seconds are of search, adaptation and sampling."""
    rehearsal = start()
    for _ in range(REHEARSED):
        rehearsal.advance(np.ones(budget.chains, bool), rehearsal.run.length)
    began = time.perf_counter()
    adaptation = start()
    return _follow(adaptation, case, budget, method, time.perf_counter() - began)


def _follow(adaptation: Adaptation, case: Case, budget: Budget, method: str, spent: float) -> Curve:
    """Periods until the seconds are over; the errors at times that grow by a tenth."""
    times: list[float] = []
    errors, sizes = [], []
    elapsed, everyone = spent, np.ones(budget.chains, bool)
    while elapsed < budget.seconds or not times:
        began = time.perf_counter()
        adaptation.advance(everyone, adaptation.run.length)
        elapsed += time.perf_counter() - began
        if not times or elapsed > 1.1 * times[-1] or elapsed >= budget.seconds:
            means = np.array([rows.mean(axis=0) for rows in adaptation.positions()])
            times.append(elapsed)
            errors.append(case.rem(means))
            sizes.append(adaptation.library.num_modes)
    label = case.label(np.concatenate(adaptation.positions()))
    weights = np.bincount(label, minlength=len(case.weights)) / len(label)
    gradients = adaptation.run.num_gradients
    return Curve(method, np.array(times), np.array(errors), np.array(sizes, float), weights, gradients)
