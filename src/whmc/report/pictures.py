"""The report's pictures: what each shows in words, and its file as text."""

import base64
import dataclasses
import io
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from whmc import plots
from whmc.plots.chains import MAX_CHAINS
from whmc.plots.effort import searched
from whmc.plots.missing import Hits
from whmc.report import alt_text

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from whmc.result import Result

MAX_SVG_BYTES = 700_000
"""Bytes of an SVG file above which a PNG takes its place."""

DPI = 150

SMALL = (4.8, 3.5)
"""Inches: letters stay readable on a phone."""


@dataclasses.dataclass(frozen=True)
class Picture:
    """One picture. alternative: its main figures, for those who do not see it. size: inches. wide: it takes a row.
    half: it takes nearly half of one or more, so that two stay together."""

    title: str
    caption: str
    alternative: str
    size: tuple[float, float]
    draw: Callable[["Figure"], None]
    wide: bool = False
    half: bool = False


def on_axes(draw: Callable[[Any, "Result"], None], result: "Result") -> Callable[["Figure"], None]:
    """A picture that takes one pair of axes."""
    return lambda figure: draw(figure.subplots(), result)


def _small(
    result: "Result",
    title: str,
    caption: str,
    say: Callable[["Result"], str],
    draw: Callable[[Any, "Result"], None],
) -> Picture:
    """A picture of the usual size on one pair of axes; `say` gives its alternative."""
    return Picture(title, caption, say(result), SMALL, on_axes(draw, result))


def pictures_of(result: "Result") -> Iterator[Picture]:
    """Every picture that the result has something for: six small ones, which fill two columns and three, before those
    that take a row."""
    several = result.num_modes > 1
    if several:
        yield from _of_modes(result)
    yield _small(
        result, "Evidence", "Log evidence of the whole and of each mode, with two standard errors.",
        alt_text.of_evidence, plots.evidences,
    )  # fmt: skip
    yield _small(
        result, "Energies",
        "Energy of the draws of each mode, all rows scaled to one height; the highest 0.5 % are left out.",
        alt_text.of_energies, plots.energies,
    )  # fmt: skip
    if several:
        yield _traces(result)
    yield _pairs(result)
    yield _small(
        result, "Step sizes", "Step size of the local moves in each chart, in units of the chart's scale.",
        alt_text.of_steps, plots.step_sizes,
    )  # fmt: skip
    if searched(result):
        yield _small(
            result, "Discovery", "Modes worth keeping that the search had found, against what it had spent.",
            alt_text.of_discovery, plots.discovery,
        )  # fmt: skip
    yield from _of_missing(result)


def _of_modes(result: "Result") -> Iterator[Picture]:
    """Those that say nothing about one mode alone."""
    yield _small(
        result, "Weights of the modes", "Bars: weights, heaviest first. Whiskers: two standard errors.",
        alt_text.of_weights, plots.weights_of_modes,
    )  # fmt: skip
    yield _small(
        result, "Wormhole network",
        "The modes in the two directions that part them most. Area of a disc: weight. Width of a line: accepted jumps. "
        "At the axes, which start from the mean: share of the spread between modes.",
        alt_text.of_network, plots.network,
    )  # fmt: skip
    yield _small(
        result, "Jumps between modes", "Accepted jumps from a mode (row) to another (column), all moves and chains.",
        alt_text.of_jumps, plots.jumps,
    )  # fmt: skip
    yield _small(
        result, "Running weights",
        "Share of each mode among the draws so far. Lines that have become level say that the weights have settled.",
        alt_text.of_running, plots.running_weights,
    )  # fmt: skip


def _of_missing(result: "Result") -> Iterator[Picture]:
    """What hits tell of modes that were not found, where there are any."""
    found = Hits.of(result)
    if found is None:
        return
    missing = _small(
        result, "Mass not found",
        "Curve: share of the mass that a part of the starts would have missed; marks at the lower edge lie below it. "
        "Diamond: share expected in modes that all starts have missed, with its bound (nine times in ten). Triangle: "
        "what as many starts again should bring. Arrow: less than 0.1 %, which hits cannot tell from nothing.",
        alt_text.of_missing, plots.missing_mass,
    )  # fmt: skip
    if len(found.hits) == 1:
        yield missing
        return
    limit = " Dotted: below this volume one mode in ten or more would have been missed."
    hits = _small(
        result, "Hits and volumes of the modes",
        "How many independent starts ended in each mode, against the volume of its chart. Area: mass. Bold edge: a "
        "mode of more than 1 % that was hit fewer than ten times, a trace of others like it that were missed."
        + (limit if np.isfinite(found.limit) else ""),
        alt_text.of_hits, plots.hits_by_volume,
    )  # fmt: skip
    yield from (dataclasses.replace(picture, half=True) for picture in (hits, missing))


def _traces(result: "Result") -> Picture:
    shown, chains = min(len(result.label), MAX_CHAINS), len(result.label)
    return Picture(
        "Mode of each draw, chain by chain",
        "A lane for each chain; in a lane a line for each mode, heaviest on top. A long stretch on one line is a chain "
        "that stays in one mode. Where all lanes look alike, the chains have mixed."
        + ("" if shown == chains else f" The first {shown} of {chains}."),
        alt_text.of_traces(result), (9.6, 1.3 + 0.29 * shown), on_axes(plots.label_traces, result), wide=True,
    )  # fmt: skip


def _pairs(result: "Result") -> Picture:
    distinguishing = plots.DistinguishingParameters.of(result)
    size = len(distinguishing.names)
    several = "Some of the draws by mode, in the parameters with the largest share of variance between modes."
    alone = "Some of the draws" + (f", in the first {size} parameters." if size < len(result.parameters) else ".")
    return Picture(
        "Parameters that tell the modes apart" if result.num_modes > 1 else "Parameters",
        several if result.num_modes > 1 else alone,
        alt_text.of_pairs(result, distinguishing),
        (1.9 * size, 1.7 * size) if size > 2 else ((5.8, 4.6) if size == 2 else SMALL),
        lambda figure: plots.pairs(figure, result, distinguishing), wide=size > 2,
    )  # fmt: skip


def address(picture: Picture) -> tuple[str, int, int]:
    """The picture as a `data:` address, SVG if that is small and PNG else; its width and height in CSS pixels."""
    from matplotlib.figure import Figure

    width, height = (round(96 * side) for side in picture.size)
    figure = Figure(figsize=picture.size, layout="constrained", dpi=DPI)
    picture.draw(figure)
    content, kind = _file(figure, "svg"), "svg+xml"
    if len(content) > MAX_SVG_BYTES:
        content, kind = _file(figure, "png"), "png"
    return f"data:image/{kind};base64,{base64.b64encode(content).decode()}", width, height


def _file(figure: "Figure", kind: str) -> bytes:
    file = io.BytesIO()
    # without the date, so that the same result gives the same file
    figure.savefig(file, format=kind, metadata={"Date": None} if kind == "svg" else None)
    return file.getvalue()
