"""Up to the first draw that counts: the search for modes, then the warm-up, one round at a time."""

import math
import time
from functools import partial

import numpy as np

from whmc._shapes import Float
from whmc.kernels.settings import arrays, default_kernel
from whmc.keys import Stream, child, stream_key
from whmc.modes.library import ModeLibrary
from whmc.result import Gradients, Timings
from whmc.run.ahead import CompileAhead, with_room
from whmc.run.chains import Mover, cost_of
from whmc.run.plan import Inputs, Plan
from whmc.run.progress import Progress
from whmc.run.state import Learned, RunState, Stage
from whmc.search import ongoing
from whmc.search.find import search_modes
from whmc.search.mode_search import SearchState
from whmc.search.ongoing import OngoingSearch
from whmc.search.report import SearchReport
from whmc.target.target import Target
from whmc.warmup import warmup as warming
from whmc.warmup.warmup import Draws, round_lengths


def mover_of(state: RunState, target: Target) -> Mover:
    """What moves the chains of a run."""
    return Mover(target, stream_key(state.plan.seed, Stream.CHAINS))


def prepare(state: RunState, target: Target, progress: Progress) -> RunState:
    """All of the search and the warm-up."""
    if state.stage is Stage.SEARCH:
        state = find_and_start(state, target, progress)
    state = compile_block(state, target, progress)
    while state.stage is Stage.WARMUP:
        state = warm_up(state, target, progress)
    return state


def find_and_start(state: RunState, target: Target, progress: Progress) -> RunState:
    """The modes, and chains at them."""
    plan, inputs = state.plan, state.inputs
    began = time.perf_counter()
    report = None
    if inputs.library is None or inputs.finder is not None:
        ahead = CompileAhead(mover_of(state, target), plan, inputs)
        progress.searching(0, 0, 0, plan.search_budget)

        def tell(search: SearchState) -> None:
            progress.searching(search.num_starts, len(search.peaks), search.num_gradients, plan.search_budget)
            ahead.guess(search)

        report = search_modes(
            target,
            seed=plan.seed,
            finder=inputs.finder,
            known=inputs.library,
            max_modes=plan.max_modes,
            budget=plan.search_budget if inputs.finder is None else math.inf,
            tell=tell,
        )
        searched = time.perf_counter()
        ahead.wait()
        seconds = Timings(search=searched - began, compile=time.perf_counter() - searched)
        state = state.charged(Gradients(search=report.num_gradients + ahead.num_looks), seconds)
    library = inputs.library if report is None else report.library
    assert library is not None
    began = time.perf_counter()
    looking = plan.adaptive or ongoing.wanted(report)
    library, num_looks = with_room(target, library, plan, looking)
    # a run that goes on looking may find the second mode later: it needs the jump from the start
    num_modes = max(2, library.size) if looking else library.size
    kernel = inputs.kernel or default_kernel(num_modes, scores=target.has_gradient)
    warmup = warming.begin(arrays(kernel), library, fixed=inputs.kernel is not None)
    chains, num_failed = mover_of(state, target).start(warmup.library, _positions(plan, inputs, library, report))
    search = ongoing.begin(target, warmup.library, report, plan.max_modes) if looking else None
    seconds = Timings(prepare=time.perf_counter() - began)
    state = state.at(chains=chains).charged(Gradients(warmup=num_looks), seconds, num_failed=num_failed)
    return RunState(plan, inputs, Learned(report, search, warmup), state.moment)


def _positions(
    plan: Plan, inputs: Inputs, library: ModeLibrary, report: SearchReport | None
) -> Float[np.ndarray, "chains dim"]:
    """Where the chains start: the modes in turn, unless told."""
    if inputs.initial is not None:
        return inputs.initial
    if report is not None:
        return report.starts[np.arange(plan.chains) % library.size]
    starts = library.charts().location[~library.wide]  # the home of a ring lies in its hollow
    return starts[np.arange(plan.chains) % len(starts)]


def compile_block(state: RunState, target: Target, progress: Progress) -> RunState:
    """The one compiled function of the run, made before it is needed so that its seconds are known."""
    began = time.perf_counter()
    progress.say("compile", 0, 1)
    mover_of(state, target).compile(state.chains, state.newest.kernel, state.newest.library)
    return state.charged(seconds=Timings(compile=time.perf_counter() - began))


def warm_up(state: RunState, target: Target, progress: Progress) -> RunState:
    """One round, and a look for more modes after it."""
    began = time.perf_counter()
    mover, learned, chains = mover_of(state, target), state.knowledge, state.chains
    lengths, done = round_lengths(state.plan.warmup), learned.rounds
    trials = warming.plan_round(learned.warmup, lengths[done])
    traces, made = [], sum(lengths[:done])
    for trial in trials:
        tell = partial(_tell, progress, made, state.plan.warmup)
        trace, chains = mover.steps(chains, trial.kernel, learned.warmup.library, trial.num_steps, tell)
        cost, made = cost_of(trace), made + trial.num_steps
        state = state.charged(Gradients(warmup=cost.num_gradients), num_failed=cost.num_failed)
        traces.append(trace)
    warmup, draws = warming.learn(learned.warmup, trials, traces, len(lengths) - 1 - done)
    state = state.with_learned(warmup=warmup, rounds=done + 1)
    if isinstance(learned.ongoing, OngoingSearch) and done < len(lengths) - 1:  # the last round tunes what is frozen
        state = _look(state, learned.ongoing, target, draws, (done + 1) / (len(lengths) - 1))
    newest = state.newest
    first_bent = type(learned.warmup.library.bend) is not type(newest.library.bend)
    state = state.at(chains=mover.hand_over(chains, newest.kernel, newest.library, first_bent=first_bent))
    return state.charged(seconds=Timings(warmup=time.perf_counter() - began))


def _tell(progress: Progress, before: int, total: int, num: int) -> None:
    progress.say("warm-up", before + num, total)


def _look(state: RunState, search: OngoingSearch, target: Target, draws: Draws, share: float) -> RunState:
    """More modes: a single look where the search has all the run before it, else as many as this share allows."""
    warmup, stream = state.knowledge.warmup, stream_key(state.plan.seed, Stream.ONGOING_SEARCH)
    if state.plan.adaptive:
        found, library = ongoing.look(search, target, warmup.library, *draws.both, child(stream, search.looks))
    else:
        found, library = ongoing.look_on(search, target, warmup.library, *draws.both, stream, share)
    spent = found.num_gradients - search.num_gradients
    state = state.with_learned(ongoing=found, warmup=warming.adopt(warmup, library))
    return state.charged(Gradients(search=spent))
