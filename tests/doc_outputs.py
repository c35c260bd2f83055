"""Outputs that the documentation shows: compared with what the examples print, and written anew from it.

A page shows what the Python block before printed in a block that begins with ```output; a line `...` in it leaves
lines out. `python tests/doc_outputs.py PAGE.md ...` runs the examples of pages and rewrites these blocks.

Words have to be the same, and numbers of the same magnitude: draws depend on machines and versions, so a figure that
is twice as large may be the same run elsewhere, and one that is four times as large describes another whmc.
"""

import math
import re
import subprocess
import sys
import tempfile
from decimal import Decimal
from pathlib import Path

BLOCK = re.compile(r"```(python|output)\n(.*?)```", re.DOTALL)
NUMBER = re.compile(r"(?<![\w.])-?(?:\d+\.?\d*(?:e[-+]?\d+)?|nan|inf)(?!\w)")
MAGNITUDE = 2.0

SMALLEST = 100
"""Integers below it count things, such as modes and dimensions, and have to be right."""

LAST_DIGITS = 2
"""Units of the last digit by which any number may be off: that of an error such as 0.000 has no magnitude."""

OF_SPREAD = 0.1
"""Standard deviations by which a mean may be off: of 400 effective draws, below which there is an alarm, it is known to
half of that. Means may be near zero, where they have no magnitude either."""

CLOCK = "seconds:"
"""Lines that begin so have only words: seconds are up to a hundred times fewer where compiled code has been kept, and
more where others use the machine."""

END = "--- end of a block of the page ---"


def words(line: str) -> str:
    """A line without its numbers and without the spaces that depend on their widths."""
    return re.sub(r"\s+", " ", NUMBER.sub("#", line)).replace("[ ", "[").replace(" ]", "]").strip()


def alike(shown: str, printed: str, slack: float = 0.0) -> bool:
    """Whether two numbers are of one magnitude, or differ by less than shows, or than `slack`."""
    if shown == printed:
        return True
    a, b = float(shown), float(printed)
    counts = all(one.removeprefix("-").isdigit() for one in (shown, printed))
    if (counts and max(abs(a), abs(b)) < SMALLEST) or not (math.isfinite(a) and math.isfinite(b)):
        return False
    unit = 10.0 ** min(int(Decimal(one).as_tuple().exponent) for one in (shown, printed))
    near = abs(a - b) <= max(LAST_DIGITS * unit, slack) * (1 + 1e-9)
    return near or (a * b > 0 and 1 / MAGNITUDE <= a / b <= MAGNITUDE)


def same(shown: str, printed: str) -> bool:
    """Whether a line of a page is what was printed."""
    if words(shown) != words(printed):
        return False
    pairs = list(zip(NUMBER.findall(shown), NUMBER.findall(printed), strict=True))
    if shown.startswith(CLOCK):
        return True
    slack = [0.0] * len(pairs)
    if re.fullmatch(r"\S+( #){4}", words(shown)):  # a parameter: mean, standard deviation, ESS, R-hat
        slack[-4] = OF_SPREAD * float(pairs[-3][0])
    return all(alike(a, b, much) for (a, b), much in zip(pairs, slack, strict=True))


def not_printed(page: str, printed: str) -> list[str]:
    """The first lines of those pieces of a page's outputs that are not among the printed lines, in this order."""
    lines = printed.splitlines()
    at, missing = 0, []
    for kind, text in BLOCK.findall(page):
        if kind != "output":
            continue
        for piece in re.split(r"^\.\.\.\n", text, flags=re.MULTILINE):
            wanted = piece.splitlines()
            places = range(at, len(lines) - len(wanted) + 1)
            found = [n for n in places if all(map(same, wanted, lines[n : n + len(wanted)]))]
            if wanted and not found:
                missing.append(wanted[0])
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
