"""How a mode looks, the same in all pictures: a colour and a marker for the heaviest, grey for the rest."""

import contextlib
import dataclasses
import warnings
from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from whmc._shapes import Float, Int

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# Okabe and Ito (2008), told apart with every kind of colour vision; yellow, faint on white, comes last
COLOURS = ("#0072B2", "#E69F00", "#009E73", "#D55E00", "#CC79A7", "#56B4E9", "#000000", "#F0E442")
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")
SHAPES = ("circle", "square", "triangle", "diamond", "inverted triangle", "plus", "cross", "star")
REST = "#9A9A9A"
EDGE = "#404040"

STYLE = {
    "font.size": 10,
    "axes.labelsize": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "legend.frameon": False,
    "legend.fontsize": 9,
    "svg.hashsalt": "whmc",  # else the same result gives another file each time
}


@dataclasses.dataclass(frozen=True)
class ModeStyle:
    """One of the heaviest modes and how it is drawn."""

    mode: int
    colour: str
    marker: str
    shape: str

    @property
    def name(self) -> str:
        return f"mode {self.mode}"

    @property
    def faint(self) -> bool:
        """Whether a line of this colour needs a dark edge on white."""
        return self.colour == COLOURS[-1]


def mode_styles(weight: Float[np.ndarray, " size"]) -> list[ModeStyle]:
    """The heaviest modes, at most eight, heaviest first."""
    order = np.argsort(-weight, kind="stable")[: len(COLOURS)]
    return [ModeStyle(int(mode), *how) for mode, *how in zip(order, COLOURS, MARKERS, SHAPES, strict=False)]


def style_numbers(weight: Float[np.ndarray, " size"]) -> Int[np.ndarray, " size"]:
    """The place of each mode among `mode_styles`; those without a style share the place behind the last."""
    shown = mode_styles(weight)
    place = np.full(len(weight), len(shown))
    place[[style.mode for style in shown]] = np.arange(len(shown))
    return place


def picture_text(name: str, most: int = 18) -> str:
    """A user's name as matplotlib shall write it: on one line, not too long, and no formula."""
    line = " ".join(name.split())
    short = line if len(line) <= most else line[: most - 1] + "…"
    return short.replace("$", r"\$")


def thinned(size: int, most: int) -> slice:
    """Every n-th of `size`, so that at most so many are left."""
    return slice(None, None, max(1, -(-size // most)))


def write_reason(axes: "Axes", why: str) -> None:
    """In place of a picture that has nothing to show."""
    axes.set_axis_off()
    axes.text(0.5, 0.5, why, ha="center", va="center", transform=axes.transAxes, color=EDGE, wrap=True)


@contextlib.contextmanager
def plain_style() -> Iterator[None]:
    """Matplotlib's own defaults and ours, whatever the user has set."""
    from matplotlib import style

    with style.context(["default", STYLE]), warnings.catch_warnings():
        # names may be in any script; where the font lacks a letter a box is drawn, and tables have the name
        warnings.filterwarnings("ignore", message="Glyph .* missing")
        yield
