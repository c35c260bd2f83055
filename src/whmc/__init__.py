"""whmc: exact sampling of multimodal distributions by wormhole Hamiltonian Monte Carlo."""

from whmc.frontends import blackjax
from whmc.kernels.base import ChainState, StepInfo, init
from whmc.kernels.compose import Cycle
from whmc.kernels.independence import Independence
from whmc.kernels.local import LocalHMC
from whmc.kernels.trajectory import WormholeTrajectory
from whmc.kernels.wormhole import GibbsWormhole, Wormhole
from whmc.modes.finders import MultiStart, Residual
from whmc.modes.library import ModeLibrary
from whmc.modes.search import Search
from whmc.modes.tempered import Tempered
from whmc.result import Result
from whmc.run.find import find_modes, search_modes
from whmc.run.sampler import sample
from whmc.target import Target

__version__ = "0.1.0"

__all__ = [
    "ChainState",
    "Cycle",
    "GibbsWormhole",
    "Independence",
    "LocalHMC",
    "ModeLibrary",
    "MultiStart",
    "Residual",
    "Result",
    "Search",
    "StepInfo",
    "Target",
    "Tempered",
    "Wormhole",
    "WormholeTrajectory",
    "blackjax",
    "find_modes",
    "init",
    "sample",
    "search_modes",
]
