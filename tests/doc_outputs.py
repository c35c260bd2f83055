"""Outputs that the documentation shows: compared with what the examples print, and written anew from it.

A page shows what the Python block before printed in a block that begins with ```output; a line `...` in it leaves
lines out. `python tests/doc_outputs.py PAGE.md ...` runs the examples of pages and rewrites these blocks.
"""

import re
import subprocess
import sys
import tempfile
from pathlib import Path

BLOCK = re.compile(r"```(python|output)\n(.*?)```", re.DOTALL)
NUMBER = re.compile(r"-?\b\d+\.\d*(e[-+]?\d+)?|-?\b\d{3,}\b|\b(nan|inf)\b")
"""Numbers that depend on random numbers and machines. Integers below a hundred count things and have to be right."""

END = "--- end of a block of the page ---"


def masked(line: str) -> str:
    """A line without its numbers and without the spaces that depend on their widths."""
    return re.sub(r"\s+", " ", NUMBER.sub("#", line)).replace("[ ", "[").strip()


def not_printed(page: str, printed: str) -> list[str]:
    """The first lines of those pieces of a page's outputs that are not among the printed lines, in this order."""
    lines = [masked(line) for line in printed.splitlines()]
    at, missing = 0, []
    for kind, text in BLOCK.findall(page):
        if kind != "output":
            continue
        for piece in re.split(r"^\.\.\.\n", text, flags=re.MULTILINE):
            wanted = [masked(line) for line in piece.splitlines()]
            found = [n for n in range(at, len(lines)) if lines[n : n + len(wanted)] == wanted]
            if wanted and not found:
                missing.append(piece.splitlines()[0])
            elif wanted:
                at = found[0] + len(wanted)
    return missing


def outputs(page: str) -> list[str]:
    """What each Python block of a page prints, when they are run one after the other in an empty folder."""
    code = [text for kind, text in BLOCK.findall(page) if kind == "python"]
    script = "\n".join(f"{block}\nprint({END!r})" for block in code)
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True, cwd=folder)
    return done.stdout.split(f"{END}\n")[:-1]


def rewritten(page: str) -> str:
    """The page with outputs as they are now; one that ends with `...` keeps its number of lines."""
    printed = outputs(page)
    number = -1

    def fresh(match: re.Match) -> str:
        nonlocal number
        kind, text = match.groups()
        number += kind == "python"
        if kind == "python":
            return match[0]
        lines = printed[number].splitlines()
        if text.endswith("\n...\n"):
            lines = [*lines[: len(text.splitlines()) - 1], "..."]
        return "```output\n" + "\n".join(lines) + "\n```"

    return BLOCK.sub(fresh, page)


if __name__ == "__main__":
    for path in map(Path, sys.argv[1:]):
        path.write_text(rewritten(path.read_text()))
