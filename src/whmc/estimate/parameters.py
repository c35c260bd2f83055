"""Mean, standard deviation, effective draws and R-hat of every parameter; the last two by ArviZ."""

import dataclasses
from collections.abc import Mapping

import numpy as np
from jaxtyping import Float

SHOWN = 20
"""Rows of the table that are printed; the table has them all."""


@dataclasses.dataclass(frozen=True)
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
        from arviz_stats.base.array import array_stats  # late: it takes a while to import

        names, columns = [], []
        for name, rows in values.items():
            for index in np.ndindex(rows.shape[2:]):
                names.append(name + "".join(f"[{n}]" for n in index))
                column = np.asarray(rows[(..., *index)], float)
                able = column.shape[1] >= 4 and np.ptp(column) > 0
                columns.append(
                    (
                        column.mean(),
                        column.std(ddof=1) if column.size > 1 else np.nan,
                        float(array_stats.ess(column, chain_axis=0, draw_axis=1)) if able else np.nan,
                        float(array_stats.rhat(column, chain_axis=0, draw_axis=1)) if able else np.nan,
                    )
                )
        return cls(tuple(names), *np.array(columns).reshape(-1, 4).T)

    def __len__(self) -> int:
        return len(self.name)

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
