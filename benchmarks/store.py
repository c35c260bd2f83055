"""What a store costs, and that it is flat in memory.

time: sampling of the 8+3 sensor network with a store divided by the same without, the quickest of runs in turn in one
process (all do the same work; what differs is what else the machine does), and the medians beside it; the promise is
below 1.05. memory: peak of a process that makes ten times the draws divided by that of one that
makes one times, D = 100, 16 chains; the promise is below 1.2. Also printed: bytes of the store a draw.
"""

import argparse
import resource
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import jax.numpy as jnp
import numpy as np

import whmc
from whmc.testing.sensor import sensor_network

DRAWS = 4000


def cost(repeats):
    """Sampling seconds with a store and without."""
    target, seconds = sensor_network(), {"with": [], "without": []}
    library = whmc.find_modes(target, seed=0)
    with tempfile.TemporaryDirectory() as folder:
        for n in range(repeats + 1):
            for name in ("without", "with") if n % 2 else ("with", "without"):
                store = Path(folder) / f"{n}" if name == "with" else None
                result = whmc.sample(target, modes=library, seed=1, draws=DRAWS, store=store)
                if n:  # the first one compiles
                    seconds[name].append(result.timings.sampling)
            size = sum(path.stat().st_size for path in (Path(folder) / f"{n}").iterdir())
            shutil.rmtree(Path(folder) / f"{n}")
    print(f"sampling seconds with a store {np.round(seconds['with'], 2)}, without {np.round(seconds['without'], 2)}")
    print(f"bytes a draw: {size / (16 * DRAWS):.0f} ({16 * 8} of them the position)")
    print(f"medians {np.median(seconds['with']):.2f} and {np.median(seconds['without']):.2f}")
    return min(seconds["with"]) / min(seconds["without"])


def peak(draws):
    """Peak memory of a process that makes and summarises a run of so many draws, in bytes."""
    with tempfile.TemporaryDirectory() as folder:
        arguments = [sys.executable, __file__, "--draws", str(draws), "--folder", str(Path(folder) / "run")]
        done = subprocess.run(arguments, check=True, capture_output=True, text=True)
    return int(done.stdout.split()[-1])


def one_run(draws, folder):
    """A hundred dimensions, two modes."""

    def logdensity(x):
        return jnp.logaddexp(-0.5 * jnp.sum((x - 1) ** 2), -0.5 * jnp.sum((x + 1) ** 2) - 1)

    target = whmc.Target(logdensity, dim=100)
    modes = np.array([np.ones(100), -np.ones(100)])
    result = whmc.sample(target, modes=modes, seed=0, draws=draws, warmup=500, store=folder)
    print(result.summary())
    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--draws", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.draws:
        one_run(chosen.draws, chosen.folder)
        return 0
    small, large = peak(2000), peak(20_000)
    print(f"peak memory: {small / 2**20:.0f} MiB for 2000 draws, {large / 2**20:.0f} MiB for 20 000")
    memory, ratio = large / small, cost(chosen.repeats)
    print(f"memory ratio {memory:.3f} (promise < 1.2); time ratio {ratio:.3f} (promise < 1.05)")
    return 0 if memory < 1.2 and ratio < 1.05 else 1


if __name__ == "__main__":
    sys.exit(main())
