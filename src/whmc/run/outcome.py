"""A run's state and its draws as a Result."""

from collections.abc import Mapping
from typing import Any

import jax
import numpy as np

from whmc.estimate.basins import VALLEY
from whmc.kernels.base import AbstractKernel
from whmc.kernels.block import Trace
from whmc.kernels.settings import infos
from whmc.kernels.stored import exactness_of, roles_of
from whmc.result import Result
from whmc.run.regeneration import gather
from whmc.run.state import RunState, behind
from whmc.storage.draws_file import DrawLog
from whmc.target.target import Target


def result_of(state: RunState, target: Target, log: DrawLog, settings: Mapping[str, Any]) -> Result:
    """What exists of a run."""
    moment, newest = state.moment, state.newest
    frozen = moment.adaptation is None
    trace = log.steps(moment.num_drawn, state.plan.chains) if frozen else gather(state, log)
    return make_result(state, target, trace, newest.kernel, settings)


def make_result(
    state: RunState, target: Target, trace: Trace, kernel: AbstractKernel, settings: Mapping[str, Any]
) -> Result:
    """A result of some draws, (draws, chains, ...), of a run's newest kernel; its basins tell the modes."""
    moment, roles, library = state.moment, roles_of(kernel), state.newest.library
    if moment.basins is not None:
        library = library.of_modes(moment.basins.partition(VALLEY).of_chart)

    def by_chain(rows: np.ndarray) -> np.ndarray:
        return np.swapaxes(rows, 0, 1)

    return Result(
        target=target,
        draws=by_chain(trace.position),
        chart=by_chain(trace.label),
        logdensity=by_chain(trace.logdensity),
        log_mixture=by_chain(trace.log_mixture),
        steps=dict(zip(roles, [jax.tree.map(by_chain, info) for info in infos(trace.info)], strict=True)),
        roles=roles,
        library=library,
        basins=moment.basins,
        kernel=kernel,
        exact=exactness_of(kernel),
        timings=moment.timings,
        gradients=moment.gradients,
        num_failed=moment.num_failed,
        failed_at=moment.failed_at,
        noticed=moment.noticed,
        seed=state.plan.seed,
        search=state.search_report,
        work=moment.work,
        num_asked=state.plan.draws,
        num_updates=max(0, len(state.knowledge.versions) - 1),
        num_behind=int(behind(state).sum()),
        settings=settings,
    )
