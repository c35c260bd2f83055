"""The demonstration: ten modes in twenty dimensions, unequal in weight and shape, known by place only."""

import time
from importlib.util import find_spec
from pathlib import Path

import numpy as np

from whmc.kernels.local import LocalHMC
from whmc.result import Result
from whmc.run.sampler import sample
from whmc.testing.targets import Problem, gaussian_mixture


def ten_modes(dim: int = 20, seed: int = 5) -> Problem:
    """Ten Gaussians about 20 apart, weights from .04 to .27, variances from .3 to 3 along directions of their own."""
    rng = np.random.default_rng(seed)
    weights = rng.dirichlet(np.full(10, 1.5))
    means = rng.uniform(-1, 1, (10, dim))
    gaps = np.linalg.norm(means[:, None] - means, axis=-1)
    means *= 20 / gaps[np.triu_indices(10, 1)].mean()
    turns = np.linalg.qr(rng.standard_normal((10, dim, dim)))[0]
    spreads = np.exp(rng.uniform(np.log(0.1), np.log(10), (10, dim)) / 2)
    return gaussian_mixture(weights, means, (turns * spreads[:, None]) @ np.swapaxes(turns, 1, 2), "ten modes")


def run_demo(path: Path, *, seed: int = 0, progress: bool | None = None) -> bool:
    """Samples, prints the table, draws the picture; true if every weight is within five standard errors."""
    problem = ten_modes()
    chains = 16
    start = np.tile(problem.locations[0], (chains, 1))
    began = time.perf_counter()
    result = sample(
        problem.target, modes=problem.locations, seed=seed, chains=chains, initial=start, draws=1250, progress=progress
    )
    seconds = time.perf_counter() - began
    plain = sample(
        problem.target,
        modes=problem.locations,
        seed=seed,
        chains=chains,
        initial=start,
        draws=1250,
        kernel=LocalHMC(),
        progress=progress,
    )
    print(_report(problem, result, plain, seconds))
    if find_spec("matplotlib") is None:
        print("\nno picture: matplotlib is not installed, `pip install whmc[plots]`")
    else:
        _picture(path, problem, result, plain)
        print(f"\npicture: {path}")
    scores = np.abs(result.modes.weight - problem.weights) / result.modes.weight_se
    return bool(np.all(scores < 5))


def _report(problem: Problem, result: Result, plain: Result, seconds: float) -> str:
    table, other = result.modes, plain.modes
    lines = [
        "Ten Gaussian modes in 20 dimensions, about 20 apart, unequal in weight and shape.",
        "All chains start in mode 0.",
        "",
        "mode    true    whmc       ±   plain HMC",
    ]
    for k in range(len(table)):
        lines.append(
            f"{k:4d}  {problem.weights[k]:.4f}  {table.weight[k]:.4f}  {table.weight_se[k]:.4f}"
            f"      {other.weight[k]:.4f}"
        )
    rem = np.abs(result.draws.mean(axis=(0, 1)) - problem.mean).sum() / np.abs(problem.mean).sum()
    chains, draws, _ = result.draws.shape
    changed = np.mean(result.label[:, 1:] != result.label[:, :-1])
    times = result.timings
    lines += [
        "",
        f"{chains * draws} draws, the mode changes in {changed:.0%} of the steps; relative error of the mean {rem:.4f}",
        f"{seconds:.1f} s in all: prepare {times.prepare:.1f}, compile {times.compile:.1f}, "
        f"warm-up {times.warmup:.1f}, sampling {times.sampling:.1f}",
    ]
    return "\n".join(lines)


def _picture(path: Path, problem: Problem, result: Result, plain: Result) -> None:
    from whmc.plots import save_demo

    every = 4
    dim = problem.target.dim
    save_demo(
        path,
        draws=result.draws[:, ::every].reshape(-1, dim),
        label=result.label[:, ::every].ravel(),
        plain=plain.draws[:, ::every].reshape(-1, dim),
        plain_label=plain.label[:, ::every].ravel(),
        location=problem.locations,
        truth=problem.weights,
        weight=result.modes.weight,
        weight_se=result.modes.weight_se,
        plain_weight=plain.modes.weight,
    )
