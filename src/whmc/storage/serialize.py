"""Objects as JSON and arrays, and back: what stores and files hold. Code is never stored, and never run on reading.

A dataclass becomes its name and its fields, an array a reference into a table of arrays. Only the classes listed here
are ever made again.
"""

import dataclasses
import hashlib
import importlib
import json
import math
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

SCHEMA = 7
MAGIC = b"whmc"

CLASSES = {
    "Adaptation": "whmc.run.state",
    "AtBound": "whmc.target.noticed",
    "Bands": "whmc.modes.band",
    "Basins": "whmc.estimate.basins",
    "Bends": "whmc.modes.bend",
    "Chains": "whmc.run.chains",
    "ChainState": "whmc.kernels.base",
    "ChartShapes": "whmc.warmup.charts",
    "Cycle": "whmc.kernels.cycle",
    "Draws": "whmc.warmup.warmup",
    "Evidence": "whmc.estimate.evidence",
    "Fold": "whmc.target.folding",
    "GibbsWormhole": "whmc.kernels.wormhole",
    "Gradients": "whmc.result",
    "Independence": "whmc.kernels.independence",
    "Inputs": "whmc.run.plan",
    "Learned": "whmc.run.state",
    "LocalHMC": "whmc.kernels.local",
    "LocalWalk": "whmc.kernels.walk",
    "MissingMass": "whmc.estimate.missing",
    "ModeLibrary": "whmc.modes.library",
    "Moment": "whmc.run.state",
    "MultiStart": "whmc.search.finders",
    "OngoingSearch": "whmc.search.ongoing",
    "Noticed": "whmc.target.noticed",
    "Peak": "whmc.search.peak",
    "Plan": "whmc.run.plan",
    "Residual": "whmc.search.finders",
    "SearchReport": "whmc.search.report",
    "SearchState": "whmc.search.mode_search",
    "StepInfo": "whmc.kernels.base",
    "StoredFinder": "whmc.search.stored",
    "StoredKernel": "whmc.kernels.stored",
    "Tails": "whmc.modes.tail",
    "Tempered": "whmc.search.tempered",
    "ThroatSearch": "whmc.warmup.throat",
    "Timings": "whmc.result",
    "Version": "whmc.run.state",
    "Warmup": "whmc.warmup.warmup",
    "Wormhole": "whmc.kernels.wormhole",
    "WormholeTrajectory": "whmc.kernels.trajectory",
}
"""The only classes that are ever made again on reading."""


class NotPlain(TypeError):
    """An object that only its owner's code can make."""


class Damaged(ValueError):
    """Bytes that are not what was written."""


def encode(value: Any, arrays: dict[str, np.ndarray]) -> Any:
    """The value as JSON; its arrays are added to `arrays`."""
    if value is None or isinstance(value, (bool, str)):
        return value
    if isinstance(value, (np.ndarray, jax.Array, np.generic)):
        name = str(len(arrays))
        arrays[name] = np.asarray(value)
        kind = "jax" if isinstance(value, jax.Array) else "number" if isinstance(value, np.generic) else "numpy"
        return {kind: name}
    if isinstance(value, int):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else {"float": repr(value)}
    if isinstance(value, (list, tuple)):
        return {type(value).__name__: [encode(item, arrays) for item in value]}
    if isinstance(value, Mapping):
        pairs = [[encode(key, arrays), encode(item, arrays)] for key, item in value.items()]
        return {"dict": pairs}
    name = type(value).__name__
    if CLASSES.get(name) == type(value).__module__:
        fields = {field.name: encode(getattr(value, field.name), arrays) for field in dataclasses.fields(value)}
        return {"class": name, "fields": fields}
    raise NotPlain(f"{type(value).__module__}.{name} cannot be stored: it is not one of whmc's own")


def decode(value: Any, arrays: Mapping[str, np.ndarray]) -> Any:
    """What `encode` was given."""
    if not isinstance(value, dict):
        return value
    if "class" in value:
        if value["class"] not in CLASSES:
            raise NotPlain(f"{value['class']!r} is not one of the classes that may be read")
        kind = getattr(importlib.import_module(CLASSES[value["class"]]), value["class"])
        if set(value["fields"]) != {field.name for field in dataclasses.fields(kind)}:
            raise NotPlain(f"{value['class']} has other fields in this version of whmc")
        # not through __init__: states of many chains have an axis more than one state
        made = object.__new__(kind)
        for name, item in value["fields"].items():
            object.__setattr__(made, name, decode(item, arrays))
        return made
    ((kind, inner),) = value.items()
    match kind:
        case "jax":
            return jnp.asarray(arrays[inner])
        case "numpy":
            return arrays[inner]
        case "number":
            return arrays[inner][()]
        case "float":
            return float(inner)
        case "list":
            return [decode(item, arrays) for item in inner]
        case "tuple":
            return tuple(decode(item, arrays) for item in inner)
        case "dict":
            return {decode(key, arrays): decode(item, arrays) for key, item in inner}
    raise NotPlain(f"{kind!r} is not a kind of value that may be read")


def storable(value: Any) -> bool:
    """Whether a value can be stored as it is."""
    try:
        encode(value, {})
    except NotPlain:
        return False
    return True


def pack(tree: dict[str, Any]) -> bytes:
    """Magic, schema and SHA-256; a line of JSON with the tree and the arrays' dtypes and shapes; their bytes."""
    arrays: dict[str, np.ndarray] = {}
    encoded = encode(tree, arrays)
    kinds = {name: [array.dtype.str, array.shape] for name, array in arrays.items()}
    if any(array.dtype.hasobject for array in arrays.values()):
        raise NotPlain("an array of Python objects cannot be stored")
    text = json.dumps({"tree": encoded, "arrays": kinds}).encode()
    content = b"".join([text, b"\n", *(np.ascontiguousarray(array).tobytes() for array in arrays.values())])
    return b"%s %d %s\n" % (MAGIC, SCHEMA, hashlib.sha256(content).hexdigest().encode()) + content


def unpack(content: bytes) -> dict[str, Any]:
    """What `pack` was given; nothing is read before the checksum agrees."""
    head, _, body = content.partition(b"\n")
    parts = head.split(b" ")
    if len(parts) != 3 or parts[0] != MAGIC:
        raise Damaged("not a file of whmc, or damaged")
    if hashlib.sha256(body).hexdigest().encode() != parts[2]:
        raise Damaged("the checksum does not agree: truncated or damaged")
    if parts[1] != b"%d" % SCHEMA:
        raise Damaged(
            f"written with schema {parts[1].decode(errors='replace')}, this whmc reads schema {SCHEMA}: use the whmc "
            "that wrote it"
        )
    try:
        text, _, rest = body.partition(b"\n")
        table, arrays, at = json.loads(text), {}, 0
        for name, (kind, shape) in table["arrays"].items():
            dtype = np.dtype(kind)
            num = math.prod(shape)
            arrays[name] = np.frombuffer(rest, dtype, num, at).reshape(shape).copy()
            at += num * dtype.itemsize
        return decode(table["tree"], arrays)
    except (ValueError, KeyError, TypeError, NotPlain) as error:
        raise Damaged(f"cannot be read: {error}") from error
