"""One mode: what whmc costs where there is nothing to jump to, beside NUTS in the same process.

Two figures of each model, medians over the seeds. `search`: gradients of a search of at most 18 000 over those of
warm-up and sampling. `ratio`: effective draws per gradient over those of NUTS, all gradients counted, those of the
search and of both warm-ups. Ratios of the sampling phase alone, and with the warm-up, are shown beside it. Effective
draws are the least bulk effective sample size of all coordinates.

whmc runs 16 chains of 1000 draws after a warm-up of 500. NUTS runs four of 1000 after 1000, as Stan does (see
`peers/nuts.py`): its chains learn by themselves, so more of them have the same effective draws per gradient.
Four models are JAX functions and three are Stan programs, which both call through the same compiled library.
"""

import argparse
import sys
import time
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.stats import cauchy, norm

import whmc
from peers.nuts import make_nuts
from whmc.estimate.parameters import ParameterTable

SEARCH = 18_000
"""Gradients of the search at most: by default it makes as many starts as take some seconds."""

MOST_SEARCH = 0.5
"""Gradients of the search over those of warm-up and sampling, at most."""

LEAST_RATIO = 1.0
"""Ours over NUTS in effective draws per gradient, all gradients counted, at least."""


def eight_schools():
    """Rubin's eight schools, not centred, D = 10."""
    effect = jnp.array([28.0, 8.0, -3.0, 7.0, -1.0, 1.0, 18.0, 12.0])
    error = jnp.array([15.0, 10.0, 16.0, 11.0, 9.0, 11.0, 10.0, 18.0])

    def logdensity(p):
        tau = jnp.exp(p["log_tau"])
        prior = norm.logpdf(p["mu"], 0, 5) + cauchy.logpdf(tau, 0, 5) + p["log_tau"] + norm.logpdf(p["z"]).sum()
        return prior + norm.logpdf(effect, p["mu"] + tau * p["z"], error).sum()

    return logdensity, {"mu": 0.0, "log_tau": 0.0, "z": np.zeros(8)}


def radon(centred):
    """Intercepts of 56 counties and a slope, 1 to 60 houses a county, simulated: D = 60."""
    rng = np.random.default_rng(0)
    size = np.clip(np.round(rng.lognormal(2.0, 1.0, 56)), 1, 60).astype(int)
    county, floor = np.repeat(np.arange(56), size), rng.random(size.sum()) < 0.2
    level = (1.5 + 0.35 * rng.standard_normal(56))[county] - 0.7 * floor + 0.75 * rng.standard_normal(len(county))
    county, floor, level = jnp.asarray(county), jnp.asarray(floor, float), jnp.asarray(level)

    def logdensity(p):
        between, within = jnp.exp(p["log_between"]), jnp.exp(p["log_within"])
        intercept = p["county"] if centred else p["mu"] + between * p["county"]
        prior = norm.logpdf(p["mu"], 0, 10) + norm.logpdf(p["slope"], 0, 10)
        prior += norm.logpdf(between) + p["log_between"] + norm.logpdf(within) + p["log_within"]
        prior += norm.logpdf(p["county"], *((p["mu"], between) if centred else (0.0, 1.0))).sum()
        return prior + norm.logpdf(level, intercept[county] + p["slope"] * floor, within).sum()

    return logdensity, {"mu": 0.0, "slope": 0.0, "log_between": 0.0, "log_within": 0.0, "county": np.zeros(56)}


def gaussian_process():
    """Counts at eleven places whose log rate is a Gaussian process, simulated: length, size and values, D = 13."""
    rng, x = np.random.default_rng(4), np.linspace(-10.0, 10.0, 11)

    def covariance(length, size):
        return size**2 * jnp.exp(-0.5 * ((x[:, None] - x) / length) ** 2) + 1e-10 * jnp.eye(11)

    with jax.enable_x64(True):
        rate = np.linalg.cholesky(np.asarray(covariance(6.0, 1.5))) @ rng.standard_normal(11) + 1.0
    counts = jnp.asarray(rng.poisson(np.exp(rate)), float)

    def logdensity(p):
        length, size = jnp.exp(p["log_length"]), jnp.exp(p["log_size"])
        prior = 25 * p["log_length"] - 4 * length + norm.logpdf(size, 0, 2) + p["log_size"] + norm.logpdf(p["z"]).sum()
        rate = jnp.linalg.cholesky(covariance(length, size)) @ p["z"]
        return prior + jnp.sum(counts * rate - jnp.exp(rate))

    return logdensity, {"log_length": 0.0, "log_size": 0.0, "z": np.zeros(11)}


AUTOREGRESSION = """
data { int<lower=6> n; vector[n] y; }
transformed data {
  matrix[n - 5, 5] before;
  for (lag in 1:5) before[:, lag] = y[6 - lag:n - lag];
}
parameters { real level; vector[5] slope; real<lower=0> noise; }
model {
  level ~ normal(0, 5);
  slope ~ normal(0, 1);
  noise ~ normal(0, 2);
  y[6:n] ~ normal(level + before * slope, noise);
}
"""


def autoregression():
    """Five lags, 200 points, simulated: D = 7."""
    rng = np.random.default_rng(0)
    slope, y = np.array([0.5, -0.3, 0.2, 0.1, 0.1]), np.zeros(300)
    for n in range(5, 300):
        y[n] = 0.5 + slope @ y[n - 5 : n][::-1] + 0.7 * rng.standard_normal()
    return AUTOREGRESSION, {"n": 200, "y": y[100:]}


HIDDEN_MARKOV = """
data { int<lower=1> n; vector[n] y; }
parameters {
  array[2] simplex[2] move;
  ordered[2] mean_of;
  vector<lower=0>[2] noise;
}
model {
  matrix[2, 2] log_move = log([move[1]', move[2]']);
  vector[2] forward = rep_vector(-log(2), 2);
  move[1] ~ dirichlet([8, 2]');
  move[2] ~ dirichlet([2, 8]');
  mean_of[1] ~ normal(2, 1);
  mean_of[2] ~ normal(6, 1);
  noise ~ lognormal(0, 0.5);
  for (t in 1:n) {
    if (t > 1) {
      forward = [log_sum_exp(forward + log_move[:, 1]), log_sum_exp(forward + log_move[:, 2])]';
    }
    for (k in 1:2) forward[k] += normal_lpdf(y[t] | mean_of[k], noise[k]);
  }
  target += log_sum_exp(forward);
}
"""


def hidden_markov():
    """Two states with ordered means, 100 points, simulated: D = 6."""
    rng = np.random.default_rng(0)
    stays, state = np.array([0.85, 0.75]), np.zeros(100, int)
    for t in range(1, 100):
        state[t] = state[t - 1] if rng.random() < stays[state[t - 1]] else 1 - state[t - 1]
    y = np.array([2.5, 6.0])[state] + np.array([1.0, 1.3])[state] * rng.standard_normal(100)
    return HIDDEN_MARKOV, {"n": 100, "y": y}


REGRESSION = """
data { int<lower=1> n; int<lower=1> k; matrix[n, k] x; vector[n] y; }
parameters { real intercept; vector[k] slope; real<lower=0> noise; }
model {
  intercept ~ student_t(3, 0, 5);
  slope ~ normal(0, 1);
  noise ~ student_t(3, 0, 2);
  y ~ normal_id_glm(x, intercept, slope, noise);
}
"""


def regression():
    """24 coefficients of predictors that follow one another closely, 500 observations, simulated: D = 26."""
    rng = np.random.default_rng(0)
    x = np.empty((500, 24))
    x[:, 0] = rng.standard_normal(500)
    for k in range(1, 24):
        x[:, k] = 0.9 * x[:, k - 1] + np.sqrt(1 - 0.9**2) * rng.standard_normal(500)
    y = 1 + x @ (0.5 * rng.standard_normal(24)) + 0.8 * rng.standard_normal(500)
    return REGRESSION, {"n": 500, "k": 24, "x": x, "y": y}


def in_jax(model):
    """A target that starts in the box of Stan's starts."""
    logdensity, template = model()
    low, high = (jax.tree.map(lambda leaf, edge=edge: np.full(np.shape(leaf), edge), template) for edge in (-2.0, 2.0))
    return whmc.Target(logdensity, template=template, starts=(low, high))


def in_stan(model):
    return whmc.from_stan(*model())


MODELS = {
    "eight schools": partial(in_jax, eight_schools),
    "radon": partial(in_jax, partial(radon, False)),
    "radon, centred": partial(in_jax, partial(radon, True)),
    "Gaussian process": partial(in_jax, gaussian_process),
    "autoregression": partial(in_stan, autoregression),
    "hidden Markov": partial(in_stan, hidden_markov),
    "regression": partial(in_stan, regression),
}


class Row(NamedTuple):
    """A run: effective draws, gradients of sampling, warm-up and search, seconds; means and their errors to compare."""

    ess: float
    gradients: tuple[int, int, int]
    seconds: float
    mean: np.ndarray
    se: np.ndarray

    @classmethod
    def of(cls, draws, gradients, seconds):
        table = ParameterTable.of({"x": draws})
        return cls(float(np.min(table.ess)), gradients, seconds, table.mean, table.sd / np.sqrt(table.ess))

    @property
    def rates(self):
        """Effective draws per gradient: of sampling, with warm-up, with the search."""
        return self.ess / np.cumsum(self.gradients)

    @property
    def search(self):
        """Gradients of the search over those of warm-up and sampling."""
        return self.gradients[2] / sum(self.gradients[:2])


def ours(target, seed):
    began = time.perf_counter()
    result = whmc.sample(target, seed=seed, search=SEARCH, progress=False)
    seconds = time.perf_counter() - began
    spent = result.gradients
    # annealing for the evidence, where there was any, is no part of the search, but it is paid for as well
    return result, Row.of(result.draws, (spent.sampling + spent.evidence, spent.warmup, spent.search), seconds)


def nuts(run, seed):
    began = time.perf_counter()
    found = run(seed)
    return Row.of(found.draws, (found.num_sampling, found.num_warmup, 0), time.perf_counter() - began)


def show(name, seed, who, one):
    print(
        f"{name:16s} seed {seed}  {who}  ESS {one.ess:6.0f}  gradients {'+'.join(map(str, one.gradients))}  "
        f"ESS per gradient {'  '.join(f'{rate:.4f}' for rate in one.rates)}  {one.seconds:.0f} s",
        flush=True,
    )


def compare(name, seeds):
    """Lines for each seed; the medians of the search's share and of the three ratios."""
    target, figures = MODELS[name](), []
    run = make_nuts(target, chains=4)
    for seed in seeds:
        result, mine = ours(target, seed)
        show(name, seed, "whmc", mine)
        theirs = nuts(run, seed)
        show(name, seed, "NUTS", theirs)
        apart = float(np.max(np.abs(mine.mean - theirs.mean) / np.hypot(mine.se, theirs.se)))
        ratio = mine.rates / theirs.rates
        figures.append((mine.search, *ratio))
        moves = ", ".join(f"{move} {rate:.2f}" for move, rate in result.acceptance.items())
        print(
            f"{'':16s} search {mine.search:.2f}; ratio {', '.join(f'{x:.2f}' for x in ratio)}; means apart {apart:.1f} "
            f"standard errors; {result.library.size} charts, num_steps {result.tuned['LocalHMC.num_steps']}; "
            f"acceptance {moves}; alarms {[alarm.name for alarm in result.alarms]}",
            flush=True,
        )
    return np.median(figures, axis=0)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS), metavar="MODEL")
    parser.add_argument("--seeds", type=int, default=2)
    asked = parser.parse_args()
    table = {name: compare(name, range(asked.seeds)) for name in asked.models}
    broken = []
    print(f"\n{'model':16s} {'search':>7s} {'sampling':>9s} {'with warm-up':>13s} {'ratio':>7s}")
    for name, (search, sampling, warmed, ratio) in table.items():
        print(f"{name:16s} {search:7.2f} {sampling:9.2f} {warmed:13.2f} {ratio:7.2f}")
        if not search <= MOST_SEARCH:
            broken.append(f"{name}: the search takes {search:.2f} of the other gradients, more than {MOST_SEARCH}")
        if not ratio >= LEAST_RATIO:
            broken.append(f"{name}: {ratio:.2f} of NUTS's effective draws per gradient, less than {LEAST_RATIO}")
    print("\n".join(broken) or "all promises kept")
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
