"""Small results to report on: one that was sampled, and two of exact draws, which take no time."""

import jax
import jax.numpy as jnp
import numpy as np

import whmc
from whmc.kernels.base import StepInfo
from whmc.kernels.settings import Role
from whmc.modes.mixture import log_components_of
from whmc.result import Gradients, Result, Timings
from whmc.testing import Problem, gaussian_mixture

SCRIPT = "<script>alert(1)</script>"


def two_modes() -> Result:
    """Two modes in two dimensions, found by a search; too few draws, so that there are alarms."""
    case = gaussian_mixture([0.7, 0.3], [[-3.0, 0.0], [3.0, 1.0]], np.tile(np.eye(2), (2, 1, 1)))
    target = whmc.Target(case.target.logdensity, dim=2, starts=(-6.0, 6.0), names=[SCRIPT, "$y_$ & more"])
    return whmc.sample(target, finder=whmc.MultiStart(32), chains=4, draws=60, warmup=20, progress=False)


def one_mode() -> Result:
    """One mode in one dimension."""
    return exact(gaussian_mixture([1.0], [[0.0]], np.ones((1, 1, 1))))


def many_modes() -> Result:
    """Thirty modes on a line, more than have a colour, or an open row in a table."""
    return exact(gaussian_mixture(np.full(30, 1 / 30), 8.0 * np.arange(30)[:, None], np.ones((30, 1, 1))))


def exact(case: Problem, chains: int = 4, draws: int = 200) -> Result:
    """Independent draws, as an independence move makes them whose proposals are the target itself."""
    positions = case.draw(np.random.default_rng(0), chains * draws)[0]
    parts = log_components_of(case.library, positions)
    density = np.asarray(jax.vmap(case.target)(jnp.asarray(positions)))
    shape = (chains, draws)
    chart = parts.argmax(axis=0).reshape(shape)
    yes, none = np.ones(shape, bool), np.zeros(shape, int)
    before = np.concatenate([chart[:, :1], chart[:, :-1]], axis=1)
    return Result(
        target=case.target,
        draws=positions.reshape(*shape, -1),
        chart=chart,
        logdensity=density.reshape(shape),
        log_mixture=np.logaddexp.reduce(parts, axis=0).reshape(shape),
        steps={"Independence": StepInfo(before, chart, np.zeros(shape), yes, yes, none, none)},
        roles={"Independence": Role.MIXTURE},
        library=case.library,
        kernel=None,
        timings=Timings(0.0, 0.0, 0.0, 0.0, 0.1),
        gradients=Gradients(),
        num_failed=0,
        seed=0,
        num_asked=draws,
    )
