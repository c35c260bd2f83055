"""Pictures of what a search has not found: hits of the modes that it found, and mass that fewer starts had missed."""

import dataclasses
from typing import TYPE_CHECKING

import numpy as np

from whmc._shapes import Bool, Float, Int
from whmc.estimate.missing import ALARM, FEW_HITS, FEW_STARTS, GO_ON, HEAVY, NOTICED, missed
from whmc.modes.chart_data import locations_of, log_weights_of
from whmc.modes.mixture import log_components_of
from whmc.plots.style import EDGE, REST, mode_styles, write_reason
from whmc.search.width import middle

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.patheffects import AbstractPathEffect

    from whmc.result import Result

LEAST_MASS = 1e-6
"""The curve of missed mass ends here: the search leaves out modes of less."""

CURVE = "#0072B2"


@dataclasses.dataclass(frozen=True)
class Hits:
    """The modes of a search, and how often `num_starts` independent starts hit them.

    hits: modes without a peak (rings, shells) are one basin for the starts, so each has the hits of all of them. share:
    of the mass. log_volume: log |L| of the heaviest chart, over the largest. mode: the number in the result. limit:
    modes of a smaller log volume are missed in one of ten cases or more; NaN where that is not known.
    """

    num_starts: int
    hits: Int[np.ndarray, " modes"]
    share: Float[np.ndarray, " modes"]
    log_volume: Float[np.ndarray, " modes"]
    mode: Int[np.ndarray, " modes"]
    limit: float

    @staticmethod
    def of(result: "Result") -> "Hits | None":
        """None without a search, or where no mode was hit."""
        search = result.search
        if search is None or search.missing.num_starts == 0:
            return None
        hits = np.where(search.independent_hits > 0, search.independent_hits, search.state.num_flat_hits)
        seen = hits > 0
        if not seen.any():
            return None
        library = search.library
        charts = library.charts()
        of_mode = [np.flatnonzero(library.mode_of == k) for k in range(library.num_modes)]
        log_weight = log_weights_of(charts)
        first = np.array([mine[np.argmax(log_weight[mine])] for mine in of_mode])
        log_volume = np.asarray(library.log_det, float)[first]
        log_volume = log_volume - log_volume.max()
        share = library.mode_weights() / library.mode_weights().sum()
        chart = np.argmax(log_components_of(result.library, locations_of(charts)[first]), axis=0)
        usual = middle(log_volume[seen], share[seen])
        return Hits(
            num_starts=search.missing.num_starts,
            hits=hits,
            share=share,
            log_volume=log_volume,
            mode=result.partition.of_chart[chart],
            limit=float(log_volume[seen][usual] + library.dim * np.log(search.missing.width_limit)),
        )

    @property
    def rare(self) -> Bool[np.ndarray, " modes"]:
        """Modes that hold much and were hit rarely: a trace of others that were missed."""
        return (self.hits < FEW_HITS) & (self.share > HEAVY)

    def missed(self, part: float) -> float:
        """L(t): the mass that a part t of the starts would have missed, of that in modes with hits."""
        seen = self.hits > 0
        return missed(self.hits[seen], self.share[seen] / self.share[seen].sum(), part)

    def curve(self) -> tuple[Float[np.ndarray, " points"], Float[np.ndarray, " points"]]:
        """Numbers of starts t n, and L(t) as far as it is not below `LEAST_MASS`, NaN beyond."""
        part = np.append(np.geomspace(1 / self.num_starts, 0.5, 300), 1 - np.geomspace(0.5, 1e-7, 100)[1:])
        mass = np.array([self.missed(t) for t in part.tolist()])
        return part * self.num_starts, np.where(mass < LEAST_MASS, np.nan, mass)


def hits_by_volume(axes: "Axes", result: "Result") -> None:
    """Hits of each mode by independent starts, against the volume of its chart; the area of a mark is the mass."""
    from matplotlib.collections import PathCollection

    found = Hits.of(result)
    if found is None:
        write_reason(axes, "no independent start has hit a mode")
        return
    area, rest = 30 + 250 * found.share, np.ones(len(found.hits), bool)
    bold = np.where(found.rare, 2.0, 0.6)
    for style in mode_styles(result.modes.weight):
        here = found.mode == style.mode
        rest &= ~here
        axes.scatter(
            found.log_volume[here], found.hits[here], s=area[here], color=style.colour, marker=style.marker,
            edgecolors=EDGE, linewidths=bold[here].tolist(), label=style.name, zorder=3,
        )  # fmt: skip
    if rest.any():
        axes.scatter(
            found.log_volume[rest], found.hits[rest], s=area[rest], color=REST, edgecolors=EDGE,
            linewidths=bold[rest].tolist(), label="rest", zorder=2,
        )  # fmt: skip
    _scales(axes, found)
    _level(axes, float(FEW_HITS), f"{FEW_HITS} hits")
    if np.isfinite(found.limit):
        _limit(axes, found.limit)
    axes.set(xlabel="log volume of the chart, over the largest", ylabel=f"hits by {found.num_starts} starts")
    legend = axes.legend(loc="upper left", bbox_to_anchor=(1.0, 1.02), borderaxespad=0.3, handlelength=1.0)
    for handle in legend.legend_handles:  # all alike, whatever the area of the first mark
        if isinstance(handle, PathCollection):
            handle.set(sizes=[45], linewidths=[0.6])


def _scales(axes: "Axes", found: Hits) -> None:
    """Hits on a logarithmic scale, with a place for none; volumes that differ by nothing are not torn apart."""
    axes.set_yscale("symlog", linthresh=1, linscale=0.5)
    axes.set_ylim(-0.3 if (found.hits == 0).any() else 0.8, 3.0 * float(found.hits.max()))
    low = float(np.fmin(found.log_volume.min(), found.limit))
    room = 0.08 * max(-low, 1.0)
    axes.set_xlim(min(low, -1.0) - room, room)


def _limit(axes: "Axes", volume: float) -> None:
    """A line at the limit of width, with what it means, on the side that has room."""
    left, right = axes.get_xlim()
    near_left = volume < 0.5 * (left + right)
    axes.axvline(volume, color=EDGE, linewidth=1, linestyle=":", zorder=1)
    axes.annotate(
        "narrower: one in ten missed", (volume, 0),
        (4 if near_left else -4, 4), xycoords=("data", "axes fraction"), textcoords="offset points",
        ha="left" if near_left else "right", fontsize=8.5, color=EDGE, path_effects=_on_white(), zorder=5,
    )  # fmt: skip


def _level(axes: "Axes", height: float, name: str) -> None:
    """A dashed line across, with its name."""
    axes.axhline(height, color=EDGE, linewidth=0.9, linestyle="--", zorder=1)
    axes.annotate(
        name, (0, height), (4, 2), xycoords=("axes fraction", "data"), textcoords="offset points", fontsize=8.5,
        color=EDGE, path_effects=_on_white(), zorder=5,
    )  # fmt: skip


def _on_white() -> "list[AbstractPathEffect]":
    from matplotlib.patheffects import withStroke

    return [withStroke(linewidth=2.5, foreground="white")]


def missing_mass(axes: "Axes", result: "Result") -> None:
    """The mass that a part of the starts would have missed, against their number; at the right, what all have missed.

    The levels are those above which a search goes on (of an eighth of the starts) and above which there is an alarm (of
    a quarter, or of what is expected). What lies below the picture is drawn at its edge, and what is less than hits can
    show with an arrow.
    """
    found = Hits.of(result)
    if found is None or result.search is None:
        write_reason(axes, "no independent start has hit a mode")
        return
    missing, num = result.search.missing, found.num_starts
    starts, mass = found.curve()
    axes.plot(starts, mass, color=CURVE, linewidth=1.8)
    _level(axes, GO_ON, "an eighth above: more starts")
    _level(axes, ALARM, f"{'a quarter' if num >= FEW_STARTS else 'expected'} above: alarm")
    _mark(axes, num / 8, missing.brought_late, "o", CURVE, "an eighth of the starts")
    _mark(axes, num / 4, missing.brought, "s", CURVE, "a quarter")
    # to the right of the curve, whose end would hide them
    ahead, expected = 1.5 * num, max(missing.expected, NOTICED)
    if missing.bound > expected:
        axes.plot([ahead, ahead], [expected, missing.bound], color=EDGE, linewidth=1.4, marker="_", markevery=[1])
    _estimate(axes, ahead, missing.expected, "D", "#D55E00", "all: expected, and its bound")
    _estimate(axes, 2.2 * num, missing.next_gain, "^", "#009E73", "gain of as many again")
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_ylim(LEAST_MASS, 1.5)
    axes.set_xlim(1, 3.2 * num)
    axes.set(xlabel="independent starts", ylabel="share of the mass that they miss")
    axes.legend(loc="best", handlelength=1.0)


def _mark(axes: "Axes", place: float, mass: float, marker: str, colour: str, name: str) -> None:
    """A mark at a mass, or at the lower edge if that is below it."""
    axes.plot(
        place, max(mass, LEAST_MASS), marker, color=colour, markeredgecolor=EDGE, markeredgewidth=0.6,
        linestyle="none", label=name, zorder=6, clip_on=False,
    )  # fmt: skip


def _estimate(axes: "Axes", place: float, mass: float, marker: str, colour: str, name: str) -> None:
    """A mark at a mass that is not known but expected; with an arrow if it is less than hits can show."""
    if mass < NOTICED:
        arrow = {"arrowstyle": "<-", "color": EDGE}
        axes.annotate("", (place, NOTICED), (0, -16), textcoords="offset points", arrowprops=arrow)
    _mark(axes, place, max(mass, NOTICED), marker, colour, name)
