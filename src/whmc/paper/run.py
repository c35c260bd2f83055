"""Runs experiments by name, with a line of progress, and prints their tables."""

import sys
import time
from collections.abc import Sequence
from pathlib import Path


def run_experiments(
    names: Sequence[str],
    out: Path,
    *,
    seconds: float,
    chains: int,
    quick: bool,
    seed: int,
    progress: bool | None = None,
) -> None:
    """Writes figures, tables and draws into `out`; a table is printed as soon as it is there."""
    import jax

    from whmc.paper.experiments import EXPERIMENTS, Settings

    shown = sys.stderr.isatty() if progress is None else progress
    for n, name in enumerate(names):
        began = time.perf_counter()

        def say(text: str, name: str = name, n: int = n) -> None:
            if shown:
                print(f"\r\033[K{name} ({n + 1} of {len(names)}) {text}", end="", file=sys.stderr, flush=True)

        say("")
        experiment = EXPERIMENTS[name]
        with jax.enable_x64(True):  # for all that an experiment does
            table = experiment(Settings(out, seconds, chains, quick, seed, say))
        if shown:
            print("\r\033[K", end="", file=sys.stderr)
        print(f"{(experiment.__doc__ or name).splitlines()[0]}")
        print(f"{out / name}.png, {time.perf_counter() - began:.0f} s")
        print(f"{table}\n" if table else "", flush=True)
