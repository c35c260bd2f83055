"""The search that goes on while chains run: the residual energy from the start region, and descents from draws."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from whmc.modes.library import ModeLibrary
from whmc.modes.mixture import log_ratio_of
from whmc.search.finders import Known, Residual, descend
from whmc.search.mode_search import FEWEST_STARTS, FLOOR, MAX_STARTS, Hunt, Search
from whmc.search.residual import TEMPERATURE
from whmc.target.target import Target

STARTS = 256
"""Starts of one look. Most lie on known ground, which costs one evaluation."""

FOLLOWED = 64
"""Draws that are descended from at one look: a chart that has grown over two modes hides the second from the residual
energy, but not from its own draws."""


class Lookout:
    """Looks for modes that a library lacks, and adds them."""

    def __init__(self, target: Target, library: ModeLibrary, search: Search | None, seed: int, max_modes: int) -> None:
        self.target, self.search, self.max_modes = target, search, max_modes
        self.key = jax.random.fold_in(jax.random.key(seed), 2)  # 0 is the chains', 1 the first search's
        self.hunt = Hunt(target, max_modes)
        self.looks = 0
        if search is not None:
            self.hunt.recall(search)
        else:
            self.hunt.know(library, np.zeros(library.size))

    @staticmethod
    def wanted(search: Search | None) -> bool:
        """Whether a search was too short to have come to an end by itself."""
        return search is not None and search.num_starts < FEWEST_STARTS and not search.num_capped

    def look(
        self, library: ModeLibrary, position: Float[np.ndarray, "n dim"], logdensity: Float[np.ndarray, " n"]
    ) -> ModeLibrary:
        """The library with the modes that one more look finds, given some draws."""
        hunt, size = self.hunt, len(self.hunt.peaks)
        if library.size >= self.max_modes or hunt.num_starts >= MAX_STARTS:
            return library
        self.looks += 1
        key_starts, key_draws = jax.random.split(jax.random.fold_in(self.key, self.looks))
        # pi on q's scale: where q fits, w is the evidence
        log_evidence = float(np.median(log_ratio_of(library, position, logdensity)))
        hunt.take(Residual().find(key_starts, self.target, STARTS, Known(library, log_evidence)))
        followed = np.asarray(jax.random.choice(key_draws, len(position), (FOLLOWED,)))
        ends = descend(self.target, jnp.asarray(position[followed]), None, TEMPERATURE)
        hunt.take(dataclasses.replace(ends, independent=False))
        for n in reversed(range(size, len(hunt.peaks))):
            if hunt.peaks[n].log_mass - log_evidence < np.log(FLOOR):
                hunt.forget(n)  # peaks and modes keep the same numbers
        step_size = float(np.median(library.charts()[3]))
        for peak in hunt.peaks[size:]:
            log_share = peak.log_mass - log_evidence
            library = library.add(peak.location, peak.scale, log_weight=log_share, step_size=step_size)
        return library

    def look_on(
        self,
        library: ModeLibrary,
        position: Float[np.ndarray, "n dim"],
        logdensity: Float[np.ndarray, " n"],
        share: float,
    ) -> ModeLibrary:
        """Looks until this share of `MAX_STARTS` is used: basins that one start in five hundred finds need as many."""
        while self.hunt.num_starts < share * MAX_STARTS and library.size < self.max_modes:
            library = self.look(library, position, logdensity)
        return library

    def state(self) -> dict[str, Any]:
        """Where the search is, to be stored."""
        return {"looks": self.looks, "hunt": self.hunt.state()}

    def restore(self, state: dict[str, Any]) -> None:
        self.looks = state["looks"]
        self.hunt.restore(state["hunt"])

    def report(self, library: ModeLibrary) -> Search:
        """The account of all searches, for the library as it is now."""
        hunt, old = self.hunt, self.search
        if old is not None and self.looks == 0:
            return dataclasses.replace(old, library=library)
        capped = 0 if old is None else old.num_capped
        return Search(
            library=library,
            starts=library.charts()[0],
            hits=np.array(hunt.hits[: library.num_modes]),
            spurious=np.zeros((0, self.target.dim)) if old is None else old.spurious,
            spurious_share=np.zeros(0) if old is None else old.spurious_share,
            num_found=library.num_modes + capped,
            num_capped=capped,
            **hunt.account(),
        )
