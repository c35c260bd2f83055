"""The command line."""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path


def main(arguments: Sequence[str] | None = None) -> int:
    """Entry point of `whmc`; returns the exit code."""
    parser = argparse.ArgumentParser(prog="whmc", description="Exact sampling of multimodal distributions.")
    verbs = parser.add_subparsers(dest="verb", required=True, metavar="VERB")
    demo = verbs.add_parser("demo", help="a sensor network with everything unknown: modes, weights, evidence, picture")
    demo.add_argument("--out", type=Path, default=Path("whmc-demo.png"), help="the picture (%(default)s)")
    demo.add_argument("--seed", type=int, default=0, help="(%(default)s)")
    demo.add_argument("--quiet", action="store_true", help="no progress line")
    chosen = parser.parse_args(arguments)
    if not chosen.out.parent.is_dir():
        return _fail(f"--out {chosen.out}: there is no folder {chosen.out.parent}")
    if chosen.seed < 0:
        return _fail(f"--seed must be at least 0, got {chosen.seed}")
    # imported late: JAX takes half a second, and --help needs none of it
    from whmc.demo import run_demo

    right = run_demo(chosen.out, seed=chosen.seed, progress=False if chosen.quiet else None)
    return 0 if right else _fail("the result does not agree with the reference")


def _fail(message: str) -> int:
    print(f"whmc: {message}", file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main())
