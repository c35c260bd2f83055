"""BlackJAX's adaptive tempered SMC with HMC moves, from a uniform prior on a box."""

import blackjax
import jax
import jax.numpy as jnp
import numpy as np
from blackjax.smc import adaptive_tempered
from blackjax.smc.resampling import systematic


def tempered_smc(logdensity, dim, low, high, *, particles=2000, target_ess=0.7, moves=5, leaps=10, acceptance=0.8):
    """A function of a key that returns draws in the box, and their weights.

    The uniform prior on the box becomes a logistic one on the line, where no trajectory hits a wall. At each
    temperature masses are the particles' variances, and the step follows the acceptance rate of the last one.
    """

    def place(u):
        return low + (high - low) * jax.nn.sigmoid(u)

    kernel = adaptive_tempered.build_kernel(
        lambda u: jnp.sum(jax.nn.log_sigmoid(u) + jax.nn.log_sigmoid(-u)),
        lambda u: logdensity(place(u)),
        blackjax.hmc.build_kernel(),
        blackjax.hmc.init,
        systematic,
        target_ess,
    )

    @jax.jit
    def step(key, state, size):
        spread = state.weights @ (state.particles - state.weights @ state.particles) ** 2
        settings = {
            "step_size": size[None],
            "inverse_mass_matrix": spread[None],
            "num_integration_steps": jnp.array([leaps]),
        }
        state, info = kernel(key, state, moves, settings)
        return state, size * jnp.exp(2 * (jnp.mean(info.update_info.acceptance_rate) - acceptance))

    def run(key):
        key, here = jax.random.split(key)
        state = adaptive_tempered.init(jax.random.logistic(here, (particles, dim)))
        state, size, last = state._replace(tempering_param=jnp.asarray(0.0)), jnp.asarray(0.3), 0.0
        while last < 1:  # once more when the temperature is one: BlackJAX moves first and weighs then
            last, (key, here) = float(state.tempering_param), jax.random.split(key)
            state, size = step(here, state, size)
        return np.asarray(place(state.particles)), np.asarray(state.weights)

    return run
