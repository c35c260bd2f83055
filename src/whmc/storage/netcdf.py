"""A result as labelled arrays: ArviZ's groups, netCDF files, and back. No pickle, no code."""

import hashlib
import importlib
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from whmc.kernels.base import StepInfo
from whmc.kernels.settings import Role
from whmc.storage.serialize import Damaged, NotPlain, encode, pack, unpack
from whmc.target.target import Target

if TYPE_CHECKING:
    import xarray

    from whmc.result import Result

NUMBERS = ("num_warmup_gradients", "num_failed", "seed", "num_updates", "num_behind", "num_asked", "exact")
MODES = ("weight", "weight_se", "log_evidence", "log_evidence_se", "visits", "jumps_in", "jumps_out", "num_charts")
OBJECTS = ("library", "kernel", "timings", "search", "work", "settings")


def to_datatree(result: "Result") -> "xarray.DataTree":
    """The groups that ArviZ knows: posterior, sample_stats, unconstrained_posterior; and `modes`."""
    import xarray

    target = result.target
    axes = ("chain", "draw")
    values = result.constrained()
    dims = {name: tuple((target.dims or {}).get(name, ())) for name in values}
    posterior = {}
    for given, rows in values.items():
        name = _safe(given)
        if name in posterior or name in axes:
            raise ValueError(f"a parameter is named {given!r}, which a file cannot hold beside the others: rename it")
        own = dims[given] or tuple(f"{name}_dim_{n}" for n in range(rows.ndim - 2))
        posterior[name] = ((*axes, *own), rows)
    used = {dim for one, _ in posterior.values() for dim in one}
    coords = {name: list(places) for name, places in (target.coords or {}).items() if name in used}
    chains, draws = result.label.shape
    here = {"chain": np.arange(chains), "draw": np.arange(draws)}
    stats: dict[str, Any] = {
        "lp": result.logdensity,
        "energy": -result.logdensity,
        "mode": result.label,
        "chart": result.chart,
        "log_mixture": result.log_mixture,
        "jump": result.jumped,
        "regeneration": result.regenerated,
    }
    for move, info in result.steps.items():
        stats |= {f"{move}_{name}": getattr(info, name) for name in StepInfo.__annotations__}
    table = result.modes
    modes = {
        "location": (("mode", "coordinate"), table.location),
        **{name: (("mode",), getattr(table, name)) for name in MODES},
    }
    attributes = {
        "inference_library": "whmc",
        "log_evidence": result.log_evidence,
        "log_evidence_se": result.log_evidence_se,
        "alarms": "\n".join(map(str, result.alarms)),
    }
    groups = {
        "/posterior": xarray.Dataset(posterior, {**here, **coords}, attributes),
        "/sample_stats": xarray.Dataset({k: (axes, v) for k, v in stats.items()}, here, attributes),
        "/unconstrained_posterior": xarray.Dataset(
            {"position": ((*axes, "coordinate"), result.draws)}, {**here, "coordinate": target.coordinates}
        ),
        "/modes": xarray.Dataset(modes, {"mode": np.arange(len(table)), "coordinate": target.coordinates}),
    }
    return xarray.DataTree.from_dict(groups)


def _safe(name: str) -> str:
    """A name that files take: there "/" parts groups."""
    return name.replace("/", "_").replace("\0", "") or "_"


def to_arviz(result: "Result") -> Any:
    """What the ArviZ that is installed calls a result: a DataTree, or before version 1 an InferenceData."""
    tree = to_datatree(result)
    try:
        arviz = importlib.import_module("arviz")
    except ImportError:
        return tree
    if "InferenceData" not in vars(arviz):  # later ones answer to the name, with a warning and something else
        return tree
    return arviz.InferenceData.from_datatree(tree)


def save(result: "Result", path: str | Path) -> Path:
    """One netCDF file: what `to_arviz` gives, and all that `load` needs besides."""
    path = Path(path)
    if not path.parent.is_dir():
        raise FileNotFoundError(f"{path}: there is no folder {path.parent}")
    if path.is_dir():
        raise IsADirectoryError(f"{path} is a folder: give the name of a file, such as {path / 'result.nc'}")
    import xarray

    tree = to_datatree(result)
    content = np.frombuffer(pack(_remembered(result)), np.uint8)
    tree["/whmc"] = xarray.DataTree(xarray.Dataset({"record": (("byte",), content)}))
    fresh = path.with_name(path.name + ".new")
    tree.to_netcdf(fresh, engine="h5netcdf")
    fresh.replace(path)
    return path


def _remembered(result: "Result") -> dict[str, Any]:
    """All of a result but its draws and its target's code."""
    target = result.target
    remembered: dict[str, Any] = {name: getattr(result, name) for name in (*NUMBERS, *OBJECTS)}
    try:
        encode(result.kernel, {})
    except NotPlain:
        remembered["kernel"] = None
    remembered["roles"] = {name: role.value for name, role in result.roles.items()}
    remembered["digest"] = _digest(vars(result), result.constrained())
    remembered["target"] = {
        "dim": target.dim,
        "names": target.coordinates,
        "dims": {name: list(dims) for name, dims in (target.dims or {}).items()},
        "coords": {name: [_item(place) for place in places] for name, places in (target.coords or {}).items()},
        "source": target.source,
    }
    return remembered


def _item(place: Any) -> Any:
    place = place.item() if isinstance(place, np.generic) else place
    return place if isinstance(place, (bool, int, float, str)) else str(place)


def _digest(fields: Mapping[str, Any], values: Mapping[str, np.ndarray]) -> str:
    """Of the numbers that everything else is computed from."""
    digest = hashlib.sha256()
    arrays = [fields[name] for name in ("draws", "chart", "logdensity", "log_mixture")]
    for array in (*arrays, *jax.tree.leaves(list(fields["steps"].values()))):
        for rows in array:  # chain by chain: draws may be larger than the memory
            digest.update(np.ascontiguousarray(rows).astype(float).tobytes())
    for name, one in sorted(values.items()):
        digest.update(f"{_safe(name)} {one.dtype} {one.shape}".encode())
        for rows in one:
            digest.update(np.ascontiguousarray(rows).tobytes())
    return digest.hexdigest()


def load_file(path: Path) -> dict[str, Any]:
    """The fields of the result that `save` was given; the log density itself is not stored."""
    import xarray

    try:
        with jax.enable_x64(True), xarray.open_datatree(path, engine="h5netcdf") as tree:
            tree.load()
            remembered = unpack(_array(tree, "/whmc", "record").tobytes())
            fields = _fields(tree, remembered)
    except Exception as error:  # a damaged HDF5 file may raise anything
        raise Damaged(f"{path} is no result of whmc, or damaged: {error}") from error
    if _digest(fields, fields["named"]) != remembered["digest"]:
        raise Damaged(f"{path} is damaged: the checksum of its draws does not agree")
    return fields


def _fields(tree: "xarray.DataTree", remembered: dict[str, Any]) -> dict[str, Any]:
    def stat(name: str) -> np.ndarray:
        return _array(tree, "/sample_stats", name)

    steps = {
        move: StepInfo(**{name: stat(f"{move}_{name}") for name in StepInfo.__annotations__})
        for move in remembered["roles"]
    }
    return dict(
        target=forgotten(remembered["target"]),
        draws=_array(tree, "/unconstrained_posterior", "position"),
        chart=stat("chart"),
        logdensity=stat("lp"),
        log_mixture=stat("log_mixture"),
        steps=steps,
        roles={name: Role(value) for name, value in remembered["roles"].items()},
        named={str(name): rows.values for name, rows in tree["/posterior"].data_vars.items()},
        **{name: remembered[name] for name in (*NUMBERS, *OBJECTS)},
    )


def _array(tree: "xarray.DataTree", group: str, name: str) -> np.ndarray:
    return np.asarray(tree[group].dataset[name].values)


def forgotten(target: dict[str, Any]) -> Target:
    """A target whose function is not known any more."""

    def logdensity(position: Any) -> Any:
        raise RuntimeError("this result was loaded, and the log density is not stored: give load(..., target=)")

    return Target(
        logdensity,
        dim=target["dim"],
        names=target["names"] or None,
        dims=target.get("dims") or None,
        coords=target.get("coords") or None,
        source=target.get("source"),
    )
