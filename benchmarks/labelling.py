"""A mixture of three Gaussians in NumPyro and in PyMC, components free to change names, with and without saying so.

Six labellings, each 1/6; with the symmetry declared one chart, the same posterior when unfolded; one log evidence in
all four runs. Prints what it finds, and which promise was not kept.
"""

import sys
import time

import numpy as np

import whmc

COMPONENTS = whmc.Exchange("mu", "sigma", "weight")


def make_data(num: int = 60) -> np.ndarray:
    rng = np.random.default_rng(1)
    component = rng.choice(3, num, p=[0.5, 0.3, 0.2])
    return rng.normal(np.array([-4.0, 0.0, 5.0])[component], np.array([0.7, 0.5, 1.0])[component])


def in_numpyro(data: np.ndarray, symmetries=None) -> whmc.Target:
    import numpyro
    import numpyro.distributions as dist

    def model(y):
        weight = numpyro.sample("weight", dist.Dirichlet(np.full(3, 2.0)))
        with numpyro.plate("component", 3):
            mu = numpyro.sample("mu", dist.Normal(0.0, 5.0))
            sigma = numpyro.sample("sigma", dist.LogNormal(-0.5, 0.5))
        mixture = dist.MixtureSameFamily(dist.Categorical(probs=weight), dist.Normal(mu, sigma))
        with numpyro.plate("data", len(y)):
            numpyro.sample("y", mixture, obs=y)

    return whmc.from_numpyro(model, data, symmetries=symmetries)


def in_pymc(data: np.ndarray, symmetries=None) -> whmc.Target:
    import pymc as pm

    with pm.Model(coords={"component": ["a", "b", "c"]}) as model:
        weight = pm.Dirichlet("weight", np.full(3, 2.0), dims="component")
        mu = pm.Normal("mu", 0.0, 5.0, dims="component")
        sigma = pm.LogNormal("sigma", -0.5, 0.5, dims="component")
        pm.NormalMixture("y", weight, mu, sigma, observed=data)
    return whmc.from_pymc(model, symmetries=symmetries)


MODELS = {"NumPyro": in_numpyro, "PyMC": in_pymc}


def moments(result: whmc.Result) -> tuple[np.ndarray, np.ndarray]:
    """Means over labellings that tell posteriors apart, and their errors across chains."""
    values = result.constrained()
    mu, sigma, weight = values["mu"], values["sigma"], values["weight"]
    columns = [
        mu[..., 0],
        mu[..., 0] ** 2,
        mu[..., 0] * mu[..., 1],
        weight[..., 0] * mu[..., 0],
        sigma[..., 1] * weight[..., 1],
    ]
    means = np.array([column.mean(axis=1) for column in columns])
    return means.mean(axis=1), means.std(axis=1, ddof=1) / np.sqrt(means.shape[1])


def title(name: str, declared: bool) -> str:
    return f"{name:8s} {'declared' if declared else 'as it is':9s}"


def run(draws: int = 2000, seed: int = 0) -> list[str]:
    data, broken, runs = make_data(), [], {}
    for name, make in MODELS.items():
        for declared in (False, True):
            began = time.perf_counter()
            result = whmc.sample(make(data, [COMPONENTS] if declared else None), draws=draws, seed=seed)
            seconds = time.perf_counter() - began
            runs[name, declared] = result
            modes = result.modes
            z = (modes.weight - 1 / len(modes)) / np.where(modes.weight_se > 0, modes.weight_se, 1)
            print(
                f"{title(name, declared)} {len(modes)} modes, {result.library.size} charts, {seconds:.0f} s, "
                f"log evidence {result.log_evidence:.4f} ± {result.log_evidence_se:.4f}, "
                f"weights {np.array2string(modes.weight, precision=4)} (largest |z| {np.abs(z).max():.2f})"
            )
            if len(modes) != (1 if declared else 6) or np.abs(z).max() > 3:
                broken.append(f"{name}, declared {declared}: modes or weights")
    evidences = {key: (one.log_evidence, one.log_evidence_se) for key, one in runs.items()}
    for one, (value, se) in evidences.items():
        for other, (there, error) in evidences.items():
            if one < other and abs(value - there) > 3 * np.hypot(se, error):
                broken.append(f"log evidence of {one} and {other}: {value:.4f} and {there:.4f}")
    reference = moments(runs["NumPyro", False])
    for key in (("NumPyro", True), ("PyMC", False), ("PyMC", True)):
        found = moments(runs[key].unfolded() if key[1] else runs[key])
        z = np.abs(found[0] - reference[0]) / np.hypot(found[1], reference[1])
        print(f"{title(*key)} against NumPyro as it is: largest |z| of moments {z.max():.2f}")
        if z.max() > 5:
            broken.append(f"{key}: another posterior")
    return broken


if __name__ == "__main__":
    broken = run()
    print("all promises kept" if not broken else "\n".join(f"NOT KEPT: {one}" for one in broken))
    sys.exit(bool(broken))
