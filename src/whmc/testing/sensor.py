"""The sensor network of section 5.2: eight sensors, three anchors, distances observed with noise and only some of them.

Data: Ahn, Chen and Welling (2013), as in Lan, Streets and Shahbaba (2014); `sensor_ahn2013.json` names its source.
"""

import json
from importlib.resources import files
from typing import Any

import jax.numpy as jnp
import numpy as np

from whmc._shapes import Array, Float
from whmc.target.target import Target


def sensor_data() -> dict[str, Any]:
    """The data file: observed distances, anchors, true places, reference means and weights."""
    return json.loads(files("whmc.testing").joinpath("sensor_ahn2013.json").read_text())


def sensor_network() -> Target:
    """Posterior of the sixteen coordinates under a flat prior, each pair with an unknown sensor counted once.

    A pair at distance d is observed with probability exp(-d²/2R²), then as y ~ N(d, sigma²).
    """
    data = sensor_data()
    anchors = np.array(list(data["known"].values()))
    place = {name: 8 + n for n, name in enumerate(data["known"])} | {n: n for n in range(8)}
    distance = np.zeros((11, 11))
    for a, b, y in data["observed"]:
        distance[place[a], place[b]] = distance[place[b], place[a]] = y
    first, second = np.triu_indices(11, 1)
    counts = first < 8  # not between two anchors
    first, second = first[counts], second[counts]
    seen = distance[first, second] > 0
    order = np.argsort(~seen, kind="stable")
    first, second, num_seen = first[order], second[order], int(seen.sum())
    observed = distance[first, second][:num_seen]
    reach, sigma = float(data["R"]), float(data["sigma"])
    log_scale = -np.log(sigma) - 0.5 * np.log(2 * np.pi)

    def logdensity(x: Float[Array, " 16"]) -> Float[Array, ""]:
        places = jnp.concatenate([x.reshape(8, 2), jnp.asarray(anchors, x.dtype)])
        square = jnp.sum((places[first] - places[second]) ** 2, axis=1)
        exponent = square / (2 * reach**2)
        near, far = exponent[:num_seen], exponent[num_seen:]
        # the tiny number keeps the gradient finite where two sensors meet
        error = (observed - jnp.sqrt(square[:num_seen] + 1e-200)) / sigma
        return jnp.sum(-near - 0.5 * error**2 + log_scale) + jnp.sum(jnp.log(-jnp.expm1(-far)))

    names = [f"{axis}{n}" for n in range(8) for axis in "xy"]
    return Target(logdensity, dim=16, starts=([-0.3] * 16, [1.2] * 16), names=names)
