"""Weights of the charts, from the acceptance of moves between them. All of it NumPy, on the host."""

import numpy as np

from whmc._shapes import Float, Int
from whmc.estimate.weights import solve_balance
from whmc.modes.library import WEIGHT_FLOOR


def tune_weights(
    log_weight: Float[np.ndarray, " size"],
    mode: Int[np.ndarray, " size"],
    label: Int[np.ndarray, " n"],
    proposed: Int[np.ndarray, " n"],
    acceptance: Float[np.ndarray, " n"],
) -> Float[np.ndarray, " size"]:
    """Log weights of charts by the flows between their modes; what a mode's charts share stays as it is."""
    total = np.full(mode.max() + 1, -np.inf)
    np.logaddexp.at(total, mode, log_weight)
    return log_weight + (mode_weights(total, mode[label], mode[proposed], acceptance) - total)[mode]


def mode_weights(
    log_weight: Float[np.ndarray, " size"],
    label: Int[np.ndarray, " n"],
    proposed: Int[np.ndarray, " n"],
    acceptance: Float[np.ndarray, " n"],
) -> Float[np.ndarray, " size"]:
    """Log weights for which the mean flow of accepted moves between any two modes is the same both ways.

    With F_ik the mean acceptance of moves from i to k over all moves from i, the weights solve
    sum_i W_i F_ik = W_k sum_j F_kj. Acceptance probabilities are used, not acceptances, so a mode that no chain has
    entered yet is weighed too (Bennett 1976).

    Pseudo-moves with the present weights, as many from each mode as there are modes, keep the modes connected. They
    also keep a light mode's weight from the chance of being proposed once or never. Each pseudo-move is given the
    lower of the two modes' acceptance rates. Otherwise the prior weight (Laplace, often ten times too small for curved
    modes) would dominate for modes that are rarely entered or left.
    """
    size = len(log_weight)
    away = label != proposed
    tried = np.bincount(label[away], minlength=size)
    rate = (1 + np.bincount(label[away], acceptance[away], size)) / (1 + tried)
    # a location far from everything may weigh exp(-5000): without a floor nothing would flow back from it
    prior = np.maximum(np.exp(log_weight), WEIGHT_FLOOR / size)
    flow = size * np.minimum.outer(rate, rate) * prior
    np.add.at(flow, (label, proposed), acceptance)
    flow /= (size + np.bincount(label, minlength=size))[:, None]
    solved = np.maximum(solve_balance(flow), WEIGHT_FLOOR / size)
    return np.log(solved / solved.sum())
