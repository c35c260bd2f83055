"""Saved results and ArviZ's groups: names come back as they were given, whatever a file makes of them."""

import dataclasses

import jax.numpy as jnp
import numpy as np
import pytest

import whmc
from reported import exact
from whmc.report import write_report
from whmc.testing import gaussian_mixture


@pytest.fixture(scope="module")
def result():
    """Exact draws in three dimensions."""
    return exact(gaussian_mixture([1.0], np.zeros((1, 3)), np.eye(3)[None]), chains=2, draws=20)


def with_values(result, constrain, **described):
    """The result of a target with such named values."""
    target = whmc.Target(result.target.logdensity, dim=3, constrain=constrain, **described)
    return dataclasses.replace(result, target=target)


def scoped(position):
    """Names as NumPyro's scopes make them: "enc/w" comes before "enc_b" by itself, and after it as "enc_w"."""
    return {"enc/w": position[:2], "enc_b": position[2]}


def test_names_with_a_slash_come_back(result, tmp_path):
    named = with_values(result, scoped, dims={"enc/w": ["in/out"]}, coords={"in/out": ["a/b", "c"]})
    loaded = whmc.load(named.save(tmp_path / "result.nc"))
    values = loaded.constrained()
    assert list(values) == ["enc/w", "enc_b"]
    np.testing.assert_array_equal(values["enc/w"], result.draws[..., :2])
    assert loaded.target.dims == {"enc/w": ["in/out"]} and list(loaded.target.coords["in/out"]) == ["a/b", "c"]
    assert loaded.summary() == named.summary()


def test_a_file_has_names_that_netcdf_takes(result):
    named = with_values(result, scoped, dims={"enc/w": ["in/out"]}, coords={"in/out": ["a/b", "c"]})
    posterior = named.to_arviz()["posterior"]
    assert posterior["enc_w"].dims == ("chain", "draw", "in_out") and list(posterior["in_out"].values) == ["a/b", "c"]


@pytest.mark.parametrize("name", [".", "..", ""])
def test_names_that_mean_folders_come_back(result, tmp_path, name):
    named = with_values(result, lambda position: {name: position})
    assert list(whmc.load(named.save(tmp_path / "result.nc")).constrained()) == [name]


REFUSED = [
    (lambda x: {"a\0b": x}, {}, r"has a NUL in its name"),
    (lambda x: {"a/b": x[0], "a_b": x[1]}, {}, r"'a_b' is 'a_b' in a file, as is the parameter 'a/b': rename"),
    (lambda x: {"chain": x}, {}, r"parameter 'chain' is 'chain' in a file, as is the axis 'chain'"),
    (lambda x: {"m": jnp.outer(x, x)}, {"dims": {"m": ["a/b", "a_b"]}}, r"as is the dimension 'a/b'"),
    (lambda x: {"m": x, "axis": x[0]}, {"dims": {"m": ["axis"]}}, r"'axis' is the name of a parameter and of a dim"),
    (lambda x: {"m": x, "m_dim_0": x[0]}, {}, r"'m_dim_0' is the name of a parameter and of a dimension"),
]


@pytest.mark.parametrize(("constrain", "described", "says"), REFUSED, ids=[says for *_, says in REFUSED])
def test_names_that_a_file_cannot_hold_together_are_refused(result, tmp_path, constrain, described, says):
    with pytest.raises(ValueError, match=says):
        with_values(result, constrain, **described).save(tmp_path / "result.nc")
    assert not list(tmp_path.iterdir())


def test_there_is_no_energy_to_be_mistaken_for_that_of_the_dynamics(result):
    """`az.bfmi` takes `energy` for the energy of Hamiltonian dynamics; minus the log density is not."""
    stats = result.to_arviz()["sample_stats"]
    assert "energy" not in stats.data_vars and "lp" in stats.data_vars


def test_a_template_of_which_evaluations_fail_is_looked_at_and_saved(tmp_path):
    """A whole run, half of whose proposals are where the density is NaN; the alarm tells one of them."""
    target = whmc.Target(lambda p: jnp.where(p["a"] > 0.0, jnp.nan, -0.5 * p["a"] ** 2), template={"a": 0.0})
    library = whmc.ModeLibrary.from_charts(np.array([[-0.1]]), np.ones((1, 1, 1)))
    result = whmc.sample(
        target, modes=library, kernel=whmc.Independence(), chains=2, draws=40, warmup=0, progress=False
    )
    write_report(result, tmp_path / "report.html")
    for one in (result, whmc.load(result.save(tmp_path / "result.nc"))):
        (alarm,) = (alarm for alarm in one.alarms if alarm.name == "evaluations failed")
        assert 0.2 < alarm.figure < 0.8 and one.failed_at.shape == (1,) and one.failed_at[0] > 0
        assert f"such as at [{one.failed_at[0]:.6f}".rstrip("0") in alarm.message and alarm.message in one.summary()


def test_modes_are_where_they_were_within_bounds(result, tmp_path):
    """Without its target too: bounds are stored with the names."""
    bounds = [(-9.0, 9.0), (-9.0, None), (None, None)]
    target = whmc.Target(result.target.logdensity, dim=3, names=["a", "b", "c"], bounds=bounds)
    bounded = dataclasses.replace(result, target=target)
    loaded = whmc.load(bounded.save(tmp_path / "result.nc"))
    np.testing.assert_array_equal(loaded.modes.location, bounded.modes.location)
    np.testing.assert_allclose(bounded.modes.location[0], [0.0, -8.0, 0.0], atol=1e-12)
