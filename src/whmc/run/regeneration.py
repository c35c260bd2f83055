"""Adaptation at regenerations, while chains run (Algorithm 2): exact, for a chain only changes its kernel there.

Chains run with the kernel and library that they have. Meanwhile the lookout searches by the residual energy, and
visits are counted. An update waits until a chain regenerates: that chain stops there, takes the new kernel, and
starts afresh from the new Q. A chain that no update waits for never stops.
"""

import dataclasses
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from whmc._pytree import pytree
from whmc.kernels.base import AbstractKernel, ChainState, make_state
from whmc.kernels.block import Trace, refresh_all, regenerated
from whmc.kernels.independence import AbstractIndependence, Independence
from whmc.kernels.random import draw_noise
from whmc.kernels.settings import moves, with_settings
from whmc.keys import Stream, stream_key
from whmc.modes.library import ModeLibrary
from whmc.modes.mixture import log_components_of, log_ratio_of
from whmc.modes.refine import with_best_dof
from whmc.run.chains import Chains
from whmc.search import ongoing
from whmc.search.report import SearchReport
from whmc.target.target import Target
from whmc.warmup.tuning import Charts, fit_charts

Place = tuple[int, int]
"""Where a part of a chain's draws was written down, and how many they are."""

TRIES = 256
"""Proposals at a time for a draw from Q by rejection."""

COUNTERS = ("period", "num_updates", "num_regenerations", "next_refit", "patience")

PATIENCE = 20
"""Blocks beyond the draws asked for that a run goes on while a chain still lacks a mode that was found."""


@runtime_checkable
class Looks(Protocol):
    """What looks for modes while chains run, such as `ResidualLooks`."""

    def look(
        self, library: ModeLibrary, position: Float[np.ndarray, "n dim"], logdensity: Float[np.ndarray, " n"]
    ) -> ModeLibrary:
        """The library with the charts that one more look adds at its end, given some draws."""


class ResidualLooks:
    """The search that goes on, for those who hold it in one place; all that changes is `state`."""

    def __init__(
        self, target: Target, library: ModeLibrary, report: SearchReport | None, seed: int, max_modes: int
    ) -> None:
        self.target, self.stream = target, stream_key(seed, Stream.ONGOING_SEARCH)
        self.state = ongoing.begin(target, library, report, max_modes)

    def look(
        self, library: ModeLibrary, position: Float[np.ndarray, "n dim"], logdensity: Float[np.ndarray, " n"]
    ) -> ModeLibrary:
        key = jax.random.fold_in(self.stream, self.state.looks)
        self.state, library = ongoing.look(self.state, self.target, library, position, logdensity, key)
        return library

    def look_on(
        self,
        library: ModeLibrary,
        position: Float[np.ndarray, "n dim"],
        logdensity: Float[np.ndarray, " n"],
        share: float,
    ) -> ModeLibrary:
        self.state, library = ongoing.look_on(
            self.state, self.target, library, position, logdensity, self.stream, share
        )
        return library


@pytree
class Restart:
    """States drawn from Q, and whether each draw succeeded."""

    states: ChainState
    drawn: Bool[Array, " chains"]


def require_adaptable(target: Target, kernel: AbstractKernel | None) -> None:
    """What adaptation at regenerations cannot do without."""
    if target.starts is None:
        raise ValueError("adapt='regeneration' searches the start region: give Target(..., starts=(low, high))")
    if kernel is not None and _independence(kernel) is None:
        raise ValueError("adapt='regeneration' needs a kernel with Independence(): there are no regenerations else")


class Adaptation:
    """Sampling with updates at regenerations. `kernel` and `library` are the newest.

    keep: is given every part of a chain's draws, to write it down, and tells where; `places` lists those that count.
    """

    def __init__(
        self,
        run: Chains,
        kernel: AbstractKernel,
        library: ModeLibrary,
        lookout: Looks,
        seed: int,
        keep: Callable[[Trace], int] = lambda part: 0,
    ) -> None:
        self.run, self.lookout = run, lookout
        self.versions = [(kernel, library)]
        self.version = np.zeros(run.num, int)
        self.rows: list[list[Trace]] = [[] for _ in range(run.num)]
        self.places: list[list[Place]] = [[] for _ in range(run.num)]
        self.keep = keep
        self.key = jax.random.fold_in(jax.random.key(seed), 3)  # others: the chains', the search's, the lookout's
        self.period = self.num_updates = self.num_regenerations = 0
        self.next_refit, self.patience = 2 * run.length, PATIENCE

    @property
    def kernel(self) -> AbstractKernel:
        return self.versions[-1][0]

    @property
    def library(self) -> ModeLibrary:
        return self.versions[-1][1]

    @property
    def behind(self) -> Bool[np.ndarray, " chains"]:
        """Chains that do not know a mode that was found."""
        return np.array([self.versions[v][1].size < self.library.size for v in self.version])

    @property
    def num_behind(self) -> int:
        return int(self.behind.sum())

    def sample(self, num_draws: int) -> Iterator[int]:
        """Blocks until every chain has `num_draws` draws that count; yields how many all have after each."""
        while True:
            missing = num_draws - np.array([_total(rows) for rows in self.rows])
            short = missing > 0
            if not short.any():
                behind = self.behind
                if not behind.any() or self.patience == 0:
                    return
                self.patience -= 1
                short = behind
            self.advance(short, int(np.max(missing, initial=0)) or self.run.length)
            yield min(map(_total, self.rows))

    def trace(self, num_draws: int) -> Trace:
        """The draws that count, at most `num_draws` of each chain, of all as many."""
        return gather(self.rows, self.library, num_draws)

    def advance(self, active: Bool[np.ndarray, " chains"], num_steps: int) -> None:
        """One block of the active chains with the kernels they have; then updates are made, to wait."""
        newest = len(self.versions) - 1
        before = self.num_regenerations
        for v in np.unique(self.version[active]):
            mine = active & (self.version == v)
            kernel, library = self.versions[v]
            length = min(num_steps, self.run.length)
            trace, made = self.run.block(kernel, library, length, mine, bool(v < newest))
            flags = regenerated(trace.info)
            for c in np.flatnonzero(mine).tolist():
                self._add(c, jax.tree.map(lambda part, c=c, n=made[c]: part[:n, c], trace))
                self.num_regenerations += int(flags[: made[c], c].sum())
            if v < newest:
                stopped = mine & (made > 0) & flags[np.maximum(made - 1, 0), np.arange(self.run.num)]
                self._restart(stopped)
        self.period += 1
        if self.num_regenerations > before:
            self._search()
        if not np.any(self.version < len(self.versions) - 1) and min(map(_total, self.rows)) >= self.next_refit:
            self.next_refit *= 2
            self._update(self._by_visits())

    def state(self) -> dict[str, Any]:
        """Where the chains and updates are, to be stored beside the draws and the versions."""
        return {name: getattr(self, name) for name in COUNTERS} | {
            "version": self.version,
            "num_behind": self.num_behind,
            "places": [np.array(places, int).reshape(-1, 2) for places in self.places],
        }

    def restore(
        self,
        state: dict[str, Any],
        versions: list[tuple[AbstractKernel, ModeLibrary]],
        read: Callable[[slice], Trace],
    ) -> None:
        """As it was after a block; `read` gives the draws that were written down."""
        for name in COUNTERS:
            setattr(self, name, state[name])
        self.versions, self.version = versions, state["version"]
        self.places = [[(int(at), int(num)) for at, num in places] for places in state["places"]]
        self.rows = [[read(slice(at, at + num)) for at, num in places] for places in self.places]

    def positions(self) -> list[Float[np.ndarray, "n dim"]]:
        """The draws so far, of each chain."""
        return [np.concatenate([part.position for part in rows]) for rows in self.rows]

    def _restart(self, stopped: Bool[np.ndarray, " chains"]) -> None:
        """Chains that regenerated take the newest kernel and a state from its Q, in place of the one they had."""
        if not stopped.any():
            return
        kernel, library = self.versions[-1]
        key = jax.random.fold_in(self.key, self.period)
        move = _independence(kernel)
        assert move is not None, "no other move regenerates"
        threshold = jnp.asarray(move.log_threshold)
        restart = _draw_restart(key, self.run.target, library, threshold, move, num=self.run.num)
        # where Q is too hard to draw from the old kernel goes on, which is also exact
        taken = stopped & np.asarray(restart.drawn)
        if not taken.any():
            return
        before = self.run.states
        if before.log_components.shape[1] != library.capacity:  # the library has grown
            before = refresh_all(before, library)
        states = jax.tree.map(
            lambda new, old: jnp.where(jnp.asarray(taken).reshape(-1, *[1] * (old.ndim - 1)), new, old),
            restart.states,
            before,
        )
        self.run.states = states
        for c in np.flatnonzero(taken).tolist():
            row = _restarted(self.rows[c][-1], jax.tree.map(lambda part, c=c: part[c], restart.states))
            if library.size > self.versions[self.version[c]][1].size:
                self.rows[c], self.places[c] = [], []  # draws from before a mode was known say nothing about it
            else:
                start, num = self.places[c][-1]
                self.rows[c][-1], self.places[c][-1] = _all_but_last(self.rows[c][-1]), (start, num - 1)
            self._add(c, row)
            self.version[c] = len(self.versions) - 1

    def _add(self, chain: int, part: Trace) -> None:
        """More draws of a chain."""
        self.rows[chain].append(part)
        self.places[chain].append((self.keep(part), _length(part)))

    def _search(self) -> None:
        """One more look; what it finds waits as an update."""
        library = self.lookout.look(self.library, *self._recent())
        if library.size > self.library.size:
            self._update(library)

    def _by_visits(self) -> ModeLibrary:
        """Charts from all draws of each label, weights by visits (section 4.1), a few pseudo-visits for each chart."""
        library = self.library
        position = np.concatenate(self.positions())
        logdensity = np.concatenate([part.logdensity for rows in self.rows for part in rows])
        label = np.concatenate([part.label for rows in self.rows for part in rows])
        location, scale, log_weight, step_size = library.charts()
        visits = np.bincount(label, minlength=library.size) + 5 * library.size * np.exp(log_weight)
        charts = fit_charts(Charts(location, scale), position, logdensity, label)
        weighed = library.with_charts(charts.location, charts.scale, log_weight=np.log(visits), step_size=step_size)
        return with_best_dof(weighed, position)

    def _update(self, library: ModeLibrary) -> None:
        """A new version of the kernel, which waits for the chains to regenerate."""
        position, logdensity = self._recent()
        threshold = float(np.median(log_ratio_of(library, position, logdensity)))
        self.versions.append((with_settings(self.kernel, log_threshold=threshold), library))
        self.num_updates += 1

    def _recent(self) -> tuple[Float[np.ndarray, "n dim"], Float[np.ndarray, " n"]]:
        """Draws of the last block of each chain."""
        last = [rows[-1] for rows in self.rows if rows]
        return np.concatenate([part.position for part in last]), np.concatenate([part.logdensity for part in last])


def gather(rows: list[list[Trace]], library: ModeLibrary, num_draws: int) -> Trace:
    """Parts of each chain as one trace, (draws, chains, ...), of all chains as many draws."""
    num = min(num_draws, *map(_total, rows))
    chains = [jax.tree.map(lambda *parts: np.concatenate(parts)[:num], *parts) for parts in rows]
    trace = jax.tree.map(lambda *columns: np.stack(columns, axis=1), *chains)
    # charts have changed on the way: what is reported is seen from the newest
    label = log_components_of(library, trace.position.reshape(-1, library.dim)).argmax(axis=0)
    return dataclasses.replace(trace, label=label.reshape(trace.label.shape))


def _length(part: Trace) -> int:
    return len(part.logdensity)


def _total(rows: list[Trace]) -> int:
    return sum(map(_length, rows))


def _all_but_last(part: Trace) -> Trace:
    return jax.tree.map(lambda rows: rows[:-1], part)


def _restarted(part: Trace, state: ChainState) -> Trace:
    """The row of the regeneration, with the draw from the new Q in place of the old one."""
    row = jax.tree.map(lambda rows: rows[-1:], part)
    return Trace(
        np.asarray(state.position)[None],
        np.asarray(state.logdensity)[None],
        np.asarray(state.log_mixture)[None],
        np.asarray(jnp.argmax(state.log_components))[None],
        row.info,
    )


def _independence(kernel: AbstractKernel) -> AbstractIndependence | None:
    """The move of the kernel that regenerates."""
    return next((move for move in moves(kernel) if isinstance(move, AbstractIndependence)), None)


@partial(jax.jit, static_argnames="num")
def _draw_restart(
    key: Array,
    target: Target,
    library: ModeLibrary,
    log_threshold: Float[Array, ""],
    kernel: AbstractIndependence = Independence(),  # noqa: B008 - it is frozen
    *,
    num: int,
) -> Restart:
    """Q of Eq. (12) [TSQ:Q] by rejection: theta ~ q of the kernel, kept with probability min(1, w/c)."""
    num_uniform, num_normal = kernel.num_proposal(library)

    def one(key: Array) -> tuple[ChainState, Bool[Array, ""]]:
        noise = draw_noise(key, num_uniform + 1, num_normal)
        position, drawn = kernel.propose(noise, library)
        state, _ = make_state(position, target, library)
        return state, drawn & (jnp.log(noise.uniform[-1]) < kernel.log_ratio(state, library) - log_threshold)

    def chain(key: Array) -> tuple[ChainState, Bool[Array, ""]]:
        states, kept = jax.vmap(one)(jax.random.split(key, TRIES))
        first = jnp.argmax(kept)
        return jax.tree.map(lambda rows: rows[first], states), kept[first]

    return Restart(*jax.lax.map(chain, jax.random.split(key, num)))
