"""The picture of the demonstration."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from whmc.plots.modes import weights_of_modes
from whmc.plots.style import mode_styles

if TYPE_CHECKING:
    from whmc.result import Result


def save_sensors(path: Path, result: "Result", data: dict[str, Any]) -> None:
    """The sensor network: where each sensor may be, a colour for each mode, and how heavy the modes are."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(12, 6), layout="constrained")
    left, right = figure.subplots(1, 2, width_ratios=(1.3, 1))
    every = max(1, result.label.size // 4000)
    draws, label = result.draws.reshape(-1, 16)[::every], result.label.ravel()[::every]
    for style in reversed(mode_styles(result.modes.weight)):  # the lighter ones first, below
        places = draws[label == style.mode].reshape(-1, 2)
        left.scatter(*places.T, s=3, color=style.colour, alpha=0.35, linewidths=0, rasterized=True, label=style.name)
    anchors = np.array(list(data["known"].values()))
    truth = np.array(list(data["true_locations"].values()))
    left.scatter(*anchors.T, marker="s", s=60, color="black", label="anchors", zorder=3)
    left.scatter(*truth.T, marker="x", s=50, color="black", label="true places", zorder=3)
    for n, (x, y) in enumerate(truth):
        left.annotate(str(n), (x, y), xytext=(6, 6), textcoords="offset points", fontsize=10, fontweight="bold")
    left.set(aspect="equal", xlabel="x", ylabel="y", title="where the eight sensors may be, a colour for each mode")
    handles, names = left.get_legend_handles_labels()
    legend = left.legend(
        handles[::-1], names[::-1], fontsize=8, loc="upper left", bbox_to_anchor=(1.0, 1.0), frameon=False
    )
    for handle in legend.legend_handles:
        if handle is not None:
            handle.set_alpha(1)
            handle.set_sizes([30])
    weights_of_modes(right, result)
    right.set_title(f"log evidence {result.log_evidence:.3f} ± {result.log_evidence_se:.3f}", fontsize=10)
    figure.savefig(path, dpi=120)
