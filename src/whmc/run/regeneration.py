"""Adaptation at regenerations, while chains run (Algorithm 2): exact, for a chain only changes its kernel there.

Chains run with the kernel and library that they have. Meanwhile the search goes on by the residual energy, and visits
are counted. An update waits until a chain regenerates: that chain stops there, takes the new kernel, and starts afresh
from the new Q. A chain stops only if an update is waiting for it.
"""

import dataclasses
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from whmc._pytree import pytree
from whmc._shapes import Array, Bool, Float, Int
from whmc._words import counted
from whmc.kernels.base import AbstractKernel, ChainState, make_state
from whmc.kernels.block import Trace, regenerated
from whmc.kernels.cycle import moves
from whmc.kernels.independence import AbstractIndependence, Independence
from whmc.kernels.random import draw_noise
from whmc.kernels.settings import target_of, with_settings
from whmc.keys import Stream, child, stream_key
from whmc.modes.chart_data import log_weights_of, with_numbers
from whmc.modes.library import ModeLibrary
from whmc.modes.mixture import log_components_of, log_ratio_of
from whmc.modes.refine import with_best_dof, with_gaussian_base
from whmc.result import Gradients, Timings
from whmc.run.chains import Chains, Mover, cost_of, same_shapes
from whmc.run.prepare import compile_block, mover_of
from whmc.run.progress import Progress
from whmc.run.state import Adaptation, RunState, Version, behind, waits_for_modes
from whmc.search import ongoing
from whmc.storage.draws_file import DrawLog
from whmc.target.target import Target
from whmc.warmup.charts import fit_charts

RESTART_TRIES = 256
"""Proposals at a time for a draw from Q by rejection."""

LATE_BLOCKS = 20
"""Blocks beyond the draws asked for that a run goes on while a chain still lacks a mode that was found."""

PSEUDO_VISITS = 5
"""Visits that every mode is credited with on average, so that none is given up for good."""

Look = Callable[..., tuple[Any, ModeLibrary]]
"""(search, target, library, position, logdensity, key) -> (search, library with the charts that it added at the end)"""


@pytree
class RegenerationDraw:
    """States drawn from Q, whether each draw succeeded, and how many evaluations failed on the way."""

    states: ChainState
    drawn: Bool[Array, " chains"]
    num_failed: Int[Array, " chains"]


def require_adaptable(target: Target, kernel: AbstractKernel | None) -> None:
    """What adaptation at regenerations cannot do without."""
    if target.starts is None:
        raise ValueError("adapt='regeneration' searches the start region: give Target(..., starts=(low, high))")
    if kernel is not None and _independence(kernel) is None:
        raise ValueError(
            "adapt='regeneration' needs a kernel with Independence(): without it the chain never regenerates"
        )


def begin(state: RunState) -> RunState:
    """Before the first block: every chain has the warm-up's kernel, and no draws."""
    chains = state.chains
    adaptation = Adaptation(
        version=np.zeros(chains.num, int),
        segments=(np.zeros((0, 2), int),) * chains.num,
        next_refit=2 * chains.block_length,
        patience=LATE_BLOCKS,
    )
    return state.with_learned(versions=(state.newest,)).at(adaptation=adaptation)


def adaptive_blocks(
    state: RunState, target: Target, log: DrawLog, progress: Progress, look: Look = ongoing.look
) -> Iterator[RunState]:
    """Blocks until every chain has the draws asked for, and the modes that were found; the state after each."""
    if state.moment.adaptation is None:
        state = begin(state)
    while True:
        missing = state.plan.draws - _adaptation(state).num_draws
        active, num_steps = missing > 0, int(missing.max())
        if not active.any():
            if not waits_for_modes(state):
                return
            active, num_steps, before = behind(state), state.chains.block_length, _adaptation(state)
            state = state.at(adaptation=dataclasses.replace(before, patience=before.patience - 1))
        library = state.newest.library
        state = advance(state, target, log, active, num_steps, look)
        if not same_shapes(state.newest.library, library):
            state = compile_block(state, target, progress)
        known, regenerations = state.newest.library.num_modes, _adaptation(state).num_regenerations
        more = f"{counted(known, 'mode')} by charts, {regenerations} regenerations; longer if more are found"
        progress.sampling(state.moment.num_drawn, state.plan.draws, more)
        yield state


def advance(
    state: RunState,
    target: Target,
    log: DrawLog,
    active: Bool[np.ndarray, " chains"],
    num_steps: int,
    look: Look = ongoing.look,
) -> RunState:
    """One block of the active chains with the kernels they have; then updates are made, to wait."""
    began = time.perf_counter()
    mover, versions = mover_of(state, target), state.knowledge.versions
    before = _adaptation(state)
    for v in np.unique(before.version[active]).tolist():
        mine = active & (before.version == v)
        state, stopped = _block(state, mover, log, v, mine, min(num_steps, state.chains.block_length))
        if v < len(versions) - 1 and stopped.any():
            state = _restart(state, target, log, stopped)
    adaptation = dataclasses.replace(_adaptation(state), period=before.period + 1)
    drawn = min(state.plan.draws, int(adaptation.num_draws.min()))
    state = state.at(adaptation=adaptation, num_drawn=drawn, work=None, basins=None)
    if adaptation.num_regenerations > before.num_regenerations:
        state = _search(state, target, log, look)
    state = _refit(state, log)
    return state.charged(seconds=Timings(sampling=time.perf_counter() - began))


def gather(state: RunState, log: DrawLog) -> Trace:
    """The draws that count as one trace, (draws, chains, ...), of all chains as many."""
    library, segments = state.newest.library, _adaptation(state).segments
    num = min(state.plan.draws, int(_adaptation(state).num_draws.min()))
    chains = [jax.tree.map(lambda rows: rows[:num], _read(log, rows)) for rows in segments]
    trace = jax.tree.map(lambda *columns: np.stack(columns, axis=1), *chains)
    # charts have changed on the way: what is reported is seen from the newest
    label = log_components_of(library, trace.position.reshape(-1, library.dim)).argmax(axis=0)
    return dataclasses.replace(trace, label=label.reshape(trace.label.shape))


def positions(state: RunState, log: DrawLog) -> list[Float[np.ndarray, "n dim"]]:
    """The draws of each chain that count so far."""
    return [_read(log, rows).position for rows in _adaptation(state).segments]


def _adaptation(state: RunState) -> Adaptation:
    assert state.moment.adaptation is not None
    return state.moment.adaptation


def _read(log: DrawLog, segments: Int[np.ndarray, "parts 2"]) -> Trace:
    """The rows of a chain in one piece."""
    parts = [log.read(int(start), int(num)) for start, num in segments if num]
    return jax.tree.map(lambda *rows: np.concatenate(rows), *parts)


def _block(
    state: RunState, mover: Mover, log: DrawLog, v: int, mine: Bool[np.ndarray, " chains"], num_steps: int
) -> tuple[RunState, Bool[np.ndarray, " chains"]]:
    """One block of the chains that have version v, their draws written down; and which stopped for an update."""
    version, adaptation = state.knowledge.versions[v], _adaptation(state)
    waits = v < len(state.knowledge.versions) - 1
    chains = state.chains.seen_from(version.library)
    block = mover.dispatch(chains, version.kernel, version.library, num_steps, active=mine, update_waits=waits)
    trace, made = jax.tree.map(np.asarray, block.trace), np.asarray(block.made)
    ran = np.arange(state.chains.block_length)[:, None] < made
    flags = regenerated(trace.info) & ran
    segments = list(adaptation.segments)
    for c in np.flatnonzero(mine).tolist():
        start = log.append(jax.tree.map(lambda rows, c=c: rows[: made[c], c], trace))
        segments[c] = np.concatenate([segments[c], [[start, made[c]]]])
    cost = cost_of(trace, ran)
    adaptation = dataclasses.replace(
        adaptation,
        segments=tuple(segments),
        num_regenerations=adaptation.num_regenerations + int(flags.sum()),
    )
    state = state.at(chains=block.chains, adaptation=adaptation)
    state = state.charged(Gradients(sampling=cost.num_gradients), num_failed=cost.num_failed)
    last = flags[np.maximum(made - 1, 0), np.arange(len(mine))]
    return state, mine & (made > 0) & last


def _restart(state: RunState, target: Target, log: DrawLog, stopped: Bool[np.ndarray, " chains"]) -> RunState:
    """Chains that regenerated take the newest kernel and a state from its Q, in place of the one they had."""
    kernel, library = state.newest.kernel, state.newest.library
    adaptation, chains, num = _adaptation(state), state.chains, state.chains.num
    move = _independence(kernel)
    assert move is not None, "no other move regenerates"
    # a period may see several versions restart: their draws of Q must differ
    key = stream_key(state.plan.seed, Stream.RESTART)
    key = child(child(key, adaptation.period), int(adaptation.version[stopped].max()))
    threshold = jnp.asarray(move.log_threshold)
    drawn = draw_restart(key, target_of(kernel, target), library, threshold, move, num=num)
    failed = int(np.sum(drawn.num_failed))
    state = state.charged(Gradients(sampling=num * RESTART_TRIES), num_failed=failed)
    # where Q is too hard to draw from the old kernel goes on, which is also exact
    taken = stopped & np.asarray(drawn.drawn)
    if not taken.any():
        return state
    before = chains.seen_from(library).states  # the library may have grown
    states = jax.tree.map(
        lambda new, old: np.where(taken.reshape(-1, *[1] * (old.ndim - 1)), new, old), drawn.states, before
    )
    segments, version = list(adaptation.segments), adaptation.version.copy()
    for c in np.flatnonzero(taken).tolist():
        fresh = jax.tree.map(lambda rows, c=c: rows[c], drawn.states)
        known = state.knowledge.versions[version[c]].library.size
        segments[c] = _restarted(segments[c], log, fresh, forget=library.size > known)
        version[c] = len(state.knowledge.versions) - 1
    adaptation = dataclasses.replace(adaptation, segments=tuple(segments), version=version)
    return state.at(chains=Chains.of(states, chains.made), adaptation=adaptation)


def _restarted(
    segments: Int[np.ndarray, "parts 2"], log: DrawLog, state: ChainState, *, forget: bool
) -> Int[np.ndarray, "more 2"]:
    """A chain's rows with the draw from the new Q in place of its last.

    forget: draws from before a mode was known say nothing about it, and do not count.
    """
    start, num = segments[-1]
    last = log.read(int(start + num - 1), 1)
    row = Trace(
        np.asarray(state.position)[None],
        np.asarray(state.logdensity)[None],
        np.asarray(state.log_mixture)[None],
        np.asarray(jnp.argmax(state.log_components))[None],
        last.info,
    )
    kept = segments[:0] if forget else np.concatenate([segments[:-1], [[start, num - 1]]])
    return np.concatenate([kept, [[log.append(row), 1]]])


def _search(state: RunState, target: Target, log: DrawLog, look: Look) -> RunState:
    """One more look; what it finds waits as an update."""
    learned, library = state.knowledge, state.newest.library
    search = learned.ongoing
    assert search is not None
    stream = stream_key(state.plan.seed, Stream.ONGOING_SEARCH)
    key = child(stream, search.looks)
    found, grown = look(search, target, library, *_recent(state, log), key)
    state = state.with_learned(ongoing=found).charged(Gradients(search=found.num_gradients - search.num_gradients))
    return _update(state, log, grown) if grown.size > library.size else state


def _refit(state: RunState, log: DrawLog) -> RunState:
    """Charts from all draws, each time that they have doubled and no update waits."""
    adaptation = _adaptation(state)
    waits = bool(np.any(adaptation.version < len(state.knowledge.versions) - 1))
    if waits or adaptation.num_draws.min() < adaptation.next_refit:
        return state
    state = state.at(adaptation=dataclasses.replace(adaptation, next_refit=2 * adaptation.next_refit))
    return _update(state, log, _by_visits(state, log))


def _by_visits(state: RunState, log: DrawLog) -> ModeLibrary:
    """Charts from all draws of each mode, weights of modes by visits (section 4.1), a few pseudo-visits for each."""
    library = with_gaussian_base(state.newest.library)
    parts = [_read(log, rows) for rows in _adaptation(state).segments]
    position, logdensity, label = (
        np.concatenate([getattr(part, name) for part in parts]) for name in ("position", "logdensity", "label")
    )
    charts = library.charts()
    mode, total = library.mode_of, library.mode_weights()
    visits = np.bincount(mode[label], minlength=len(total)) + PSEUDO_VISITS * len(total) * total
    log_weight = log_weights_of(charts) + np.log(visits / total)[mode]
    fitted = fit_charts(charts, library, position, logdensity, label)
    return with_best_dof(library.with_charts(with_numbers(fitted, log_weight=log_weight)), position)


def _update(state: RunState, log: DrawLog, library: ModeLibrary) -> RunState:
    """A new version of the kernel, which waits for the chains to regenerate."""
    threshold = float(np.median(log_ratio_of(library, *_recent(state, log))))
    version = Version(with_settings(state.newest.kernel, log_threshold=threshold), library)
    return state.with_learned(versions=(*state.knowledge.versions, version))


class _Recent(NamedTuple):
    position: Float[np.ndarray, "n dim"]
    logdensity: Float[np.ndarray, " n"]


def _recent(state: RunState, log: DrawLog) -> _Recent:
    """Draws of the last block of each chain."""
    last = [log.read(*map(int, rows[-1])) for rows in _adaptation(state).segments if len(rows)]
    return _Recent(np.concatenate([part.position for part in last]), np.concatenate([part.logdensity for part in last]))


def _independence(kernel: AbstractKernel) -> AbstractIndependence | None:
    """The move of the kernel that regenerates."""
    return next((move for move in moves(kernel) if isinstance(move, AbstractIndependence)), None)


@partial(jax.jit, static_argnames="num")
def draw_restart(
    key: Array,
    target: Target,
    library: ModeLibrary,
    log_threshold: Float[Array, ""],
    kernel: AbstractIndependence = Independence(),
    *,
    num: int,
) -> RegenerationDraw:
    """Q of Eq. (12) [TSQ:Q] by rejection: theta ~ q of the kernel, kept with probability min(1, w/c)."""
    num_uniform, num_normal = kernel.num_proposal(library)

    def one(key: Array) -> tuple[ChainState, Bool[Array, ""], Bool[Array, ""]]:
        noise = draw_noise(key, num_uniform + 1, num_normal)
        position, drawn = kernel.propose(noise, library)
        state, failed = make_state(position, target, library)
        return state, drawn & (jnp.log(noise.uniform[-1]) < kernel.log_ratio(state, library) - log_threshold), failed

    def chain(key: Array) -> tuple[ChainState, Bool[Array, ""], Int[Array, ""]]:
        states, kept, failed = jax.vmap(one)(jax.random.split(key, RESTART_TRIES))
        first = jnp.argmax(kept)
        return jax.tree.map(lambda rows: rows[first], states), kept[first], jnp.sum(failed)

    return RegenerationDraw(*jax.lax.map(chain, jax.random.split(key, num)))
