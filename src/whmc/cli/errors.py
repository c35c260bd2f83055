"""Errors of the command line, and how they are told."""

import sys


class InputError(ValueError):
    """Something that the user wrote and has to write differently."""


def fail(message: str, code: int = 2) -> int:
    """Prints one line on standard error; returns the exit code."""
    print(f"whmc: {message}", file=sys.stderr)
    return code
