"""Pictures of the chains: where each was when, how fast weights settle, and the energies of the modes."""

from typing import TYPE_CHECKING

import numpy as np

from whmc._shapes import Float, Int
from whmc.plots.style import EDGE, REST, mode_styles, style_numbers, thinned, write_reason

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from whmc.result import Result

MAX_CHAINS = 16
"""Chains that a trace shows: more would be thinner than a line."""

COLUMNS = 1200
"""Columns of pixels of a trace; draws that share one are drawn as how often each mode occurs among them."""


def label_traces(axes: "Axes", result: "Result") -> None:
    """The mode of each draw: a lane for each chain, in it a line for each of the heaviest modes, heaviest on top."""
    from matplotlib.colors import to_rgb

    slot = style_numbers(result.modes.weight)
    shares = lane_shares(slot[result.label[:MAX_CHAINS]], int(slot.max()) + 1)
    lanes, levels, columns = shares.shape
    colours = [to_rgb(style.colour) for style in mode_styles(result.modes.weight)]
    colours += [to_rgb(REST)] * (levels - len(colours))
    # visits of a single draw stay visible
    strength = np.where(shares > 0, 0.35 + 0.65 * shares, 0.0)[..., None]
    picture = np.ones((lanes, levels + 1, columns, 3))  # an empty line below each lane
    picture[:, :levels] = 1 - strength * (1 - np.array(colours)[:, None, :])
    draws = result.label.shape[1]
    axes.imshow(
        picture.reshape(-1, columns, 3), aspect="auto", interpolation="nearest", extent=(0, draws, lanes - 0.5, -0.5)
    )
    for edge in range(1, lanes):
        axes.axhline(edge - 0.5, color="0.8", linewidth=0.6)
    axes.set_yticks(np.arange(lanes), [str(chain) for chain in range(lanes)])
    axes.tick_params(axis="y", length=0)
    axes.set(xlabel="draw", ylabel="chain")
    legend_of_modes(axes, result, beside=True)


def lane_shares(slot: Int[np.ndarray, "chains draws"], levels: int) -> Float[np.ndarray, "chains levels columns"]:
    """How often each mode occurs among the draws that share a column."""
    chains, draws = slot.shape
    columns = min(COLUMNS, draws)
    column = np.arange(draws) * columns // draws
    counts = np.zeros((chains, levels, columns))
    np.add.at(counts, (np.arange(chains)[:, None], slot, column[None, :]), 1)
    return counts / np.bincount(column, minlength=columns)


def legend_of_modes(axes: "Axes", result: "Result", *, beside: bool) -> None:
    """A patch of colour for each of the heaviest modes."""
    from matplotlib.patches import Patch

    shown = mode_styles(result.modes.weight)
    patches = [Patch(facecolor=style.colour, edgecolor=EDGE, linewidth=0.5, label=style.name) for style in shown]
    if len(result.modes) > len(shown):
        patches.append(Patch(facecolor=REST, label="rest"))
    place = {"loc": "upper left", "bbox_to_anchor": (1.0, 1.0)} if beside else {"loc": "best"}
    axes.legend(handles=patches, handlelength=1.0, borderaxespad=0.3, **place)


def running_weights(axes: "Axes", result: "Result") -> None:
    """Share of each mode among the draws so far, against the gradients spent so far, all chains together."""
    from matplotlib.ticker import EngFormatter

    label = result.label
    spent = gradients_spent(result)
    some = thinned(label.shape[1], 400)
    num = np.arange(1, label.shape[1] + 1) * label.shape[0]
    shown = mode_styles(result.modes.weight)
    for n, style in enumerate(shown):
        share = np.cumsum(np.sum(label == style.mode, axis=0)) / num
        share = np.where(share > 0, share, np.nan)
        points, apart = share[some], max(len(share[some]) // 6, 1)
        if style.faint:
            axes.plot(spent[some], points, color=EDGE, linewidth=2.6, zorder=9.9 - n)
        axes.plot(
            spent[some], points, color=style.colour, marker=style.marker, markersize=5, markeredgecolor=EDGE,
            markeredgewidth=0.5, markevery=(len(points) // 20 * n % apart, apart), linewidth=1.6, label=style.name,
            zorder=10 - n,
        )  # fmt: skip
    lightest = min(float(result.modes.weight[style.mode]) for style in shown)
    if lightest < 0.05:
        axes.set_yscale("log")
    else:
        axes.set_ylim(0, 1.03)
    axes.grid(axis="y", color="0.92")
    axes.xaxis.set_major_formatter(EngFormatter(sep=""))
    axes.set(xlabel="gradients of all chains", ylabel="share of the draws so far")
    axes.legend(loc="upper left", bbox_to_anchor=(1.0, 1.02), borderaxespad=0.3, handlelength=1.6)


def gradients_spent(result: "Result") -> Int[np.ndarray, " draws"]:
    """Gradients of all moves and chains up to each draw; where none were counted, draws."""
    each = [np.asarray(info.num_gradients).sum(axis=0) for info in result.steps.values()]
    total = np.cumsum(np.sum(each, axis=0)) if each else np.zeros(result.label.shape[1], int)
    return total if total[-1] > 0 else np.arange(1, len(total) + 1)


def energies(axes: "Axes", result: "Result") -> None:
    """Energy (minus log density) of the draws of each mode, one row each, all of the same height."""
    energy = -result.logdensity
    usable = np.isfinite(energy)
    if not usable.any() or np.ptp(energy[usable]) == 0:
        write_reason(axes, "all draws have the same energy")
        return
    # a few far draws shall not press all the others into one bar
    shown = mode_styles(result.modes.weight)
    parts = [energy[usable & (result.label == style.mode)] for style in shown]
    low, high = float(energy[usable].min()), max(float(np.quantile(part, 0.995)) for part in parts if len(part))
    edges = np.linspace(low, max(high, low + 1e-9 * max(abs(low), 1)), 61)
    for row, (style, part) in enumerate(zip(shown, parts, strict=True)):
        heights = np.histogram(part, edges)[0].astype(float)
        heights *= 0.85 / max(float(heights.max()), 1.0)
        axes.stairs(heights - row, edges, baseline=-row, fill=True, color=style.colour, alpha=0.75)
        axes.stairs(heights - row, edges, baseline=-row, color=EDGE, linewidth=0.7)
    axes.set_yticks(-np.arange(len(shown)), [style.name for style in shown], va="bottom")
    axes.tick_params(axis="y", length=0)
    axes.set_ylim(-len(shown) + 0.9, 1.0)
    axes.set_xlabel("energy (minus log density)")
    axes.spines["left"].set_visible(False)
