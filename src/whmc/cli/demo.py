"""The demonstration: eight sensors to be located, with everything unknown but the box that they are in."""

import time
from importlib.util import find_spec
from pathlib import Path

import numpy as np

from whmc.cli.output import say
from whmc.result import Result
from whmc.run.sample import sample
from whmc.testing.sensor import sensor_data, sensor_network

DRAWS = 30_000
"""Of each chain. With 6000, chains enter the long tip of a mode some two times, and two seeds of three are alarmed."""

INTRODUCTION = """Eight sensors and three anchors; some distances between them, with noise. Where are the sensors?
The modes, their number, shapes and weights are unknown: whmc is given the log density and a box.
It takes about a minute on two cores.
"""


def run_demo(folder: Path, *, seed: int = 0, progress: bool | None = None) -> bool:
    """Searches, samples, prints the tables, draws the picture, writes the report; true if all agrees with the
    reference."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise FileNotFoundError(f"--out {folder}: {error.strerror}") from error
    say(INTRODUCTION)
    began = time.perf_counter()
    result = sample(sensor_network(), seed=seed, draws=DRAWS, progress=progress)
    seconds = time.perf_counter() - began
    data = sensor_data()
    say(_report(result, data, seconds))
    say(f"\nresult:  {result.save(folder / 'result.nc')}")
    if find_spec("matplotlib") is None:
        say("no picture and no report: matplotlib is not installed, pip install matplotlib")
    else:
        from whmc.plots import save_sensors
        from whmc.report import write_report

        save_sensors(folder / "sensors.png", result, data)
        say(f"picture: {folder / 'sensors.png'}")
        say(f"report:  {write_report(result, folder / 'report.html', name='Sensor network')}")
    minor, _ = minor_mode(result)
    gap = result.log_evidence - data["reference"]["log_evidence_flat_prior"]
    return error_of_mean(result, data) < 0.01 and abs(minor - 0.107) < 0.02 and abs(gap) < 0.1


def error_of_mean(result: Result, data: dict) -> float:
    """REM: |mean - reference|_1 / |reference|_1."""
    reference = np.array(data["reference"]["recommended_mean"])
    return float(np.abs(result.draws.mean(axis=(0, 1)) - reference).sum() / np.abs(reference).sum())


def minor_mode(result: Result) -> tuple[float, float]:
    """Share of draws with sensor 0 on its true side, and the standard error."""
    from whmc.estimate.weights import standard_error

    x, y = result.draws[..., 0], result.draws[..., 1]
    true_side = ((x - 0.5) * 0.4 + (y - 0.3) * 0.2 > 0).astype(float)
    return float(true_side.mean()), float(standard_error(true_side[..., None])[0])


def _report(result: Result, data: dict, seconds: float) -> str:
    minor, error = minor_mode(result)
    reference = data["reference"]["log_evidence_flat_prior"]
    return "\n".join(
        [
            result.summary(),
            "",
            f"relative error of the mean (REM) {error_of_mean(result, data):.4f}; the paper reaches .02 after 500 s",
            f"sensor 0 is on its true side with probability {minor:.4f} ± {error:.4f}; reference .107 ± .01",
            f"log evidence {result.log_evidence:.3f} ± {result.log_evidence_se:.3f}; reference {reference:.3f} ± 0.005",
            f"{seconds:.0f} s from the start of the search to the last draw",
        ]
    )
