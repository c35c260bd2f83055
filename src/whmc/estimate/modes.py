"""What a result says of its modes: the table, and the draws of one."""

import dataclasses
from collections.abc import Mapping

import numpy as np
from jaxtyping import Float, Int


@dataclasses.dataclass(frozen=True)
class ModeTable:
    """A row for each mode: where it is, how heavy, its share of the evidence, how often visited, jumps in and out."""

    location: Float[np.ndarray, "size dim"]
    weight: Float[np.ndarray, " size"]
    weight_se: Float[np.ndarray, " size"]
    log_evidence: Float[np.ndarray, " size"]
    log_evidence_se: Float[np.ndarray, " size"]
    visits: Int[np.ndarray, " size"]
    jumps_in: Int[np.ndarray, " size"]
    jumps_out: Int[np.ndarray, " size"]
    num_charts: Int[np.ndarray, " size"]

    def __len__(self) -> int:
        return len(self.weight)

    def __str__(self) -> str:
        lines = ["mode   weight      ±   log evidence      ±     visits  jumps in  jumps out"]
        order = np.arange(len(self)) if len(self) <= 40 else np.sort(np.argsort(-self.weight, kind="stable")[:40])
        for k in order:
            lines.append(
                f"{k:4d}   {self.weight[k]:.4f}  {self.weight_se[k]:.4f}  {self.log_evidence[k]:12.3f}"
                f"  {self.log_evidence_se[k]:.3f}   {self.visits[k]:8d}"
                f"  {self.jumps_in[k]:8d}  {self.jumps_out[k]:9d}"
            )
        if len(order) < len(self):
            lines.append(f"   and {len(self) - len(order)} lighter modes")
        return "\n".join(lines)


@dataclasses.dataclass(frozen=True)
class ModeDraws:
    """The draws of one mode, all chains together, and from which chain each is. values: as named and constrained."""

    number: int
    weight: float
    weight_se: float
    location: Float[np.ndarray, " dim"]
    chain: Int[np.ndarray, " n"]
    draws: Float[np.ndarray, "n dim"]
    logdensity: Float[np.ndarray, " n"]
    values: Mapping[str, np.ndarray]

    def __len__(self) -> int:
        return len(self.logdensity)
