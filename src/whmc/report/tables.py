"""The report's tables and lists, as HTML. Every text that may come from a user goes through `escape`."""

import json
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import TYPE_CHECKING, Any

import numpy as np

from whmc._words import counted
from whmc.plots.pairs import DistinguishingParameters
from whmc.plots.style import mode_styles
from whmc.report.alt_text import number

if TYPE_CHECKING:
    from whmc.result import Result

OPEN_ROWS = 20
"""Rows that are always open; the others can be opened."""

MAX_ROWS = 1000
"""Rows of a table at most: a page with more is slow to open."""


def table(caption: str, head: Sequence[str], rows: Iterable[Sequence[str]], kind: str = "") -> str:
    """A table that scrolls by itself where the page is narrow. The cells are HTML; the first of a row names it."""
    lines = [
        f'<div class="scroll" role="region" tabindex="0" aria-label="{escape(caption)}">',
        f'<table class="{kind}">',
    ]
    lines.append(f"<caption>{escape(caption)}</caption>")
    lines.append("<thead><tr>" + "".join(f'<th scope="col">{cell}</th>' for cell in head) + "</tr></thead>\n<tbody>")
    for first, *cells in rows:
        lines.append(f'<tr><th scope="row">{first}</th>' + "".join(f"<td>{cell}</td>" for cell in cells) + "</tr>")
    return "\n".join([*lines, "</tbody>", "</table>", "</div>"])


def long_table(caption: str, head: Sequence[str], rows: Sequence[Sequence[str]], what: str, whole: str) -> str:
    """The first rows, then those that can be opened, then how many are left out and where they are."""
    parts = [table(caption, head, rows[:OPEN_ROWS])]
    more = rows[OPEN_ROWS:MAX_ROWS]
    if more:
        parts += [
            f"<details><summary>{len(more)} more {what}</summary>",
            table(f"{caption} (continued)", head, more),
            "</details>",
        ]
    if len(rows) > MAX_ROWS:
        parts.append(f'<p class="note">And {len(rows) - MAX_ROWS} more: {escape(whole)}.</p>')
    return "\n".join(parts)


def beside(*parts: str) -> str:
    """Tables beside one another where the page is wide enough."""
    return "\n".join(['<div class="tables">', *(f"<div>{part}</div>" for part in parts), "</div>"])


def unseen(result: "Result") -> str:
    """What no check can show."""
    if result.search is None:
        return "The modes were given: nothing tells which others there may be."
    return f"Whether all modes were found no check can prove: {result.search.missing}"


def unseen_note(result: "Result") -> str:
    """The same, unless it stands at the top of the page already: where there are no alarms, or in one of them."""
    told = "" if result.search is None else str(result.search.missing).rstrip(".")
    if not result.alarms or (told and any(told in alarm.message for alarm in result.alarms)):
        return ""
    return f'<p class="note">{escape(unseen(result))}</p>'


def alarms(result: "Result") -> str:
    """What not to trust, or that nothing was noticed."""
    found = result.alarms
    if not found:
        calm = '<h2 id="alarms-heading">No alarms</h2>\n<p class="calm">'
        return f"{calm}No check has failed. {escape(unseen(result))}</p>"
    lines = [f'<h2 id="alarms-heading">{counted(len(found), "alarm")}</h2>', '<ul class="alarms">']
    for alarm in found:
        lines += [
            f'<li><h3>{escape(alarm.name)} <span class="figure">({number(alarm.figure, ".3g")})</span></h3>',
            f"<p>{escape(alarm.message)}.</p>",
            f"<p><strong>Remedy:</strong> {escape(alarm.remedy)}</p></li>",
        ]
    return "\n".join([*lines, "</ul>"])


def facts(pairs: Mapping[str, str]) -> str:
    """Numbers that one wants to see first."""
    rows = [f"<div><dt>{escape(name)}</dt><dd>{escape(value)}</dd></div>" for name, value in pairs.items()]
    return "\n".join(['<dl class="facts">', *rows, "</dl>"])


def _name(result: "Result", mode: int) -> str:
    """A mode's number, with its colour where it has one."""
    colour = {style.mode: style.colour for style in mode_styles(result.modes.weight)}.get(mode)
    swatch = f'<span class="swatch" style="background:{colour}" aria-hidden="true"></span>' if colour else ""
    return f"{swatch}{mode}"


def modes(result: "Result") -> str:
    """A row for each mode that was visited, heaviest first; the others are counted."""
    found = result.modes
    rows = []
    visited = np.flatnonzero(found.visits)
    for k in visited[np.argsort(-found.weight[visited], kind="stable")]:
        visits, peaks, valley = found.counts(k)
        rows.append(
            [
                _name(result, int(k)),
                f"{found.weight[k]:.4f}",
                number(float(found.weight_se[k]), ".4f"),
                number(float(found.log_evidence[k]), ".3f"),
                number(float(found.log_evidence_se[k]), ".3f"),
                visits,
                *(str(counts[k]) for counts in (found.jumps_in, found.jumps_out, found.num_charts)),
                peaks,
                escape(valley),
            ]
        )
    head = ["mode", "weight", "±", "log evidence", "±", "visits", "jumps in", "jumps out", "charts", "peaks", "pass"]
    caption = f"Modes, heaviest first; weights by {result.recommended}, ± one standard error"
    never = len(found) - len(visited)
    rest = f'\n<p class="note">And {counted(never, "mode")} without a visit.</p>' if never else ""
    noted = "".join(f'\n<p class="note">{escape(line)}</p>' for line in found.notes)
    return long_table(caption, head, rows, "modes", "result.modes") + rest + noted


def mode_places(result: "Result", distinguishing: DistinguishingParameters) -> str:
    """Where the heaviest modes are, in the parameters that tell them apart."""
    rows = []
    for style in mode_styles(result.modes.weight):
        here = distinguishing.values[distinguishing.label == style.mode]
        if len(here):
            sd = here.std(axis=0) if len(here) > 1 else np.full(here.shape[1], np.nan)
            cells = zip(here.mean(axis=0), sd, strict=True)
            rows.append([_name(result, style.mode), *(with_spread(mean, sd) for mean, sd in cells)])
    caption = "Where the modes are: mean ± standard deviation of the parameters that tell them apart most"
    return table(caption, ["mode", *(escape(name) for name in distinguishing.names)], rows)


def with_spread(mean: float, sd: float) -> str:
    """Mean ± standard deviation, with no more digits than the deviation gives sense to."""
    if not (np.isfinite(mean) and 1e-6 < sd < 1e6):
        return f"{number(mean)} ± {number(sd, '.2g')}"
    digits = max(0, 1 - int(np.floor(np.log10(sd))))
    return f"{number(mean, f'.{digits}f')} ± {number(sd, f'.{digits}f')}"


def parameters(result: "Result") -> str:
    """Every named value."""
    found = result.parameters
    rows = [
        [
            escape(found.name[n]),
            number(found.mean[n], "#.4g"),
            number(found.sd[n], "#.4g"),
            number(found.ess[n], ".0f"),
            number(found.rhat[n], ".3f"),
        ]
        for n in range(len(found))
    ]
    head = ["parameter", "mean", "standard deviation", "effective draws", "R-hat"]
    return long_table("Parameters over all modes", head, rows, "parameters", "result.parameters")


def plain(caption: str, values: Mapping[str, Any]) -> str:
    """Names and values."""
    rows = [[escape(str(name)), escape(_short(value))] for name, value in values.items()]
    return table(caption, ["name", "value"], rows, "words")


def flattened(values: Mapping[str, Any], before: str = "") -> dict[str, Any]:
    """Nested settings as one list, `plan.draws` and so on."""
    flat: dict[str, Any] = {}
    for name, value in values.items():
        if isinstance(value, Mapping):
            flat |= flattened(value, f"{before}{name}.")
        else:
            flat[f"{before}{name}"] = value
    return flat


def _short(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value, default=str, ensure_ascii=False)
    return text if len(text) <= 300 else f"{text[:299]}…"
