"""Densities that JAX cannot see into: NumPy functions and compiled libraries, called from compiled chains.

One callback returns value and score together, so a gradient costs one call of the user's function. Second derivatives,
which charts are made of, are central differences of the score.
"""

import abc
import contextlib
import threading
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from whmc._shapes import Array, Float
from whmc.frontends.callback import outside
from whmc.frontends.callback_errors import own_errors
from whmc.frontends.workers import Rows, Table, spread
from whmc.target.target import Target

STEP = float(np.finfo(float).eps) ** (1 / 3)
"""A central difference, relative to the scale of a coordinate: rounding errors are as large as those of the formula."""

FINE = 1e-3
ROUGH = 3e-2
"""Steps of second differences, in standard deviations of the density: at most FINE where scores are exact; about ROUGH
where they are differences themselves, whose errors the step must outweigh."""


class BlackBox(abc.ABC):
    """Values and scores of many positions, computed outside of JAX.

    trouble: what a function has raised. JAX turns an exception in a callback into one of its own, so the box keeps it;
        `whmc.frontends.callback_errors` raises it again where a run fails.
    rough: whether scores are differences of values. calls_per_gradient: calls of the function for a value and a score.
    low, high: no position outside of these is ever evaluated. width: how wide the region of interest is.
    """

    trouble: BaseException | None = None
    rough: bool = False
    calls_per_gradient: int = 1
    low: Any = -np.inf
    high: Any = np.inf
    width: Any = np.inf

    @abc.abstractmethod
    def evaluate(
        self, points: Float[np.ndarray, "n dim"]
    ) -> tuple[Float[np.ndarray, " n"], Float[np.ndarray, "n dim"]]:
        """Log densities and their gradients; NaN where the function failed, -inf outside of the support."""

    def values(self, points: Float[np.ndarray, "n dim"]) -> Float[np.ndarray, " n"]:
        """Log densities alone, where that is cheaper."""
        return self.evaluate(points)[0]

    def lengths(self, points: Float[np.ndarray, "n dim"]) -> Float[np.ndarray, "n dim"]:
        """The scale of each coordinate, which steps of differences are shares of."""
        return np.minimum(np.maximum(1.0, np.abs(points)), self.width)


class Density:
    """The log density of a box, for one position: a JAX function for jit, vmap, grad, and jvp of grad (Hessians).

    Third derivatives, and second ones by reverse mode over reverse mode, are not there.
    """

    def __init__(self, box: BlackBox, dim: int) -> None:
        self.box, self.dim = box, dim
        self._lock = threading.Lock()
        self._last = np.empty((0, dim)), np.empty(0), np.empty((0, dim))
        self._function = _differentiable(self._value, self._both, self._product)

    def __call__(self, position: Float[Array, " dim"]) -> Float[Array, ""]:
        return self._function(position)

    def user_errors(self) -> contextlib.AbstractContextManager[None]:
        """See `Target.user_errors`."""
        return own_errors(self.box)

    @property
    def calls_per_gradient(self) -> int:
        """Calls of the user's function for one gradient."""
        return self.box.calls_per_gradient

    def _value(self, points: Float[np.ndarray, "n dim"]) -> tuple[np.ndarray]:
        return (self._guarded(lambda points: _where_finite(self._alone, points)[0], points),)

    def _both(self, points: Float[np.ndarray, "n dim"]) -> tuple[np.ndarray, np.ndarray]:
        return self._guarded(self._once, points)

    def _product(self, points: Float[np.ndarray, "n dim"], ways: Float[np.ndarray, "n dim"]) -> tuple[np.ndarray]:
        """Hessian times tangent."""
        return (self._guarded(self._second_difference, points, ways),)

    def _alone(self, points: Float[np.ndarray, "n dim"]) -> tuple[np.ndarray, np.ndarray]:
        return self.box.values(points), np.zeros_like(points)

    def _guarded(self, function: Callable[..., Any], *rows: Float[np.ndarray, "n dim"]) -> Any:
        """One batch at a time, and what goes wrong is kept."""
        with self._lock, np.errstate(all="ignore"):  # extreme places overflow: no density there
            try:
                return function(*rows)
            except BaseException as error:
                self.box.trouble = error
                raise

    def _once(self, points: Float[np.ndarray, "n dim"]) -> tuple[np.ndarray, np.ndarray]:
        """Rows that are where they were in the last batch are not evaluated again.

        A loop over many chains ends with its slowest: all others stand still and would be evaluated for nothing.
        """
        before, values, scores = self._last
        moved = np.any(points != before, axis=1) if before.shape == points.shape else np.ones(len(points), bool)
        if np.all(moved):
            values, scores = _where_finite(self.box.evaluate, points)
        elif np.any(moved):
            values, scores = values.copy(), scores.copy()
            values[moved], scores[moved] = _where_finite(self.box.evaluate, points[moved])
        self._last = points, values, scores
        return values, scores

    def _second_difference(
        self, points: Float[np.ndarray, "n dim"], ways: Float[np.ndarray, "n dim"]
    ) -> Float[np.ndarray, "n dim"]:
        """(s(x + h w) - s(x - h w)) / 2h of the scores s, h chosen for the curvature along w that is found.

        Charts need no more: they are starting points.
        """
        reach = self._reach(points, ways)
        step = reach * (30 * STEP if self.box.rough else STEP)
        change = self._along(points, step, ways)
        for _ in range(2):
            wanted = self._wanted_step(np.sum(ways * change, axis=1, keepdims=True), step, reach)
            off = (wanted < step / 3) | (wanted > 3 * step)
            if not np.any(off):
                break
            step = np.where(off, wanted, step)
            change = self._along(points, step, ways)
        return change

    def _reach(self, points: np.ndarray, ways: np.ndarray) -> np.ndarray:
        """The largest h for which h w stays within the scale of every coordinate, and halfway to its limits."""
        to_limit = np.minimum(points - self.box.low, self.box.high - points)
        lengths = np.minimum(self.box.lengths(points), 0.5 * to_limit)
        with np.errstate(divide="ignore"):
            each = np.where(ways == 0, np.inf, lengths / np.abs(ways))
        reach = np.min(each, axis=1, keepdims=True)
        return np.maximum(np.where(np.isfinite(reach), reach, 1.0), np.finfo(float).tiny)

    def _wanted_step(self, curvature: np.ndarray, step: np.ndarray, reach: np.ndarray) -> np.ndarray:
        """A share of the standard deviation along w, which is 1 / sqrt(curvature)."""
        sd = 1 / np.sqrt(np.maximum(np.abs(curvature), np.finfo(float).tiny))
        return np.minimum(ROUGH * sd, 0.1 * reach) if self.box.rough else np.minimum(FINE * sd, step)

    def _along(self, points: np.ndarray, step: np.ndarray, ways: np.ndarray) -> np.ndarray:
        scores = self._once(np.concatenate([points + step * ways, points - step * ways]))[1]
        return (scores[: len(points)] - scores[len(points) :]) / (2 * step)


def _where_finite(
    evaluate: Callable[[np.ndarray], tuple[np.ndarray, np.ndarray]], points: Float[np.ndarray, "n dim"]
) -> tuple[np.ndarray, np.ndarray]:
    """Positions that are infinite or NaN, such as those of diverging trajectories, have no density: the function is not
    called there."""
    finite = np.all(np.isfinite(points), axis=1)
    if np.all(finite):
        return evaluate(points)
    values, scores = np.full(len(points), -np.inf), np.zeros_like(points)
    if np.any(finite):
        values[finite], scores[finite] = evaluate(points[finite])
    return values, scores


def density(box: BlackBox, dim: int) -> Density:
    """A box as a log density of one position that JAX can compile, batch and differentiate twice."""
    return Density(box, dim)


def _differentiable(
    look_value: Callable[..., tuple[np.ndarray]],
    look_both: Callable[..., tuple[np.ndarray, np.ndarray]],
    look_product: Callable[..., tuple[np.ndarray]],
) -> Callable[[Array], Array]:
    """The value, as a function whose derivatives are callbacks."""

    @jax.custom_jvp
    def both(position: Array) -> tuple[Array, Array]:
        value, score = outside(look_both, [(), position.shape], position)
        return value, score

    @both.defjvp
    def _(primals: tuple[Array], tangents: tuple[Array]) -> Any:
        (position,), (tangent,) = primals, tangents
        found, score = both(position)
        (change,) = outside(look_product, [position.shape], position, tangent)
        return (found, score), (jnp.vdot(score, tangent), change)

    @jax.custom_jvp
    def value(position: Array) -> Array:
        return outside(look_value, [()], position)[0]

    # apart from `both`, so that a gradient does not compute a Hessian product as well
    @value.defjvp
    def _(primals: tuple[Array], tangents: tuple[Array]) -> Any:
        (position,), (tangent,) = primals, tangents
        found, score = both(position)
        return found, jnp.vdot(score, tangent)

    return value


AT_ONCE = 10_000_000
"""Numbers in one batch of differences, at most."""


class NumpyBox(BlackBox):
    """A user's functions as a box; without a gradient, by differences of values.

    step: of these differences, as a share of the scale of each coordinate.
    """

    def __init__(self, table: Table, dim: int, *, rough: bool, step: float) -> None:
        self.table, self.rough, self.step = table, rough, step
        self.calls_per_gradient = 2 * dim + 1 if rough else 1

    def frame(self, target: Target) -> None:
        """Takes limits and widths from the target's bounds and start region."""
        if target.bounds is not None:
            self.low, self.high = target.bounds.low, target.bounds.high
        self.width = self.high - self.low
        if isinstance(target.starts, tuple):
            low, high = (np.asarray(edge, float) for edge in target.starts)
            self.width = np.minimum(self.width, high - low)

    def values(self, points: Float[np.ndarray, "n dim"]) -> Float[np.ndarray, " n"]:
        return self.table(points, False)[:, 0]

    def evaluate(
        self, points: Float[np.ndarray, "n dim"]
    ) -> tuple[Float[np.ndarray, " n"], Float[np.ndarray, "n dim"]]:
        if not self.rough:
            table = self.table(points, True)
            return table[:, 0], table[:, 1:]
        num, dim = points.shape
        at_once = max(1, AT_ONCE // ((2 * dim + 1) * dim))
        parts = [self._differences(part) for part in np.split(points, range(at_once, num, at_once))]
        return np.concatenate([value for value, _ in parts]), np.concatenate([score for _, score in parts])

    def _differences(self, points: Float[np.ndarray, "n dim"]) -> tuple[np.ndarray, np.ndarray]:
        """Value and central differences, all in one batch; one-sided ones where the other side has no density."""
        num, dim = points.shape
        step = self.step * self.lengths(points)
        ahead, behind = np.minimum(points + step, self.high), np.maximum(points - step, self.low)
        # for each point: itself, then one coordinate after the other moved ahead, then behind
        around = np.repeat(points[:, None], 2 * dim + 1, axis=1)
        each = np.arange(dim)
        around[:, 1 + each, each] = ahead
        around[:, 1 + dim + each, each] = behind
        values = self.values(around.reshape(-1, dim)).reshape(num, -1)
        here, after, before = values[:, :1], values[:, 1 : 1 + dim], values[:, 1 + dim :]
        # a side without a density is replaced by the point itself
        there = np.isfinite(after)
        ahead, after = np.where(there, ahead, points), np.where(there, after, here)
        there = np.isfinite(before)
        behind, before = np.where(there, behind, points), np.where(there, before, here)
        gap = ahead - behind
        usable = np.isfinite(here) & (gap > 0)
        rise = np.where(usable, after, 0.0) - np.where(usable, before, 0.0)
        return here[:, 0], rise / np.where(usable, gap, 1.0)


def from_numpy(
    logp: Callable[..., Any],
    grad: Callable[..., Any] | bool | None = None,
    *,
    dim: int,
    starts: Any = None,
    names: Sequence[str] | None = None,
    bounds: Any = None,
    prior_transform: Callable[[np.ndarray], Any] | None = None,
    vectorized: bool = False,
    parallel: Any = None,
    args: Sequence[Any] = (),
    symmetries: Any = None,
    step: float | None = None,
) -> Target:
    """A target from a plain Python function, as it is given to emcee, scipy or dynesty.

    logp: position (dim,) -> log density, up to a constant; -inf outside of the support, NaN where it failed.
    grad: position -> its gradient (dim,); or True if `logp` returns (value, gradient). Without it chains walk by values
        alone (`LocalWalk`), and only the search for modes takes gradients, by central differences of 2 dim + 1 calls of
        `logp` each. With `kernel=` of your own that needs gradients, chains take them so too. An inexact gradient never
        bends the distribution: the force is still a function of the position alone, so trajectories stay reversible
        and keep volume, and what they propose is accepted by exact values. It only costs acceptance.
    dim, starts, names, bounds, symmetries: as in `Target`; `starts` may be an array of points, as emcee's p0.
    prior_transform: from the unit cube to parameters, as dynesty has it; then `logp` is the log likelihood, the
        target lives on the cube, tables show parameters under `names`, and the log evidence is dynesty's logz.
        `grad` is still with respect to the parameters.
    vectorized: all functions take (n, dim) and return n values.
    parallel: a number of processes of our own, or a pool with a `map` method as emcee takes it. It pays for functions
        of more than some 50 µs; the rows of all chains are spread evenly, so let `chains` be a multiple of it.
    args: further arguments of `logp` and `grad`.
    step: of the differences, as a share of the scale of a coordinate: of its start box, or max(1, |x|) if that is
        less. Give a smaller one if the density is a millionth as wide.
    """
    if not callable(logp):
        raise TypeError(f"logp must be a function of a position, got {type(logp).__name__}")
    if grad is not None and grad is not True and not callable(grad):
        raise TypeError(f"grad must be a function, True (logp returns both) or None, got {grad!r}")
    if grad is None:
        warnings.warn(
            f"from_numpy without grad: chains walk by values alone, and every gradient of the search is {2 * dim + 1} "
            "calls of logp; give grad= if you can, or write logp in jax.numpy and use whmc.Target",
            stacklevel=2,
        )
    rows = Rows(logp, grad, vectorized, tuple(args), prior_transform)
    if step is None:
        step = 1e-6 if prior_transform is not None else STEP  # a posterior is a small part of its prior
    box = NumpyBox(spread(rows, parallel), dim, rough=grad is None, step=step)
    constrain = None
    if prior_transform is not None:
        if bounds is not None:
            raise ValueError("prior_transform has its own bounds, those of the unit cube: leave bounds out")
        bounds, constrain = (0.0, 1.0), _named(rows, dim, names)
    target = Target(
        density(box, dim),
        dim=dim,
        starts=starts,
        names=names,
        constrain=constrain,
        bounds=bounds,
        symmetries=symmetries,
    )
    box.frame(target)
    return target


def _named(rows: Rows, dim: int, names: Sequence[str] | None) -> Callable[[Array], Mapping[str, Array]]:
    """From the unit cube to parameters under their names, for tables."""

    def look(points: Float[np.ndarray, "n dim"]) -> tuple[np.ndarray]:
        return (rows.transformed(points),)

    def constrain(position: Array) -> Mapping[str, Array]:
        (found,) = outside(look, [position.shape], position)
        return {"x": found} if names is None else {str(name): found[n] for n, name in enumerate(names)}

    return constrain
