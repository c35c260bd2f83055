"""Pictures of a result, each drawn on given axes. Needs matplotlib: `pip install matplotlib`."""

from whmc.plots.chains import energies, label_traces, running_weights
from whmc.plots.effort import discovery, step_sizes
from whmc.plots.modes import evidences, jumps, network, weights_of_modes
from whmc.plots.pairs import DistinguishingParameters, pairs
from whmc.plots.sensors import save_sensors

__all__ = [
    "DistinguishingParameters",
    "discovery",
    "energies",
    "evidences",
    "jumps",
    "label_traces",
    "network",
    "pairs",
    "running_weights",
    "save_sensors",
    "step_sizes",
    "weights_of_modes",
]
