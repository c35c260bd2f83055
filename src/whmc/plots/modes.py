"""Pictures of the modes: how heavy they are, how they are connected, and their share of the evidence."""

import dataclasses
from typing import TYPE_CHECKING, Any

import numpy as np

from whmc._shapes import Float, Int
from whmc.plots.style import EDGE, REST, mode_styles, picture_text, style_numbers, write_reason

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from whmc.estimate.modes import ModeTable
    from whmc.result import Result


MAX_LINES = 300
"""Wormholes that are drawn, the busiest: more would blacken the picture."""


def weights_of_modes(axes: "Axes", result: "Result") -> None:
    """Weights with two standard errors, heaviest first."""
    table = result.modes
    shown = mode_styles(table.weight)
    order, places = [style.mode for style in shown], np.arange(len(shown))
    weight, reach = table.weight[order], 2 * table.weight_se[order]
    axes.bar(places, weight, color=[style.colour for style in shown], edgecolor=EDGE, linewidth=0.6, width=0.7)
    # no weight is negative, so no error bar goes there
    axes.errorbar(places, weight, [np.minimum(reach, weight), reach], fmt="none", ecolor=EDGE, capsize=3)
    for place, value, far in zip(places, weight, reach, strict=True):
        high = value + (far if np.isfinite(far) else 0.0)
        axes.annotate(brief(float(value)), (place, high), (0, 4), textcoords="offset points", ha="center", fontsize=8.5)
    axes.set_xticks(places, [str(k) for k in order])
    axes.set(xlabel="mode", ylabel="weight ± 2 standard errors", xlim=(-0.7, len(shown) - 0.3))
    axes.margins(y=0.1)
    axes.set_ylim(bottom=0)


def brief(weight: float) -> str:
    """A weight in few characters."""
    for least, form in ((0.1, ".2f"), (0.01, ".3f"), (0.001, ".4f"), (0.0001, ".1g")):
        if weight >= least:
            return f"{weight:{form}}"
    return "<1e-4" if weight else "0"


@dataclasses.dataclass(frozen=True)
class Plane:
    """The two directions in which the modes lie furthest apart. share: of the weighted spread between the modes.
    directions: (2, dim); the second is nil where there is none."""

    places: Float[np.ndarray, "size 2"]
    share: Float[np.ndarray, " 2"]
    directions: Float[np.ndarray, "2 dim"]

    @classmethod
    def of(cls, table: "ModeTable") -> "Plane":
        """Principal directions of the locations, weighted by the modes' weights."""
        away = table.location - table.weight @ table.location
        _, spread, rows = np.linalg.svd(np.sqrt(table.weight)[:, None] * away, full_matrices=False)
        directions, share = np.zeros((2, away.shape[1])), np.zeros(2)
        known = min(2, len(rows))
        directions[:known] = rows[:known] * np.sign(rows[:known].sum(axis=1, keepdims=True) + 1e-300)
        total = np.sum(spread**2)
        share[:known] = spread[:known] ** 2 / total if total > 0 else 0.0
        return cls(away @ directions.T, share, directions)

    def axis(self, number: int, names: list[str]) -> str:
        """What to write at an axis: the coordinates that matter most in it, and its share."""
        direction = np.abs(self.directions[number])
        if self.share[number] < 1e-6:
            return ""
        most = [n for n in np.argsort(-direction, kind="stable")[:2] if direction[n] > 0.3]
        along = ", ".join(picture_text(names[n], 12) for n in most)
        along = f" (mostly {along})" if most and len(direction) > 1 else f" ({along})" if most else ""
        return f"direction {number + 1}{along}: {self.share[number]:.0%}"


def network(axes: "Axes", result: "Result") -> None:
    """The wormhole network: a disc for each mode, its area the weight; a line where chains jumped, the wider the more
    often."""
    table, shown = result.modes, mode_styles(result.modes.weight)
    plane = Plane.of(table)
    flat = np.ptp(plane.places[:, 1]) < 1e-9 * max(float(np.ptp(plane.places[:, 0])), 1e-300)
    _wormholes(axes, plane.places, result.jumps + result.jumps.T, bent=bool(flat))
    rest = np.setdiff1d(np.arange(len(table)), [style.mode for style in shown])
    axes.scatter(plane.places[rest, 0], plane.places[rest, 1], s=14, color=REST, zorder=2, linewidths=0)
    order = [style.mode for style in shown]
    places, size = plane.places[order], 40 + 900 * table.weight[order]
    for n, style in enumerate(shown):  # the light ones on top, they are small
        axes.scatter(
            places[n, 0], places[n, 1], s=size[n], color=style.colour, edgecolors=EDGE, linewidths=0.8, zorder=10 + n
        )
    _numbers(axes, order, places, size)
    names = result.target.coordinates
    axes.margins(0.14)
    axes.set(xlabel=plane.axis(0, names), ylabel=plane.axis(1, names))
    if flat:
        axes.set_yticks([])
        axes.set_ylim(-0.4, 1)


def _numbers(axes: "Axes", modes: list[int], places: np.ndarray, size: Float[np.ndarray, " shown"]) -> None:
    """Each mode's number beside its disc, in the one of eight directions that is furthest from all the others."""
    from matplotlib.patheffects import withStroke

    # in points, for axes of a usual size
    page = (places - places.min(axis=0)) / np.maximum(np.ptp(places, axis=0), 1e-300) * (230, 170)
    angles = np.pi / 4 + np.arange(8) * np.pi / 4
    around = np.stack([np.cos(angles), np.sin(angles)], axis=1)
    taken = [*page]
    for n, mode in enumerate(modes):
        away = (np.sqrt(size[n]) / 2 + 7) * around
        others = np.array([*taken[:n], *taken[n + 1 :]]).reshape(-1, 2)
        gaps = np.linalg.norm((page[n] + away)[:, None] - others, axis=-1).min(axis=1, initial=20.0)
        best = away[int(np.argmax(gaps))]
        taken.append(page[n] + best)
        axes.annotate(
            str(mode), places[n], best, textcoords="offset points", ha="center", va="center", fontsize=9,
            fontweight="bold", zorder=40, path_effects=[withStroke(linewidth=2.5, foreground="white")],
        )  # fmt: skip


def _wormholes(
    axes: "Axes", places: Float[np.ndarray, "size 2"], both_ways: Int[np.ndarray, "size size"], *, bent: bool
) -> None:
    """Lines between modes; bent where all modes lie on one line, which would hide them."""
    from matplotlib.collections import LineCollection

    first, second = np.nonzero(np.triu(both_ways, 1))
    if not len(first):
        return
    busiest = np.argsort(-both_ways[first, second], kind="stable")[:MAX_LINES]
    first, second = first[busiest], second[busiest]
    widest = 5 * min(1.0, 40 / len(first))
    often = np.sqrt(both_ways[first, second] / both_ways.max())
    along = np.linspace(0, 1, 33 if bent else 2)[:, None]
    lines = [places[i] + along * (places[j] - places[i]) for i, j in zip(first, second, strict=True)]
    if bent:
        reach = max(float(np.ptp(places[:, 0])), 1e-300)
        for line in lines:
            line[:, 1] += 0.8 * np.sin(np.pi * along[:, 0]) * abs(line[-1, 0] - line[0, 0]) / reach
    axes.add_collection(
        LineCollection(lines, linewidths=0.4 + widest * often, colors="#7A7A7A", alpha=0.55, zorder=1, capstyle="round")
    )


def jumps(axes: "Axes", result: "Result") -> None:
    """Accepted jumps from mode (row) to mode (column), as colours and as numbers; light modes together."""
    weight = result.modes.weight
    shown = mode_styles(weight)
    counts, names = gathered_jumps(result), [str(style.mode) for style in shown]
    if len(weight) > len(shown):
        names.append("rest")
    if len(names) < 2:
        write_reason(axes, "one mode: there is nowhere to jump")
        return
    shade = np.log1p(counts) / max(float(np.log1p(counts).max()), 1e-300)
    axes.imshow(shade, cmap="Blues", vmin=0, vmax=1.15, aspect="auto")
    for (row, column), count in np.ndenumerate(counts):
        on_diagonal = row == column and names[row] != "rest"
        axes.text(
            column, row, "·" if on_diagonal else short_count(int(count)), ha="center", va="center", fontsize=8.5,
            color="white" if shade[row, column] > 0.62 else "black",
        )  # fmt: skip
    axes.set_xticks(np.arange(len(names)), names)
    axes.set_yticks(np.arange(len(names)), names)
    axes.set(xlabel="to mode", ylabel="from mode")
    axes.spines[:].set_visible(False)
    axes.tick_params(length=0)


def gathered_jumps(result: "Result") -> Int[np.ndarray, "shown shown"]:
    """Jumps among the heaviest modes and, as one more row and column, the rest."""
    slot = style_numbers(result.modes.weight)
    size = int(slot.max()) + 1
    counts = np.zeros((size, size), int)
    np.add.at(counts, (slot[:, None], slot[None, :]), result.jumps)
    return counts


def short_count(count: int) -> str:
    """A count in at most four characters or so."""
    for unit, factor in (("G", 10**9), ("M", 10**6), ("k", 10**3)):
        if count >= 10 * factor or (count >= factor and unit != "k"):
            return f"{count / factor:.3g}{unit}" if count < 100 * factor else f"{count / factor:.0f}{unit}"
    return str(count)


def evidences(axes: "Axes", result: "Result") -> None:
    """log evidence by every method, and of the heaviest modes, with two standard errors."""
    table = result.modes
    rows: list[tuple[str, float, float, dict[str, Any]]] = [
        (f"all, by {name}", one.log_evidence, one.se, {"color": EDGE, "marker": "o"})
        for name, one in result.evidence_estimates.items()
    ]
    if len(table) > 1:
        for style in mode_styles(table.weight):
            how: dict[str, Any] = {
                "color": style.colour,
                "marker": style.marker,
                "markeredgecolor": EDGE,
                "markeredgewidth": 0.6,
            }
            rows.append(
                (style.name, float(table.log_evidence[style.mode]), float(table.log_evidence_se[style.mode]), how)
            )
    rows = [row for row in rows if np.isfinite(row[1]) and np.isfinite(row[2])]
    if not rows:
        write_reason(axes, "no estimate of the evidence")
        return
    for place, (_, value, se, how) in enumerate(rows):
        axes.errorbar(value, place, xerr=2 * se, linestyle="none", ecolor=EDGE, capsize=3, markersize=6, **how)
    axes.set_yticks(np.arange(len(rows)), [row[0] for row in rows])
    axes.set_ylim(len(rows) - 0.5, -0.5)
    axes.grid(axis="x", color="0.9")
    axes.set_xlabel("log evidence ± 2 standard errors")
