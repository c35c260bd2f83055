"""How long a phase has taken for what is done of it, and how long the rest will take."""

import bisect
import dataclasses

RECENT = 0.5
"""Share of what was done that the speed is taken from, the newest: speeds change, as where kernels are tuned."""


@dataclasses.dataclass
class Pace:
    """Times of one phase, in seconds on any clock.

    Time in which something was done is kept apart from pauses, in which nothing was, such as the tuning between two
    rounds: there are few of them, so the share that is done says nothing about how many are left.

    began, told: when the phase began, and when it was last told of. made, moving: what had been done by then each time,
    and in how many seconds. pausing: seconds of the pause that goes on. pause: those of the last one, as later ones
    take longer.
    """

    began: float
    done: int
    told: float
    made: list[int]
    moving: list[float]
    pausing: float = 0.0
    pause: float = 0.0

    @classmethod
    def at(cls, now: float, done: int) -> "Pace":
        """A phase that begins, or goes on after a stop, with so much done."""
        return cls(began=now, done=done, told=now, made=[0], moving=[0.0])

    def leave(self, now: float) -> None:
        """Another phase begins before this one ends: what has passed since was a pause."""
        self.pausing += now - self.told
        self.told = now

    def come_back(self, now: float) -> None:
        """The other phase is over: its time is its own."""
        self.told = now

    def reach(self, now: float, done: int) -> None:
        """So much is done by now."""
        if done > self.done:
            self.made.append(self.made[-1] + done - self.done)
            self.moving.append(self.moving[-1] + now - self.told)
            self.pause, self.pausing = self.pausing or self.pause, 0.0
        else:
            self.pausing += now - self.told
        self.done, self.told = done, now

    def left(self, now: float, most: int, pauses: int) -> float | None:
        """Seconds until `most` is done, with so many pauses on the way, this one counted; None: it cannot be told."""
        if len(self.made) == 1 or self.done >= most:
            return None
        first = min(bisect.bisect_right(self.made, RECENT * self.made[-1]), len(self.made) - 1) - 1
        each = (self.moving[-1] - self.moving[first]) / (self.made[-1] - self.made[first])
        pausing = max(pauses * self.pause - self.pausing, 0.0)
        left = each * (most - self.done) + pausing - (now - self.told)
        return left if left > 0 else None
