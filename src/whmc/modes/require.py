"""What charts take for granted, checked where one is made from outside; each error names the value and the remedy."""

import numpy as np

from whmc.modes.layers.banded import Banded
from whmc.modes.layers.bend import Bend
from whmc.modes.layers.layer import Layer
from whmc.modes.layers.tails import AbstractTail, Tail

MAX_DOF = 30
"""Degrees of freedom of a Student-t base are whole numbers up to this: its radius is then drawn from a few uniform
numbers, without the rejection loops of a gamma sampler, which took a third of the time to compile."""

ALMOST = 1e-5
"""What rounding to float32 may do to the unit length and the right angles of a bend."""

MAX_HEAVINESS = 10.0
"""h of tails at most: beyond, volumes overflow."""

MAX_STRETCH = 10.0
"""Stretches of bends at most: beyond, volumes overflow."""


def require_dof(dof: float) -> None:
    """What the table of norms and the radius of a Student-t base take for granted."""
    if not (np.isposinf(dof) or (float(dof).is_integer() and 1 <= dof <= MAX_DOF)):
        raise ValueError(f"dof must be a whole number from 1 to {MAX_DOF}, or inf for a Gaussian base, got {dof}")


def require_scale(location: np.ndarray, scale: np.ndarray) -> None:
    """What whitening and its inverse take for granted. scale: (D, D), or standard deviations (D,)."""
    dim = len(location)
    if scale.shape not in ((dim,), (dim, dim)):
        raise ValueError(f"scale has shape {scale.shape}: give ({dim},) or ({dim}, {dim})")
    if scale.ndim == 2 and np.any(np.triu(scale, 1)):
        raise ValueError("scale must be lower triangular, such as np.linalg.cholesky(covariance)")
    sd = scale if scale.ndim == 1 else np.diagonal(scale)
    if not (np.all(np.isfinite(location)) and np.all(np.isfinite(scale)) and np.all(sd > 0)):
        raise ValueError("locations and scales must be finite, and the diagonals of the scales positive")


def require_numbers(log_weight: float, step_size: float) -> None:
    """What a library knows of a chart besides its map."""
    if not np.isfinite(log_weight):
        raise ValueError(f"log_weight must be a finite number, got {log_weight}")
    if not (np.isfinite(step_size) and step_size > 0):
        raise ValueError(f"step_size must be positive, got {step_size}")


def require_layer(layer: Layer, dim: int) -> None:
    """What makes a bend, tails or a band a map with an inverse."""
    if isinstance(layer, Bend):
        _require_bend(layer, dim)
    if isinstance(layer, AbstractTail):
        heaviness = np.asarray(layer.heaviness)
        if not np.all((heaviness >= 0) & (heaviness <= MAX_HEAVINESS)):
            raise ValueError(f"heaviness must be from 0 to {MAX_HEAVINESS}, got {heaviness!r}")
    if isinstance(layer, Tail) and layer.heaviness.shape != (dim,):
        raise ValueError(f"heaviness has shape {layer.heaviness.shape}: give ({dim},)")
    if isinstance(layer, Banded) and (layer.coupling.shape[1:] != (dim,) or not 1 <= len(layer.coupling) < dim):
        shape = layer.coupling.shape
        raise ValueError(f"couplings have shape {shape}: give (width, {dim}), width from 1 to {dim - 1}")


def _require_bend(bend: Bend, dim: int) -> None:
    """An axis of length one, or none, and a curve at right angles to it."""
    if (np.shape(bend.axis), np.shape(bend.curve), np.shape(bend.stretch)) != ((dim,), (dim,), ()):
        raise ValueError(f"a bend in {dim} dimensions has an axis and a curve of this length, and one stretch")
    if not all(np.all(np.isfinite(part)) for part in (bend.axis, bend.curve, bend.stretch)):
        raise ValueError("axes, curves and stretches of bends must be finite")
    length, aslant = float(np.linalg.norm(bend.axis)), float(np.sum(bend.axis * bend.curve))
    slack = ALMOST * (1 + np.linalg.norm(bend.curve))
    if (length > 0 and abs(length - 1) > ALMOST) or abs(aslant) > slack:
        raise ValueError("the axis of a bend must have length one (zero: no bend) and be at right angles to its curve")
    if abs(float(bend.stretch)) > MAX_STRETCH:
        raise ValueError(f"stretches of bends must be at most {MAX_STRETCH}, got {bend.stretch!r}")
