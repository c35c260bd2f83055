"""How long a throat pays: the search for the most effective changes of mode per gradient."""

import dataclasses
from collections.abc import Mapping

Setting = tuple[int, float]
"""(throat, stride)"""

LONGEST_THROAT = 1024
HOPELESS_SHARE = 0.02
"""Below this share of what independent draws would change, the next round tries a throat four times as long."""


DOUBT = 1.0
"""Standard errors of its acceptance by which another setting must be better than the present one."""

LEAST_DIVERSITY = 1e-3
"""Chance that two independent draws lie in different modes up to which no throat can pay: all but one mode are
negligible."""


@dataclasses.dataclass(frozen=True)
class ThroatSearch:
    """Acceptance seen at each setting in the last round, and what to try next.

    Doubling and halving around the best. A setting is only tried if it would win with every jump accepted, so a mode
    network whose direct jumps are good is never offered a throat. Acceptances of earlier rounds are
    discarded because the charts have changed since.

    diversity: 1 - sum of squared weights, the chance that two independent draws lie in different modes.
    other_cost: gradients that the rest of the cycle spends. acceptance: that of the present setting first; error: its
    standard errors, zero where none is given.
    """

    diversity: float = 0.5
    other_cost: int = 1
    acceptance: Mapping[Setting, float] = dataclasses.field(default_factory=dict)
    error: Mapping[Setting, float] = dataclasses.field(default_factory=dict)

    def rate(self, setting: Setting, doubt: float = 0.0) -> float:
        """Effective draws of the mode label per gradient, with so many standard errors off the acceptance."""
        acceptance = max(self.acceptance[setting] - doubt * self.error.get(setting, 0.0), 0.0)
        return self._effective(acceptance) / self._cost(setting)

    def best(self) -> Setting:
        """The best of the last round: the present setting, unless another is better beyond doubt. The direct jump,
        which costs least, where nothing helped.

        Others are tried in a few steps only, and there are several: the largest of their rates owes much to chance.
        """
        hopeful = [s for s in self.acceptance if not self.hopeless(s)]
        present = next(iter(self.acceptance), None)
        return max(hopeful, key=lambda s: self.rate(s, 0.0 if s == present else DOUBT), default=(0, 1.0))

    def hopeless(self, setting: Setting) -> bool:
        """Whether the mode changes hardly ever, compared with independent draws."""
        return self.acceptance[setting] < HOPELESS_SHARE * self.diversity

    def plan(self) -> list[Setting]:
        """Settings of the next round, the best so far first."""
        if not self.acceptance or self.diversity <= LEAST_DIVERSITY:
            return [(0, 1.0)]
        throat, stride = best = self.best()
        if all(map(self.hopeless, self.acceptance)):
            longest = max(throat for throat, _ in self.acceptance)
            return [(min(max(8, 4 * longest), LONGEST_THROAT), 1.0)]
        if throat == 0:
            near = [(4, 1.0), (8, 1.0), (16, 1.0)]
        else:
            near = [(throat // 2, stride), (2 * throat, stride), (throat, stride * 0.7), (throat, stride * 1.4)]
        ceiling, rate = self._effective(1.0), self.rate(best)
        return [best, *(s for s in near if s[0] <= LONGEST_THROAT and ceiling / self._cost(s) > rate)]

    def _effective(self, changes: float) -> float:
        """Effective label draws of one step in which the mode changes with chance `changes`.

        Independent draws change the mode with chance `diversity`, so the label's lag-one correlation is about
        1 - s, s = changes/diversity, and a step is worth s/(2 - s) draws: for rare changes, half their number. Above
        s = 1 labels alternate; beyond s = 1.5 nothing more is counted: it would only serve the weights of two modes.
        """
        s = min(changes / self.diversity, 1.5)
        return s / (2 - s)

    def _cost(self, setting: Setting) -> int:
        """Gradients of a cycle; the jump's as in `Wormhole.cost`."""
        return max(1, 2 * setting[0] - 1) + self.other_cost
