"""`write_report`: the page, put together and written."""

import dataclasses
from collections.abc import Mapping
from html import escape
from importlib import metadata, resources
from pathlib import Path
from string import Template
from typing import TYPE_CHECKING, Any

from whmc import __version__
from whmc._words import counted
from whmc.plots.pairs import DistinguishingParameters
from whmc.plots.style import plain_style
from whmc.report import tables
from whmc.report.alt_text import number
from whmc.report.pictures import Picture, address, pictures_of

if TYPE_CHECKING:
    from whmc.result import Result


def write_report(result: "Result", path: str | Path, *, name: str | None = None) -> Path:
    """Writes one HTML file with the alarms, tables and pictures of a result; it needs no network, and no other file.

    name: of the run, for the heading.
    """
    path = Path(path)
    if not path.parent.is_dir():
        raise FileNotFoundError(f"{path}: there is no folder {path.parent}")
    if path.is_dir():
        raise IsADirectoryError(f"{path} is a folder: give the name of a file, such as {path / 'report.html'}")
    try:
        import matplotlib  # noqa: F401
    except ImportError as error:
        raise ImportError("the report needs matplotlib: pip install matplotlib") from error
    content = page(result, name).encode("utf-8", "replace")  # a name may hold what UTF-8 cannot
    fresh = path.with_name(path.name + ".new")
    fresh.write_bytes(content)
    fresh.replace(path)
    return path


def page(result: "Result", name: str | None = None) -> str:
    """The whole file."""
    heading = escape(_heading(result, name))
    sections = _sections(result)
    here = resources.files("whmc.report")
    return Template(here.joinpath("page.html").read_text("utf-8")).substitute(
        title=f"{heading}: a report by whmc",
        style=here.joinpath("page.css").read_text("utf-8"),
        heading=heading,
        subtitle=escape(_subtitle(result)),
        alarms=tables.alarms(result),
        contents="\n".join(f'<li><a href="#{key}">{title}</a></li>' for key, (title, _) in sections.items()),
        sections="\n".join(
            f'<section id="{key}" aria-labelledby="{key}-heading">\n'
            f'<h2 id="{key}-heading">{title}</h2>\n{body}\n</section>'
            for key, (title, body) in sections.items()
        ),
        version=__version__,
    )


def _heading(result: "Result", name: str | None) -> str:
    size, dim = result.num_modes, result.draws.shape[-1]
    found = f"{counted(size, 'mode')} in {counted(dim, 'dimension')}"
    return found if name is None else f"{name}: {found}"


def _subtitle(result: "Result") -> str:
    """Size, target and date of the run, as far as they are known."""
    chains, draws, _ = result.draws.shape
    source, started = result.settings.get("source"), result.settings.get("started")
    return (
        f"{counted(chains, 'chain')} of {counted(draws, 'draw')} each, by wormhole Hamiltonian Monte Carlo"
        + (f", of {source['target']}" if source else "")
        + (f"; started {started}" if started else "")
    )


def _sections(result: "Result") -> dict[str, tuple[str, str]]:
    """Title and body of each section, under its address."""
    modes = [tables.modes(result)]
    if result.num_modes > 1:
        modes.append(tables.mode_places(result, DistinguishingParameters.of(result)))
    return {
        "overview": ("Overview", tables.facts(_facts(result))),
        "modes": ("Modes", tables.beside(*modes)),
        "pictures": ("Pictures", _pictures(result)),
        "parameters": ("Parameters", tables.parameters(result)),
        "run": ("The run", _run(result)),
    }


def _facts(result: "Result") -> dict[str, str]:
    evidence, size = result.evidence, result.num_modes
    error = ".1g" if evidence.se < 5e-4 else ".3f"
    found = {
        "log evidence": f"{number(evidence.log_evidence, '.3f')} ± {number(evidence.se, error)}",
        "modes": f"{size}" + (f" ({result.library.size} charts)" if result.library.size > size else ""),
        "draws": f"{result.label.size:,}",
        "gradients in all": f"{result.gradients.total:,}",
        "regenerations": f"{result.num_regenerations:,}",
        "seconds": f"{result.timings.total:.1f}",
    }
    if size > 1:
        found["round trips"] = f"{int(result.round_trips.sum()):,}"
    return found


def _pictures(result: "Result") -> str:
    with plain_style():
        figures = [_figure(picture) for picture in pictures_of(result)]
    return "\n".join(['<div class="pictures">', *figures, "</div>", tables.unseen_note(result)]).rstrip()


def _figure(picture: Picture) -> str:
    where, width, height = address(picture)
    kind = ' class="wide"' if picture.wide else ' class="half"' if picture.half else ""
    # a picture that may be wider than the screen scrolls, also by the keyboard
    scroll = f' role="region" tabindex="0" aria-label="{escape(picture.title)}"' if picture.wide else ""
    return (
        f'<figure{kind}>\n<h3>{escape(picture.title)}</h3>\n<div class="paper"{scroll}>'
        f'<img src="{where}" width="{width}" height="{height}" alt="{escape(picture.alternative)}"></div>\n'
        f"<figcaption>{escape(picture.caption)}</figcaption>\n</figure>"
    )


def _run(result: "Result") -> str:
    """All that it takes to do the same again, and what it cost."""
    timings = result.timings
    phases = (*(field.name for field in dataclasses.fields(timings)), "total")
    seconds = {name: f"{getattr(timings, name):.2f}" for name in phases}
    moves = {f"acceptance of {name}": f"{rate:.3f}" for name, rate in result.acceptance.items()}
    counts = {
        "gradients of the search": result.gradients.search,
        "gradients while warming up": result.gradients.warmup,
        "gradients while sampling": result.gradients.sampling,
        "gradients for the evidence": result.gradients.evidence,
        "gradients to tell the modes apart": result.gradients.modes,
        "other gradients": result.gradients.other,
        "failed evaluations": result.num_failed,
        "regenerations": result.num_regenerations,
        "kernel updates at regenerations": result.num_updates,
    }
    if result.search is not None:
        counts["starts of the search"] = result.search.num_starts
    tuned = {name: f"{value:.6g}" for name, value in result.tuned.items()}
    parts = [tables.plain("How the moves did, and what they cost", moves | counts), tables.plain("Seconds", seconds)]
    if tuned:
        parts.append(tables.plain("Kernel as it was tuned", tuned))
    settings = {"seed": result.seed} | tables.flattened(result.settings)
    settings["versions.matplotlib"] = metadata.version("matplotlib")
    parts.append(tables.plain("Settings and versions", settings))
    return "\n".join([_call(result.settings), tables.beside(*parts)])


def _call(settings: Mapping[str, Any]) -> str:
    """The call with its plain arguments, where they are known."""
    plan = settings.get("plan")
    if not isinstance(plan, Mapping):
        return ""
    arguments = ", ".join(f"{name}={value!r}" for name, value in plan.items())
    return (
        "<h3>To run it again</h3>\n"
        f"<pre><code>whmc.sample(target, {escape(arguments)})</code></pre>\n"
        '<p class="note">With the same versions and the same kind of machine this gives the same draws. Modes, '
        "finders, a kernel or first positions that were given have to be given again.</p>"
    )
