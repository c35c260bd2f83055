"""The pair plot: draws in the parameters that tell modes apart most, coloured by mode."""

import dataclasses
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from whmc._shapes import Float, Int
from whmc.plots.style import EDGE, REST, ModeStyle, mode_styles, picture_text, thinned

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from whmc.result import Result

MAX_PARAMETERS = 5
"""Parameters at most: with more the panels are too small to be read."""

MAX_POINTS = 4000
"""Points at most: more hide one another."""


@dataclasses.dataclass(frozen=True)
class DistinguishingParameters:
    """Some draws of the parameters that tell modes apart most. share: of each one's variance, between modes."""

    names: list[str]
    values: Float[np.ndarray, "n shown"]
    label: Int[np.ndarray, " n"]
    share: Float[np.ndarray, " shown"]

    @classmethod
    def of(cls, result: "Result") -> "DistinguishingParameters":
        """From some of the draws, all chains together."""
        some = thinned(result.label.size, MAX_POINTS)
        label = result.label.ravel()[some]
        names, columns = scalars(result.constrained(), some)
        share = between_modes(columns, label)
        # what does not vary, or is not finite, has nothing to show, unless there is nothing else
        able = np.flatnonzero(np.isfinite(share)) if np.isfinite(share).any() else np.arange(len(share))
        best = np.sort(able[np.argsort(-share[able], kind="stable")[:MAX_PARAMETERS]])
        return cls([names[n] for n in best], columns[:, best], label, share[best])


def scalars(values: Mapping[str, Any], some: slice) -> tuple[list[str], Float[np.ndarray, "n scalars"]]:
    """Every scalar under its name, `name[i]` as in the table of parameters, and some of its draws."""
    names, columns = [], []
    for name, rows in values.items():
        shape = rows.shape[2:]
        names += [name + "".join(f"[{n}]" for n in index) for index in np.ndindex(shape)]
        columns.append(rows.reshape(rows.shape[0] * rows.shape[1], -1)[some].astype(float))
    return names, np.concatenate(columns, axis=1)


def between_modes(
    columns: Float[np.ndarray, "n scalars"], label: Int[np.ndarray, " n"]
) -> Float[np.ndarray, " scalars"]:
    """The share of each column's variance that is between modes; NaN where nothing varies."""
    with np.errstate(divide="ignore", invalid="ignore"):
        away = columns - columns.mean(axis=0)
        between = sum(np.sum(label == mode) * away[label == mode].mean(axis=0) ** 2 for mode in np.unique(label))
        return between / np.sum(away**2, axis=0)


def pairs(figure: Any, result: "Result", distinguishing: DistinguishingParameters | None = None) -> None:
    """Histograms on the diagonal, every pair below it; on a Figure or SubFigure, since it takes many axes."""
    distinguishing = distinguishing or DistinguishingParameters.of(result)
    shown = mode_styles(result.modes.weight)
    usable = np.isfinite(distinguishing.values).all(axis=1)
    values, label = distinguishing.values[usable], distinguishing.label[usable]
    size = len(distinguishing.names)
    panels = figure.subplots(size, size, squeeze=False, sharex="col")
    for row in range(size):
        for column in range(size):
            axes = panels[row, column]
            if column > row:
                axes.set_axis_off()
            elif column == row:
                _histogram(axes, values[:, row], label, shown)
            else:
                _cloud(axes, values[:, [column, row]], label, shown)
            _written(axes, distinguishing.names, row, column, size)
    _legend(figure, panels, shown, rest=len(result.modes) > len(shown))


def _written(axes: "Axes", names: list[str], row: int, column: int, size: int) -> None:
    """Names and numbers at the outer edges only."""
    from matplotlib.ticker import MaxNLocator

    axes.tick_params(labelsize=8)
    axes.xaxis.set_major_locator(MaxNLocator(3))
    if row != column:
        axes.yaxis.set_major_locator(MaxNLocator(3))
    if row == size - 1:
        axes.set_xlabel(picture_text(names[column], 14))
    if column == 0 and row > 0:
        axes.set_ylabel(picture_text(names[row], 14))
    elif column > 0:
        axes.tick_params(labelleft=False)


def _histogram(axes: "Axes", values: np.ndarray, label: np.ndarray, shown: list[ModeStyle]) -> None:
    """Draws of each mode, upon one another."""
    edges = np.histogram_bin_edges(values, 40)
    below = np.zeros(len(edges) - 1)
    modes = [(style.colour, label == style.mode) for style in shown]
    modes.append((REST, ~np.isin(label, [style.mode for style in shown])))
    for colour, here in modes:
        height = np.histogram(values[here], edges)[0]
        axes.stairs(below + height, edges, baseline=below, fill=True, color=colour)
        below = below + height
    axes.stairs(below, edges, color=EDGE, linewidth=0.6)
    axes.set_yticks([])
    axes.spines["left"].set_visible(False)


def _cloud(axes: "Axes", values: np.ndarray, label: np.ndarray, shown: list[ModeStyle]) -> None:
    """Points of each mode, the lightest on top: it has the fewest."""
    rest = ~np.isin(label, [style.mode for style in shown])
    axes.scatter(values[rest, 0], values[rest, 1], s=4, color=REST, linewidths=0, rasterized=True, zorder=2)
    for n, style in enumerate(shown):
        here = label == style.mode
        few = here.sum() < 60
        axes.scatter(
            values[here, 0], values[here, 1], s=16 if few else 4, color=style.colour, marker=style.marker,
            alpha=1.0 if few else 0.5, edgecolors=EDGE if few else "none", linewidths=0.5 if few else 0,
            rasterized=True, zorder=3 + n,
        )  # fmt: skip


def _legend(figure: Any, panels: np.ndarray, shown: list[ModeStyle], *, rest: bool) -> None:
    """In the empty corner above the diagonal; where there is none, beside."""
    from matplotlib.lines import Line2D

    marks = [
        Line2D([], [], linestyle="none", marker=style.marker, color=style.colour, markeredgecolor=EDGE,
               markeredgewidth=0.5, markersize=7, label=style.name)
        for style in shown
    ]  # fmt: skip
    if rest:
        marks.append(Line2D([], [], linestyle="none", marker=".", color=REST, markersize=7, label="rest"))
    if len(panels) > 1:
        figure.legend(handles=marks, loc="upper right", ncols=1 if len(marks) < 5 or len(panels) < 3 else 2)
    else:
        figure.legend(handles=marks, loc="outside right upper")
