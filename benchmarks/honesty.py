"""Right, or an alarm: `whmc.sample(target, seed=seed)` on targets that mislead, against their exact truth.

Every run is a process of its own, at defaults. |z|: the largest error of the log evidence and of weights, in the run's
own standard errors; "of" says which. found: the share of the mass that the run found, e to the error of its log
evidence. The verdict: right, |z| is at most 4.5; right and alarmed; alarmed, it is larger, and the run carries an
alarm; refused, an error says why there is no answer; SILENT, it is larger, and nothing was said. An improper density
has no right answer: only an alarm or an error that calls it improper will do. Late and failed runs are told as such.

Part one, promised: no run is silent, late or failed. Part two is what no search can know: modes whose basin is so
small, or so far, that no start leaves a trace of them. There only the share found counts. Isolated Gaussians whose
places and widths are drawn may be of either part: a run without an alarm is "beyond", not silent, where each component
that it missed has a basin smaller than the smallest that its search says it would have found, 3/n of the start region.

With --against another src directory each run is made with that source too, right before: then the share found and the
seconds of both, import left out, are compared for each trap.
"""

import argparse
import collections
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import numpy as np

import whmc
from shapes import FAR, deviations
from traps.targets import HIDDEN, SETTINGS, TRAPS, Isolated

FAULTS = ("SILENT", "late", "failed")


def run(name, seed):
    """One row, with its verdict."""
    make = (TRAPS | HIDDEN)[name]
    trap = make(seed)
    began = time.perf_counter()
    try:
        result = whmc.sample(trap.target, seed=seed, progress=False, **SETTINGS.get(name, {}))
    except ValueError as error:  # how whmc refuses a target; all else is a fault
        told = str(error)
        word = "refused" if np.isinf(trap.log_evidence) and "improper" in told else "failed"
        return {"word": word, "told": told, "seconds": time.perf_counter() - began}
    seconds = time.perf_counter() - began
    alarms = [alarm.name for alarm in result.alarms]
    improper = np.isinf(trap.log_evidence)
    z = {"integral": np.inf} if improper else deviations(trap, result)
    word = verdict(max(z.values()) <= FAR, "improper" in alarms if improper else bool(alarms))
    told = ", ".join(alarms) or "-"
    if word == "SILENT" and isinstance(make, Isolated):
        missing = getattr(result.search, "missing", None)  # a source to compare with may tell of none
        basin, limit = make.missed_basin(seed, result.modes.location), missing.smallest_basin if missing else 0.0
        told = f"missed a basin of {basin:.1e}, told {limit:.1e}"
        word = "beyond" if basin < limit else word
    return {
        "word": word,
        "z": z,
        "evidence": [result.log_evidence, result.log_evidence_se, trap.log_evidence],
        "modes": [len(result.modes.weight), trap.num_modes],
        "told": told,
        "seconds": seconds,
    }


def verdict(right, alarmed):
    if right:
        return "right and alarmed" if alarmed else "right"
    return "alarmed" if alarmed else "SILENT"


def fresh(name, seed, limit, source=None):
    """The row of a process of its own; where there is none, what went wrong. source: an src directory to run with."""
    command = [sys.executable, __file__, "--only", name, "--seed", str(seed), "--one"]
    environment = os.environ | ({"PYTHONPATH": str(source.resolve())} if source else {})
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=limit, check=False, env=environment)
    except subprocess.TimeoutExpired:
        return {"word": "late", "told": f"more than {limit:g} s", "seconds": limit}
    if done.returncode:
        told = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
        return {"word": "failed", "told": told, "seconds": np.nan}
    return json.loads(done.stdout.splitlines()[-1])


def share_found(row):
    """e to the error of the log evidence; None where there is no truth, or no estimate."""
    if "evidence" not in row:
        return None
    value, _, truth = row["evidence"]
    return float(np.exp(value - truth)) if np.isfinite(value) and np.isfinite(truth) else None


HEAD = (
    f"{'trap':20s} {'seed':>4s} {'':17s} {'|z|':>8s} {'of':12s} {'evidence':>10s}   {'':7s} {'truth':>9s} "
    f"{'found':>6s} {'modes':>9s} {'seconds':>7s}  alarms"
)


def show(name, seed, row):
    cells = f"{name:20s} {seed:4d} {row['word']:17s} "
    if "z" in row:
        worst = max(row["z"], key=row["z"].get)
        value, se, truth = row["evidence"]
        found, (num, true) = share_found(row), row["modes"]
        share = "-" if found is None else f"{found:.3f}"
        cells += f"{row['z'][worst]:8.3g} {worst:12s} {value:10.4f} ± {se:<7.2g} {truth:9.3f} {share:>6s} "
        cells += f"{num:4d}/{true or '-':<4}"
    else:
        cells += " " * 67
    print(f"{cells} {row['seconds']:7.1f}  {row['told']}", flush=True)


def part(title, names, seeds, limit, against=None):
    """Runs some traps; the rows of each."""
    print(f"{title}\n{HEAD}", flush=True)
    rows = {}
    for name in names:
        rows[name], before = [], []
        for seed in seeds:
            if against:
                before.append(fresh(name, seed, limit, against))
                show("  against", seed, before[-1])
            rows[name].append(fresh(name, seed, limit))
            show(name, seed, rows[name][-1])
        if against:
            compare(name, before, rows[name])
    told = collections.Counter(row["word"] for some in rows.values() for row in some)
    print(f"{title}: {', '.join(f'{num} {word}' for word, num in told.most_common())}; {told['SILENT']} SILENT\n")
    return rows


def compare(name, before, now):
    """Prints the means of the share found, and the ratio of the seconds of all seeds."""
    shares = [np.mean([share for share in map(share_found, rows) if share is not None]) for rows in (before, now)]
    seconds = [np.sum([row["seconds"] for row in rows]) for rows in (before, now)]
    print(
        f"{name}: share found {shares[0]:.3f} -> {shares[1]:.3f}, "
        f"seconds {seconds[0]:.1f} -> {seconds[1]:.1f}, {seconds[1] / seconds[0]:.2f} times",
        flush=True,
    )


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", metavar="NAME", help=f"of {', '.join(TRAPS | HIDDEN)}; by default all")
    parser.add_argument("--seed", type=int, default=0, help="the first seed")
    parser.add_argument("--seeds", type=int, default=5, help="how many runs of each trap")
    parser.add_argument("--limit", type=float, default=900.0, help="seconds for one process")
    parser.add_argument("--against", type=Path, help="another src directory, run in turn")
    parser.add_argument("--one", action="store_true", help="run one trap here and print its row as JSON")
    options = parser.parse_args()
    names = options.only or [*TRAPS, *HIDDEN]
    unknown = set(names) - set(TRAPS | HIDDEN)
    if unknown:
        parser.error(f"there is no {', '.join(sorted(unknown))}: the names are {', '.join(TRAPS | HIDDEN)}")
    if options.one:
        print(json.dumps(run(names[0], options.seed)))
        return 0
    seeds = range(options.seed, options.seed + options.seeds)
    promised, hidden = ([name for name in names if name in some] for some in (TRAPS, HIDDEN))
    faults = []
    if promised:
        rows = part("part one", promised, seeds, options.limit, options.against)
        faults = [
            f"{name}, seed {seed}: {row['word']}"
            for name, some in rows.items()
            for seed, row in zip(seeds, some, strict=True)
            if row["word"] in FAULTS
        ]
    if hidden:
        rows = part("part two", hidden, seeds, options.limit, options.against)
        for name, some in rows.items():
            shares = [one for one in map(share_found, some) if one is not None]
            print(f"{name:20s} share found: {np.mean(shares):.3f}" if shares else f"{name:20s} nothing found")
    print("\n".join(faults) or "all promises kept")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
