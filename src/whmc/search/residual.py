"""The residual energy of section 4.2: the target with what the library knows already taken away.

The paper's tempered form is U_r(theta, T) = -log( pi(theta) - exp((1/T) log q(theta)) + c ). Here

- everything is in logs, and pi is put on q's scale by the evidence: log pi - log Z. Without that, one of the two terms
  is nothing beside the other in high dimension, and the surface is flat or unchanged.
- each chart is tempered about its own peak, q_T = sum_k omega_k b(0)/|L_k| · (b(z_k)/b(0))^{1/T}. Tempering the
  normalised q instead makes it higher or lower than pi at the peaks by a power of the units in which theta is measured.
- c may be zero: where q_T covers pi the energy is +inf, and a search that starts there is over at once.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from whmc.modes.library import ModeLibrary
from whmc.modes.mixture import log_base, log_components
from whmc.target.target import Target

TEMPERATURE = 1.05
"""T of the paper's section 5.3; a little above one covers the tails of a known mode too."""


def log_tempered(
    library: ModeLibrary, position: Float[Array, " dim"], temperature: Float[Array, ""] | float
) -> Float[Array, ""]:
    """log q_T."""
    log_peak = library.log_weight - library.log_det + log_base(jnp.zeros(()), library.dim, library.dof)
    rise = log_components(library, position) - log_peak  # log b(z)/b(0); NaN where a place is unused
    used = library.log_weight > -jnp.inf
    return jax.nn.logsumexp(jnp.where(used, log_peak + jnp.where(used, rise, 0.0) / temperature, -jnp.inf))


def residual_energy(
    position: Float[Array, " dim"],
    target: Target,
    library: ModeLibrary,
    *,
    log_evidence: Float[Array, ""] | float,
    temperature: Float[Array, ""] | float = TEMPERATURE,
    log_offset: Float[Array, ""] | float = -jnp.inf,
) -> Float[Array, ""]:
    """U_r = -log( max(pi/Z - q_T, 0) + c ) with log c = `log_offset`; +inf where that is zero."""
    log_pi = target.evaluate(position).logdensity - log_evidence
    log_known = log_tempered(library, position, temperature)
    covered = ~(log_pi > log_known)
    # the inner `where` keeps the gradient of the branch not taken finite
    gap = jnp.where(covered, -1.0, log_known - log_pi)
    log_rest = jnp.where(covered, -jnp.inf, log_pi + jnp.log(-jnp.expm1(gap)))
    return -jnp.logaddexp(log_rest, jnp.asarray(log_offset, log_pi.dtype))
