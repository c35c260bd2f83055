"""Every kernel, kind of chart, finder and problem: a new one added here inherits all contract tests."""

import dataclasses
from collections.abc import Callable
from functools import cache
from typing import NamedTuple

import blackjax
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import whmc
from whmc.kernels.base import ChainState, place_all
from whmc.kernels.block import draw_block
from whmc.kernels.cycle import moves
from whmc.kernels.random import total
from whmc.kernels.settings import default_kernel
from whmc.modes.chart_data import ChartData, locations_of, log_weights_of, scale_rows, step_sizes_of
from whmc.modes.layers.banded import Banded
from whmc.modes.layers.bend import Bend
from whmc.modes.layers.tails import Tail
from whmc.modes.library import ModeLibrary
from whmc.target.rows import evaluate_rows
from whmc.testing import Problem, gaussian_mixture, himmelblau, loggamma_pair, many_well, shells, two_scale_pair

CYCLE = default_kernel()
KERNELS = {
    "local": whmc.LocalHMC(),
    "walk": whmc.LocalWalk(),
    "wormhole": whmc.Wormhole(),
    "throat": whmc.Wormhole(throat=6, stride=0.7),
    "gibbs": whmc.GibbsWormhole(),
    "independence": whmc.Independence(),
    "trajectory": whmc.WormholeTrajectory(),
    "blackjax": whmc.blackjax.Move(blackjax.hmc, {"num_integration_steps": 3}),
    "cycle": CYCLE,
}
JUMPS_ONLY = ("wormhole", "throat", "gibbs")
"""Kernels that stand still in a library of one mode."""

FINDERS = {"multi-start": whmc.MultiStart(), "residual": whmc.Residual(), "tempered": whmc.Tempered()}

NUM_DRAWS = 30_000
"""Exact draws of an invariance test, against four times as many fresh ones: it sees gaps of .02 in a distribution
function. The subtlest control, a jump without its responsibilities, makes one of .023. One number for all tests, the
controls included, so that a kernel compiles once for a target."""


def states_at(target: whmc.Target, library: ModeLibrary, positions: np.ndarray) -> ChainState:
    """Chains that start at these positions."""
    found = evaluate_rows(target, np.asarray(positions))
    return place_all(np.asarray(positions), found.logdensity, found.score, library)


class Columns(NamedTuple):
    """The charts of a library as arrays."""

    location: np.ndarray
    scale: np.ndarray
    log_weight: np.ndarray
    step_size: np.ndarray


def columns(library: ModeLibrary) -> Columns:
    charts = library.charts()
    scale = np.stack([scale_rows(one.scale) for one in charts])
    return Columns(locations_of(charts), scale, log_weights_of(charts), step_sizes_of(charts))


def _scaled(library: ModeLibrary, change: Callable[[np.ndarray], np.ndarray], **changes: float) -> ModeLibrary:
    """The charts with other matrices L or standard deviations, straight and without bands."""
    scales = [ChartData.of(one.location, change(scale_rows(one.scale))).scale for one in library.charts()]
    charts = [
        dataclasses.replace(one, scale=made, warps=()) for one, made in zip(library.charts(), scales, strict=True)
    ]
    return ModeLibrary.of(charts, library.capacity, **{"dof": float(library.dof), **changes})


def _dense(library: ModeLibrary, **changes: float) -> ModeLibrary:
    return _scaled(library, lambda rows: np.diag(rows) if rows.ndim == 1 else rows, **changes)


def _diagonal(library: ModeLibrary) -> ModeLibrary:
    """The charts without their correlations."""
    return _scaled(library, lambda rows: rows if rows.ndim == 1 else np.linalg.norm(rows, axis=1))


def bent(library: ModeLibrary) -> ModeLibrary:
    """The charts with bends that have nothing to do with their modes."""
    library = _dense(library)
    rng, shape = np.random.default_rng(5), (library.size, library.dim)
    axis, curve = rng.standard_normal(shape), rng.standard_normal(shape)
    axis /= np.linalg.norm(axis, axis=1, keepdims=True)
    curve -= np.sum(axis * curve, axis=1, keepdims=True) * axis
    curve *= 0.3 / np.maximum(np.linalg.norm(curve, axis=1, keepdims=True), 0.3)  # none in one dimension
    bends = [Bend.of(*parts, np.array(0.25 * (-1.0) ** k)) for k, parts in enumerate(zip(axis, curve, strict=True))]
    return library.with_charts([one.with_warp(bend) for one, bend in zip(library.charts(), bends, strict=True)])


def tailed(library: ModeLibrary) -> ModeLibrary:
    """The charts with tails that have nothing to do with their modes."""
    library = _dense(library)
    heaviness = np.random.default_rng(7).uniform(0.0, 0.3, (library.size, library.dim))
    tails = [Tail.of(rows, library.dim) for rows in heaviness]
    return library.with_charts([one.with_warp(tail) for one, tail in zip(library.charts(), tails, strict=True)])


def banded(library: ModeLibrary) -> ModeLibrary:
    """Diagonal charts with bands that have nothing to do with their modes."""
    library = _diagonal(library)
    size, dim = library.size, library.dim
    width = min(2, dim - 1)
    coupling = np.random.default_rng(6).uniform(-0.7, 0.7, (size, width, dim))
    for m in range(1, width + 1):
        coupling[:, m - 1, dim - m :] = 0.0
    parts = zip(library.charts(), coupling, strict=True)
    return library.with_charts([one.moved(one.location, Banded.of(one.scale.sd, rows)) for one, rows in parts])


CHARTS = {
    "Gaussian": _dense,
    "Student-t": lambda library: _dense(library, dof=4.0),
    "diagonal": _diagonal,
    "bent": bent,
    "tailed": tailed,
    "banded": banded,
}
"""Kinds of charts, each made from the library that fits a problem."""


def _rotated_pair() -> Problem:
    """Long thin modes that lie across each other."""
    turn = np.array([[np.cos(0.7), -np.sin(0.7)], [np.sin(0.7), np.cos(0.7)]])
    thin = turn @ np.diag([9.0, 0.1]) @ turn.T
    flat = turn.T @ np.diag([0.2, 4.0]) @ turn
    return gaussian_mixture([0.35, 0.65], [[0, 0], [6, 3]], [thin, flat], "rotated pair")


def _three_in_twenty() -> Problem:
    rng = np.random.default_rng(3)
    factors = 0.3 * rng.standard_normal((3, 20, 20)) / np.sqrt(20) + np.array([0.6, 1.0, 1.4])[:, None, None] * np.eye(
        20
    )
    covariances = factors @ np.swapaxes(factors, 1, 2)
    return gaussian_mixture([0.7, 0.2, 0.1], 5 * rng.standard_normal((3, 20)), covariances, "three D=20")


PROBLEMS = {
    "pair": lambda: gaussian_mixture([0.9, 0.1], [[0, 0], [10, 0]], np.tile(np.eye(2), (2, 1, 1))),
    "line": lambda: gaussian_mixture([0.8, 0.2], [[0], [7]], [[[1.0]], [[0.25]]], "line D=1"),
    "two-scale": lambda: two_scale_pair(2, separation=6.0),
    "three": _three_in_twenty,
    "diagonal": lambda: gaussian_mixture([0.6, 0.4], [[0, 0, 0], [4, 5, 0]], [[1.0, 0.2, 3.0], [0.3, 2.0, 0.5]]),
    "rotated": _rotated_pair,
    "log-gamma": lambda: loggamma_pair(6, separation=6.0),
    "many-well": lambda: many_well(2),
    "himmelblau": lambda: himmelblau(10.0),
    "shells": lambda: shells(3, width=0.3),
}


@cache
def problem(name: str) -> Problem:
    return PROBLEMS[name]()


def without_slopes(case: Problem, kind: type[whmc.Target] = whmc.Target) -> Problem:
    """The problem with a score whose first component is NaN where x[0] < -0.5, and the same density."""
    density = case.target.logdensity

    def logdensity(x: jax.Array) -> jax.Array:
        return density(x) + jnp.where(x[0] > -0.5, 0 * jnp.sqrt(x[0] + 0.5), 0.0)

    return dataclasses.replace(case, target=kind(logdensity, dim=case.target.dim, starts=case.target.starts))


SMALLEST, LARGEST = "line", "three"
"""The problems of least and most dimensions, D = 1 and D = 20; a test holds them to that."""

SOME = {
    "bent": ("two-scale", "three", "rotated", "log-gamma", "shells"),
    "tailed": ("two-scale", "log-gamma", "three"),
    "banded": ("log-gamma", "three"),
}
"""Problems on which these charts are tried: a block is compiled anew for them, and some of the problems do."""

SHARE = {"Student-t": 2, "diagonal": 5, "bent": 2, "tailed": 1, "banded": 1}
"""On how many of its problems, in turn, a kernel is tried with these charts before a change is taken; the default cycle
on all. The rest is `slow`."""


AT_EVERY_CHANGE = ("local", "wormhole", "independence", "cycle")
"""Kernels that every change tries, with Gaussian charts on the smallest problem: the default cycle and its moves."""


def mark_of(kernel: str, chart: str, target: str) -> pytest.MarkDecorator | None:
    """When kernel x chart x target is tried; None: at every change.

    With the code that users run: the default cycle everywhere, every kernel on one target.
    """
    if kernel in AT_EVERY_CHANGE and chart == "Gaussian" and target == SMALLEST:
        return None
    if kernel == "cycle" or (chart, target) == ("Gaussian", "rotated"):
        return pytest.mark.as_users
    tried = list(SOME.get(chart, PROBLEMS))
    share = SHARE.get(chart, len(tried)) if kernel != "cycle" else len(tried)
    first = list(KERNELS).index(kernel) * share
    in_turn = {tried[(first + n) % len(tried)] for n in range(share)}
    return pytest.mark.ci if target in in_turn else pytest.mark.slow


def kernels_charts_targets() -> list:
    """The whole product; charts of a kernel and a target stay on one worker, where they share what is compiled."""
    return [
        pytest.param(
            kernel,
            chart,
            target,
            marks=[
                pytest.mark.xdist_group(f"{kernel} {target}"),
                *filter(None, [mark_of(kernel, chart, target)]),
            ],
        )
        for kernel in KERNELS
        for target in PROBLEMS
        for chart in CHARTS
        if target in SOME.get(chart, PROBLEMS)
    ]


def only_these_at_every_change(names, fast) -> list:
    """Parameters for all `names`, those that are not in `fast` marked `ci`."""
    return [pytest.param(name, marks=[] if name in fast else [pytest.mark.ci]) for name in names]


def _with(library: ModeLibrary, **changes: np.ndarray) -> ModeLibrary:
    location, scale, log_weight, step_size = columns(library)
    parts = {"location": location, "scale": scale, "log_weight": log_weight, "step_size": step_size} | changes
    return ModeLibrary.from_charts(
        parts["location"],
        parts["scale"],
        log_weight=parts["log_weight"],
        step_size=parts["step_size"],
        capacity=4,
    )


def wrong_libraries(library: ModeLibrary) -> dict[str, ModeLibrary]:
    """Libraries of two modes that are wrong on purpose, all of one shape."""
    location, scale, _, _ = columns(library)
    middle = location.mean(axis=0)
    return {
        "shifted": _with(library, location=location + 0.7),
        "scaled": _with(library, scale=scale * np.array([0.6, 1.7])[:, None, None]),
        "missing": _with(library).drop(1),
        "duplicated": _with(library).add(location[0], scale[0], log_weight=-1.0, step_size=0.5),
        "saddle": _with(library).add(middle, scale[0] * 2, log_weight=-1.0, step_size=0.7),
        "wrong weights": _with(library, log_weight=np.log([0.3, 0.7])),
        "student": dataclasses.replace(_with(library), dof=jnp.asarray(4.0)),
        "bent": bent(_with(library)),
    }


def numbers_of(kernel, library, key, step, chain):
    """What `kernel.move` takes for one step of one chain, as a block draws it for the root `key`."""
    together, keys = draw_block(kernel, library, key, np.full(chain + 1, step), 1)
    parts = moves(kernel)
    nums = [one.num_noise(library) for one in parts]
    here = jax.tree.map(lambda rows: jnp.asarray(rows[0, chain]), together)
    noise = [here.part(total(nums[:n]), total(nums[: n + 1])) for n in range(len(parts))]
    for n, data in keys.items():
        noise[n] = parts[n].draw(jax.random.wrap_key_data(jnp.asarray(data[0, chain])), library)
    return tuple(noise) if isinstance(kernel, whmc.Cycle) else noise[0]
