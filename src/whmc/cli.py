"""The command line."""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

FIGURES = ("fig1", "fig2", "fig3", "fig4", "fig5", "fig6", "fig7", "fig8", "errata")


def main(arguments: Sequence[str] | None = None) -> int:
    """Entry point of `whmc`; returns the exit code."""
    parser = argparse.ArgumentParser(prog="whmc", description="Exact sampling of multimodal distributions.")
    verbs = parser.add_subparsers(dest="verb", required=True, metavar="VERB")
    _add_demo(
        verbs.add_parser("demo", help="a sensor network with everything unknown: modes, weights, evidence, picture")
    )
    _add_paper(verbs.add_parser("paper", help="the figures and tables of the paper, and its errata"))
    chosen = parser.parse_args(arguments)
    if chosen.seed < 0:
        return _fail(f"--seed must be at least 0, got {chosen.seed}")
    return chosen.run(chosen)


def _add_demo(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--out", type=Path, default=Path("whmc-demo.png"), help="the picture (%(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="(%(default)s)")
    parser.add_argument("--quiet", action="store_true", help="no progress line")
    parser.set_defaults(run=_demo)


def _demo(chosen: argparse.Namespace) -> int:
    if not chosen.out.parent.is_dir():
        return _fail(f"--out {chosen.out}: there is no folder {chosen.out.parent}")
    # imported late: JAX takes half a second, and --help needs none of it
    from whmc.demo import run_demo

    right = run_demo(chosen.out, seed=chosen.seed, progress=False if chosen.quiet else None)
    return 0 if right else _fail("the result does not agree with the reference")


def _add_paper(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("experiment", choices=[*FIGURES, "all"], help="which one")
    parser.add_argument("--quick", action="store_true", help="fewer targets and seconds, for a look")
    parser.add_argument(
        "--seconds", type=float, help="of each sampler on each target (60; with --quick 2; the paper: 500)"
    )
    parser.add_argument("--chains", type=int, default=10, help="(%(default)s, as in the paper)")
    parser.add_argument(
        "--out", type=Path, default=Path("whmc-paper"), help="folder for figures and tables (%(default)s)"
    )
    parser.add_argument("--seed", type=int, default=0, help="(%(default)s)")
    parser.add_argument("--quiet", action="store_true", help="no progress line")
    parser.set_defaults(run=_paper)


def _paper(chosen: argparse.Namespace) -> int:
    seconds = (2.0 if chosen.quick else 60.0) if chosen.seconds is None else chosen.seconds
    if not seconds > 0:
        return _fail(f"--seconds must be positive, got {seconds:g}")
    if chosen.chains < 2:
        return _fail(f"--chains must be at least 2, got {chosen.chains}: intervals come from their spread")
    try:
        chosen.out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        return _fail(f"--out {chosen.out}: {error.strerror}")
    from whmc.paper.run import run_experiments

    names = FIGURES if chosen.experiment == "all" else (chosen.experiment,)
    try:
        run_experiments(
            names,
            chosen.out,
            seconds=seconds,
            chains=chosen.chains,
            quick=chosen.quick,
            seed=chosen.seed,
            progress=False if chosen.quiet else None,
        )
    except ImportError as error:
        return _fail(f"{error}: pip install 'whmc[paper]'")
    return 0


def _fail(message: str) -> int:
    print(f"whmc: {message}", file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main())
