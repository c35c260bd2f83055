"""Mixtures of copies of one density that is not Gaussian: bent, heavy-tailed, a ridge, or in many dimensions."""

from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from scipy.special import digamma, gammaln, logit

from whmc._shapes import Array, Float
from whmc.target.target import Target
from whmc.testing.targets import Shape


def _copies(
    name: str,
    target: Callable[[Callable[[Any], Any]], Target],
    weights: Float[np.ndarray, " size"],
    own: Callable[[Any], Array],
    log_one: Callable[[Any], Any],
    draw: Callable[[np.random.Generator, np.ndarray], np.ndarray],
    log_evidence: float,
    statistics: Callable[[Any, Any], Mapping[str, Array]],
    expected: Mapping[str, Any],
) -> Shape:
    """A mixture of copies of one density.

    own: a position in the coordinates of each copy, (copies, dim), by maps of Jacobian one. log_one: log density of a
    copy in its own coordinates. draw: (rng, copy of each draw) -> draws. statistics: of the position, and of the own
    coordinates of one copy; the second kind is averaged by the responsibilities r_k, for
    E[Σ_k r_k(x) g(own_k(x))] = E g.
    """

    def logs(x: Float[Array, " dim"]) -> Float[Array, " size"]:
        return jnp.asarray(np.log(weights)) + jax.vmap(log_one)(own(x))

    def measured(x: Float[Array, " dim"]) -> dict[str, Array]:
        share = jax.nn.softmax(logs(x))
        inside = jax.vmap(lambda one: statistics(x, one))(own(x))
        return {"weight": share} | {key: share @ value for key, value in inside.items()}

    return Shape(
        name,
        target(lambda x: jax.nn.logsumexp(logs(x))),
        lambda rng, n: draw(rng, rng.choice(len(weights), n, p=weights)),
        log_evidence,
        measured,
        {"weight": weights} | dict(expected),
        len(weights),
    )


def _log_normal(z: Float[Array, " dim"]) -> Float[Array, ""]:
    return -0.5 * jnp.sum(z * z) - 0.5 * z.size * np.log(2 * np.pi)


def twisted_pair(dim: int = 8, rotated: bool = False) -> Shape:
    """Two bananas, back to back: x_0 = 8 z_0, x_1 = z_1 ∓ .05 (x_0² - 64), the second 40 away along x_1.

    rotated: all by a fixed random orthogonal matrix, so that no axis is special.
    """
    sign, away = np.array([1.0, -1.0]), np.array([0.0, 40.0])
    turn = np.linalg.qr(np.random.default_rng(8).standard_normal((dim, dim)))[0] if rotated else np.eye(dim)
    middle = np.r_[0.0, 20.0, np.zeros(dim - 2)]
    half = np.r_[32.0, 70.0, np.full(dim - 2, 6.0)]
    centre, reach = turn @ middle, np.abs(turn) @ half

    def straight(x: Float[Array, " dim"]) -> Float[Array, " dim"]:
        return jnp.asarray(turn.T) @ x

    def own(x: Float[Array, " dim"]) -> Float[Array, "2 dim"]:
        x = straight(x)
        first = x[1] - jnp.asarray(away) + jnp.asarray(sign) * 0.05 * (x[0] ** 2 - 64)
        return jnp.tile(x, (2, 1)).at[:, 1].set(first)

    def log_one(y: Float[Array, " dim"]) -> Float[Array, ""]:
        return _log_normal(y.at[0].divide(8.0)) - np.log(8.0)

    def draw(rng: np.random.Generator, label: np.ndarray) -> np.ndarray:
        x = rng.standard_normal((len(label), dim))
        x[:, 0] *= 8
        x[:, 1] += away[label] - sign[label] * 0.05 * (x[:, 0] ** 2 - 64)
        return x @ turn.T

    def statistics(x: Float[Array, " dim"], y: Float[Array, " dim"]) -> dict[str, Array]:
        x = straight(x)
        return {"x_0": x[0], "x_0²": x[0] ** 2, "x_1": x[1], "z_1²": y[1] ** 2, "x_0² z_1": x[0] ** 2 * y[1]}

    return _copies(
        f"twisted pair D={dim}" + ", rotated" * rotated,
        lambda f: Target(f, dim=dim, starts=(centre - reach, centre + reach)),
        np.array([0.6, 0.4]),
        own,
        log_one,
        draw,
        0.0,
        statistics,
        {"x_0": 0.0, "x_0²": 64.0, "x_1": 16.0, "z_1²": 1.0, "x_0² z_1": 0.0},
    )


def funnel_pair(dim: int = 6) -> Shape:
    """Neal's funnel, v ~ N(0, 1.2²) and the others N(0, e^v), and its mirror image: 30 - v, its mouth towards it."""
    starts = (np.r_[-6.0, np.full(dim - 1, -15.0)], np.r_[36.0, np.full(dim - 1, 15.0)])

    def own(x: Float[Array, " dim"]) -> Float[Array, "2 dim"]:
        return jnp.stack([x, x.at[0].set(30.0 - x[0])])

    def log_one(y: Float[Array, " dim"]) -> Float[Array, ""]:
        spread = _log_normal(y[1:] * jnp.exp(-0.5 * y[0])) - 0.5 * (dim - 1) * y[0]
        return spread + _log_normal(y[:1] / 1.2) - np.log(1.2)

    def draw(rng: np.random.Generator, label: np.ndarray) -> np.ndarray:
        x = rng.standard_normal((len(label), dim))
        x[:, 0] *= 1.2
        x[:, 1:] *= np.exp(0.5 * x[:, :1])
        x[:, 0] = np.where(label == 0, x[:, 0], 30 - x[:, 0])
        return x

    def statistics(x: Float[Array, " dim"], y: Float[Array, " dim"]) -> dict[str, Array]:
        return {"v": y[0], "v²": y[0] ** 2, "|x_1|": jnp.abs(x[1]), "x_1": x[1]}

    return _copies(
        f"funnel pair D={dim}",
        lambda f: Target(f, dim=dim, starts=starts),
        np.array([0.65, 0.35]),
        own,
        log_one,
        draw,
        0.0,
        statistics,
        {"v": 0.0, "v²": 1.44, "|x_1|": np.sqrt(2 / np.pi) * np.exp(1.44 / 8), "x_1": 0.0},
    )


def product_t(dim: int = 40, size: int = 8) -> Shape:
    """Products of Student's t with 3 degrees of freedom, at random places in (-10, 10)^D, with weights ∝ 1, 2, ..."""
    places = np.random.default_rng(3).uniform(-10, 10, (size, dim))
    log_scale = float(gammaln(2.0) - gammaln(1.5) - 0.5 * np.log(3 * np.pi))

    def log_one(y: Float[Array, " dim"]) -> Float[Array, ""]:
        return jnp.sum(log_scale - 2 * jnp.log1p(y * y / 3))

    def statistics(x: Float[Array, " dim"], y: Float[Array, " dim"]) -> dict[str, Array]:
        # no squares: their variance is infinite
        spread = jnp.log1p(y * y / 3)
        return {"|t_0|": jnp.abs(y[0]), "sign t_0": jnp.sign(y[0]), "mean |t|": jnp.mean(jnp.abs(y))} | {
            "mean log(1 + t²/3)": jnp.mean(spread)
        }

    return _copies(
        f"product t D={dim}",
        lambda f: Target(f, dim=dim, starts=(-20.0, 20.0)),
        np.arange(1, size + 1) / (size * (size + 1) / 2),
        lambda x: x - jnp.asarray(places),
        log_one,
        lambda rng, label: places[label] + rng.standard_t(3, (len(label), dim)),
        0.0,
        statistics,
        {"|t_0|": 2 * np.sqrt(3) / np.pi, "sign t_0": 0.0, "mean |t|": 2 * np.sqrt(3) / np.pi}
        | {"mean log(1 + t²/3)": float(digamma(2.0) - digamma(1.5))},
    )


def ridge(copies: int = 1) -> Shape:
    """5·10⁴ successes of binomial(10⁵, p_1 p_2), uniform p_1 and p_2: one curve, thin and long.

    copies: with two, a second curve where 1 - p takes the place of p; together .6 and .4 of them. The product s has
    density -log s a priori, and given s, log p_1 is uniform on (log s, 0); so all is one integral over s, and the
    evidence in closed form, E[-log s] under a beta law over n + 1.
    """
    trials, successes = 100_000, 50_000
    weights = np.array([1.0]) if copies == 1 else np.array([0.6, 0.4])
    log_choose = float(gammaln(trials + 1) - 2 * gammaln(successes + 1))
    log_evidence = float(np.log(digamma(trials + 2) - digamma(successes + 1)) - np.log(trials + 1))
    s = np.linspace(0.48, 0.52, 40_001)[1:-1]  # twelve standard deviations to each side
    log_mass = successes * np.log(s) + (trials - successes) * np.log1p(-s) + np.log(-np.log(s))
    mass = np.exp(log_mass - log_mass.max())

    def own(p: Float[Array, " 2"]) -> Float[Array, "copies 2"]:
        return jnp.stack([p, 1 - p])[:copies]

    def log_one(p: Float[Array, " 2"]) -> Float[Array, ""]:
        # p may round to 0 or 1, where the density is nil: its gradient stays finite there
        log_product = jnp.sum(jnp.log(jnp.maximum(p, 1e-100)))
        log_rest = jnp.log1p(-jnp.minimum(p[0] * p[1], 1 - 1e-16))
        return log_choose + successes * log_product + (trials - successes) * log_rest

    def draw(rng: np.random.Generator, label: np.ndarray) -> np.ndarray:
        product = np.interp(rng.uniform(0, mass.sum(), len(label)), np.cumsum(mass), s)
        first = product ** rng.uniform(size=len(label))
        p = np.stack([first, product / first], axis=1)
        return logit(np.where(label[:, None] == 0, p, 1 - p))

    def statistics(x: Float[Array, " 2"], p: Float[Array, " 2"]) -> dict[str, Array]:
        return {"p_1": p[0], "p_1²": p[0] ** 2, "p_1 p_2": p[0] * p[1], "|log p_1/p_2|": jnp.abs(jnp.log(p[0] / p[1]))}

    return _copies(
        "ridge" if copies == 1 else "ridge, two copies",
        lambda f: Target(f, dim=2, bounds=(0.0, 1.0)),
        weights,
        own,
        log_one,
        draw,
        log_evidence,
        statistics,
        {
            "p_1": np.average((s - 1) / np.log(s), weights=mass),
            "p_1²": np.average((s**2 - 1) / (2 * np.log(s)), weights=mass),
            "p_1 p_2": np.average(s, weights=mass),
            "|log p_1/p_2|": np.average(-0.5 * np.log(s), weights=mass),
        },
    )


def many_gaussians(dim: int = 50, size: int = 40) -> Shape:
    """Unit Gaussians at random places in (-40, 40)^D, with weights ∝ 1, 2, ..."""
    places = np.random.default_rng(40).uniform(-40, 40, (size, dim))
    weights = np.arange(1, size + 1) / (size * (size + 1) / 2)

    def statistics(x: Float[Array, " dim"], y: Float[Array, " dim"]) -> dict[str, Array]:
        return {"x_0": x[0], "x_0²": x[0] ** 2, "z_0": y[0], "mean z²": jnp.mean(y * y)}

    return _copies(
        f"many Gaussians D={dim}",
        lambda f: Target(f, dim=dim, starts=(-45.0, 45.0)),
        weights,
        lambda x: x - jnp.asarray(places),
        _log_normal,
        lambda rng, label: places[label] + rng.standard_normal((len(label), dim)),
        0.0,
        statistics,
        {"x_0": weights @ places[:, 0], "x_0²": weights @ places[:, 0] ** 2 + 1, "z_0": 0.0, "mean z²": 1.0},
    )


def ar1_pair(dim: int) -> Shape:
    """Two stationary AR(1) paths, neighbours correlated .8, of unit variance; the second 1.5 higher all along."""
    rho, away = 0.8, np.array([0.0, 1.5])
    noise = np.sqrt(1 - rho**2)

    def log_one(y: Float[Array, " dim"]) -> Float[Array, ""]:
        steps = jnp.concatenate([y[:1], (y[1:] - rho * y[:-1]) / noise])
        return _log_normal(steps) - (dim - 1) * np.log(noise)

    def draw(rng: np.random.Generator, label: np.ndarray) -> np.ndarray:
        x = rng.standard_normal((len(label), dim))
        for n in range(1, dim):
            x[:, n] = rho * x[:, n - 1] + noise * x[:, n]
        return x + away[label, None]

    def statistics(x: Float[Array, " dim"], y: Float[Array, " dim"]) -> dict[str, Array]:
        square, product = jnp.mean(y * y), jnp.mean(y[1:] * y[:-1])
        return {"x_0": x[0], "y_0²": y[0] ** 2, "mean y": jnp.mean(y), "mean y²": square, "mean y_n y_n+1": product}

    return _copies(
        f"AR(1) pair D={dim}",
        lambda f: Target(f, dim=dim, starts=(-5.0, 6.5)),
        np.array([0.6, 0.4]),
        lambda x: x - jnp.asarray(away[:, None]),
        log_one,
        draw,
        0.0,
        statistics,
        {"x_0": 0.6, "y_0²": 1.0, "mean y": 0.0, "mean y²": 1.0, "mean y_n y_n+1": rho},
    )
