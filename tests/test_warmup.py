"""The warm-up as a whole: what a round learns, in which units."""

import jax.numpy as jnp
import numpy as np
import pytest

import whmc
from whmc.kernels.base import StepInfo
from whmc.kernels.block import Trace
from whmc.kernels.settings import arrays
from whmc.modes.library import ModeLibrary
from whmc.warmup import warmup as warming

DIM = 4


def heavy_trace(rng: np.random.Generator, acceptance: float) -> Trace:
    """Local moves on a Student-t with three degrees of freedom, 200 steps of 16 chains, all with one acceptance."""
    shape = (200, 16)
    z = rng.standard_normal((*shape, DIM)) * np.sqrt(3 / rng.chisquare(3, shape))[..., None]
    info = StepInfo(
        label=np.zeros(shape, int),
        proposed=np.zeros(shape, int),
        log_ratio=np.full(shape, np.log(acceptance)),
        accepted=np.ones(shape, bool),
        regenerated=np.zeros(shape, bool),
        num_gradients=np.ones(shape, int),
        num_failed=np.zeros(shape, int),
    )
    logdensity = -0.5 * (3 + DIM) * np.log1p(np.sum(z**2, axis=-1) / 3)
    return Trace(z, logdensity, np.zeros(shape), np.zeros(shape, int), (info,))


def test_a_step_that_is_right_stays_as_long_as_it_is_under_a_student_base():
    """At the acceptance aimed at, the absolute step does not change from round to round, whatever the base.

    It must not grow by sqrt(nu/(nu - 2)), 1.7 for three degrees of freedom, in every round under a Student-t.
    """
    rng = np.random.default_rng(0)
    library = ModeLibrary.from_charts(np.zeros((1, DIM)), np.eye(DIM)[None], step_size=[0.3], capacity=4)
    state = warming.begin(arrays(whmc.Cycle((whmc.LocalHMC(num_steps=5),))), library, fixed=True)
    lengths = []
    for _ in range(6):
        trials = warming.plan_round(state, 200)
        state, _ = warming.learn(state, trials, [heavy_trace(rng, 0.8)], left=4)
        scale = float(np.exp(np.mean(np.log(np.diagonal(state.library.charts().scale[0])))))
        lengths.append(float(state.library.charts().step_size[0]) * scale)
    assert float(state.library.dof) < 10  # the base is a Student-t
    # the scale is learned from 3200 draws with infinite fourth moment: it moves by some percent
    assert max(lengths) / min(lengths) < 1.4, lengths


@pytest.mark.parametrize("far", [100.0, 1e6])
def test_a_given_mode_far_from_everything_costs_its_own_weight_only(far):
    def logdensity(x):
        return jnp.logaddexp(-0.5 * jnp.sum((x - 4) ** 2), -1 - 0.5 * jnp.sum((x + 4) ** 2))

    target = whmc.Target(logdensity, dim=2, starts=(-8.0, 8.0))
    result = whmc.sample(target, modes=[[far, 4.0], [-4.0, -4.0], [4.0, 4.0]], draws=300, warmup=100, chains=8)
    heavy = 1 / (1 + np.exp(-1))
    assert np.all(np.isfinite(result.draws))
    assert abs(result.modes.weight[2] - heavy) < 5 * result.modes.weight_se[2] and result.modes.weight[0] < 0.01
