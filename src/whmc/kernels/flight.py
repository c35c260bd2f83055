"""Flights: a proposal by leapfrog steps, then an accept. All moves of the default cycle are flights.

A flight has one leg or two. A leg is made of leapfrog steps in one chart, each with one evaluation of the target; a
leg of one step of size zero is an evaluation and nothing else. What a kernel adds is where a leg starts (`begin`,
`cross`) and what its end is worth (`finish`). So the steps of all moves of all chains can go through one loop, in which
the target stands once, however many moves there are: `Fleet`. A target takes long to compile, once for each time.

Which move, which leg and how many steps are the same for all chains. So the choices between them are real branches, and
only what is inside of a branch or a loop is vectorised over chains.
"""

import abc
import dataclasses
from collections.abc import Callable, Sequence
from functools import cached_property, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from whmc._shapes import Array, Bool, Float
from whmc.kernels.base import AbstractKernel, ChainState, StepInfo, metropolis, place
from whmc.kernels.leg import NOWHERE, Leg, Schedule, fly_leg, reached
from whmc.kernels.packing import Packing, put
from whmc.modes.library import ModeLibrary
from whmc.target.target import Target

Rows = Any
"""Packed records of all chains: an array for each dtype."""

Told = tuple[Rows, tuple[Any, ...]]
"""What a step tells: the infos of all flights, packed, and those of other moves. `told` unpacks it."""


class AbstractFlight(AbstractKernel):
    """A kernel whose proposals are flights. The last of its uniform numbers decides whether to accept."""

    @abc.abstractmethod
    def schedules(self) -> tuple[Schedule, ...]:
        """Of the flight's one or two legs."""

    @abc.abstractmethod
    def begin(self, noise: Any, state: ChainState, target: Target, library: ModeLibrary) -> Leg:
        """The start of the first leg."""

    def cross(self, leg: Leg, library: ModeLibrary) -> Leg:
        """The start of the second leg, from the end of the first."""
        del library
        return leg

    @abc.abstractmethod
    def finish(self, noise: Any, state: ChainState, leg: Leg, proposal: ChainState, library: ModeLibrary) -> StepInfo:
        """What is to be told of the move if it is accepted; `log_ratio` decides whether."""

    def move(self, noise: Any, state: ChainState, target: Target, library: ModeLibrary) -> tuple[ChainState, StepInfo]:
        leg = self.fly(self.begin(noise, state, target, library), target, library)
        proposal = place(reached(leg, library), leg.motion.logdensity, leg.motion.score, library)
        info = self.finish(noise, state, leg, proposal, library)
        return accept(noise.uniform[-1], leg.possible, info, state, proposal)

    def fly(self, leg: Leg, target: Target, library: ModeLibrary) -> Leg:
        """The end of the flight that starts so, of one chain."""
        for number, schedule in enumerate(self.schedules()):
            leg = fly_leg(self.cross(leg, library) if number else leg, schedule, target, library)
        return leg


def accept(
    uniform: Float[Array, ""], possible: Bool[Array, ""], info: StepInfo, state: ChainState, proposal: ChainState
) -> tuple[ChainState, StepInfo]:
    """The proposal with probability min(1, exp(log_ratio)) if it is possible at all, else the state."""
    new_state, accepted, log_ratio = metropolis(uniform, info.log_ratio, state, proposal, possible)
    told = {"log_ratio": log_ratio, "accepted": accepted, "regenerated": info.regenerated & accepted}
    return new_state, dataclasses.replace(info, **told)


def is_flight(kernel: AbstractKernel) -> bool:
    """Whether its move is a flight and nothing else: a subclass may have its own."""
    return isinstance(kernel, AbstractFlight) and type(kernel).move is AbstractFlight.move


@dataclasses.dataclass(frozen=True)
class Fleet:
    """Kernels that move many chains side by side, as a loop over stages.

    A stage is a leg of a flight, or the whole move of a kernel that is not one. The target stands in the loop once, for
    all flights, and besides in the moves that are not flights. States, legs and infos are packed between stages.
    """

    kernels: tuple[AbstractKernel, ...]
    target: Target
    library: ModeLibrary
    num_chains: int

    @property
    def flights(self) -> list[int]:
        return [n for n, kernel in enumerate(self.kernels) if is_flight(kernel)]

    @property
    def others(self) -> list[int]:
        return [n for n, kernel in enumerate(self.kernels) if not is_flight(kernel)]

    @property
    def stages(self) -> list[tuple[int, int, Schedule]]:
        """The kernel, the number of its leg, and the steps of this leg."""
        schedules = [kernel.schedules() if is_flight(kernel) else (NOWHERE,) for kernel in self.kernels]  # type: ignore[attr-defined]
        return [(n, leg, schedule) for n, legs in enumerate(schedules) for leg, schedule in enumerate(legs)]

    @property
    def dtype(self) -> Any:
        return self.library.location.dtype

    @cached_property
    def states(self) -> Packing:
        return state_packing(self.library, self.num_chains)

    @cached_property
    def legs(self) -> Packing:
        positions, numbers = ((self.num_chains, self.library.dim), self.dtype), ((self.num_chains,), self.dtype)
        return Packing.of(
            jax.eval_shape(jax.vmap(Leg.land), jax.ShapeDtypeStruct(*positions), jax.ShapeDtypeStruct(*numbers))
        )

    @cached_property
    def infos(self) -> Packing:
        real, whole, flag = (jnp.zeros(self.num_chains, kind) for kind in (self.dtype, int, bool))
        return Packing.of(StepInfo(whole, whole, real, flag, flag, whole, whole))

    def step(
        self, noise_of: Callable[[int], Any], running: Bool[Array, " chains"], states: Rows, before: Told
    ) -> tuple[Rows, Told]:
        """One move of each kernel in turn, of all chains that run: their states, and what they tell, in the place of
        what was told before."""
        stages, flights, others = self.stages, self.flights, self.others
        infos, told = before
        if not flights:
            for number, n in enumerate(others):
                states, info = self.other_move(n, noise_of, running, states)
                told = (*told[:number], info, *told[number + 1 :])
            return states, (infos, told)

        starts = [self.start_of(n, number, noise_of) for n, number, _ in stages]
        schedules = _stacked([schedule for _, _, schedule in stages], self.dtype)
        finishes = [self.finish_of(n, noise_of) for n in flights]

        # how a stage may end: with an accept, in the air, or with the whole move of a kernel that is no flight
        def settle(row: Any, states: Rows, leg: Rows, infos: Rows, told: tuple[Any, ...]) -> Any:
            states, info = self.settle(_branch_of(row, finishes), running, states, leg)
            return states, [put(old, new, row, axis=1) for old, new in zip(infos, info, strict=True)], told

        def stay(row: Any, states: Rows, leg: Rows, infos: Rows, told: tuple[Any, ...]) -> Any:
            return states, infos, told

        def other(number: int) -> Callable[..., Any]:
            def move(row: Any, states: Rows, leg: Rows, infos: Rows, told: tuple[Any, ...]) -> Any:
                states, info = self.other_move(others[number], noise_of, running, states)
                return states, infos, (*told[:number], info, *told[number + 1 :])

            return move

        owners = [n for n, _, _ in stages]
        in_air = [here == after for here, after in zip(owners, [*owners[1:], -1], strict=True)]
        ends = [settle, *map(other, range(len(others))), *([stay] if any(in_air) else [])]
        end_of = [
            len(ends) - 1 if flying else 0 if n in flights else 1 + others.index(n)
            for n, flying in zip(owners, in_air, strict=True)
        ]
        row_of = [flights.index(n) if n in flights else 0 for n in owners]

        def stage(number: Any, carry: Any) -> Any:
            states, leg, infos, told = carry
            leg = _branch_of(number, starts)(states, leg)
            schedule = jax.tree.map(lambda values: values[number], schedules)
            fly = partial(fly_leg, schedule=schedule, target=self.target, library=self.library, legs=self.legs)
            leg = fly(leg) if not any(in_air) else jax.lax.cond(schedule.num_steps > 0, fly, lambda leg: leg, leg)
            end, row = (_at(values, number) for values in (end_of, row_of))
            states, infos, told = _branch_of(end, ends)(row, states, leg, infos, told)
            return states, leg, infos, told

        carry = (states, [rows[0] for rows in self.legs.empty(1, len(running))], infos, told)
        carry = stage(0, carry) if len(stages) == 1 else jax.lax.fori_loop(0, len(stages), stage, carry)
        return carry[0], carry[2:]

    def nothing_told(self, noise_of: Callable[[int], Any], running: Bool[Array, " chains"], states: Rows) -> Told:
        """Zeros in the shape of what a step tells: the infos of flights together, and those of others."""
        rows = [
            jnp.zeros((len(running), len(self.flights), row.shape[2]), row.dtype)
            for row in self.infos.empty(1, len(running))
        ]
        like = (jax.eval_shape(partial(self.other_move, n, noise_of, running), states)[1] for n in self.others)
        return rows, tuple(jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), info) for info in like)

    def start_of(self, n: int, number: int, noise_of: Callable[[int], Any]) -> Callable[..., Any]:
        """How a stage starts: (states, leg) -> the new leg."""
        kernel: Any = self.kernels[n]

        def begin(states: Rows, leg: Rows) -> Rows:
            begin = jax.vmap(kernel.begin, (0, 0, None, None))
            return self.legs.pack(begin(noise_of(n), self.states.unpack(states), self.target, self.library))

        def cross(states: Rows, leg: Rows) -> Rows:
            return self.legs.pack(jax.vmap(kernel.cross, (0, None))(self.legs.unpack(leg), self.library))

        return (lambda states, leg: leg) if n in self.others else cross if number else begin

    def finish_of(self, n: int, noise_of: Callable[[int], Any]) -> Callable[..., Any]:
        """How a flight ends: (states, leg, proposals) -> infos, and the numbers that decide on acceptance."""
        kernel: Any = self.kernels[n]

        def finish(states: Rows, leg: Rows, proposals: Rows) -> tuple[Rows, Array]:
            noise = noise_of(n)
            chains = self.states.unpack(states), self.legs.unpack(leg), self.states.unpack(proposals)
            infos = jax.vmap(kernel.finish, (0, 0, 0, 0, None))(noise, *chains, self.library)
            return self.infos.pack(infos), noise.uniform[:, -1]

        return finish

    def settle(self, finish: Callable[..., Any], running: Bool[Array, " chains"], states: Rows, leg: Rows) -> Any:
        """The accept at the end of a flight: new states, and infos."""
        legs = self.legs.unpack(leg)
        found = reached(legs, self.library), legs.motion.logdensity, legs.motion.score
        proposals = self.states.pack(jax.vmap(place, (0, 0, 0, None))(*found, self.library))
        infos, uniform = finish(states, leg, proposals)
        new, info = jax.vmap(accept)(
            uniform,
            legs.possible & running,
            self.infos.unpack(infos),
            self.states.unpack(states),
            self.states.unpack(proposals),
        )
        return self.states.pack(new), self.infos.pack(info)

    def other_move(
        self, n: int, noise_of: Callable[[int], Any], running: Bool[Array, " chains"], states: Rows
    ) -> tuple[Rows, Any]:
        """The move of a kernel that is no flight."""
        move = jax.vmap(self.kernels[n].move, (0, 0, None, None))
        new, info = move(noise_of(n), self.states.unpack(states), self.target, self.library)
        return [
            jnp.where(running[:, None], now, old) for now, old in zip(self.states.pack(new), states, strict=True)
        ], info


def state_packing(library: ModeLibrary, num_chains: int) -> Packing:
    """How the states of so many chains are packed."""

    def rows(*shape: int) -> np.ndarray:
        return np.broadcast_to(np.zeros((), library.location.dtype), (num_chains, *shape))

    dim, capacity = library.dim, library.capacity
    return Packing.of(ChainState(rows(dim), rows(), rows(dim), rows(capacity), rows()))


def told(kernels: Sequence[AbstractKernel], infos: Rows, others: Sequence[Any]) -> tuple[Any, ...]:
    """The info of each kernel, from what `Fleet.step` tells; of one step or of many, in JAX or NumPy."""
    flights, rest = iter(range(len(kernels))), iter(others)
    packing = info_packing(infos)
    return tuple(
        packing.unpack([rows[..., next_row, :] for rows in infos]) if next_row is not None else next(rest)
        for next_row in (next(flights) if is_flight(kernel) else None for kernel in kernels)
    )


def info_packing(infos: Rows) -> Packing:
    """How a StepInfo is packed: flags, then the log ratio, then whole numbers, of the dtypes of the rows."""
    flag, real, whole = (np.zeros(1, rows.dtype) for rows in infos)
    return Packing.of(StepInfo(whole, whole, real, flag, flag, whole, whole))


def _branch_of(number: Any, branches: Sequence[Callable[..., Any]]) -> Callable[..., Any]:
    """One of several functions: a real branch, for the number is the same for all chains."""
    if isinstance(number, int) or len(branches) == 1:
        return branches[number if isinstance(number, int) else 0]
    return partial(jax.lax.switch, number, branches)


def _at(values: list[int], number: Any) -> Any:
    return values[number] if isinstance(number, int) else jnp.asarray(values)[number]


def _stacked(schedules: list[Schedule], dtype: Any) -> Schedule:
    """One schedule with a number for each stage."""
    return Schedule(
        jnp.stack([jnp.asarray(s.num_steps, int) for s in schedules]),
        jnp.stack([jnp.asarray(s.residual, dtype) for s in schedules]),
        jnp.stack([jnp.asarray(s.rise, dtype) for s in schedules]),
    )
