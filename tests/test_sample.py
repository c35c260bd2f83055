"""Whole runs of `sample` with known modes, bad input, and what a run must not do."""

import subprocess
import sys
from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import whmc
from contracts import only_these_at_every_change, problem
from traps.basin_truth import shares
from unchecked import unchecked
from whmc.kernels.block import compute_block
from whmc.testing import Problem, gaussian_mixture, loggamma_pair


@cache
def unit_pair(dim: int) -> Problem:
    """Cached, so that runs of the same target share their compilation."""
    means = np.zeros((2, dim))
    means[1, 0] = 10.0
    return gaussian_mixture([0.9, 0.1], means, np.tile(np.eye(dim), (2, 1, 1)))


@pytest.mark.parametrize("dim", only_these_at_every_change([2, 20], [2]))
@pytest.mark.parametrize("start", only_these_at_every_change([0, 1], [0]))
def test_unit_pair_from_one_mode(dim, start):
    case = unit_pair(dim)
    initial = np.tile(case.locations[start], (16, 1))
    result = whmc.sample(case.target, modes=case.locations, seed=dim, initial=initial, draws=1250)
    table = result.modes
    assert table.weight_se[0] < 0.005
    assert abs(table.weight[0] - 0.9) < 3 * table.weight_se[0]
    variance = result.draws[result.label == 0].var(axis=0)
    # 18 000 nearly independent draws: a variance has relative error sqrt(2/18000) = .011
    np.testing.assert_allclose(variance, 1.0, atol=0.055)


@pytest.mark.parametrize(
    "name",
    only_these_at_every_change(["three", "log-gamma", "many-well", "himmelblau", "diagonal", "line"], []),
)
def test_weights_from_one_mode(name):
    case = problem(name)
    initial = np.tile(case.locations[0], (16, 1))
    result = whmc.sample(case.target, modes=case.locations, seed=3, initial=initial, draws=1000)
    truth, error = shares(result, case.draw(np.random.default_rng(0), 20_000)[0])
    error = np.hypot(result.modes.weight_se, error)
    assert result.num_modes > 1
    assert np.all(np.abs(result.modes.weight - truth) < 5 * error), (result.modes.weight, truth, error)
    assert np.all(result.modes.weight_se < 0.02)


@pytest.mark.ci
def test_skewed_modes_get_a_throat():
    case = loggamma_pair(100)
    result = whmc.sample(case.target, modes=case.locations, seed=0)
    assert int(result.kernel.kernels[1].throat) > 0
    assert result.acceptance["Wormhole"] > 0.4
    assert abs(result.modes.weight[0] - 0.7) < 3 * result.modes.weight_se[0]
    assert result.modes.weight_se[0] < 0.02


@pytest.mark.slow
def test_skewed_modes_in_a_thousand_dimensions():
    case = loggamma_pair(1000)
    result = whmc.sample(case.target, modes=case.locations, seed=0)
    assert result.acceptance["Wormhole"] > 0.4
    assert abs(result.modes.weight[0] - 0.7) < 3 * result.modes.weight_se[0]
    assert result.modes.weight_se[0] < 0.02
    # a step costs the throat twice and the local move; the throats that are tried have up to 1024 steps
    assert result.num_gradients < 500 * result.draws.shape[0] * result.draws.shape[1]


def test_one_compilation_for_the_whole_run():
    case = unit_pair.__wrapped__(3)
    before = compute_block._cache_size()
    result = whmc.sample(case.target, modes=case.locations, chains=4, draws=250, warmup=200)
    assert compute_block._cache_size() == before + 1
    assert result.draws.shape == (4, 250, 3)
    whmc.sample(case.target, modes=case.locations, chains=4, draws=20, warmup=50, seed=9)
    assert compute_block._cache_size() == before + 1  # and none for another run of the same target


COUNTED = """
import logging
import jax
import jax.numpy as jnp
import whmc

class Listen(logging.Handler):
    def emit(self, record):
        if record.getMessage().startswith("Finished XLA compilation"):
            print(record.getMessage())

jax.config.update("jax_log_compiles", True)
for name in ("jax._src.dispatch", "jax._src.interpreters.pxla"):
    logging.getLogger(name).addHandler(Listen())
    logging.getLogger(name).propagate = False
target = whmc.Target(lambda x: jnp.logaddexp(-jnp.sum((x - 3) ** 2), -2 * jnp.sum((x + 3) ** 2)), dim=2, starts=(-9, 9))
str(whmc.sample(target, draws=100, warmup=100))
"""


def test_a_whole_run_compiles_few_functions():
    """From search to summary. Each call of jnp on the host would be one or two more."""
    done = subprocess.run([sys.executable, "-c", COUNTED], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("jit(compute_block)") == 1 and done.stdout.count("jit(_evaluate)") == 1
    assert len(done.stdout.splitlines()) <= 12, done.stdout


def test_one_mode_works_without_jumps():
    target = whmc.Target(lambda x: -0.5 * jnp.sum(x**2), dim=3)
    result = whmc.sample(target, modes=[[0.0, 0.0, 0.0]], draws=500)
    assert result.jumps.sum() == 0
    assert result.modes.weight[0] == 1.0
    assert "Wormhole" not in result.steps  # nothing is spent on jumps
    jumpy = whmc.sample(target, modes=[[0.0, 0.0, 0.0]], draws=50, kernel=whmc.Wormhole(throat=3))
    assert jumpy.acceptance["Wormhole"] == 0.0
    assert np.all(np.abs(result.draws.mean(axis=(0, 1))) < 5 / np.sqrt(8000))


def test_a_users_kernel_is_run_as_written():
    case = unit_pair(2)
    kernel = whmc.Cycle((whmc.LocalHMC(num_steps=7), whmc.GibbsWormhole(), whmc.WormholeTrajectory(num_steps=3)))
    result = whmc.sample(case.target, modes=case.locations, kernel=kernel, draws=300)
    assert int(result.kernel.kernels[0].num_steps) == 7
    assert set(result.steps) == {"LocalHMC", "GibbsWormhole", "WormholeTrajectory"}
    assert abs(result.modes.weight[0] - 0.9) < 5 * result.modes.weight_se[0]
    # the Gibbs form weighs a density for each chart, and takes a gradient where it lands
    assert result.num_gradients == 16 * 300 * (7 + (result.library.size + 1) + 4)


def test_library_instead_of_locations():
    case = unit_pair(2)
    result = whmc.sample(case.target, modes=case.library, draws=300)
    assert abs(result.modes.weight[0] - 0.9) < 5 * result.modes.weight_se[0]


@pytest.mark.ci
def test_draws_that_never_move_leave_the_chart_alone():
    """Nothing is accepted at first: no crash, and no chart without extent."""
    target = whmc.Target(lambda x: -1e12 * jnp.sum(x**4), dim=2, starts=(-1.0, 1.0))
    result = whmc.sample(target, modes=[[0.0, 0.0]], chains=2, draws=20, warmup=60)
    assert np.all(np.isfinite(result.draws)) and np.all(np.diagonal(result.library.scale[0]) > 0)


def test_nested_cycles_are_one_cycle():
    inner = whmc.Cycle((whmc.LocalHMC(), whmc.Wormhole()))
    assert len(whmc.Cycle((inner, whmc.Independence())).kernels) == 3


def test_init_asks_for_the_librarys_precision():
    case = unit_pair(2)
    library = case.library
    with jax.enable_x64(False), pytest.raises(TypeError, match="enable_x64"):
        whmc.init([0.0, 0.0], case.target, library)


def test_zero_warmup_runs_untuned():
    case = unit_pair(2)
    result = whmc.sample(case.target, modes=case.locations, draws=50, warmup=0)
    assert result.num_warmup_gradients == 0 and np.all(np.isfinite(result.draws))


def test_nan_regions_are_counted_and_never_entered():
    def logdensity(x):
        return jnp.where(x[0] > 1.0, jnp.nan, -0.5 * jnp.sum(x**2))

    result = whmc.sample(whmc.Target(logdensity, dim=2), modes=[[0.0, 0.0]], draws=400)
    assert result.num_failed > 0
    assert "failed evaluations: " + str(result.num_failed) in result.summary()
    assert np.all(np.isfinite(result.draws)) and result.draws[..., 0].max() <= 1.0
    # the truncated normal's mean is -phi(1)/Phi(1) = -.288; 6400 draws
    assert abs(result.draws[..., 0].mean() + 0.2876) < 0.06


def test_summary_tells_the_run():
    result = whmc.sample(unit_pair(2).target, modes=unit_pair(2).locations, draws=50, warmup=50)
    text = result.summary()
    assert "16 chains x 50 draws in 2 dimensions, 2 modes" in text
    assert f"log evidence {result.log_evidence:.3f} ± {result.log_evidence_se:.3f}" in text
    counts = np.bincount(result.label.ravel(), minlength=2)
    for k in range(2):
        row = next(line.split() for line in text.splitlines() if line.split()[:1] == [str(k)])
        assert row[1:3] == [f"{result.modes.weight[k]:.4f}", f"{result.modes.weight_se[k]:.4f}"]
        assert int(row[5]) == counts[k]
    spent = 0
    for name, info in result.steps.items():
        assert f"{name} {np.mean(np.minimum(np.exp(info.log_ratio), 1)):.2f}" in text
        spent += info.num_gradients.sum()
    assert f"regenerations: {result.steps['Independence'].regenerated.sum()}" in text
    assert f"gradients: 0 search + {result.num_warmup_gradients} warm-up + {spent} sampling" in text
    assert f"Wormhole.throat {int(result.kernel.kernels[1].throat)}" in text


def test_progress_line_only_when_asked(capsys):
    case = unit_pair(2)
    whmc.sample(case.target, modes=case.locations, draws=20, warmup=20, chains=2, progress=True)
    assert "sampling" in capsys.readouterr().err
    whmc.sample(case.target, modes=case.locations, draws=20, warmup=20, chains=2, progress=False)
    assert capsys.readouterr().err == ""


def normal(x):
    return -0.5 * jnp.sum(x**2)


def charts(scale, **changes):
    return whmc.ModeLibrary.from_charts(np.zeros((1, 2)), scale, **changes)


def cut(x, value):
    return jnp.where(x[0] > 5, value, normal(x))


GOOD = {"modes": [[0.0, 0.0]], "draws": 5, "warmup": 0, "chains": 2}
BAD = [
    (lambda: whmc.Target(normal, dim=0), ValueError, "positive integer, got 0"),
    (lambda: whmc.Target(normal, dim=2.5), ValueError, "2.5"),  # type: ignore[arg-type]
    (lambda: whmc.Target(3, dim=2), TypeError, "function"),  # type: ignore[arg-type]
    (lambda: whmc.Target(normal, dim=2, names=["a"]), ValueError, "1 entries for dim = 2"),
    (lambda: whmc.Target(normal, dim=2, starts=(1.0, -1.0)), ValueError, "low < high"),
    (lambda: whmc.Target(normal, dim=2, starts=([0.0] * 3, [1.0] * 3)), ValueError, r"\(3,\)"),
    (lambda: whmc.Target(normal, dim=2, starts=np.zeros((4, 3))), ValueError, r"\(4, 3\)"),
    (lambda: whmc.Target(normal, dim=5, template={"a": np.zeros(2)}), ValueError, "template holds 2"),
    (lambda: run(modes=[[0.0, 0.0, 0.0]]), ValueError, r"shape \(1, 3\).*\(K, 2\)"),
    (lambda: run(modes=[0.0, 0.0]), ValueError, r"shape \(2,\)"),
    (lambda: run(modes=[[0.0, np.nan]]), ValueError, "mode 0 is not finite"),
    (lambda: run(modes=[[0.0, 0.0], [0.0, 0.0]]), ValueError, "modes 0 and 1 are the same point"),
    (lambda: run(modes=None), ValueError, "nowhere to start a search"),
    (lambda: run(modes=np.zeros((0, 2))), ValueError, r"shape \(0, 2\)"),
    (lambda: run(modes=whmc.ModeLibrary.empty(2)), ValueError, "library is empty"),
    (lambda: run(modes=whmc.ModeLibrary.empty(3)), ValueError, "dimension 3, the target 2"),
    (lambda: run(modes=[[9.0, 9.0]], f=lambda x: cut(x, -jnp.inf)), ValueError, "outside the support"),
    (lambda: run(f=lambda x: jnp.nan * normal(x)), ValueError, "is NaN or infinite at mode 0"),
    (lambda: run(f=lambda x: x), ValueError, r"shape \(2,\).*missing .sum"),
    (lambda: run(f=lambda x: jnp.sum(x.astype(complex))), TypeError, "complex128"),
    (lambda: run(f=lambda x: jnp.sum(x > 0)), TypeError, "int64"),
    (lambda: run(f=lambda x: "no"), TypeError, "str"),
    (lambda: run(chains=0), ValueError, "chains must be at least 1, got 0"),
    (lambda: run(draws=-5), ValueError, "draws must be at least 1, got -5"),
    (lambda: run(warmup=-1), ValueError, "warmup must be at least 0"),
    (lambda: run(draws=10.0), TypeError, "draws must be an integer, got 10.0"),
    (lambda: run(seed="one"), TypeError, "seed must be an integer, got 'one'"),
    (lambda: run(seed=-1), ValueError, "seed must be at least 0"),
    (lambda: run(seed=True), TypeError, "seed must be an integer"),
    (lambda: run(seed=2**70), ValueError, "less than 2"),
    (lambda: run(initial=np.zeros((3, 2))), ValueError, r"initial has shape \(3, 2\): give \(2, 2\)"),
    (lambda: run(initial=np.full((2, 2), 7.0), f=lambda x: cut(x, jnp.nan)), ValueError, "2 of 2 chains cannot start"),
    (lambda: run(kernel=3), TypeError, "whmc kernel"),
    (lambda: whmc.sample(normal, **GOOD), TypeError, "wrap it"),
    (lambda: run(search="x"), TypeError, "search must be a number of gradients, got 'x' of type str"),
    (lambda: run(search=-1.0), ValueError, "search must be a number of gradients, got -1.0"),
    (lambda: run(f=lambda x: float(x[0])), TypeError, "jax.numpy.*or use whmc.from_numpy"),
    (lambda: jax.jit(lambda: run().log_evidence)(), TypeError, "JAX cannot trace: call it outside of jax.jit"),
    (lambda: jax.grad(shifted)(0.5), TypeError, "JAX cannot trace.* with a log density that holds plain arrays"),
    (lambda: jax.jit(lambda: whmc.find_modes(BOXED).location)(), TypeError, "JAX cannot trace: call it outside"),
    (lambda: charts(np.ones((1, 3))), ValueError, "scale has shape"),
    (lambda: charts(np.full((1, 2, 2), 0.5)), ValueError, "lower triangular"),
    (lambda: charts(np.zeros((1, 2))), ValueError, "positive"),
    (lambda: charts(np.ones((1, 2)), log_weight=[0.0, 0.0]), ValueError, "log_weight must be 1 finite"),
    (lambda: charts(np.ones((1, 2)), step_size=[-1.0]), ValueError, "step_size must be positive"),
    (lambda: charts(np.ones((1, 2)), dof=0.0), ValueError, "dof must be a whole number"),
]  # fmt: skip


BOXED = whmc.Target(normal, dim=2, starts=(-1.0, 1.0))


def shifted(shift):
    return run(f=lambda x: normal(x - shift)).log_evidence


def run(f=normal, **changes):
    return whmc.sample(whmc.Target(f, dim=2), **(GOOD | changes))


@pytest.mark.parametrize(("call", "kind", "says"), BAD, ids=[says for _, _, says in BAD])
def test_bad_input_gets_one_clear_error(call, kind, says):
    with pytest.raises(kind, match=says):
        unchecked(call)


def test_an_error_in_the_users_function_is_the_users():
    def broken(x):
        raise ZeroDivisionError("mine")

    with pytest.raises(ZeroDivisionError, match="mine") as error:
        run(f=broken)
    assert any("dim = 2" in note for note in error.value.__notes__)


def test_global_precision_is_untouched_and_import_is_light():
    """In a fresh process: float64 inside, float32 outside as before, and no heavy import."""
    code = """
import sys, jax, jax.numpy as jnp, whmc
heavy = {"scipy.stats", "matplotlib", "arviz", "arviz_stats", "xarray", "equinox", "pandas"} & set(sys.modules)
assert not heavy, heavy
assert jnp.zeros(1).dtype == jnp.float32
target = whmc.Target(lambda x: -0.5 * jnp.sum(x**2), dim=2)
result = whmc.sample(target, modes=[[0.0, 0.0]], chains=2, draws=5, warmup=5)
assert result.draws.dtype == "float64"
assert jnp.zeros(1).dtype == jnp.float32
"""
    subprocess.run([sys.executable, "-W", "error", "-c", code], check=True)
