"""A checkpoint is the run's state, serialised: what changes with every block, and apart what changes seldom."""

import dataclasses
from collections.abc import Callable, Sequence

from whmc.kernels.base import AbstractKernel
from whmc.kernels.stored import StoredKernel
from whmc.run.plan import Inputs, Plan
from whmc.run.state import Learned, Moment, RunState
from whmc.search.finders import AbstractFinder
from whmc.search.stored import StoredFinder
from whmc.storage.serialize import storable
from whmc.storage.store import Store, StoreError

Finders = AbstractFinder | Sequence[AbstractFinder] | None


class Checkpoints:
    """Writes the states of one run to its store."""

    def __init__(self, store: Store, saved: RunState | None = None) -> None:
        self.store, self.saved = store, saved

    def save(self, state: RunState, *, last: bool = False) -> None:
        """A checkpoint. What changes seldom is written only where it has changed since the last."""
        saved = self.saved
        if saved is None or saved.learned is not state.learned or saved.inputs is not state.inputs:
            plain = _mapped(state, _without_code, _finder_without_code)
            self.store.write_setup({"inputs": plain.inputs, "learned": plain.learned})
        self.store.checkpoint({"plan": state.plan, "moment": state.moment}, last=last)
        self.saved = state


def read_state(store: Store) -> RunState:
    """The newest sound state of a store. Kernels and finders of the user's own come without their code."""
    checkpoint, setup = store.read()
    parts = (checkpoint["plan"], setup["inputs"], setup["learned"], checkpoint["moment"])
    kinds = (Plan, Inputs, Learned | None, Moment)
    if not all(isinstance(part, kind) for part, kind in zip(parts, kinds, strict=True)):
        raise StoreError(f"{store.folder} does not hold a run: start the run again")
    return RunState(*parts)


def with_code(state: RunState, kernel: AbstractKernel | None, finder: Finders) -> RunState:
    """The state with the user's own kernel and finder in place of what could not be stored."""

    def revived(stored: AbstractKernel) -> AbstractKernel:
        if not isinstance(stored, StoredKernel):
            return stored
        if kernel is None:
            raise StoreError(f"this run has a kernel of its own, {stored.name}: give it again, resume(..., kernel=)")
        try:
            return stored.revived(kernel)
        except ValueError as error:
            raise StoreError(str(error)) from error

    def finders(stored: Finders) -> Finders:
        parts = stored if isinstance(stored, (list, tuple)) else (stored,)
        missing = [one.name for one in parts if isinstance(one, StoredFinder)]
        if missing and state.learned is not None:
            return None  # the search is over
        if missing and finder is None:
            raise StoreError(f"this run has a finder of its own, {missing[0]}: give it again, resume(..., finder=)")
        return finder if missing else stored

    return _mapped(state, revived, finders)


def _mapped(
    state: RunState, kernel_of: Callable[[AbstractKernel], AbstractKernel], finders_of: Callable[[Finders], Finders]
) -> RunState:
    """The state with other kernels and finders, wherever it has them."""
    inputs, learned = state.inputs, state.learned
    given = None if inputs.kernel is None else kernel_of(inputs.kernel)
    inputs = dataclasses.replace(inputs, kernel=given, finder=finders_of(inputs.finder))
    if learned is not None:
        warmup = dataclasses.replace(learned.warmup, kernel=kernel_of(learned.warmup.kernel))
        versions = tuple(dataclasses.replace(one, kernel=kernel_of(one.kernel)) for one in learned.versions)
        learned = dataclasses.replace(learned, warmup=warmup, versions=versions)
    return dataclasses.replace(state, inputs=inputs, learned=learned)


def _without_code(kernel: AbstractKernel) -> AbstractKernel:
    return kernel if storable(kernel) else StoredKernel.of(kernel)


def _finder_without_code(finder: Finders) -> Finders:
    if isinstance(finder, (list, tuple)):
        return tuple(one if storable(one) else StoredFinder(type(one).__name__) for one in finder)
    return finder if storable(finder) else StoredFinder(type(finder).__name__)
