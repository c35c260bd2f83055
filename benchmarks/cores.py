"""One core against all: seconds of sampling, and whether the draws are the same bit by bit.

Every run is a process of its own that is bound to one core, or to all of them, before JAX is loaded. The runs take
turns. `quicker`: the median of the seconds on one core by that on all, of the sampling phase; in brackets, with the
warm-up, between whose rounds charts are fitted on one core. Chains are moved in groups of sixteen, each on a core of
its own, so there are sixteen for each core. `bare`: how much quicker a loop in plain Python is in as many processes,
which is what the machine has to give.

Promise: on two cores 1.6 times quicker, for a cheap and for a costly density, with the same draws.
"""

import argparse
import hashlib
import json
import multiprocessing
import os
import subprocess
import sys
import time

import numpy as np

PROMISED = 1.6
CASES = ("cheap", "costly")


def problem(case):
    """A target and its modes: ten Gaussians in twenty dimensions, or a mixture with 4000 data."""
    from overhead import costly_problem, mixture_problem

    return mixture_problem() if case == "cheap" else costly_problem()


def run(case, num_cores, chains, draws):
    """Seconds of warm-up and sampling, and a fingerprint of the draws."""
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:num_cores])
    import whmc

    target, modes = problem(case)
    result = whmc.sample(target, modes=modes, seed=1, chains=chains, draws=draws, progress=False)
    spent = result.timings.sampling, result.timings.sampling + result.timings.warmup
    return {"seconds": spent, "draws": hashlib.sha256(np.ascontiguousarray(result.draws)).hexdigest()}


def measure(case, *numbers):
    """A run in a fresh process."""
    command = [sys.executable, __file__, "--run", case, *map(str, numbers)]
    return json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def count(num):
    """Work of one core."""
    total = 0.0
    for n in range(num):
        total += 0.5 * n
    return total


def bare_speed_up(num_cores, rounds):
    """Of as many processes at once over one of them."""

    def seconds(num):
        began = time.perf_counter()
        tasks = [multiprocessing.Process(target=count, args=(10_000_000,)) for _ in range(num)]
        for task in tasks:
            task.start()
        for task in tasks:
            task.join()
        return time.perf_counter() - began

    one, all_ = np.median([[seconds(num) for num in (1, num_cores)] for _ in range(rounds)], axis=0)
    return num_cores * one / all_


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--draws", type=int, nargs=2, default=[10_000, 1000], metavar=CASES)
    parser.add_argument("--run", nargs=4, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.run:
        case, *numbers = options.run
        print(json.dumps(run(case, *map(int, numbers))))
        return 0
    most = len(os.sched_getaffinity(0))
    if most < 2:
        print("this machine has one core: there is nothing to compare")
        return 0
    broken = []
    print(f"bare    {bare_speed_up(most, options.rounds):.2f} times quicker on {most} cores", flush=True)
    for case, draws in zip(CASES, options.draws, strict=True):
        rows = [[measure(case, num, 16 * most, draws) for num in (1, most)] for _ in range(options.rounds)]
        (one, whole_one), (all_, whole_all) = np.median([[run["seconds"] for run in pair] for pair in rows], axis=0)
        same = len({run["draws"] for pair in rows for run in pair}) == 1
        print(
            f"{case:7s} one core {one:6.2f} s   {most} cores {all_:6.2f} s   quicker {one / all_:.2f} "
            f"({whole_one / whole_all:.2f})   draws {'the same' if same else 'DIFFER'}",
            flush=True,
        )
        if not same:
            broken.append(f"{case}: the draws differ")
        if most == 2 and one / all_ < PROMISED:
            broken.append(f"{case}: {one / all_:.2f} times quicker, {PROMISED} promised")
    print("\n".join(broken) or "all promises kept")
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
