"""Whole runs with nothing known of the modes: `whmc.sample(target, seed=seed)`, against the truth.

found: peaks, or modes without one, the least and (where it differs) the most over the seeds: peaks with less than a nat
between them are one mode. true: how many there are; where components overlap, the peaks that a climb from each of them
leads to; "-": more than a library takes.
z: largest error of a weight above 1e-3 in standard errors, over all seeds; the truth is the share of exact draws in the
run's own modes, by ascents where charts leave a doubt, and its error counts too. se: largest standard error of a
weight. REM/iid: relative error of the mean, |mean - truth|_1 / |truth|_1, the median over the seeds divided by that of
as many i.i.d. draws; "-" where the mean is zero. evidence, z, se: error of the log evidence in nats, in standard
errors, and these; the largest of each over the seeds. seconds: of the whole run, the median over the seeds, of which
the first one compiles. alarms: how many of the seeds had each.

Promises. paper: all modes in every seed, REM at most twice that of i.i.d. draws. many-well with 65 536 modes: the
library is full, and the run says so. offset: 1000 more in the log density is 1000 more in the log evidence and changes
nothing else. All others: all modes in every seed (of hundreds, those above 2e-5), z below 5, |z| of the log evidence at
most 3 in the median over the seeds and below 5 in all, its standard error below .05.
"""

import argparse
import collections
import dataclasses
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import whmc
from discovery import num_peaks
from known_modes import load, rem
from traps.basin_truth import modes_of_draws, shares_of
from whmc.modes.mixture import log_components_of
from whmc.search.ascents import CLEAR
from whmc.testing import Problem, eggbox, gmm40, himmelblau, liang_wong, many_well, shells, two_scale_pair

CHUNK = 2000
"""Exact draws at a time: a mixture's `draw` takes a matrix for each."""

NUM_TRUTH = 100_000
"""Exact draws for the true weights: five to six times those of a run."""

LIGHT = 2e-5
"""Of hundreds of modes, those that weigh less than a draw may stay unseen."""

PAPER_SEEDS = 10
GROUPS = ("paper", "classics", "wells", "scales", "shells", "offset")


@dataclasses.dataclass(frozen=True)
class Row:
    """A problem, or a target alone if its truth is too large, and how it is run."""

    group: str
    name: str
    make: Callable[[], Problem | whmc.Target]
    settings: Mapping[str, Any] = dataclasses.field(default_factory=dict)


def table():
    """All rows."""
    adapting = {"finder": whmc.MultiStart(4), "adapt": "regeneration", "draws": 1250}
    warmed = {"finder": whmc.MultiStart(64), "adapt": "warmup", "draws": 1250}
    for name in ("k10_d10", "k10_d20", "k10_d100"):
        yield Row("paper", f"{name}, regeneration", lambda name=name: load(name), adapting)
        yield Row("paper", f"{name}, warm-up", lambda name=name: load(name), warmed)
    yield Row("classics", "Liang-Wong A", lambda: liang_wong("A"))
    yield Row("classics", "Liang-Wong B", lambda: liang_wong("B"))
    yield Row("classics", "GMM40", gmm40)
    yield Row("classics", "Himmelblau T=1", lambda: himmelblau(1.0))
    yield Row("classics", "Himmelblau T=10", lambda: himmelblau(10.0))
    yield Row("classics", "eggbox", eggbox)
    for pairs in (3, 4, 8):
        yield Row("wells", f"many-well D={2 * pairs}", lambda pairs=pairs: many_well(pairs))
    yield Row("wells", "many-well D=32", lambda: too_many_wells(16))
    for dim in (2, 5, 10, 20, 50, 100, 200):
        yield Row("scales", f"two-scale pair D={dim}", lambda dim=dim: two_scale_pair(dim, (0.8, 0.2)))
    for dim in (2, 5, 10):
        yield Row("shells", f"shells D={dim}", lambda dim=dim: shells(dim))


def too_many_wells(pairs):
    """`many_well` without its truth, a table of 2^pairs modes."""

    def logdensity(x):
        well, other = x[0::2], x[1::2]
        return jnp.sum(0.5 * well + 6 * well**2 - well**4 - 0.5 * other**2)

    return whmc.Target(logdensity, dim=2 * pairs, starts=(-3.0, 3.0))


def exact_draws(case, seed, num):
    """Chunks of exact draws, `num` in all."""
    rng = np.random.default_rng(seed)
    for done in range(0, num, CHUNK):
        yield case.draw(rng, min(CHUNK, num - done))[0]


def basin_truth(result, chunks):
    """Weights of the run's own modes among exact draws, and their standard errors.

    Draws that the charts of one mode cover alone are taken for that mode, and all others are ascended from.
    """
    mode = np.concatenate([modes_of(result, x) for x in chunks])
    return shares_of(mode, result.num_modes)


def modes_of(result, draws):
    of_chart, logs = result.partition.of_chart, log_components_of(result.library, draws)
    mode = of_chart[logs.argmax(axis=0)]
    own = np.where(of_chart[:, None] == mode, logs, -np.inf)
    unclear = np.logaddexp.reduce(own, axis=0) - np.logaddexp.reduce(logs, axis=0) < np.log(CLEAR)
    if np.any(unclear):
        mode[unclear] = modes_of_draws(result, draws[unclear])
    return mode


def weight_z(table, truth, truth_se):
    """The largest error of a weight that matters, in standard errors."""
    matters = np.maximum(table.weight, truth) > 1e-3
    error = np.hypot(table.weight_se, truth_se)
    return float(np.max((np.abs(table.weight - truth) / np.maximum(error, 1e-9))[matters]))


def run(row, case, seed, truth):
    """The figures of one run. truth: chunks of exact draws."""
    target = case.target if isinstance(case, Problem) else case
    start = time.perf_counter()
    result = whmc.sample(target, seed=seed, progress=False, **row.settings)
    figures = {
        "seconds": time.perf_counter() - start,
        "found": int(np.maximum(result.modes.peaks, 1).sum()),
        "modes": result.num_modes,
        "alarms": [alarm.name for alarm in result.alarms],
        "se": float(result.modes.weight_se.max()),
        "evidence se": result.log_evidence_se,
        "gradients": result.gradients.total,
    }
    if not isinstance(case, Problem):
        return figures
    figures["z"] = weight_z(result.modes, *basin_truth(result, truth))
    figures["evidence"] = result.log_evidence - case.log_evidence
    figures["evidence z"] = figures["evidence"] / result.log_evidence_se
    if np.abs(case.mean).sum() > 1e-9:
        total = sum(x.sum(axis=0) for x in exact_draws(case, 1000 + seed, result.label.size))
        figures["rem"] = rem(result.draws.mean(axis=(0, 1)), case.mean)
        figures["iid rem"] = rem(total / result.label.size, case.mean)
    return figures


def column(runs, key):
    return np.array([one.get(key, np.nan) for one in runs])


def rem_ratio(runs):
    return float(np.median(column(runs, "rem")) / np.median(column(runs, "iid rem")))


HEADER = (
    f"{'target':24s} {'found':>9s} {'true':>5s} {'z':>6s} {'se':>7s} {'REM/iid':>8s} {'evidence':>9s} {'z':>6s} "
    f"{'se':>7s} {'seconds':>8s}  alarms"
)


def show(row, case, runs):
    def cell(value, width, digits):
        return f"{value:{width}.{digits}f}" if np.isfinite(value) else f"{'-':>{width}s}"

    def worst(key):
        values = column(runs, key)
        return values[np.argmax(np.abs(values))]  # a NaN, if there is one

    low, high = column(runs, "found").min(), column(runs, "found").max()
    found = f"{low}" if low == high else f"{low}-{high}"
    cells = [cell(worst("z"), 6, 2), cell(worst("se"), 7, 4), cell(rem_ratio(runs), 8, 2)]
    cells += [cell(worst("evidence"), 9, 4), cell(worst("evidence z"), 6, 2), cell(worst("evidence se"), 7, 4)]
    cells.append(cell(np.median(column(runs, "seconds")), 8, 1))
    alarms = collections.Counter(name for one in runs for name in one["alarms"])
    names = ", ".join(f"{name} ({n})" for name, n in alarms.items()) or "none"
    true = num_peaks(case) if isinstance(case, Problem) else "-"
    print(f"{row.name:24s} {found:>9s} {true:>5} {' '.join(cells)}  {names}", flush=True)


def misses(row, case, runs):
    """What this row promises and does not keep. Written so that a NaN is a miss."""
    if not isinstance(case, Problem):
        needed = ("library capped", "mass may be missing")
        kept = {f'no alarm "{alarm}"': all(alarm in one["alarms"] for one in runs) for alarm in needed}
        return [f"{row.name}: {what}" for what, fine in kept.items() if not fine]
    z = np.abs(column(runs, "evidence z"))
    heavy = np.sum(case.weights > LIGHT) if len(case.weights) > 100 else num_peaks(case)
    kept = {
        "not all modes": np.all(column(runs, "found") >= heavy),
        "some modes twice": np.all(column(runs, "modes") <= num_peaks(case)),
    }
    if row.group == "paper":
        kept["REM above twice that of i.i.d. draws"] = rem_ratio(runs) <= 2
    else:
        kept["a weight is five standard errors off"] = np.max(column(runs, "z")) < 5
        kept["log evidence three standard errors off"] = np.median(z) <= 3 and np.max(z) < 5
        kept["standard error of the log evidence .05 or more"] = np.max(column(runs, "evidence se")) < 0.05
    return [f"{row.name}: {what}" for what, fine in kept.items() if not fine]


def measure(row, seeds):
    """All seeds of a row; prints it and returns what is missed, and the gradients that all runs took."""
    case = row.make()
    truth = list(exact_draws(case, 99, NUM_TRUTH)) if isinstance(case, Problem) else []
    runs = [run(row, case, seed, truth) for seed in range(seeds)]
    jax.clear_caches()  # what was compiled for one target serves no other
    show(row, case, runs)
    return misses(row, case, runs), sum(one["gradients"] for one in runs)


def offset(seed, shift=1000.0):
    """A constant in the log density must change the log evidence and nothing else."""
    plain = himmelblau(1.0).target
    raised = whmc.Target(lambda x: plain.logdensity(x) + shift, dim=plain.dim, starts=plain.starts)
    low, high = (whmc.sample(target, seed=seed, progress=False) for target in (plain, raised))
    draws = np.abs(low.draws - high.draws).max()
    same = len(low.modes) == len(high.modes)
    weights = np.abs(low.modes.weight - high.modes.weight).max() if same else np.nan
    evidence = high.log_evidence - low.log_evidence - shift
    print(
        f"Himmelblau + {shift:g}, seed {seed}: draws differ by {draws:.2g}, weights by {weights:.2g}, "
        f"log evidence by {shift:g} {evidence:+.2g}",
        flush=True,
    )
    kept = {
        "draws and weights differ": draws == 0 or weights < 1e-6,
        "the log evidence is not larger by the constant": abs(evidence) < 1e-6,
    }
    return [f"offset, seed {seed}: {what}" for what, fine in kept.items() if not fine]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", default=GROUPS, choices=GROUPS, help="groups of rows")
    parser.add_argument("--rows", default="", help="only rows whose name contains this")
    parser.add_argument("--seeds", type=int, help=f"3 unless told, {PAPER_SEEDS} for the group paper")
    options = parser.parse_args()
    print(HEADER)
    missed, spent = [], 0
    for row in table():
        if row.group in options.only and options.rows in row.name:
            more, gradients = measure(row, options.seeds or (PAPER_SEEDS if row.group == "paper" else 3))
            missed, spent = missed + more, spent + gradients
    if "offset" in options.only and options.rows in "offset":
        for seed in range(options.seeds or 3):
            missed += offset(seed)
    print(f"{spent} gradients in all")
    print("\n".join(missed) or "all promises kept")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
