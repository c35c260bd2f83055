"""Modes from draws, as RDMC has them: a Dirichlet process mixture of Gaussians, fitted at regenerations.

Ahn, Chen and Welling (2013) start from parallel chains of plain HMC and learn regions from what all chains have drawn.
Here the mixture is scikit-learn's variational one, from whmc's extra `paper`. It only says which draws belong
together; a chart then has the mean and covariance of its draws. What it adds is exact whatever it is, for chains take
it at regenerations only. All but the chains themselves is NumPy.
"""

import dataclasses
import importlib
import warnings
from functools import partial
from typing import Any

import jax
import numpy as np

from whmc._shapes import Array, Float, Int
from whmc.kernels.base import AbstractKernel, ChainState, make_state
from whmc.modes.chart import whiten_rows
from whmc.modes.chart_data import step_sizes_of
from whmc.modes.library import ModeLibrary
from whmc.modes.mixture import chart_squares
from whmc.paper.plain_hmc import PlainHMC
from whmc.target.target import Target

FEWEST = 48
"""Draws of a component at least, and two a dimension: a covariance from fewer would be mostly its prior."""

MAX_DRAWS = 2000
"""Draws that a mixture is fitted to: enough for ten components in 100 dimensions; a fit takes a few seconds at most."""

MAX_COMPONENTS = 32
"""Components that the truncated process may use at most."""

GAIN = 1.0
"""Mean log density, in nats a draw and on draws that were held out, that a component must gain over the known charts to
be added: what gains less is a known chart again, or a part of one."""


def fewest_draws(dim: int) -> int:
    """Draws that a new chart needs: a covariance from fewer would be mostly its prior."""
    return max(FEWEST, 2 * dim)


@dataclasses.dataclass(frozen=True)
class DirichletSearch:
    """A search for modes among the draws of all chains, in the place of an `OngoingSearch`.

    Charts are added for components with enough draws that no known chart describes. Looks 1, 2, 4, 8, ... fit a
    mixture, the others return what they are given: a fit takes as long as many steps, and a mode that was missed is in
    later draws too.
    """

    seed: int = 0
    max_modes: int = 256
    looks: int = 0
    num_gradients: int = 0


def look(
    search: DirichletSearch,
    target: Target,
    library: ModeLibrary,
    position: Float[np.ndarray, "n dim"],
    logdensity: Float[np.ndarray, " n"],
    key: Array,
) -> tuple[DirichletSearch, ModeLibrary]:
    """The library with the charts that one more look adds at its end, given some draws."""
    del target, logdensity, key  # the mixture knows draws only, and has its own seed
    looks = search.looks + 1
    looked = dataclasses.replace(search, looks=looks)
    least, room = fewest_draws(library.dim), search.max_modes - library.size
    if looks & (looks - 1) or room <= 0 or len(position) < least:
        return looked, library
    prior = np.mean(np.asarray(library.covariance)[: library.size], axis=0)
    draws = thinned(position)
    step_size = float(np.median(step_sizes_of(library.charts())))
    for mine in components(draws, prior, seed=search.seed + looks):
        log_share = float(np.log(len(mine) / len(draws)))
        if len(mine) >= least and library.size < search.max_modes and gain(library, mine, log_share) > GAIN:
            location, scale = moments(mine, prior)
            library = library.add(location, scale, log_weight=log_share, step_size=step_size)
    return looked, library


def modes_from_chains(
    target: Target,
    num_chains: int,
    *,
    step_size: float,
    num_steps: int,
    num_draws: int | None = None,
    seed: int = 0,
    diagonal: bool = False,
) -> ModeLibrary:
    """A library from short parallel chains of plain HMC, as RDMC starts: the components of what they have drawn.

    step_size, num_steps: of HMC. num_draws: of each chain, from the start region; the second half is used, when the
    chains are in modes. Unless given, the half is twice what a chart needs: one chain in a mode is enough to know it.
    """
    num_draws = 4 * fewest_draws(target.dim) if num_draws is None else num_draws
    with jax.enable_x64(True):
        key_starts, key_chains = jax.random.split(jax.random.key(seed))
        starts = target.draw_starts(key_starts, num_chains)
        kernel = PlainHMC(step_size=step_size, num_steps=num_steps)
        trace, logdensity = _short_chains(kernel, target, starts, key_chains, length=num_draws)
    ends = np.asarray(trace)[np.isfinite(logdensity), num_draws // 2 :]
    if len(ends) == 0:
        raise ValueError("no chain found a place with positive density: check target.starts, or give modes")
    shift = np.reshape(ends - ends.mean(axis=1, keepdims=True), (-1, target.dim))
    prior = np.mean(shift**2, axis=0) if diagonal else shift.T @ shift / len(shift)
    found = components(thinned(ends.reshape(-1, target.dim)), prior, seed=seed)
    kept = [draws for draws in found if len(draws) >= fewest_draws(target.dim)] or [max(found, key=len)]
    location, scale = zip(*(moments(draws, prior) for draws in kept), strict=True)
    return ModeLibrary.from_charts(
        np.stack(location),
        np.stack(scale),
        log_weight=np.log([len(draws) for draws in kept]),
        # leapfrog's energy error in D dimensions stays the same when the step goes as D^(-1/4)
        step_size=np.full(len(kept), target.dim**-0.25),
    )


def thinned(position: Float[np.ndarray, "n dim"]) -> Float[np.ndarray, "m dim"]:
    """At most `MAX_DRAWS` of the draws, evenly."""
    return position[:: -(-len(position) // MAX_DRAWS)]


def components(draws: Float[np.ndarray, "n dim"], prior: np.ndarray, *, seed: int) -> list[Float[np.ndarray, "_ dim"]]:
    """The draws of each component of a Dirichlet process mixture; `prior`: the covariance expected of one.

    The prior is not scikit-learn's own, the covariance of all draws: that is the distance between the modes, and would
    blur small components.
    """
    mixture, threads = _scikit_learn()
    fitted = mixture(
        n_components=max(1, min(MAX_COMPONENTS, len(draws) // fewest_draws(draws.shape[1]))),
        covariance_type="diag" if prior.ndim == 1 else "full",
        weight_concentration_prior_type="dirichlet_process",
        covariance_prior=prior,
        max_iter=100,
        random_state=seed,
    )
    # one thread: the matrices are small, and more took eight times as long
    with threads(limits=1), warnings.catch_warnings():
        # one that has not converged is a worse guess, and a guess is all that it is
        warnings.simplefilter("ignore")
        label: Int[np.ndarray, " n"] = fitted.fit_predict(draws)
    return merged([draws[label == k] for k in np.unique(label)], prior)


def merged(parts: list[Float[np.ndarray, "_ dim"]], prior: np.ndarray) -> list[Float[np.ndarray, "_ dim"]]:
    """Parts put together again, best first, as long as one Gaussian describes two of them as well as two do.

    The variational fit often ends with slices of one mode. Two parts are kept apart if that gains more log likelihood
    of draws and labels than ½ log n for each number of the second Gaussian (Bayes' information criterion).
    """
    parts, dim, num = list(parts), parts[0].shape[1], sum(map(len, parts))
    numbers = 1 + dim + (dim if prior.ndim == 1 else dim * (dim + 1) // 2)
    while len(parts) > 1:
        costs = [_cost(part, prior) for part in parts]
        gains = {
            (i, j): _cost(np.concatenate([parts[i], parts[j]]), prior) - costs[i] - costs[j]
            for j in range(len(parts))
            for i in range(j)
        }
        i, j = min(gains, key=lambda pair: gains[pair])
        if gains[i, j] > 0.5 * numbers * np.log(num):
            break
        parts[i] = np.concatenate([parts[i], parts.pop(j)])
    return parts


def _cost(draws: Float[np.ndarray, "n dim"], prior: np.ndarray) -> float:
    """-log likelihood of draws and label, with the draws' own moments, up to what all partitions share."""
    scale = moments(draws, prior)[1]
    sd = scale if scale.ndim == 1 else np.diagonal(scale)
    return float(len(draws) * (np.sum(np.log(sd)) - np.log(len(draws))))


def moments(draws: Float[np.ndarray, "n dim"], prior: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Mean, and a factor of the covariance with one draw's worth of the prior, which makes it positive."""
    mean, num = draws.mean(axis=0), len(draws)
    shift = draws - mean
    if prior.ndim == 1:
        return mean, np.sqrt((np.sum(shift**2, axis=0) + prior) / (num + 1))
    return mean, np.linalg.cholesky((shift.T @ shift + prior) / (num + 1))


def gain(library: ModeLibrary, draws: Float[np.ndarray, "n dim"], log_share: float) -> float:
    """Mean of log [share · N(theta; their moments)] - log max_k N(theta; mu_k, Sigma_k) over draws of a component.

    The moments are of every other draw and the rest is scored, else more parameters would always gain. The share of all
    draws counts, else any slice of a known mode would gain, being narrower than the whole. Known charts count in full:
    their weights may not be known yet.
    """
    prior = np.mean(np.asarray(library.covariance)[: library.size], axis=0)
    location, scale = moments(draws[::2], prior)
    held = draws[1::2]
    sd = scale if scale.ndim == 1 else np.diagonal(scale)
    own = -0.5 * np.sum(whiten_rows(scale, held - location) ** 2, axis=1) - np.sum(np.log(sd))
    known = -0.5 * chart_squares(library, held) - np.asarray(library.log_det)[: library.size, None]
    return float(np.mean(own - known.max(axis=0))) + log_share


@partial(jax.jit, static_argnames="length")
def _short_chains(
    kernel: AbstractKernel, target: Target, starts: Float[Array, "chains dim"], key: Array, *, length: int
) -> tuple[Float[Array, "chains draws dim"], Float[Array, " chains"]]:
    """Positions after each step, and the log densities at the end."""
    # a state belongs to a library: one unit chart, which the kernel does not look at
    library = ModeLibrary.from_charts(np.zeros((1, target.dim)), np.ones((1, target.dim)))

    def chain(start: Float[Array, " dim"], key: Array) -> tuple[Array, Array]:
        def step(state: ChainState, key: Array) -> tuple[ChainState, Array]:
            state, _ = kernel.step(key, state, target, library)
            return state, state.position

        end, rows = jax.lax.scan(step, make_state(start, target, library)[0], jax.random.split(key, length))
        return rows, end.logdensity

    return jax.vmap(chain)(starts, jax.random.split(key, len(starts)))


def _scikit_learn() -> tuple[Any, Any]:
    """scikit-learn's mixture and its dependency's limit on threads, imported late: they are an extra."""
    try:
        mixture = importlib.import_module("sklearn.mixture").BayesianGaussianMixture
        return mixture, importlib.import_module("threadpoolctl").threadpool_limits
    except ImportError as error:
        raise ImportError(
            "the Dirichlet process mixture is scikit-learn's, which is not installed: pip install scikit-learn"
        ) from error
