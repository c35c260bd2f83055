"""Mode weights with errors: by occupancy, and by the balance of jumps."""

import dataclasses

import numpy as np

from whmc._shapes import Float, Int


@dataclasses.dataclass(frozen=True)
class Weights:
    """Shares of the modes with their standard errors; NaN where there is no estimate."""

    weight: Float[np.ndarray, " size"]
    se: Float[np.ndarray, " size"]


def occupancy(label: Int[np.ndarray, "chains draws"], size: int) -> Weights:
    """Share of draws in each mode.

    The error is the `standard_error` of the modes' indicators, from counts of each chain's batches: the indicators of
    all draws and modes would take memory by the gigabyte.
    """
    chains, draws = label.shape
    length, batches = _batches(draws)
    visits, total, squares = np.zeros((chains, size)), np.zeros(size), np.zeros(size)
    batch = np.repeat(np.arange(batches), length)
    for row, own in zip(label, visits, strict=True):
        own[:] = np.bincount(row, minlength=size)
        cells = batch * size + row[: batches * length]
        counts = np.bincount(cells, minlength=batches * size).reshape(batches, size).astype(float)
        total += counts.sum(axis=0)
        squares += np.sum(counts**2, axis=0)
    num = chains * batches
    variance = np.maximum(squares - total**2 / num, 0.0) / max(num - 1, 1)
    within = np.sqrt(variance / num) / length if num > 1 else np.full(size, np.nan)
    se = _larger(within, visits / draws)
    return Weights(visits.sum(axis=0) / label.size, with_floor(se, label, size))


RARE = 30
"""Visits below which the spread of a mode's visits says little about their error."""


def with_floor(
    se: Float[np.ndarray, " size"], label: Int[np.ndarray, "chains draws"], size: int
) -> Float[np.ndarray, " size"]:
    """Errors of modes with few visits c raised to that of a count, sqrt(tau (c + 4)) / n.

    A mode that was never seen, or hardly ever, is not known exactly. tau is the inefficiency of the modes that were
    seen well. The four follows Agresti and Coull: with no visits at all, the interval of two errors reaches to four.
    """
    visits, num = np.bincount(label.ravel(), minlength=size), label.size
    if size == 1:
        return se
    weight = visits / num
    well = (visits >= RARE) & (weight < 1)
    ratio = se[well] ** 2 * num / (weight * (1 - weight))[well]
    tau = max(1.0, float(np.median(ratio))) if len(ratio) else 1.0
    rare = np.minimum(visits, num - visits) < RARE
    return np.where(rare, np.fmax(se, np.sqrt(tau * (np.minimum(visits, num - visits) + 4)) / num), se)


def standard_error(values: Float[np.ndarray, "chains draws size"]) -> Float[np.ndarray, " size"]:
    """Standard error of the mean over all chains and draws: the larger of two.

    Batch means (batches of about sqrt(draws) in each chain) are precise but blind to what takes longer than a batch;
    the spread of the chains' means sees everything, with chains - 1 degrees of freedom.
    """
    chains, draws, size = values.shape
    length, batches = _batches(draws)
    means = values[:, : batches * length].reshape(chains * batches, length, size).mean(axis=1)
    within = means.std(axis=0, ddof=1) / np.sqrt(len(means)) if len(means) > 1 else np.full(size, np.nan)
    return _larger(within, values.mean(axis=1))


def _batches(draws: int) -> tuple[int, int]:
    """Length and number of a chain's batches, both about the root of its draws."""
    length = max(1, int(np.sqrt(draws)))
    return length, draws // length


def _larger(within: Float[np.ndarray, " size"], means: Float[np.ndarray, "chains size"]) -> Float[np.ndarray, " size"]:
    """The error within chains, or that of the chains' means if it is larger."""
    chains = len(means)
    return within if chains == 1 else np.fmax(within, means.std(axis=0, ddof=1) / np.sqrt(chains))


@dataclasses.dataclass(frozen=True)
class Flow:
    """Moves between modes, summed over some draws: acceptance probabilities i -> k, and moves made from i."""

    accepted: Float[np.ndarray, "groups size size"]
    moves: Float[np.ndarray, "groups size"]

    @classmethod
    def of(
        cls,
        label: Int[np.ndarray, "groups n"],
        proposed: Int[np.ndarray, "groups n"],
        acceptance: Float[np.ndarray, "groups n"],
        size: int,
    ) -> "Flow":
        groups = np.broadcast_to(np.arange(len(label))[:, None], label.shape)
        accepted, moves = np.zeros((len(label), size, size)), np.zeros((len(label), size))
        np.add.at(accepted, (groups, label, proposed), acceptance)
        np.add.at(moves, (groups, label), 1.0)
        return cls(accepted, moves)


def solve_balance(flow: Float[np.ndarray, "size size"]) -> Float[np.ndarray, " size"]:
    """W with sum_i W_i F_ik = W_k sum_j F_kj and sum W = 1; NaN where a mode has no flow to the others.

    By elimination without subtractions (Grassmann, Taksar and Heyman 1985): exact to rounding however small the flows.
    """
    rates = flow.copy()
    np.fill_diagonal(rates, 0.0)
    size = len(rates)
    for n in range(size - 1, 0, -1):
        out = rates[n, :n].sum()
        if not out > 0:
            return np.full(size, np.nan)
        rates[:n, n] /= out
        rates[:n, :n] += np.outer(rates[:n, n], rates[n, :n])
    weight = np.ones(size)
    for n in range(1, size):
        weight[n] = weight[:n] @ rates[:n, n]
    return weight / weight.sum()


def balance(flow: Flow) -> Weights:
    """Rao-Blackwellised weights: those for which the flow of jumps between any two modes is the same both ways.

    With F_ik the mean acceptance probability of moves from i to k over all moves from i, detailed balance says
    W_i F_ik = W_k F_ki (Bennett 1976). No coin is left in it, and not how often a mode happened to be visited: with
    charts that fit the error is nil. Error by leaving out one group (chain) at a time.
    """
    size = flow.moves.shape[1]
    total, moves = flow.accepted.sum(axis=0), flow.moves.sum(axis=0)
    seen = moves > 0
    nothing = Weights(np.full(size, np.nan), np.full(size, np.nan))
    groups = len(flow.moves)
    if groups < 4 or seen.sum() < 2:
        return nothing

    def solved(accepted: np.ndarray, moves: np.ndarray) -> np.ndarray:
        part = accepted[np.ix_(seen, seen)] / np.maximum(moves[seen], 1.0)[:, None]
        weight = np.zeros(size)
        weight[seen] = solve_balance(part)
        return weight

    weight = solved(total, moves)
    left_out = np.stack([solved(total - a, moves - m) for a, m in zip(flow.accepted, flow.moves, strict=True)])
    se = np.sqrt((groups - 1) / groups * np.sum((left_out - left_out.mean(axis=0)) ** 2, axis=0))
    return Weights(weight, se) if np.all(np.isfinite(weight) & np.isfinite(se)) else nothing


def jump_matrix(
    label: Int[np.ndarray, "*n"], proposed: Int[np.ndarray, "*n"], accepted: np.ndarray, size: int
) -> Int[np.ndarray, "size size"]:
    """Accepted moves from each mode (row) to each other mode (column)."""
    counts = np.zeros((size, size), int)
    np.add.at(counts, (label[accepted], proposed[accepted]), 1)
    np.fill_diagonal(counts, 0)
    return counts


def round_trips(label: Int[np.ndarray, "chains draws"], home: int) -> Int[np.ndarray, " chains"]:
    """How often each chain came back to mode `home` from elsewhere, having been there before."""
    at_home = label == home
    arrivals = np.sum(at_home[:, 1:] & ~at_home[:, :-1], axis=1)
    left_before = at_home.argmax(axis=1) == 0  # else the first arrival is no return
    return np.where(at_home.any(axis=1) & ~left_before, np.maximum(arrivals - 1, 0), arrivals)
