"""Up to the first draw that counts: the search for modes, then the warm-up, one round at a time."""

import dataclasses
import time
from collections.abc import Callable, Iterator
from functools import partial

import numpy as np

from whmc._shapes import Float
from whmc.kernels.base import AbstractKernel
from whmc.kernels.settings import arrays, default_kernel
from whmc.keys import Stream, child, children, generator, stream_key
from whmc.modes.chart_data import locations_of, log_weights_of
from whmc.modes.library import ModeLibrary
from whmc.result import Gradients, Timings
from whmc.run.ahead import CompileAhead, with_room
from whmc.run.chains import Mover, cost_of, same_shapes
from whmc.run.plan import Inputs, Plan
from whmc.run.progress import Progress
from whmc.run.state import Learned, RunState, Stage
from whmc.search import ongoing
from whmc.search.doing import Doing
from whmc.search.effort import Effort
from whmc.search.find import search_modes
from whmc.search.mode_search import SearchState
from whmc.search.ongoing import OngoingSearch
from whmc.search.report import SearchReport
from whmc.target.counted import counted
from whmc.target.proper import can_be_followed, improper_ends
from whmc.target.rows import logdensities
from whmc.target.target import Target
from whmc.warmup import warmup as warming
from whmc.warmup.warmup import Draws, round_lengths


def mover_of(state: RunState, target: Target) -> Mover:
    """What moves the chains of a run."""
    return Mover(target, stream_key(state.plan.seed, Stream.CHAINS))


def prepare(state: RunState, target: Target, progress: Progress) -> RunState:
    """All of the search and the warm-up."""
    for reached in preparations(state, target, progress):
        state = reached
    return state


def preparations(state: RunState, target: Target, progress: Progress) -> Iterator[RunState]:
    """The states up to the first draw that counts."""
    ahead = CompileAhead(mover_of(state, target), state.plan, state.inputs)
    if state.stage is Stage.SEARCH:
        state = find_and_start(state, target, progress, ahead)
        yield state
    if state.stage is not Stage.COMPLETE:
        state = compile_block(state, target, progress)
        ahead.warn()
        yield state
    while state.stage is Stage.WARMUP:
        state = warm_up(state, target, progress)
        yield state


def find_and_start(state: RunState, target: Target, progress: Progress, ahead: CompileAhead) -> RunState:
    """The modes, and chains at them; the block is compiled beside the search."""
    with counted() as spent:
        state = _found_and_started(state, target, progress, ahead)
    report = state.knowledge.report
    searching = 0 if report is None else report.num_gradients
    return state.charged(Gradients(search=searching, other=spent.num - searching))


def _found_and_started(state: RunState, target: Target, progress: Progress, ahead: CompileAhead) -> RunState:
    plan, inputs = state.plan, state.inputs
    began = time.perf_counter()
    report, searching = None, inputs.library is None or inputs.finder is not None
    progress.say("search" if searching else "compile", unit="compiling the density" if searching else "the density")
    state = _look_at_ends(state, target)
    if searching:
        effort = plan.effort if inputs.finder is None else Effort()

        def tell(search: SearchState, doing: Doing) -> None:
            progress.searching(search, doing, effort.most)
            ahead.guess(search)

        report = search_modes(
            target,
            seed=plan.seed,
            finder=inputs.finder,
            known=inputs.library,
            max_modes=plan.max_modes,
            effort=effort,
            tell=tell,
        )
        searched = time.perf_counter()
        if ahead.running:
            _say_compile(progress)
        ahead.wait()
        seconds = Timings(search=searched - began, compile=time.perf_counter() - searched)
        state = state.charged(seconds=seconds)
        began = time.perf_counter()
    library = inputs.library if report is None else report.library
    assert library is not None
    # what the user has set as a limit is one for all of the search
    looking = plan.adaptive or (plan.search is None and ongoing.wanted(report))
    library = with_room(target, library, plan, looking)
    # a run that goes on looking may find the second mode later: it needs the jump from the start
    num_modes = max(2, library.size) if looking else library.size
    kernel = inputs.kernel or default_kernel(num_modes, scores=target.has_gradient)
    warmup = warming.begin(arrays(kernel), library, fixed=inputs.kernel is not None)
    chains, num_failed = mover_of(state, target).start(warmup.library, _positions(plan, inputs, library, report))
    search = ongoing.begin(target, warmup.library, report, plan.max_modes) if looking else None
    seconds = Timings(prepare=time.perf_counter() - began)
    state = state.at(chains=chains).charged(seconds=seconds, num_failed=num_failed)
    return RunState(plan, inputs, Learned(report, search, warmup), state.moment)


NUM_LOOKED_AT = 64
"""Points of which two are looked at from afar: one call, and a few of them have a density."""


def _look_at_ends(state: RunState, target: Target) -> RunState:
    """The state with the ends of coordinates along which the density has no finite integral; an error where a
    coordinate has no bound either, so that chains would run to the limits of float64.

    The lines go through starts, or draws of the charts that were given: their locations may be special points.
    """
    if not can_be_followed(target):
        return state
    key_points, key_axes = children(stream_key(state.plan.seed, Stream.ENDS), 2)
    if state.inputs.library is None:
        points = target.draw_starts(key_points, NUM_LOOKED_AT)
    else:
        points = _draws_of_charts(state.inputs.library, generator(key_points))
    ends, _, _ = improper_ends(target, partial(logdensities, target), points, generator(key_axes))
    endless = [end.told for end in ends if end.endless]
    if endless:
        raise ValueError(
            f"the log density does not fall off along {' or '.join(endless)}, so it is not a density that can be "
            "normalised (it is improper): give the parameters bounds, Target(..., bounds=...), or a prior that falls "
            "off; look at print(target.check())"
        )
    noticed = dataclasses.replace(state.moment.noticed, improper=tuple(end.told for end in ends))
    return state.at(noticed=noticed)


def _draws_of_charts(library: ModeLibrary, rng: np.random.Generator) -> Float[np.ndarray, "n dim"]:
    """Gaussian draws, of the heaviest charts as many each."""
    charts = library.charts()
    chosen = np.resize(np.argsort(-log_weights_of(charts), kind="stable")[:NUM_LOOKED_AT], NUM_LOOKED_AT).tolist()
    z = rng.standard_normal((NUM_LOOKED_AT, library.dim))
    return np.stack([charts[k].location + charts[k].scale.forward(row)[0] for k, row in zip(chosen, z, strict=True)])


def _positions(
    plan: Plan, inputs: Inputs, library: ModeLibrary, report: SearchReport | None
) -> Float[np.ndarray, "chains dim"]:
    """Where the chains start: the modes in turn, unless told."""
    if inputs.initial is not None:
        return inputs.initial
    if report is not None:
        return report.starts[np.arange(plan.chains) % library.size]
    starts = locations_of(library.charts())[~library.wide]  # the home of a ring lies in its hollow
    return starts[np.arange(plan.chains) % len(starts)]


def compile_block(state: RunState, target: Target, progress: Progress) -> RunState:
    """The one compiled function of the run, made before it is needed so that its seconds are known, and once for all
    groups of chains."""
    began = time.perf_counter()
    _say_compile(progress)
    for kernel, library in _blocks_of(state):
        mover_of(state, target).compile(state.chains.seen_from(library), kernel, library)
    return state.charged(seconds=Timings(compile=time.perf_counter() - began))


def _blocks_of(state: RunState) -> list[tuple[AbstractKernel, ModeLibrary]]:
    """One kernel and library of each shape that chains use, or will use next."""
    adaptation, newest = state.moment.adaptation, state.newest
    used = [] if adaptation is None else [state.knowledge.versions[v] for v in np.unique(adaptation.version).tolist()]
    found = [(newest.kernel, newest.library)]
    for version in used:
        if not any(same_shapes(version.library, library) for _, library in found):
            found.append((version.kernel, version.library))
    return found


def _say_compile(progress: Progress) -> None:
    progress.say("compile", unit="the steps of the chains; seconds, for a large model minutes")


def warm_up(state: RunState, target: Target, progress: Progress) -> RunState:
    """One round, and a look for more modes after it."""
    began = time.perf_counter()
    mover, learned, chains = mover_of(state, target), state.knowledge, state.chains
    lengths, done = round_lengths(state.plan.warmup), learned.rounds
    trials = warming.plan_round(learned.warmup, lengths[done])
    traces, made = [], sum(lengths[:done])
    # nothing is looked for after the last round, so its pause is not like the others
    pauses = len(lengths) - done - isinstance(learned.ongoing, OngoingSearch)
    say = partial(progress.say, "warm-up", most=state.plan.warmup, unit="steps", pauses=pauses)
    say(made)
    for trial in trials:
        tell = partial(_tell, say, made)
        trace, chains = mover.steps(chains, trial.kernel, learned.warmup.library, trial.num_steps, tell)
        cost, made = cost_of(trace), made + trial.num_steps
        state = state.charged(Gradients(warmup=cost.num_gradients), num_failed=cost.num_failed)
        traces.append(trace)
    say(made, more="tuning")
    warmup, draws = warming.learn(learned.warmup, trials, traces, len(lengths) - 1 - done)
    state = state.with_learned(warmup=warmup, rounds=done + 1)
    if isinstance(learned.ongoing, OngoingSearch) and done < len(lengths) - 1:  # the last round tunes what is frozen
        say(made, more="looking for more modes")
        state = _look(state, learned.ongoing, target, draws, (done + 1) / (len(lengths) - 1))
    library = state.newest.library
    state = state.at(chains=chains.seen_from(library))
    state = state.charged(seconds=Timings(warmup=time.perf_counter() - began))
    return state if same_shapes(library, learned.warmup.library) else compile_block(state, target, progress)


def _tell(say: Callable[[int], None], before: int, num: int) -> None:
    say(before + num)


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
