"""Cycle: kernels one after the other."""

from typing import Any

import jax

from whmc._pytree import pytree
from whmc._shapes import Array
from whmc.kernels.base import AbstractKernel, ChainState, StepInfo
from whmc.kernels.random import draw_noise, total
from whmc.modes.library import ModeLibrary
from whmc.target.target import Target


@pytree
class Cycle(AbstractKernel):
    """Runs its kernels in turn; exact if each of them is. Its info is the tuple of theirs."""

    kernels: tuple[AbstractKernel, ...]

    def __post_init__(self) -> None:
        # a cycle in a cycle is one longer cycle
        flat = (part for k in self.kernels for part in (k.kernels if isinstance(k, Cycle) else (k,)))
        object.__setattr__(self, "kernels", tuple(flat))

    @property
    def exact(self) -> bool:
        return all(kernel.exact for kernel in self.kernels)

    def draw(self, key: Array, library: ModeLibrary) -> tuple[Any, ...]:
        # one call of the generator for all kernels that say how much they need: each call takes time to compile
        nums = [kernel.num_noise(library) for kernel in self.kernels]
        together = draw_noise(jax.random.fold_in(key, len(nums)), *total(nums))
        return tuple(
            kernel.draw(jax.random.fold_in(key, n), library)
            if nums[n] is None
            else together.part(total(nums[:n]), total(nums[: n + 1]))
            for n, kernel in enumerate(self.kernels)
        )

    def move(
        self, noise: tuple[Any, ...], state: ChainState, target: Target, library: ModeLibrary
    ) -> tuple[ChainState, tuple[StepInfo, ...]]:
        infos = []
        for kernel, part in zip(self.kernels, noise, strict=True):
            state, info = kernel.move(part, state, target, library)
            infos.append(info)
        return state, tuple(infos)


def moves(kernel: AbstractKernel) -> tuple[AbstractKernel, ...]:
    """The kernels of a cycle, or the kernel alone."""
    return kernel.kernels if isinstance(kernel, Cycle) else (kernel,)
