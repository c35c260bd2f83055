"""Finders: from points of the start region to points near modes.

A finder only proposes where to look. Whether an end is a mode, and which, is decided once for all finders in
`whmc.search.polish` and `whmc.search.mode_search`.
"""

import abc
import dataclasses
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from whmc.modes.library import ModeLibrary
from whmc.modes.mixture import log_components
from whmc.search.residual import TEMPERATURE, log_tempered, residual_energy
from whmc.target.target import Target

BATCH = 256
"""Starts descended together: enough to see most modes in one batch, small enough to stop soon when all are seen."""

MAX_EVALUATIONS = 500
"""Of one descent. Quasi-Newton needs some ten times the square root of the dimension; what has not come to rest by
then is finished by Newton steps or dropped."""

DENSE_UP_TO = 100
"""Up to this dimension BFGS keeps a dense inverse Hessian for every start; above, L-BFGS."""


@dataclasses.dataclass(frozen=True)
class Known:
    """What a search may take as known: charts, and the evidence that puts them on the target's scale."""

    library: ModeLibrary
    log_evidence: float


@dataclasses.dataclass(frozen=True)
class Ends:
    """Where the descents ended. `usable` leaves out what failed or never left known ground.

    population: points that follow the mass of the target rather than its peaks, from finders that have them.
    covered_by: of a start on known ground the known mode that it belongs to, else -1; from finders that look.
    num_upfront: gradients spent before any end was reached. independent: whether the starts were independent draws from
    the start region, so that what they hit tells about what they missed.
    """

    position: Float[np.ndarray, "n dim"]
    usable: Bool[np.ndarray, " n"]
    num_gradients: int
    population: Float[np.ndarray, "m dim"] | None = None
    covered_by: Int[np.ndarray, " n"] | None = None
    num_upfront: int = 0
    independent: bool = True


class AbstractFinder(abc.ABC):
    """`num_starts`: how many starts in all; None: as many as the stopping rule asks for."""

    num_starts: int | None

    @abc.abstractmethod
    def find(self, key: Array, target: Target, num: int, known: Known | None) -> Ends:
        """`num` starts, at most `BATCH` of them a call."""

    def __post_init__(self) -> None:
        num = self.num_starts
        if num is not None and (isinstance(num, bool) or not isinstance(num, (int, np.integer)) or num < 1):
            raise ValueError(f"num_starts must be a positive integer or None, got {num!r}")


@dataclasses.dataclass(frozen=True)
class MultiStart(AbstractFinder):
    """Quasi-Newton descents of the energy from the start region, all in one compiled batch."""

    num_starts: int | None = None

    def find(self, key: Array, target: Target, num: int, known: Known | None) -> Ends:
        return descend(target, target.draw_starts(key, num), None, TEMPERATURE)


@dataclasses.dataclass(frozen=True)
class Residual(AbstractFinder):
    """Descents of the residual energy (section 4.2): known modes are taken away, so none is found twice.

    A start where the known modes cover the target costs one evaluation and no more.
    """

    num_starts: int | None = None
    temperature: float = TEMPERATURE

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.temperature >= 1:
            raise ValueError(f"temperature must be at least 1, got {self.temperature}: it is T of U_r, try 1.05")

    def find(self, key: Array, target: Target, num: int, known: Known | None) -> Ends:
        starts = target.draw_starts(key, num)
        ends = descend(target, starts, known, self.temperature)
        if known is None:
            return ends
        log_pi = np.asarray(jax.vmap(target)(starts)) - known.log_evidence
        nearest, log_known = (np.asarray(part) for part in _known_there(known.library, starts, self.temperature))
        covered = ~ends.usable & (log_pi <= log_known)
        return dataclasses.replace(ends, covered_by=np.where(covered, known.library.mode_of[nearest], -1))


@jax.jit
def _known_there(
    library: ModeLibrary, positions: Float[Array, "n dim"], temperature: Float[Array, ""] | float
) -> tuple[Int[Array, " n"], Float[Array, " n"]]:
    """The chart that a point belongs to, and log q_T there."""
    nearest = jax.vmap(lambda x: jnp.argmax(log_components(library, x)))(positions)
    return nearest, jax.vmap(lambda x: log_tempered(library, x, temperature))(positions)


def descend(target: Target, starts: Float[Array, "n dim"], known: Known | None, temperature: float) -> Ends:
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
    return Ends(np.asarray(position)[:num], np.asarray(usable)[:num], int(np.sum(np.asarray(evaluations)[:num])))


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

    solver = _solver(dense)

    def energy(position: Float[Array, " dim"]) -> Float[Array, ""]:
        if library is None:
            value = -target(position)
        else:
            value = residual_energy(position, target, library, log_evidence=log_evidence, temperature=temperature)
        return jnp.where(jnp.isnan(value), jnp.inf, value)

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


def _solver(dense: bool) -> Any:
    """BFGS whose line search forgives rounding.

    At the bottom of a valley the next step promises less than the energy's rounding error. Armijo's rule then refuses
    every step, and the descent would go on halving it until its last evaluation.
    """
    import equinox
    import optimistix

    class Forgiving(optimistix.BacktrackingArmijo):
        def step(self, first_step: Any, y: Any, y_eval: Any, f_info: Any, f_eval_info: Any, state: Any) -> Any:
            slack = 1e-13 * (1 + jnp.abs(f_info.as_min()))
            lowered = optimistix.FunctionInfo.Eval(f_eval_info.as_min() - slack)
            return super().step(first_step, y, y_eval, f_info, lowered, state)

    solver: Any = optimistix.BFGS(rtol=1e-6, atol=1e-6) if dense else optimistix.LBFGS(rtol=1e-6, atol=1e-6)
    return equinox.tree_at(lambda one: one.search, solver, Forgiving())
