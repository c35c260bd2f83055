"""A kernel of the user's own, as a store remembers it: its numbers, and not its code."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from whmc._shapes import Array
from whmc.kernels.base import AbstractKernel, ChainState
from whmc.kernels.cycle import Cycle
from whmc.kernels.settings import Role, move_roles
from whmc.modes.library import ModeLibrary
from whmc.target.target import Target


@dataclasses.dataclass(frozen=True)
class StoredKernel(AbstractKernel):
    """What is left of a kernel whose class is not whmc's. `revived` makes it a kernel again, with the owner's help.

    moves: the role of each move, by its name.
    """

    name: str
    structure: str
    numbers: tuple[np.ndarray, ...]
    moves: dict[str, str]
    is_cycle: bool
    was_exact: bool

    @classmethod
    def of(cls, kernel: AbstractKernel) -> "StoredKernel":
        """The numbers of a kernel, and what it looked like."""
        leaves, structure = jax.tree.flatten(kernel)
        return cls(
            name=type(kernel).__name__,
            structure=str(structure),
            numbers=tuple(np.asarray(leaf) for leaf in leaves),
            moves={name: role.value for name, role in move_roles(kernel).items()},
            is_cycle=isinstance(kernel, Cycle),
            was_exact=bool(kernel.exact),
        )

    def revived(self, given: AbstractKernel) -> AbstractKernel:
        """The given kernel with the stored numbers; a ValueError if it is another kernel."""
        structure: Any = jax.tree.structure(given)
        if type(given).__name__ != self.name or str(structure) != self.structure:
            raise ValueError(f"kernel is not what the run was made with, {self.name}")
        return jax.tree.unflatten(structure, [jnp.asarray(number) for number in self.numbers])

    def move(self, noise: Any, state: ChainState, target: Target, library: ModeLibrary) -> tuple[ChainState, Any]:
        raise RuntimeError(f"the code of kernel {self.name} is not stored: give it again")

    def draw(self, key: Array, library: ModeLibrary) -> Any:
        raise RuntimeError(f"the code of kernel {self.name} is not stored: give it again")


def roles_of(kernel: AbstractKernel) -> dict[str, Role]:
    """The role of each move by its name, also of a kernel that was stored."""
    if isinstance(kernel, StoredKernel):
        return {name: Role(value) for name, value in kernel.moves.items()}
    return move_roles(kernel)


def exactness_of(kernel: AbstractKernel) -> bool:
    """Whether a kernel says that it is exact, also of one that was stored."""
    return kernel.was_exact if isinstance(kernel, StoredKernel) else bool(kernel.exact)
