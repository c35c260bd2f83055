"""Mode weights with errors, from the labels of the draws."""

import numpy as np
from jaxtyping import Float, Int


def occupancy(
    label: Int[np.ndarray, "chains draws"], size: int
) -> tuple[Float[np.ndarray, " size"], Float[np.ndarray, " size"]]:
    """Share of draws in each mode, with standard errors."""
    here = label[..., None] == np.arange(size)
    return here.mean(axis=(0, 1)), standard_error(here.astype(float))


def standard_error(values: Float[np.ndarray, "chains draws size"]) -> Float[np.ndarray, " size"]:
    """Standard error of the mean over all chains and draws: the larger of two.

    Batch means (batches of about sqrt(draws) in each chain) are precise but blind to what takes longer than a batch;
    the spread of the chains' means sees everything, with chains - 1 degrees of freedom.
    """
    chains, draws, size = values.shape
    length = max(1, int(np.sqrt(draws)))
    batches = draws // length
    means = values[:, : batches * length].reshape(chains * batches, length, size).mean(axis=1)
    within = means.std(axis=0, ddof=1) / np.sqrt(len(means)) if len(means) > 1 else np.full(size, np.nan)
    if chains == 1:
        return within
    return np.fmax(within, values.mean(axis=1).std(axis=0, ddof=1) / np.sqrt(chains))


def jump_matrix(
    label: Int[np.ndarray, "*n"], proposed: Int[np.ndarray, "*n"], accepted: np.ndarray, size: int
) -> Int[np.ndarray, "size size"]:
    """Accepted moves from each mode (row) to each other mode (column)."""
    counts = np.zeros((size, size), int)
    np.add.at(counts, (label[accepted], proposed[accepted]), 1)
    np.fill_diagonal(counts, 0)
    return counts
