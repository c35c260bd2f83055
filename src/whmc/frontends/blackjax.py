"""BlackJAX, both ways: our kernels in its form, and its algorithms as local moves of ours.

Nothing here imports BlackJAX: whoever gives one of its algorithms has imported it already.
"""

import dataclasses
import inspect
import sys
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from whmc._shapes import Array, Float, Int
from whmc.kernels.base import AbstractKernel, ChainState, StepInfo, init, make_state, place
from whmc.kernels.local import AbstractLocal
from whmc.kernels.settings import default_kernel
from whmc.modes.chart import Chart, apply
from whmc.modes.library import ModeLibrary
from whmc.modes.mixture import log_components, log_responsibility
from whmc.target.target import Target


class SamplingAlgorithm(NamedTuple):
    """As BlackJAX's: `state = init(position)`, `state, info = step(key, state)`."""

    init: Callable[..., ChainState]
    step: Callable[[Array, ChainState], tuple[ChainState, Any]]


def as_top_level_api(target: Target, library: ModeLibrary, kernel: AbstractKernel | None = None) -> SamplingAlgorithm:
    """Any kernel (the default cycle unless given) with its target and library bound, for BlackJAX's own loops.

    Positions are as the target takes them, flat or like its template; a state's `position` is flat. A float64 library,
    as `sample` makes it, works inside `with jax.enable_x64(True):`; `library.rebuilt()` outside of it is in float32.
    """
    chosen = default_kernel() if kernel is None else kernel

    def start(position: Any, rng_key: Array | None = None) -> ChainState:
        del rng_key  # BlackJAX passes one to every algorithm
        return init(position if target.template is None else target.flatten(position), target, library)

    def step(rng_key: Array, state: ChainState) -> tuple[ChainState, Any]:
        return chosen.step(rng_key, state, target, library)

    return SamplingAlgorithm(start, step)


UNIT = ("inverse_mass_matrix", "momentum_inverse_scale")
"""Metrics of BlackJAX's algorithms: one, unless given, for in chart coordinates a mode is about as wide as long."""

UNADJUSTED = ("mclmc",)
"""These take a log density and do not leave it invariant."""


class Recipe:
    """An algorithm of BlackJAX and its settings: the static part of a Move, which JAX does not trace.

    Two are equal if they would build the same; the text is the same in every process, so that a stored run knows its
    kernel again.
    """

    def __init__(self, algorithm: Callable[..., Any], settings: Mapping[str, Any]) -> None:
        self.algorithm, self.settings = algorithm, dict(settings)

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, Recipe)
            and self.algorithm is other.algorithm
            and self.settings.keys() == other.settings.keys()
            and all(_same(value, other.settings[name]) for name, value in self.settings.items())
        )

    def __hash__(self) -> int:
        return hash((id(self.algorithm), tuple(sorted(self.settings))))

    def __repr__(self) -> str:
        return f"{self.name}({', '.join(f'{name}={_text(value)}' for name, value in self.settings.items())})"

    @property
    def name(self) -> str:
        """As BlackJAX calls it, or the function's own name."""
        public = vars(sys.modules["blackjax"]) if "blackjax" in sys.modules else {}
        named = (name for name, value in public.items() if value is self.algorithm)
        return next(named, getattr(self.algorithm, "__qualname__", type(self.algorithm).__name__))

    @property
    def parameters(self) -> Mapping[str, inspect.Parameter]:
        """What the algorithm takes. BlackJAX's own hide their function in an object that takes anything."""
        return inspect.signature(getattr(self.algorithm, "differentiable", self.algorithm)).parameters

    def require(self) -> None:
        """That it can be built, and leaves its density invariant."""
        first, *others = self.parameters
        if hasattr(self.algorithm, "differentiable") and (first != "logdensity_fn" or self.name in UNADJUSTED):
            raise ValueError(
                f"blackjax.{self.name} does not leave a log density invariant by itself: "
                "give nuts, hmc, dynamic_hmc, mala or another that takes `logdensity_fn` and accepts or rejects"
            )
        if "step_size" in self.settings:
            raise TypeError(f"step_size does not belong to the settings: Move({self.name}, step_size=...)")
        if unknown := [name for name in self.settings if name not in others]:
            raise TypeError(f"{self.name} takes no setting {unknown[0]!r}: its own are {others}")
        for name in others:
            needed = self.parameters[name].default is inspect.Parameter.empty
            if needed and name not in (*self.settings, *UNIT, "step_size"):
                raise TypeError(f"{self.name} needs {name}: Move({self.name}, {{{name!r}: ...}})")

    def build(self, logdensity: Callable[[Array], Array], step_size: Float[Array, ""], like: Array) -> Any:
        """BlackJAX's pair of functions for this density, in unit metric."""
        taken = self.parameters
        made = {name: jnp.ones_like(like) for name in UNIT if name in taken}
        if "step_size" in taken:
            made["step_size"] = step_size
        return self.algorithm(logdensity, **(made | self.settings))


def _same(one: Any, other: Any) -> bool:
    """Arrays are the same only if they are one object: to compare their numbers takes longer than it saves."""
    return one is other or (type(one) is type(other) and isinstance(one, (bool, int, float, str)) and one == other)


def _text(value: Any) -> str:
    """Without addresses."""
    return getattr(value, "__qualname__", None) or repr(value).partition(" at 0x")[0]


@jax.tree_util.register_pytree_with_keys_class
@dataclasses.dataclass(frozen=True)
class Move(AbstractLocal):
    """A local move by an algorithm of BlackJAX, in place of `LocalHMC()`.

    i ~ r(theta); one step of the algorithm on z = L_i^{-1}(theta - mu_i) with the log density

        log pi(theta) + log r_i(theta) + log|d theta/d z|,   theta = mu_i + L_i z, or bent,

    i held. That is the law of theta given i, so an algorithm that leaves it invariant leaves pi invariant, and its
    step and metric may depend on i. In these coordinates a mode is about round: the metric is one unless it is set.

    algorithm: `blackjax.nuts`, `blackjax.mala` and others that accept or reject; or a function (logdensity, step_size)
        -> (init, step) of your own; that it leaves the density invariant is then not checked.
    settings: what else the algorithm takes, such as {"num_integration_steps": 10} of `blackjax.hmc`.
    step_size: as BlackJAX means it. Without, the chart's own: `sample` tunes it for an acceptance of 0.8.

    Failed evaluations have no density and are rejected; BlackJAX does not count them, and neither does this move.
    """

    algorithm: Callable[..., Any]
    settings: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    step_size: Float[Array, ""] | float | None = None

    def __post_init__(self) -> None:
        self.recipe.require()

    @property
    def recipe(self) -> Recipe:
        return Recipe(self.algorithm, self.settings)

    def tree_flatten_with_keys(self) -> tuple[tuple[tuple[Any, Any]], Recipe]:
        return ((jax.tree_util.GetAttrKey("step_size"), self.step_size),), self.recipe

    @classmethod
    def tree_unflatten(cls, recipe: Recipe, children: Any) -> "Move":
        # not through __init__: while JAX transforms, leaves may be any object
        move = object.__new__(cls)
        for name, value in (("algorithm", recipe.algorithm), ("settings", recipe.settings), ("step_size", children[0])):
            object.__setattr__(move, name, value)
        return move

    def step_in(self, chart: Chart) -> Float[Array, ""]:
        """The step size as the algorithm means it."""
        if self.step_size is not None:
            return jnp.asarray(self.step_size, chart.step_size.dtype)
        # Langevin's step is a time of diffusion: a leapfrog step of length e is one of e²/2
        return 0.5 * chart.step_size**2 if self.recipe.name == "mala" else chart.step_size

    def move(
        self, noise: Array, state: ChainState, target: Target, library: ModeLibrary
    ) -> tuple[ChainState, StepInfo]:
        key_label, key_init, key_step = jax.random.split(noise, 3)
        label = state.draw_label(jax.random.uniform(key_label, dtype=state.position.dtype))
        chart = library.chart(label)
        z = chart.whiten(state.position)
        # BlackJAX mixes integers and floats, which a strict setting of the user's would forbid
        with jax.numpy_dtype_promotion("standard"):
            built = self.recipe.build(log_conditional(target, library, label), self.step_in(chart), z)
            # what is known is not computed again: the compiler drops results of `init` that are not used
            start = known(state, z, label, chart, library, built.init(z, key_init))
            end, told = built.step(key_step, start)
        proposal, num_extra = seen(end, label, chart, target, library)
        accepted = jnp.any(end.position != z) & jnp.isfinite(proposal.logdensity)
        new_state = jax.tree.map(lambda new, old: jnp.where(accepted, new, old), proposal, state)
        info = StepInfo(
            label=label,
            proposed=label,
            log_ratio=_log_ratio(told, accepted, state.logdensity.dtype),
            accepted=accepted,
            regenerated=jnp.zeros((), bool),
            num_gradients=jnp.asarray(getattr(told, "num_integration_steps", 1)).astype(int) + num_extra,
            num_failed=jnp.zeros((), int),
        )
        return new_state, info


def log_conditional(target: Target, library: ModeLibrary, label: Int[Array, ""]) -> Callable[[Array], Array]:
    """z -> log pi + log r_i + log|d theta/d z| at the theta of z in chart i.

    Where the density fails it is -inf, with a finite gradient.
    """
    chart = library.chart(label)

    def logdensity(z: Float[Array, " dim"]) -> Float[Array, ""]:
        position = chart.unwhiten(z)
        here = jax.lax.stop_gradient(position)
        found = target.evaluate(here)
        # zero, with the score that `evaluate` has made safe as its gradient
        slope = found.score @ (position - here)
        log_r = log_responsibility(log_components(library, position), label)
        return found.logdensity + slope + log_r + chart.log_volume(position)

    return logdensity


def known(
    state: ChainState, z: Float[Array, " dim"], label: Int[Array, ""], chart: Chart, library: ModeLibrary, made: Any
) -> Any:
    """BlackJAX's state with what ours knows already: density and gradient in chart coordinates."""
    if not hasattr(made, "position") or jnp.shape(made.position) != z.shape:
        raise TypeError(f"a state of this algorithm, {type(made).__name__}, holds no single position: give another")
    slope = jax.grad(lambda x: log_responsibility(log_components(library, x), label))(state.position)
    ours = {
        "position": z,
        "logdensity": state.logdensity + state.log_responsibility(label) + chart.log_volume(state.position),
        "logdensity_grad": apply(chart.scale.T, chart.pulled(apply(chart.scale, z), state.score + slope)),
    }
    return made._replace(**{name: value for name, value in ours.items() if name in made._fields})


def seen(end: Any, label: Int[Array, ""], chart: Chart, target: Target, library: ModeLibrary) -> tuple[ChainState, int]:
    """Our state at the end of a step, from what BlackJAX knows there, and the gradients that this took."""
    position = chart.unwhiten(end.position)
    if chart.bend is not None or not {"logdensity", "logdensity_grad"} <= set(end._fields):
        return make_state(position, target, library)[0], 1
    log_r, slope = jax.value_and_grad(lambda x: log_responsibility(log_components(library, x), label))(position)
    score = apply(chart.inverse_scale.T, end.logdensity_grad) - slope
    return place(position, end.logdensity - log_r - chart.log_volume(position), score, library), 0


def _log_ratio(told: Any, accepted: Array, dtype: Any) -> Float[Array, ""]:
    """The log of the acceptance that the algorithm tells, or whether it moved."""
    rate = jnp.asarray(getattr(told, "acceptance_rate", accepted)).astype(dtype)
    return jnp.where(rate > 0, jnp.log(rate), -jnp.inf)  # NaN is not above either
