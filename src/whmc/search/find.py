"""`find_modes`: finders, polish, and local chains for what has no peak."""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from whmc.modes.library import ModeLibrary
from whmc.search.connect import connect
from whmc.search.finders import AbstractFinder, MultiStart
from whmc.search.mode_search import Hunt, Search
from whmc.search.representatives import fold_target
from whmc.search.tempered import Tempered
from whmc.target.check import require_count, require_scalar_output
from whmc.target.target import Target, require_target

MAX_MODES = 256
"""Charts in a library, unless told: a step looks at every chart, so many cost time."""

DEFAULT_FINDERS = (MultiStart(), Tempered())
"""By basin, then by mass: each finds modes that the other cannot."""


def find_modes(
    target: Target,
    *,
    seed: int = 0,
    finder: AbstractFinder | Sequence[AbstractFinder] | None = None,
    max_modes: int = MAX_MODES,
) -> ModeLibrary:
    """The modes of a target, from its start region: a library to look at, or to give to `sample(modes=...)`.

    `search_modes` also tells what was left out and what may be missing.
    """
    return search_modes(target, seed=seed, finder=finder, max_modes=max_modes).library


def search_modes(
    target: Target,
    *,
    seed: int = 0,
    finder: AbstractFinder | Sequence[AbstractFinder] | None = None,
    known: ModeLibrary | None = None,
    max_modes: int = MAX_MODES,
) -> Search:
    """A search for modes, with its account.

    finder: `MultiStart(num_starts)`, `Residual()`, `Tempered()`, or several, run one after the other; by default
        many starts, then an annealed population.
    known: charts that are known beforehand.
    max_modes: charts at most; the heaviest are kept.
    """
    require_target(target)
    finders = require_finders(finder)
    require_count("seed", seed, 0)
    require_count("max_modes", max_modes, 1)
    if target.starts is None:
        raise ValueError("there is nowhere to start a search: give Target(..., starts=(low, high)), or modes=")
    with jax.enable_x64(True), target.user_errors():
        require_scalar_output(target)
        target, spent = fold_target(target, seed)
        key = jax.random.fold_in(jax.random.key(seed), 1)  # 0 is the chains'
        hunt = Hunt(target, max_modes)
        hunt.num_gradients += spent
        if known is not None:
            heights = jax.vmap(target)(jnp.asarray(known.charts()[0]))
            hunt.know(known, np.asarray(heights))
        for n, one in enumerate(finders):
            hunt.run(one, jax.random.fold_in(key, n))
        if len(hunt.loose):
            hunt.adopt(*connect(target, hunt.loose, hunt.peaks, jax.random.fold_in(key, len(finders))))
        return hunt.finish()


def require_finders(finder: AbstractFinder | Sequence[AbstractFinder] | None) -> tuple[AbstractFinder, ...]:
    """The finders to run, one after the other."""
    if finder is None:
        return DEFAULT_FINDERS
    finders: tuple[Any, ...] = tuple(finder) if isinstance(finder, (list, tuple)) else (finder,)
    for one in finders:
        if not isinstance(one, AbstractFinder):
            raise TypeError(f"finder must be a whmc finder such as MultiStart(64), got {type(one).__name__}")
    if not finders:
        raise ValueError("finder is empty: give one such as MultiStart(64), or leave it out")
    return finders
