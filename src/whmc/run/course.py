"""The course of a run: search, warm-up in rounds, sampling in blocks; each stage can be stored and taken up again.

Everything that follows is a function of what a checkpoint holds, and random numbers belong to seed, chain and step: so
a run that was stopped anywhere and resumed gives the same draws, bit by bit, as one that was not.
"""

import contextlib
import dataclasses
import time
from collections.abc import Generator, Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from whmc.estimate.evidence import Evidence
from whmc.kernels.base import AbstractKernel
from whmc.kernels.block import Trace
from whmc.kernels.settings import arrays, default_kernel, infos, move_names
from whmc.modes.library import ModeLibrary
from whmc.modes.refine import room_to_split
from whmc.result import Result, Timings
from whmc.run.chains import Chains, Moment
from whmc.run.checkpoint import setup_of, state_of
from whmc.run.interrupt import Interrupt
from whmc.run.progress import Progress
from whmc.run.regeneration import Adaptation, ResidualLooks
from whmc.search.find import MAX_MODES, search_modes
from whmc.search.finders import AbstractFinder
from whmc.search.ongoing import report_of, wanted
from whmc.search.report import SearchReport
from whmc.storage.draws_file import Record
from whmc.storage.store import Store
from whmc.target.target import Target
from whmc.warmup.warmup import WarmUp, round_lengths


@dataclasses.dataclass(frozen=True)
class Plan:
    """What was asked for, in plain numbers; see `sample`."""

    adapt: str = "warmup"
    max_modes: int = MAX_MODES
    seed: int = 0
    chains: int = 16
    draws: int = 1000
    warmup: int = 500


class Course:
    """A run, from the search to its last draw. Inside `jax.enable_x64(True)`."""

    def __init__(
        self,
        target: Target,
        plan: Plan,
        *,
        known: ModeLibrary | None = None,
        finder: AbstractFinder | Sequence[AbstractFinder] | None = None,
        kernel: AbstractKernel | None = None,
        initial: np.ndarray | None = None,
        progress: Progress | None = None,
        store: Store | None = None,
        settings: dict[str, Any] | None = None,
    ) -> None:
        self.target, self.plan, self.store, self.settings = target, plan, store, settings or {}
        self.known, self.finder, self.given, self.initial = known, finder, kernel, initial
        self.progress = progress or Progress(False)
        self.stage, self.round, self.warm_gradients = "search", 0, 0
        self.seconds = {field.name: 0.0 for field in dataclasses.fields(Timings)}
        self.search: SearchReport | None = None
        self.lookout: ResidualLooks | None = None
        self.adaptation: Adaptation | None = None
        self.parts: list[Trace] = []  # without a store
        self.record: Record | None = None
        self.num_drawn = 0
        self.work: Evidence | None = None
        self.saved: tuple[Any, ...] = ()
        self.run: Chains
        self.warm: WarmUp

    def prepare(self) -> "Course":
        """Everything up to the first draw that counts."""
        if self.stage == "search":
            self._search()
        with self._timed("compile"):
            self.run.compile(self.warm.kernel, self.warm.library)
        lengths = round_lengths(self.plan.warmup)
        while self.round < len(lengths):
            with self._timed("warmup"):
                self._warm_up(lengths)
            self.round += 1
            self.save()
        if self.stage == "warm-up":
            self.stage, self.warm_gradients = "sampling", self.run.num_gradients
            self.save()
        return self

    def _search(self) -> None:
        """The modes, and chains at them."""
        with self._timed("search"):
            library = self.known
            if library is None or self.finder is not None:
                self.progress.say("search", 0, 1)
                self.search = search_modes(
                    self.target,
                    seed=self.plan.seed,
                    finder=self.finder,
                    known=self.known,
                    max_modes=self.plan.max_modes,
                )
                library = self.search.library
        with self._timed("prepare"):
            looking = self.plan.adapt == "regeneration" or wanted(self.search)
            if looking:  # room for as many charts again: then a new mode is no new compilation
                library = library.padded(max(16, 1 << (2 * library.size - 1).bit_length()))
            else:
                library = library.padded(library.capacity + room_to_split(library))
            self.run = Chains.start(self.target, library, self.plan.seed, self._positions(library), self.progress)
            # a run that goes on looking may find the second mode later: it needs the jump from the start
            kernel = self.given or default_kernel(max(2, library.size) if looking else library.size)
            self.warm = WarmUp(arrays(kernel), library, fixed=self.given is not None)
            if looking:
                self.lookout = self.watch(self.warm.library)
        self.stage = "warm-up"
        self.save()

    def _positions(self, library: ModeLibrary) -> Array:
        """Where the chains start: the modes in turn, unless told."""
        if self.initial is not None:
            return jnp.asarray(self.initial)
        starts = library.location if self.search is None else jnp.asarray(self.search.starts)
        return starts[np.arange(self.plan.chains) % library.size]

    def watch(self, library: ModeLibrary) -> ResidualLooks:
        return ResidualLooks(self.target, library, self.search, self.plan.seed, self.plan.max_modes)

    def _warm_up(self, lengths: list[int]) -> None:
        """One round, and a look for more modes after it."""
        run, warm, n = self.run, self.warm, self.round
        warm.run(
            lengths[n],
            lambda kernel, library, steps: run.steps("warm-up", kernel, library, steps, self.plan.warmup),
            split=n == len(lengths) - 2,
        )
        if self.lookout is None or n == len(lengths) - 1:  # the last round tunes what is frozen
            return
        if self.plan.adapt == "regeneration":  # the search has all the run before it
            warm.adopt(self.lookout.look(warm.library, *warm.recent))
        else:
            warm.adopt(self.lookout.look_on(warm.library, *warm.recent, (n + 1) / (len(lengths) - 1)))

    def sample(self) -> Result:
        """All draws; what exists, if interrupted."""
        with Interrupt() as interrupt:
            blocks = self._adaptive_blocks() if self.plan.adapt == "regeneration" else self._blocks()
            for _ in blocks:
                if interrupt.asked:
                    break
            blocks.close()  # now, not when it is collected: it puts the chains back to the last block
        self.progress.close()
        return self.result()

    def _blocks(self) -> Generator[None]:
        """Blocks of a frozen kernel."""
        missing = self.plan.draws - self.num_drawn
        if missing <= 0:
            return
        began = time.perf_counter()
        with contextlib.closing(self.run.blocks(self.warm.kernel, self.warm.library, missing)) as blocks:
            for trace, moment in blocks:
                self.num_drawn += len(trace.logdensity)
                self._keep(trace)
                self.progress.take(trace, self.warm.library)
                self.save(moment)
                self.progress.say("sampling", self.num_drawn, self.plan.draws)
                self.seconds["sampling"] += time.perf_counter() - began
                began = time.perf_counter()
                yield

    def _adaptive_blocks(self) -> Generator[None]:
        """Blocks of kernels that change at regenerations."""
        adaptation = self.adapt()
        began = time.perf_counter()
        for num in adaptation.sample(self.plan.draws):
            self.num_drawn = min(num, self.plan.draws)
            self.save()
            more = f"{adaptation.library.num_modes} modes, {adaptation.num_regenerations} regenerations"
            self.progress.say("sampling", self.num_drawn, self.plan.draws, more)
            self.seconds["sampling"] += time.perf_counter() - began
            began = time.perf_counter()
            yield

    def adapt(self) -> Adaptation:
        """Sampling with updates at regenerations, as far as it is."""
        if self.adaptation is None:
            assert self.lookout is not None
            warm = self.warm
            self.adaptation = Adaptation(
                self.run, warm.kernel, warm.library, self.lookout, self.plan.seed, self._keep_part
            )
        return self.adaptation

    def _keep(self, trace: Trace) -> None:
        """Draws to the store, or to memory."""
        if self.store is None:
            self.parts.append(trace)
        else:
            self.record = self.record or Record.of(trace)
            self.store.append(self.record.rows(trace))

    def _keep_part(self, part: Trace) -> int:
        """Some draws of one chain to the store, and where they begin there."""
        if self.store is None:
            return 0
        self.record = self.record or Record.of(part)
        begin = self.store.num_bytes // self.record.dtype.itemsize
        self.store.append(self.record.rows(part))
        return begin

    def result(self) -> Result:
        """What exists of the run."""
        adaptation = self.adaptation
        if adaptation is not None:
            trace = adaptation.trace(self.plan.draws)
            kernel, library = adaptation.kernel, adaptation.library
        else:
            trace, kernel, library = self._trace(), self.warm.kernel, self.warm.library
        return make_result(
            self.target,
            kernel,
            library,
            trace,
            moves=move_names(kernel),
            seed=self.plan.seed,
            num_asked=self.plan.draws,
            timings=Timings(**self.seconds),
            num_warmup_gradients=self.warm_gradients,
            num_failed=self.run.num_failed,
            search=self.report(),
            settings=self.settings,
            num_updates=0 if adaptation is None else adaptation.num_updates,
            num_behind=0 if adaptation is None else adaptation.num_behind,
        )

    def report(self) -> SearchReport | None:
        """The account of all searches so far."""
        if self.lookout is None:
            return self.search
        return report_of(self.lookout.state, (self.adaptation or self.warm).library)

    def _trace(self) -> Trace:
        if self.store is None:
            return jax.tree.map(lambda *rows: np.concatenate(rows), *self.parts)
        assert self.record is not None
        return self.record.read(self.store.path("draws.bin"), self.num_drawn, self.plan.chains)

    @contextlib.contextmanager
    def _timed(self, phase: str) -> Iterator[None]:
        began = time.perf_counter()
        yield
        self.seconds[phase] += time.perf_counter() - began

    def finish(self, result: Result) -> None:
        """The last checkpoint, with what was computed from the draws by means of the target."""
        if self.store is not None:
            self.work = result.work
            self.save(last=True)

    def save(self, moment: Moment | None = None, *, last: bool = False) -> None:
        """A checkpoint; the setup too where it has changed since the last."""
        if self.store is None:
            return
        version = self.version()
        if version != self.saved:
            self.store.write_setup(setup_of(self))
            self.saved = version
        self.store.checkpoint(state_of(self, moment), last=last)

    def version(self) -> tuple[Any, ...]:
        """Changes whenever the setup does."""
        adaptation, lookout = self.adaptation, self.lookout
        updates = 0 if adaptation is None else len(adaptation.versions)
        return self.stage, self.round, self.record, updates, 0 if lookout is None else lookout.state.looks


def make_result(
    target: Target,
    kernel: AbstractKernel | None,
    library: ModeLibrary,
    trace: Trace,
    *,
    moves: list[str],
    **rest: Any,
) -> Result:
    """A result, its arrays (chains, draws, ...); `rest` are its other fields."""

    def by_chain(rows: np.ndarray) -> np.ndarray:
        return np.swapaxes(rows, 0, 1)

    return Result(
        target=target,
        draws=by_chain(trace.position),
        chart=by_chain(trace.label),
        logdensity=by_chain(trace.logdensity),
        log_mixture=by_chain(trace.log_mixture),
        steps=dict(zip(moves, [jax.tree.map(by_chain, info) for info in infos(trace.info)], strict=True)),
        library=library,
        kernel=kernel,
        **rest,
    )
