"""Every kernel and every problem: a new one added here inherits all contract tests."""

import dataclasses
from functools import cache

import blackjax
import jax.numpy as jnp
import numpy as np

import whmc
from whmc.modes.library import ModeLibrary
from whmc.testing import Problem, gaussian_mixture, himmelblau, loggamma_pair, many_well, shells, two_scale_pair

KERNELS = {
    "local": whmc.LocalHMC(),
    "wormhole": whmc.Wormhole(),
    "throat": whmc.Wormhole(throat=6, stride=0.7),
    "gibbs": whmc.GibbsWormhole(),
    "independence": whmc.Independence(),
    "trajectory": whmc.WormholeTrajectory(),
    "blackjax": whmc.blackjax.Move(blackjax.hmc, {"num_integration_steps": 3}),
}
CYCLE = whmc.Cycle((whmc.LocalHMC(), whmc.Wormhole(), whmc.Independence()))


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


def _with(library: ModeLibrary, **changes: np.ndarray) -> ModeLibrary:
    location, scale, log_weight, step_size = library.charts()
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
    location, scale, _, _ = library.charts()
    middle = location.mean(axis=0)
    return {
        "shifted": _with(library, location=location + 0.7),
        "scaled": _with(library, scale=scale * np.array([0.6, 1.7])[:, None, None]),
        "missing": _with(library).drop(1),
        "duplicated": _with(library).add(location[0], scale[0], log_weight=-1.0, step_size=0.5),
        "saddle": _with(library).add(middle, scale[0] * 2, log_weight=-1.0, step_size=0.7),
        "wrong weights": _with(library, log_weight=np.log([0.3, 0.7])),
        "student": dataclasses.replace(_with(library), dof=jnp.asarray(4.0)),
    }
