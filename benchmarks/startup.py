"""From import to printed summary: seconds of a fresh process, beside peers that run in turn with us.

Every run is a process of its own, and all its seconds count: interpreter, imports, search, compilation, sampling, a
printed table. whmc runs twice: with nothing kept from before ("whmc"), and with what an earlier run has compiled
("whmc again"). NUTS: NumPyro's, 16 vectorised chains, 1000 + 1000 steps, the same density. SMC: BlackJAX's adaptive
tempered SMC with HMC moves, 4000 particles, from the same start box. dynesty: its static sampler at its defaults, where
there are at most ten dimensions. Schools in Stan and in NumPy are compared with NUTS on the same model in JAX; the Stan
program is built before the clock starts. Medians over the rounds, and their ratio to the median of NUTS.

Peers are not asked whether their answer is right: on most of these targets NUTS stays in one mode.

Promise: the ten lines take at most .7 of the time of NUTS, and at most .3 with kept code.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import time

import numpy as np

PROMISES = {("ten lines", "whmc"): 0.7, ("ten lines", "whmc again"): 0.3}
Y = [28.0, 8.0, -3.0, 7.0, -1.0, 1.0, 18.0, 12.0]
SD = [15.0, 10.0, 16.0, 11.0, 9.0, 11.0, 10.0, 18.0]

UNWANTED = ("JAX_", "PYTHONDONTWRITEBYTECODE")
"""Settings that no run sees. Packages that pip has installed have their bytecode; ours may have it too."""

STAN = """
data { array[8] real y; array[8] real<lower=0> sd; }
parameters { real mu; real<lower=0> tau; vector[8] z; }
model { mu ~ normal(0, 5); tau ~ cauchy(0, 5); z ~ std_normal(); y ~ normal(mu + tau * z, sd); }
"""


def ten_lines():
    import jax.numpy as jnp

    def logdensity(x):
        return jnp.logaddexp(jnp.log(0.7) - 0.5 * jnp.sum((x - 3) ** 2), jnp.log(0.3) - jnp.sum((x + 3) ** 2))

    return logdensity, 2, -10.0, 10.0


def sensor():
    from whmc.testing.sensor import sensor_network

    return sensor_network().logdensity, 16, -0.3, 1.2


def schools():
    """Eight schools, not centred, on the real line: mu, log tau, eight effects."""
    import jax.numpy as jnp

    def logdensity(x):
        mu, log_tau, z = x[0], x[1], x[2:]
        tau = jnp.exp(log_tau)
        prior = -0.5 * (mu / 5) ** 2 - jnp.log1p((tau / 5) ** 2) + log_tau - 0.5 * jnp.sum(z**2)
        return prior - 0.5 * jnp.sum(((jnp.array(Y) - mu - tau * z) / jnp.array(SD)) ** 2)

    return logdensity, 10, -4.0, 4.0


def regression():
    """A logistic regression with 100 coefficients and 500 observations."""
    import jax.numpy as jnp

    rng = np.random.default_rng(0)
    x = rng.standard_normal((500, 100))
    y = rng.random(500) < 1 / (1 + np.exp(-x @ rng.standard_normal(100) * 0.3))
    signed = jnp.asarray(x * (2 * y - 1)[:, None])
    return lambda b: -jnp.sum(jnp.logaddexp(0.0, -signed @ b)) - 0.5 * jnp.sum(b**2), 100, -2.0, 2.0


def thousand():
    """Two Gaussians in a thousand dimensions."""
    import jax.numpy as jnp

    def logdensity(x):
        return jnp.logaddexp(-0.5 * jnp.sum((x - 1) ** 2), -0.5 * jnp.sum((x + 1) ** 2))

    return logdensity, 1000, -3.0, 3.0


CASES = {
    "ten lines": ten_lines,
    "sensor": sensor,
    "schools": schools,
    "schools in Stan": schools,
    "schools in NumPy": schools,
    "regression": regression,
    "D = 1000": thousand,
}


def schools_in_numpy(x):
    tau = np.exp(x[1])
    miss = (np.array(Y) - x[0] - tau * x[2:]) / np.array(SD)
    value = -0.5 * (x[0] / 5) ** 2 - np.log1p((tau / 5) ** 2) + x[1] - 0.5 * np.sum(x[2:] ** 2) - 0.5 * miss @ miss
    slope = np.empty(10)
    slope[0] = -x[0] / 25 + np.sum(miss / np.array(SD))
    slope[1] = 1 - 2 * tau**2 / (25 + tau**2) + tau * np.sum(x[2:] * miss / np.array(SD))
    slope[2:] = -x[2:] + tau * miss / np.array(SD)
    return value, slope


def run_whmc(case):
    import whmc

    if case == "schools in Stan":
        target = whmc.from_stan(STAN, {"y": Y, "sd": SD})
    elif case == "schools in NumPy":
        target = whmc.from_numpy(schools_in_numpy, dim=10, grad=True, starts=(-4.0, 4.0))
    else:
        logdensity, dim, low, high = CASES[case]()
        target = whmc.Target(logdensity, dim=dim, starts=(low, high))
    print(whmc.sample(target, progress=False).summary())


def run_nuts(case):
    import jax
    from numpyro.infer import MCMC, NUTS

    logdensity, dim, low, high = CASES[case]()
    sampler = MCMC(
        NUTS(potential_fn=lambda x: -logdensity(x)),
        num_warmup=1000,
        num_samples=1000,
        num_chains=16,
        chain_method="vectorized",
        progress_bar=False,
    )
    start = jax.random.uniform(jax.random.key(0), (16, dim), minval=low, maxval=high)
    sampler.run(jax.random.key(1), init_params=start)
    sampler.print_summary()


def run_smc(case):
    import jax

    from peers.smc import tempered_smc

    draws, weights = tempered_smc(*CASES[case](), particles=4000)(jax.random.key(0))
    mean = weights @ draws
    print(mean, np.sqrt(weights @ (draws - mean) ** 2))


def run_dynesty(case):
    import dynesty
    import jax

    logdensity, dim, low, high = CASES[case]()
    value = jax.jit(logdensity)
    sampler = dynesty.NestedSampler(lambda x: float(value(x)), lambda u: low + (high - low) * u, dim)
    sampler.run_nested(print_progress=False)
    sampler.results.summary()


RUNS = {"whmc": run_whmc, "whmc again": run_whmc, "NUTS": run_nuts, "SMC": run_smc, "dynesty": run_dynesty}


def peers(case):
    """Who takes part. In a thousand dimensions SMC would take an hour."""
    dim = {"ten lines": 2, "sensor": 16, "regression": 100, "D = 1000": 1000}.get(case, 10)
    names = ["whmc", "whmc again", "NUTS"]
    return names + ["SMC"] * (dim <= 100) + ["dynesty"] * (dim <= 10)


def seconds_of(case, name, cache, limit):
    """Of a fresh process; NaN if it takes longer than the limit."""
    environment = {key: value for key, value in os.environ.items() if not key.startswith(UNWANTED)}
    environment["WHMC_CACHE"] = cache if name == "whmc again" else "off"
    began = time.perf_counter()
    try:
        done = subprocess.run(
            [sys.executable, __file__, "--run", case, name],
            capture_output=True,
            text=True,
            env=environment,
            timeout=limit,
        )
    except subprocess.TimeoutExpired:
        return np.nan
    if done.returncode:
        raise RuntimeError(f"{name} failed on {case}:\n{done.stderr}")
    return time.perf_counter() - began


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", nargs="+", default=list(CASES), choices=list(CASES), metavar="CASE")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--limit", type=float, default=600.0, help="seconds of one run at most")
    parser.add_argument("--run", nargs=2, metavar=("CASE", "WHO"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.run:
        RUNS[options.run[1]](options.run[0])
        return 0
    broken = []
    print(f"{'case':18s} {'who':12s} {'seconds':>8s} {'least':>7s} {'most':>7s} {'of NUTS':>8s}")
    for case in options.cases:
        names = peers(case)
        with tempfile.TemporaryDirectory() as cache:
            seconds_of(case, "whmc again", cache, options.limit)  # fills the cache, and builds a Stan program
            rows = [[seconds_of(case, name, cache, options.limit) for name in names] for _ in range(options.rounds)]
        table = dict(zip(names, np.array(rows).T, strict=True))
        for name, seconds in table.items():
            ratio = float(np.median(seconds) / np.median(table["NUTS"]))
            spread = f"{seconds.min():7.1f} {seconds.max():7.1f}"
            print(f"{case:18s} {name:12s} {np.median(seconds):8.1f} {spread} {ratio:8.2f}", flush=True)
            most = PROMISES.get((case, name))
            if most is not None and not ratio <= most:
                broken.append(f"{case}: {name} takes {ratio:.2f} of the time of NUTS, more than {most}")
    print("\n".join(broken) or "all promises kept")
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
