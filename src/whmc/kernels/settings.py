"""The moves of a kernel by number, name and role, and their settings as arrays that tuning may replace."""

import dataclasses
import enum
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from whmc._shapes import Array
from whmc.kernels.base import AbstractKernel, StepInfo
from whmc.kernels.cycle import Cycle, moves
from whmc.kernels.independence import AbstractIndependence, Independence
from whmc.kernels.local import AbstractLocal, LocalHMC
from whmc.kernels.walk import LocalWalk
from whmc.kernels.wormhole import AbstractJump, GibbsWormhole, Wormhole
from whmc.target.target import Target

WALKS = 3
"""Steps of a walk in the place of one trajectory, where there are no scores."""


def default_kernel(num_modes: int = 2, *, scores: bool = True) -> Cycle:
    """What `sample` runs, tuned by it: explore the mode, change the mode (if there is another), try to start afresh.

    scores: whether the target has a gradient that is worth its cost.
    """
    local: tuple[AbstractKernel, ...] = (LocalHMC(),) if scores else (LocalWalk(),) * WALKS
    jumps = (Wormhole(),) if num_modes > 1 else ()
    return Cycle((*local, *jumps, Independence()))


def uses_scores(kernel: AbstractKernel) -> bool:
    """Whether any move needs gradients. A jump does in its throat alone, which is not tried if no local move does."""

    def uses(move: AbstractKernel) -> bool:
        if isinstance(move, Wormhole):
            return int(move.throat) > 0
        return not isinstance(move, (GibbsWormhole, AbstractIndependence)) and getattr(move, "uses_scores", True)

    return any(map(uses, moves(kernel))) or not any(isinstance(move, AbstractLocal) for move in moves(kernel))


def target_of(kernel: AbstractKernel, target: Target) -> Target:
    """The target as the kernel needs it: without scores, if it uses none."""
    return target if uses_scores(kernel) else target.without_scores


def arrays(kernel: AbstractKernel) -> AbstractKernel:
    """The kernel with every number an array of the run's dtype: tuning then never changes a type."""

    def array(leaf: Any) -> Array:
        kind = jnp.result_type(leaf)
        if jnp.issubdtype(kind, bool):
            return jax.device_put(np.asarray(leaf))
        # device_put and not jnp.asarray, which compiles
        return jax.device_put(np.asarray(leaf, jnp.result_type(float if jnp.issubdtype(kind, jnp.inexact) else int)))

    return jax.tree.map(array, kernel)


def with_settings(kernel: AbstractKernel, **settings: float | int) -> AbstractKernel:
    """The kernel with every move's field of such a name replaced: throat=, stride=, num_steps=, log_threshold=."""
    changed = tuple(
        dataclasses.replace(
            move,  # type: ignore[type-var]
            **{
                name: jax.device_put(np.asarray(value, jnp.result_type(getattr(move, name))))
                for name, value in settings.items()
                if hasattr(move, name)
            },
        )
        for move in moves(kernel)
    )
    return Cycle(changed) if isinstance(kernel, Cycle) else changed[0]


def move_names(kernel: AbstractKernel) -> list[str]:
    """A name for each move of a kernel."""
    names = [type(move).__name__ for move in moves(kernel)]
    return [name if names.count(name) == 1 else f"{name}[{n}]" for n, name in enumerate(names)]


class Role(enum.Enum):
    """What a move is for, which decides what its record tells: MIXTURE is an independence move from the library's q."""

    LOCAL = "local"
    JUMP = "jump"
    INDEPENDENCE = "independence"
    MIXTURE = "mixture"
    OTHER = "other"


def move_roles(kernel: AbstractKernel) -> dict[str, Role]:
    """The role of each move, by its name; from its type, so that a user's own move has one too."""
    return {name: _role(move) for name, move in zip(move_names(kernel), moves(kernel), strict=True)}


def _role(move: AbstractKernel) -> Role:
    if isinstance(move, AbstractIndependence):
        return Role.MIXTURE if move.from_mixture else Role.INDEPENDENCE
    if isinstance(move, AbstractJump):
        return Role.JUMP
    return Role.LOCAL if isinstance(move, AbstractLocal) else Role.OTHER


def infos(info: StepInfo | tuple[StepInfo, ...]) -> tuple[StepInfo, ...]:
    """The infos of a step, one for each move of the kernel."""
    return info if isinstance(info, tuple) else (info,)


def single_numbers(kernel: AbstractKernel) -> dict[str, float | int | bool]:
    """The settings of a kernel that are single numbers, as `Wormhole.throat` and so on."""
    settings = {
        f"{name}.{field.name}": np.asarray(getattr(move, field.name))
        for name, move in zip(move_names(kernel), moves(kernel), strict=True)
        for field in dataclasses.fields(move)  # type: ignore[arg-type]
    }
    return {name: value.item() for name, value in settings.items() if value.dtype.kind in "biuf" and not value.ndim}
