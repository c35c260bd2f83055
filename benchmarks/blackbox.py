"""A density in plain NumPy that takes 1 ms of a core: what whmc adds to its calls, and whether all cores are busy.

For each number of processes and chains, of the sampling phase alone (Python, pipes, recording and all): `wall` its
seconds by those that the calls alone take, calls x 1 ms / processes; `busy` the share of the time of as many cores that
went into the function; `CPU` all processor time, of this process and its workers, by that of the calls, which other
programs on the machine do not disturb; `speed-up` over one process.
"""

import argparse
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


def cpu_seconds(processes):
    """Processor time of this process and of workers, as far as the system tells."""
    total = time.process_time()
    for process in processes:
        with open(f"/proc/{process.pid}/stat") as file:
            fields = file.read().rpartition(")")[2].split()
        total += (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    return total


def measure(processes, chains, draws):
    target = from_numpy(logp, True, dim=4, parallel=processes)
    box = target.logdensity.box
    # a warm run compiles everything
    whmc.sample(target, modes=PLACES, seed=1, chains=chains, draws=1, warmup=50, progress=False)
    workers = getattr(box.table, "_processes", [])
    settings = {"modes": PLACES, "seed": 1, "chains": chains, "warmup": 50, "progress": False}
    marks = []
    for num in (1, draws):  # their difference is sampling
        before = cpu_seconds(workers)
        result = whmc.sample(target, draws=num, **settings)
        marks.append((cpu_seconds(workers) - before, result.num_gradients, result.timings.sampling))
    (less_cpu, less_calls, _), (cpu, calls, wall) = marks
    alone = calls * COST / processes
    ratio = wall / alone
    share = (cpu - less_cpu) / ((calls - less_calls) * COST)
    return ratio, alone / wall, share, wall / calls


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--processes", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--chains", type=int, nargs="+", default=[2, 4, 8, 16, 32, 64])
    parser.add_argument("--gradients", type=int, default=5000, help="of each measurement, about")
    options = parser.parse_args()
    print(f"{'processes':>9s} {'chains':>6s} {'wall':>6s} {'busy':>6s} {'CPU':>6s} {'speed-up':>8s}")
    single, missed = {}, []
    for processes in options.processes:
        for chains in options.chains:
            draws = max(20, options.gradients // (3 * chains))
            wall, busy, cpu, each = measure(processes, chains, draws)
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
