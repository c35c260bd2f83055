"""A Boltzmann machine made continuous: thousands of modes, all known."""

import itertools
from importlib.resources import files

import jax
import jax.numpy as jnp
import numpy as np

from whmc._shapes import Array, Float
from whmc.target.target import Target
from whmc.testing.targets import Shape


def boltzmann_data() -> dict[str, np.ndarray]:
    """The data file `boltzmann_24.npz`: Q, b, log evidence and mean.

    Source: a random machine of 24 units made for this project, as in Graham and Storkey (2017), Continuously tempered
    Hamiltonian Monte Carlo, whose relaxation is that of Zhang, Sutton, Storkey and Ghahramani (2012). Q Qᵀ is the
    machine's matrix of couplings with a constant added to its diagonal, so that its rank is 23.
    """
    with files("whmc.testing").joinpath("boltzmann_24.npz").open("rb") as file:
        return dict(np.load(file, allow_pickle=False))


def boltzmann_relaxation() -> Shape:
    """-x·x/2 + Σ log cosh(Q x + b): a Boltzmann machine of 24 units made continuous, D = 23.

    Its states s = ±1 are the components of a mixture: x given s is N(Qᵀs, 1), and s has weight exp(s·b + |Qᵀs|²/2).
    All 2²⁴ of them are summed. Given x the units are independent, s_i = ±1 with log odds 2 (Q x + b)_i. weight: of
    the four heaviest states.
    """
    data = boltzmann_data()
    couple, bias = data["Q"], data["b"]
    units, dim = couple.shape
    half = units // 2
    spins = np.array(list(itertools.product((-1.0, 1.0), repeat=half)))
    fields = [spins @ couple[:half], spins @ couple[half:]]  # Qᵀs is a sum of one of each
    alone = [spins @ bias[:half], spins @ bias[half:]]
    first, second = (one + 0.5 * np.sum(field**2, axis=1) for one, field in zip(alone, fields, strict=True))
    log_mass = first[:, None] + second + fields[0] @ fields[1].T
    top = log_mass.max()
    mass = np.exp(log_mass - top)
    total = mass.sum()
    mean = np.r_[mass.sum(axis=1) @ spins, mass.sum(axis=0) @ spins] / total
    near = np.argpartition(mass, -4, axis=None)[-4:]
    heaviest = near[np.argsort(-mass.ravel()[near])]
    states = np.concatenate([spins[heaviest // len(spins)], spins[heaviest % len(spins)]], axis=1)

    def field_at(x: Float[Array, " dim"]) -> Float[Array, " units"]:
        return jnp.asarray(couple) @ x + jnp.asarray(bias)

    def logdensity(x: Float[Array, " dim"]) -> Float[Array, ""]:
        field = field_at(x)
        return -0.5 * jnp.sum(x * x) + jnp.sum(jnp.logaddexp(field, -field) - np.log(2.0))

    def draw(rng: np.random.Generator, n: int) -> np.ndarray:
        rows = rng.choice(len(spins), n, p=mass.sum(axis=1) / total)
        columns = np.array([np.searchsorted(np.cumsum(mass[row]), rng.uniform(0, mass[row].sum())) for row in rows])
        return fields[0][rows] + fields[1][columns] + rng.standard_normal((n, dim))

    def statistics(x: Float[Array, " dim"]) -> dict[str, Array]:
        field = field_at(x)
        weight = jnp.exp(jnp.sum(jax.nn.log_sigmoid(2 * jnp.asarray(states) * field), axis=1))
        return {"weight": weight, "s": jnp.tanh(field), "x": x}

    return Shape(
        "Boltzmann relaxation",
        Target(logdensity, dim=dim, starts=(-20.0, 20.0)),
        draw,
        float(np.log(total) + top + 0.5 * dim * np.log(2 * np.pi) - units * np.log(2.0)),
        statistics,
        {"weight": mass.ravel()[heaviest] / total, "s": mean, "x": mean @ couple},
        None,
    )
