"""PlainHMC: Hamiltonian Monte Carlo with identity mass, the paper's first baseline."""

import jax
import jax.numpy as jnp

from whmc._pytree import pytree
from whmc._shapes import Array, Float, Int
from whmc.kernels.base import AbstractKernel, ChainState, StepInfo
from whmc.kernels.random import Noise
from whmc.modes.library import ModeLibrary
from whmc.paper.implicit import Flight, settle
from whmc.target.target import Target


@pytree
class PlainHMC(AbstractKernel):
    """Eq. (1) [rmhd] with M = I: v ~ N(0, I), `num_steps` leapfrog steps, accept with exp(-ΔH), H = U + ½|v|².

    It knows nothing of modes; the library only tells which mode the chain is in. The defaults suit modes of unit
    scale in low dimension: a tenth of the stability limit, and a trajectory of one standard deviation and a half.
    """

    step_size: Float[Array, ""] | float = 0.15
    num_steps: Int[Array, ""] | int = 10

    def num_noise(self, library: ModeLibrary) -> tuple[int, int]:
        return 1, library.dim

    def move(
        self, noise: Noise, state: ChainState, target: Target, library: ModeLibrary
    ) -> tuple[ChainState, StepInfo]:
        start = Flight.begin(state, noise.normal)
        end = jax.lax.fori_loop(0, self.num_steps, lambda _, flight: leap(flight, target, self.step_size), start)
        log_ratio = log_joint(end) - log_joint(start)
        return settle(
            noise.uniform[0],
            log_ratio,
            state,
            end,
            library,
            sound=jnp.ones((), bool),
            num_steps=self.num_steps,
            checked=False,
        )


def log_joint(flight: Flight) -> Float[Array, ""]:
    """-H = log π - ½|v|²."""
    return flight.found.logdensity - 0.5 * flight.momentum @ flight.momentum


def leap(flight: Flight, target: Target, step_size: Float[Array, ""] | float) -> Flight:
    """kick(e/2) ∘ drift(e) ∘ kick(e/2)."""
    velocity = flight.momentum + 0.5 * step_size * flight.found.score
    position = flight.position + step_size * velocity
    found = target.evaluate(position)
    velocity = velocity + 0.5 * step_size * found.score
    num_failed = flight.num_failed + found.failed.astype(int)
    return Flight(position, velocity, found, None, flight.log_volume, flight.converged, num_failed)
