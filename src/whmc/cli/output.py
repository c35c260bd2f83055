"""Standard output of the command line: answers go there, and nothing that a model prints."""

import contextlib
import os
import sys
from collections.abc import Iterator

STDOUT, STDERR = 1, 2


class OutputClosed(Exception):
    """Nobody reads standard output any more, as after `whmc modes ... | head -3`."""


def say(text: object) -> None:
    """Prints an answer on standard output."""
    try:
        print(text, flush=True)
    except BrokenPipeError as error:
        raise OutputClosed from error


@contextlib.contextmanager
def model_prints_to_stderr() -> Iterator[None]:
    """While a model is loaded and run, all that it prints goes to standard error: --json prints JSON and nothing else.

    The file descriptor is moved too, for what compiled code and worker processes print.
    """
    sys.stdout.flush()
    answers = os.dup(STDOUT)
    os.dup2(STDERR, STDOUT)
    try:
        with contextlib.redirect_stdout(sys.stderr):
            yield
    finally:
        os.dup2(answers, STDOUT)
        os.close(answers)
