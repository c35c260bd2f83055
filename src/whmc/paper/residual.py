"""The residual energies of section 4.2, as printed. Searches use `whmc.search.residual`, which says what it changes."""

import jax.numpy as jnp

from whmc._shapes import Array, Float
from whmc.modes.library import ModeLibrary
from whmc.modes.mixture import log_components, log_mixture
from whmc.target.target import Target


def residual_energy(
    position: Float[Array, " dim"],
    target: Target,
    library: ModeLibrary,
    *,
    temperature: float = 1.0,
    offset: float = 1e-3,
) -> Float[Array, ""]:
    """U_r = -log(pi - exp((1/T) log q) + c) [tempresU], with T = 1 the untempered form; NaN where the sum is negative.

    Erratum 6: the first equality printed for the untempered form lacks the minus sign; and pi and q are
    compared as they stand, so the target has to be normalised, and (q)^{1/T} depends on the units of theta.
    """
    log_known = log_mixture(log_components(library, position)) / temperature
    return -jnp.log(jnp.exp(target(position)) - jnp.exp(log_known) + offset)
