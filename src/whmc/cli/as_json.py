"""A result for other programs."""

import dataclasses
from typing import Any

import numpy as np

from whmc.result import Result


def as_json(result: Result) -> dict[str, Any]:
    """A result in plain numbers, for other programs. What is not finite, or not known, is null."""
    table, parameters = result.modes, result.parameters
    found = {
        "modes": [
            {
                "weight": table.weight[k],
                "weight_se": table.weight_se[k],
                "log_evidence": table.log_evidence[k],
                "log_evidence_se": table.log_evidence_se[k],
                "location": table.location[k].tolist(),
                "peaks": table.peaks[k] if table.peaks[k] >= 0 else None,
                "pass": table.pass_[k],
            }
            for k in range(len(table))
        ],
        "notes": list(table.notes),
        "log_evidence": result.log_evidence,
        "log_evidence_se": result.log_evidence_se,
        "parameters": {
            name: {column: getattr(parameters, column)[n] for column in ("mean", "sd", "ess", "rhat")}
            for n, name in enumerate(parameters.name)
        },
        "alarms": [
            {"name": alarm.name, "figure": alarm.figure, "message": alarm.message, "remedy": alarm.remedy}
            for alarm in result.alarms
        ],
        "chains": result.draws.shape[0],
        "draws": result.draws.shape[1],
        "num_gradients": result.num_gradients,
        "gradients": dataclasses.asdict(result.gradients) | {"total": result.gradients.total},
        "num_regenerations": result.num_regenerations,
        "seconds": result.timings.total,
    }
    return without_nan(found)


def without_nan(value: Any) -> Any:
    """Numbers that are not finite as null, which JSON has."""
    if isinstance(value, dict):
        return {name: without_nan(item) for name, item in value.items()}
    if isinstance(value, list):
        return [without_nan(item) for item in value]
    if isinstance(value, (float, np.floating)):
        return float(value) if np.isfinite(value) else None
    return value.item() if isinstance(value, np.generic) else value
