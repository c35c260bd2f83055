"""What a result says of its modes: the table, and the draws of one."""

import dataclasses
from collections.abc import Mapping

import jax
import jax.numpy as jnp
import numpy as np

from whmc._shapes import Float, Int
from whmc._words import counted
from whmc.estimate.evidence import Evidence
from whmc.estimate.weights import Weights
from whmc.modes.library import ModeLibrary
from whmc.target.target import Target

SHOWN = 40
"""Modes that are printed, the heaviest; the table has them all."""


@dataclasses.dataclass(frozen=True, repr=False)
class ModeTable:
    """A row for each mode: where it is, how heavy, its share of the evidence, how often visited, jumps in and out.

    location: as `modes=` takes it, a flat position inside the target's bounds.
    """

    location: Float[np.ndarray, "size dim"]
    weight: Float[np.ndarray, " size"]
    weight_se: Float[np.ndarray, " size"]
    log_evidence: Float[np.ndarray, " size"]
    log_evidence_se: Float[np.ndarray, " size"]
    visits: Int[np.ndarray, " size"]
    jumps_in: Int[np.ndarray, " size"]
    jumps_out: Int[np.ndarray, " size"]
    num_charts: Int[np.ndarray, " size"]

    @classmethod
    def of(
        cls,
        library: ModeLibrary,
        target: Target,
        weights: Weights,
        evidence: Evidence,
        label: Int[np.ndarray, "chains draws"],
        jumps: Int[np.ndarray, "size size"],
    ) -> "ModeTable":
        """A mode is where its heaviest chart is, and its evidence is its weight's share of the whole."""
        size, mode_of = library.num_modes, library.mode_of
        log_weight = np.asarray(library.log_weight)[: library.size]
        heaviest = [max(np.flatnonzero(mode_of == k), key=log_weight.__getitem__) for k in range(size)]
        with jax.enable_x64(True):
            location = np.asarray(target.inside(jnp.asarray(np.asarray(library.location)[heaviest])))
        with np.errstate(divide="ignore", invalid="ignore"):
            log_share, relative = np.log(weights.weight), weights.se / weights.weight
        return cls(
            location=location,
            weight=weights.weight,
            weight_se=weights.se,
            log_evidence=evidence.log_evidence + log_share,
            log_evidence_se=np.hypot(evidence.se, relative),
            visits=np.bincount(label.ravel(), minlength=size),
            jumps_in=jumps.sum(axis=0),
            jumps_out=jumps.sum(axis=1),
            num_charts=np.bincount(mode_of, minlength=size),
        )

    @property
    def shown(self) -> Int[np.ndarray, " n"]:
        """The modes that are printed, in the order of the library: those that were visited, of many the heaviest."""
        visited = np.flatnonzero(self.visits)
        return np.sort(visited[np.argsort(-self.weight[visited], kind="stable")[:SHOWN]])

    @property
    def left_out(self) -> list[str]:
        """How many modes are not printed, in words."""
        visited = int(np.count_nonzero(self.visits))
        lighter, never = visited - len(self.shown), len(self) - visited
        rest = [(lighter, counted(lighter, "lighter mode")), (never, f"{counted(never, 'mode')} without a visit")]
        return [words for number, words in rest if number]

    def __len__(self) -> int:
        return len(self.weight)

    def __repr__(self) -> str:
        return f"ModeTable({counted(len(self), 'mode')})"

    def __str__(self) -> str:
        lines = ["mode   weight      ±   log evidence      ±     visits  jumps in  jumps out"]
        for k in self.shown:
            lines.append(
                f"{k:4d}   {self.weight[k]:.4f}  {self.weight_se[k]:.4f}  {self.log_evidence[k]:12.3f}"
                f"  {self.log_evidence_se[k]:.3f}   {self.visits[k]:8d}"
                f"  {self.jumps_in[k]:8d}  {self.jumps_out[k]:9d}"
            )
        return "\n".join([*lines, *(f"   and {line}" for line in self.left_out)])


@dataclasses.dataclass(frozen=True, repr=False)
class ModeDraws:
    """The draws of one mode, all chains together, and from which chain each is. draws: unconstrained. values: as named
    and constrained. location: as in `ModeTable`."""

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

    def __repr__(self) -> str:
        size = counted(len(self), "draw")
        return f"ModeDraws(mode {self.number}: {size}, weight {self.weight:.4f} ± {self.weight_se:.4f})"
