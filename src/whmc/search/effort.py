"""How long the default search goes on. Counted in gradients and in their operations, never in seconds: so the same seed
gives the same draws on every machine, quick or slow.

First come free starts, whatever they hit: as many as take `FREE_OPERATIONS`. Each early look at the hits is a chance to
stop at a moment that shows no trace of what is missing. Then the starts are doubled while hits ask for more (see
`whmc.estimate.missing`), and while their gradients are few beside those of the run itself.

A target is costly where `FEWEST_STARTS` alone would take more than is free, or where its operations cannot be counted.
It has no free starts: it is searched on a budget while all basins are hit alike.
"""

import dataclasses
import math

from whmc.target.price import FEWEST_STARTS, FREE_OPERATIONS, cost_of_gradient, is_costly
from whmc.target.target import Target

POLISH_OPERATIONS = 5e5
"""What it adds to settle an end that is at no known mode: half a millisecond, many at once."""

KNOWN_OPERATIONS = 10.0
"""What each known mode adds to a gradient of a descent, which is compared with all: more matters among a thousand."""

MOST_FREE_STARTS = 131_072
MOST_STARTS = 1_048_576
MOST_COSTLY_STARTS = 4096

GRADIENTS_A_STEP = 4.0
"""Of a step of the default kernel, which takes two to six."""

SHARE_OF_RUN = 0.25
"""Of the gradients of the run itself, for starts beyond the free ones."""

DEFAULT_STEPS = 16 * 1500
"""Of all chains of a default run."""


@dataclasses.dataclass(frozen=True)
class Effort:
    """How many gradients a search may take.

    share: of its starts, beyond the free ones, while hits ask for more. frugal: of a search of which nothing says that
    there is more to be found: a third each for the starts of a costly target, for an annealed population and for what
    follows. most: of the whole search, if the user has set a limit; half of it is for starts.
    """

    share: float = SHARE_OF_RUN * GRADIENTS_A_STEP * DEFAULT_STEPS
    frugal: float = math.inf
    most: float = math.inf

    @staticmethod
    def of_run(num_steps: int) -> "Effort":
        """For a run of so many steps, all chains together: of four, each of which takes two gradients or more, a search
        of which nothing says that there is more takes three."""
        return Effort(SHARE_OF_RUN * GRADIENTS_A_STEP * num_steps, 0.75 * num_steps)

    @staticmethod
    def of_search(budget: float) -> "Effort":
        """With a limit that the user has set, or none."""
        return Effort(Effort.share if budget == math.inf else math.inf, budget, budget)


@dataclasses.dataclass(frozen=True)
class Starts:
    """What the starts of a search have cost so far, and whether more are wanted.

    num_polished: ends that had to be polished. num_compared: known modes that descents were compared with, once for
    each of their gradients. looked_at: how many starts there were when hits were last looked at.
    """

    num: int = 0
    num_gradients: int = 0
    num_polished: int = 0
    num_compared: int = 0
    looked_at: int = 0

    def wanted(self, effort: Effort, target: Target, *, more_to_find: bool, even: bool) -> tuple["Starts", int]:
        """How many more there may be, as far as can be told now, none at the end; and whether hits were looked at.

        more_to_find: whether hits ask for more. even: whether all basins are hit alike.
        """
        if self.num == 0:
            return self, FEWEST_STARTS
        costly = is_costly(target.operations, target.dim)
        frugal = costly and even and effort.frugal < math.inf
        if frugal:  # nothing says that there is more to be found
            num = self._within(effort.frugal / 3)
        else:
            num = max(FEWEST_STARTS - self.num, self.looked_at * 2 - self.num, 0 if costly else self._free(target))
        looking = self
        if num <= 0 and not frugal and more_to_find:
            most = MOST_COSTLY_STARTS if costly and effort.most == math.inf else MOST_STARTS
            if 2 * self.num <= most and 2 * self.num_gradients <= effort.share:
                looking, num = dataclasses.replace(self, looked_at=self.num), self.num
        return looking, max(0, min(num, self._within(0.5 * effort.most)))

    def _free(self, target: Target) -> int:
        if self.looked_at:
            return 0
        used = (
            self.num_gradients * cost_of_gradient(target.operations, target.dim)
            + self.num_polished * POLISH_OPERATIONS
            + self.num_compared * KNOWN_OPERATIONS
        )
        return min(MOST_FREE_STARTS - self.num, self._few_left(FREE_OPERATIONS / max(used, 1.0)))

    def _within(self, num_gradients: float) -> int:
        return self._few_left(num_gradients / max(self.num_gradients, 1))

    def _few_left(self, times: float) -> int:
        """How many are left where so many times those made are affordable.

        A few are none: a small batch takes nearly as long as a large one.
        """
        left = int(self.num * min(times - 1, MOST_STARTS))
        return left if left > self.num // 8 else 0
