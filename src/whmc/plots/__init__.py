"""Pictures of a result, each drawn on given axes. Needs matplotlib: `pip install whmc[plots]`."""

from whmc.plots.chains import energies, label_traces, running_weights
from whmc.plots.effort import discovery, step_sizes
from whmc.plots.modes import evidences, jumps, network, weights_of_modes
from whmc.plots.pairs import Telling, pairs
from whmc.plots.sensors import save_sensors

__all__ = [
    "Telling",
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
