"""A plain NumPy density without a gradient, D = 5: calls that a default run takes, beside dynesty's static
sampler with random walks.

Two Gaussians, weights .7 and .3, standard deviations 1 and .3, in a box of ±6. calls: of the function. error: of the
heavier mode's weight and of the log evidence, against the truth; ±: what the run says of its own.
"""

import argparse
import sys

import numpy as np

import whmc

DIM, EDGE, HEAVY = 5, 6.0, 0.7
PLACES = np.array([-3.0, 3.0])
SD = np.array([1.0, 0.3])
LOG_FRONT = np.log([HEAVY, 1 - HEAVY]) - DIM * np.log(SD) - DIM / 2 * np.log(2 * np.pi)
FAR = 4.5
"""Standard errors from which on an answer is wrong."""


class Counted:
    """The log density, and how often it was called."""

    def __init__(self):
        self.calls = 0

    def __call__(self, x):
        self.calls += 1
        heights = LOG_FRONT - 0.5 * np.sum((x - PLACES[:, None]) ** 2, axis=1) / SD**2
        return float(np.logaddexp(*heights))


def run_whmc(seed):
    density = Counted()
    result = whmc.sample(whmc.from_numpy(density, dim=DIM, starts=(-EDGE, EDGE)), seed=seed, progress=False)
    heavy = result.modes.location[:, 0] < 0
    se = float(np.sqrt(np.sum(result.modes.weight_se[heavy] ** 2)))
    weight = float(result.modes.weight[heavy].sum())
    return density.calls, weight, se, result.log_evidence, result.log_evidence_se, len(result.alarms)


def run_dynesty(seed):
    import dynesty

    density = Counted()
    rng = np.random.default_rng(seed)
    # with its own choice of moves, uniform in ellipsoids, it had not ended after ten minutes
    sampler = dynesty.NestedSampler(density, lambda u: EDGE * (2 * u - 1), DIM, sample="rwalk", rstate=rng)
    sampler.run_nested(print_progress=False)
    found = sampler.results
    log_volume = DIM * np.log(2 * EDGE)  # its prior has density one over it
    weight = float(found.importance_weights()[found.samples[:, 0] < 0].sum())
    return density.calls, weight, np.nan, found.logz[-1] + log_volume, found.logzerr[-1], 0


RUNS = {"whmc": run_whmc, "dynesty": run_dynesty}


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=5)
    options = parser.parse_args(arguments)
    print(f"{'':8s} seed     calls   weight       ±    error   log evidence       ±   alarms")
    wrong = []
    for name, run in RUNS.items():
        for seed in range(options.seeds):
            calls, weight, se, evidence, evidence_se, alarms = run(seed)
            print(
                f"{name:8s} {seed:4d} {calls:9d}   {weight:.4f}  {se:6.4f}   {weight - HEAVY:+.4f}   "
                f"{evidence:12.4f}  {evidence_se:6.4f}   {alarms:6d}",
                flush=True,
            )
            if name == "whmc" and not alarms and abs(weight - HEAVY) > FAR * se:
                wrong.append(f"seed {seed}: a weight of {weight:.4f} ± {se:.4f}, {HEAVY} is right, and no alarm")
    print("\n".join(wrong) or "all promises kept")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
