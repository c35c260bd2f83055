"""The samplers that the experiments compare, each run on the same target for the same seconds; all in float64.

All of them are told the same modes. Compilation is left out of the seconds, tuning is not.
"""

import dataclasses
import time
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np

from whmc._shapes import Array, Float
from whmc.kernels.base import AbstractKernel
from whmc.kernels.cycle import Cycle
from whmc.kernels.settings import arrays, infos
from whmc.keys import Stream, stream_key
from whmc.modes.chart_data import locations_of, scale_rows
from whmc.modes.library import ModeLibrary
from whmc.modes.mixture import log_ratio_of
from whmc.paper.darting import DartingMC, RegenerationDartingMC, darting_radius
from whmc.paper.network import NetworkWormhole, augmented, augmented_library
from whmc.paper.plain_hmc import PlainHMC
from whmc.paper.problems import Case
from whmc.paper.tally import Tally
from whmc.run.chains import Mover, cost_of
from whmc.run.plan import Plan
from whmc.run.prepare import prepare
from whmc.run.progress import Progress
from whmc.run.sample import begin
from whmc.target.target import Numbers, Target
from whmc.warmup.step_size import tune_step_sizes

MAX_LEAPS = 50
PILOT_STEPS = 25
PILOT_ROUNDS = 8


@dataclasses.dataclass(frozen=True)
class Budget:
    """What every sampler of an experiment is given."""

    seconds: float
    chains: int = 10
    seed: int = 0


@dataclasses.dataclass(frozen=True)
class Pilot:
    """Plain HMC's step size and number of steps, tuned on the target, and the seconds that took."""

    step_size: float
    num_steps: int
    seconds: float


def starts(library: ModeLibrary, chains: int) -> Float[Array, "chains dim"]:
    """The modes in turn."""
    return library.location[np.arange(chains) % library.size]


def timed(
    kernel: AbstractKernel,
    target: Target,
    library: ModeLibrary,
    tally: Tally,
    budget: Budget,
    *,
    positions: Numbers | None = None,
    spent: float = 0.0,
) -> Tally:
    """Blocks of the kernel until the seconds are over, of which `spent` are gone already."""
    at = starts(library, budget.chains) if positions is None else jnp.asarray(positions)
    mover = Mover(target, stream_key(budget.seed, Stream.CHAINS))
    chains, _ = mover.start(library, np.asarray(at))
    kernel = arrays(kernel)
    mover.compile(chains, kernel, library)
    elapsed, num_gradients = spent, 0
    while elapsed < budget.seconds or not tally.points:
        began = time.perf_counter()
        trace, chains = mover.steps(chains, kernel, library, chains.block_length)
        elapsed += time.perf_counter() - began
        num_gradients += cost_of(trace).num_gradients
        tally.add(trace.position, elapsed, num_gradients)
    return tally


def pilot(case: Case, budget: Budget) -> Pilot:
    """Step size for an acceptance of .8, and as many steps as a quarter turn of the typical mode takes."""
    library = case.library
    mover = Mover(case.target, stream_key(budget.seed, Stream.CHAINS))
    chains, _ = mover.start(library, np.asarray(starts(library, budget.chains)))
    scale = np.stack([scale_rows(one.scale) for one in library.charts()])
    width = float(np.sqrt(np.mean(scale**2) * (1 if library.diagonal else library.dim)))
    step_size = np.array([0.5 * width * library.dim**-0.25])
    kernel = arrays(PlainHMC(step_size=float(step_size[0]), num_steps=10))
    mover.compile(chains, kernel, library)
    began = time.perf_counter()
    for _ in range(PILOT_ROUNDS):
        kernel = arrays(PlainHMC(step_size=float(step_size[0]), num_steps=10))
        trace, chains = mover.steps(chains, kernel, library, PILOT_STEPS)
        acceptance = np.exp(np.minimum(infos(trace.info)[0].log_ratio, 0.0)).ravel()
        # in units of the width, where the tuning's own bounds make sense
        label = np.zeros(len(acceptance), int)
        step_size = width * tune_step_sizes(step_size / width, label, acceptance)
    num_steps = int(np.clip(np.ceil(0.5 * np.pi * width / step_size[0]), 1, MAX_LEAPS))
    return Pilot(float(step_size[0]), num_steps, time.perf_counter() - began)


def plain(case: Case, budget: Budget, tuned: Pilot) -> Tally:
    """Plain HMC with unit mass."""
    return _with(PlainHMC(tuned.step_size, tuned.num_steps), "HMC", case, budget, tuned)


def darting(case: Case, budget: Budget, tuned: Pilot) -> Tally:
    """DMC: plain HMC and darts between ellipsoids around the modes."""
    moves = (PlainHMC(tuned.step_size, tuned.num_steps), DartingMC(darting_radius(case.target.dim)))
    return _with(Cycle(moves), "DMC", case, budget, tuned)


def regeneration_darting(case: Case, budget: Budget, tuned: Pilot) -> Tally:
    """RDMC: plain HMC and the independence sampler of truncated Gaussians around the modes."""
    return _with(darting_cycle(case.target, case.library, tuned), "RDMC", case, budget, tuned)


def darting_cycle(target: Target, library: ModeLibrary, tuned: Pilot) -> Cycle:
    """RDMC's kernel. The threshold of its regenerations is the typical pi/q at the modes."""
    logdensity = np.asarray(jax.vmap(target)(library.location[: library.size]))
    threshold = float(np.median(log_ratio_of(library, locations_of(library.charts()), logdensity)))
    jump = RegenerationDartingMC(log_threshold=threshold, radius=darting_radius(target.dim))
    return Cycle((PlainHMC(tuned.step_size, tuned.num_steps), jump))


def printed(case: Case, budget: Budget, tuned: Pilot, *, influence: float = 0.3) -> Tally:
    """Algorithm 1 as printed, with the paper's F and h."""
    kernel = NetworkWormhole(step_size=tuned.step_size, num_steps=tuned.num_steps, influence=influence)
    library = augmented_library(case.library)
    tally = Tally(case, "Algorithm 1", budget.chains)
    return timed(kernel, augmented(case.target), library, tally, budget, spent=tuned.seconds)


def exact(case: Case, budget: Budget, tuned: Pilot | None = None) -> Tally:
    """`whmc.sample` with the same modes; its own warm-up counts."""
    del tuned
    target, state = begin(case.target, Plan(chains=budget.chains, seed=budget.seed), modes=case.library)
    state = prepare(state, target, Progress(False))
    newest, tally = state.newest, Tally(case, "whmc", budget.chains)
    positions, spent = state.chains.states.position, state.moment.timings.warmup
    return timed(newest.kernel, target, newest.library, tally, budget, positions=positions, spent=spent)


def _with(kernel: AbstractKernel, name: str, case: Case, budget: Budget, tuned: Pilot) -> Tally:
    return timed(kernel, case.target, case.library, Tally(case, name, budget.chains), budget, spent=tuned.seconds)


METHODS: dict[str, Callable[[Case, Budget, Pilot], Tally]] = {
    "HMC": plain,
    "DMC": darting,
    "RDMC": regeneration_darting,
    "Algorithm 1": printed,
    "whmc": exact,
}


def compare(case: Case, budget: Budget, tuned: Pilot, say: Callable[[str], None]) -> dict[str, Tally]:
    """All samplers on one case."""
    found = {}
    for name, method in METHODS.items():
        say(f"{case.name}: {name}")
        found[name] = method(case, budget, tuned)
    return found
