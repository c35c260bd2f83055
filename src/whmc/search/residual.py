"""The residual energy of section 4.2: the target with what the library knows already taken away.

The paper's tempered form is U_r(theta, T) = -log( pi(theta) - exp((1/T) log q(theta)) + c ). Here

- everything is in logs, and pi is put on q's scale by the evidence: log pi - log Z. Without that, one of the two terms
  is nothing beside the other in high dimension, and the surface is flat or unchanged.
- each chart is tempered about its own peak, q_T = sum_k omega_k b(0)/|L_k| · (b(z_k)/b(0))^{1/T}. Tempering the
  normalised q instead makes it higher or lower than pi at the peaks by a power of the units in which theta is measured.
- c is zero: where q_T covers pi the energy is +inf, and a search that starts there is over at once.
"""

import numpy as np

from whmc._shapes import Float
from whmc.modes.library import ModeLibrary
from whmc.modes.mixture import log_base_of
from whmc.target.target import Evaluation

TEMPERATURE = 1.05
"""T of the paper's section 5.3; a little above one covers the tails of a known mode too."""


def log_tempered(
    library: ModeLibrary, position: Float[np.ndarray, "n dim"], temperature: float
) -> tuple[Float[np.ndarray, " n"], Float[np.ndarray, "n dim"]]:
    """log q_T and its gradient.

    That of one chart is -L^{-T} z / T times 1 for a Gaussian base, (dof + D) / (dof + |z|²) for a Student-t. A bent
    or banded chart has its straightened coordinate in the place of z, and its volume, which is not tempered.
    """
    dof, dim, size = float(library.dof), library.dim, library.size
    top = float(log_base_of(np.zeros(()), dim, dof))
    heights, pulls = np.empty((size, len(position))), np.empty((size, *position.shape))
    for k, one in enumerate(library.charts()):
        x, log_volume = one.chart.inverse(position)
        square = np.sum(x**2, axis=1)
        heights[k] = one.log_weight + top - log_volume + (log_base_of(square, dim, dof) - top) / temperature
        heaviness = 1.0 if np.isinf(dof) else ((dof + dim) / (dof + square))[:, None]
        pulls[k] = -one.chart.pushed(position, np.asarray(x * heaviness / temperature))
    total = np.logaddexp.reduce(heights, axis=0)
    with np.errstate(invalid="ignore"):
        shares = np.where(np.isfinite(total), np.exp(heights - total), 0.0)
    return total, np.einsum("kn,knd->nd", shares, pulls)


def residual_energy(
    found: Evaluation,
    position: Float[np.ndarray, "n dim"],
    library: ModeLibrary,
    log_evidence: float,
    temperature: float = TEMPERATURE,
) -> tuple[Float[np.ndarray, " n"], Float[np.ndarray, "n dim"]]:
    """U_r = -log max(pi/Z - q_T, 0) and its slope; +inf and zero where that is zero.

    found: the target at the positions.
    """
    log_pi = found.logdensity - log_evidence
    log_known, pull = log_tempered(library, position, temperature)
    covered = ~(log_pi > log_known)
    # pi/Z - q_T = pi/Z (1 - e^gap), so the slope is that of -log pi, and e^gap / (1 - e^gap) times that of the gap
    gap = np.where(covered, -1.0, log_known - log_pi)
    value = np.where(covered, np.inf, -(log_pi + np.log(-np.expm1(gap))))
    share = (np.exp(gap) / -np.expm1(gap))[:, None]
    slope = np.where(covered[:, None], 0.0, -found.score + share * (pull - found.score))
    return value, slope
