"""One mode: effective draws per gradient on hierarchical models, beside NUTS in the same process.

ESS is the least bulk effective sample size of all coordinates, by ArviZ. It is divided by the gradients of the sampling
phase, then by those of warm-up and sampling, then by all, the search for modes included, which NUTS does not make.
NUTS is BlackJAX's with Stan's window adaptation, each chain by itself, a diagonal metric and an acceptance of 0.8, from
Stan's starts. Both run 16 chains of 1000 draws; NUTS warms up for 1000 steps, as it is used, and ours for its 500.
"""

import argparse
import sys
import time
from functools import partial

import blackjax
import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.stats import cauchy, norm

import whmc
from whmc.estimate.parameters import ParameterTable

PROMISED = 0.5
"""Ours over NUTS in effective draws per gradient of the sampling phase, at least."""

CHAINS, DRAWS, NUTS_WARMUP = 16, 1000, 1000


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


MODELS = {
    "eight schools": eight_schools,
    "radon": partial(radon, False),
    "radon, centred": partial(radon, True),
}


def make_target(name):
    logdensity, template = MODELS[name]()
    low, high = (jax.tree.map(lambda leaf, edge=edge: np.full(np.shape(leaf), edge), template) for edge in (-2.0, 2.0))
    return whmc.Target(logdensity, template=template, starts=(low, high))


def row(draws, sampling, warmup, search, seconds):
    """ESS and what it is divided by; means and errors to compare."""
    table = ParameterTable.of({"x": draws})
    return {
        "ess": float(np.min(table.ess)),
        "gradients": (sampling, sampling + warmup, sampling + warmup + search),
        "seconds": seconds,
        "mean": table.mean,
        "se": table.sd / np.sqrt(table.ess),
    }


def ours(target, seed):
    began = time.perf_counter()
    result = whmc.sample(target, seed=seed, chains=CHAINS, draws=DRAWS, progress=False)
    seconds = time.perf_counter() - began
    search = result.search.num_gradients
    return result, row(result.draws, result.num_gradients, result.num_warmup_gradients, search, seconds)


def make_nuts(target):
    """Window adaptation and NUTS of every chain by itself, compiled once."""

    def chain(key, position):
        key_warm, key_run = jax.random.split(key)
        warm = blackjax.window_adaptation(blackjax.nuts, target, target_acceptance_rate=0.8)
        (state, settings), told = warm.run(key_warm, position, NUTS_WARMUP)
        step = blackjax.nuts(target, **settings).step

        def one(state, key):
            state, info = step(key, state)
            return state, (state.position, info.num_integration_steps)

        _, (draws, num) = jax.lax.scan(one, state, jax.random.split(key_run, DRAWS))
        return draws, num, told.info.num_integration_steps

    return jax.jit(jax.vmap(chain))


def nuts(target, run, seed):
    began = time.perf_counter()
    with jax.enable_x64(True):
        starts = target.draw_starts(jax.random.key(seed), CHAINS)
        keys = jax.random.split(jax.random.key(seed + 1), CHAINS)
        draws, sampling, warmup = map(np.asarray, run(keys, starts))
    return row(draws, int(sampling.sum()), int(warmup.sum()), 0, time.perf_counter() - began)


def show(name, seed, who, one):
    rates = "  ".join(f"{one['ess'] / num:.4f}" for num in one["gradients"])
    spent = "/".join(str(num) for num in one["gradients"])
    print(
        f"{name:15s} seed {seed}  {who}  ESS {one['ess']:6.0f}  gradients {spent}  ESS per gradient {rates}  "
        f"{one['seconds']:.0f} s",
        flush=True,
    )


def compare(name, seeds):
    """Lines for each seed; the median of the ratios."""
    ratios, target = [], make_target(name)
    run = make_nuts(target)
    for seed in seeds:
        result, mine = ours(target, seed)
        show(name, seed, "whmc", mine)
        theirs = nuts(target, run, seed)
        show(name, seed, "NUTS", theirs)
        apart = float(np.max(np.abs(mine["mean"] - theirs["mean"]) / np.hypot(mine["se"], theirs["se"])))
        ratio = np.divide(mine["ess"], mine["gradients"]) / np.divide(theirs["ess"], theirs["gradients"])
        ratios.append(ratio)
        moves = ", ".join(f"{move} {rate:.2f}" for move, rate in result.acceptance.items())
        print(
            f"{'':15s} ratio {', '.join(f'{x:.2f}' for x in ratio)}; means apart {apart:.1f} standard errors; "
            f"{result.library.size} charts, num_steps {result.tuned['LocalHMC.num_steps']}; acceptance {moves}; "
            f"alarms {[alarm.name for alarm in result.alarms]}",
            flush=True,
        )
    return np.median(ratios, axis=0)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS))
    parser.add_argument("--seeds", type=int, default=3)
    asked = parser.parse_args()
    short = []
    for name in asked.models:
        sampling, warmed, searched = compare(name, range(asked.seeds))
        print(f"{name}: median ratio {sampling:.2f} sampling, {warmed:.2f} with warm-up, {searched:.2f} with search")
        short += [name] * int(sampling < PROMISED)
    sys.exit(f"below the promise of {PROMISED}: {short}" if short else 0)


if __name__ == "__main__":
    main()
