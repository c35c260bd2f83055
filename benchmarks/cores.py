"""One core against all: seconds of warm-up and sampling, and whether the draws are the same bit by bit.

Every run is a process of its own that is bound to one core, or to all of them, before JAX is loaded. The runs take
turns. `quicker`: the median of the seconds on one core by that on all; search and compilation are left out. Chains are
moved in groups of sixteen, each on a core of its own, so there are sixteen for each core.

Promise: on two cores 1.6 times quicker, for a cheap and for a costly density, with the same draws.
"""

import argparse
import hashlib
import json
import os
import subprocess
import sys

import numpy as np

PROMISED = 1.6
CASES = ("cheap", "costly")


def problem(case):
    """A target and its modes: ten Gaussians in twenty dimensions, or a mixture with 4000 data."""
    from overhead import costly_problem, mixture_problem

    return mixture_problem() if case == "cheap" else costly_problem()


def run(case, num_cores, draws):
    """Seconds of warm-up and sampling, and a fingerprint of the draws."""
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:num_cores])
    import whmc

    target, modes = problem(case)
    chains = 16 * int(os.environ["WHMC_BENCHMARK_CORES"])
    result = whmc.sample(target, modes=modes, seed=1, chains=chains, draws=draws, progress=False)
    spent = result.timings.warmup + result.timings.sampling
    return {"seconds": spent, "draws": hashlib.sha256(np.ascontiguousarray(result.draws)).hexdigest()}


def measure(case, num_cores, most, draws):
    """A run in a fresh process."""
    environment = os.environ | {"WHMC_BENCHMARK_CORES": str(most)}
    command = [sys.executable, __file__, "--run", case, str(num_cores), str(draws)]
    return json.loads(subprocess.run(command, env=environment, check=True, capture_output=True, text=True).stdout)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--draws", type=int, nargs=2, default=[10_000, 1000], metavar=CASES)
    parser.add_argument("--run", nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.run:
        case, num_cores, draws = options.run
        print(json.dumps(run(case, int(num_cores), int(draws))))
        return 0
    most = len(os.sched_getaffinity(0))
    if most < 2:
        print("this machine has one core: there is nothing to compare")
        return 0
    broken = []
    for case, draws in zip(CASES, options.draws, strict=True):
        rows = [[measure(case, num, most, draws) for num in (1, most)] for _ in range(options.rounds)]
        one, all_ = np.median([[run["seconds"] for run in pair] for pair in rows], axis=0)
        same = len({run["draws"] for pair in rows for run in pair}) == 1
        print(
            f"{case:7s} one core {one:6.2f} s   {most} cores {all_:6.2f} s   quicker {one / all_:.2f}   "
            f"draws {'the same' if same else 'DIFFER'}",
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
