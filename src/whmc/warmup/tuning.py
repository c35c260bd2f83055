"""What is learned between two rounds of the warm-up: arrays in, new settings out. All of it NumPy, on the host."""

import dataclasses

import numpy as np
from jaxtyping import Float, Int

from whmc.estimate.weights import solve_balance
from whmc.modes.library import ModeLibrary, whiten_rows

ACCEPTANCE_GOAL = 0.8
"""Acceptance that local step sizes aim at; between .65 and .9 the cost of an effective draw hardly changes."""

QUARTER_TURN = np.pi / 2
"""Length of a trajectory in chart time: after a quarter turn a Gaussian mode has forgotten where it was."""

MAX_STEPS = 64
"""A mode that needs more steps than this for a quarter turn has a chart that does not fit."""

REFITTED = 2.0
"""A step size is carried over to a new chart if the mode is wider in it by more than this, in its narrowest direction;
for less the rounds' own tuning does."""

UNTRIED = QUARTER_TURN / 2
"""What a step size that was only carried over may be at most."""

WEIGHT_FLOOR = 0.01
"""No chart gets less than this share of an equal weight, so that none is ever given up for good."""


def tune_step_sizes(
    step_size: Float[np.ndarray, " size"],
    label: Int[np.ndarray, " n"],
    acceptance: Float[np.ndarray, " n"],
) -> Float[np.ndarray, " size"]:
    """Step size of each chart for `ACCEPTANCE_GOAL`, from the acceptance at the present ones.

    The energy error of a trajectory is nearly N(s²/2, s²) with s ∝ e², and then acceptance is 2Φ(-s/2): so
    e' = e · sqrt(s(goal)/s(seen)).
    """
    from scipy.special import ndtri  # late: it takes a third of JAX's own time to import

    tuned = step_size.copy()
    for k in range(len(step_size)):
        seen = acceptance[label == k]
        # two pseudo-moves at the goal keep a chart with few visits from leaping
        mean = (np.sum(seen) + 2 * ACCEPTANCE_GOAL) / (len(seen) + 2)
        spread = -2 * ndtri(0.5 * np.clip(mean, 1e-3, 1 - 1e-6))
        factor = np.sqrt(-2 * ndtri(0.5 * ACCEPTANCE_GOAL) / spread)
        tuned[k] = min(step_size[k] * np.clip(factor, 0.25, 2.0), QUARTER_TURN)
    return tuned


def carry_step_sizes(
    step_size: Float[np.ndarray, " size"],
    old: "Charts",
    new: "Charts",
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
        was, now = (min(1.0, _narrowest(charts.scale[k], mine)) for charts in (old, new))
        if now > REFITTED * was:
            carried[k] = max(step_size[k], min(step_size[k] * now / was, UNTRIED))
    return carried


def _narrowest(scale: np.ndarray, draws: Float[np.ndarray, "n dim"]) -> float:
    """The least standard deviation of draws in a chart's coordinates."""
    z = whiten_rows(scale, draws - draws.mean(axis=0))
    if scale.ndim == 1:
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


def tune_weights(
    log_weight: Float[np.ndarray, " size"],
    label: Int[np.ndarray, " n"],
    proposed: Int[np.ndarray, " n"],
    acceptance: Float[np.ndarray, " n"],
) -> Float[np.ndarray, " size"]:
    """Log weights for which the mean flow of accepted moves between any two charts is the same both ways.

    With F_ik the mean acceptance of moves from i to k over all moves from i, the weights solve
    sum_i W_i F_ik = W_k sum_j F_kj. Acceptance probabilities, not acceptances: a mode that no chain has entered yet is
    weighed too (Bennett 1976). Pseudo-moves with the present weights, as many from each chart as there are charts, keep
    the charts connected, and keep a light one's weight from the chance of being proposed once or never. They are
    accepted as seldom as the moves from the worse of two charts: else a mode that is hard to enter and to leave would
    keep the weight that it had, and a bent one has a tenth of its weight by Laplace.
    """
    size = len(log_weight)
    away = label != proposed
    tried = np.bincount(label[away], minlength=size)
    rate = (1 + np.bincount(label[away], acceptance[away], size)) / (1 + tried)
    flow = size * np.minimum.outer(rate, rate) * np.exp(log_weight)
    np.add.at(flow, (label, proposed), acceptance)
    flow /= (size + np.bincount(label, minlength=size))[:, None]
    solved = np.maximum(solve_balance(flow), WEIGHT_FLOOR / size)
    return np.log(solved / solved.sum())


@dataclasses.dataclass(frozen=True)
class Charts:
    """Locations and scales of all charts, as NumPy arrays."""

    location: Float[np.ndarray, "size dim"]
    scale: Float[np.ndarray, "size dim dim"] | Float[np.ndarray, "size dim"]

    @classmethod
    def of(cls, library: ModeLibrary) -> "Charts":
        location, scale, _, _ = library.charts()
        return cls(location, scale)


def fit_charts(
    curvature: Charts,
    position: Float[np.ndarray, "n dim"],
    logdensity: Float[np.ndarray, " n"],
    label: Int[np.ndarray, " n"],
) -> Charts:
    """Each chart from the moments of its label's draws, as far as that makes w = pi/q flatter than the curvature does.

    Jumps are accepted with ratios of w. So moments are fitted to one half of a label's draws at several degrees of
    shrinking towards the curvature, and the degree is kept whose log w varies least over the other half: draws that are
    few, or a mode that is Gaussian, keep the curvature; skewed, flat and heavy modes get their moments.
    """
    location, scale = curvature.location.copy(), curvature.scale.copy()
    for k in range(len(location)):
        mine = np.flatnonzero(label == k)
        if len(mine) < 8:
            continue
        fit, held = mine[::2], mine[1::2]
        scores = [
            _unevenness(*_blend(curvature, k, position[fit], share), position[held], logdensity[held])
            for share in SHARES
        ]
        share = SHARES[int(np.argmin(scores))]
        location[k], scale[k] = _blend(curvature, k, position[mine], share)
    return Charts(location, scale)


SHARES: tuple[float | None, ...] = (None, 0.0, 0.3, 0.6, 0.8, 0.9, 0.97, 1.0)
"""How far a chart goes from curvature to moments. None: pure curvature; 0: its shape with the draws' mean and size."""


def _blend(
    curvature: Charts, k: int, draws: Float[np.ndarray, "n dim"], share: float | None
) -> tuple[np.ndarray, np.ndarray]:
    location, scale = curvature.location[k], curvature.scale[k]
    if share is None:
        return location, scale
    mean = np.mean(draws, axis=0)
    shift = draws - mean
    diagonal = scale.ndim == 1
    z = whiten_rows(scale, shift)
    size = np.sqrt(np.mean(z**2))
    if share == 0.0:
        return mean, scale * size
    if diagonal:
        return mean, scale * np.sqrt((1 - share) * size**2 + share * np.mean(z**2, axis=0))
    inner = (1 - share) * size**2 * np.eye(len(mean)) + share * (z.T @ z) / len(z)
    try:
        return mean, scale @ np.linalg.cholesky(inner)
    except np.linalg.LinAlgError:  # fewer draws than dimensions, nothing shrunk
        return mean, np.full_like(scale, np.nan)


def _unevenness(
    location: np.ndarray, scale: np.ndarray, draws: Float[np.ndarray, "n dim"], logdensity: Float[np.ndarray, " n"]
) -> float:
    """Mean distance of log w from its median, w = pi/N(location, scale scale^T)."""
    if not np.all(np.isfinite(scale)) or np.any((scale if scale.ndim == 1 else np.diagonal(scale)) <= 0):
        return np.inf  # draws that do not differ in some direction make no chart
    z = whiten_rows(scale, draws - location)
    log_ratio = logdensity + 0.5 * np.sum(z**2, axis=1)
    return float(np.mean(np.abs(log_ratio - np.median(log_ratio))))
