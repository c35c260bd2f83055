"""Cycle: kernels one after the other."""

from typing import Any

import jax
from jaxtyping import Array

from whmc._pytree import pytree
from whmc.kernels.base import AbstractKernel, ChainState, StepInfo
from whmc.kernels.random import share_noise
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
        shared = iter(share_noise(jax.random.fold_in(key, len(nums)), [num for num in nums if num is not None]))
        return tuple(
            kernel.draw(jax.random.fold_in(key, n), library) if num is None else next(shared)
            for n, (kernel, num) in enumerate(zip(self.kernels, nums, strict=True))
        )

    def move(
        self, noise: tuple[Any, ...], state: ChainState, target: Target, library: ModeLibrary
    ) -> tuple[ChainState, tuple[StepInfo, ...]]:
        infos = []
        for kernel, part in zip(self.kernels, noise, strict=True):
            state, info = kernel.move(part, state, target, library)
            infos.append(info)
        return state, tuple(infos)
