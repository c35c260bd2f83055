"""PyMC models as targets: PyMC's own density and transforms, names, prior draws, evidence, errors."""

import contextlib
import io
import os
import subprocess
import sys
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.special import gammaln

import whmc
from unchecked import unchecked
from whmc.estimate.parameters import ParameterTable
from whmc.frontends.pymc import from_pymc
from whmc.target.meant import is_pymc

with warnings.catch_warnings():
    warnings.filterwarnings("ignore", message=r"\s*ArviZ is undergoing a major refactor", category=FutureWarning)
    import pymc as pm
import pytensor
import pytensor.tensor as pt
from pytensor.compile.ops import wrap_py

pytestmark = [
    pytest.mark.models,
    pytest.mark.xdist_group("pymc"),  # models are compiled once, not in every worker
    # where there is no C compiler or no BLAS for it, PyTensor says so once
    pytest.mark.filterwarnings("ignore:PyTensor could not link to a BLAS installation:UserWarning"),
    pytest.mark.filterwarnings(r"ignore:\s*ArviZ is undergoing a major refactor:FutureWarning"),
]


@pytest.fixture(scope="module")
def everything():
    """A model with a variable for each kind of transform, one interval with ends that are variables, two improper
    priors, data, a potential and deterministics."""
    rng = np.random.default_rng(0)
    with pm.Model(coords={"component": ["a", "b", "c"], "row": [10, 20], "case": np.arange(6)}) as model:
        x = pm.Data("x", rng.normal(size=6), dims="case")
        weight = pm.Dirichlet("weight", np.ones(3), dims="component")
        place = pm.Normal("place", 0.0, 2.0, dims="component", transform=pm.distributions.transforms.ordered)
        sigma = pm.HalfNormal("sigma", 1.0, dims="row")
        top = pm.Uniform("top", 1.0, 3.0)
        inside = pm.Uniform("inside", -sigma[0], top)
        pm.LKJCholeskyCov("chol", n=2, eta=2.0, sd_dist=pm.Exponential.dist(1.0))
        flat = pm.Flat("flat")
        half = pm.HalfFlat("half", shape=2)
        pm.VonMises("angle", 0.3, 2.0)
        pm.Deterministic("table", place[None, :] * weight + sigma[:, None], dims=("row", "component"))
        pm.Potential("hold", -0.5 * (flat**2 + pt.sum(half**2)))
        pm.Normal("y", inside + place[0] * x, sigma[1], observed=rng.normal(size=6), dims="case")
    return model, from_pymc(model)


@pytest.fixture(scope="module")
def positions(everything):
    """A hundred places, the angle within its one turn."""
    _, target = everything
    return np.clip(np.random.default_rng(1).normal(size=(100, target.dim)), -3.1, 3.1)


@pytest.fixture(scope="module")
def evaluate(everything):
    """Values and scores at a hundred places, compiled once."""
    return jax.jit(jax.vmap(jax.value_and_grad(everything[1])))


def points(model, positions):
    """Positions as PyMC takes them: dictionaries of value variables, in the model's order."""
    first = model.initial_point()
    edges = np.cumsum([first[value.name].size for value in model.value_vars])[:-1]
    for position in positions:
        parts = zip(model.value_vars, np.split(position, edges), strict=True)
        yield {value.name: part.reshape(first[value.name].shape) for value, part in parts}


def test_modes_and_initial_positions_may_be_what_pymc_samples(everything, positions):
    _, target = everything
    at = positions[:2]
    values = jax.jit(jax.vmap(target.constrain))(jnp.asarray(at))
    np.testing.assert_allclose(target.flatten_all(values), at, rtol=1e-9, atol=1e-9)
    one = {name: np.asarray(rows[0]) for name, rows in values.items()}
    np.testing.assert_allclose(target.flatten_all([one]), at[:1], rtol=1e-9, atol=1e-9)


def test_a_model_in_place_of_a_target_is_told_what_to_write(everything):
    model, _ = everything
    for call in (lambda: whmc.sample(model), lambda: whmc.Target(model, dim=2)):
        with pytest.raises(TypeError, match=r"got Model: a PyMC model becomes a target by whmc.from_pymc\(model\)"):
            unchecked(call)


def test_parts_of_values_are_named_by_their_coords():
    with pm.Model(coords={"unit": ["a", "b"]}) as model:
        pm.Normal("inner", 0.0, 1.0, dims="unit")
    target = from_pymc(model, symmetries=whmc.Flip("inner[b]"))
    assert "inner[b]" in target.names
    np.testing.assert_array_equal(target.group.sign[1], [1, -1])


def test_log_density_and_gradient_are_pymcs(everything, positions, evaluate):
    """Equal up to one constant, sign included, and the constant is nothing but PyMC's rounding: it computes log(2.0)
    in single precision."""
    model, target = everything
    values, scores = evaluate(positions)
    logp, dlogp = (make(mode="FAST_COMPILE") for make in (model.compile_logp, model.compile_dlogp))
    theirs = list(points(model, positions))
    assert len(theirs) == 100
    off = np.asarray(values) - [logp(point) for point in theirs]
    assert np.abs(off.mean()) < 1e-6 and np.ptp(off) < 1e-11 * np.abs(values).max()
    np.testing.assert_allclose(scores, [dlogp(point) for point in theirs], rtol=1e-8, atol=1e-8)
    assert target.logdensity_dtype == np.float64


def test_values_are_pymcs_and_lead_back(everything, positions):
    model, target = everything
    values = jax.jit(jax.vmap(target.constrain))(jnp.asarray(positions))
    variables = [*model.free_RVs, *model.deterministics]
    assert sorted(values) == sorted(variable.name for variable in variables)
    theirs = model.compile_fn(
        model.replace_rvs_by_values(variables), inputs=model.value_vars, mode="FAST_COMPILE", on_unused_input="ignore"
    )
    for n, point in enumerate(points(model, positions[:10])):
        for variable, value in zip(variables, theirs(point), strict=True):
            np.testing.assert_allclose(values[variable.name][n], value, rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(values["weight"].sum(axis=1), 1.0, rtol=1e-12)
    assert (np.diff(values["place"], axis=1) > 0).all() and (values["sigma"] > 0).all()
    assert (-values["sigma"][:, 0] < values["inside"]).all() and (values["inside"] < values["top"]).all()
    back = jax.jit(jax.vmap(target.unconstrain))(values)  # with the deterministics, which are not needed
    np.testing.assert_allclose(back, positions, rtol=1e-9, atol=1e-9)


def test_names_dims_and_coords(everything):
    _, target = everything
    assert len(target.names) == len(set(target.names)) == target.dim == 16
    assert target.coordinates[:7] == [
        "weight_simplex__[0]",
        "weight_simplex__[1]",
        "place_ordered__[a]",
        "place_ordered__[b]",
        "place_ordered__[c]",
        "sigma_log__[10]",
        "sigma_log__[20]",
    ]
    kept = {"weight": ("component",), "place": ("component",), "sigma": ("row",), "table": ("row", "component")}
    assert target.dims == kept
    assert {name: list(places) for name, places in target.coords.items()} == {
        "component": ["a", "b", "c"],
        "row": [10, 20],
    }


def test_labels_that_occur_twice_give_way_to_numbers():
    with pm.Model(coords={"city": ["a", "a"]}) as model:
        pm.Normal("height", dims="city")
    assert from_pymc(model).coordinates == ["height[0]", "height[1]"]


def test_an_angle_has_one_turn(everything, positions, evaluate):
    """Its density repeats itself: without an end it has no integral, and modes without number."""
    _, target = everything
    (at,) = [n for n, name in enumerate(target.names) if name.startswith("angle")]
    around = positions.copy()
    around[:, at] = np.pi + np.tile([-0.01, 0.01], 50)
    values, _ = evaluate(around)
    assert np.isfinite(values[::2]).all() and (values[1::2] == -np.inf).all()


def test_starts_are_draws_from_the_prior(everything, evaluate):
    _, target = everything
    rows = target.draw_starts(jax.random.key(0), 500)
    assert (rows == target.draw_starts(jax.random.key(0), 500)).all()
    assert (rows[:100] != target.draw_starts(jax.random.key(1), 100)).any(axis=1).all()
    assert np.isfinite(evaluate(rows[:100])[0]).all()
    values = jax.jit(jax.vmap(target.constrain))(rows)

    def z(name, mean, sd):
        return np.abs(np.mean(values[name], axis=0) - mean) / sd * np.sqrt(len(rows))

    assert (z("weight", 1 / 3, np.sqrt(2 / 9 / 4)) < 5).all()
    assert (z("sigma", np.sqrt(2 / np.pi), np.sqrt(1 - 2 / np.pi)) < 5).all()
    assert z("top", 2.0, 2 / np.sqrt(12)) < 5
    # the order of three normal values of standard deviation 2: the expected largest is 0.8463 of them
    assert (z("place", 2 * 0.8463 * np.array([-1.0, 0.0, 1.0]), 2 * np.sqrt([0.5595, 0.4487, 0.5595])) < 5).all()
    # no prior: a box around the initial point, 0 and log 1
    assert z("flat", 0.0, 4 / np.sqrt(12)) < 5 and np.abs(values["flat"]).max() <= 2
    assert (np.abs(np.log(values["half"])) <= 2).all() and np.log(values["half"]).std() > 1


def test_starts_where_draws_fail():
    """Where the prior gives parameters that are none it is drawn from again; a mere density starts in the box."""
    with pm.Model() as model:
        scale = pm.Normal("scale", 0.0, 1.0)
        pm.Normal("x", 0.0, scale)
    rows = from_pymc(model).draw_starts(jax.random.key(0), 40)
    assert (rows[:, 0] > 0).all() and np.abs(rows[:, 1]).max() > 0
    with pm.Model() as model:
        pm.CustomDist("x", 0.5, logp=lambda value, rate: -rate * value**2, shape=2)
    rows = from_pymc(model).draw_starts(jax.random.key(0), 40)
    assert (np.abs(rows) <= 2).all() and (rows.std(axis=0) > 0.8).all()


def test_parameters_out_of_range_have_no_density():
    """PyMC's own compiled function says so; its function for JAX goes on with a formula that means nothing there."""
    with pm.Model() as model:
        pm.Normal("shape", 1.0, 1.0)
        pm.Gamma("y", alpha=model["shape"], beta=1.0, observed=2.0)
    target, logp = from_pymc(model), model.compile_logp(mode="FAST_COMPILE")
    assert np.isclose(target(jnp.array([0.5])), logp({"shape": 0.5}), rtol=1e-12)
    assert target(jnp.array([-0.5])) == logp({"shape": -0.5}) == -np.inf
    assert not target.evaluate(jnp.array([-0.5])).failed


def test_single_precision_models_are_sampled_in_double():
    def differences(dtype):
        with pytensor.config.change_flags(floatX=dtype):
            with pm.Model() as model:
                weight = pm.Dirichlet("weight", np.array([0.5, 1.5, 2.0]))
                place = pm.Normal("place", 0.0, 2.0, shape=3, transform=pm.distributions.transforms.ordered)
                pm.HalfFlat("half")
                pm.NormalMixture("y", weight, place, 0.5, observed=np.array([0.25, 0.5, -1.75]))
            target = from_pymc(model)
        assert target.logdensity_dtype == np.float64
        at = jnp.linspace(-1.0, 1.1, target.dim)
        assert all(value.dtype == np.float64 for value in target.constrain(at).values())
        np.testing.assert_allclose(target.unconstrain(target.constrain(at)), at, rtol=1e-12, atol=1e-12)
        assert np.isfinite(target.draw_starts(jax.random.key(0), 20)).all()
        return np.diff(jax.vmap(target)(jnp.stack([at, -at, 2 * at])))

    # PyMC's own constants, such as log 2π, were rounded when the model was written
    np.testing.assert_allclose(differences("float32"), differences("float64"), rtol=1e-13)


def test_data_are_taken_as_they_are_now():
    with pm.Model() as model:
        data = pm.Data("data", [1.0, 2.0])
        pm.Normal("x", 0.0, 1.0)
        pm.Normal("y", model["x"], 1.0, observed=data)
        first = from_pymc()  # the model of the block
        pm.set_data({"data": [1.0, 5.0]})
    second, at = from_pymc(model), jnp.zeros(1)
    assert np.isclose(first(at) - second(at), (25 - 4) / 2, rtol=1e-12)


def test_a_model_is_known_without_pymc():
    class Mine(pm.Model):
        pass

    assert is_pymc(Mine()) and not is_pymc(np.zeros(3)) and not is_pymc(pm.Model)
    code = "import sys; from whmc.frontends.pymc import is_pymc; print(is_pymc(3), 'pymc' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert done.stdout.split() == ["False", "False"]


@pytest.mark.parametrize("flags", [None, "--xla_force_host_platform_device_count=2"])
def test_settings_of_the_process_are_left_alone(flags):
    """PyMC's JAX part asks for a hundred devices and sets the precision, both for the whole process."""
    code = """
import os, jax, pymc as pm
from whmc.frontends.pymc import from_pymc
before = os.environ.get("XLA_FLAGS")
with pm.Model() as model:
    pm.Normal("x")
with jax.enable_x64(True):  # hides the setting of the process
    target = from_pymc(model)
print(os.environ.get("XLA_FLAGS") == before, jax.config.jax_enable_x64, jax.numpy.ones(1).dtype, jax.device_count())
with jax.enable_x64(True):
    print(target(jax.numpy.ones(1)))
"""
    env = {name: value for name, value in os.environ.items() if name not in ("XLA_FLAGS", "JAX_ENABLE_X64")}
    env |= {} if flags is None else {"XLA_FLAGS": flags}
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True, env=env)
    assert done.stdout.split() == ["True", "False", "float32", "1" if flags is None else "2", "-1.4189385332046727"]


def discrete():
    pm.Bernoulli("kind", 0.5)
    pm.Poisson("count", 3.0, shape=2)
    pm.Normal("x")


def nothing_free():
    pm.Normal("y", 0.0, 1.0, observed=1.0)


def in_batches():
    batch = pm.Minibatch(np.arange(10.0), batch_size=2)
    pm.Normal("y", pm.Normal("x"), 1.0, observed=batch, total_size=10)


def foreign():
    """An operation in Python, which JAX cannot follow."""
    cube = wrap_py(itypes=[pt.dscalar], otypes=[pt.dscalar])(lambda x: np.asarray(x**3))
    x = pm.Normal("x")
    pm.Deterministic("plain", x**2)
    pm.Deterministic("cubed", cube(x))


def foreign_density():
    cube = wrap_py(itypes=[pt.dscalar], otypes=[pt.dscalar])(lambda x: np.asarray(-(x**4)))
    pm.Potential("p", cube(pm.Normal("x")))


def shape_by_value():
    pm.Potential("p", pt.unique(pm.Normal("x", shape=3)).sum())


def predicted():
    pm.Deterministic("prediction", pm.Normal.dist(pm.Normal("x"), 1.0))


@pytest.mark.parametrize(
    ("write", "kind", "words"),
    [
        (discrete, ValueError, r"discrete variables, kind, count: .*pymc\.NormalMixture.*pymc_extras\.marginalize"),
        (nothing_free, ValueError, "no free variables"),
        (in_batches, ValueError, r"the log density is random.*whole data instead of pymc\.Minibatch"),
        (foreign, NotImplementedError, r"cubed has an operation that JAX lacks.*lambda.*jax_funcify\.register"),
        (foreign_density, NotImplementedError, r"the log density has an operation that JAX lacks.*lambda"),
        (shape_by_value, Exception, "whmc: raised while JAX followed PyMC's log density"),
        (predicted, ValueError, r"prediction is random.*sample_posterior_predictive"),
    ],
)
def test_models_that_cannot_be_sampled(write, kind, words):
    with pm.Model() as model:
        write()
    with pytest.raises(kind, match=words):
        from_pymc(model)


def test_arguments_that_are_no_models(everything):
    with pytest.raises(TypeError, match=r"takes a pymc\.Model, got function"):
        from_pymc(lambda x: x)
    with pytest.raises(TypeError, match="not inside a model"):
        from_pymc()
    _, target = everything
    values = target.constrain(jnp.zeros(target.dim))
    with pytest.raises(ValueError, match="values of top, angle are missing"):
        target.unconstrain({name: value for name, value in values.items() if name not in ("top", "angle")})
    with pytest.raises(ValueError, match=r"place has shape \(2,\): the model has \(3,\)"):
        target.unconstrain(values | {"place": jnp.zeros(2)})


COUNTS = [6, 9, 12]
"""Observations of three groups."""


@pytest.fixture(scope="module")
def conjugate():
    """Group means around a common zero with unknown variance: everything is known in closed form."""
    rng = np.random.default_rng(3)
    group = np.repeat(np.arange(3), COUNTS)
    y = rng.normal(np.array([-1.0, 0.5, 2.0])[group], 0.8)
    with pm.Model(coords={"group": ["low", "middle", "high"]}) as model:
        variance = pm.InverseGamma("variance", 3.0, 2.0)
        mean = pm.Normal("mean", 0.0, pt.sqrt(variance / 0.5), dims="group")
        pm.Deterministic("span", mean[2] - mean[0])
        pm.Normal("y", mean[group], pt.sqrt(variance), observed=y)
    target = from_pymc(model)
    near = target.unconstrain({"variance": 0.6, "mean": np.array([-1.0, 0.5, 2.0])})
    return model, y, group, whmc.sample(target, seed=0, modes=near[None])


def log_evidence(y, group):
    """Of the normal and inverse gamma model: a = 3, b = 2, precision of the means 0.5 / variance."""
    counts = np.bincount(group)
    sums = np.bincount(group, y)
    a, b = 3 + len(y) / 2, 2 + (y @ y - np.sum(sums**2 / (counts + 0.5))) / 2
    normal = -len(y) / 2 * np.log(2 * np.pi) + np.sum(np.log(0.5 / (counts + 0.5))) / 2
    return normal + gammaln(a) - gammaln(3) + 3 * np.log(2) - a * np.log(b)


def test_evidence_is_that_of_the_model(conjugate):
    _, y, group, result = conjugate
    assert result.alarms == () and result.library.num_modes == 1
    assert result.log_evidence_se < 0.02
    assert abs(result.log_evidence - log_evidence(y, group)) < 5 * result.log_evidence_se


def test_arviz_has_the_models_dims_and_coords(conjugate):
    *_, result = conjugate
    posterior = result.to_arviz()["posterior"]
    assert set(posterior.data_vars) == {"variance", "mean", "span"}
    assert posterior["mean"].dims == ("chain", "draw", "group")
    assert list(posterior["group"].values) == ["low", "middle", "high"]
    span = posterior["mean"].sel(group="high") - posterior["mean"].sel(group="low")
    np.testing.assert_allclose(posterior["span"], span, rtol=1e-12)


@pytest.mark.slow  # the density is PyMC's own, number for number; NumPyro's tests compare draws with NUTS
@pytest.mark.filterwarnings("ignore:.*:DeprecationWarning:numpyro")
def test_draws_agree_with_pymcs_nuts(conjugate):
    model, *_, result = conjugate
    with jax.numpy_dtype_promotion("standard"), contextlib.redirect_stderr(io.StringIO()):
        nuts = pm.sampling.jax.sample_numpyro_nuts(
            draws=2000, tune=1000, chains=4, random_seed=1, model=model, chain_method="vectorized", progressbar=False
        )
    theirs = {name: np.asarray(nuts["posterior"][name]) for name in ("variance", "mean", "span")}
    ours = {name: result.constrained()[name] for name in theirs}
    squares = [{f"{name}²": value**2 for name, value in values.items()} for values in (ours, theirs)]
    one, other = (ParameterTable.of(values | more) for values, more in zip((ours, theirs), squares, strict=True))
    assert one.name == other.name and len(one) == 10
    z = (one.mean - other.mean) / np.sqrt(one.sd**2 / one.ess + other.sd**2 / other.ess)
    assert np.abs(z).max() < 5
    assert min(one.ess.min(), other.ess.min()) > 1000
