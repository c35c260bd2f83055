"""What the record of a run's moves tells: flows and jumps between modes, tours, log w at proposals, acceptance."""

from collections.abc import Iterable, Mapping

import numpy as np

from whmc._shapes import Bool, Float, Int
from whmc.estimate.evidence import NOTHING, Evidence, bridge
from whmc.estimate.tours import Tours
from whmc.estimate.weights import Flow, Weights, balance, jump_matrix, occupancy, with_floor
from whmc.kernels.base import StepInfo
from whmc.kernels.settings import Role

Steps = Mapping[str, StepInfo]
Roles = Mapping[str, Role]

INDEPENDENT = (Role.INDEPENDENCE, Role.MIXTURE)
BETWEEN_MODES = (Role.JUMP, *INDEPENDENT)


def _with_role(steps: Steps, roles: Roles, wanted: Iterable[Role]) -> list[StepInfo]:
    return [info for name, info in steps.items() if roles.get(name, Role.OTHER) in wanted]


def tours_of(steps: Steps, roles: Roles) -> Tours | None:
    """The stretches between regenerations; none if the kernel makes no independence moves."""
    flags = [info.regenerated for info in _with_role(steps, roles, INDEPENDENT)]
    return Tours.of(np.any(flags, axis=0)) if flags else None


def flow_of(steps: Steps, roles: Roles, mode_of: Int[np.ndarray, " size"], num_modes: int) -> Flow | None:
    """Acceptance probabilities of all moves between modes, chain by chain."""
    found = _with_role(steps, roles, BETWEEN_MODES)
    if not found:
        return None
    label, proposed, log_ratio = (
        np.concatenate([getattr(info, name) for info in found], axis=1) for name in ("label", "proposed", "log_ratio")
    )
    return Flow.of(mode_of[label], mode_of[proposed], np.exp(np.minimum(log_ratio, 0.0)), num_modes)


def weights_of(
    label: Int[np.ndarray, "chains draws"], num_modes: int, flow: Flow | None, tours: Tours | None
) -> dict[str, Weights]:
    """Mode weights in up to three ways, which must agree; those that are not known are left out."""
    others = {}
    if flow is not None and num_modes > 1:
        others["balance"] = balance(flow)
    if tours is not None:
        others["tours"] = tours.shares(label, num_modes)
    known = {name: one for name, one in others.items() if np.all(np.isfinite(one.weight))}
    floored = {name: Weights(one.weight, with_floor(one.se, label, num_modes)) for name, one in known.items()}
    return {"occupancy": occupancy(label, num_modes), **floored}


def proposes(steps: Steps, roles: Roles) -> bool:
    """Whether the last move of the cycle proposes from the library's mixture."""
    return roles.get(list(steps)[-1]) is Role.MIXTURE


def bridge_of(
    steps: Steps,
    roles: Roles,
    logdensity: Float[np.ndarray, "chains draws"],
    log_mixture: Float[np.ndarray, "chains draws"],
) -> Evidence:
    """The evidence by bridge sampling, if there are proposals for it."""
    if not proposes(steps, roles):
        return NOTHING
    info = list(steps.values())[-1]
    draws = logdensity - log_mixture
    # the state that a rejected proposal was compared with is the one recorded
    return bridge(draws, np.where(info.accepted, draws, draws + info.log_ratio))


def jumps_of(steps: Steps, mode_of: Int[np.ndarray, " size"], num_modes: int) -> Int[np.ndarray, "modes modes"]:
    """Accepted changes of mode, from (row) and to (column), by all moves that propose them."""
    matrices = (
        jump_matrix(mode_of[info.label], mode_of[info.proposed], info.accepted, num_modes) for info in steps.values()
    )
    return sum(matrices, np.zeros((num_modes, num_modes), int))


def jumped(steps: Steps, mode_of: Int[np.ndarray, " size"]) -> Bool[np.ndarray, "chains draws"]:
    """Whether a move from one mode to another was accepted in a step."""
    return np.any([info.accepted & (mode_of[info.label] != mode_of[info.proposed]) for info in steps.values()], axis=0)


def acceptance_of(steps: Steps) -> dict[str, float]:
    """Mean acceptance probability of each move."""
    return {name: float(np.mean(np.exp(np.minimum(info.log_ratio, 0)))) for name, info in steps.items()}
