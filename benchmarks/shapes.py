"""Modes that are bent, heavy-tailed, ridged, many or wide: `whmc.sample(target, seed=seed)`, against the exact truth.

Every run is a process of its own, at defaults. modes: found, and how many there are ("-": nobody has counted). |z|:
the largest error of all that is known, in the run's own standard errors: weights of components, by their exact
responsibilities at the draws; moments; the log evidence; "of" says which. The errors of weights and moments are the
larger of batch means and the spread of chains. right: |z| is at most 4.5. alarmed: it is larger, and the run carries an
alarm. WRONG: it is larger, and nothing was said. late: no answer within the limit. failed: an error, shown below.
evidence: as printed, with its error; the truth. in: whether it is between the least and the largest log w, w = pi/q, of
the run's own draws and independence proposals, as every evidence must be. ESS: least effective draws of a parameter.
Seconds: search, prepare, compile, warm-up, sampling, and those of the whole call.

Promise: no run is wrong without an alarm, and every evidence is inside of its bounds. Late and failed runs keep no
promise either.

With --peers the same targets are run by us and by others, in turn: see `peers/race.py`.
"""

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path

import numpy as np

import whmc
from peers import race
from whmc.estimate.weights import standard_error
from whmc.testing import SHAPES

FAR = 4.5
"""Standard errors that make a run wrong: those from which on two of its own estimates disagree, too."""

PHASES = ("search", "prepare", "compile", "warmup", "sampling", "total")


def errors(values, shares):
    """Standard errors of the means; those of shares are at least that of a count, as in the run's own table.

    A share p has visits c = n p. A cell that was never seen is not known exactly: four more visits count (Agresti and
    Coull), and the inefficiency of the shares that were seen well.
    """
    se, mean, num = standard_error(values), values.mean(axis=(0, 1)), values[..., 0].size
    rare = np.minimum(mean, 1 - mean) * num
    well = shares & (rare >= 30)
    ratio = se[well] ** 2 * num / (mean * (1 - mean))[well]
    tau = max(1.0, float(np.median(ratio))) if well.any() else 1.0
    least = np.sqrt(tau * np.maximum(rare + 4, 0)) / num
    return np.where(shares & ~well, np.fmax(se, least), se)


def deviations(shape, result):
    """How far the run is from each truth, in its own standard errors; infinite where it has no answer."""
    values = shape.measure(result.draws)
    gaps = np.append(values.mean(axis=(0, 1)) - shape.truth, result.log_evidence - shape.log_evidence)
    se = np.append(errors(values, shape.shares), result.log_evidence_se)
    with np.errstate(divide="ignore", invalid="ignore"):
        z = np.abs(gaps) / se
    z = np.where(np.isfinite(z), z, np.where(gaps == 0, 0.0, np.inf))
    return dict(zip((*shape.names, "log evidence"), z.tolist(), strict=True))


def bounds(result):
    """Least and largest log w of the draws and of the proposals of the last move."""
    draws = result.logdensity - result.log_mixture
    name, info = list(result.steps.items())[-1]
    # the state that a rejected proposal was compared with is the one recorded
    seen = np.where(info.accepted, draws, draws + info.log_ratio) if name.startswith("Independence") else draws
    both = np.concatenate([draws.ravel(), seen.ravel()])
    both = both[np.isfinite(both)]
    return float(both.min()), float(both.max())


def run(name, seed):
    """One row."""
    shape = SHAPES[name]()
    began = time.perf_counter()
    result = whmc.sample(shape.target, seed=seed, progress=False)
    total = time.perf_counter() - began
    low, high = bounds(result)
    return {
        "found": result.num_modes,
        "true": shape.num_modes,
        "dim": shape.target.dim,
        "z": deviations(shape, result),
        "alarms": [alarm.name for alarm in result.alarms],
        "evidence": [result.log_evidence, result.log_evidence_se, shape.log_evidence],
        "bounds": [low, high],
        "ess": float(np.nanmin(result.parameters.ess, initial=np.inf)),
        "seconds": [getattr(result.timings, phase) for phase in PHASES[:-1]] + [total],
    }


def fresh(name, seed, limit):
    """The row of a process of its own; a word instead of it where there is none, and what went wrong."""
    command = [sys.executable, __file__, name, "--seed", str(seed), "--one"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=limit, check=False)
    except subprocess.TimeoutExpired:
        return "late", f"more than {limit:g} s"
    if done.returncode:
        return "failed", (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
    return json.loads(done.stdout.splitlines()[-1]), None


def verdict(row):
    if max(row["z"].values()) <= FAR:
        return "right"
    return "alarmed" if row["alarms"] else "WRONG"


def inside(row):
    """Whether the evidence is within its bounds; None if none was printed."""
    value, (low, high) = row["evidence"][0], row["bounds"]
    return None if np.isnan(value) else bool(low <= value <= high)


def show(name, seed, row, word):
    worst = max(row["z"], key=row["z"].get)
    seconds = " ".join(f"{value:7.1f}" for value in row["seconds"])
    value, se, truth = row["evidence"]
    told = {True: "yes", False: "NO", None: "-"}[inside(row)]
    print(
        f"{name:15s} {seed:4d} {row['dim']:4d} {row['found']:5d}/{row['true'] or '-':<6} {row['z'][worst]:9.4g} "
        f"{worst:18s} {word:8s} {value:11.5g} ± {se:<7.2g} {truth:9.3f} {told:>3s} {row['ess']:7.0f}   {seconds}   "
        + (", ".join(row["alarms"]) or "-"),
        flush=True,
    )


def head():
    phases = " ".join(f"{phase.replace('warmup', 'warm-up'):>7s}" for phase in (*PHASES[:4], "sample", "total"))
    print(
        f"{'name':15s} {'seed':>4s} {'D':>4s} {'modes':>8s}     {'|z|':>9s} {'of':18s} {'':8s} {'evidence':>11s}   "
        f"{'':7s} {'truth':>9s} {'in':>3s} {'ESS':>7s}   {phases}   alarms",
        flush=True,
    )


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(SHAPES)}; by default all")
    parser.add_argument("--seed", type=int, default=0, help="the first seed")
    parser.add_argument("--seeds", type=int, help="how many runs of each target: one unless told")
    parser.add_argument("--limit", type=float, default=600.0, help="seconds for one process")
    parser.add_argument("--one", action="store_true", help="run one target here and print its row as JSON")
    parser.add_argument("--peers", action="store_true", help="beside peers, five seeds unless told: peers/race.py")
    parser.add_argument("--budget", type=float, default=60.0, help="with --peers: seconds of parallel tempering")
    parser.add_argument("--out", type=Path, help="with --peers: JSON of all runs")
    parser.add_argument("--race-one", choices=race.RUNS, help=argparse.SUPPRESS)
    options = parser.parse_args()
    unknown = set(options.names) - set(SHAPES)
    if unknown:
        parser.error(f"there is no {', '.join(sorted(unknown))}: the names are {', '.join(SHAPES)}")
    if options.one:
        print(json.dumps(run(options.names[0], options.seed)))
        return 0
    if options.race_one:
        print(race.one(options.names[0], options.race_one, options.seed, options.budget))
        return 0
    if options.peers:
        race.race(options.names or list(SHAPES), options.seeds or 5, options.budget, options.limit, options.out)
        return 0
    broken = []
    head()
    for name in options.names or SHAPES:
        for seed in range(options.seed, options.seed + (options.seeds or 1)):
            row, trouble = fresh(name, seed, options.limit)
            if trouble is not None:
                print(f"{name:15s} {seed:4d} {row}: {trouble}", flush=True)
                broken.append(f"{name}, seed {seed}: {row}")
                continue
            word = verdict(row)
            show(name, seed, row, word)
            if word == "WRONG":
                broken.append(f"{name}, seed {seed}: wrong without an alarm")
            if inside(row) is False:
                broken.append(f"{name}, seed {seed}: the evidence is outside of its bounds")
    print("\n".join(broken) or "all promises kept")
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
