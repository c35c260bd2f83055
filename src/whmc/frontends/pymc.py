"""A PyMC model as a target: its log density in JAX, its transforms, names, coordinates and prior draws.

PyMC's value variables, flattened one after the other in the model's order, are the positions. The log density is
PyMC's own with all its constants and Jacobians, so the evidence is that of the model.
"""

import dataclasses
import math
import os
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from importlib import import_module
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from whmc._shapes import Array, Float
from whmc.frontends.extras import install
from whmc.frontends.pytensor import held, jaxified
from whmc.target.meant import is_pymc
from whmc.target.target import Target

BOX = 2.0
"""Half the width, in each coordinate, of the box around the model's initial point that stands in for an improper
prior: a factor of seven either way for a scale."""

ROUNDS = 8
"""How often prior draws are made again where some fall outside of what the model's transforms can express."""


def from_pymc(model: Any = None, *, symmetries: Any = None) -> Target:
    """A PyMC model as a target; searches start at draws from its prior.

    model: a `pymc.Model`; without it the one whose `with` block this is called in.
    symmetries: as `Target` takes them, such as `[Exchange("mu", "sigma", "w")]`, by the names of the model's variables.

    Results have the model's variables and deterministics under their names, with its coords and dims. Data are taken
    as they are now: after `pymc.set_data` call this again. Continuous variables only, by operations that JAX has.
    """
    found = _model(model)
    _require_continuous(found)
    space = _Space.of(found)
    with jax.enable_x64(True):
        logdensity = _logdensity(found, space)
        constrain, shapes = _constrain(found, space)
        unconstrain = _unconstrain(found, shapes)
        _require_traceable(logdensity, space)
        # PyTensor's reductions keep the dtype that they meet first: here it is float64, whatever comes
        jax.eval_shape(lambda position: unconstrain(constrain(position)), space.centre)
    dims, coords = _axes(found, shapes)
    return Target(
        logdensity,
        dim=space.dim,
        starts=_Starts.of(found, space, unconstrain),
        names=space.coordinates(found, dims, coords),
        constrain=constrain,
        unconstrain=unconstrain,
        dims=dims,
        coords=coords,
        symmetries=symmetries,
    )


def _pymc() -> Any:
    """PyMC with its JAX part, which on import asks for 100 devices and sets JAX's precision for the whole process:
    both are put back."""
    try:
        pymc = import_module("pymc")
    except ImportError as error:
        raise ImportError(f"from_pymc needs PyMC: {install('pymc')}") from error
    jax.devices()  # once JAX has its devices, XLA_FLAGS cannot change their number
    flags, wide = os.environ.get("XLA_FLAGS"), _global_x64()
    try:
        import_module("pymc.sampling.jax")
    finally:
        if flags is None:
            os.environ.pop("XLA_FLAGS", None)
        else:
            os.environ["XLA_FLAGS"] = flags
        jax.config.update("jax_enable_x64", wide)
    return pymc


def _global_x64() -> bool:
    """The setting of the whole process. A `with` block of this thread hides it; a new thread is in no such block."""
    with ThreadPoolExecutor(1) as pool:
        return bool(pool.submit(lambda: jax.config.values["jax_enable_x64"]).result())


def _model(model: Any) -> Any:
    """The model that is meant."""
    pymc = _pymc()
    if model is None:
        try:
            return pymc.modelcontext(None)
        except TypeError as error:
            raise TypeError("from_pymc() is not inside a model: give it one, from_pymc(model)") from error
    if not is_pymc(model):
        raise TypeError(f"from_pymc takes a pymc.Model, got {type(model).__name__}")
    return model


def _require_continuous(model: Any) -> None:
    """There is something to sample, and none of it is discrete."""
    if not model.free_RVs:
        raise ValueError("the model has no free variables: there is nothing to sample")
    discrete = [model.values_to_rvs[value].name for value in model.discrete_value_vars]
    if discrete:
        raise ValueError(
            f"the model has discrete variables, {', '.join(discrete)}: sum over them, by a mixture distribution such "
            "as pymc.Mixture or pymc.NormalMixture, or by pymc_extras.marginalize(model, ...)"
        )


@dataclasses.dataclass(frozen=True)
class _Space:
    """The value variables of a model as one flat vector. centre: the model's initial point."""

    names: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]
    centre: Float[np.ndarray, " dim"]

    @classmethod
    def of(cls, model: Any) -> "_Space":
        point = model.initial_point(random_seed=0)
        values = [np.asarray(point[value.name], float) for value in model.value_vars]
        space = cls(
            tuple(value.name for value in model.value_vars),
            tuple(value.shape for value in values),
            np.concatenate([value.ravel() for value in values]),
        )
        if space.dim == 0:
            raise ValueError(f"the model's free variables, {', '.join(space.names)}, hold no numbers")
        return space

    @property
    def dim(self) -> int:
        return len(self.centre)

    @property
    def places(self) -> list[slice]:
        """Where each variable is."""
        ends = np.cumsum([math.prod(shape) for shape in self.shapes]).tolist()
        return [slice(start, end) for start, end in zip([0, *ends], ends, strict=False)]

    def split(self, position: Any) -> list[Any]:
        """The variables of a position."""
        return [position[place].reshape(shape) for place, shape in zip(self.places, self.shapes, strict=True)]

    def coordinates(self, model: Any, dims: Mapping[str, Any], coords: Mapping[str, Any]) -> list[str]:
        """A name for each number, by coords where a transform keeps the shape."""
        names = []
        for rv, name, shape in zip(model.free_RVs, self.names, self.shapes, strict=True):
            places = [coords.get(dim, ()) for dim in dims.get(rv.name, ())]
            # labels that occur twice would give two coordinates one name
            same = tuple(len(set(map(str, axis))) for axis in places) == shape
            for index in np.ndindex(*shape):
                labels = [axis[n] for axis, n in zip(places, index, strict=True)] if same else index
                names.append(name + "".join(f"[{label}]" for label in labels))
        return names


def _logdensity(model: Any, space: _Space) -> Callable[[Any], Any]:
    """The joint log density of the value variables, constants and Jacobians included."""
    log_p = jaxified(model.value_vars, {"the log density": model.logp()})
    circular = [
        place
        for rv, place in zip(model.free_RVs, space.places, strict=True)
        if type(_last(model.rvs_to_transforms[rv])).__name__ == "CircularTransform"
    ]

    def logdensity(position: Any) -> Any:
        (value,) = log_p(*space.split(position)).values()
        # an angle's density repeats itself for ever, which has no integral: one turn is kept
        for place in circular:
            value = jnp.where(jnp.all(jnp.abs(position[place]) <= jnp.pi), value, -jnp.inf)
        return value

    return logdensity


def _last(transform: Any) -> Any:
    """The step of a transform that ends in the space where the model is sampled."""
    return getattr(transform, "transform_list", [transform])[-1]


def _require_traceable(logdensity: Callable[[Any], Any], space: _Space) -> None:
    """What JAX finds only when it follows the function, such as a gradient that does not exist."""
    try:
        jax.eval_shape(jax.grad(logdensity), jax.ShapeDtypeStruct((space.dim,), np.dtype(float)))
    except Exception as error:
        error.add_note(
            "whmc: raised while JAX followed PyMC's log density. PyTensor has its operation for JAX in part only: "
            "shapes must not depend on values, nor the number of turns of a loop"
        )
        raise


def _constrain(model: Any, space: _Space) -> tuple[Callable[[Any], dict[str, Any]], dict[str, tuple[int, ...]]]:
    """From a position to the model's variables and deterministics; and the shapes of these."""
    variables = [*model.free_RVs, *model.deterministics]
    graphs = model.replace_rvs_by_values(variables)
    values = jaxified(model.value_vars, {one.name: graph for one, graph in zip(variables, graphs, strict=True)})

    def constrain(position: Any) -> dict[str, Any]:
        return values(*space.split(position))

    found = jax.eval_shape(constrain, jax.ShapeDtypeStruct((space.dim,), np.dtype(float)))
    return constrain, {name: value.shape for name, value in found.items()}


def _unconstrain(model: Any, shapes: Mapping[str, tuple[int, ...]]) -> Callable[[Mapping[str, Any]], Any]:
    """From the model's variables to a position. A transform may need other variables too, for the ends of an interval:
    so all of them are given to all."""
    rvs = model.free_RVs
    given = {rv: rv.type(name=rv.name) for rv in rvs}
    known = given | {rv: model.rvs_to_values[rv] for rv in model.observed_RVs}
    moved = [_forward(model.rvs_to_transforms[rv], rv) for rv in rvs]
    graphs = import_module("pytensor.graph.replace").clone_replace(moved, known)
    values = jaxified(list(given.values()), {rv.name: graph for rv, graph in zip(rvs, graphs, strict=True)})

    def unconstrain(named: Mapping[str, Any]) -> Any:
        missing = [rv.name for rv in rvs if rv.name not in named]
        if missing:
            raise ValueError(f"values of {', '.join(missing)} are missing: give those of all the model's variables")
        arrays = [jnp.asarray(named[rv.name], float) for rv in rvs]
        for rv, array in zip(rvs, arrays, strict=True):
            if array.shape != shapes[rv.name]:
                raise ValueError(f"{rv.name} has shape {array.shape}: the model has {shapes[rv.name]}")
        return jnp.concatenate([jnp.ravel(value) for value in values(*arrays).values()])

    return unconstrain


def _forward(transform: Any, rv: Any) -> Any:
    return rv if transform is None else transform.forward(rv, *rv.owner.inputs)


def _axes(model: Any, shapes: Mapping[str, tuple[int, ...]]) -> tuple[dict[str, tuple[str, ...]], dict[str, Any]]:
    """dims and coords of what results hold; PyMC's are of data and observations too."""
    coords, dims = import_module("pymc.backends.arviz").coords_and_dims_for_inferencedata(model)
    own = {
        name: tuple(f"{name}_dim_{n}" if axis is None else axis for n, axis in enumerate(axes))
        for name, axes in dims.items()
        if name in shapes
    }
    used = {axis for axes in own.values() for axis in axes}
    return own, {axis: places for axis, places in coords.items() if axis in used}


@dataclasses.dataclass(frozen=True)
class _Starts:
    """Draws from the model's prior as positions. graphs: the free variables, with random numbers of their own.

    ordered: those that a transform wants sorted, and whether upwards; a prior of independent values knows nothing
    of it. The draws are made on the host, by PyTensor without its compilers: a prior is drawn from seldom.
    """

    names: tuple[str, ...]
    graphs: Sequence[Any]
    generators: Sequence[Any]
    ordered: Mapping[str, bool]
    centre: Float[np.ndarray, " dim"]
    unconstrain: Callable[[Mapping[str, Any]], Any]

    @classmethod
    def of(cls, model: Any, space: _Space, unconstrain: Callable[[Mapping[str, Any]], Any]) -> "_Starts":
        transforms = {rv.name: model.rvs_to_transforms[rv] for rv in model.free_RVs}
        graphs, generators = _prior(model, space)
        return cls(
            tuple(transforms),
            graphs,
            generators,
            {name: one.ascending for name, one in transforms.items() if type(one).__name__ == "Ordered"},
            space.centre,
            unconstrain,
        )

    def __call__(self, key: Array, num: int) -> Float[np.ndarray, "num dim"]:
        """Independent draws, the same for the same key. What no draw fills, the box around the initial point does."""
        seed = np.asarray(jax.random.key_data(key)).ravel().tolist()
        rows = np.empty((0, len(self.centre)))
        for part in range(ROUNDS):
            drawn = self._draw([*seed, part], num)
            rows = np.concatenate([rows, drawn[np.isfinite(drawn).all(axis=1)]])
            if len(rows) >= num:
                break
        box = np.random.default_rng(seed).uniform(-BOX, BOX, (max(num - len(rows), 0), len(self.centre)))
        return np.concatenate([rows, self.centre + box])[:num]

    def _draw(self, seed: Sequence[int], num: int) -> Float[np.ndarray, "n dim"]:
        """Draws, at most `num`, some of which may not be finite."""
        draw, points = self._function, []  # compiling gives the generators seeds too, so it comes first
        import_module("pymc.pytensorf").reseed_rngs(self.generators, seed)
        for _ in range(num):
            try:
                points.append(draw())
            except NotImplementedError:  # a distribution that has a density only
                break
            except (ValueError, ArithmeticError, np.linalg.LinAlgError):  # parameters outside of their range
                continue
        if not points:
            return np.empty((0, len(self.centre)))
        named = {name: np.stack(values) for name, values in zip(self.names, zip(*points, strict=True), strict=True)}
        for name, ascending in self.ordered.items():
            named[name] = np.sort(named[name], axis=-1)[..., :: 1 if ascending else -1]
        with jax.enable_x64(True):
            return np.asarray(self._positions(named))

    @cached_property
    def _function(self) -> Callable[[], Sequence[np.ndarray]]:
        return import_module("pymc.pytensorf").compile([], list(self.graphs), mode="FAST_COMPILE")

    @cached_property
    def _positions(self) -> Callable[[Mapping[str, Any]], Any]:
        return jax.jit(jax.vmap(self.unconstrain))


def _prior(model: Any, space: _Space) -> tuple[Sequence[Any], Sequence[Any]]:
    """The free variables as random graphs, and their generators. Data are held, so that the same key gives the same
    draws for ever; what has no prior is drawn from a box around the initial point."""
    pymc, tensor, shared = import_module("pymc"), import_module("pytensor.tensor"), import_module("pytensor").shared
    continuous = import_module("pymc.distributions.continuous")
    clone_replace = import_module("pytensor.graph.replace").clone_replace
    boxes = {}
    for rv, centre in zip(model.free_RVs, space.split(space.centre), strict=True):
        if isinstance(rv.owner.op, (continuous.FlatRV, continuous.HalfFlatRV)):
            value = tensor.constant(centre) + pymc.Uniform.dist(-BOX, BOX, shape=centre.shape)
            transform = model.rvs_to_transforms[rv]
            value = value if transform is None else transform.backward(value, *rv.owner.inputs)
            boxes[rv] = value.astype(rv.dtype)
    graphs = held(clone_replace(model.free_RVs, boxes))
    random = import_module("pytensor.tensor.random.type").RandomType
    found = import_module("pytensor.graph.traversal").graph_inputs(graphs)
    own = {one: shared(np.random.default_rng(0)) for one in found if isinstance(one.type, random)}
    return clone_replace(graphs, own), list(own.values())
