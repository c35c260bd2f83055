"""A density in plain NumPy that takes 1 ms of a core: what whmc adds to its calls, and whether all cores are busy.

For each number of processes and chains, of the sampling phase alone (Python, pipes, recording and all): `wall` its
seconds for a call by those of bare calls, a plain loop over the function in as many processes at once; `busy` the share
of the time of as many cores that went into the function, calls x 1 ms / (processes x seconds); `CPU` all processor
time, of this process and its workers, by calls x 1 ms; `speed-up` over one process. Bare calls and sampling take turns,
so that other programs on the machine disturb both, and `wall` is the median of their ratios.
"""

import argparse
import itertools
import multiprocessing
import os
import sys
import time

import numpy as np

import whmc
from whmc.frontends.blackbox import from_numpy

COST = 1e-3
PLACES = np.array([[-3.0, 0.0, 0.0, 0.0], [3.0, 0.0, 0.0, 0.0]])
PROMISED = 1.2
"""Most that `wall` may be, at 16 chains."""


def logp(x):
    """Two Gaussians, after a millisecond of a core (not of the clock)."""
    until = time.thread_time() + COST
    gaps = x - PLACES
    heights = -0.5 * np.sum(gaps**2, axis=1) + np.log([1 / 3, 2 / 3])
    value = np.logaddexp(*heights)
    score = -np.exp(heights - value) @ gaps
    while time.thread_time() < until:
        pass
    return value, score


def bare(calls):
    """Seconds of as many calls in a plain loop."""
    points = np.random.default_rng(1).normal(size=(calls, 4))
    start = time.perf_counter()
    for point in points:
        logp(point)
    return time.perf_counter() - start


def cpu_seconds(processes):
    """Processor time of this process and of workers, as far as the system tells."""
    total = time.process_time()
    for process in processes:
        with open(f"/proc/{process.pid}/stat") as file:
            fields = file.read().rpartition(")")[2].split()
        total += (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    return total


def measure(processes, chains, draws, rounds, pool):
    target = from_numpy(logp, True, dim=4, parallel=processes)
    box = target.logdensity.box
    # a warm run compiles everything
    whmc.sample(target, modes=PLACES, seed=1, chains=chains, draws=1, warmup=50, progress=False)
    workers = getattr(box.table, "_processes", [])
    settings = {"modes": PLACES, "seed": 1, "chains": chains, "warmup": 50, "progress": False}
    turns = []
    for _ in range(rounds):
        marks = []
        for num in (1, draws):  # their difference is sampling
            before = cpu_seconds(workers)
            result = whmc.sample(target, draws=num, **settings)
            marks.append((cpu_seconds(workers) - before, result.num_gradients, result.timings.sampling))
        (less_cpu, less_calls, _), (cpu, calls, wall) = marks
        alone = np.mean(pool.map(bare, [calls // processes] * processes, chunksize=1)) / (calls // processes)
        each = wall / calls * processes
        turns.append((each / alone, COST / each, (cpu - less_cpu) / ((calls - less_calls) * COST), wall / calls))
    return np.median(turns, axis=0)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--processes", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--chains", type=int, nargs="+", default=[2, 4, 8, 16, 32, 64])
    parser.add_argument("--gradients", type=int, default=5000, help="of each measurement, about")
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    print(f"{'processes':>9s} {'chains':>6s} {'wall':>6s} {'busy':>6s} {'CPU':>6s} {'speed-up':>8s}")
    single, missed = {}, []
    spawn = multiprocessing.get_context("spawn")
    for processes, chains in itertools.product(options.processes, options.chains):
        draws = max(20, options.gradients // (3 * chains))
        with spawn.Pool(processes) as pool:
            wall, busy, cpu, each = measure(processes, chains, draws, options.rounds, pool)
        single.setdefault(chains, each)
        print(
            f"{processes:9d} {chains:6d} {wall:6.2f} {busy:6.0%} {cpu:6.2f} {single[chains] / each:8.2f}",
            flush=True,
        )
        if chains == 16 and wall > PROMISED:
            missed.append(f"{processes} processes: {wall:.2f} is above {PROMISED}")
    print("\n".join(missed) or "all promises kept")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
