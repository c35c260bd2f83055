"""Known modes: the paper's mixtures, the skewed pair and the .9/.1 pair, beside i.i.d. draws of the same number.

REM: relative error of the mean, |mean - truth|_1 / |truth|_1. TV: total variation of the mode weights. ESS: effective
draws of the mode label (ArviZ, the smallest over the modes' indicators) per draw and per gradient. z: largest weight
error in standard errors.
"""

import argparse
import sys
from pathlib import Path

import numpy as np
from arviz_stats.base import array_stats

import whmc
from whmc.testing import Problem, gaussian_mixture, loggamma_pair

DATA = Path(__file__).parent / "data"
MIXTURES = ["k5_d20", "k10_d20", "k15_d20", "k20_d20", "k10_d10", "k10_d40", "k10_d100"]


def load(name: str) -> Problem:
    """A mixture of the paper's section 5.1."""
    with np.load(DATA / f"mixture_{name}.npz") as file:
        return gaussian_mixture(file["weights"], file["means"], file["covs"], name)


def rem(mean, truth):
    return np.abs(mean - truth).sum() / np.abs(truth).sum()


def label_ess(label, size):
    """Effective draws per draw of the worst mode's indicator."""
    here = (label[..., None] == np.arange(size)).astype(float)
    used = [k for k in range(size) if 0 < here[..., k].mean() < 1]
    ess = [array_stats.ess(here[..., k], chain_axis=0, draw_axis=1, method="mean") for k in used]
    return min(ess) / label.size


def run(case: Problem, seed: int, *, one_mode: bool, kernel=None):
    initial = np.tile(case.locations[seed % len(case.weights)], (16, 1)) if one_mode else None
    result = whmc.sample(case.target, modes=case.locations, seed=seed, draws=1250, initial=initial, kernel=kernel)
    iid, iid_label = case.draw(np.random.default_rng(1000 + seed), result.label.size)
    size, table = len(case.weights), result.modes
    ess = label_ess(result.label, size)
    return {
        "rem": rem(result.draws.mean(axis=(0, 1)), case.mean),
        "iid rem": rem(iid.mean(axis=0), case.mean),
        "tv": 0.5 * np.abs(table.weight - case.weights).sum(),
        "iid tv": 0.5 * np.abs(np.bincount(iid_label, minlength=size) / len(iid) - case.weights).sum(),
        "ess": ess,
        "ess/grad": ess * result.label.size / result.num_gradients,
        "z": np.max(np.abs(table.weight - case.weights) / table.weight_se),
        "se": np.max(table.weight_se),
        "acceptance": result.acceptance.get("Wormhole", np.nan),
        "throat": int(getattr(result.kernel.kernels[1], "throat", 0)),
        "seconds": result.timings.total,
        "sampling": result.timings.sampling,
        "gradients": result.gradients.total,
    }


COLUMNS = ["rem", "iid rem", "tv", "iid tv", "ess", "ess/grad", "se", "acceptance", "throat", "seconds", "sampling"]


def show(name, rows):
    median = {key: np.median([row[key] for row in rows]) for key in COLUMNS}
    cells = " ".join(f"{median[key]:10.4f}" for key in COLUMNS)
    ratio = median["rem"] / median["iid rem"]
    print(f"{name:26s} {cells} {ratio:9.2f} {max(row['z'] for row in rows):6.2f}", flush=True)


def misses(name, rows):
    """What this row promises and does not keep."""
    ratio = np.median([row["rem"] for row in rows]) / np.median([row["iid rem"] for row in rows])
    found = {"a weight is five standard errors off": max(row["z"] for row in rows) >= 5}
    if name.startswith("k"):
        found["REM above 1.5 times that of i.i.d. draws"] = ratio > 1.5
        found["label ESS below .4 a draw"] = np.median([row["ess"] for row in rows]) < 0.4
    if name.startswith("unit pair"):
        found["standard error above .005"] = max(row["se"] for row in rows) > 0.005
    if name.startswith("log-gamma"):
        found["jump acceptance below .4"] = min(row["acceptance"] for row in rows) < 0.4
        found["standard error above .02"] = max(row["se"] for row in rows) > 0.02
        found["more than three minutes"] = max(row["seconds"] for row in rows) > 180
    return [f"{name}: {what}" for what, missed in found.items() if missed]


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--only", default="", help="only rows whose name contains this")
    options = parser.parse_args()
    print(f"{'target':26s} " + " ".join(f"{key:>10s}" for key in COLUMNS) + f" {'rem/iid':>9s} {'max z':>6s}")
    missed, spent = [], 0

    def row(name, case, seeds, **settings):
        nonlocal spent
        if options.only in name:
            rows = [run(case, seed, **settings) for seed in range(seeds)]
            show(name, rows)
            missed.extend(misses(name, rows))
            spent += sum(one["gradients"] for one in rows)

    for name in MIXTURES:
        case = load(name)
        row(name, case, options.seeds, one_mode=False)
        row(f"{name}, from one mode", case, options.seeds, one_mode=True)
    case, local = load("k10_d20"), whmc.LocalHMC(num_steps=1)
    forms = {
        "Gibbs form": (local, whmc.GibbsWormhole(), whmc.Independence()),
        "no independence": (local, whmc.Wormhole()),
        "no ind., Gibbs": (local, whmc.GibbsWormhole()),
    }
    for form, kernels in forms.items():
        row(f"k10_d20, {form}", case, options.seeds, one_mode=False, kernel=whmc.Cycle(kernels))
    for dim in (2, 20):
        means = np.zeros((2, dim))
        means[1, 0] = 10
        pair = gaussian_mixture([0.9, 0.1], means, np.tile(np.eye(dim), (2, 1, 1)))
        row(f"unit pair .9/.1 D={dim}", pair, options.seeds, one_mode=True)
    row("log-gamma pair D=100", loggamma_pair(100), options.seeds, one_mode=False)
    row("log-gamma pair D=1000", loggamma_pair(1000), max(1, options.seeds // 3), one_mode=False)
    print(f"{spent} gradients in all")
    print("\n".join(missed) or "all promises kept")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
