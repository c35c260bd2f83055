"""The pictures in words: the main figures of each, for its text alternative."""

from typing import TYPE_CHECKING

import numpy as np

from whmc._words import counted
from whmc.estimate.missing import FEW_HITS, percent
from whmc.modes.chart_data import step_sizes_of
from whmc.plots.effort import searched
from whmc.plots.missing import Hits
from whmc.plots.modes import Plane
from whmc.plots.pairs import DistinguishingParameters
from whmc.plots.style import ModeStyle, mode_styles

if TYPE_CHECKING:
    from whmc.result import Result


def number(value: float, form: str = ".4g") -> str:
    """A number for people: minus and infinity by their signs, a dash where there is none."""
    if np.isnan(value):
        return "–"
    if np.isinf(value):
        return "∞" if value > 0 else "−∞"
    text = f"{value:{form}}"
    if float(text) == 0:
        text = text.removeprefix("-")
    return (text.rstrip(".") if "#" in form else text).replace("-", "−")


def _shown(result: "Result") -> list[ModeStyle]:
    return mode_styles(result.modes.weight)


def _each(result: "Result", values: np.ndarray, form: str) -> str:
    return ", ".join(f"mode {style.mode} {number(float(values[style.mode]), form)}" for style in _shown(result))


def of_weights(result: "Result") -> str:
    table = result.modes
    parts = [
        f"mode {style.mode} {table.weight[style.mode]:.4f} ± {number(float(table.weight_se[style.mode]), '.4f')}"
        for style in _shown(result)
    ]
    rest = len(table) - len(parts)
    return f"Bar chart of mode weights: {', '.join(parts)}" + (f"; {rest} lighter modes not shown." if rest else ".")


def of_network(result: "Result") -> str:
    size = len(result.modes)
    if size == 1:
        return "Map of the modes: there is one mode only."
    linked = int(np.count_nonzero(np.triu(result.jumps + result.jumps.T, 1)))
    share = Plane.of(result.modes).share
    return (
        f"Map of {size} modes in two directions that hold {share.sum():.0%} of the spread between them; chains jumped "
        f"between {linked} of {size * (size - 1) // 2} pairs, {int(result.jumps.sum())} times in all."
    )


def of_jumps(result: "Result") -> str:
    jumps = result.jumps
    if not jumps.any():
        return "Table of accepted jumps: there were none."
    start, end = np.unravel_index(int(np.argmax(jumps)), jumps.shape)
    return (
        f"Table of {int(jumps.sum())} accepted jumps between {len(jumps)} modes; most, {jumps[start, end]}, from mode "
        f"{start} to mode {end}, and {jumps[end, start]} back."
    )


def of_evidence(result: "Result") -> str:
    parts = [
        f"{number(one.log_evidence, '.3f')} ± {number(one.se, '.3f')} by {name}"
        for name, one in result.evidence_estimates.items()
    ]
    modes = f"; {_each(result, result.modes.log_evidence, '.3f')}" if len(result.modes) > 1 else ""
    return f"log evidence: {', '.join(parts)}{modes}."


def of_running(result: "Result") -> str:
    half = result.label[:, : max(result.label.shape[1] // 2, 1)]
    size = len(result.modes)
    then, now = (np.bincount(part.ravel(), minlength=size) / part.size for part in (half, result.label))
    moved = int(np.argmax(np.abs(now - then)))
    return (
        f"Lines of each mode's share of the draws over {result.num_gradients} gradients. At the end: "
        f"{_each(result, now, '.3g')}. Since half of the run the largest change is {abs(now - then)[moved]:.2g}, "
        f"of mode {moved}."
    )


def of_energies(result: "Result") -> str:
    energy = -result.logdensity
    here = [(style, energy[result.label == style.mode]) for style in _shown(result)]
    parts = [f"mode {style.mode} {number(float(np.median(rows)), '.3g')}" for style, rows in here if len(rows)]
    return f"Histograms of energy by mode; medians: {', '.join(parts)}."


def of_discovery(result: "Result") -> str:
    search = result.search
    if search is None or not searched(result):
        return "There was no search."
    rows = search.discovery
    last = rows[int(np.argmax(rows[:, 2]))]
    return (
        f"Modes found by the search: {rows[-1, 2]} after {search.num_starts} starts and {search.num_gradients} "
        f"gradients, the last after {last[0]} starts and {last[1]} gradients; "
        f"{search.missing.brief}."
    )


def of_hits(result: "Result") -> str:
    found = Hits.of(result)
    if found is None:
        return "No independent start has hit a mode."
    narrow, wide = int(np.argmin(found.log_volume)), int(np.argmax(found.log_volume))
    limit = (
        f" Below a log volume of {number(found.limit, '.2f')} one mode in ten or more would have been missed."
        if np.isfinite(found.limit)
        else ""
    )
    return (
        f"Hits of {counted(len(found.hits), 'mode')} by {found.num_starts} independent starts, from {found.hits.min()} "
        f"to {found.hits.max()}. The widest, mode {found.mode[wide]}, was hit {found.hits[wide]} times; the narrowest, "
        f"mode {found.mode[narrow]}, whose log volume is {number(-float(found.log_volume[narrow]), '.2f')} less, "
        f"{found.hits[narrow]} times. {counted(int(found.rare.sum()), 'mode')} of more than 1 % "
        f"{'was' if found.rare.sum() == 1 else 'were'} hit fewer than {FEW_HITS} times.{limit}"
    )


def of_missing(result: "Result") -> str:
    found = Hits.of(result)
    if found is None or result.search is None:
        return "No independent start has hit a mode."
    missing = result.search.missing
    return (
        f"Curve of the mass that a part of {found.num_starts} independent starts would have missed: an eighth "
        f"{percent(missing.brought_late)}, a quarter {percent(missing.brought)}, half {percent(found.missed(1 / 2))}. "
        f"Expected in modes that all of them have missed: {percent(missing.expected)}; bound of it, nine times in ten: "
        f"{percent(missing.bound)}; gain of as many starts again: {percent(missing.next_gain)}."
    )


def of_steps(result: "Result") -> str:
    step_size = step_sizes_of(result.library.charts())
    return (
        f"Step sizes of {counted(len(step_size), 'chart')}, from {step_size.min():.3g} to {step_size.max():.3g}, "
        f"median {np.median(step_size):.3g}."
    )


def of_traces(result: "Result") -> str:
    changes = np.mean(result.label[:, 1:] != result.label[:, :-1]) if result.label.shape[1] > 1 else 0.0
    return (
        f"The modes of {counted(len(result.label), 'chain')} at each of {result.label.shape[1]} draws; the mode "
        f"changes in {changes:.1%} of the steps, chains came back to the heaviest mode {int(result.round_trips.sum())} "
        "times."
    )


def of_pairs(result: "Result", distinguishing: DistinguishingParameters) -> str:
    if len(result.modes) == 1:
        return f"Scatter plots and histograms of {', '.join(distinguishing.names)}; there is one mode."
    parts = [f"{name} {share:.0%}" for name, share in zip(distinguishing.names, distinguishing.share, strict=True)]
    return f"Scatter plots by mode; share of the variance that is between modes: {', '.join(parts)}."
