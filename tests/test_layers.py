"""Layers: one list, one contract. A new kind of layer is added to `LAYERS`, and inherits all tests."""

from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from whmc._pytree import pytree
from whmc.modes.chart_data import ChartData
from whmc.modes.layers.banded import Banded
from whmc.modes.layers.bend import Bend
from whmc.modes.layers.chart import WARPS, Chart
from whmc.modes.layers.layer import REACH
from whmc.modes.layers.places import Shift
from whmc.modes.layers.scales import Dense, Diagonal, LowRank
from whmc.modes.layers.tails import Radial, Tail
from whmc.modes.library import ModeLibrary
from whmc.modes.mixture import log_components_of

LARGEST_ERROR = 1e-10
"""Of every claim, relative to 1 + the value. What is wrong on purpose is wrong by 1e-3 or more."""


def sd_of(rng, dim):
    return rng.uniform(0.5, 2.0, dim)


def matrix_of(rng, dim):
    return np.tril(0.3 * rng.standard_normal((dim, dim)), -1) + np.diag(sd_of(rng, dim))


def bend_of(rng, dim):
    return Bend.of(rng.standard_normal(dim), 0.3 * rng.standard_normal(dim), rng.uniform(-0.3, 0.3, ()))


def chart_of(rng, dim):
    """Mild tails, as the bend squares what comes out of them."""
    warps = (Tail.of(rng.uniform(0.0, 0.1, dim), dim), bend_of(rng, dim))
    return Chart(warps, Dense.of(matrix_of(rng, dim)), Shift(rng.standard_normal(dim)))


def radial_chart_of(rng, dim):
    warps = (Radial.of(rng.uniform(0.05, 0.1, 1), dim),)
    return Chart(warps, Diagonal.of(sd_of(rng, dim)), Shift(rng.standard_normal(dim)))


LAYERS = {
    "shift": lambda rng, dim: Shift(rng.standard_normal(dim)),
    "dense": lambda rng, dim: Dense.of(matrix_of(rng, dim)),
    "diagonal": lambda rng, dim: Diagonal.of(sd_of(rng, dim)),
    "low rank": lambda rng, dim: LowRank.of(
        sd_of(rng, dim), rng.standard_normal((dim, min(2, dim))), rng.uniform(-1, 1, min(2, dim))
    ),
    "banded": lambda rng, dim: Banded.of(sd_of(rng, dim), rng.uniform(-0.7, 0.7, (2, dim))),
    "tail": lambda rng, dim: Tail.of(rng.uniform(0.0, 0.5, dim) * (np.arange(dim) != 1), dim),
    "radial": lambda rng, dim: Radial.of(rng.uniform(0.1, 0.3, 1), dim),
    "bend": bend_of,
    "chart": chart_of,
    "radial chart": radial_chart_of,
}
"""Each kind of layer, with parameters drawn by a generator."""

DIMS = (1, 5)
"""Five is no multiple of the width of a band."""


def points(dim):
    """The origin, a point on an axis, a tiny one, ordinary ones, and some beyond where warps stop to grow."""
    rng = np.random.default_rng(2)
    ordinary, far = rng.standard_normal((20, dim)), rng.standard_normal((4, dim))
    far *= 3 * REACH / np.linalg.norm(far, axis=1, keepdims=True)
    return np.concatenate([np.zeros((1, dim)), np.eye(1, dim), 1e-3 * ordinary[:1], ordinary, far])


def log_density(y):
    return -jnp.sum(jnp.sin(y) ** 2 + 0.1 * y**2)


def error(found, expected):
    """The largest one; NaN if there is any, which is below no bound."""
    return float(np.max(np.abs(np.asarray(found) - expected) / (1 + np.abs(expected))))


def on_the_device(layer, x):
    """All that the contract asks of a layer at one point."""
    y, log_volume = layer.forward(x)
    there, log_volume_there, pull = layer.linearized(x)
    jacobian = jax.jacfwd(lambda x: layer.forward(x)[0])(x)

    def transformed(x):
        y, log_volume = layer.forward(x)
        return log_density(y) + log_volume

    return {
        "forward": (y, log_volume),
        "inverse": layer.inverse(y),
        "linearized": (there, log_volume_there),
        "log_det": jnp.linalg.slogdet(jacobian)[1],
        "pulled": pull(jax.grad(log_density)(y)),
        "gradient": jax.grad(transformed)(x),
    }


def errors_of(make, dim):
    """How far a layer is from each claim of the contract."""
    charts = [make(np.random.default_rng(seed), dim) for seed in range(3)]
    layer, kind, x = charts[0], type(charts[0]), points(dim)
    device = jax.tree.map(np.asarray, jax.jit(jax.vmap(on_the_device, (None, 0)))(layer, jnp.asarray(x)))
    y, log_volume = layer.forward(x)
    back, log_volume_back = layer.inverse(y)
    slope = np.cos(x)
    pushed = jax.jit(jax.vmap(jax.grad(lambda y, u: layer.inverse(y)[0] @ u + layer.inverse(y)[1])))(y, slope)
    stack = jax.jit(jax.vmap(lambda one, x: (one.forward(x), one.inverse(x))))(kind.stacked(charts), x[3:6])
    single = [(one.forward(row), one.inverse(row)) for one, row in zip(charts, x[3:6], strict=True)]
    nothing = kind.identity(dim)

    def worst(found, expected):
        pairs = zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True)
        return float(np.max([error(*pair) for pair in pairs]))  # unlike `max` it does not lose NaN

    return {
        "round trip": worst((back, device["inverse"][0]), (x, x)),
        "volume of the way back": worst((log_volume_back, device["inverse"][1]), (log_volume, device["forward"][1])),
        "Jacobian": error(device["forward"][1], device["log_det"]),
        "linearized": worst(device["linearized"], device["forward"]),
        "pull-back": error(device["pulled"], device["gradient"]),
        "pushed": error(layer.pushed(y, slope), np.asarray(pushed)),
        "host as device": worst((y, log_volume, layer.inverse(y)), (*device["forward"], device["inverse"])),
        "identity": worst((nothing.forward(x), nothing.inverse(x)), ((x, 0 * x[:, 0]),) * 2),
        "charts side by side": worst(jax.tree.map(lambda *rows: np.stack(rows), *single), stack),
    }


CLAIMS = (
    "round trip", "volume of the way back", "Jacobian", "linearized", "pull-back", "pushed", "host as device",
    "identity", "charts side by side",
)  # fmt: skip


@cache
def errors_of_listed(name, dim):
    return errors_of(LAYERS[name], dim)


@pytest.mark.parametrize("claim", CLAIMS)
@pytest.mark.parametrize("dim", DIMS)
@pytest.mark.parametrize("name", LAYERS)
def test_layers_hold_the_contract(name, dim, claim):
    assert errors_of_listed(name, dim)[claim] < LARGEST_ERROR


def test_every_warp_is_listed():
    made = {type(make(np.random.default_rng(0), 3)) for make in LAYERS.values()}
    assert set(WARPS) <= made


@pytree
class VolumeOfTooManyDirections(Bend):
    """D a c(s) for (D - 1) a c(s), both ways."""

    def forward(self, x):
        y, log_volume = super().forward(x)
        return y, log_volume * x.shape[-1] / (x.shape[-1] - 1)

    def inverse(self, y):
        x, log_volume = super().inverse(y)
        return x, log_volume * x.shape[-1] / (x.shape[-1] - 1)


@pytree
class ScaledVolume(Tail):
    """1 % off, both ways."""

    def forward(self, x):
        y, log_volume = super().forward(x)
        return y, 1.01 * log_volume

    def inverse(self, y):
        x, log_volume = super().inverse(y)
        return x, 1.01 * log_volume


@pytree
class VolumeOfTheInverse(Dense):
    """log|dx/dy| of the inverse."""

    def inverse(self, y):
        x, log_volume = super().inverse(y)
        return x, -log_volume


@pytree
class NotInverted(Banded):
    """The scale and not the couplings."""

    def inverse(self, y):
        return y / self.sd, super().inverse(y)[1]


@pytree
class PullWithoutVolume(Radial):
    """The gradient of log pi(y) alone."""

    def linearized(self, x):
        y, log_volume, pull = super().linearized(x)
        return y, log_volume, lambda score: pull(score) - pull(0 * score)


@pytree
class PushedWithoutVolume(Tail):
    """The gradient of F(x) alone."""

    def pushed(self, y, slope):
        return super().pushed(y, slope) - super().pushed(y, 0 * slope)


@pytree
class LinearizedElsewhere(Bend):
    def linearized(self, x):
        return super().linearized(1.01 * x)


@pytree
class OtherOnTheHost(Diagonal):
    def inverse(self, y):
        x, log_volume = super().inverse(y)
        return (1.01 * x if isinstance(y, np.ndarray) else x), log_volume


@pytree
class HeavyIdentity(Tail):
    @classmethod
    def identity(cls, dim):
        return cls.of(np.full(dim, 0.1), dim)


@pytree
class FirstOnly(Shift):
    @classmethod
    def stacked(cls, charts):
        return super().stacked([charts[0]] * len(charts))


def like(kind, name):
    """The listed layer as one of another class."""
    return lambda rng, dim: kind(*jax.tree.leaves(LAYERS[name](rng, dim)))


BROKEN = {
    "Jacobian": [(VolumeOfTooManyDirections, "bend"), (ScaledVolume, "tail")],
    "volume of the way back": [(VolumeOfTheInverse, "dense")],
    "round trip": [(NotInverted, "banded")],
    "pull-back": [(PullWithoutVolume, "radial")],
    "linearized": [(LinearizedElsewhere, "bend")],
    "pushed": [(PushedWithoutVolume, "tail")],
    "host as device": [(OtherOnTheHost, "diagonal")],
    "identity": [(HeavyIdentity, "tail")],
    "charts side by side": [(FirstOnly, "shift")],
}


@pytest.mark.parametrize(("claim", "kind", "name"), [(claim, *broken) for claim in CLAIMS for broken in BROKEN[claim]])
def test_a_broken_layer_fails_the_contract(claim, kind, name):
    assert errors_of(like(kind, name), 5)[claim] > 1e-3


@pytest.mark.parametrize("kind", [Tail, Radial])
@pytest.mark.parametrize("size", [1e-200, 1e-5, 1e100, 1e200])
def test_tails_have_values_and_forces_of_all_sizes(kind, size):
    """Squares of the outermost overflow, those of the innermost vanish."""
    num = 1 if kind is Radial else 3
    layer, x = kind.of(np.array([0.0, 1e-12, 1.0])[-num:], 3), np.array([[0.0, -0.7, 1.0]]) * size
    with np.errstate(over="ignore", under="ignore"):
        y, log_volume = layer.forward(x)
        back, log_volume_back = layer.inverse(y)
    np.testing.assert_allclose(back, x, rtol=1e-13)
    np.testing.assert_allclose(log_volume_back, log_volume, rtol=1e-12, atol=1e-300)
    _, _, pull = layer.linearized(jnp.asarray(x))
    assert np.all(np.isfinite(pull(jnp.ones((1, 3)))))


def test_growth_has_all_digits_where_its_formula_changes():
    """y/x and its derivative, against their series, around w = 1e-5."""
    layer = Tail.of(np.ones(1), 1)
    for x in np.sqrt([1e-7, 0.99e-5, 1.01e-5, 1e-4]):
        u = x * x
        slope, expected = jax.jacfwd(lambda x: layer.forward(x)[0])(jnp.array([x]))[0, 0], np.exp(u)
        expected /= np.sqrt(np.expm1(u) / u)
        np.testing.assert_allclose(slope, expected, rtol=1e-14)
        force = jax.grad(lambda x: layer.forward(x)[1])(jnp.array([x]))[0]
        # log dy/dx = u - log((exp(u) - 1)/u)/2 = 3 u/4 - u²/48 + ...
        np.testing.assert_allclose(force, 2 * x * (3 / 4 - u / 24), rtol=1e-10)


@pytest.mark.parametrize("x", [0.0, 1e-3, 1.5, 2 * REACH])
def test_tails_have_a_slope_in_their_heaviness(x):
    """y = x + h x³/4 + ..., and no more than `REACH`² of x² in it, so a fit can start from a Gaussian."""
    slope = jax.jacfwd(lambda heaviness: Tail.of(heaviness, 1).forward(jnp.full(1, x))[0])(jnp.zeros(1))
    np.testing.assert_allclose(slope, x * min(x**2, REACH**2) / 4, rtol=1e-14)
    back = jax.jacfwd(lambda heaviness: Tail.of(heaviness, 1).inverse(jnp.full(1, x))[0])(jnp.zeros(1))
    np.testing.assert_allclose(back, -slope, rtol=1e-14)


def test_bands_of_several_widths_stand_side_by_side():
    """Also where one chart needs fewer powers than another."""
    rng, dim = np.random.default_rng(4), 11
    couplings = [np.zeros((1, dim)), 1e-9 * rng.standard_normal((1, dim)), rng.uniform(-0.7, 0.7, (3, dim))]
    charts = [Banded.of(sd_of(rng, dim), coupling) for coupling in couplings]
    assert len({one.powers.shape for one in charts}) == 3
    stack, x = Banded.stacked(charts), rng.standard_normal((3, dim))
    y = jax.vmap(lambda one, x: one.forward(x)[0])(stack, x)
    for one, row, found in zip(charts, x, y, strict=True):
        np.testing.assert_allclose(found, one.forward(row)[0], rtol=1e-12)


def test_scales_of_several_ranks_stand_side_by_side():
    rng, dim = np.random.default_rng(4), 5
    charts = [LowRank.of(sd_of(rng, dim), rng.standard_normal((dim, rank)), np.ones(rank)) for rank in (1, 3)]
    charts.append(LowRank.identity(dim))
    stack, x = LowRank.stacked(charts), rng.standard_normal((3, dim))
    y = jax.vmap(lambda one, x: one.forward(x)[0])(stack, x)
    for one, row, found in zip(charts, x, y, strict=True):
        np.testing.assert_allclose(found, one.forward(row)[0], rtol=1e-12)


MADE_OF = {
    "dense": (Dense.of, 1),
    "diagonal": (Diagonal.of, 1),
    "low rank": (LowRank.of, 3),
    "banded": (Banded.of, 2),
    "tail": (lambda heaviness: Tail.of(heaviness, 5), 1),
    "radial": (lambda heaviness: Radial.of(heaviness, 5), 1),
    "bend": (Bend.of, 3),
}
"""What makes a layer, and of how many of its first fields."""


@pytest.mark.parametrize("name", MADE_OF)
def test_layers_are_made_of_one_chart_or_of_many(name):
    charts = [LAYERS[name](np.random.default_rng(seed), 5) for seed in range(3)]
    kind, (of, num) = type(charts[0]), MADE_OF[name]
    parameters = [np.stack(rows) for rows in zip(*(jax.tree.leaves(one)[:num] for one in charts), strict=True)]
    for found, expected in zip(*map(jax.tree.leaves, (of(*parameters), kind.stacked(charts))), strict=True):
        np.testing.assert_allclose(abs(found), abs(expected), rtol=1e-12, atol=1e-12)


SCALES = ("dense", "diagonal", "low rank", "banded")


@pytest.mark.parametrize("name", SCALES)
def test_scales_are_resized_and_transposed(name):
    scale, rows = LAYERS[name](np.random.default_rng(0), 5), np.random.default_rng(1).standard_normal((4, 5))
    matrix = scale.forward(np.eye(5))[0].T
    np.testing.assert_allclose(scale.transposed(rows), rows @ matrix, rtol=1e-12, atol=1e-12)
    larger = scale.resized(1.7)
    np.testing.assert_allclose(larger.forward(rows)[0], 1.7 * rows @ matrix.T, rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(larger.log_det, scale.log_det + 5 * np.log(1.7), rtol=1e-12)
    for factor in {"dense": [rows[0] ** 2, np.tril(rows[:1] ** 2 + np.eye(5))], "diagonal": [rows[0] ** 2]}.get(
        name, []
    ):
        whole = factor if factor.ndim == 2 else np.diag(factor)
        np.testing.assert_allclose(scale.resized(factor).forward(rows)[0], rows @ (matrix @ whole).T, rtol=1e-12)


def test_couplings_without_an_inverse_are_refused():
    with pytest.raises(ValueError, match="no inverse in floating point"), np.errstate(all="ignore"):
        Banded.of(np.ones(40), np.full((1, 40), 1e100))


def banded_library(rng, location, size, dim):
    sd, coupling = np.stack([sd_of(rng, dim) for _ in range(size)]), rng.uniform(-0.7, 0.7, (size, 2, dim))
    return library_and_layers(location, [((), Banded.of(*pair)) for pair in zip(sd, coupling, strict=True)])


def library_and_layers(location, layers):
    parts = enumerate(zip(location, layers, strict=True))
    return ModeLibrary.of([ChartData.of(place, scale, warps, mode=k) for k, (place, (warps, scale)) in parts]), layers


def diagonal_library(rng, location, size, dim):
    sd = np.stack([sd_of(rng, dim) for _ in range(size)])
    return library_and_layers(location, [((), Diagonal.of(one)) for one in sd])


def dense_library(rng, location, size, dim, warps=((), ())):
    matrix = np.stack([matrix_of(rng, dim) for _ in range(size)])
    return library_and_layers(location, [(warp, Dense.of(one)) for warp, one in zip(warps, matrix, strict=True)])


def tail_library(rng, location, size, dim):
    heaviness = rng.uniform(0.0, 0.2, (size, dim))  # more, and the dense scale mixes coordinates of 1 and of 1e7
    warps = [(Tail.of(one, dim),) for one in heaviness]
    return dense_library(rng, location, size, dim, warps)


def bend_library(rng, location, size, dim):
    bends = [bend_of(rng, dim) for _ in range(size)]
    return dense_library(rng, location, size, dim, [(bend,) for bend in bends])


LIBRARIES = {
    "dense": dense_library,
    "diagonal": diagonal_library,
    "banded": banded_library,
    "tail": tail_library,
    "bend": bend_library,
}
"""Libraries of two charts, and the warps and the scale of each as layers."""


@pytest.mark.parametrize("name", LIBRARIES)
def test_charts_of_layers_are_those_of_the_library(name):
    dim, size = 5, 2
    rng = np.random.default_rng(6)
    location = rng.standard_normal((size, dim))
    library, parts = LIBRARIES[name](rng, location, size, dim)
    charts = [Chart(warps, scale, Shift(place)) for (warps, scale), place in zip(parts, location, strict=True)]

    @jax.jit
    @jax.vmap
    def library_at(x):
        chart = library.chart(1)
        theta, score = chart.unwhiten(x), jnp.cos(x)
        # the library pulls scores back to L x, with L the scale without its couplings
        pulled = score if chart.bend is None else chart.bend.pulled(chart.displacement(theta), score)
        scale = jnp.diag(chart.scale) if library.diagonal else chart.scale
        return theta, chart.log_volume(theta), chart.whiten(theta), scale.T @ pulled

    @jax.jit
    @jax.vmap
    def layers_at(x):
        theta, log_volume, pull = charts[1].linearized(x)
        return theta, log_volume, charts[1].inverse(theta)[0], pull(jnp.cos(x))

    x = points(dim)
    for found, expected in zip(layers_at(x), library_at(x), strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-12, atol=1e-12)
    theta = charts[0].forward(x)[0]
    for chart, heights in zip(charts, log_components_of(library, theta), strict=True):
        z, log_volume = chart.inverse(theta)
        found = np.log(0.5) - 0.5 * np.sum(z**2, axis=1) - log_volume - 0.5 * dim * np.log(2 * np.pi)
        np.testing.assert_allclose(found, heights, rtol=1e-12)
