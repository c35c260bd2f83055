"""Target: what is sampled, a log density on R^D and where to look for it."""

import contextlib
import dataclasses
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np

from whmc._pytree import pytree
from whmc._shapes import Array, Bool, Float, Int, PyTree
from whmc.target.check import TargetCheck, check_target
from whmc.target.meant import model_of, target_by
from whmc.target.operations import count_operations
from whmc.target.space import Space
from whmc.target.starts import draw_starts, given_points, require_starts
from whmc.target.symmetry import Action, Exchange, Flip, Group, require_symmetries

if TYPE_CHECKING:
    from whmc.target.folding import Fold

Numbers = Any
"""Whatever np.asarray takes: NumPy's own type for it cannot be checked at run time."""


@pytree
class Evaluation:
    """Log density and score at a point, or at many, in JAX or NumPy: see `made_safe`."""

    logdensity: Float[Any, "*n"]
    score: Float[Any, "*n dim"]
    failed: Bool[Any, "*n"]


def made_safe(logdensity: Float[Any, "*n"], score: Float[Any, "*n dim"], xp: Any = jnp) -> Evaluation:
    """The only door through which densities and scores reach a chain.

    A density that is NaN or +inf counts as density zero with zero score. Where the density is finite it is kept, and
    components of its score that are not finite count as zero: a force may be any fixed function of the position, so
    integrators stay reversible and keep volume, and no mass is cut off. Both have failed. What is safe already stays as
    it is. xp: `numpy` on the host.
    """
    finite = xp.isfinite(logdensity)
    usable = finite[..., None] & xp.isfinite(score)
    return Evaluation(
        xp.where(finite, logdensity, -xp.inf),
        xp.where(usable, score, 0.0),
        (logdensity != -xp.inf) & ~xp.all(usable, axis=-1),
    )


# eq=False: two targets are the same only if they are one object, so a target can be a static
# argument of a compiled function whatever it closes over.
@jax.tree_util.register_static
@dataclasses.dataclass(frozen=True, eq=False)
class Target:
    """A log density on R^D, up to a constant, and the region where its modes may be.

    logdensity: position -> scalar. Write it for one position, in `jax.numpy`.
    dim: the number D of coordinates. Leave it out when `template` is given.
    starts: where searches start: a box `(low, high)` (a tuple; scalars or D values each), an array of points (n, D), or
        a function `(key, n) -> points`. Not needed where modes are given. In two dimensions a list of two increasing
        pairs is refused, as it may be a box or two points: write a tuple or an array. So is a tuple of two tuples that
        may be (low, high) or a pair for each coordinate: write `([low, low], [high, high])`.
    names: D different names, for tables and pictures.
    template: a pytree of arrays; then `logdensity` takes such a pytree, and so do `starts`.
    constrain: position -> dictionary of named values, as they are meant: what tables and `to_arviz` show.
    unconstrain: its inverse, from that dictionary to a position: for symmetries of these values, and where `modes` or
        `initial` are given as such dictionaries.
    dims, coords: names of the axes of these values and of places along them, as in ArviZ.
    bounds: where `logdensity` is defined: a box `(low, high)` (a tuple; scalars or D values each, None for no bound),
        a list of D pairs, or a dictionary of pairs by name. `logdensity` is then the density of the bounded values,
        and `starts`, modes and tables are in them; chains walk on all of R^D, with the Jacobian taken into account.
        Without `starts`, a finite box of bounds is where searches start. In two dimensions a tuple of two tuples that
        may be (low, high) or a pair for each coordinate is refused, as for `starts`.
    symmetries: one map or several that leave the density unchanged, such as `Exchange("mu", "weight")` of the
        components of a mixture, or `Flip("loading")`: then one of all images of a mode is sampled, and
        `Result.unfolded` gives back the others. Names are those of `constrain` where `unconstrain` is given, else
        those of coordinates; `Flip("loading[0]")` names a part of a value.
    """

    logdensity: Callable[[Any], Any]
    dim: int = 0
    starts: Any = None
    _: dataclasses.KW_ONLY
    names: Sequence[str] | None = None
    template: PyTree = None
    constrain: Callable[[Any], Mapping[str, Any]] | None = None
    unconstrain: Callable[[Mapping[str, Any]], Any] | None = None
    dims: Mapping[str, Sequence[str]] | None = None
    coords: Mapping[str, Any] | None = None
    bounds: Any = None
    symmetries: Exchange | Flip | Sequence[Exchange | Flip] | None = None
    space: Space = dataclasses.field(init=False, repr=False)

    def __post_init__(self) -> None:
        if not callable(self.logdensity):
            raise TypeError(
                f"logdensity must be a function of a position, got {type(self.logdensity).__name__}"
                + (f": {model}" if (model := model_of(self.logdensity)) else "")
            )
        space = Space.of(self.dim, self.names, self.template, self.bounds, self.constrain, self.unconstrain)
        vars(self).update(space=space, dim=space.dim, names=space.names, bounds=space.bounds)
        vars(self).update(starts=require_starts(space, self.starts))
        vars(self).update(symmetries=require_symmetries(self.symmetries))
        if self.symmetries:
            self.group  # noqa: B018 - names that do not exist are found now

    def __call__(self, position: Float[Array, " dim"]) -> Float[Array, ""]:
        """log density at a flat position, in the position's dtype."""
        value = jnp.asarray(self.logdensity(self.unflatten(position))).astype(position.dtype)
        return value if self.bounds is None else value + self.bounds.log_jacobian(position)

    def evaluate(self, position: Float[Array, " dim"]) -> Evaluation:
        """Log density and score (its gradient), made safe."""
        return made_safe(*self.value_and_score(position))

    def value_and_score(self, position: Float[Array, " dim"]) -> tuple[Float[Array, ""], Float[Array, " dim"]]:
        """Log density and score as the user's function gives them: not safe yet."""
        return jax.value_and_grad(self.__call__)(position)

    @property
    def has_gradient(self) -> bool:
        """Whether its gradient costs about as much as its value; not where it is made of differences of values."""
        return getattr(self.logdensity, "calls_per_gradient", 1) == 1

    @cached_property
    def operations(self) -> float | None:
        """Of a log density with its score, counted; None where they cannot be."""
        return count_operations(self.value_and_score, self.dim)

    @cached_property
    def without_scores(self) -> "Target":
        """The same density, with zeros for its scores: for kernels that use none."""
        return ScorelessTarget(self)

    @cached_property
    def logdensity_dtype(self) -> Any:
        """The dtype that the user's own function computes in when it is given float64."""
        with jax.enable_x64(True):
            position = jax.ShapeDtypeStruct((self.dim,), np.dtype(float))
            return jax.eval_shape(lambda x: jnp.asarray(self.logdensity(self.unflatten(x))), position).dtype

    def user_errors(self) -> contextlib.AbstractContextManager[None]:
        """Inside of it, an exception of the user's function arrives as it was raised, also through compiled code."""
        offered = getattr(self.logdensity, "user_errors", None)
        return contextlib.nullcontext() if offered is None else offered()

    def check(self, seed: int = 0, at: Any = None) -> TargetCheck:
        """Walks through the target step by step: `print(target.check())`.

        at: a position to look at, where there are no starts; else the origin.
        """
        return check_target(self, seed, at)

    def draw_starts(self, key: Array, num: int, *, uniform: bool = False) -> Float[np.ndarray, "num dim"]:
        """`num` points of the start region. uniform: in a box of many dimensions too, where starts are not."""
        return self.home(draw_starts(self.space, self.starts, key, num, uniform=uniform))

    def given_starts(self, key: Array) -> Float[np.ndarray, "num dim"] | None:
        """Every point that was given as a start, once, in random order; None for a box or a function."""
        points = given_points(self.space, self.starts, key)
        return None if points is None else self.home(points)

    # the space: flat positions and the values that they stand for

    @property
    def coordinates(self) -> list[str]:
        """The names of the coordinates."""
        return list(self.space.names)

    @property
    def constrained(self) -> bool:
        """Whether named values differ from the coordinates of a position."""
        return self.space.constrained

    def flatten(self, position: PyTree) -> Float[Array, " dim"]:
        """A position as a flat vector, free of bounds."""
        return self.space.flatten(position)

    def flatten_all(self, positions: Any) -> Any:
        """Many positions as rows: an array; or a list of pytrees or one with a leading axis, as the template has them,
        or dictionaries of named values."""
        return self.space.flatten_all(positions)

    def inside(self, positions: Float[Array, "*n dim"]) -> Float[Array, "*n dim"]:
        """Flat vectors inside the bounds: what `flatten_all` takes as rows."""
        return self.space.inside(positions)

    def unflatten(self, position: Float[Array, " dim"]) -> PyTree:
        """A flat vector as the user's function takes it: inside the bounds, in the template's shape."""
        return self.space.unflatten(position)

    def named_values(self, draws: Float[np.ndarray, "chains draws dim"]) -> dict[str, np.ndarray]:
        """Draws under their names: by `constrain`, or leaf by leaf of the template, or by `names`."""
        return self.space.named_values(draws)

    # the symmetries: see `whmc.target.folding` for the target of which one image is kept

    @property
    def fold(self) -> "Fold | None":
        """How one image of each mode is chosen, in a FoldedTarget."""
        return None

    @cached_property
    def action(self) -> Action:
        """How the symmetries act on positions."""
        assert isinstance(self.symmetries, tuple)
        return Action.of(self.space, self.symmetries, self.dims or {}, self.coords or {})

    @property
    def group(self) -> Group:
        """All products of the symmetries."""
        return self.action.group

    def values(self, position: Float[Array, " dim"]) -> Float[Array, " size"]:
        """The values that the symmetries permute, as one vector."""
        return self.action.values(position)

    def image(self, element: Int[Array, ""] | int, position: Float[Array, " dim"]) -> Float[Array, " dim"]:
        """Where an element of the group takes a position."""
        return self.action.image(element, position)

    def home(self, positions: Float[np.ndarray, "n dim"]) -> Float[np.ndarray, "n dim"]:
        """The image of each position that is sampled: itself, unless the target is folded."""
        return positions


@jax.tree_util.register_static
@dataclasses.dataclass(frozen=True, eq=False, init=False)
class ScorelessTarget(Target):
    """A target that is evaluated without its gradient."""

    whole: Target = dataclasses.field(init=False, repr=False)

    def __init__(self, target: Target) -> None:
        vars(self).update(vars(target), whole=target)

    def __call__(self, position: Float[Array, " dim"]) -> Float[Array, ""]:
        return self.whole(position)

    def value_and_score(self, position: Float[Array, " dim"]) -> tuple[Float[Array, ""], Float[Array, " dim"]]:
        return self.whole(position), jnp.zeros_like(position)


def require_target(target: Any) -> None:
    """An error for anything but a Target, such as a bare function."""
    if not isinstance(target, Target):
        raise TypeError(f"target must be a whmc.Target, got {type(target).__name__}: {target_by(target)}")
