"""Stan programs as targets: densities and gradients are Stan's own, called through BridgeStan."""

import contextlib
import warnings
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from whmc._shapes import Array, Int
from whmc.frontends.blackbox import density
from whmc.frontends.stan_bridge import StanBox, coordinate_names, depends, open_model, places
from whmc.frontends.stan_slopes import inverse, sloped
from whmc.target.target import Target

BOX = (-2.0, 2.0)
"""Where searches start: Stan has no draws from the prior, and starts its own chains in this box."""

TRIES = 100
"""Starts that are looked at before a model is refused: as many as Stan tries."""


def from_stan(
    model: Any,
    data: Any = None,
    *,
    starts: Any = None,
    seed: int = 0,
    generated_quantities: bool = False,
    symmetries: Any = None,
) -> Target:
    """A Stan model as a target on Stan's unconstrained scale.

    model: the path of a .stan file, the text of a Stan program, the path of a library that BridgeStan has compiled
        ("..._model.so"), or a `bridgestan.StanModel`. A program is built by BridgeStan where its sources are set up,
        else with the compiler and headers of httpstan: about half a minute once, then it is kept.
    data: a dictionary, JSON text or the path of a JSON file.
    starts: where searches start on the unconstrained scale, as in `Target`, or a list of dictionaries of parameters as
        the model means them. Stan cannot draw from a prior: unless given, starts fill the box (-2, 2), as Stan's do.
    seed: of random numbers in the `transformed data` block.
    generated_quantities: whether results also have these; those that draw random numbers are left out.
    symmetries: as in `Target`, by the names of parameters.

    The log density has the log Jacobian of the transforms, and all constants, those of `y ~ normal(mu, sigma)` as well
    as those of `target += normal_lpdf(y | mu, sigma)`: the log evidence is that of the model as it is written. Only
    what the program itself leaves out is missing: `normal_lupdf`, and parameters without a proper prior. Where Stan
    refuses a position (`reject`, a scale that is not positive), the density is zero, as in Stan's own samplers.
    """
    box = StanBox(open_model(model, data, seed))
    if box.dim == 0:
        raise ValueError("this Stan model has no parameters: there is nothing to sample")
    moves = depends(box)
    own = sloped(box.constrain, moves)
    unconstrain = _unconstrain(box, own)
    target = Target(
        density(box, box.dim),
        dim=box.dim,
        starts=BOX if starts is None else _positions(starts, unconstrain),
        names=coordinate_names(box, moves),
        constrain=_constrain(box, own, _kept(box, generated_quantities)),
        unconstrain=unconstrain,
        symmetries=symmetries,
    )
    _require_a_start(target, box)
    return target


def _positions(starts: Any, unconstrain: Callable[[Mapping[str, Any]], Any]) -> Any:
    """Starts on the unconstrained scale; dictionaries are parameters as the model means them."""
    given = [starts] if isinstance(starts, Mapping) else starts
    if isinstance(given, (list, tuple)) and given and all(isinstance(one, Mapping) for one in given):
        return np.stack([unconstrain(one) for one in given])
    return starts


def _require_a_start(target: Target, box: StanBox) -> None:
    """Looks for one start with a density, and gives Stan's own words if there is none."""
    with jax.enable_x64(True):
        points = np.asarray(target.draw_starts(jax.random.key(0), TRIES), float)
    if any(np.isfinite(box.evaluate(point[None])[0][0]) for point in points):
        return
    said = "its log density is not finite" if box.rejection is None else f"Stan says: {box.rejection}"
    raise ValueError(f"this Stan model has no density at any of {TRIES} starts: give starts=... where it has; {said}")


def _kept(box: StanBox, generated: bool) -> dict[str, Int[np.ndarray, "..."]]:
    """Where the values stand that follow from the position: all, but for those that draw random numbers."""
    where = places(box.model.param_names(include_tp=True, include_gq=generated))
    if not generated:
        return where
    points = np.random.default_rng(0).uniform(*BOX, (4, box.dim))
    seen = np.stack([box.constrain(points, True, True, seed) for seed in range(1, 9)])
    differ = np.any((seen != seen[0]) & ~(np.isnan(seen) & np.isnan(seen[0])), axis=(0, 1))
    random = [name for name, at in where.items() if np.any(differ[at])]
    if random:
        warnings.warn(f"generated quantities that draw random numbers are left out: {', '.join(random)}", stacklevel=3)
    return {name: at for name, at in where.items() if name not in random}


def _constrain(
    box: StanBox, own: Callable[[Array], Array], kept: dict[str, Int[np.ndarray, "..."]]
) -> Callable[[Any], dict[str, Array]]:
    """Position -> named values. Parameters apart from the rest: their slopes cost little, and others may be unused."""
    num_own = box.model.param_num()
    generated = any(np.any(at >= box.model.param_num(include_tp=True)) for at in kept.values())
    size = box.model.param_num(include_tp=True, include_gq=generated)
    rest = sloped(
        lambda points: box.constrain(points, True, generated)[:, num_own:], np.ones((size - num_own, box.dim), bool)
    )

    def constrain(position: Any) -> dict[str, Array]:
        position = jnp.asarray(position, float)
        parameters = own(position)
        values = {name: parameters[at] for name, at in kept.items() if np.all(at < num_own)}
        if len(values) < len(kept):
            others = rest(position)
            values |= {name: others[at - num_own] for name, at in kept.items() if name not in values}
        return values

    return constrain


def _unconstrain(box: StanBox, own: Callable[[Array], Array]) -> Callable[[Mapping[str, Any]], Any]:
    """Named values -> position: by Stan at once, or inside of compiled functions by a callback."""
    where = places(box.model.param_names())
    order = np.argsort(np.concatenate([at.ravel() for at in where.values()]))

    def rows(values: np.ndarray) -> np.ndarray:
        found = np.full((len(values), box.dim), np.nan)
        for row, value in zip(found, values, strict=True):
            # NaN where Stan refuses: it fails where it is used, and nothing can be raised here
            with contextlib.suppress(RuntimeError):
                row[:] = box.unconstrain(value)
        return found

    back = inverse(rows, own, box.dim)

    def unconstrain(values: Mapping[str, Any]) -> Any:
        _require_values(values, where)
        parts = [values[name] for name in where]
        if any(isinstance(part, jax.core.Tracer) for part in parts):
            return back(jnp.concatenate([jnp.ravel(jnp.asarray(part, float)) for part in parts])[order])
        try:
            return box.unconstrain(np.concatenate([np.ravel(np.asarray(part, float)) for part in parts])[order])
        except RuntimeError as error:
            raise ValueError(f"Stan does not accept these parameters: {error}") from error

    return unconstrain


def _require_values(values: Mapping[str, Any], where: Mapping[str, np.ndarray]) -> None:
    """Every parameter, in its shape."""
    missing = [name for name in where if name not in values]
    if missing:
        raise ValueError(f"parameters are missing: {', '.join(missing)}; the model has {', '.join(where)}")
    for name, at in where.items():
        if np.shape(values[name]) != at.shape:
            raise ValueError(f"parameter {name} has shape {np.shape(values[name])}: the model's has {at.shape}")
