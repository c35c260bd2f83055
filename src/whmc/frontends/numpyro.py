"""NumPyro: a model as a Target. `whmc.numpyro.WHMC`, a kernel for NumPyro's own MCMC, is in `numpyro_kernel`."""

import dataclasses
import importlib
import importlib.util
import warnings
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from whmc._shapes import Array, Float
from whmc.frontends.extras import install
from whmc.target.target import Target

AT_ONCE = 256
"""Prior draws that are made together: a search asks for several numbers of starts, and compiles once."""

PATIENCE = 10
"""How many times as many prior draws are made as are wanted, where the density is zero at most of them."""

RADIUS = 2.0
"""Half the box of unconstrained values in which NumPyro starts chains, for what the prior does not give."""


def from_numpyro(model: Callable[..., Any], *args: Any, symmetries: Any = None, **kwargs: Any) -> Target:
    """A NumPyro model with its data as a target: `from_numpyro(model, x, y=y)`.

    Its positions are the unconstrained values of all latent sites, by NumPyro's own transforms, in the order of the
    model; the log density is the joint density of these and the data, so that the evidence is the model's. Starts are
    draws of the prior. Discrete sites are summed out where NumPyro can (this takes the package funsor).

    symmetries: see `Target`.
    """
    with jax.enable_x64(True):
        found = read_model(model, args, kwargs)
        require_density(found)
        return found.target(symmetries)


@dataclasses.dataclass(frozen=True)
class Sites:
    """What a run of a model shows.

    shapes: the unconstrained shape of each continuous latent site, in the order of the model. discrete: the other
    latent sites. dims: the axes of values that are in plates. sizes: of the plates. depth: of their nesting.
    """

    shapes: dict[str, tuple[int, ...]]
    discrete: list[str]
    dims: dict[str, list[str]]
    sizes: dict[str, int]
    depth: int

    @classmethod
    def of(cls, trace: Mapping[str, Any]) -> "Sites":
        discrete = require_readable(trace)
        sampled = {name: site for name, site in trace.items() if site["type"] == "sample"}
        latent = {name: site for name, site in sampled.items() if not site["is_observed"] and name not in discrete}
        shown = {name: site for name, site in trace.items() if name in latent or site["type"] == "deterministic"}
        frames = [frame for site in sampled.values() for frame in site["cond_indep_stack"]]
        return cls(
            shapes={name: free_shape(site) for name, site in latent.items()},
            discrete=discrete,
            dims={name: axes for name, site in shown.items() if (axes := axis_names(name, site))},
            sizes={frame.name: frame.size for site in shown.values() for frame in site["cond_indep_stack"]},
            depth=max([-frame.dim for frame in frames], default=0),
        )


# eq=False: compared by identity, so that a model can be a static argument of a compiled function
@dataclasses.dataclass(frozen=True, eq=False)
class Model:
    """A model with its data, as NumPyro sees it, in the precision in force when it was read.

    potential, constrain: of a dictionary of unconstrained values.
    """

    function: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    sites: Sites
    potential: Callable[[Mapping[str, Any]], Any]
    constrain: Callable[[Mapping[str, Any]], dict[str, Any]]

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        return self.sites.shapes

    @property
    def dim(self) -> int:
        return sum(int(np.prod(shape)) for shape in self.shapes.values())

    def target(self, symmetries: Any = None) -> Target:
        """The target that whmc samples."""
        used = {axis for axes in self.sites.dims.values() for axis in axes}
        return Target(
            self.logdensity,
            dim=self.dim,
            starts=self.starts,
            names=self.names(),
            constrain=lambda position: self.constrain(self.unflatten(position)),
            unconstrain=self.unconstrain,
            dims=self.sites.dims,
            coords={name: np.arange(size) for name, size in self.sites.sizes.items() if name in used},
            symmetries=symmetries,
        )

    def logdensity(self, position: Float[Array, " dim"]) -> Any:
        """Log joint density of data and unconstrained values, the transforms' Jacobians included."""
        return -self.potential(self.unflatten(position))

    def names(self) -> list[str]:
        """A name for each coordinate; where a transform changes the shape, its free values are counted."""
        return [
            name + "".join(f"[{i}]" for i in place)
            for name, shape in self.shapes.items()
            for place in np.ndindex(shape)
        ]

    def flatten(self, values: Mapping[str, Any]) -> Float[Array, " dim"]:
        """Unconstrained values, site by site, as a position."""
        return jnp.concatenate([jnp.ravel(jnp.asarray(values[name], float)) for name in self.shapes])

    def unflatten(self, position: Float[Array, " dim"]) -> dict[str, Any]:
        """A position as unconstrained values of the sites."""
        ends = np.cumsum([int(np.prod(shape)) for shape in self.shapes.values()])
        parts = jnp.split(position, ends[:-1])
        return {name: part.reshape(shape) for (name, shape), part in zip(self.shapes.items(), parts, strict=True)}

    def unconstrain(self, values: Mapping[str, Any]) -> Float[Array, " dim"]:
        """The position with these constrained values; values of other than latent sites are ignored."""
        missing = [name for name in self.shapes if name not in values]
        if missing:
            raise KeyError(f"unconstrain needs a value of every latent site of the model, {missing} are missing")
        given = {name: jnp.asarray(values[name], float) for name in self.shapes}
        numpyro = require_numpyro()
        # discrete sites, which are summed out, need some value to run the model
        model = numpyro.handlers.seed(self.function, 0)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)  # that discrete sites should be marked as such
            return self.flatten(numpyro.infer.util.unconstrain_fn(model, self.args, self.kwargs, given))

    def draw_prior(self, key: Array) -> Float[Array, " dim"]:
        """An unconstrained draw of the prior; of an improper one, of NumPyro's box."""
        numpyro = require_numpyro()
        model = numpyro.handlers.seed(self.function, key)
        model = numpyro.handlers.substitute(model, substitute_fn=numpyro.infer.init_to_sample)
        sites = numpyro.handlers.trace(model).get_trace(*self.args, **self.kwargs)
        to_support = numpyro.distributions.biject_to
        return self.flatten(
            {name: to_support(sites[name]["fn"].support).inv(sites[name]["value"]) for name in self.shapes}
        )

    def starts(self, key: Array, num: int) -> Float[np.ndarray, "num dim"]:
        """Draws of the prior at which the posterior has a density; if these are rare, of NumPyro's box too."""
        with jax.enable_x64(True):
            found: list[np.ndarray] = []
            missing = num
            for batch in range(PATIENCE * -(-num // AT_ONCE)):
                points, usable = (np.asarray(rows) for rows in _prior_batch(self, jax.random.fold_in(key, batch)))
                found.append(points[usable][:missing])
                missing -= len(found[-1])
                if not missing:
                    break
            box = jax.random.uniform(key, (missing, self.dim), minval=-RADIUS, maxval=RADIUS)
            return np.concatenate([*found, np.asarray(box)])


@partial(jax.jit, static_argnums=0)
def _prior_batch(model: Model, key: Array) -> tuple[Array, Array]:
    """Prior draws, and at which of them there is a density."""
    points = jax.vmap(model.draw_prior)(jax.random.split(key, AT_ONCE))
    return points, jnp.all(jnp.isfinite(points), axis=1) & jnp.isfinite(jax.vmap(model.logdensity)(points))


def read_model(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Model:
    """The model as NumPyro sees it: its sites, its potential, its transforms."""
    numpyro = require_numpyro()
    if not callable(function):
        raise TypeError(f"model must be a function with numpyro.sample statements, got {type(function).__name__}")
    # JAX 0.10 remembers a NumPy array that was compiled with in float64 and stumbles over it in float32: the user's
    # own arrays are kept out of this
    args, kwargs = jax.tree.map(lambda leaf: leaf.copy() if isinstance(leaf, np.ndarray) else leaf, (args, kwargs))
    sites = look_at(function, args, kwargs)
    # other than latent sites need a key too: control flow, and discrete sites where values are constrained
    seeded = numpyro.handlers.seed(function, 0)
    constrain = partial(numpyro.infer.util.constrain_fn, seeded, args, kwargs, return_deterministic=True)
    if not sites.discrete:
        potential = partial(numpyro.infer.util.potential_energy, seeded, args, kwargs)
        return Model(function, args, kwargs, sites, potential, constrain)
    funsor = importlib.import_module("numpyro.contrib.funsor")
    summed = funsor.enum(funsor.config_enumerate(function), -sites.depth - 1)
    potential = partial(numpyro.infer.util.potential_energy, summed, args, kwargs, enum=True)
    return without_random_values(Model(function, args, kwargs, sites, potential, constrain))


def look_at(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Sites:
    """Runs the model without computing anything. NumPyro's own `initialize_model` would compute, one operation after
    the other, which takes several times as long as all else here."""
    numpyro = require_numpyro()
    seen: list[Sites] = []

    def run(key: Array) -> None:
        seeded = numpyro.handlers.seed(function, key)
        started = numpyro.handlers.substitute(seeded, substitute_fn=numpyro.infer.init_to_uniform)
        seen.append(Sites.of(numpyro.handlers.trace(started).get_trace(*args, **kwargs)))

    jax.eval_shape(run, jax.random.key(0))
    return seen[0]


def free_shape(site: Mapping[str, Any]) -> tuple[int, ...]:
    """The shape of a site's unconstrained value."""
    numpyro = require_numpyro()
    with numpyro.infer.util.helpful_support_errors(site, raise_warnings=True):
        return tuple(numpyro.distributions.biject_to(site["fn"].support).inverse_shape(np.shape(site["value"])))


def require_readable(trace: Mapping[str, Any]) -> list[str]:
    """The discrete latent sites, which NumPyro can sum out; an error for what has no density in R^D."""
    kinds: dict[str, list[str]] = {}
    for name, site in trace.items():
        kinds.setdefault(site["type"], []).append(name)
    if "param" in kinds or "mutable" in kinds:
        names = kinds.get("param", []) + kinds.get("mutable", [])
        raise ValueError(
            f"the model has sites without a distribution, {names} (numpyro.param, numpyro.mutable or a module): give "
            "them a prior with numpyro.sample, or put numbers in their place"
        )
    for name in kinds.get("plate", []):
        size, part = trace[name]["args"]
        if part is not None and part != size:
            raise ValueError(
                f"the plate {name!r} takes {part} of {size} data at random, so that the density is random too: leave "
                "subsample_size out"
            )
    latent = [name for name in kinds.get("sample", []) if not trace[name]["is_observed"]]
    discrete = [name for name in latent if trace[name]["fn"].support.is_discrete]
    if len(latent) == len(discrete):
        raise ValueError(f"the model has no continuous latent site to sample, only {list(trace)}")
    fixed = [name for name in latent if type(trace[name]["fn"]).__name__ == "Delta"]
    if fixed:
        raise ValueError(f"{fixed} have a Delta distribution, which has no density: use numpyro.deterministic")
    require_summable({name: trace[name] for name in discrete})
    return discrete


def require_summable(sites: Mapping[str, Any]) -> None:
    """Discrete sites that NumPyro sums out, and the package that it needs for it."""
    endless = [
        name
        for name, site in sites.items()
        if not site["fn"].has_enumerate_support or site["infer"].get("enumerate", "parallel") != "parallel"
    ]
    if endless:
        kinds = {name: type(sites[name]["fn"]).__name__ for name in endless}
        raise ValueError(
            f"discrete sites cannot be sampled, and NumPyro cannot sum these out: {kinds}; sum over them in the model, "
            "with numpyro.factor or a mixture distribution, or make them continuous"
        )
    if sites and importlib.util.find_spec("funsor") is None:
        raise ImportError(f"NumPyro needs funsor to sum out the discrete sites {list(sites)}: {install('numpyro')}")


def require_density(model: Model) -> None:
    """There is a point with a density, and the density there is always the same."""
    points, usable = (np.asarray(rows) for rows in _prior_batch(model, jax.random.key(0)))
    if not usable.any():
        points = np.asarray(jax.random.uniform(jax.random.key(0), points.shape, minval=-RADIUS, maxval=RADIUS))
        usable = np.isfinite(jax.jit(jax.vmap(model.logdensity))(points))
    if not usable.any():
        raise ValueError(
            f"the log density is finite at none of {AT_ONCE} draws of the prior, and of as many points of the box in "
            "which NumPyro starts: look for data outside of the support of their distribution"
        )
    # models with discrete sites need other handlers for this, and are rarely random otherwise
    if not model.sites.discrete:
        require_same_twice(model, jnp.asarray(points[usable][0]))


def require_same_twice(model: Model, position: Float[Array, " dim"]) -> None:
    """The density depends neither on a key nor on how often the model has run."""
    numpyro = require_numpyro()

    @jax.jit
    def twice(position: Array) -> list[Any]:
        seeded = [numpyro.handlers.seed(model.function, seed) for seed in (1, 2)]
        values = model.unflatten(position)
        return [numpyro.infer.util.potential_energy(one, model.args, model.kwargs, values) for one in seeded]

    first, second = map(float, twice(position))
    if not np.isclose(first, second, rtol=1e-6):
        raise ValueError(
            f"the log density at one point was {-first:.8g}, then {-second:.8g}: the model draws random numbers other "
            "than by numpyro.sample, or remembers something between its runs; exact sampling needs a fixed density"
        )


def without_random_values(model: Model) -> Model:
    """The model without the deterministics that change with the discrete sites' values, which are summed out."""
    numpyro = require_numpyro()

    def run(key: Array) -> dict[str, Any]:
        seeded = numpyro.handlers.seed(model.function, key)
        values = model.unflatten(jax.random.normal(jax.random.key(1), (model.dim,)))
        return numpyro.infer.util.constrain_fn(seeded, model.args, model.kwargs, values, return_deterministic=True)

    rows = jax.jit(jax.vmap(run))(jax.random.split(jax.random.key(0), 64))
    lost = [name for name, row in rows.items() if name not in model.shapes and bool(jnp.any(row != row[0]))]
    if not lost:
        return model
    warnings.warn(
        f"{lost} depend on the discrete sites {model.sites.discrete}, which are summed out: they are left out; "
        "numpyro.infer.Predictive(model, draws, infer_discrete=True) gives draws of them",
        stacklevel=4,
    )
    whole = model.constrain
    dims = {name: axes for name, axes in model.sites.dims.items() if name not in lost}
    return dataclasses.replace(
        model,
        sites=dataclasses.replace(model.sites, dims=dims),
        constrain=lambda values: {name: value for name, value in whole(values).items() if name not in lost},
    )


def axis_names(name: str, site: Mapping[str, Any]) -> list[str] | None:
    """Names of the axes of a site's values: its plates', and ArviZ's own for the others; none without a plate."""
    frames = site["cond_indep_stack"]
    if not frames:
        return None
    shape = np.shape(site["value"])
    depth = max(-frame.dim for frame in frames)
    # NumPyro does not say how many axes of a deterministic are one event: those right of the plates, or none
    events = [site["fn"].event_dim] if site["type"] == "sample" else [0, len(shape) - depth]
    for event in events:
        axes = {len(shape) - event + frame.dim: frame for frame in frames}
        if all(0 <= axis < len(shape) and shape[axis] == frame.size for axis, frame in axes.items()):
            own = {axis: frame.name for axis, frame in axes.items() if frame.name not in ("chain", "draw")}
            return [own.get(axis, f"{name}_dim_{axis}") for axis in range(len(shape))]
    return None


def require_numpyro() -> Any:
    """The package, imported late: whmc does not need it."""
    try:
        importlib.import_module("numpyro.infer.util")
        return importlib.import_module("numpyro")
    except ImportError as error:
        raise ImportError(f"from_numpyro needs NumPyro: {install('numpyro')}") from error


def __getattr__(name: str) -> Any:
    """The kernel's class derives from one of NumPyro's: it is made when it is asked for."""
    if name != "WHMC":
        raise AttributeError(f"module 'whmc.numpyro' has no attribute {name!r}")
    require_numpyro()
    return importlib.import_module("whmc.frontends.numpyro_kernel").WHMC
