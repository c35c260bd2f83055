"""The paper's figures, drawn from what the experiments measured. Needs matplotlib: `pip install matplotlib`."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from whmc._shapes import Float

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from whmc.paper.tally import Tally

COLOURS = {"HMC": "0.45", "DMC": "C1", "RDMC": "C0", "Algorithm 1": "C2", "metric": "C4", "field": "C5", "whmc": "C3"}
"""One for each method, in all figures."""

Surface = Callable[[Float[np.ndarray, "n 2"]], Float[np.ndarray, " n"]]


def blank(width: float, height: float) -> "Figure":
    """A figure that belongs to no window."""
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), layout="constrained")


def save(figure: "Figure", path: Path) -> None:
    figure.savefig(path, dpi=130)


def surface(axes: "Axes", function: Surface, box: Sequence[float], *, levels: Any, filled: bool = True) -> None:
    """Contours of a function of two coordinates; box: x from, x to, y from, y to."""
    x, y = np.linspace(box[0], box[1], 161), np.linspace(box[2], box[3], 161)
    grid = np.stack(np.meshgrid(x, y), axis=-1).reshape(-1, 2)
    height = function(grid).reshape(161, 161)
    if filled:
        axes.contourf(x, y, height, levels=levels, cmap="viridis", extend="both")
    axes.contour(x, y, height, levels=levels, colors="0.3" if filled else "0.7", linewidths=0.5)
    axes.set(xlim=box[:2], ylim=box[2:])


def cloud(axes: "Axes", tally: "Tally", *, along: tuple[int, int] = (0, 1), most: int = 4000) -> None:
    """Draws of all chains in two coordinates, a colour for each true mode."""
    draws = tally.draws.reshape(-1, len(tally.case.mean))
    draws = draws[:: max(1, len(draws) // most)]
    label = tally.case.label(draws)
    colours = np.array([f"C{k % 10}" for k in range(len(tally.case.weights))])
    x, y = draws[:, along[0]], draws[:, along[1]]
    axes.scatter(x, y, s=3, c=colours[label], alpha=0.5, linewidths=0, rasterized=True)
    names = tally.case.target.names or [f"x[{i}]" for i in range(len(tally.case.mean))]
    axes.set(xlabel=names[along[0]], ylabel=names[along[1]], title=tally.method)


def errors_in_time(axes: "Axes", curves: Mapping[str, tuple[np.ndarray, np.ndarray]]) -> None:
    """REM against seconds, mean over the chains and 95 % interval. curves: name -> seconds, REM (times, chains)."""
    for name, (seconds, rem) in curves.items():
        middle = rem.mean(axis=1)
        half = 1.96 * rem.std(axis=1, ddof=1) / np.sqrt(rem.shape[1]) if rem.shape[1] > 1 else 0 * middle
        # a curve of one point would not be seen
        axes.plot(seconds, middle, "o-" if len(seconds) < 3 else "-", color=COLOURS[name], label=name)
        axes.fill_between(seconds, np.maximum(middle - half, 1e-12), middle + half, color=COLOURS[name], alpha=0.2)
    axes.set(xscale="log", yscale="log", xlabel="seconds", ylabel="relative error of the mean")
    axes.tick_params(axis="x", which="minor", labelbottom=False)  # over less than a decade they would overlap
    axes.legend(fontsize=8)


def error_bars(axes: "Axes", rows: Sequence[Mapping[str, Any]], places: Sequence[Any], what: str) -> None:
    """REM of every method at every place, with 95 % intervals, side by side as in Figure 5."""
    methods = list(dict.fromkeys(row["method"] for row in rows))
    for n, method in enumerate(methods):
        mine = [row for row in rows if row["method"] == method]
        x = np.arange(len(places)) + (n - 0.5 * (len(methods) - 1)) * 0.8 / len(methods)
        rem, half = (np.array([row[key] or 0.0 for row in mine]) for key in ("rem", "rem_half_interval"))
        below = np.minimum(half, 0.9 * rem)  # a logarithmic axis has no zero
        axes.errorbar(x, rem, [below, half], fmt="o", ms=4, capsize=2, color=COLOURS[method], label=method)
    axes.set_xticks(np.arange(len(places)), [str(place) for place in places])
    axes.set(yscale="log", xlabel=what, ylabel="relative error of the mean")
    axes.legend(fontsize=7)


def worlds(axes: Any, modes: Float[np.ndarray, "modes 2"], half_gap: float, near: Sequence[tuple[int, int]]) -> None:
    """Figure 3: modes in the real world (below) and the mirror world; wormholes from the mode that the sampler is near.

    near: (mode, world) pairs, world -1 or 1. axes: three-dimensional.
    """
    for world, name in ((-1, "real world"), (1, "mirror world")):
        z = np.full(len(modes), world * half_gap)
        axes.scatter(modes[:, 0], modes[:, 1], z, s=40, color="C0" if world < 0 else "C3", label=name)
        for k, (x, y) in enumerate(modes):
            axes.text(x, y, world * half_gap * 1.12, str(k + 1), fontsize=9)
        corner = np.array([[modes.min() - 1, modes.max() + 1]] * 2)
        axes.plot_surface(corner, corner.T, np.full((2, 2), world * half_gap), alpha=0.08, color="0.5")
    for n, (mode, world) in enumerate(near):
        for x, y in modes:
            start, end = (*modes[mode], world * half_gap), (x, y, -world * half_gap)
            axes.plot(*zip(start, end, strict=True), "--", color=("red", "magenta")[n % 2], linewidth=1)
    axes.set(xlabel="x", ylabel="y", zlabel="extra dimension")
    axes.legend(fontsize=8, loc="upper left")
