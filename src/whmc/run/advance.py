"""What advances a run after its warm-up: blocks of draws, the evidence. Each unit gives a new state."""

import dataclasses
import time
from collections.abc import Iterator
from functools import partial

import jax
import numpy as np

from whmc._shapes import Float
from whmc.estimate.alarms_of_density import FAILED_SHARE
from whmc.estimate.annealed_evidence import annealed_evidence, needs_annealing
from whmc.kernels.random import draw_noise
from whmc.kernels.settings import uses_scores
from whmc.keys import Stream, stream_key
from whmc.modes.mixture import NUM_UNIFORM, draw_mixture
from whmc.result import Gradients, Result, Timings
from whmc.run.chains import cost_of
from whmc.run.outcome import result_of
from whmc.run.prepare import mover_of
from whmc.run.progress import Progress
from whmc.run.regeneration import adaptive_blocks
from whmc.run.state import RunState
from whmc.search.ascents import MOST_GRADIENTS, find_basins
from whmc.storage.draws_file import DrawLog
from whmc.target.check import find_failure
from whmc.target.counted import counted
from whmc.target.noticed import at_bounds, slopeless
from whmc.target.target import Target

FAILURE_DRAWS = 1024
"""Draws of q among which a position is looked for where the density fails, and draws whose scores are looked at."""


BOUND_DRAWS = 100_000
"""Draws of which the distances to bounds are looked at, which costs no evaluation."""


def blocks(state: RunState, target: Target, log: DrawLog, progress: Progress) -> Iterator[RunState]:
    """The states after each block of draws, which are written to the log before."""
    if state.plan.adaptive:
        return adaptive_blocks(state, target, log, progress)
    return _frozen_blocks(state, target, log, progress)


def _frozen_blocks(state: RunState, target: Target, log: DrawLog, progress: Progress) -> Iterator[RunState]:
    """Blocks of a kernel that does not change."""
    plan, newest = state.plan, state.newest
    missing = plan.draws - state.moment.num_drawn
    progress.sampling(state.moment.num_drawn, plan.draws)  # speed is counted from here on
    began = time.perf_counter()
    for trace, chains in mover_of(state, target).blocks(state.chains, newest.kernel, newest.library, missing):
        log.append(trace)
        cost = cost_of(trace)
        state = state.at(chains=chains, num_drawn=state.moment.num_drawn + len(trace.logdensity))
        state = state.at(work=None, basins=None)
        now = time.perf_counter()
        state = state.charged(
            Gradients(sampling=cost.num_gradients), Timings(sampling=now - began), num_failed=cost.num_failed
        )
        began = now
        progress.take(trace, newest.library)
        progress.sampling(state.moment.num_drawn, plan.draws)
        yield state


def _with_evidence(state: RunState, target: Target, result: Result, progress: Progress) -> RunState:
    """The state with the evidence by annealing, if that by the bridge is not good enough."""
    if state.moment.work is not None or not needs_annealing(result.evidence) or not uses_scores(state.newest.kernel):
        return state
    began = time.perf_counter()
    key = stream_key(state.plan.seed, Stream.EVIDENCE)
    newest, tell = state.newest, partial(progress.say, "evidence", unit="annealed paths")
    work = annealed_evidence(target, newest.library, newest.kernel, result.draws, key, tell)
    seconds = Timings(evidence=time.perf_counter() - began)
    state = state.charged(Gradients(evidence=work.num_gradients), seconds)
    return state.at(work=work) if np.isfinite(work.se) else state


def _with_basins(state: RunState, target: Target, result: Result, progress: Progress) -> RunState:
    """The state with what ascents from the draws tell of the modes."""
    if state.moment.basins is not None:
        return state
    began = time.perf_counter()
    progress.say("modes", unit="ascents from draws")
    report, folded, before = state.search_report, target.fold is not None, state.moment.gradients
    # of a folded density the search knows other peaks than those of the density as it is written
    peaks = [] if report is None or folded else [peak for peak in report.state.peaks if peak.at_peak]

    with counted() as spent:
        basins = find_basins(
            target,
            state.newest.library,
            result.draws,
            result.chart,
            result.logdensity,
            peaks=peaks,
            weigh=result.weights_of,
            most=MOST_GRADIENTS * (before.search + before.warmup + before.sampling),
        )
    seconds = Timings(modes=time.perf_counter() - began)
    return state.charged(Gradients(modes=spent.num), seconds).at(basins=basins)


def _with_failure(state: RunState, target: Target) -> RunState:
    """The state with a position where the density fails, looked for among draws of q, if many evaluations did."""
    moment, library = state.moment, state.newest.library
    rare = moment.num_failed <= FAILED_SHARE * (moment.gradients.warmup + moment.gradients.sampling)
    if rare or moment.failed_at is not None:
        return state
    draws = jax.vmap(lambda noise: draw_mixture(noise.uniform, noise.normal, library)[1])
    keys = jax.random.split(stream_key(state.plan.seed, Stream.FAILURE), FAILURE_DRAWS)
    points = draws(jax.vmap(lambda key: draw_noise(key, NUM_UNIFORM, library.dim + 1))(keys))
    with counted() as spent:
        state = state.at(failed_at=find_failure(target, np.asarray(points)))
    return state.charged(Gradients(other=spent.num))


def _with_noticed(state: RunState, target: Target, draws: Float[np.ndarray, "chains draws dim"]) -> RunState:
    """The state with what some of the draws tell of the density: scores that fail, values at their bounds."""

    def thinned(most: int) -> Float[np.ndarray, "n dim"]:
        every = -(-draws.shape[0] * draws.shape[1] // most)
        return np.asarray(draws[:, ::every]).reshape(-1, target.dim)  # there may be more than fit into memory

    noticed = dataclasses.replace(state.moment.noticed, at_bound=at_bounds(target, thinned(BOUND_DRAWS)))
    with counted() as spent:
        if state.moment.num_failed and uses_scores(state.newest.kernel):
            share, at = slopeless(target, thinned(FAILURE_DRAWS))
            noticed = dataclasses.replace(noticed, slopeless=share, slopeless_at=at)
    return state.charged(Gradients(other=spent.num)).at(noticed=noticed)


def with_findings(state: RunState, target: Target, result: Result, progress: Progress) -> RunState:
    """The state with what is looked for after the last draw: evidence, modes, failures. result: without these."""
    progress.say("evidence", unit="by bridge sampling")
    state = _with_basins(_with_evidence(state, target, result, progress), target, result, progress)
    return _with_failure(_with_noticed(state, target, result.draws), target)


def finished(
    state: RunState, target: Target, log: DrawLog, settings: dict, progress: Progress
) -> tuple[RunState, Result]:
    """The last state of a run and its result."""
    state = with_findings(state, target, result_of(state, target, log, settings), progress)
    return state, result_of(state, target, log, settings)
