"""Descents of the energy, or of the residual energy, from many starts at once."""

import dataclasses
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from whmc.modes.library import ModeLibrary
from whmc.search.residual import TEMPERATURE, residual_energy
from whmc.target.target import Target

BATCH = 256
"""Starts descended together: enough to see most modes in one batch, small enough to stop soon when all are seen."""

MAX_EVALUATIONS = 500
"""Of one descent. Quasi-Newton needs some ten times the square root of the dimension; what has not come to rest by
then is finished by Newton steps or dropped."""

DENSE_UP_TO = 100
"""Up to this dimension BFGS keeps a dense inverse Hessian for every start; above, L-BFGS."""

FARTHEST_WIDTHS = 1e9
"""How far a descent or a particle may go from where it started, in widths of the region of the starts. Beyond, numbers
overflow: only a density that grows without bound leads there."""


@dataclasses.dataclass(frozen=True)
class KnownModes:
    """What a search may take as known: charts, and the evidence that puts them on the target's scale."""

    library: ModeLibrary
    log_evidence: float


@dataclasses.dataclass(frozen=True)
class DescentResult:
    """Where the descents ended. `usable` leaves out those that failed and those that never left known ground.

    population: points that follow the mass of the target rather than its peaks, from finders that have them; the
        first ends are theirs.
    covered: starts where the known modes lie above the density, so that nothing was descended; from finders that look.
    num_upfront: gradients spent before any end was reached.
    independent: whether these are plain descents from independent draws of the start region. Only what such starts hit
        tells how much they missed.
    """

    position: Float[np.ndarray, "n dim"]
    usable: Bool[np.ndarray, " n"]
    num_gradients: int
    population: Float[np.ndarray, "m dim"] | None = None
    covered: Bool[np.ndarray, " n"] | None = None
    num_upfront: int = 0
    independent: bool = False


def descend(
    target: Target,
    starts: Float[Array, "n dim"],
    known: KnownModes | None = None,
    temperature: float = TEMPERATURE,
) -> DescentResult:
    """Quasi-Newton from each start; padded to a power of two, so that few shapes are compiled."""
    num, dim = starts.shape
    size = min(BATCH, 1 << (num - 1).bit_length())
    rows = jnp.concatenate([starts, jnp.tile(starts[:1], (size - num, 1))]) if num < size else starts
    library, log_evidence = (known.library, known.log_evidence) if known is not None else (None, 0.0)
    # optimistix mixes integer and floating types, which a user may have forbidden
    with jax.numpy_dtype_promotion("standard"):
        position, usable, evaluations = _descend(
            target,
            rows,
            library,
            jnp.asarray(log_evidence, float),
            jnp.asarray(temperature, float),
            dense=dim <= DENSE_UP_TO,
        )
    return DescentResult(
        np.asarray(position)[:num], np.asarray(usable)[:num], int(np.sum(np.asarray(evaluations)[:num]))
    )


@partial(jax.jit, static_argnames="dense")
def _descend(
    target: Target,
    starts: Float[Array, "n dim"],
    library: ModeLibrary | None,
    log_evidence: Float[Array, ""],
    temperature: Float[Array, ""],
    *,
    dense: bool,
) -> tuple[Float[Array, "n dim"], Bool[Array, " n"], Array]:
    import optimistix  # late: not needed where modes are known

    from whmc.search.solver import DenseBFGS, LimitedBFGS

    solver: Any = DenseBFGS() if dense else LimitedBFGS()
    farthest = farthest_from(starts)

    def energy(position: Float[Array, " dim"]) -> Float[Array, ""]:
        if library is None:
            value = -target(position)
        else:
            value = residual_energy(position, target, library, log_evidence=log_evidence, temperature=temperature)
        return jnp.where(jnp.isnan(value) | (jnp.max(jnp.abs(position)) > farthest), jnp.inf, value)

    def one(start: Float[Array, " dim"]) -> tuple[Array, Array, Array]:
        value, slope = jax.value_and_grad(energy)(start)
        able = jnp.isfinite(value) & jnp.all(jnp.isfinite(slope))

        def safe(position: Float[Array, " dim"], _: None) -> Float[Array, ""]:
            # a start that is lost anyway rests on a flat surface: it costs nothing and ends where it was
            return jnp.where(able, energy(jnp.where(able, position, start)), 0.0)

        end: Any = optimistix.minimise(safe, solver, start, throw=False, max_steps=MAX_EVALUATIONS)
        usable = able & jnp.all(jnp.isfinite(end.value))
        return jnp.where(usable, end.value, start), usable, jnp.where(able, end.stats["num_steps"], 1)

    return jax.vmap(one)(starts)


def farthest_from(starts: Float[Array, "n dim"]) -> Float[Array, ""]:
    """The largest coordinate that is followed."""
    return jnp.max(jnp.abs(starts)) + FARTHEST_WIDTHS * jnp.maximum(jnp.max(jnp.ptp(starts, axis=0)), 1.0)


def logdensities(target: Target, positions: Float[np.ndarray, "n dim"]) -> Float[np.ndarray, " n"]:
    """Log densities of many points, in batches of one shape."""
    heights = np.empty(len(positions))
    for first in range(0, len(positions), BATCH):
        part = positions[first : first + BATCH]
        padded = np.resize(part, (BATCH, target.dim))
        heights[first : first + BATCH] = np.asarray(_logdensities(target, jnp.asarray(padded)))[: len(part)]
    return heights


@jax.jit
def _logdensities(target: Target, positions: Float[Array, "n dim"]) -> Float[Array, " n"]:
    return jax.vmap(target)(positions)
