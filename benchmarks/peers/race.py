"""The targets of `shapes.py`, run by whmc and by its peers: effective draws a second of the slowest statistic.

Every run is a process of its own, in turn, and all its seconds count: interpreter, imports, search, compilation. Peers
are told more than we are: the box that holds 100 000 exact draws, and a tenth more on either side. SMC: BlackJAX's
adaptive tempered SMC with HMC moves, 4000 particles. PT: non-reversible parallel tempering (`tempering.py`), as long as
the budget. dynesty: its dynamic sampler at its defaults, up to ten dimensions.

A statistic with variance v and error e has v/e² effective draws; e² is the median over the seeds, divided by that of a
chi-square with one degree of freedom. `slowest`: the least over the statistics of which at least .001 of the mass
speaks. `a second`: that over the median seconds. `sampling`: the same over the seconds of our sampling phase alone.
`wrong`: runs whose largest error is beyond what 50 effective draws would leave.
"""

import json
import subprocess
import sys
import time
from pathlib import Path

import numpy as np

CHI2_MEDIAN = 0.4549
FEWEST = 50
"""Effective draws below which an answer is called wrong."""

DYNESTY_UP_TO = 10
SHARE = 0.001


def box_of(shape):
    draws = shape.draw(np.random.default_rng(1), 100_000 if shape.target.dim <= 100 else 5_000)
    low, high = draws.min(), draws.max()
    return float(low - 0.1 * (high - low)), float(high + 0.1 * (high - low))


def estimates(shape, draws, weights=None):
    values = shape.measure(np.asarray(draws)[None])[0]
    return (values.mean(axis=0) if weights is None else weights @ values).tolist()


def run_whmc(shape, seed, budget):
    import whmc

    del budget
    result = whmc.sample(shape.target, seed=seed, progress=False)
    return {
        "estimates": shape.measure(result.draws).mean(axis=(0, 1)).tolist(),
        "sampling": result.timings.sampling,
        "log evidence": [float(result.log_evidence), float(result.log_evidence_se)],
        "alarms": [alarm.name for alarm in result.alarms],
    }


def run_smc(shape, seed, budget):
    import jax

    from peers.smc import tempered_smc

    del budget
    jax.config.update("jax_enable_x64", True)
    draws, weights = tempered_smc(shape.target, shape.target.dim, *box_of(shape), particles=4000)(jax.random.key(seed))
    return {"estimates": estimates(shape, draws, weights)}


def run_pt(shape, seed, budget):
    import jax

    from peers.tempering import parallel_tempering

    jax.config.update("jax_enable_x64", True)
    sampler = parallel_tempering(shape.target, shape.target.dim, *box_of(shape))
    return {"estimates": estimates(shape, sampler(jax.random.key(seed), budget))}


def run_dynesty(shape, seed, budget):
    import dynesty
    import jax

    del budget
    jax.config.update("jax_enable_x64", True)
    (low, high), value = box_of(shape), jax.jit(shape.target)
    sampler = dynesty.DynamicNestedSampler(
        lambda x: max(float(value(x)), -1e300),
        lambda u: low + (high - low) * u,
        shape.target.dim,
        rstate=np.random.default_rng(seed),
    )
    sampler.run_nested(print_progress=False)
    found = sampler.results
    evidence = float(found.logz[-1]) + shape.target.dim * np.log(high - low)
    weights = found.importance_weights()
    return {"estimates": estimates(shape, found.samples, weights), "log evidence": [evidence, float(found.logzerr[-1])]}


RUNS = {"whmc": run_whmc, "SMC": run_smc, "PT": run_pt, "dynesty": run_dynesty}


def one(name, who, seed, budget):
    """A run in this process, as JSON."""
    from whmc.testing import SHAPES

    return json.dumps(RUNS[who](SHAPES[name](), seed, budget))


def fresh(name, who, seed, budget, limit):
    script = Path(__file__).parent.parent / "shapes.py"
    command = [sys.executable, str(script), name, "--seed", str(seed), "--race-one", who, "--budget", str(budget)]
    began = time.perf_counter()
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=limit, check=False)
    except subprocess.TimeoutExpired:
        return None
    if done.returncode:
        print(f"{name} {who}: {(done.stderr.strip().splitlines() or ['failed'])[-1]}", flush=True)
        return None
    return json.loads(done.stdout.splitlines()[-1]) | {"seconds": time.perf_counter() - began}


def effective(shape, rows, variance):
    """Effective draws of the slowest statistic, and how many runs are wrong."""
    error = np.array([row["estimates"] for row in rows]) - shape.truth
    heavy = variance > SHARE**2
    square = np.maximum(error[:, heavy] ** 2, 1e-300)
    wrong = np.sum(np.max(square / variance[heavy], axis=1) > 9 / FEWEST)
    return float(np.min(variance[heavy] / (np.median(square, axis=0) / CHI2_MEDIAN))), int(wrong)


def race(names, seeds, budget, limit, out=None):
    """The table; returns it as data."""
    from whmc.testing import SHAPES

    table = {}
    head = ("runs", 4), ("wrong", 5), ("slowest", 9), ("seconds", 8), ("a second", 9), ("of best", 8), ("sampling", 9)
    print(f"{'name':15s} {'who':8s} " + " ".join(f"{word:>{width}s}" for word, width in head) + "   alarms")
    for name in names:
        shape = SHAPES[name]()
        exact = shape.measure(shape.draw(np.random.default_rng(2), 20_000 if shape.target.dim <= 100 else 2_000)[None])
        variance = exact[0].var(axis=0)
        who = [one for one in RUNS if one != "dynesty" or shape.target.dim <= DYNESTY_UP_TO]
        rows = {one: [] for one in who}
        for seed in range(seeds):
            for one in who:
                found = fresh(name, one, seed, budget, limit)
                if found is not None:
                    rows[one].append(found)
        table[name] = {}
        for one, runs in rows.items():
            if not runs:
                print(f"{name:15s} {one:8s}  no answer within {limit:g} s", flush=True)
                continue
            slowest, wrong = effective(shape, runs, variance)
            seconds = float(np.median([run["seconds"] for run in runs]))
            sampling = float(np.median([run.get("sampling", np.nan) for run in runs]))
            alarms = sorted({alarm for run in runs for alarm in run.get("alarms", [])})
            table[name][one] = {
                "slowest": slowest, "seconds": seconds, "wrong": wrong, "runs": len(runs),
                "a second": slowest / seconds, "sampling": slowest / sampling, "alarms": alarms, "rows": runs,
            }  # fmt: skip
        best = max((row["a second"] for one, row in table[name].items() if one != "whmc"), default=np.nan)
        for one, row in table[name].items():
            numbers = (
                f"{row['slowest']:9.0f} {row['seconds']:8.1f} {row['a second']:9.2f} {row['a second'] / best:8.2f}"
            )
            print(
                f"{name:15s} {one:8s} {row['runs']:4d} {row['wrong']:5d} {numbers} {row['sampling']:9.0f}   "
                + ", ".join(row["alarms"]),
                flush=True,
            )
        if out is not None:
            out.write_text(json.dumps(table, indent=1))
    return table
