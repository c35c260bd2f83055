"""The command line. What the verbs do is in `whmc.cli.commands`, imported late: --help needs no JAX."""

import os
import sys
from collections.abc import Sequence

from whmc.cli.arguments import make_parser, require_ranges
from whmc.cli.errors import InputError, fail
from whmc.cli.output import OutputClosed

READER_GONE = 141
"""Exit code of a program that SIGPIPE ends: 128 + 13."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Entry point of `whmc`; returns the exit code."""
    chosen = make_parser().parse_args(arguments)
    try:
        require_ranges(chosen)
        from whmc.cli.commands import COMMANDS

        return COMMANDS[chosen.verb](chosen)
    except InputError as error:
        return fail(str(error))
    except KeyboardInterrupt:  # while JAX is imported
        return fail("interrupted", 130)
    except OutputClosed:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # Python flushes it once more at its end
        return READER_GONE
