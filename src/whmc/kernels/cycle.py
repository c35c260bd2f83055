"""Cycle: kernels one after the other."""

from typing import Any

import jax
from jaxtyping import Array

from whmc._pytree import pytree
from whmc.kernels.base import AbstractKernel, ChainState, StepInfo
from whmc.kernels.random import Noise, draw_noise, total
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
        drawn = self.draw_together(key, library)
        return tuple(self.part(n, drawn, library) for n in range(len(self.kernels)))

    def draw_together(self, key: Array, library: ModeLibrary) -> tuple[Noise, dict[int, Any]]:
        """All random numbers of one step from one call of the generator, as each call takes time to compile; and what
        those kernels draw by themselves that do not say how much they need."""
        nums = [kernel.num_noise(library) for kernel in self.kernels]
        own = [n for n, num in enumerate(nums) if num is None]
        noise = draw_noise(jax.random.fold_in(key, len(nums)) if own else key, *total(nums))
        return noise, {n: self.kernels[n].draw(jax.random.fold_in(key, n), library) for n in own}

    def part(self, n: int, drawn: tuple[Noise, dict[int, Any]], library: ModeLibrary) -> Any:
        """What kernel n gets of it."""
        noise, own = drawn
        nums = [kernel.num_noise(library) for kernel in self.kernels]
        return own[n] if n in own else noise.part(total(nums[:n]), total(nums[: n + 1]))

    def move(
        self, noise: tuple[Any, ...], state: ChainState, target: Target, library: ModeLibrary
    ) -> tuple[ChainState, tuple[StepInfo, ...]]:
        infos = []
        for kernel, part in zip(self.kernels, noise, strict=True):
            state, info = kernel.move(part, state, target, library)
            infos.append(info)
        return state, tuple(infos)
