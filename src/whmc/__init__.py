"""whmc: exact sampling of multimodal distributions by wormhole Hamiltonian Monte Carlo."""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from whmc import paper as paper
    from whmc import plots as plots
    from whmc import report as report
    from whmc import testing as testing
    from whmc.frontends import blackjax as blackjax
    from whmc.frontends import numpyro as numpyro
    from whmc.frontends.blackbox import from_numpy
    from whmc.frontends.numpyro import from_numpyro
    from whmc.frontends.pymc import from_pymc
    from whmc.frontends.stan import from_stan
    from whmc.kernels.base import ChainState, StepInfo, init
    from whmc.kernels.cycle import Cycle
    from whmc.kernels.independence import Independence
    from whmc.kernels.local import LocalHMC
    from whmc.kernels.trajectory import WormholeTrajectory
    from whmc.kernels.walk import LocalWalk
    from whmc.kernels.wormhole import GibbsWormhole, Wormhole
    from whmc.modes.library import ModeLibrary
    from whmc.result import Result
    from whmc.run.load import load
    from whmc.run.sample import resume, sample
    from whmc.search.find import find_modes, search_modes
    from whmc.search.finders import MultiStart, Residual
    from whmc.search.report import SearchReport
    from whmc.search.tempered import Tempered
    from whmc.storage.serialize import Damaged
    from whmc.storage.store import StoreError
    from whmc.target.symmetry import Exchange, Flip
    from whmc.target.target import Target

__version__ = "0.1.0"

__all__ = [
    "ChainState",
    "Cycle",
    "Damaged",
    "Exchange",
    "Flip",
    "GibbsWormhole",
    "Independence",
    "LocalHMC",
    "LocalWalk",
    "ModeLibrary",
    "MultiStart",
    "Residual",
    "Result",
    "SearchReport",
    "StepInfo",
    "StoreError",
    "Target",
    "Tempered",
    "Wormhole",
    "WormholeTrajectory",
    "find_modes",
    "from_numpy",
    "from_numpyro",
    "from_pymc",
    "from_stan",
    "init",
    "load",
    "resume",
    "sample",
    "search_modes",
]

_HOME = {
    "ChainState": "whmc.kernels.base",
    "Cycle": "whmc.kernels.cycle",
    "Damaged": "whmc.storage.serialize",
    "Exchange": "whmc.target.symmetry",
    "Flip": "whmc.target.symmetry",
    "GibbsWormhole": "whmc.kernels.wormhole",
    "Independence": "whmc.kernels.independence",
    "LocalHMC": "whmc.kernels.local",
    "LocalWalk": "whmc.kernels.walk",
    "ModeLibrary": "whmc.modes.library",
    "MultiStart": "whmc.search.finders",
    "Residual": "whmc.search.finders",
    "Result": "whmc.result",
    "SearchReport": "whmc.search.report",
    "StepInfo": "whmc.kernels.base",
    "StoreError": "whmc.storage.store",
    "Target": "whmc.target.target",
    "Tempered": "whmc.search.tempered",
    "Wormhole": "whmc.kernels.wormhole",
    "WormholeTrajectory": "whmc.kernels.trajectory",
    "find_modes": "whmc.search.find",
    "from_numpy": "whmc.frontends.blackbox",
    "from_numpyro": "whmc.frontends.numpyro",
    "from_pymc": "whmc.frontends.pymc",
    "from_stan": "whmc.frontends.stan",
    "init": "whmc.kernels.base",
    "load": "whmc.run.load",
    "resume": "whmc.run.sample",
    "sample": "whmc.run.sample",
    "search_modes": "whmc.search.find",
}


_MODULES = {
    "blackjax": "whmc.frontends.blackjax",
    "numpyro": "whmc.frontends.numpyro",
    "paper": "whmc.paper",
    "plots": "whmc.plots",
    "report": "whmc.report",
    "testing": "whmc.testing",
}
"""Public modules. They are not in `__all__`: `from whmc import *` must not hide the packages numpyro and blackjax."""


def __getattr__(name: str) -> Any:
    """Public names are imported when they are first used: the package itself takes no time to import."""
    if name in _MODULES:
        value: Any = importlib.import_module(_MODULES[name])
    elif name in _HOME:
        value = getattr(importlib.import_module(_HOME[name]), name)
    else:
        raise AttributeError(f"module 'whmc' has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*__all__, *_MODULES])
