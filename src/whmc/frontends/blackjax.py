"""BlackJAX's shape of a sampler: `init(position)` and `step(key, state)`. BlackJAX itself is not needed."""

from collections.abc import Callable
from typing import Any, NamedTuple

from jaxtyping import Array

from whmc.kernels.base import AbstractKernel, ChainState, init
from whmc.modes.library import ModeLibrary
from whmc.run.rounds import default_kernel
from whmc.target import Numbers, Target


class SamplingAlgorithm(NamedTuple):
    """As BlackJAX's: `state = init(position)`, `state, info = step(key, state)`."""

    init: Callable[..., ChainState]
    step: Callable[[Array, ChainState], tuple[ChainState, Any]]


def as_top_level_api(target: Target, library: ModeLibrary, kernel: AbstractKernel | None = None) -> SamplingAlgorithm:
    """Any kernel (the default cycle unless given) with its target and library bound."""
    chosen = default_kernel() if kernel is None else kernel

    def start(position: Numbers, rng_key: Array | None = None) -> ChainState:
        del rng_key  # BlackJAX passes one to every algorithm
        return init(position, target, library)

    def step(rng_key: Array, state: ChainState) -> tuple[ChainState, Any]:
        return chosen.step(rng_key, state, target, library)

    return SamplingAlgorithm(start, step)
