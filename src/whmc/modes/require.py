"""What a library of charts takes for granted, checked before it is made; each error names the value and the remedy."""

import numpy as np

from whmc.modes.band import BandShapes
from whmc.modes.bend import BendShapes
from whmc.modes.tail import TailShapes
from whmc.target.target import Numbers

MAX_DOF = 30
"""Degrees of freedom of a Student-t base are whole numbers up to this: its radius is then drawn from a few uniform
numbers, without the rejection loops of a gamma sampler, which took a third of the time to compile."""

ALMOST = 1e-5
"""What rounding to float32 may do to the unit length and the right angles of a bend."""

MAX_HEAVINESS = 10.0
"""h of tails at most: beyond, volumes overflow."""

MAX_STRETCH = 10.0
"""Stretches of bends at most: beyond, volumes overflow."""


def require_charts(
    locations: np.ndarray, scales: np.ndarray, log_weight: Numbers, step_size: Numbers, dof: float
) -> None:
    """What whitening and its inverse take for granted; a chart may be wrong, but it must be a chart."""
    size = len(locations)
    if scales.ndim == 3 and np.any(np.triu(scales, 1)):
        raise ValueError("scale must be lower triangular, such as np.linalg.cholesky(covariance)")
    sd = scales if scales.ndim == 2 else np.diagonal(scales, axis1=1, axis2=2)
    if not (np.all(np.isfinite(locations)) and np.all(np.isfinite(scales)) and np.all(sd > 0)):
        raise ValueError("locations and scales must be finite, and the diagonals of the scales positive")
    for name, values in (("log_weight", log_weight), ("step_size", step_size)):
        if values is not None and (np.shape(values) != (size,) or not np.all(np.isfinite(np.asarray(values, float)))):
            raise ValueError(f"{name} must be {size} finite numbers, one for each chart, got {values!r}")
    if step_size is not None and np.any(np.asarray(step_size, float) <= 0):
        raise ValueError(f"step_size must be positive, got {step_size!r}")
    if not (np.isposinf(dof) or (float(dof).is_integer() and 1 <= dof <= MAX_DOF)):
        raise ValueError(f"dof must be a whole number from 1 to {MAX_DOF}, or inf for a Gaussian base, got {dof}")


def require_bends(bends: BendShapes, size: int, dim: int, diagonal: bool) -> None:
    """What makes a bend a map with an inverse."""
    if diagonal:
        raise ValueError("charts with diagonal scales are not bent: give scales (K, D, D)")
    if [rows.shape for rows in bends] != [(size, dim), (size, dim), (size,)]:
        raise ValueError(f"bends must be those of {size} charts in {dim} dimensions")
    if not all(np.all(np.isfinite(rows)) for rows in bends):
        raise ValueError("axes, curves and stretches of bends must be finite")
    length, aslant = np.linalg.norm(bends.axis, axis=1), np.einsum("kd,kd->k", bends.axis, bends.curve)
    slack = ALMOST * (1 + np.linalg.norm(bends.curve, axis=1))
    if np.any(np.abs(length - 1)[length > 0] > ALMOST) or np.any(np.abs(aslant) > slack):
        raise ValueError("the axis of a bend must have length one (zero: no bend) and be at right angles to its curve")
    if np.any(np.abs(bends.stretch) > MAX_STRETCH):
        raise ValueError(f"stretches of bends must be at most {MAX_STRETCH}, got {bends.stretch!r}")


def require_bands(bands: BandShapes, size: int, dim: int, diagonal: bool) -> None:
    """What makes a band of a chart."""
    if not diagonal:
        raise ValueError("charts with bands have diagonal scales: give scales (K, D)")
    shape = bands.coupling.shape
    if shape[::2] != (size, dim) or not 1 <= shape[1] < dim:
        raise ValueError(f"couplings have shape {shape}: give ({size}, width, {dim}), width from 1 to {dim - 1}")
    if not np.all(np.isfinite(bands.coupling)):
        raise ValueError("couplings of bands must be finite")


def require_tails(tails: TailShapes, size: int, dim: int, diagonal: bool) -> None:
    """What makes tails of charts."""
    if diagonal:
        raise ValueError("charts with diagonal scales have no tails of their own: give scales (K, D, D)")
    if tails.heaviness.shape != (size, dim):
        raise ValueError(f"heaviness has shape {tails.heaviness.shape}: give ({size}, {dim})")
    if not (np.all(tails.heaviness >= 0) and np.all(tails.heaviness <= MAX_HEAVINESS)):
        raise ValueError(f"heaviness must be from 0 to {MAX_HEAVINESS}, got {tails.heaviness!r}")
