"""NumPyro models as targets, and WHMC as a kernel of NumPyro's MCMC."""

import functools
import importlib.util
import inspect
import re
import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from numpyro.contrib.control_flow import scan
from numpyro.handlers import condition, reparam, scope
from numpyro.infer import MCMC, NUTS
from numpyro.infer.reparam import LocScaleReparam
from numpyro.infer.util import initialize_model, potential_energy

import whmc
from doc_outputs import not_printed
from unchecked import unchecked
from whmc.frontends.numpyro import WHMC, from_numpyro
from whmc.frontends.numpyro_kernel import MAX_PREPARED
from whmc.target.check_symmetry import require_symmetric
from whmc.target.meant import is_numpyro

pytestmark = [pytest.mark.models, pytest.mark.xdist_group("numpyro")]  # its runs are made once, not in every worker

PAGE = Path(__file__).parent.parent / "docs" / "models-numpyro.md"
KEY = jax.random.key(0)


@pytest.fixture(autouse=True)
def numpyro_promotes_types():
    """NumPyro adds integers to floats: it does not run with strict promotion."""
    with jax.numpy_dtype_promotion("standard"):
        yield


def many_supports(y, scale=1.0):
    """Every kind of support, one that depends on another site, plates, a deterministic, a factor."""
    w = numpyro.sample("w", dist.Dirichlet(jnp.array([1.0, 2.0, 3.0])))
    corr = numpyro.sample("corr", dist.LKJCholesky(3, 2.0))
    ordered = dist.TransformedDistribution(dist.Normal(0, 2).expand([3]), dist.transforms.OrderedTransform())
    cut = numpyro.sample("cut", ordered)
    with numpyro.plate("group", 2):
        sigma = numpyro.sample("sigma", dist.HalfNormal(scale))
        slope = numpyro.sample("slope", dist.MultivariateNormal(jnp.zeros(3), scale_tril=corr))
    below = numpyro.sample("below", dist.Uniform(-1.0, sigma[0]))
    a = numpyro.sample("a", dist.Beta(2, 3))
    numpyro.deterministic("total", a + below)
    numpyro.factor("tilt", 0.1 * cut.sum())
    with numpyro.plate("data", len(y)):
        numpyro.sample("y", dist.Normal(w @ cut + slope.sum(), sigma.sum()), obs=y)


Y = np.array([0.3, -1.2, 2.5, 0.8])
ORDER = ["w", "corr", "cut", "sigma", "slope", "below", "a"]


@pytest.fixture(scope="module")
def supports():
    with jax.numpy_dtype_promotion("standard"):
        return from_numpyro(many_supports, Y, scale=2.0)


def points_of(model, names, num, *args, **kwargs):
    """Unconstrained values as NumPyro has them, and the same as rows in the order of `names`."""

    def z():
        return initialize_model(KEY, model, model_args=args, model_kwargs=kwargs).param_info.z

    like = jax.eval_shape(z)
    rng = np.random.default_rng(1)
    values = {name: rng.normal(size=(num, *np.shape(like[name]))) for name in names}
    assert set(like) == set(names)
    return values, np.concatenate([values[name].reshape(num, -1) for name in names], axis=1)


def agree(target, model, names, *args, **kwargs):
    """Log density and gradient are NumPyro's at a hundred points."""
    values, rows = points_of(model, names, 100, *args, **kwargs)
    theirs, slopes = jax.jit(jax.vmap(jax.value_and_grad(lambda z: -potential_energy(model, args, kwargs, z))))(values)
    ours, score = jax.jit(jax.vmap(jax.value_and_grad(target)))(jnp.asarray(rows))
    np.testing.assert_allclose(ours, theirs, rtol=1e-12)
    slopes = np.concatenate([np.asarray(slopes[name]).reshape(100, -1) for name in names], axis=1)
    np.testing.assert_allclose(score, slopes, rtol=1e-9, atol=1e-9)
    assert np.asarray(ours).dtype == np.float64 and np.ptp(ours) > 1


def test_log_density_and_gradient_are_those_of_numpyro(supports):
    agree(supports, many_supports, ORDER, Y, scale=2.0)


def test_constrain_and_unconstrain_are_inverse(supports):
    constrain, unconstrain = (jax.jit(jax.vmap(f)) for f in (supports.constrain, supports.unconstrain))
    points = supports.draw_starts(KEY, 100)
    values = constrain(points)
    np.testing.assert_allclose(unconstrain(values), points, rtol=1e-5, atol=1e-6)
    again = constrain(unconstrain(values))
    for name, rows in values.items():
        np.testing.assert_allclose(again[name], rows, rtol=1e-7, atol=1e-9, err_msg=name)
    np.testing.assert_allclose(values["w"].sum(axis=1), 1.0, rtol=1e-12)
    np.testing.assert_allclose(np.linalg.norm(values["corr"], axis=2), 1.0, rtol=1e-9)
    assert np.all(np.diff(values["cut"], axis=1) > 0)
    assert np.all(values["sigma"] > 0) and np.all((values["a"] > 0) & (values["a"] < 1))
    assert np.all((values["below"] > -1) & (values["below"] < values["sigma"][:, 0]))
    np.testing.assert_allclose(values["total"], values["a"] + values["below"])
    with pytest.raises(KeyError, match=r"\['below', 'a'\] are missing"):
        supports.unconstrain({name: rows[0] for name, rows in values.items() if name not in ("a", "below")})


def test_modes_and_initial_positions_may_be_what_numpyro_samples(supports):
    """One dictionary for each position, or one of all as `MCMC.get_samples` gives it."""
    points = np.asarray(supports.draw_starts(KEY, 100))
    samples = jax.jit(jax.vmap(supports.constrain))(points)
    np.testing.assert_allclose(supports.flatten_all(samples), points, rtol=1e-5, atol=1e-6)
    one = {name: np.asarray(rows[0]) for name, rows in samples.items()}
    np.testing.assert_allclose(supports.flatten_all([one]), points[:1], rtol=1e-5, atol=1e-6)


def hidden_units(x):
    """A network with two hidden units: they may change places, and each has a sign."""
    with numpyro.plate("unit", 2):
        inner, bias, outer = (numpyro.sample(name, dist.Normal(0.0, 2.0)) for name in ("inner", "bias", "outer"))
    numpyro.sample("y", dist.Normal(jnp.tanh(x[:, None] * inner + bias) @ outer, 0.5), obs=jnp.sin(x))


def test_each_hidden_unit_has_a_sign():
    flips = [whmc.Flip(f"inner[{k}]", f"bias[{k}]", f"outer[{k}]") for k in range(2)]
    exchange = whmc.Exchange("inner", "bias", "outer")
    target = from_numpyro(hidden_units, jnp.linspace(-2.0, 2.0, 7), symmetries=[exchange, *flips])
    assert len(target.group) == 2 * 2**2 and set(flips[0].names) <= set(target.names)
    require_symmetric(target, jnp.asarray(target.draw_starts(KEY, 4)))
    with pytest.raises(ValueError, match="names, not numbers of coordinates such as 0"):
        from_numpyro(hidden_units, jnp.linspace(-2.0, 2.0, 7), symmetries=[exchange, whmc.Flip([0, 2, 4])])


@pytest.mark.parametrize("statements", [hidden_units, functools.partial(many_supports, scale=2.0)])
def test_a_model_in_place_of_a_target_is_told_what_to_write(statements):
    says = r"whmc.from_numpyro\(model, \*data\)"
    with pytest.raises(TypeError, match=f"target must be a whmc.Target.*a NumPyro model becomes a target by {says}"):
        unchecked(lambda: whmc.sample(statements))
    with pytest.raises(TypeError, match=f"logdensity cannot be called with a position: a NumPyro model.*{says}"):
        whmc.sample(whmc.Target(statements, dim=2, starts=(-1.0, 1.0)))


def test_a_density_that_uses_numpyro_is_no_model():
    """Distributions only, or a model inside of NumPyro's own functions."""

    def by_distributions(x):
        return dist.Normal(0.0, 1.0).log_prob(x).sum()

    def by_model(x):
        sites = {"inner": x[:2], "bias": x[2:4], "outer": x[4:]}
        return numpyro.infer.util.log_density(hidden_units, (jnp.linspace(-2.0, 2.0, 7),), {}, sites)[0]

    assert not is_numpyro(by_distributions) and not is_numpyro(by_model) and is_numpyro(hidden_units)


def test_names_and_axes_are_those_of_the_model(supports):
    assert supports.dim == 2 + 3 + 3 + 2 + 6 + 1 + 1
    assert supports.coordinates[:5] == ["w[0]", "w[1]", "corr[0]", "corr[1]", "corr[2]"]
    assert supports.coordinates[8:12] == ["sigma[0]", "sigma[1]", "slope[0][0]", "slope[0][1]"]
    assert supports.coordinates[-2:] == ["below", "a"]
    assert supports.dims == {"sigma": ["group"], "slope": ["group", "slope_dim_1"]}
    assert list(supports.coords) == ["group"] and supports.coords["group"].tolist() == [0, 1]


def test_axes_of_nested_plates_and_of_deterministics():
    def model():
        with numpyro.plate("school", 3, dim=-2), numpyro.plate("year", 2, dim=-1):
            x = numpyro.sample("x", dist.Normal(0, 1))
            numpyro.deterministic("pair", jnp.stack([x, -x], axis=-1))
            numpyro.deterministic("double", 2 * x)
            numpyro.deterministic("other", jnp.zeros(5))

    target = from_numpyro(model)
    assert target.dims == {
        "x": ["school", "year"],
        "pair": ["school", "year", "pair_dim_2"],
        "double": ["school", "year"],
    }


def test_starts_are_draws_of_the_prior():
    def model():
        mean = numpyro.sample("mean", dist.Normal(100.0, 3.0))
        numpyro.sample("rate", dist.Gamma(4.0, 2.0))
        numpyro.sample("y", dist.Normal(mean, 1.0), obs=90.0)

    target = from_numpyro(model)
    with jax.enable_x64(False):  # as in a user's program
        points = target.starts(KEY, 600)
    assert points.shape == (600, 2) and points.dtype == np.float64 and isinstance(points, np.ndarray)
    mean, rate = points[:, 0], np.exp(points[:, 1])
    assert abs(mean.mean() - 100) < 5 * 3 / 600**0.5
    assert abs(mean.std() - 3) < 5 * 3 / 1200**0.5
    assert abs(rate.mean() - 2) < 5 * 1 / 600**0.5
    assert np.array_equal(target.starts(KEY, 10), points[:10])
    assert not np.array_equal(target.starts(jax.random.key(1), 10), points[:10])


def test_starts_have_a_density_and_improper_priors_a_box():
    def model():
        a = numpyro.sample("a", dist.ImproperUniform(dist.constraints.real, (), event_shape=(2,)))
        b = numpyro.sample("b", dist.Normal(0, 100))
        numpyro.factor("half", jnp.where(b > 0, -jnp.sum(a**2), -jnp.inf))

    points = from_numpyro(model).starts(KEY, 300)
    assert points.shape == (300, 3) and np.all(np.abs(points[:, :2]) < 2)
    assert np.std(points[:, 0]) > 1 and np.std(points[:, 1]) > 1  # 4 / sqrt(12) = 1.15
    assert np.corrcoef(points[:, 0], points[:, 1])[0, 1] < 0.99
    assert np.all(points[:, 2] > 0) and np.mean(points[:, 2] > 10) > 0.5


def test_where_the_prior_never_has_a_density_starts_are_of_the_box():
    def model():
        a = numpyro.sample("a", dist.Normal(100, 0.1))
        numpyro.factor("cut", jnp.where(a < 50, 0.0, -jnp.inf))

    points = from_numpyro(model).starts(KEY, 20)
    assert points.shape == (20, 1) and np.all(np.abs(points) < 2) and np.std(points) > 0.5


PRIORS = {
    "positive": lambda: dist.HalfNormal(2.0),
    "interval": lambda: dist.Uniform(-3.0, 5.0),
    "unit": lambda: dist.Beta(2.0, 5.0),
    "simplex": lambda: dist.Dirichlet(jnp.array([2.0, 3.0])),
    "correlation": lambda: dist.LKJCholesky(2, 1.5),
    "above": lambda: dist.Pareto(2.0, 6.0),
}


def integral(target):
    """exp of the log density over the line, and of x times it."""
    x = np.linspace(-60, 60, 200_001)
    values = np.asarray(jax.jit(jax.vmap(target))(jnp.asarray(x[:, None])))
    density = np.where(np.isfinite(values), np.exp(values), 0.0)
    return x, density, np.trapezoid(density, x)


@pytest.mark.parametrize("prior", PRIORS)
def test_the_density_of_a_prior_integrates_to_one(prior):
    target = from_numpyro(lambda: numpyro.sample("x", PRIORS[prior]()))
    assert target.dim == 1
    assert abs(integral(target)[2] - 1) < 1e-6


def test_the_evidence_is_that_of_the_model():
    """y ~ N(mu, 1), mu ~ N(1, 2): y has mean 1 and covariance 1 + 4 J."""

    def model(y):
        mu = numpyro.sample("mu", dist.Normal(1.0, 2.0))
        with numpyro.plate("data", len(y)):
            numpyro.sample("y", dist.Normal(mu, 1.0), obs=y)

    covariance, shift = np.eye(4) + 4.0, Y - 1.0
    exact = -0.5 * (shift @ np.linalg.solve(covariance, shift) + np.linalg.slogdet(2 * np.pi * covariance)[1])
    assert abs(np.log(integral(from_numpyro(model, Y))[2]) - exact) < 1e-8


def centred(y, error):
    mu = numpyro.sample("mu", dist.Normal(0.0, 5.0))
    tau = numpyro.sample("tau", dist.HalfNormal(5.0))
    with numpyro.plate("school", len(y)):
        theta = numpyro.sample("theta", dist.Normal(mu, tau))
        numpyro.sample("y", dist.Normal(theta, error), obs=y)


SCHOOLS = np.array([28.0, 8, -3, 7, -1, 1, 18, 12]), np.array([15.0, 10, 16, 11, 9, 11, 10, 18])
shifted = reparam(centred, config={"theta": LocScaleReparam(0.0)})


def test_reparametrised_models_give_the_original_values_too():
    target = from_numpyro(shifted, *SCHOOLS)
    agree(target, shifted, ["mu", "tau", "theta_decentered"], *SCHOOLS)
    point = target.draw_starts(KEY, 1)[0]
    values = jax.jit(target.constrain)(point)
    assert set(values) == {"mu", "tau", "theta", "theta_decentered"}
    np.testing.assert_allclose(values["theta"], values["mu"] + values["tau"] * values["theta_decentered"])
    assert target.dims["theta"] == ["school"]
    np.testing.assert_allclose(jax.jit(target.unconstrain)(values), point, rtol=1e-12)


def walk(y):
    """A random walk, by NumPyro's own loop."""
    step = numpyro.sample("step", dist.HalfNormal(1.0))

    def move(place, seen):
        place = numpyro.sample("place", dist.Normal(place, step))
        return place, numpyro.sample("seen", dist.Normal(place, 1.0), obs=seen)

    scan(move, 0.0, y)


def test_loops_and_handlers_are_those_of_numpyro():
    agree(from_numpyro(walk, Y), walk, ["step", "place"], Y)
    known = scope(condition(centred, {"tau": 2.0}), "group")
    target = from_numpyro(known, *SCHOOLS)
    assert target.coordinates == ["group/mu", *[f"group/theta[{n}]" for n in range(8)]]
    agree(target, known, ["group/mu", "group/theta"], *SCHOOLS)


def with_labels(y):
    w = numpyro.sample("w", dist.Dirichlet(jnp.ones(2)))
    with numpyro.plate("component", 2):
        mu = numpyro.sample("mu", dist.Normal(0.0, 3.0))
    numpyro.deterministic("gap", mu[1] - mu[0])
    with numpyro.plate("data", len(y)):
        label = numpyro.sample("label", dist.Categorical(w), infer={"enumerate": "parallel"})
        numpyro.deterministic("own", mu[label])
        numpyro.sample("y", dist.Normal(mu[label], 1.0), obs=y)


def without_labels(y):
    w = numpyro.sample("w", dist.Dirichlet(jnp.ones(2)))
    mu = numpyro.sample("mu", dist.Normal(0.0, 3.0).expand([2]))
    numpyro.sample("y", dist.MixtureSameFamily(dist.Categorical(w), dist.Normal(mu, 1.0)), obs=y)


def test_discrete_sites_are_summed_out():
    with pytest.warns(UserWarning, match=r"\['own'\] depend on the discrete sites \['label'\]"):
        target = from_numpyro(with_labels, Y)
    assert target.coordinates == ["w[0]", "mu[0]", "mu[1]"]
    points = target.draw_starts(KEY, 100)
    other = from_numpyro(without_labels, Y)
    (value, score), (sum_value, sum_score) = (
        jax.jit(jax.vmap(jax.value_and_grad(one)))(points) for one in (other, target)
    )
    np.testing.assert_allclose(sum_value, value, rtol=1e-12)
    np.testing.assert_allclose(sum_score, score, rtol=1e-9, atol=1e-9)
    values = jax.jit(target.constrain)(points[0])
    assert set(values) == {"w", "mu", "gap"}
    np.testing.assert_allclose(values["gap"], values["mu"][1] - values["mu"][0])
    np.testing.assert_allclose(jax.jit(target.unconstrain)(values), points[0], rtol=1e-9, atol=1e-9)


def test_funsor_is_asked_for(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ImportError, match=r"discrete sites \['label'\]: install whmc's extra 'numpyro'"):
        from_numpyro(with_labels, Y)


def test_numpyro_is_asked_for(monkeypatch):
    monkeypatch.setitem(sys.modules, "numpyro", None)
    with pytest.raises(ImportError, match=r"needs NumPyro: install whmc's extra 'numpyro'"):
        from_numpyro(with_labels, Y)


def counted():
    n = numpyro.sample("n", dist.Poisson(3.0))
    numpyro.sample("y", dist.Normal(n, numpyro.sample("s", dist.HalfNormal(1.0))), obs=2.0)


def with_param():
    numpyro.sample("y", dist.Normal(numpyro.param("loc", 0.0), numpyro.sample("s", dist.HalfNormal(1.0))), obs=2.0)


def subsampled():
    mu = numpyro.sample("mu", dist.Normal(0, 1))
    with numpyro.plate("data", 100, subsample_size=10):
        numpyro.sample("y", dist.Normal(mu, 1), obs=jnp.zeros(10))


def noisy():
    mu = numpyro.sample("mu", dist.Normal(0, 1))
    numpyro.factor("noise", mu * jax.random.normal(numpyro.prng_key()))


def impossible():
    mu = numpyro.sample("mu", dist.Normal(0, 1))
    numpyro.factor("never", mu - jnp.inf)


@pytest.mark.parametrize(
    ("model", "error", "words"),
    [
        (counted, ValueError, r"cannot sum these out: \{'n': 'Poisson'\}"),
        (with_param, ValueError, r"without a distribution, \['loc'\]"),
        (subsampled, ValueError, "plate 'data' takes 10 of 100 data"),
        (noisy, ValueError, "draws random numbers other than by numpyro.sample"),
        (impossible, ValueError, "finite at none of 256 draws"),
        (lambda: numpyro.sample("y", dist.Normal(0, 1), obs=2.0), ValueError, "no continuous latent site"),
        (lambda: numpyro.sample("n", dist.Bernoulli(0.5)), ValueError, r"no continuous latent site.*\['n'\]"),
        (lambda: numpyro.sample("x", dist.Delta(1.0)), ValueError, r"\['x'\] have a Delta distribution"),
        ("model", TypeError, "model"),
    ],
)
def test_what_cannot_be_sampled_is_said(model, error, words):
    with pytest.raises(error, match=words):
        from_numpyro(model)


def test_a_model_that_remembers_is_refused():
    runs = []

    def model():
        runs.append(1)
        numpyro.sample("y", dist.Normal(numpyro.sample("mu", dist.Normal(0, 1)), 1.0), obs=float(len(runs)))

    with pytest.raises(ValueError, match="remembers something between its runs"):
        from_numpyro(model)


def two_modes(y):
    """Modes near -2 and 2, the right one heavier."""
    a = numpyro.sample("a", dist.Normal(0, 3))
    square = numpyro.deterministic("square", a**2)
    numpyro.factor("tilt", 0.2 * a)
    numpyro.sample("y", dist.Normal(square, 0.5), obs=y)


TWO = np.array([4.0, 4.2])


@pytest.fixture(scope="module")
def truth():
    """The share of the right mode and the log evidence, by quadrature."""
    with jax.numpy_dtype_promotion("standard"):
        x, density, total = integral(from_numpyro(two_modes, TWO))
    return np.trapezoid(density[x > 0], x[x > 0]) / total, np.log(total)


@pytest.fixture(scope="module")
def ran():
    """A run with known modes; vectorised chains."""
    with jax.numpy_dtype_promotion("standard"):
        kernel = WHMC(two_modes, modes=[[2.0], [-2.0]], progress=False)
        mcmc = MCMC(
            kernel, num_warmup=50, num_samples=1000, num_chains=4, chain_method="vectorized", progress_bar=False
        )
        mcmc.run(KEY, TWO, extra_fields=("potential_energy", "mode", "accept_prob", "num_steps"))
    return kernel, mcmc


def share_is_right(draws, truth):
    """The share of positive draws, with a standard error from the effective number of draws."""
    right = (np.asarray(draws) > 0).astype(float)
    num = float(numpyro.diagnostics.effective_sample_size(right))
    assert num > 0.1 * right.size
    assert abs(right.mean() - truth[0]) < 5 * np.sqrt(truth[0] * (1 - truth[0]) / num)


def test_mcmc_with_whmc_gives_the_right_weights(ran, truth):
    _, mcmc = ran
    values = mcmc.get_samples(group_by_chain=True)
    assert values["a"].shape == (4, 1000) and set(values) == {"a", "square"}
    np.testing.assert_allclose(values["square"], values["a"] ** 2)
    share_is_right(values["a"], truth)


def test_fields_and_summary_are_those_of_mcmc(ran, capsys):
    kernel, mcmc = ran
    fields = mcmc.get_extra_fields(group_by_chain=True)
    a = mcmc.get_samples(group_by_chain=True)["a"]
    np.testing.assert_allclose(
        -fields["potential_energy"], jax.jit(jax.vmap(jax.vmap(kernel.target)))(a[..., None]), rtol=1e-9
    )
    assert np.array_equal(fields["mode"] == 0, a > 0)
    assert np.all(fields["num_steps"] >= 3) and np.all((fields["accept_prob"] >= 0) & (fields["accept_prob"] <= 1))
    assert not np.any(fields["diverging"])
    mcmc.print_summary()
    out = capsys.readouterr().out
    assert re.search(r"^ +a ", out, re.MULTILINE) and "square" not in out and "Number of divergences: 0" in out
    assert re.fullmatch(r"mode \d, \d+ gradients\. acc\. prob=\d\.\d\d", kernel.get_diagnostics_str(first(mcmc)))


def first(mcmc):
    """The state of the first chain."""
    return jax.tree.map(lambda leaf: leaf[0], mcmc.last_state)


def test_the_result_of_whmc_is_at_hand(ran, truth):
    kernel, mcmc = ran
    result = kernel.result(mcmc)
    assert np.array_equal(result.draws[..., 0], mcmc.get_samples(group_by_chain=True)["a"])
    heavy = int(np.argmax(result.modes.location[:, 0]))
    assert abs(result.modes.weight[heavy] - truth[0]) < 5 * result.modes.weight_se[heavy]
    assert abs(result.log_evidence - truth[1]) < 5 * result.log_evidence_se + 1e-3
    assert result.alarms == () and kernel.library.num_modes == 2 and kernel.search is None


def near():
    """Two Gaussians three standard deviations apart: two charts, and one mode, as the pass is .3 nats deep."""
    mixing = dist.Categorical(jnp.array([0.6, 0.4]))
    numpyro.sample("a", dist.MixtureSameFamily(mixing, dist.Normal(jnp.array([-1.5, 1.5]), 1.0)))


def test_the_result_tells_modes_by_peaks_as_that_of_sample_does(capsys):
    """It told them by charts alone; the extra field is written before the ascents, and still does."""
    with jax.numpy_dtype_promotion("standard"):
        kernel = WHMC(near, modes=[[-1.6], [1.6]], warmup=500, progress=False)
        mcmc = MCMC(kernel, num_warmup=0, num_samples=500, num_chains=4, chain_method="vectorized", progress_bar=False)
        mcmc.run(KEY, extra_fields=("mode",))
        kernel._progress = True
        result = kernel.result(mcmc)
    assert kernel.library.num_modes == 2 and set(np.unique(mcmc.get_extra_fields()["mode"])) == {0, 1}
    assert len(result.modes) == 1 and result.modes.peaks.tolist() == [2] and not result.label.any()
    assert result.gradients.modes > 0 and result.gradients.sampling == result.num_gradients > 0
    assert "whmc modes" in capsys.readouterr().err


def test_sequential_chains_and_later_runs_share_the_search(ran, truth):
    kernel, _ = ran
    library = kernel.library
    mcmc = MCMC(kernel, num_warmup=0, num_samples=400, num_chains=2, chain_method="sequential", progress_bar=True)
    mcmc.run(jax.random.key(1), TWO)
    assert kernel.library is library
    values = mcmc.get_samples(group_by_chain=True)["a"]
    assert values.shape == (2, 400) and not np.array_equal(values[0], values[1])
    share_is_right(values, truth)
    mcmc.post_warmup_state = mcmc.last_state
    mcmc.run(jax.random.key(2), TWO)
    share_is_right(mcmc.get_samples(group_by_chain=True)["a"], truth)


def test_new_numbers_in_an_old_array_are_new_data():
    """Modes at ±2, then at ±3, in one array, by one MCMC object that has compiled its step already; and back again."""
    with jax.numpy_dtype_promotion("standard"):
        kernel = WHMC(two_modes, finder=whmc.MultiStart(16), chains=4, warmup=100, progress=False)
        mcmc = MCMC(kernel, num_warmup=0, num_samples=50, num_chains=2, chain_method="vectorized", progress_bar=False)
        data = np.array([4.0, 4.2])
        mcmc.run(KEY, data)
        first = kernel.library
        data[:] = 9.0
        mcmc.run(KEY, data)
        second = kernel.library
        squares = np.asarray(mcmc.get_samples()["square"])  # posterior sd about 0.35
        assert abs(squares.mean() - 9.0) < 0.5 and squares.min() > 7.0, squares.mean()
        mcmc.run(KEY, np.array([4.0, 4.2]))
        assert kernel.library is first is not second
        np.testing.assert_allclose(np.asarray(mcmc.get_samples()["square"]).mean(), 4.1, atol=0.5)


def test_few_prepared_runs_are_kept(ran):
    kernel, _ = ran
    other = WHMC(two_modes, modes=[[2.0], [-2.0]], chains=2, warmup=10, progress=False)
    other._known.update(((n,), kernel._current()) for n in range(MAX_PREPARED))
    with jax.numpy_dtype_promotion("standard"):
        other.init(KEY, 0, None, (TWO,), {})
    assert len(other._known) == MAX_PREPARED and other._find((TWO.copy(),), {}) is other._current()


def test_chains_start_where_they_are_told(ran):
    kernel, _ = ran
    keys = jax.random.split(KEY, 3)
    state = kernel.init(keys, 0, {"a": jnp.array([-1.0, 2.0, 3.0])}, (TWO,), {})
    assert state.z["a"].tolist() == [-1.0, 2.0, 3.0] and state.potential_energy.shape == (3,)
    assert kernel.init(KEY, 0, {"a": jnp.asarray(1.5)}, (TWO,), {}).z["a"] == 1.5
    with pytest.raises(ValueError, match="not finite where chains start"):
        kernel.init(KEY, 0, {"a": jnp.asarray(np.inf)}, (TWO,), {})


def test_what_the_kernel_cannot_do_is_said(ran):
    kernel, mcmc = ran
    with pytest.raises(TypeError, match="use chain_method='vectorized'"):
        jax.eval_shape(lambda key: kernel.init(key, 0, None, (TWO,), {}), KEY)
    jitted = MCMC(kernel, num_warmup=0, num_samples=5, jit_model_args=True, progress_bar=False)
    with pytest.raises(ValueError, match="jit_model_args=True cannot work"):
        jitted.run(KEY, TWO)
    with pytest.raises(RuntimeError, match="knows no modes yet"):
        _ = WHMC(two_modes).library
    with pytest.raises(ValueError, match=r"mcmc\.sampler\.result"):
        WHMC(two_modes).result(mcmc)
    with pytest.raises(TypeError, match="model"):
        WHMC("model")
    with pytest.raises(ValueError, match="chains must be at least 1"):
        WHMC(two_modes, chains=0)


def test_without_x64_everything_is_float32_and_right(truth):
    with jax.enable_x64(False):
        kernel = WHMC(two_modes)
        mcmc = MCMC(
            kernel, num_warmup=50, num_samples=1000, num_chains=4, chain_method="vectorized", progress_bar=False
        )
        mcmc.run(jax.random.PRNGKey(0), TWO, extra_fields=("potential_energy",))
        values = mcmc.get_samples(group_by_chain=True)
        assert jnp.subtract(TWO, jnp.zeros(2)).dtype == jnp.float32  # the user's arrays work as before
    assert values["a"].dtype == values["square"].dtype == np.float32
    assert mcmc.get_extra_fields()["potential_energy"].dtype == np.float32
    share_is_right(values["a"], truth)
    result = kernel.result(mcmc)
    assert result.draws.dtype == np.float64 and kernel.search.library.size == 2
    assert abs(result.log_evidence - truth[1]) < 5 * result.log_evidence_se + 1e-3


def test_draws_agree_with_a_long_run_of_nuts():
    mcmc = MCMC(
        NUTS(shifted), num_warmup=1000, num_samples=5000, num_chains=4, chain_method="vectorized", progress_bar=False
    )
    mcmc.run(KEY, *SCHOOLS)
    theirs = mcmc.get_samples(group_by_chain=True)
    ours = whmc.sample(from_numpyro(shifted, *SCHOOLS), seed=0, progress=False).constrained()
    agree_in_moments(ours, theirs, ("mu", "tau", "theta"))


def agree_in_moments(ours, theirs, names):
    """Means and mean squares, within five standard errors."""
    for name in names:
        for power in (1, 2):
            (mean, error), (other, other_error) = (
                mean_and_error(np.asarray(draws[name]) ** power) for draws in (ours, theirs)
            )
            z = (mean - other) / np.hypot(error, other_error)
            assert np.all(np.abs(z) < 5), (name, power, z)


def mean_and_error(draws):
    num = numpyro.diagnostics.effective_sample_size(draws)
    return draws.mean(axis=(0, 1)), draws.std(axis=(0, 1)) / np.sqrt(num)


def test_the_page_runs(tmp_path):
    text = PAGE.read_text()
    code = "\n".join(re.findall(r"```python\n(.*?)```", text, flags=re.DOTALL))
    checks = """
assert len(result.modes) == 6 and (abs(result.modes.weight - 1 / 6) < 3 * result.modes.weight_se).all()
assert len(np.unique(np.argsort(values["mu"].reshape(-1, 3), axis=1), axis=0)) == 6
assert result.to_arviz()["posterior"]["mu"].dims == ("chain", "draw", "component")
assert len(one.modes) == 1
assert abs(one.log_evidence - result.log_evidence) < 5 * np.hypot(one.log_evidence_se, result.log_evidence_se)
agree_in_moments(everything.constrained(), values, ("w", "mu", "sigma"))
assert sum(mcmc.sampler.result(mcmc).modes.weight > 0.01) == 6  # a mode of unknown, tiny mass may be kept beside
"""
    helpers = "\n".join(map(inspect.getsource, (agree_in_moments, mean_and_error)))
    command = [sys.executable, "-c", f"{code}\n{helpers}\n{checks}"]
    done = subprocess.run(command, check=True, capture_output=True, text=True, cwd=tmp_path)
    assert not_printed(text, done.stdout) == []
