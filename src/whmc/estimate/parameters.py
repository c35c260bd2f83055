"""Mean, standard deviation, effective draws and R-hat of every parameter."""

import dataclasses
import math
from collections.abc import Iterator, Mapping

import numpy as np

from whmc._memmap import pieces, release
from whmc._shapes import Float
from whmc._words import counted
from whmc.estimate.effective import effective_draws, r_hat

AT_ONCE = 4_000_000
"""Numbers of all columns that are held at a time."""

SHOWN = 20
"""Rows of the table that are printed; the table has them all."""


@dataclasses.dataclass(frozen=True, repr=False)
class ParameterTable:
    """A row for each scalar."""

    name: tuple[str, ...]
    mean: Float[np.ndarray, " size"]
    sd: Float[np.ndarray, " size"]
    ess: Float[np.ndarray, " size"]
    rhat: Float[np.ndarray, " size"]

    @classmethod
    def of(cls, values: Mapping[str, np.ndarray]) -> "ParameterTable":
        """From draws (chains, draws, ...)."""
        names, numbers = [], []
        for name, rows in values.items():
            indices = list(np.ndindex(rows.shape[2:]))
            names += [name + "".join(f"[{n}]" for n in index) for index in indices]
            numbers += [_numbers(column) for column in _columns(rows)]
        return cls(tuple(names), *np.array(numbers).reshape(-1, 4).T)

    def __add__(self, other: "ParameterTable") -> "ParameterTable":
        """Both, one below the other."""
        columns = [
            np.concatenate([getattr(self, name), getattr(other, name)]) for name in ("mean", "sd", "ess", "rhat")
        ]
        return ParameterTable((*self.name, *other.name), *columns)

    def __len__(self) -> int:
        return len(self.name)

    def __repr__(self) -> str:
        return f"ParameterTable({counted(len(self), 'scalar')})"

    def __str__(self) -> str:
        wide = max([9, *(len(name) for name in self.name[:SHOWN])])
        lines = [f"{'parameter':<{wide}s}        mean          sd      ESS   R-hat"]
        for n in range(min(SHOWN, len(self))):
            lines.append(
                f"{self.name[n]:<{wide}s}  {self.mean[n]:10.4g}  {self.sd[n]:10.4g}  {self.ess[n]:7.0f}  "
                f"{self.rhat[n]:6.3f}"
            )
        if len(self) > SHOWN:
            lines.append(f"   and {len(self) - SHOWN} more: result.parameters")
        return "\n".join(lines)


def _numbers(column: Float[np.ndarray, "chains draws"]) -> tuple[float, float, float, float]:
    """Mean, standard deviation, effective draws, R-hat; NaN for what cannot be said."""
    sd = float(column.std(ddof=1)) if column.size > 1 else np.nan
    return float(column.mean()), sd, effective_draws(column), r_hat(column)


def _columns(rows: np.ndarray) -> Iterator[Float[np.ndarray, "chains draws"]]:
    """Scalar after scalar, some of them read at a time: the draws may be larger than the memory."""
    chains, draws = rows.shape[:2]
    size = math.prod(rows.shape[2:])
    several = max(1, AT_ONCE // max(chains * draws, 1))
    for first in range(0, size, several):
        mine = slice(first, min(first + several, size))
        columns = np.empty((mine.stop - mine.start, chains, draws))
        for piece in pieces(draws, chains * size * 8):
            part = np.asarray(rows[:, piece]).reshape(chains, piece.stop - piece.start, size)
            columns[:, :, piece] = np.moveaxis(part[..., mine], -1, 0)
            release(rows)
        yield from columns
