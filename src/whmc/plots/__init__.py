"""Pictures of a result, each drawn on given axes. Needs matplotlib: `pip install matplotlib`."""

from whmc.plots.chains import energies, label_traces, running_weights
from whmc.plots.effort import discovery, step_sizes
from whmc.plots.missing import hits_by_volume, missing_mass
from whmc.plots.modes import evidences, jumps, network, weights_of_modes
from whmc.plots.pairs import DistinguishingParameters, pairs
from whmc.plots.sensors import save_sensors

__all__ = [
    "DistinguishingParameters",
    "discovery",
    "energies",
    "evidences",
    "hits_by_volume",
    "jumps",
    "label_traces",
    "missing_mass",
    "network",
    "pairs",
    "running_weights",
    "save_sensors",
    "step_sizes",
    "weights_of_modes",
]
