"""How much mass a search has not found, from how often its starts hit the modes that they found.

n independent starts have found modes k with h_k >= 1 hits and shares m_k of the mass found. A random part of them, in
which each start is kept with chance t, would have missed on average

    L(t) = sum_k m_k (1 - t)^h_k.

L(1/2) is what the last doubling of the starts has brought, L(1/4) - L(1/2) what the one before. With r the ratio of
these gains, at most .9, the doublings to come are a geometric series: x = L(1/2) r / (1 - r) beside what was found, a
share x / (1 + x) of all. Hits of modes without mass weigh nothing. Where no start has hit a mode with mass, as
of a cusp, at which no descent ends, nothing is known: neither that mass is missing nor that it is not.

This speaks about modes whose like has left a trace. A basin that holds a share b of the start region is missed with
chance (1 - b)^n whatever the hits are: one of 3/n with chance .05.
"""

import dataclasses

import numpy as np

from whmc._shapes import Float, Int

MOST_RATIO = 0.9
"""Of two successive gains. On 2400 simulated searches the expected share is then right on average, and `BOUND` times
L(1/4) is always above it."""

GO_ON = 1e-3
"""A search goes on while seven eighths of its starts brought more than this: a mode of a tenth of the mass then has 35
hits or more."""

BOUND = 6.0
"""Nine times in ten less than this multiple of L(1/4) is missing, where that is above `NOTICED`."""

NOTICED = 1e-3
"""Less than this, brought by three quarters of the starts, is nothing that hits show."""

ALARM = 0.01
FEW_STARTS = 16_384
"""More than `ALARM` expected to be missing is not to be passed over in silence. From so many starts on L(1/4) itself is
asked, which misses less; with fewer it is often above `ALARM` where nothing is missing."""

HEAVY = 0.01
"""A mode of a larger share is one that a user would miss."""

FEW_HITS = 10
"""Such a mode that was hit fewer times is a trace of others that were missed."""

UNSEEN_CHANCE = 3.0
"""A basin of so many n-ths of the start region is missed by n starts with chance e^-3 = .05."""


@dataclasses.dataclass(frozen=True)
class MissingMass:
    """What hits say about the mass of modes not found; shares are NaN where they say nothing (not `known`).

    num_starts: independent starts. num_given: how many different points were given as starts; 0 for a law of starts.
    expected: share of the mass expected in modes not found, and `bound`, which it is below nine times in ten.
    brought: share of the mass that the last three quarters of the starts have brought, L(1/4), and `brought_late`, the
        last seven eighths, L(1/8). next_gain: what as many starts again should bring.
    rarely: share of the mass in modes that were hit once or twice. fewest: hits of the mode with fewest among those
        that hold more than a hundredth; 0 if there are none.
    width_limit: of modes narrower than this multiple of those found, one in ten or more would have been missed; NaN
        where it is not known.
    """

    num_starts: int = 0
    num_given: int = 0
    expected: float = np.nan
    bound: float = np.nan
    brought: float = np.nan
    brought_late: float = np.nan
    next_gain: float = np.nan
    rarely: float = 0.0
    fewest: int = 0
    width_limit: float = np.nan

    @staticmethod
    def of(
        hits: Int[np.ndarray, " size"], log_mass: Float[np.ndarray, " size"], num_starts: int, num_given: int = 0
    ) -> "MissingMass":
        """From hits and log masses of the modes. Those without hits, found in other ways, say nothing."""
        seen = (hits > 0) & np.isfinite(log_mass)
        if not np.any(seen):
            return MissingMass(num_starts, num_given)
        hits, log_mass = hits[seen], log_mass[seen]
        share = np.exp(log_mass - np.logaddexp.reduce(log_mass))
        quarter, half = missed(hits, share, 1 / 4), missed(hits, share, 1 / 2)
        gain = max(quarter - half, np.finfo(float).tiny)
        ratio = min(half / gain, MOST_RATIO)
        odds = half * ratio / (1 - ratio)
        heavy = hits[share > HEAVY]
        return MissingMass(
            num_starts,
            num_given,
            expected=odds / (1 + odds),
            bound=min(1.0, BOUND * quarter),
            brought=quarter,
            brought_late=missed(hits, share, 1 / 8),
            next_gain=half * min(half / gain, 1.0),
            rarely=float(share[hits <= 2].sum()),
            fewest=int(heavy.min()) if len(heavy) else 0,
        )

    @property
    def known(self) -> bool:
        """Whether hits say anything."""
        return bool(np.isfinite(self.expected))

    @property
    def more_to_find(self) -> bool:
        """Whether hits ask for more starts, or do not speak yet."""
        return not self.known or self.brought_late > GO_ON

    @property
    def alarming(self) -> bool:
        """Whether so much may be missing that it has to be said first, or there were no starts to tell."""
        if not self.known:
            return self.num_starts == 0
        return (self.brought if self.num_starts >= FEW_STARTS else self.expected) > ALARM

    @property
    def used_up(self) -> bool:
        """Whether every point that was given as a start has been used."""
        return 0 < self.num_given <= self.num_starts

    @property
    def smallest_basin(self) -> float:
        """The smallest share of the start region that a basin may have to be found with chance .95."""
        return min(1.0, UNSEEN_CHANCE / self.num_starts) if self.num_starts else 1.0

    def __str__(self) -> str:
        if self.num_starts == 0:
            return "no start was an independent descent from the start region, so nothing tells what was not found"
        told = self._unknown() if not self.known else self._shown() if self.brought >= NOTICED else self._hidden()
        if self.used_up:
            told += (
                f" Each of the {self.num_given} points given as starts was used once: the search is as complete as "
                "these starts allow."
            )
        return told

    @property
    def brief(self) -> str:
        """In few words."""
        if not self.known:
            return "hits tell nothing of mass not found"
        return f"expected in modes not found: {percent(self.expected)} of the mass"

    def _unknown(self) -> str:
        return f"none of {self.num_starts} independent starts ended at a peak, so hits tell nothing of mass not found."

    def _shown(self) -> str:
        return (
            f"the last three quarters of {self.num_starts} independent starts brought {percent(self.brought)} of the "
            f"mass: {percent(self.expected, 'about ')} is expected in modes not found, at most {percent(self.bound)} "
            f"(nine times in ten). As many starts again should bring {percent(self.next_gain, 'about ')}."
        )

    def _hidden(self) -> str:
        heavy = f"each mode that holds over 1 % was hit at least {self.fewest} times" if self.fewest else "none is rare"
        narrow = (
            f" Of modes narrower than {self.width_limit:.2g} times those found, one in ten or more would have been "
            "missed."
            if np.isfinite(self.width_limit)
            else ""
        )
        return (
            f"of {self.num_starts} independent starts {heavy}, so the hits show nothing missing. They cannot show a "
            f"mode whose basin is under 1/{_rounded(1 / self.smallest_basin)} of the start region: it would have been "
            f"missed with chance .05 or more (one of 1/{self.num_starts}: .37).{narrow}"
        )


def missed(hits: Int[np.ndarray, " size"], share: Float[np.ndarray, " size"], part: float) -> float:
    """L(t): the mass that a part t of the starts, taken at random, would have missed on average."""
    return float(np.sum(share * (1 - part) ** hits))


def percent(share: float, about: str = "") -> str:
    """A share in words. Never nothing: that is not what hits can show."""
    if share < NOTICED:
        return "less than 0.1 %"
    whole = share >= 0.1  # two digits; .2g makes 1e+02 of a hundred
    return about + (f"{100 * share:.0f} %" if whole else f"{100 * share:.2g} %")


def _rounded(number: float) -> str:
    """A number with two digits."""
    size = 10 ** max(int(np.floor(np.log10(number))) - 1, 0)
    return f"{round(number / size) * size:.0f}"
