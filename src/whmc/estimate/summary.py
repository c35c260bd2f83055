"""A result in words: the summary, one line, and small tables for notebooks."""

from collections.abc import Iterable, Iterator, Sequence
from html import escape
from typing import TYPE_CHECKING

from whmc._words import counted
from whmc.estimate.parameters import SHOWN

if TYPE_CHECKING:
    from whmc.result import Result


def size_of_run(result: "Result") -> str:
    """Chains, draws, dimension and modes."""
    chains, draws, dim = result.draws.shape
    size, charts = result.num_modes, result.library.size
    several = f" ({counted(charts, 'chart')})" if charts > size else ""
    folded = result.target.fold is not None
    images = f", one of {len(result.target.group)} images of each" if folded else ""
    run = f"{counted(chains, 'chain')} x {counted(draws, 'draw')} in {counted(dim, 'dimension')}"
    return f"{run}, {counted(size, 'mode')}{several}{images}"


def evidence_line(result: "Result") -> str:
    return f"log evidence {result.log_evidence:.3f} ± {result.log_evidence_se:.3f} (by {result.evidence.method})"


def summary(result: "Result") -> str:
    """Alarms first, then the modes, the evidence, the parameters, how the moves did, what it cost."""
    lines = [f"ALARM {alarm}" for alarm in result.alarms]
    lines += [size_of_run(result), str(result.modes), evidence_line(result)]
    if result.num_modes > 1:
        lines.append(f"weights by {result.recommended}; round trips {int(result.round_trips.sum())}")
    lines.append(str(result.parameters))
    if result.search is not None:
        lines.append(str(result.search))
    return "\n".join(lines + _moves(result) + _cost(result))


def _moves(result: "Result") -> list[str]:
    shown = ", ".join(f"{name} {rate:.2f}" for name, rate in result.acceptance.items())
    updates = f"; kernel updates at regenerations: {result.num_updates}" if result.num_updates else ""
    settings = ", ".join(f"{name} {value:.4g}" for name, value in result.tuned.items())
    return [
        f"acceptance: {shown}; regenerations: {result.num_regenerations}{updates}",
        f"tuned: {settings}",
    ]


def _cost(result: "Result") -> list[str]:
    seconds, spent = result.timings, result.gradients
    more = (("evidence", spent.evidence), ("modes", spent.modes), ("other", spent.other))
    rest = "".join(f" + {num} {name}" for name, num in more if num)
    annealed = f", evidence {seconds.evidence:.1f}" if spent.evidence else ""
    return [
        f"gradients: {spent.search} search + {spent.warmup} warm-up + {spent.sampling} sampling{rest}; "
        f"failed evaluations: {result.num_failed}",
        f"seconds: search {seconds.search:.1f}, prepare {seconds.prepare:.1f}, compile {seconds.compile:.1f}, "
        f"warm-up {seconds.warmup:.1f}, sampling {seconds.sampling:.1f}{annealed}, modes {seconds.modes:.1f}",
    ]


def one_line(result: "Result") -> str:
    """Computes nothing but the alarms' number, and that only if they are known already."""
    known = vars(result).get("alarms")
    alarms = "" if known is None else f", {counted(len(known), 'alarm')}"
    return f"Result({size_of_run(result)}{alarms})"


def as_html(result: "Result") -> str:
    """Alarms, modes and parameters for notebooks: lists and tables, without scripts, every text escaped."""
    alarms = "".join(f"<li>{escape(str(alarm))}</li>" for alarm in result.alarms)
    return "\n".join(
        [
            f"<ul>{alarms}</ul>" if alarms else "",
            f"<p>{escape(size_of_run(result))}<br>{escape(evidence_line(result))}</p>",
            _table(("mode", "weight", "±", "log evidence", "±", "visits", "peaks", "pass"), _mode_rows(result)),
            *(f"<p>and {line}</p>" for line in result.modes.left_out),
            *(f"<p>{escape(line)}</p>" for line in result.modes.notes),
            _table(("parameter", "mean", "sd", "ESS", "R-hat"), _parameter_rows(result)),
        ]
    )


def _mode_rows(result: "Result") -> Iterator[Sequence[str]]:
    modes = result.modes
    for k in modes.shown:
        weight, evidence = (modes.weight[k], modes.weight_se[k]), (modes.log_evidence[k], modes.log_evidence_se[k])
        yield str(k), *(f"{x:.4f}" for x in weight), *(f"{x:.3f}" for x in evidence), *modes.counts(k)


def _parameter_rows(result: "Result") -> Iterator[Sequence[str]]:
    table = result.parameters
    for n in range(min(SHOWN, len(table))):
        mean, sd = f"{table.mean[n]:.4g}", f"{table.sd[n]:.4g}"
        yield table.name[n], mean, sd, f"{table.ess[n]:.0f}", f"{table.rhat[n]:.3f}"


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    cells = "".join(f"<th>{escape(name)}</th>" for name in head)
    body = "".join("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in rows)
    return f"<table><thead><tr>{cells}</tr></thead><tbody>{body}</tbody></table>"
