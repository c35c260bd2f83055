"""The words of the command line: verbs, options and their ranges. Imports no JAX, so that --help is quick."""

import argparse
from collections.abc import Callable, Sequence
from pathlib import Path

from whmc.cli.errors import InputError, fail

FIGURES = ("fig1", "fig2", "fig3", "fig4", "fig5", "fig6", "fig7", "fig8", "errata")

EXAMPLES = """examples:
  whmc demo                                      a sensor network with everything unknown
  whmc check model.py:target                     look at a target before a run
  whmc modes model.py:logp --dim 2 --starts=-5:5
  whmc sample model.py:target --out run          find the modes, sample, write draws and a report
  whmc resume run --draws 20000                  go on after a crash, or for more draws
  whmc report run                                one HTML file
  whmc paper errata --quick

FILE.py:NAME is a whmc.Target, a PyMC model, or a log density written in jax.numpy with --dim and --starts.
FILE.py is run. `whmc report RUN` runs nothing unless it is given --run-model; `whmc resume RUN` runs the file that the
folder names, so resume only folders that you trust.

exit codes: 0 done; 1 the run failed, what was stored is kept; 2 wrong input; 3 done, but with alarms (--strict);
130 interrupted; 141 nobody reads the output any more.
"""


def make_parser() -> argparse.ArgumentParser:
    """All verbs and options."""
    parser = argparse.ArgumentParser(
        prog="whmc",
        description="Exact sampling of multimodal distributions.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action=_Version)
    parser.add_argument(
        "--print-completion",
        action=_Completion,
        metavar="SHELL",
        help="completion for bash, zsh, fish or tcsh: eval the output, or put it where your shell looks",
    )
    verbs = parser.add_subparsers(dest="verb", required=True, metavar="VERB")
    for name, add, text in VERBS:
        add(verbs.add_parser(name, help=text, description=text[0].upper() + text[1:] + "."))
    return parser


class _Version(argparse.Action):
    def __init__(self, option_strings: Sequence[str], dest: str) -> None:
        super().__init__(option_strings, dest, nargs=0, help="the version of whmc")

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        from whmc import __version__

        print(f"whmc {__version__}")
        parser.exit()


class _Completion(argparse.Action):
    def __call__(self, parser: argparse.ArgumentParser, _: object, shell: object, *__: object) -> None:
        import shtab

        if shell not in shtab.SUPPORTED_SHELLS:
            parser.exit(fail(f"--print-completion {shell}: choose one of {', '.join(shtab.SUPPORTED_SHELLS)}"))
        print(shtab.complete(parser, shell=str(shell)))
        parser.exit()


def _add_demo(parser: argparse.ArgumentParser) -> None:
    _add_out(parser, "whmc-demo", "folder for the result, the picture and the report")
    _add_common(parser)


def _add_check(parser: argparse.ArgumentParser) -> None:
    _add_target(parser)
    _add_common(parser)


def _add_modes(parser: argparse.ArgumentParser) -> None:
    _add_target(parser)
    _add_search(parser)
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    _add_common(parser)


def _add_sample(parser: argparse.ArgumentParser) -> None:
    _add_target(parser)
    _add_out(parser, "whmc-run", "folder for the run, new or empty")
    parser.add_argument("--chains", type=int, default=16, help="side by side (%(default)s)")
    parser.add_argument("--draws", type=int, default=1000, help="of each chain (%(default)s)")
    parser.add_argument("--warmup", type=int, help="steps that tune the kernel (a tenth of the draws, 500 to 10 000)")
    parser.add_argument(
        "--adapt", choices=["warmup", "regeneration"], default="warmup", help="when kernels may change (%(default)s)"
    )
    _add_search(parser)
    _add_output(parser)
    _add_common(parser)


def _add_resume(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", type=Path, help="the folder of the run; the Python file that it names is run")
    parser.add_argument("target", nargs="?", metavar="FILE.py:NAME", help="run this one instead of the file it names")
    parser.add_argument("--draws", type=int, help="of each chain in all, if more are wanted than were asked for")
    _add_output(parser)
    _add_common(parser, seed=False)


def _add_report(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", type=Path, help="the folder of a run, or a file of result.save()")
    parser.add_argument(
        "target", nargs="?", metavar="FILE.py:NAME", help="the run's target, for values as the model means them"
    )
    parser.add_argument("--run-model", action="store_true", help="the same, by running the Python file that RUN names")
    parser.add_argument("--out", type=Path, help="the HTML file (report.html in the folder)")
    _add_common(parser, seed=False)


def _add_paper(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("experiment", choices=[*FIGURES, "all"], help="which one")
    parser.add_argument("--quick", action="store_true", help="fewer targets and seconds, for a look")
    parser.add_argument(
        "--seconds", type=float, help="of each sampler on each target (60; with --quick 2; the paper: 500)"
    )
    parser.add_argument("--chains", type=int, default=10, help="(%(default)s, as in the paper)")
    _add_out(parser, "whmc-paper", "folder for figures and tables")
    _add_common(parser)


def _add_target(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "target", metavar="FILE.py:NAME", help="a whmc.Target, a PyMC model, or a log density with --dim and --starts"
    )
    parser.add_argument("--dim", type=int, help="numbers that the log density takes")
    parser.add_argument("--starts", metavar="LOW:HIGH", help="box to search for modes, such as --starts=-5:5")


def _add_search(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--max-modes", type=int, default=256, help="charts at most (%(default)s)")


def _add_out(parser: argparse.ArgumentParser, default: str, text: str) -> None:
    parser.add_argument("--out", type=Path, default=Path(default), help=f"{text} (%(default)s)")


def _add_output(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    parser.add_argument("--strict", action="store_true", help="exit with 3 if there are alarms")


def _add_common(parser: argparse.ArgumentParser, *, seed: bool = True) -> None:
    if seed:
        parser.add_argument("--seed", type=int, default=0, help="the same seed gives the same draws (%(default)s)")
    parser.add_argument("--quiet", action="store_true", help="no live view")
    parser.add_argument("--no-cache", action="store_true", help="do not keep compiled code in the user's cache folder")
    parser.add_argument("--debug", action="store_true", help="show Python's traceback of an error")


VERBS: tuple[tuple[str, Callable[[argparse.ArgumentParser], None], str], ...] = (
    ("demo", _add_demo, "a sensor network with everything unknown: modes, weights, evidence, picture, report"),
    ("check", _add_check, "walk through a target step by step"),
    ("modes", _add_modes, "search for the modes of a target"),
    ("sample", _add_sample, "find the modes of a target and sample it"),
    ("resume", _add_resume, "go on with a run that was stopped, or make more draws; runs the file that RUN names"),
    ("report", _add_report, "write one HTML file about a run"),
    ("paper", _add_paper, "the figures and tables of the paper, and its errata"),
)


def require_ranges(chosen: argparse.Namespace) -> None:
    """Numbers in their range; names the option and the value."""
    chains = 2 if chosen.verb == "paper" else 1  # its intervals come from their spread
    at_least = {"seed": 0, "chains": chains, "draws": 1, "warmup": 0, "dim": 1, "max_modes": 1}
    for name, least in at_least.items():
        value = getattr(chosen, name, None)
        if value is not None and value < least:
            raise InputError(f"--{name.replace('_', '-')} must be at least {least}, got {value}")
    seconds = getattr(chosen, "seconds", None)
    if seconds is not None and not seconds > 0:
        raise InputError(f"--seconds must be positive, got {seconds:g}")
