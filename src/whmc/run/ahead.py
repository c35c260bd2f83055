"""Compiles the block of a run beside its search, on another core: XLA lets Python go on while it works.

The block depends on dimension, chains, capacity and moves only, and the first starts tell about how many modes there
are. If the guess turns out wrong, the block is compiled again.
"""

import threading
import warnings

import jax
import numpy as np

from whmc.kernels.base import place_all
from whmc.kernels.settings import arrays, default_kernel
from whmc.modes.bending import may_bend
from whmc.modes.layers.bend import Bend
from whmc.modes.library import ModeLibrary
from whmc.modes.split import room_to_split
from whmc.run.chains import Chains, Mover
from whmc.run.plan import Inputs, Plan
from whmc.search.masses import chart_library
from whmc.search.mode_search import SearchState
from whmc.target.target import Target


def with_room(target: Target, library: ModeLibrary, plan: Plan, looking: bool) -> ModeLibrary:
    """The library with room for charts to come: a new mode, a split or a bend is then no new compilation. A power of
    two: few are compiled."""
    wanted = max(16, 2 * library.size) if looking else library.size + room_to_split(library)
    bends = may_bend(target, library) if plan.warmup else False
    roomy = library.padded(max(library.capacity, 1 << (wanted - 1).bit_length()))
    return roomy.with_charts(roomy.charts(), kinds=(Bend,)) if bends else roomy


class CompileAhead:
    """One compilation at most, from the first guess on; `wait` ends it. error: what went wrong with it."""

    def __init__(self, mover: Mover, plan: Plan, inputs: Inputs) -> None:
        self.mover, self.plan, self.inputs = mover, plan, inputs
        self.thread: threading.Thread | None = None
        self.error: Exception | None = None

    def guess(self, search: SearchState) -> None:
        """Begins, with as many modes as the search knows now."""
        if self.thread is None and search.peaks:
            peaks = search.peaks[: self.plan.max_modes]
            library = chart_library(peaks)
            library = library.padded(library.size)
            library = with_room(self.mover.target, library, self.plan, self.plan.adaptive)
            self.thread = threading.Thread(target=self._compile, args=(library,), daemon=True)
            self.thread.start()

    @property
    def running(self) -> bool:
        """Whether `wait` has to wait."""
        return self.thread is not None and self.thread.is_alive()

    def wait(self) -> None:
        """Until it is done, if it has begun."""
        if self.thread is not None:
            self.thread.join()

    def warn(self) -> None:
        """Says that it failed, once the run has compiled the block by itself: what is wrong with the user's model has
        then been told as an error, and this is a fault of whmc."""
        if self.error is not None:
            warnings.warn(
                f"compiling beside the search failed ({type(self.error).__name__}: {self.error}); the run has compiled "
                "after it, which took longer and changes no draw; please report this",
                RuntimeWarning,
                stacklevel=2,
            )

    def _compile(self, library: ModeLibrary) -> None:
        try:
            self._compile_block(library)
        except Exception as error:  # the run compiles by itself, and an error of the user's is told there
            self.error = error

    def _compile_block(self, library: ModeLibrary) -> None:
        with jax.enable_x64(True):
            num, dim = self.plan.chains, library.dim
            states = place_all(np.zeros((num, dim)), np.zeros(num), np.zeros((num, dim)), library)
            num_modes = max(2, library.size) if self.plan.adaptive else library.size
            kernel = self.inputs.kernel or default_kernel(num_modes, scores=self.mover.target.has_gradient)
            self.mover.compile(Chains.of(states, np.zeros(num, int)), arrays(kernel), library)
