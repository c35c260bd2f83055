"""Step sizes and numbers of steps, from the acceptance that a round has seen. All of it NumPy, on the host."""

from collections.abc import Sequence
from statistics import NormalDist

import numpy as np

from whmc._shapes import Float, Int
from whmc.modes.chart_data import ChartData
from whmc.modes.layers.scales import Dense, Scale
from whmc.modes.refine import UNTRIED_STEP

QUARTER_TURN = np.pi / 2
"""Length of a trajectory in chart time: after a quarter turn a Gaussian mode has forgotten where it was."""

MAX_STEPS = 64
"""A mode that needs more steps than this for a quarter turn has a chart that does not fit."""

REFITTED = 2.0
"""A step size is carried over to a new chart if the mode is wider in it by more than this, in its narrowest direction;
for less the rounds' own tuning does."""


def tune_step_sizes(
    step_size: Float[np.ndarray, " size"],
    label: Int[np.ndarray, " n"],
    acceptance: Float[np.ndarray, " n"],
    goal: float = 0.8,
    order: int = 2,
) -> Float[np.ndarray, " size"]:
    """Step size of each chart for an acceptance of `goal`, from the acceptance at the present ones.

    The energy error of a trajectory is nearly N(s²/2, s²) with s ∝ e^order, and then acceptance is 2Φ(-s/2): so
    e' = e · (s(goal)/s(seen))^(1/order).
    """
    quantile = NormalDist().inv_cdf
    tuned = step_size.copy()
    for k in range(len(step_size)):
        seen = acceptance[label == k]
        # two pseudo-moves at the goal keep a chart with few visits from leaping
        mean = (np.sum(seen) + 2 * goal) / (len(seen) + 2)
        spread = -2 * quantile(0.5 * float(np.clip(mean, 1e-3, 1 - 1e-6)))
        factor = (-2 * quantile(0.5 * goal) / spread) ** (1 / order)
        tuned[k] = min(step_size[k] * np.clip(factor, 0.25, 2.0), QUARTER_TURN)
    return tuned


def carry_step_sizes(
    step_size: Float[np.ndarray, " size"],
    old: Sequence[ChartData],
    new: Sequence[ChartData],
    position: Float[np.ndarray, "n dim"],
    label: Int[np.ndarray, " n"],
) -> Float[np.ndarray, " size"]:
    """Step sizes, tuned in the old charts, for new ones.

    A step cannot be much longer than the mode's narrowest direction, measured in the chart. Where the old chart was far
    too wide in one, as the curvature of a hierarchical model's peak is, and the new one is not, the step that was right
    for the old is too short by that factor, and no round may be left to find out. Other steps stay as they are.
    """
    carried = step_size.copy()
    for k in range(len(step_size)):
        mine = position[label == k]
        if len(mine) < 10 * mine.shape[1]:
            continue
        was, now = (min(1.0, _narrowest(charts[k].scale, mine)) for charts in (old, new))
        if now > REFITTED * was:
            carried[k] = max(step_size[k], min(step_size[k] * now / was, UNTRIED_STEP))
    return carried


def _narrowest(scale: Scale, draws: Float[np.ndarray, "n dim"]) -> float:
    """The least standard deviation of draws in a chart's coordinates."""
    z = np.asarray(scale.inverse(draws - draws.mean(axis=0))[0])
    if not isinstance(scale, Dense):
        return float(z.std(axis=0).min())
    return float(np.sqrt(max(np.linalg.eigvalsh(z.T @ z / len(z))[0], 1e-12)))


def quarter_turn(
    step_size: Float[np.ndarray, " size"], weight: Float[np.ndarray, " size"]
) -> tuple[int, Float[np.ndarray, " size"]]:
    """Number of steps for a quarter turn at the typical step size, and steps cut down to make just that.

    All chains take the same number of steps (they run side by side), so one number serves all charts.
    """
    typical = np.exp(np.sum(weight * np.log(step_size)) / np.sum(weight))
    num_steps = int(np.clip(np.ceil(QUARTER_TURN / typical - 0.1), 1, MAX_STEPS))
    return num_steps, np.minimum(step_size, QUARTER_TURN / num_steps)
