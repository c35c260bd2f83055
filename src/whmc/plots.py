"""Pictures of a result. Needs matplotlib: `pip install whmc[plots]`."""

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from jaxtyping import Float, Int

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def best_plane(location: Float[np.ndarray, "size dim"]) -> Float[np.ndarray, "2 dim"]:
    """The two directions in which the modes lie furthest apart."""
    shift = location - location.mean(axis=0)
    directions = np.linalg.svd(shift, full_matrices=True)[2][:2]
    return directions if len(directions) == 2 else np.eye(2, location.shape[1])


def draws_by_mode(
    axes: "Axes",
    draws: Float[np.ndarray, "n dim"],
    label: Int[np.ndarray, " n"],
    location: Float[np.ndarray, "size dim"],
    plane: Float[np.ndarray, "2 dim"],
    title: str,
) -> None:
    """Draws in a plane, a colour for each mode, with the modes' numbers."""
    x, y = draws @ plane.T, location @ plane.T
    axes.scatter(
        x[:, 0],
        x[:, 1],
        c=label,
        cmap="tab10",
        vmin=0,
        vmax=max(9, len(location) - 1),
        s=3,
        alpha=0.4,
        linewidths=0,
        rasterized=True,
    )
    for k, (a, b) in enumerate(y):
        axes.annotate(
            str(k),
            (a, b),
            ha="center",
            va="center",
            fontsize=9,
            fontweight="bold",
            bbox={"boxstyle": "circle,pad=0.2", "fc": "white", "ec": "0.4", "alpha": 0.85},
        )
    axes.set_title(title, fontsize=10)
    axes.set_xlabel("first direction of the modes")
    axes.set_ylabel("second direction")


def weights_against_truth(
    axes: "Axes",
    truth: Float[np.ndarray, " size"],
    weight: Float[np.ndarray, " size"],
    weight_se: Float[np.ndarray, " size"],
    other: Float[np.ndarray, " size"],
) -> None:
    """Estimated weights with two standard errors, beside the truth and another sampler."""
    modes = np.arange(len(truth))
    axes.bar(modes, truth, color="0.85", label="truth")
    axes.errorbar(modes, weight, 2 * weight_se, fmt="o", ms=4, color="tab:blue", capsize=2, label="whmc ± 2 se")
    axes.plot(modes, other, "x", color="tab:red", label="plain HMC")
    axes.set_xticks(modes)
    axes.set_xlabel("mode")
    axes.set_ylabel("weight")
    axes.legend(frameon=False, fontsize=8)


def save_demo(
    path: Path,
    *,
    draws: np.ndarray,
    label: np.ndarray,
    plain: np.ndarray,
    plain_label: np.ndarray,
    location: np.ndarray,
    truth: np.ndarray,
    weight: np.ndarray,
    weight_se: np.ndarray,
    plain_weight: np.ndarray,
) -> None:
    """The demonstration's picture: plain HMC, whmc, and the weights."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(12, 4), layout="constrained")
    left, middle, right = figure.subplots(1, 3)
    plane = best_plane(location)
    draws_by_mode(left, plain, plain_label, location, plane, "plain HMC, all chains from mode 0")
    draws_by_mode(middle, draws, label, location, plane, "whmc, all chains from mode 0")
    left.set(xlim=middle.get_xlim(), ylim=middle.get_ylim())
    weights_against_truth(right, truth, weight, weight_se, plain_weight)
    figure.savefig(path, dpi=120)
