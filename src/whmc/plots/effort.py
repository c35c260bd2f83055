"""Pictures of the search and of the tuning."""

from typing import TYPE_CHECKING

import numpy as np

from whmc.modes.chart_data import step_sizes_of
from whmc.plots.style import EDGE, REST, mode_styles, write_reason

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from whmc.result import Result


def discovery(axes: "Axes", result: "Result") -> None:
    """Modes found against gradients spent by the search; the starts they belong to are written above."""
    from matplotlib.ticker import MaxNLocator

    if not searched(result) or result.search is None:
        write_reason(axes, "there was no search: the modes were given")
        return
    # most modes are found early: gradients on a logarithmic scale, which has no place for none
    rows = result.search.discovery[result.search.discovery[:, 1] > 0]
    starts, gradients, found = rows.T
    axes.step(gradients, found, where="post", color="#0072B2", linewidth=1.8)
    axes.plot(gradients, found, "o", color="#0072B2", markersize=4, markeredgecolor=EDGE, markeredgewidth=0.5)
    axes.annotate(
        result.search.missing.brief, (1, 0), (-4, 5),
        xycoords="axes fraction", textcoords="offset points", ha="right", fontsize=8.5, color=EDGE,
    )  # fmt: skip
    axes.set_ylim(0, 1.18 * max(float(found.max()), 1.0))
    axes.yaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set(xlabel="gradients of the search", ylabel="modes found")
    axes.set_xscale("log")
    _starts_above(axes, starts, gradients)


def searched(result: "Result") -> bool:
    """Whether there was a search that spent gradients."""
    return result.search is not None and bool(np.any(result.search.discovery[:, 1] > 0))


def _starts_above(axes: "Axes", starts: np.ndarray, gradients: np.ndarray) -> None:
    """A second axis with the number of starts, at some of the rows."""
    axes.spines["top"].set_visible(True)
    above = axes.secondary_xaxis("top")
    place = np.log(gradients)
    kept: list[int] = []
    for row in range(len(place))[::-1]:  # numbers that would touch are left out
        if not kept or place[kept[-1]] - place[row] > 0.14 * np.ptp(place):
            kept.append(row)
    above.set_xticks(gradients[kept].tolist(), [str(n) for n in starts[kept]])
    above.minorticks_off()
    above.set_xlabel("starts")


def step_sizes(axes: "Axes", result: "Result") -> None:
    """Step size of each chart, in the order of the charts; the heaviest modes with colour and marker."""
    from matplotlib.ticker import MaxNLocator

    step_size, mode_of = step_sizes_of(result.library.charts()), result.library.mode_of
    chart, rest = np.arange(len(step_size)), np.ones(len(step_size), bool)
    for style in mode_styles(result.modes.weight):
        here = mode_of == style.mode
        rest &= ~here
        axes.scatter(
            chart[here], step_size[here], s=45, color=style.colour, marker=style.marker, edgecolors=EDGE,
            linewidths=0.6, label=style.name, zorder=3,
        )  # fmt: skip
    if rest.any():
        axes.scatter(chart[rest], step_size[rest], s=18, color=REST, label="rest", linewidths=0, zorder=2)
    if step_size.max() > 8 * step_size.min():
        axes.set_yscale("log")
    else:
        axes.set_ylim(0, 1.1 * step_size.max())
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
    axes.set_xlim(-0.7, len(chart) - 0.3)
    axes.grid(axis="y", color="0.92")
    axes.set(xlabel="chart", ylabel="step size")
    axes.legend(loc="upper left", bbox_to_anchor=(1.0, 1.02), borderaxespad=0.3, handlelength=1.0)
