"""Cycle: kernels one after the other."""

import jax
from jaxtyping import Array

from whmc.kernels.base import AbstractKernel, ChainState, StepInfo
from whmc.modes.library import ModeLibrary
from whmc.pytree import pytree
from whmc.target import Target


@pytree
class Cycle(AbstractKernel):
    """Runs its kernels in turn; exact if each of them is. Its info is the tuple of theirs."""

    kernels: tuple[AbstractKernel, ...]

    def step(
        self, key: Array, state: ChainState, target: Target, library: ModeLibrary
    ) -> tuple[ChainState, tuple[StepInfo, ...]]:
        infos = []
        for kernel, subkey in zip(self.kernels, jax.random.split(key, len(self.kernels)), strict=True):
            state, info = kernel.step(subkey, state, target, library)
            infos.append(info)
        return state, tuple(infos)
