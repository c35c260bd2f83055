"""What a run will cost, told before it is made."""

import dataclasses
import math

GRADIENTS_A_STEP = 3, 6
"""Of one chain: a jump and an independence move take one each; a local move one or, until it is tuned, four. Jumps take
more where they need a throat, and how long that is only the run finds out."""

VALUES_A_STEP = 5
"""The same where there is no gradient: chains then walk by values alone, three for a local move."""


FREE_OPERATIONS = 3e9
"""What one core does in some three seconds, in which the block of a run is compiled on another."""

HOST_OPERATIONS = 2000.0
HOST_OPERATIONS_A_NUMBER = 10.0
"""What a descent adds to a gradient: its arithmetic in NumPy, some of it for each number of its inverse Hessian."""

FEWEST_STARTS = 1024
"""Before that hits are not looked at: a mode that one start in two hundred finds is missed by 256 with chance .28, and
then nothing in the hits betrays it; by 1024 with chance .006."""

GRADIENTS_A_START = 32
"""Of a descent in some tens of dimensions: to tell beforehand whether a target is costly."""


def cost_of_gradient(operations: float | None, dim: int) -> float:
    """Operations of a gradient in a descent, its own and the descent's; infinite where they cannot be counted."""
    if operations is None:
        return math.inf
    return operations + HOST_OPERATIONS + HOST_OPERATIONS_A_NUMBER * min(dim**2, 40 * dim)


def is_costly(operations: float | None, dim: int) -> bool:
    """Whether free starts would be fewer than a search needs."""
    return FEWEST_STARTS * GRADIENTS_A_START * cost_of_gradient(operations, dim) > FREE_OPERATIONS


@dataclasses.dataclass(frozen=True)
class Price:
    """The numbers of a run that decide on its price, those of a default run unless told.

    search: gradients that its search takes at first; zero: none is made. calls: of the function for one gradient.
    has_gradient: whether chains use gradients. free: whether the search first makes as many starts as take seconds.
    """

    chains: int = 16
    warmup: int = 500
    draws: int = 1000
    search: float = 18_000.0
    calls: int = 1
    has_gradient: bool = True
    free: bool = False

    def tell(self, seconds: float, beside: float | None = None, compiling: float | None = None) -> str:
        """Evaluations and time of search, warm-up and sampling.

        seconds: of a gradient among many; beside: of one among those of all chains, the same unless told. compiling:
        the seconds that it takes to compile the target.
        """
        told = [f"{duration(seconds)} a gradient" + (f" ({self.calls} calls)" if self.calls > 1 else "")]
        if self.search and self.free:
            told.append("search some 3 s on one core, more while its starts bring mass")
        elif self.search == math.inf:
            told.append("search as many as it needs")
        elif self.search > 0:
            spent = f"{self.search:,.0f} gradients, {duration(self.search * seconds)}"
            told.append(f"search {spent}, more where basins are hit unequally")
        beside = seconds if beside is None else beside
        least, most = GRADIENTS_A_STEP if self.has_gradient else (VALUES_A_STEP, VALUES_A_STEP)
        what, each = ("gradients", beside) if self.has_gradient else ("values", beside / self.calls)
        for phase, steps in (("warm-up", self.chains * self.warmup), ("sampling", self.chains * self.draws)):
            nums = [least * steps] if least == most else [least * steps, most * steps]
            times = " to ".join(duration(num * each) for num in nums)
            told.append(f"{phase} {' to '.join(f'{num:,}' for num in nums)} {what}, {times}")
        if self.has_gradient:
            told.append("more where jumps need a throat")
        if compiling is not None:
            told.append(f"compiling the target {duration(compiling)}, twice in a run, besides its moves")
        return "; ".join(told)


def duration(seconds: float) -> str:
    """A time in the unit that suits it."""
    for unit, size in (("days", 86400.0), ("h", 3600.0), ("min", 60.0), ("s", 1.0), ("ms", 1e-3)):
        if seconds >= size:
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds * 1e6:.3g} µs"
