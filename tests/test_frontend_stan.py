"""Stan models as targets: through a C library with BridgeStan's interface, and for real with httpstan's Stan."""

import ctypes
import importlib.util
import itertools
import json
import math
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import bridgestan
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import integrate, stats

import whmc
from doc_outputs import not_printed
from whmc.frontends import stan_build
from whmc.frontends.stan import from_stan
from whmc.frontends.stan_bridge import WORTH_THREADS, StanBox, places
from whmc.frontends.stan_slopes import sloped

pytestmark = [pytest.mark.models, pytest.mark.xdist_group("stan")]  # programs are compiled once, not in every worker

COMPILER = shutil.which("cc") or shutil.which("gcc")
HTTPSTAN = importlib.util.find_spec("httpstan") is not None and shutil.which("c++") is not None
DOCS = Path(__file__).parent.parent / "docs"

# a ~ normal(mu, 1), s ~ exponential(1), both with their constants; a must not be above 5
C_LIBRARY = r"""
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
const int bs_major_version = MAJOR, bs_minor_version = MINOR, bs_patch_version = PATCH;
int now = 0, most = 0;
typedef struct { double mu; } model;
static int say(char **err, const char *text) { if (err) *err = strdup(text); return 1; }
model *bs_model_construct(const char *data, unsigned int seed, char **err) {
  const char *at = strstr(data, "\"mu\"");
  if (!at) { say(err, "variable does not exist; processing stage=data initialization; variable name=mu"); return 0; }
  model *m = malloc(sizeof(model));
  m->mu = atof(strchr(at, ':') + 1);
  return m;
}
void bs_model_destruct(model *m) { free(m); }
void bs_free_error_msg(char *text) { free(text); }
int bs_set_print_callback(void *call, char **err) { return 0; }
const char *bs_name(const model *m) { return "fake"; }
#ifdef THREADS
const char *bs_model_info(const model *m) { return "STAN_THREADS=true"; }
#else
const char *bs_model_info(const model *m) { return "STAN_THREADS=false"; }
#endif
#ifdef EMPTY
enum { OWN = 0 };
#else
enum { OWN = 2 };
#endif
int bs_param_unc_num(const model *m) { return OWN; }
int bs_param_num(const model *m, bool tp, bool gq) { return OWN + (tp ? 2 : 0) + (gq ? 2 : 0); }
const char *bs_param_unc_names(const model *m) { return "a,s"; }
const char *bs_param_names(const model *m, bool tp, bool gq) {
  return tp ? (gq ? "a,s,t.1,t.2,g,noise" : "a,s,t.1,t.2") : (gq ? "a,s,g,noise" : "a,s");
}
int bs_log_density_gradient(const model *m, bool propto, bool jacobian, const double *u, double *lp, double *g,
                            char **err) {
  int here = __atomic_add_fetch(&now, 1, __ATOMIC_SEQ_CST);
  if (here > most) most = here;
#ifdef SLOW
  usleep(3000);
#endif
  __atomic_sub_fetch(&now, 1, __ATOMIC_SEQ_CST);
  if (u[0] > 5) { g[0] = 7; return say(err, "Exception: a is above 5"); }
  *lp = -0.5 * (u[0] - m->mu) * (u[0] - m->mu) - exp(u[1]) + (jacobian ? u[1] : 0) - (propto ? 0 : 0.5 * log(2 * M_PI));
  g[0] = m->mu - u[0];
  g[1] = (jacobian ? 1 : 0) - exp(u[1]);
  return 0;
}
int bs_log_density(const model *m, bool propto, bool jacobian, const double *u, double *lp, char **err) {
  double g[2];
  return bs_log_density_gradient(m, propto, jacobian, u, lp, g, err);
}
int bs_param_constrain(const model *m, bool tp, bool gq, const double *u, double *x, unsigned int *rng, char **err) {
  if (gq && u[0] < -90) return say(err, "Exception: a generated quantity failed");
  int n = 0;
  x[n++] = u[0]; x[n++] = exp(u[1]);
  if (tp) { x[n++] = x[0] * x[1]; x[n++] = x[0] + x[1]; }
  if (gq) { x[n++] = 2 * u[0]; x[n++] = (*rng = *rng * 1664525u + 1013904223u); }
  return 0;
}
int bs_param_unconstrain(const model *m, const double *x, double *u, char **err) {
  if (x[1] < 0) return say(err, "Exception: s is below zero");
  u[0] = x[0]; u[1] = log(x[1]);
  return 0;
}
unsigned int *bs_rng_construct(unsigned int seed, char **err) {
  unsigned int *rng = malloc(sizeof seed);
  *rng = seed;
  return rng;
}
void bs_rng_destruct(unsigned int *rng) { free(rng); }
int bs_log_density_hessian() { return 1; }
int bs_log_density_hessian_vector_product() { return 1; }
int bs_param_unconstrain_json() { return 1; }
int bs_param_initialize() { return 1; }
"""


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    """A function that compiles the C library above with the given switches."""
    if COMPILER is None and "CI" not in os.environ:
        pytest.skip("there is no C compiler")
    folder = tmp_path_factory.mktemp("stan")
    (folder / "fake.c").write_text(C_LIBRARY)
    version = [f"-D{name}={part}" for name, part in zip(("MAJOR", "MINOR", "PATCH"), _version(), strict=True)]

    def compiled(*switches):
        made = folder / ("_".join(("fake", *switches)) + "_model.so")
        if not made.exists():
            options = [*version, *(f"-D{switch}" for switch in switches)]
            run = [COMPILER, "-O1", "-w", "-shared", "-fPIC", "-o", made, *options, folder / "fake.c", "-lm"]
            subprocess.run(run, check=True)
        return made

    return compiled


def _version():
    return bridgestan.__version__.split(".")[:3]


def exact(position, mu=0.5):
    a, log_s = position
    return -0.5 * (a - mu) ** 2 - 0.5 * jnp.log(2 * jnp.pi) - jnp.exp(log_s) + log_s


def points(dim, num=100, seed=1):
    return jnp.asarray(np.random.default_rng(seed).uniform(-2, 2, (num, dim)))


def test_values_and_scores_are_those_of_the_library(library):
    target = from_stan(library(), {"mu": 0.5})
    at = points(2)
    found = jax.jit(jax.vmap(jax.value_and_grad(target)))(at)
    values, scores = jax.vmap(jax.value_and_grad(exact))(at)
    np.testing.assert_allclose(found[0], values, rtol=1e-14)
    np.testing.assert_allclose(found[1], scores, rtol=1e-13)
    np.testing.assert_allclose(jax.hessian(target)(at[0]), jax.hessian(exact)(at[0]), atol=1e-6)
    assert list(target.names) == ["a", "s"]


def test_callers_without_global_float64_lose_no_digits(library):
    target = from_stan(library(), {"mu": 0.5})
    at = points(2)[0]
    jax.config.update("jax_enable_x64", False)
    try:
        with jax.enable_x64(True):
            value = np.asarray(jax.jit(target)(at))
            again = target.unconstrain(target.constrain(at))
            compiled = np.asarray(jax.jit(lambda x: target.unconstrain(target.constrain(x)))(at))
    finally:
        jax.config.update("jax_enable_x64", True)
    np.testing.assert_allclose(value, exact(at), rtol=1e-14)
    np.testing.assert_allclose(again, at, rtol=1e-15)
    np.testing.assert_allclose(compiled, at, rtol=1e-15)


def test_constrained_values_have_names_shapes_and_slopes(library):
    target = from_stan(library(), {"mu": 0.5})
    at = points(2)
    values = jax.vmap(target.constrain)(at)
    a, s = at[:, 0], np.exp(at[:, 1])
    assert list(values) == ["a", "s", "t"]
    np.testing.assert_allclose(values["s"], s, rtol=1e-15)
    np.testing.assert_allclose(values["t"], np.stack([a * s, a + s], axis=1), rtol=1e-15)
    slopes = jax.vmap(jax.jacrev(lambda x: target.constrain(x)["t"]))(at)
    np.testing.assert_allclose(slopes[:, 0], np.stack([s, a * s], axis=1), rtol=1e-7, atol=1e-8)
    curvature = jax.vmap(jax.hessian(lambda x: target.constrain(x)["s"] ** 2))(at)
    np.testing.assert_allclose(curvature[:, 1, 1], 4 * s**2, rtol=1e-4)
    assert np.all(curvature[:, 0] == 0)


def test_unconstrain_is_the_inverse_also_inside_of_compiled_functions(library):
    target = from_stan(library(), {"mu": 0.5})
    at = points(2)
    np.testing.assert_allclose(target.unconstrain(target.constrain(at[0])), at[0], rtol=1e-14)
    again = jax.jit(jax.vmap(lambda x: target.unconstrain(target.constrain(x))))(at)
    np.testing.assert_allclose(again, at, atol=1e-14)
    values = {name: np.asarray(rows) for name, rows in jax.vmap(target.constrain)(at).items()}
    np.testing.assert_allclose(target.flatten_all(values), at, atol=1e-14)  # as `modes` and `initial` may be given
    each = [{name: rows[n] for name, rows in values.items()} for n in range(2)]
    np.testing.assert_allclose(target.flatten_all(each), at[:2], atol=1e-14)
    slopes = jax.jit(jax.jacrev(lambda x: target.unconstrain({"a": 2 * x[0], "s": x[1] ** 3})))(jnp.array([0.3, 1.7]))
    np.testing.assert_allclose(slopes, [[2, 0], [0, 3 / 1.7]], rtol=1e-8, atol=1e-12)
    assert np.all(np.isnan(jax.jit(lambda s: target.unconstrain({"a": 0.0, "s": s}))(-1.0)))
    with pytest.raises(ValueError, match="does not accept these parameters: Exception: s is below zero"):
        target.unconstrain({"a": 0.0, "s": -1.0})
    with pytest.raises(ValueError, match="missing: s; the model has a, s"):
        target.unconstrain({"a": 0.0})
    with pytest.raises(ValueError, match=r"s has shape \(2,\): the model's has \(\)"):
        target.unconstrain({"a": 0.0, "s": [1.0, 2.0]})


def test_generated_quantities_but_for_random_ones(library):
    with pytest.warns(UserWarning, match="random numbers are left out: noise$"):
        target = from_stan(library(), {"mu": 0.5}, generated_quantities=True)
    values = target.constrain(jnp.array([0.25, 0.0]))
    assert list(values) == ["a", "s", "t", "g"] and values["g"] == 0.5
    refused = target.constrain(jnp.array([-91.0, 0.0]))
    assert np.isnan(refused["g"]) and refused["a"] == -91


def test_where_stan_refuses_the_density_is_zero(library):
    target = from_stan(library(), {"mu": 0.5})
    seen = jax.vmap(target.evaluate)(jnp.array([[5.5, 0.0], [4.5, 0.0]]))
    assert seen.logdensity[0] == -jnp.inf and np.all(seen.score[0] == 0)
    assert np.isfinite(seen.logdensity[1]) and not np.any(seen.failed)
    with pytest.raises(ValueError, match=r"any of 100 starts.*Stan says: Exception: a is above 5"):
        from_stan(library(), {"mu": 0.5}, starts=(6.0, 7.0))


def test_starts_are_stans_box_or_given_ones(library):
    drawn = from_stan(library(), {"mu": 0.5}).draw_starts(jax.random.key(0), 1000)
    assert -2 <= drawn.min() < -1.98 and 1.98 < drawn.max() <= 2
    given = from_stan(library(), {"mu": 0.5}, starts=[{"a": 1.0, "s": 3.0}, {"a": 2.0, "s": 1.0}])
    np.testing.assert_allclose(given.draw_starts(jax.random.key(0), 2), [[1, math.log(3)], [2, 0]], rtol=1e-14)
    np.testing.assert_array_equal(from_stan(library(), {"mu": 0.5}, starts={"a": 1.0, "s": 1.0}).starts, [[1, 0]])


def test_data_come_as_dictionary_text_or_file(library, tmp_path):
    file = tmp_path / "data.json"
    file.write_text('{"mu": 0.75}')
    forms = [{"mu": 0.75}, {"mu": np.float64(0.75)}, {"mu": jnp.array(0.75)}, '{"mu": 0.75}', file, str(file)]
    values = [from_stan(library(), data)(jnp.zeros(2)) for data in forms]
    assert values == [exact(np.zeros(2), 0.75)] * len(forms)
    with pytest.raises(ValueError, match="not JSON: Expecting value"):
        from_stan(library(), '{"mu": }')
    with pytest.raises(TypeError, match=r"dictionary, JSON text or the path.*got list"):
        from_stan(library(), [0.75])
    with pytest.raises(ValueError, match=r"(?s)does not accept the data: .*variable name=mu"):
        from_stan(library(), {"nu": 0.75})


def test_a_stan_model_is_taken_as_it_is(library):
    model = bridgestan.StanModel(library(), '{"mu": -1}', warn=False)
    assert from_stan(model)(jnp.zeros(2)) == exact(np.zeros(2), -1)
    with pytest.raises(ValueError, match="has its data already"):
        from_stan(model, {"mu": 0})
    with pytest.raises(TypeError, match=r"a \.stan file, .* got int"):
        from_stan(3)
    with pytest.raises(FileNotFoundError, match=r"no file 'nowhere_model\.so': give"):
        from_stan("nowhere_model.so")
    with pytest.raises(FileNotFoundError, match=r"no Stan program 'nowhere\.stan': give"):
        from_stan("nowhere.stan")


def test_a_model_without_parameters_is_refused(library):
    with pytest.raises(ValueError, match="no parameters: there is nothing to sample"):
        from_stan(library("EMPTY"), {"mu": 0.5})


@pytest.mark.parametrize("switches", [("SLOW",), ("SLOW", "THREADS")], ids=["one", "many"])
def test_rows_share_threads_only_where_the_library_can(library, switches, monkeypatch):
    monkeypatch.setattr(os, "cpu_count", lambda: 3)
    target = from_stan(library(*switches), {"mu": 0.5})
    at = np.array(points(2, 13))
    at[7, 0] = 6.0
    values, scores = target.logdensity.box.evaluate(at)
    most = ctypes.c_int.in_dll(ctypes.CDLL(str(library(*switches))), "most").value
    assert most == 1 if len(switches) == 1 else 2 <= most <= 3
    expected = [jax.value_and_grad(exact)(row) if row[0] < 5 else (-np.inf, np.zeros(2)) for row in at]
    np.testing.assert_allclose(values, [value for value, _ in expected], rtol=1e-14)
    np.testing.assert_allclose(scores, [score for _, score in expected], rtol=1e-13)


def test_a_position_of_another_length_is_refused(library):
    """Stan would read past its end, and write there."""
    box = from_stan(library(), {"mu": 0.5}).logdensity.box
    for call in (box.evaluate, box.constrain):
        with pytest.raises(ValueError, match="this Stan model has 2 coordinates"):
            call(np.zeros((1, 3)))


def test_a_cheap_model_is_not_spread(library, monkeypatch):
    monkeypatch.setattr(os, "cpu_count", lambda: 2)
    box = StanBox(bridgestan.StanModel(library("THREADS"), '{"mu": 0}', warn=False))
    assert box.threads == 2 and WORTH_THREADS > 0
    box.evaluate(np.asarray(points(2, 3)))
    assert ctypes.c_int.in_dll(ctypes.CDLL(str(library("THREADS"))), "most").value == 1


def test_a_library_that_has_changed_is_said(library, tmp_path):
    copy = tmp_path / "copy_model.so"
    shutil.copy(library(), copy)
    from_stan(copy, {"mu": 0.5})
    from_stan(copy, {"mu": 0.75})  # other data: nothing to say
    os.utime(copy, ns=(1, 1))
    with pytest.warns(UserWarning, match="already been loaded"):
        from_stan(copy, {"mu": 0.5})


def test_bridgestan_builds_where_its_sources_are(library, tmp_path, monkeypatch):
    """BridgeStan's own build is its Makefile: one here that makes the library above from any program."""
    made, home = library(), tmp_path / "bridgestan"
    home.mkdir()
    rule = (
        f"%_model.so: %.stan\n\t@grep -q parameters $< || (echo Syntax error in line 1 >&2; exit 1)\n\t@cp {made} $@\n"
    )
    (home / "Makefile").write_text(rule)
    monkeypatch.setenv("BRIDGESTAN", str(home))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    program = tmp_path / "mine.stan"
    program.write_text("parameters { real a; real<lower=0> s; }")
    for model in (program, str(program), program.read_text()):
        assert from_stan(model, {"mu": 0.5})(jnp.zeros(2)) == exact(np.zeros(2))
    assert (tmp_path / "mine_model.so").exists()
    assert len(list((tmp_path / "cache/whmc/stan").glob("text_*_model.so"))) == 1
    with pytest.raises(RuntimeError, match="Syntax error in line 1"):
        from_stan("parameter { real a; }", {"mu": 0.5})


def test_missing_packages_have_one_remedy(library, monkeypatch, tmp_path):
    monkeypatch.setenv("BRIDGESTAN", str(tmp_path))
    monkeypatch.setattr(stan_build.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ImportError, match=r"cannot build Stan programs here: install whmc's extra 'stan'"):
        from_stan("parameters { real a; }")
    monkeypatch.setitem(sys.modules, "bridgestan", None)
    with pytest.raises(ImportError, match=r"^from_stan needs BridgeStan: install whmc's extra 'stan', pip install"):
        from_stan(library())


def test_names_become_arrays():
    found = places(["a", "b.1.1", "b.2.1", "b.1.2", "b.2.2", "pair:1", "pair:2.1", "z.real", "c.1"])
    assert {name: at.tolist() for name, at in found.items()} == {
        "a": 0,
        "b": [[1, 3], [2, 4]],
        "pair:1": 5,
        "pair:2": [6],
        "z.real": 7,
        "c": [8],
    }


def test_slopes_of_coordinates_apart_cost_two_evaluations():
    calls = []

    def rows(at):
        calls.append(len(at))
        return np.sin(at) * np.array([1.0, 2.0, 3.0])

    at = jnp.array([0.3, -0.2, 1.0])
    slopes = jax.jacfwd(sloped(rows, np.eye(3, dtype=bool)))(at)
    np.testing.assert_allclose(slopes, np.diag([1.0, 2.0, 3.0] * np.cos(at)), atol=1e-9)
    calls.clear()
    jax.block_until_ready(jax.grad(lambda x: jnp.sum(sloped(rows, np.eye(3, dtype=bool))(x)))(at))
    assert len(calls) == 3  # the value, and either side


# From here on real Stan: one program with all kinds of parameters, compiled once into the user's cache.

PROGRAM = """
data {
  int<lower=0> N;
  vector[N] y;
  int<lower=0, upper=1> squared;
  real centre;
  real<lower=0> spread;
  int<lower=1> K;
  int<lower=0> A;
}
parameters {
  real free;
  real<lower=0> positive;
  real<lower=-1, upper=3> between;
  real<upper=2> below;
  simplex[K] weights;
  ordered[K] levels;
  array[A] vector[3] grid;
  array[A] simplex[3] parts;
  matrix[A, 3] grill;
  cholesky_factor_corr[K] factor;
}
transformed parameters {
  real mean_y = squared ? square(free) : free;
  matrix[K, K] correlation = multiply_lower_tri_self_transpose(factor);
  if (free > 5) reject("free is above 5: ", free);
}
model {
  free ~ normal(centre, spread);
  target += exponential_lpdf(positive | 1.5);
  between ~ normal(0.5, 1);
  target += normal_lpdf(below | 0, 2);
  weights ~ dirichlet(rep_vector(2, K));
  levels ~ normal(0, 3);
  for (a in 1:A) grid[a] ~ normal(a, 1);
  for (a in 1:A) parts[a] ~ dirichlet([1.5, 2, 3]');
  to_vector(grill) ~ normal(0, 1);
  y ~ normal(mean_y, positive);
}
generated quantities {
  array[2] int signs = {free > 0, between > 0};
  array[2] real noise = {free, normal_rng(0, 1)};
}
"""
Y = [2.3, 1.4, 1.9, 2.6, 1.7]
WHOLE = {"N": 5, "y": Y, "squared": 0, "centre": 0.0, "spread": 2.0, "K": 3, "A": 2}
FEW = WHOLE | {"squared": 1, "centre": 0.3, "K": 1, "A": 0}

# on a developer's machine without a compiler only: in CI a missing one fails
real_stan = pytest.mark.skipif(not HTTPSTAN and "CI" not in os.environ, reason="httpstan or a C++ compiler is missing")


@pytest.fixture(scope="module")
def whole():
    return from_stan(PROGRAM, WHOLE)


def hand_written(v):
    """The program's density of constrained values, with all constants; nothing on `factor`."""
    normal, log = stats.norm.logpdf, 0.0
    log += normal(v["free"], 0, 2) + stats.expon.logpdf(v["positive"], scale=1 / 1.5)
    log += normal(v["between"], 0.5, 1) + normal(v["below"], 0, 2)
    log += stats.dirichlet.logpdf(v["weights"], [2.0] * 3) + normal(v["levels"], 0, 3).sum()
    log += normal(v["grid"][0], 1, 1).sum() + normal(v["grid"][1], 2, 1).sum() + normal(v["grill"]).sum()
    log += sum(stats.dirichlet.logpdf(part, [1.5, 2.0, 3.0]) for part in v["parts"])
    return log + normal(Y, v["free"], v["positive"]).sum()


def volumes(target, at):
    """log |det| of the slopes of all parameters that are free to move, at each row."""

    def free(x):
        v = target.constrain(x)
        below = v["factor"][np.tril_indices(3, -1)]
        scalars = jnp.stack([v[name] for name in ("free", "positive", "between", "below")])
        arrays = [v["weights"][:-1], v["levels"], v["grid"], v["parts"][:, :-1], v["grill"], below]
        return jnp.concatenate([scalars, *(jnp.ravel(one) for one in arrays)])

    return np.linalg.slogdet(jax.jit(jax.vmap(jax.jacfwd(free)))(at))[1]


@real_stan
def test_real_stan_has_the_density_of_the_program_with_all_constants(whole):
    at = points(whole.dim)
    assert whole.dim == 4 + 2 + 3 + 6 + 4 + 6 + 3
    values, scores = jax.jit(jax.vmap(jax.value_and_grad(whole)))(at)
    model = whole.logdensity.box.model
    for row, value, score in zip(np.asarray(at), values, scores, strict=True):
        own = model.log_density_gradient(row, propto=False)
        assert value == own[0] and np.array_equal(score, own[1])
    named = jax.vmap(whole.constrain)(at)
    by_hand = [hand_written({name: np.asarray(value[n]) for name, value in named.items()}) for n in range(100)]
    np.testing.assert_allclose(values, by_hand + volumes(whole, at), atol=1e-6)
    sides = jax.vmap(whole)(jnp.concatenate([at[0] + 1e-5 * np.eye(whole.dim), at[0] - 1e-5 * np.eye(whole.dim)]))
    np.testing.assert_allclose(scores[0], (sides[: whole.dim] - sides[whole.dim :]) / 2e-5, rtol=1e-6, atol=1e-6)


@real_stan
def test_real_stan_goes_there_and_back(whole):
    at = points(whole.dim)
    again = jax.jit(jax.vmap(lambda x: whole.unconstrain(whole.constrain(x))))(at)
    np.testing.assert_allclose(again, at, atol=1e-12)
    slopes = jax.jit(jax.vmap(jax.jacfwd(lambda x: whole.unconstrain(whole.constrain(x)))))(at)
    np.testing.assert_allclose(slopes, np.broadcast_to(np.eye(whole.dim), slopes.shape), atol=1e-6)
    v = jax.vmap(whole.constrain)(at)
    assert {name: value.shape[1:] for name, value in v.items()} == {
        "free": (),
        "positive": (),
        "between": (),
        "below": (),
        "weights": (3,),
        "levels": (3,),
        "grid": (2, 3),
        "parts": (2, 3),
        "grill": (2, 3),
        "factor": (3, 3),
        "mean_y": (),
        "correlation": (3, 3),
    }
    assert np.all(v["positive"] > 0) and np.all(np.abs(v["between"] - 1) < 2) and np.all(v["below"] < 2)
    np.testing.assert_allclose(v["parts"].sum(axis=2), 1, rtol=1e-14)
    assert np.all(np.diff(v["levels"]) > 0)
    np.testing.assert_allclose(v["correlation"], v["factor"] @ np.swapaxes(v["factor"], 1, 2), atol=1e-14)
    with pytest.raises(ValueError, match=r"does not accept these parameters.*[Ss]implex"):
        whole.unconstrain({name: value[0] for name, value in v.items()} | {"weights": np.ones(3)})


@real_stan
def test_coordinates_have_the_names_of_what_they_move(whole):
    """Stan's own list has the first index of arrays running fastest, which is not how it reads positions."""
    names = list(whole.names)
    assert sorted(names) == sorted(whole.logdensity.box.model.param_unc_names())
    slopes = jax.jit(jax.jacfwd(whole.constrain))(points(whole.dim)[0])
    for base in ("grid", "grill"):
        for n, m in np.ndindex(2, 3):
            (moving,) = np.flatnonzero(slopes[base][n, m])
            assert names[moving] == f"{base}.{n + 1}.{m + 1}"
    for n, m in np.ndindex(2, 2):
        moved = slopes["parts"][..., names.index(f"parts.{n + 1}.{m + 1}")]
        assert np.any(moved[n]) and not np.any(moved[1 - n])
    assert names[:9] == ["free", "positive", "between", "below", "weights.1", "weights.2"] + [
        f"levels.{n}" for n in (1, 2, 3)
    ]
    assert names[-3:] == ["factor.1", "factor.2", "factor.3"]


def test_a_library_that_another_process_made_meanwhile_is_kept(monkeypatch, tmp_path):
    """A new file in its place would be a changed library for whoever has loaded it."""
    calls = itertools.count()

    def compiler(run, **_):
        first = next(calls) == 0
        if first:
            stan_build._by_httpstan("program")  # as another process would
        Path(run[2]).write_text("this one" if first else "the other")
        return subprocess.CompletedProcess(run, 0)

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(stan_build, "_cpp", lambda program: program)
    monkeypatch.setattr(stan_build, "_command", lambda source, library: ["compiler", source, library])
    monkeypatch.setattr(stan_build.subprocess, "run", compiler)
    assert stan_build._by_httpstan("program").read_text() == "the other"


@real_stan
def test_real_stan_refuses_in_its_own_words(whole, tmp_path):
    beyond = np.zeros(whole.dim)
    beyond[0] = 5.5
    seen = whole.evaluate(jnp.asarray(beyond))
    assert seen.logdensity == -jnp.inf and not seen.failed
    assert "free is above 5: 5.5" in whole.logdensity.box.rejection
    with pytest.raises(ValueError, match=r"(?s)does not accept the data:.*variable name=spread"):
        from_stan(PROGRAM, {name: value for name, value in WHOLE.items() if name != "spread"})
    wrong = tmp_path / "wrong.stan"
    wrong.write_text("parameters { real a; }\nmodel { a ~ normal(0, b); }")
    with pytest.raises(ValueError, match=r"(?s)stanc does not accept.*wrong\.stan', line 2, column.*'b' not in scope"):
        from_stan(wrong)


@real_stan
def test_real_generated_quantities_but_for_random_ones():
    with pytest.warns(UserWarning, match="left out: noise$"):
        target = from_stan(PROGRAM, WHOLE, generated_quantities=True)
    values = target.constrain(jnp.full(target.dim, -0.75))
    assert values["signs"].tolist() == [0, 1] and "noise" not in values


@real_stan
def test_both_solutions_of_a_stan_model_have_their_weights_and_evidence():
    """free enters squared, so that both signs explain the data; its prior has more to say for the positive one."""
    target = from_stan(PROGRAM, FEW)
    assert list(target.names) == ["free", "positive", "between", "below", "levels.1"]
    result = whmc.sample(target, seed=0, chains=8, draws=2000, progress=False)

    free, positive = np.linspace(-3, 3, 1201)[:, None, None], np.linspace(0.05, 15, 1500)[:, None]
    log = stats.norm.logpdf(free, 0.3, 2.0)[..., 0] + stats.expon.logpdf(positive, scale=1 / 1.5)[:, 0]
    density = np.exp(log + stats.norm.logpdf(Y, free**2, positive).sum(axis=-1))
    along = integrate.trapezoid(density, positive[:, 0], axis=1)
    lower, upper = (integrate.trapezoid(along[side], dx=0.005) for side in (slice(601), slice(600, None)))
    rest = math.log(stats.norm.cdf(2.5) - stats.norm.cdf(-1.5)) + stats.norm.logcdf(1.0)
    assert result.alarms == ()
    assert len(result.modes.weight) == 2
    heavier = int(np.argmax(result.modes.location[:, 0]))
    weight, error = result.modes.weight[heavier], result.modes.weight_se[heavier]
    assert abs(weight - upper / (upper + lower)) < 5 * error < 0.1
    assert abs(result.log_evidence - math.log(upper + lower) - rest) < 5 * result.log_evidence_se < 0.2
    assert set(result.constrained()) >= {"free", "positive", "mean_y", "correlation"}


# Stan's own calls and Stan's own NUTS, in a process of their own: httpstan forks, and warns of its age.
STANS_OWN = """
import asyncio, gzip, json, subprocess, sys
import httpstan.cache, httpstan.models, httpstan.services_stub

program, data, points, chains = json.load(open("task.json"))
name = httpstan.models.calculate_model_name(program)
for _ in range(5):
    try:
        module = httpstan.models.import_services_extension_module(name)
        break
    except KeyError:
        try:
            asyncio.run(httpstan.models.build_services_extension_module(program))
        except subprocess.TimeoutExpired:
            pass  # stanc has one second, which a busy machine may not give it
values = [module.log_prob(data, row, True) for row in points]
scores = [module.log_prob_grad(data, row, True) for row in points]
draws = []
for chain in range(1, chains + 1):
    fit = f"{name}/fits/whmc{chain}"
    nuts = "stan::services::sample::hmc_nuts_diag_e_adapt"
    given = dict(data=data, init={}, random_seed=1, chain=chain, num_warmup=1000, num_samples=1000)
    asyncio.run(httpstan.services_stub.call(nuts, name, fit, **given))
    lines = gzip.decompress(httpstan.cache.load_fit(fit)).decode().splitlines()
    httpstan.cache.delete_fit(fit)
    found = [json.loads(line) for line in lines]
    draws.append([one["values"] for one in found if one["topic"] == "sample" and isinstance(one["values"], dict)])
json.dump([values, scores, draws], open("found.json", "w"))
"""


def stans_own(folder, data, at, chains=0):
    """Values and scores at some points, and the draws of that many chains of NUTS."""
    (folder / "task.json").write_text(json.dumps([PROGRAM, data, np.asarray(at).tolist(), chains]))
    subprocess.run([sys.executable, "-c", STANS_OWN], cwd=folder, check=True)
    return json.loads((folder / "found.json").read_text())


@real_stan
def test_values_and_scores_are_those_of_stans_own_calls(tmp_path):
    """httpstan's calls leave out the constants of ~, so values differ by one number."""
    data = WHOLE | {"K": 2, "A": 1}
    target = from_stan(PROGRAM, data)
    at = points(target.dim)
    own_values, own_scores, _ = stans_own(tmp_path, data, at)
    values, scores = jax.jit(jax.vmap(jax.value_and_grad(target)))(at)
    normals = 1 + 1 + 2 + 3 + 3 + 5  # free, between, levels, grid, grill, y
    left_out = -normals * math.log(2 * math.pi) / 2 - math.log(2) - 2 * math.log(3)
    left_out += math.lgamma(4) + math.lgamma(6.5) - math.lgamma(1.5) - math.lgamma(3)
    np.testing.assert_allclose(np.subtract(values, own_values), left_out, rtol=1e-11)
    np.testing.assert_allclose(scores, own_scores, rtol=1e-12, atol=1e-12)


@pytest.mark.slow  # values and scores are Stan's own, as the test before says
@real_stan
def test_stans_own_nuts_agrees(tmp_path):
    data = WHOLE | {"K": 2, "A": 1}
    target = from_stan(PROGRAM, data)
    own_draws = stans_own(tmp_path, data, points(target.dim), chains=16)[2]
    result = whmc.sample(target, seed=0, progress=False)
    assert result.alarms == ()
    compared = 0
    for name, ours in result.constrained().items():
        for index in np.ndindex(*ours.shape[2:]):
            label = ".".join([name, *(str(part + 1) for part in index)])
            theirs = np.array([[draw[label] for draw in chain] for chain in own_draws])
            here = ours[(..., *index)]
            if theirs.std() < 1e-12:  # the corners of Cholesky factors
                assert np.all(np.abs(here - theirs[0, 0]) < 1e-12)
                continue
            for moment in (1, 2):
                means = [(draws**moment).mean(axis=1) for draws in (here, theirs)]
                error = math.hypot(*(mean.std(ddof=1) / math.sqrt(len(mean)) for mean in means))
                assert abs(means[0].mean() - means[1].mean()) < 5 * error, label
            compared += 1
    assert compared == 4 + 2 + 2 + 3 + 3 + 3 + 2 + 1 + 2


@real_stan
def test_the_page_on_stan_runs_as_it_is_shown(tmp_path):
    text = (DOCS / "models-stan.md").read_text()
    blocks = re.findall(r"```python\n(.*?)```", text, flags=re.DOTALL)
    assert len(blocks) == 2
    checks = """
import numpy as np
a, e, v = np.meshgrid(*(np.linspace(centre - 3, centre + 3, 241) for centre in (-0.5, -0.8, 2.5)), indexing="ij")
log = sum(-((x - np.log(mean)) ** 2) / 2 for x, mean in ((a, 1), (e, 0.3), (v, 15))) - 1.5 * np.log(2 * np.pi)
with np.errstate(divide="ignore", invalid="ignore"):
    for hour, seen in zip(data["hours"], data["concentration"], strict=True):
        curve = (np.exp(-np.exp(e) * hour) - np.exp(-np.exp(a) * hour)) / (np.exp(a) - np.exp(e))
        far = np.log(seen) - (np.log(100) + a - v + np.log(curve))
        log -= far**2 / 0.02 + np.log(0.1 * seen) + np.log(2 * np.pi) / 2
mass = np.where(np.isfinite(log), np.exp(log), 0) * (6 / 240) ** 3
share = mass[e > a].sum() / mass.sum()
assert abs(result.log_evidence - np.log(mass.sum())) < 5 * result.log_evidence_se + 1e-3
per_chain = flipped.mean(axis=1)
assert abs(per_chain.mean() - share) < 5 * per_chain.std(ddof=1) / 4
assert abs(result.modes.weight[1] - share) < 5 * result.modes.weight_se[1] and result.alarms == ()
"""
    script = "\n".join(blocks) + checks
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", script], check=True, capture_output=True, text=True, cwd=tmp_path
    )
    assert not_printed(text, done.stdout) == [] and "rates exchanged in 1" in done.stdout
