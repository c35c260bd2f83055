"""What a result says of its modes: the table, and the draws of one."""

import dataclasses
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp
import numpy as np

from whmc._shapes import Float, Int
from whmc._words import counted
from whmc.estimate.basins import VALLEY, Partition
from whmc.estimate.dip import FAR
from whmc.estimate.weights import Weights
from whmc.modes.chart_data import locations_of

if TYPE_CHECKING:
    from whmc.result import Result

SHOWN = 40
"""Modes that are printed, the heaviest; the table has them all."""

OVERLAP = 3.0
"""Nats: modes with a shallower valley overlap, so that it matters where the border between them is drawn."""

BORDERS = ((2.0, 0.001), (1.0, 0.002), (0.5, 0.009), (0.25, 0.019), (0.0, 0.023))
"""For passes of so many nats or more, how much the share of a basin differed at most between five kinds of ascent, over
34 pairs of Gaussians of other shapes and sizes."""

BY_CHARTS = "Modes are told by charts alone: the run was not finished; whmc.resume tells them by their peaks."
"""Said where no ascents were made."""

Depth = Float[np.ndarray, "modes modes"]
"""Nats of the valley between every two modes, infinite where they are no neighbours."""

NO_VALLEYS: Depth = np.zeros((0, 0))

SHARE_ERRORS, LEAST_SHARE_GAP = 3.0, 0.002
"""A share of the draws that is further from the weight than so many of its errors, and than this, is told."""

NOTED = 4
"""Pairs of modes that overlap, and modes with several peaks, that are told; the others are counted."""


@dataclasses.dataclass(frozen=True, repr=False)
class ModeTable:
    """A row for each mode: where it is, how heavy, its share of the evidence, how often visited, jumps in and out.

    location: the highest peak, or of a mode without one the highest point that an ascent reached, as `modes=` takes it:
    a flat position inside the target's bounds. peaks: how many it has, as far as ascents have shown; a ring or a funnel
    has none, and -1 stands where no ascents were made. pass_: the valley, in nats, towards the mode that is easiest to
    reach; infinite where none is near, NaN where no ascents were made. notes: which modes overlap, and which have
    several peaks, in words.
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
    peaks: Int[np.ndarray, " size"]
    pass_: Float[np.ndarray, " size"]
    notes: tuple[str, ...] = ()

    @classmethod
    def of(cls, result: "Result") -> "ModeTable":
        """A mode's evidence is its weight's share of the whole."""
        partition, weights, evidence = result.partition, result.weights, result.evidence
        size, ascended = partition.num_modes, result.basins is not None
        with np.errstate(divide="ignore", invalid="ignore"):
            log_share, relative = np.log(weights.weight), weights.se / weights.weight
        return cls(
            location=_locations(result),
            weight=weights.weight,
            weight_se=weights.se,
            log_evidence=evidence.log_evidence + log_share,
            log_evidence_se=np.hypot(evidence.se, relative),
            visits=np.bincount(result.label.ravel(), minlength=size),
            jumps_in=result.jumps.sum(axis=0),
            jumps_out=result.jumps.sum(axis=1),
            num_charts=np.bincount(partition.of_chart, minlength=size),
            peaks=partition.peaks if ascended else np.full(size, -1),
            pass_=partition.depth.min(axis=1, initial=np.inf) if ascended else np.full(size, np.nan),
            notes=_notes(result, weights),
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

    def counts(self, k: int | np.integer) -> tuple[str, str, str]:
        """Visits, peaks and pass of a mode, to be printed."""
        peaks = "?" if self.peaks[k] < 0 else str(self.peaks[k])
        return str(self.visits[k]), peaks, nats(self.pass_[k])

    def __len__(self) -> int:
        return len(self.weight)

    def __repr__(self) -> str:
        return f"ModeTable({counted(len(self), 'mode')})"

    def __str__(self) -> str:
        lines = ["mode   weight      ±   log evidence      ±     visits  jumps in  jumps out  peaks   pass"]
        for k in self.shown:
            visits, peaks, valley = self.counts(k)
            lines.append(
                f"{k:4d}   {self.weight[k]:.4f}  {self.weight_se[k]:.4f}  {self.log_evidence[k]:12.3f}"
                f"  {self.log_evidence_se[k]:.3f}   {visits:>8s}"
                f"  {self.jumps_in[k]:8d}  {self.jumps_out[k]:9d}  {peaks:>5s}  {valley:>5s}"
            )
        return "\n".join([*lines, *(f"   and {line}" for line in self.left_out), *self.notes])


def _notes(result: "Result", weights: Weights) -> tuple[str, ...]:
    if result.basins is None:
        return (BY_CHARTS,)
    found = tuple(notes(result.partition, weights, result.valley))
    if not result.basins.num_straight:
        return found
    pairs = counted(result.basins.num_straight, "pair")
    return (*found, f"{pairs} of peaks were compared along straight lines only: some modes may be one.")


def nats(valley: float) -> str:
    """A valley in words: deep ones are not looked at closely, and NaN was not looked at."""
    if np.isnan(valley):
        return "?"
    return "-" if np.isinf(valley) else f">{FAR:g}" if valley >= FAR else f"{valley:.2f}"


def notes(partition: Partition, weights: Weights, valley: float = VALLEY) -> Iterator[str]:
    """Which modes overlap, and which have several peaks: the heaviest, and how many more. valley: that parts modes."""
    weight = weights.weight
    first, second = np.nonzero(np.triu(partition.depth < OVERLAP, 1))
    order = np.argsort(-np.minimum(weight[first], weight[second]), kind="stable")
    for a, b in zip(first[order[:NOTED]].tolist(), second[order[:NOTED]].tolist(), strict=True):
        yield _overlap(partition.fall[a, b], partition.depth[a, b], valley, (a, b), float(weight[a] + weight[b]))
    if len(order) > NOTED:
        yield f"{counted(len(order) - NOTED, 'more pair')} of lighter modes overlap."
    several = np.flatnonzero(partition.peaks > 1)
    several = several[np.argsort(-weight[several], kind="stable")]
    for k in several[:NOTED].tolist():
        between = f"{partition.peaks[k]} peaks with at most {partition.inner[k]:.2f} nats between them"
        yield f"Mode {k} has {between}: one mode."
    if len(several) > NOTED:
        yield f"{counted(len(several) - NOTED, 'more mode')} with several peaks."


def _overlap(fall: float, depth: float, valley: float, modes: tuple[int, int], total: float) -> str:
    names = "Modes {} and {}".format(*modes)
    if fall >= valley:
        what = f"the pass between them is {fall:.1f} nats below the lower peak"
        border = f"another border would move them by up to {next(much for least, much in BORDERS if fall >= least):.3f}"
    else:
        what = (
            f"the pass between them is only {fall:.1f} nats below the lower peak, but the density of the draws falls "
            f"by {depth:.1f} nats on the way"
        )
        border = "how far another border would move them is not known"
    return (
        f"{names} overlap: {what}. Their weights say from which draws one climbs to which peak; {border}. "
        f"Their sum, {total:.3f}, does not depend on it."
    )


def border(depth: Depth, modes: list[int], others: list[int] | None = None) -> tuple[str, str]:
    """What to add to message and remedy where one of the modes overlaps with another, or with one of the others: where
    their border is drawn matters for each, and not for both together."""
    among = np.full_like(depth, np.inf)
    some = np.ix_([k for k in modes if k < len(depth)], range(len(depth)) if others is None else others)
    among[some] = depth[some]
    valley = among.min(initial=np.inf)
    if not valley < OVERLAP:
        return "", ""
    mode, other = np.argwhere(among == valley)[0]
    overlap = f"; mode {mode} overlaps with mode {other}, and the border between them is not sharp"
    return overlap, f"; result.with_valley({np.floor(10 * valley + 1) / 10:.1f}) takes these two for one mode"


def _locations(result: "Result") -> Float[np.ndarray, "modes dim"]:
    """The highest peak of each mode; where modes are told by charts alone, the heaviest chart."""
    library, target, partition = result.library, result.target, result.partition
    if result.basins is not None:
        location = result.basins.location[partition.highest]
    else:
        charts = library.charts()
        heaviest = [
            max(np.flatnonzero(partition.of_chart == k), key=lambda n: charts[n].log_weight)
            for k in range(partition.num_modes)
        ]
        location = locations_of(charts)[heaviest]
    with jax.enable_x64(True):
        return np.asarray(target.inside(jnp.asarray(location)))


@dataclasses.dataclass(frozen=True, repr=False)
class ModeDraws:
    """The draws of one mode, all chains together, and from which chain each is. draws: unconstrained. values: as named
    and constrained. location: as in `ModeTable`. share: of all draws, which is not the weight where modes overlap, or
    where weights are known better than from visits."""

    number: int
    weight: float
    weight_se: float
    share: float
    location: Float[np.ndarray, " dim"]
    chain: Int[np.ndarray, " n"]
    draws: Float[np.ndarray, "n dim"]
    logdensity: Float[np.ndarray, " n"]
    values: Mapping[str, np.ndarray]

    def __len__(self) -> int:
        return len(self.logdensity)

    def __repr__(self) -> str:
        size = counted(len(self), "draw")
        weight = f"weight {self.weight:.4f} ± {self.weight_se:.4f}"
        gap = abs(self.share - self.weight)
        differs = gap > LEAST_SHARE_GAP and gap > SHARE_ERRORS * self.weight_se
        told = ", from which that share differs: the probability of the mode is the weight" if differs else ""
        return f"ModeDraws(mode {self.number}: {size}, {self.share:.4f} of all; {weight}{told})"
