"""Modes found against gradients spent, for each finder and each target, nothing known beforehand.

found: modes above the search's weight floor, the median and the least over the seeds. true: how many there are ("-":
nobody knows); where components overlap, the peaks that a climb from each of them leads to. starts, gradients: of the
whole search. seconds: of a second call with the same seed, all compiled. missing: share of the mass expected in
modes not found, and at most (nine times in ten). to half, to all: gradients until the discovery curve reached half of
the true number, and all of it ("-": in less than half of the seeds); where that is unknown, of the
most that any finder reached here. The curve also counts peaks below the floor, and shares the gradients of a batch
evenly among its starts: a tempered population in truth finds nothing before it is annealed. All are medians over the
seeds but for the least.

The default finders run twice: as `find_modes` does ("default"), and as in a default run of `sample` ("in a run"), where
the population is small while nothing says that there is more to be found.

Promise: both find all modes in every seed, wherever it is known how many there are. At the end the gradients of both
are summed over targets and seeds.
"""

import argparse
import sys
import time

import jax
import numpy as np
from scipy.special import softmax

import whmc
from known_modes import load
from whmc.run.plan import Plan
from whmc.search.mode_search import LIGHTEST_KEPT_SHARE
from whmc.testing import eggbox, gmm40, himmelblau, liang_wong, many_well, shells, two_scale_pair
from whmc.testing.sensor import sensor_network

FINDERS = {
    "many starts": {"finder": whmc.MultiStart()},
    "tempered": {"finder": whmc.Tempered()},
    "residual": {"finder": (whmc.MultiStart(4), whmc.Residual(1024))},
    "default": {},
    "in a run": {"effort": Plan().effort},
}
PROMISED = ("default", "in a run")


def known(case):
    """A problem's target and how many modes it has."""
    return case.target, num_peaks(case)


OVERLAPPING = ("Liang-Wong B", "GMM40")
"""Mixtures of round Gaussians in the plane with fewer peaks than components."""


def num_peaks(case):
    """The modes of a problem above the weight floor; where components overlap, the peaks that climbs lead to."""
    if case.name not in OVERLAPPING:
        return int(np.sum(case.weights >= LIGHTEST_KEPT_SHARE))
    return num_peaks_from(case, case.means)


def num_peaks_from(case, starts):
    """How many peaks of overlapping round Gaussians climbs from these points lead to."""
    x, variance = starts, case.scales[:, 0, 0] ** 2
    for _ in range(5000):  # where the score is zero, x is this mean of the components' means
        square = np.sum((x[:, None] - case.means) ** 2, axis=-1)
        share = softmax(np.log(case.weights / variance) - 0.5 * square / variance, axis=1) / variance
        x = share @ case.means / share.sum(axis=1, keepdims=True)
    return len(np.unique(x.round(3), axis=0))


TARGETS = {
    "sensor": lambda: (sensor_network(), None),
    "k10_d10": lambda: known(load("k10_d10")),
    "k10_d20": lambda: known(load("k10_d20")),
    "k10_d100": lambda: known(load("k10_d100")),
    "liang_wong_A": lambda: known(liang_wong("A")),
    "liang_wong_B": lambda: known(liang_wong("B")),
    "gmm40": lambda: known(gmm40()),
    "many_well_3": lambda: known(many_well(3)),
    "many_well_8": lambda: known(many_well(8)),
    "himmelblau": lambda: known(himmelblau(1.0)),
    "eggbox": lambda: known(eggbox()),
    "shells_2": lambda: known(shells(2)),
    "shells_10": lambda: known(shells(10)),
    "two_scale_20": lambda: known(two_scale_pair(20, (0.8, 0.2))),
}


def search(target, settings, seed):
    """What a search found, and the seconds that it takes when it is made again."""
    try:
        found = whmc.search_modes(target, seed=seed, **settings)
    except ValueError as error:  # it found nothing at all
        if not str(error).startswith("no mode was found"):
            raise
        return None, np.nan
    start = time.perf_counter()
    whmc.search_modes(target, seed=seed, **settings)
    return found, time.perf_counter() - start


def spent(found, number):
    """Gradients until the curve reached this number of modes; inf if it never did."""
    rows = found.discovery[found.discovery[:, 2] >= number] if found is not None else ()
    return float(rows[0, 1]) if len(rows) else np.inf


def summary(searches, seconds, number):
    """The columns of a row. `number`: the modes to be found."""
    there = [one for one in searches if one is not None]

    def median(values):
        values = [value for value in values if np.isfinite(value)]
        return float(np.median(values)) if values else np.nan

    def to(modes):
        # not the mean of the two in the middle: one of them may be infinite
        return float(np.sort([spent(one, modes) for one in searches])[len(searches) // 2])

    counts = [one.num_found if one is not None else 0 for one in searches]
    return {
        "found": median(counts),
        "least": min(counts),
        "starts": median(one.num_starts for one in there),
        "gradients": median(one.num_gradients for one in there),
        "seconds": median(seconds),
        "missing": median(one.missing.expected for one in there),
        "at most": median(one.missing.bound for one in there),
        "to half": to(np.ceil(number / 2)),
        "to all": to(number),
    }


def show(name, finder, row, true):
    cells = [f"{row['found']:7.4g} {row['least']:6d} {true or '-':>6} {row['starts']:7.0f} {row['gradients']:10.0f}"]
    cells.append(f"{row['seconds']:8.2f} {row['missing']:7.4f} {row['at most']:8.4f}")
    cells += [f"{row[key]:10.0f}" if np.isfinite(row[key]) else f"{'-':>10s}" for key in ("to half", "to all")]
    print(f"{name:14s} {finder:12s} " + " ".join(cells), flush=True)


def measure(name, finders, seeds):
    """The finders on one target: their searches, with seconds, and the number of modes to be found."""
    target, true = TARGETS[name]()
    runs = {label: [search(target, FINDERS[label], seed) for seed in range(seeds)] for label in finders}
    jax.clear_caches()  # what was compiled for one target serves no other
    return runs, true


def report(name, runs, true):
    """Prints a row for each finder; returns what was promised and not kept."""
    most = max(one.discovery[:, 2].max() for pairs in runs.values() for one, _ in pairs if one is not None)
    missed = []
    for label, pairs in runs.items():
        searches, seconds = zip(*pairs, strict=True)
        row = summary(searches, seconds, true or most)
        show(name, label, row, true)
        if label in PROMISED and true is not None:
            wrong = [one.num_found if one is not None else 0 for one in searches]
            wrong = [count for count in wrong if count != true]
            missed += [f"{name}: {label!r} found {count} modes of {true}" for count in wrong]
    return missed


def plot(path, results):
    """Discovery curves: a panel for each target, a colour for each finder, a line for each seed."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    columns = min(4, len(results))
    rows = -(-len(results) // columns)
    figure, axes = plt.subplots(rows, columns, figsize=(4 * columns, 3 * rows), squeeze=False, layout="constrained")
    for axis in axes.flat[len(results) :]:
        axis.set_visible(False)
    for axis, (name, (runs, true)) in zip(axes.flat, results.items(), strict=False):
        for n, (label, pairs) in enumerate(runs.items()):
            curves = [one.discovery[1:] for one, _ in pairs if one is not None]
            for k, curve in enumerate(curves):
                axis.step(
                    np.maximum(curve[:, 1], 1),
                    curve[:, 2],
                    where="post",
                    color=f"C{n}",
                    ls=["-", "--", "-.", ":"][n],
                    label=label if k == 0 else None,
                    lw=1.2,
                    alpha=0.8,
                )
        if true is not None:
            axis.axhline(true, color="0.6", lw=0.8, zorder=0)
        axis.set(title=name, xscale="log", ylim=(0, None))
    figure.supxlabel("gradients")
    figure.supylabel("modes found")
    axes.flat[0].legend(frameon=False, fontsize="small")
    figure.savefig(path, dpi=120)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--targets", nargs="+", default=list(TARGETS), choices=list(TARGETS), metavar="TARGET")
    parser.add_argument("--finders", nargs="+", default=list(FINDERS), choices=list(FINDERS), metavar="FINDER")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--plot", help="also draw the discovery curves into this file")
    options = parser.parse_args()
    print(
        f"{'target':14s} {'finder':12s} {'found':>7s} {'least':>6s} {'true':>6s} {'starts':>7s} {'gradients':>10s} "
        f"{'seconds':>8s} {'missing':>7s} {'at most':>8s} {'to half':>10s} {'to all':>10s}"
    )
    missed, results = [], {}
    for name in options.targets:
        results[name] = measure(name, options.finders, options.seeds)
        missed += report(name, *results[name])
    if options.plot:
        plot(options.plot, results)
    for label in set(PROMISED) & set(options.finders):
        found = [one for runs, _ in results.values() for one, _ in runs[label] if one is not None]
        print(f"{label}: {sum(one.num_gradients for one in found)} gradients in all")
    print("\n".join(missed) or "all promises kept")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
