"""A result as labelled arrays: ArviZ's groups, netCDF files, and back. No pickle, no code."""

import hashlib
import importlib
import warnings
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from whmc.kernels.base import StepInfo
from whmc.kernels.settings import Role
from whmc.storage.serialize import Damaged, pack, storable, unpack
from whmc.target.bounds import Bounds
from whmc.target.folding import Fold
from whmc.target.target import Target

if TYPE_CHECKING:
    import xarray

    from whmc.result import Result

NUMBERS = ("num_failed", "seed", "num_updates", "num_behind", "num_asked", "exact", "valley")
MODES = (
    "weight", "weight_se", "log_evidence", "log_evidence_se", "visits", "jumps_in", "jumps_out", "num_charts", "peaks",
    "pass_",
)  # fmt: skip
OBJECTS = ("library", "kernel", "timings", "gradients", "search", "basins", "work", "failed_at", "noticed", "settings")


AXES = ("chain", "draw")


def to_datatree(result: "Result") -> "xarray.DataTree":
    """The groups that ArviZ knows: posterior, sample_stats, unconstrained_posterior; and `modes`."""
    import xarray

    chains, draws = result.label.shape
    here = {"chain": np.arange(chains), "draw": np.arange(draws)}
    coordinate = {"coordinate": result.target.coordinates}
    attributes = {
        "inference_library": "whmc",
        "log_evidence": result.log_evidence,
        "log_evidence_se": result.log_evidence_se,
        "alarms": "\n".join(map(str, result.alarms)),
    }
    posterior, coords = _posterior(result)
    position = {"position": ((*AXES, "coordinate"), result.draws)}
    groups = {
        "/posterior": xarray.Dataset(posterior, {**here, **coords}, attributes),
        "/sample_stats": xarray.Dataset({k: (AXES, v) for k, v in _stats(result).items()}, here, attributes),
        "/unconstrained_posterior": xarray.Dataset(position, {**here, **coordinate}),
        "/modes": _modes(result, coordinate),
    }
    return xarray.DataTree.from_dict(groups)


def _posterior(result: "Result") -> tuple[dict[str, Any], dict[str, list[Any]]]:
    """Named values with their dimensions, and the coordinates of those dimensions."""
    target, values = result.target, result.constrained()
    dims = {given: tuple((target.dims or {}).get(given, ())) for given in values}
    dimension = file_names(dict.fromkeys(dim for own in dims.values() for dim in own), "dimension")
    name = file_names(values, "parameter")
    posterior = {}
    for given, rows in values.items():
        unnamed = tuple(f"{name[given]}_dim_{n}" for n in range(rows.ndim - len(AXES)))
        posterior[name[given]] = ((*AXES, *(tuple(dimension[dim] for dim in dims[given]) or unnamed)), rows)
    clash = {dim for own, _ in posterior.values() for dim in own} & posterior.keys()
    if clash:
        raise ValueError(f"{min(clash)!r} is the name of a parameter and of a dimension: rename one of them")
    places = target.coords or {}
    return posterior, {dimension[dim]: list(places[dim]) for dim in dimension if dim in places}


def _stats(result: "Result") -> dict[str, np.ndarray]:
    """What is known of each draw. There is no `energy`, which ArviZ expects to hold kinetic energy too."""
    stats = {
        "lp": result.logdensity,
        "mode": result.label,
        "chart": result.chart,
        "log_mixture": result.log_mixture,
        "jump": result.jumped,
        "regeneration": result.regenerated,
    }
    for move, info in result.steps.items():
        stats |= {f"{move}_{name}": getattr(info, name) for name in StepInfo.__annotations__}
    return stats


def _modes(result: "Result", coordinate: Mapping[str, Any]) -> "xarray.Dataset":
    """The table of modes, and the lines under it."""
    import xarray

    table = result.modes
    columns = {name.rstrip("_"): (("mode",), getattr(table, name)) for name in MODES}
    place = {"location": (("mode", "coordinate"), table.location)}
    notes = {"notes": "\n".join(table.notes)}
    return xarray.Dataset({**place, **columns}, {"mode": np.arange(len(table)), **coordinate}, notes)


def file_names(names: Iterable[str], kind: str) -> dict[str, str]:
    """The name in a file of each name. netCDF takes no "/", which separates groups, and neither "." nor "..".

    kind: what they name, for the errors: no file holds a NUL, or one name twice.
    """
    found: dict[str, str] = {}
    used = {axis: f"the axis {axis!r}" for axis in AXES}
    for name in names:
        if "\0" in name:
            raise ValueError(f"the {kind} {name!r} has a NUL in its name, which no file can hold: rename it")
        in_file = name.replace("/", "_")
        in_file = in_file.replace(".", "_") if in_file in (".", "..") else in_file or "_"
        if in_file in used:
            raise ValueError(f"the {kind} {name!r} is {in_file!r} in a file, as is {used[in_file]}: rename one of them")
        found[name], used[in_file] = in_file, f"the {kind} {name!r}"
    return found


def to_arviz(result: "Result") -> Any:
    """What the ArviZ that is installed calls a result: a DataTree, or before version 1 an InferenceData."""
    tree = to_datatree(result)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)  # once a day ArviZ announces its next version
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
    if not storable(result.kernel):
        remembered["kernel"] = None
    values = result.constrained()
    remembered["roles"] = {name: role.value for name, role in result.roles.items()}
    remembered["parameters"] = file_names(values, "parameter")
    remembered["digest"] = _digest(vars(result), values)
    remembered["fold"] = target.fold
    remembered["target"] = {
        "dim": target.dim,
        "names": target.coordinates,
        "bounds": None if target.bounds is None else _pairs(target.bounds),
        "dims": {name: list(dims) for name, dims in (target.dims or {}).items()},
        "coords": {name: [_item(place) for place in places] for name, places in (target.coords or {}).items()},
    }
    return remembered


def _pairs(bounds: Bounds) -> list[list[float | None]]:
    """Bounds as `Target` takes them, None for no bound."""
    pairs = zip(bounds.low, bounds.high, strict=True)
    return [[float(end) if np.isfinite(end) else None for end in pair] for pair in pairs]


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
        digest.update(f"{name} {one.dtype} {one.shape}".encode())
        for rows in one:
            digest.update(np.ascontiguousarray(rows).tobytes())
    return digest.hexdigest()


def load_file(path: Path) -> tuple[dict[str, Any], Fold | None]:
    """The fields of the result that `save` was given, and the fold of its target; the log density is not stored."""
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
    return fields, remembered["fold"]


def _fields(tree: "xarray.DataTree", remembered: dict[str, Any]) -> dict[str, Any]:
    def stat(name: str) -> np.ndarray:
        return _array(tree, "/sample_stats", name)

    steps = {
        move: StepInfo(**{name: stat(f"{move}_{name}") for name in StepInfo.__annotations__})
        for move in remembered["roles"]
    }
    return dict(
        target=target_without_density(remembered["target"]),
        draws=_array(tree, "/unconstrained_posterior", "position"),
        chart=stat("chart"),
        logdensity=stat("lp"),
        log_mixture=stat("log_mixture"),
        steps=steps,
        roles={name: Role(value) for name, value in remembered["roles"].items()},
        named={given: _array(tree, "/posterior", name) for given, name in remembered["parameters"].items()},
        **{name: remembered[name] for name in (*NUMBERS, *OBJECTS)},
    )


def _array(tree: "xarray.DataTree", group: str, name: str) -> np.ndarray:
    return np.asarray(tree[group].dataset[name].values)


def target_without_density(described: Mapping[str, Any]) -> Target:
    """A target with the names and shapes of one that was stored; its log density raises, since code is not stored."""

    def logdensity(position: Any) -> Any:
        raise RuntimeError("this result was loaded, and the log density is not stored: give load(..., target=)")

    return Target(
        logdensity,
        dim=described["dim"],
        names=described["names"] or None,
        dims=described.get("dims") or None,
        coords=described.get("coords") or None,
        bounds=described.get("bounds"),
    )
