"""PyTensor graphs as JAX functions in float64; PyTensor is imported when a graph is there."""

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib import import_module
from typing import Any

import jax
import jax.numpy as jnp


def jaxified(inputs: Sequence[Any], outputs: Mapping[str, Any]) -> Callable[..., dict[str, Any]]:
    """Named PyTensor graphs as one JAX function, with the errors that a user can act on."""
    graph_inputs = import_module("pytensor.graph.traversal").graph_inputs
    random = import_module("pytensor.tensor.random.type").RandomType
    for name, output in outputs.items():
        if any(isinstance(one.type, random) for one in graph_inputs([output])):
            raise ValueError(
                f"{name} is random, it differs from call to call: give the whole data instead of pymc.Minibatch, and "
                "draw predictions after sampling, with pymc.sample_posterior_predictive"
            )
    try:
        function = _translated(inputs, list(outputs.values()))
    except NotImplementedError as error:
        if len(outputs) > 1:
            for name, output in outputs.items():
                jaxified(inputs, {name: output})  # raises for the one that it is
        raise NotImplementedError(
            f"{name} has an operation that JAX lacks. PyTensor says: {error}. Write it with other operations of "
            "pytensor.tensor, or teach it to PyTensor with pytensor.link.jax.dispatch.jax_funcify.register"
        ) from error

    def evaluate(*values: Any) -> dict[str, Any]:
        # PyTensor mixes dtypes as NumPy does, which a user may have forbidden to JAX
        with jax.numpy_dtype_promotion("standard"):
            return dict(zip(outputs, map(jnp.asarray, function(*values)), strict=True))

    return evaluate


def _translated(inputs: Sequence[Any], outputs: Sequence[Any]) -> Callable[..., Sequence[Any]]:
    """A PyTensor graph in JAX, as `pymc.sampling.jax.get_jaxified_graph` does it but for two things.

    Checks of parameters become -inf where they fail, as in all functions that PyMC compiles; there they are left out.
    And all is float64: in JAX a float32 number wins against an array that was made from a plain one, and half of the
    digits are lost.
    """
    mode = import_module("pytensor.compile.mode").JAX.including("local_check_parameter_to_ninf_switch")
    with _in_float64():
        inputs, outputs = _doubled(inputs, held(outputs))
        graph = import_module("pytensor.graph.fg").FunctionGraph(inputs, outputs, clone=True)
        mode.optimizer.rewrite(graph)
        return import_module("pytensor.link.jax.dispatch").jax_funcify(graph)


@contextmanager
def _in_float64() -> Iterator[None]:
    """What PyTensor builds here is float64, numbers that float32 can hold too."""
    flags = import_module("pytensor").config.change_flags(floatX="float64", cast_policy="custom")
    with flags, import_module("pytensor.scalar.basic").autocast_float_as("float64"):
        yield


def held(graphs: Sequence[Any]) -> Sequence[Any]:
    """The graphs with data as they are now; random generators stay."""
    shared = import_module("pytensor.compile.sharedvalue").SharedVariable
    random = import_module("pytensor.tensor.random.type").RandomType
    found = import_module("pytensor.graph.traversal").graph_inputs(graphs)
    data = [one for one in found if isinstance(one, shared) and not isinstance(one.type, random)]
    constant = import_module("pytensor.tensor").constant
    return import_module("pytensor.graph.replace").clone_replace(
        graphs, {one: constant(one.get_value()) for one in data}
    )


def _doubled(inputs: Sequence[Any], outputs: Sequence[Any]) -> tuple[Sequence[Any], Sequence[Any]]:
    """The same graphs in float64. PyTensor takes a number that float32 can hold as float32, and its logarithm too; data
    may be float32, and all of a model that was written with floatX = "float32"."""
    tensor = import_module("pytensor.tensor")
    new = {one: tensor.tensor(shape=one.type.shape, dtype="float64") for one in filter(_is_single, inputs)}
    for node in import_module("pytensor.graph.traversal").toposort(outputs):
        for one in filter(_is_single, node.inputs):
            if one.owner is None and one not in new:
                new[one] = tensor.constant(one.data.astype(float))
        if any(one in new for one in node.inputs) or any(map(_is_single, node.outputs)):
            made = _remade(node, [new.get(one, one) for one in node.inputs])
            new |= zip(node.outputs, made, strict=True)
    return [new.get(one, one) for one in inputs], [new.get(one, one) for one in outputs]


def _remade(node: Any, given: Sequence[Any]) -> Sequence[Any]:
    """What an operation makes of other inputs."""
    try:
        return _double_op(node.op).make_node(*given).outputs
    except TypeError:
        pass  # it holds a graph that was built for float32
    if isinstance(node.op, import_module("pytensor.compile.builders").OpFromGraph):
        inputs, outputs = _doubled(node.op.inner_inputs, node.op.inner_outputs)
        return import_module("pytensor.graph.replace").clone_replace(
            outputs, dict(zip(inputs, given, strict=True)), rebuild_strict=False
        )
    # a loop stays what it is
    return node.op.make_node(*(_like(one, old) for one, old in zip(given, node.inputs, strict=True))).outputs


def _is_single(variable: Any) -> bool:
    return getattr(variable.type, "dtype", None) == "float32"


def _like(variable: Any, old: Any) -> Any:
    """The variable in the dtype that it had."""
    return variable.astype("float32") if _is_single(old) and not _is_single(variable) else variable


def _double_op(op: Any) -> Any:
    """The operation, making float64 where it makes float32 whatever it is given."""
    cast: Any = getattr(op, "scalar_op", None)
    if type(cast).__name__ == "Cast" and cast.o_type.dtype == "float32":
        scalar = import_module("pytensor.scalar.basic")
        return type(op)(scalar.Cast(scalar.float64, name="convert_to_float64"))
    new = copy.copy(op)
    for name in getattr(op, "__props__", ()):
        if isinstance(getattr(op, name), str) and getattr(op, name) == "float32":
            setattr(new, name, "float64")
    return new
