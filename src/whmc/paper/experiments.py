"""The paper's eight figures and the errata, one function each: `whmc paper fig1 ... fig8 | errata | all`."""

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from whmc._shapes import Float
from whmc.modes.library import ModeLibrary
from whmc.paper import adaptive, figures
from whmc.paper.field import FieldWormhole
from whmc.paper.geometry import vicinity
from whmc.paper.metric import MetricWormhole
from whmc.paper.problems import Case, from_problem, mixture, sensors, unit_pair, welling_teh
from whmc.paper.residual import residual_energy
from whmc.paper.samplers import Budget, compare, exact, pilot, plain, printed, timed
from whmc.paper.tally import Tally, as_json, as_text, half_interval, total_variation
from whmc.testing.sensor import sensor_data
from whmc.testing.targets import Problem, gaussian_mixture


@dataclasses.dataclass(frozen=True)
class Settings:
    """Seconds a sampler, chains, where to write. quick: fewer targets, for a look."""

    out: Path
    seconds: float
    chains: int = 10
    quick: bool = False
    seed: int = 0
    say: Callable[[str], None] = lambda text: None

    @property
    def budget(self) -> Budget:
        return Budget(self.seconds, self.chains, self.seed)

    def write(self, name: str, rows: list[dict[str, Any]], tallies: dict[str, Tally]) -> str:
        """The table as JSON, the draws as npz; returns the table as text."""
        known = {"seconds": self.seconds, "chains": self.chains, "seed": self.seed, "quick": self.quick}
        (self.out / f"{name}.json").write_text(as_json(rows, known))
        if tallies:
            draws: Any = {key.replace(" ", "_"): tally.draws for key, tally in tallies.items()}
            np.savez_compressed(self.out / f"{name}-draws.npz", **draws)
        return as_text(rows)


def fig1(settings: Settings) -> str:
    """Figure 1 [2mode]: HMC and the wormhole metric on the Welling-Teh posterior."""
    case, budget = welling_teh(), settings.budget
    tuned = pilot(case, budget)
    found = compare(case, budget, tuned, settings.say)
    settings.say(f"{case.name}: metric")
    # in a wormhole velocities are larger by 1/sqrt(shrink), so steps have to be shorter
    kernel = MetricWormhole(step_size=tuned.step_size / 4, num_steps=4 * tuned.num_steps)
    found["metric"] = timed(kernel, case.target, case.library, Tally(case, "metric", budget.chains), budget)
    figure = figures.blank(13.0, 4.2)
    logdensity = _rows(case.target)
    top = float(logdensity(np.asarray(case.library.location)).max())
    for axes, name in zip(figure.subplots(1, 3), ("HMC", "metric", "whmc"), strict=True):
        levels = top - np.array([12.0, 8, 5, 3, 2, 1, 0.5])
        figures.surface(axes, logdensity, (-0.5, 1.6, -1.6, 1.6), levels=levels, filled=False)
        figures.cloud(axes, found[name])
    figures.save(figure, settings.out / "fig1.png")
    return settings.write("fig1", [tally.row() for tally in found.values()], found)


def fig2(settings: Settings) -> str:
    """Figure 2 [D100K10]: ten Gaussians in 100 dimensions, with the vector field."""
    case, budget = from_problem(mixture(10, 100)), settings.budget
    tuned = pilot(case, budget)
    found = {}
    settings.say(f"{case.name}: HMC")
    found["HMC"] = plain(case, budget, tuned)
    settings.say(f"{case.name}: field")
    kernel = FieldWormhole(step_size=tuned.step_size, num_steps=tuned.num_steps)
    tally = Tally(case, "field", budget.chains)
    found["field"] = timed(kernel, case.target, case.library, tally, budget, spent=tuned.seconds)
    settings.say(f"{case.name}: whmc")
    found["whmc"] = exact(case, budget)
    figure = figures.blank(13.0, 4.2)
    for axes, tally in zip(figure.subplots(1, 3, sharex=True, sharey=True), found.values(), strict=True):
        figures.cloud(axes, tally)
    figures.save(figure, settings.out / "fig2.png")
    return settings.write("fig2", [tally.row() for tally in found.values()], found)


def fig3(settings: Settings) -> str:
    """Figure 3 [whpic]: the network between the real and the mirror world."""
    modes = np.array([[-3.0, -2], [0.0, 2.5], [3.0, -2.5], [-1.0, -0.5], [2.5, 1.5]])
    figure = figures.blank(7.0, 6.0)
    figures.worlds(figure.add_subplot(projection="3d"), modes, 1.0, [(0, -1), (4, 1)])
    figures.save(figure, settings.out / "fig3.png")
    return ""


def fig4(settings: Settings) -> str:
    """Figure 4 [engysurgT]: true and residual energy, T = 1.2 and 1.05; known modes red, unknown blue."""
    problem = _four_modes()
    known = [0, 1]
    library = ModeLibrary.from_charts(
        problem.means[known], problem.scales[known], log_weight=np.log(problem.weights[known])
    )
    # q carries the weight of what it knows, so that it does not dig below the target
    share = float(np.log(problem.weights[known].sum()))
    scaled = dataclasses.replace(library, log_weight=library.log_weight + share)
    figure = figures.blank(13.0, 4.2)

    def residual(temperature: float) -> Callable[[Any], Any]:
        return lambda x: residual_energy(x, problem.target, scaled, temperature=temperature, offset=0.1)

    panels: list[tuple[str, Callable[[Any], Any]]] = [("true energy", lambda x: -problem.target(x))]
    panels += [(f"residual energy, T = {temperature}", residual(temperature)) for temperature in (1.2, 1.05)]
    for axes, (title, energy) in zip(figure.subplots(1, 3), panels, strict=True):
        box = (-6.0, 6.0, -6.0, 6.0)
        height = _rows(energy)
        seen = height(np.stack(np.meshgrid(*[np.linspace(-6, 6, 60)] * 2), axis=-1).reshape(-1, 2))
        low, high = np.nanpercentile(seen, [0.5, 90])
        figures.surface(axes, height, box, levels=np.linspace(low, high, 14))
        for k, (x, y) in enumerate(problem.means):
            axes.plot(x, y, "o", color="red" if k in known else "blue", ms=7, mec="white")
        axes.set_title(title)
    figures.save(figure, settings.out / "fig4.png")
    return ""


def fig5(settings: Settings) -> str:
    """Figure 5 [KDplot]: known modes, REM over K at D = 20 and over D at K = 10."""
    ks, ds = ((5, 20), (10, 100)) if settings.quick else ((5, 10, 15, 20), (10, 20, 40, 100))
    figure = figures.blank(11.0, 4.2)
    left, right = figure.subplots(1, 2)
    done: dict[tuple[int, int], dict[str, Tally]] = {}
    for key in [*((k, 20) for k in ks), *((10, d) for d in ds)]:
        if key not in done:
            case = from_problem(mixture(*key))
            done[key] = compare(case, settings.budget, pilot(case, settings.budget), settings.say)
    rows = {key: [tally.row() for tally in found.values()] for key, found in done.items()}
    figures.error_bars(left, [row for k in ks for row in rows[k, 20]], ks, "number of modes K (D = 20)")
    figures.error_bars(right, [row for d in ds for row in rows[10, d]], ds, "dimension D (K = 10)")
    figures.save(figure, settings.out / "fig5.png")
    draws = {f"k{k}_d{d}_{name}": tally for (k, d), found in done.items() for name, tally in found.items()}
    return settings.write("fig5", [row for group in rows.values() for row in group], draws)


def fig6(settings: Settings) -> str:
    """Figure 6 [timeplotwsn]: the sensor network, and REM against seconds."""
    case = sensors()
    found = compare(case, settings.budget, pilot(case, settings.budget), settings.say)
    figure = figures.blank(15.0, 4.4)
    anchors = np.array(list(sensor_data()["known"].values()))
    panels = figure.subplots(1, 4)
    for axes, name in zip(panels[:3], ("RDMC", "Algorithm 1", "whmc"), strict=True):
        draws = found[name].draws.reshape(-1, 16)
        for sensor in range(8):
            places = draws[:: max(1, len(draws) // 2000), 2 * sensor : 2 * sensor + 2]
            axes.scatter(*places.T, s=2, color=f"C{sensor}", alpha=0.4, linewidths=0, rasterized=True)
        axes.scatter(*anchors.T, marker="s", s=40, color="black")
        axes.set(aspect="equal", title=name, xlim=(-0.3, 1.2), ylim=(-0.3, 1.2))
    figures.errors_in_time(panels[3], _curves(found))
    figures.save(figure, settings.out / "fig6.png")
    return settings.write("fig6", [tally.row() for tally in found.values()], found)


def fig7(settings: Settings) -> str:
    """Figure 7 [unknownModes]: unknown modes, four starts, new ones found at regenerations."""
    dims = (10, 100) if settings.quick else (10, 20, 100)
    figure = figures.blank(5.0 * len(dims), 4.2)
    rows = []
    for axes, dim in zip(figure.subplots(1, len(dims)), dims, strict=True):
        case = from_problem(mixture(10, dim))
        tuned = pilot(case, settings.budget)
        settings.say(f"{case.name}: RDMC")
        curves = [adaptive.regeneration_darting(case, settings.budget, tuned)]
        settings.say(f"{case.name}: whmc")
        curves.append(adaptive.exact(case, settings.budget))
        figures.errors_in_time(axes, {curve.method: (curve.seconds, curve.rem) for curve in curves})
        axes.set_title(f"D = {dim}, modes found: " + ", ".join(f"{c.method} {int(c.num_modes[-1])}" for c in curves))
        rows += [_adaptive_row(case, curve) for curve in curves]
    figures.save(figure, settings.out / "fig7.png")
    return settings.write("fig7", rows, {})


def fig8(settings: Settings) -> str:
    """Figure 8 [picvic]: contours of the vicinity function."""
    first, second = jnp.asarray([-2.0, 0.0]), jnp.asarray([2.0, 0.0])
    figure = figures.blank(6.0, 5.0)
    axes = figure.subplots()
    figures.surface(
        axes, _rows(lambda x: vicinity(x, first, second)), (-4.0, 4.0, -3.0, 3.0), levels=[0.1, 0.5, 1, 2, 4, 6, 9, 12]
    )
    axes.plot([-2, 2], [0, 0], "o-", color="white")
    axes.set(title="vicinity V(θ) of the wormhole between two modes", aspect="equal", xlabel="θ₁", ylabel="θ₂")
    figures.save(figure, settings.out / "fig8.png")
    return ""


def errata(settings: Settings) -> str:
    """A .9/.1 pair of unit Gaussians: what printed Algorithm 1 samples, over D and F, beside the exact sampler."""
    dims = (2, 20) if settings.quick else (2, 10, 20, 50)
    rows: list[dict[str, Any]] = []
    for dim in dims:
        case = from_problem(unit_pair(dim))
        tuned = pilot(case, settings.budget)
        for influence in (0.1, 0.3, 1.0):
            settings.say(f"{case.name}: Algorithm 1, F = {influence}")
            rows.append(_erratum(printed(case, settings.budget, tuned, influence=influence), dim, influence))
        settings.say(f"{case.name}: whmc")
        rows.append(_erratum(exact(case, settings.budget), dim, None))
    figure = figures.blank(10.0, 4.2)
    for axes, key, truth in zip(figure.subplots(1, 2), ("weight", "variance_ratio"), (0.9, 1.0), strict=True):
        for method in ("Algorithm 1", "whmc"):
            mine = [row for row in rows if row["method"] == method]
            places = [dims.index(row["D"]) + (row["F"] or 0.55) * 0.3 - 0.15 for row in mine]
            axes.plot(places, [row[key] for row in mine], "o", color=figures.COLOURS[method], label=method)
            for place, row in zip(places, mine, strict=True):
                if row["F"] is not None:
                    axes.annotate(f"F={row['F']:g}", (place, row[key]), (4, 4), textcoords="offset points", fontsize=7)
        axes.axhline(truth, color="black", linewidth=0.8, label="truth")
        axes.margins(x=0.15)  # room for the names of points
        axes.set_xticks(range(len(dims)), [f"D = {dim}" for dim in dims])
        axes.set(title={"weight": "weight of the .9 mode", "variance_ratio": "variance in a mode"}[key])
        axes.legend(fontsize=8)
    figures.save(figure, settings.out / "errata.png")
    return settings.write("errata", rows, {}) + "\n" + _errata_text(rows)


def _erratum(tally: Tally, dim: int, influence: float | None) -> dict[str, Any]:
    """A row with the weight of the .9 mode and its error across the chains."""
    shares = tally.visits[:, 0] / tally.visits.sum(axis=1)
    error = float(shares.std(ddof=1) / np.sqrt(len(shares))) if len(shares) > 1 else None
    return tally.row() | {"D": dim, "F": influence, "weight": float(shares.mean()), "weight_se": error}


def _errata_text(rows: list[dict[str, Any]]) -> str:
    lines = ["", f"{'D':>4s} {'F':>5s} {'method':14s} {'weight of .9':>14s} {'± se':>8s} {'variance':>9s}"]
    for row in rows:
        f = "-" if row["F"] is None else f"{row['F']:.1f}"
        se = row["weight_se"] or float("nan")
        lines.append(
            f"{row['D']:4d} {f:>5s} {row['method']:14s} {row['weight']:14.4f} {se:8.4f} {row['variance_ratio']:9.3f}"
        )
    return "\n".join(lines)


def _adaptive_row(case: Case, curve: adaptive.Curve) -> dict[str, Any]:
    rem = curve.rem[-1]
    return {
        "target": case.name,
        "method": curve.method,
        "rem": float(rem.mean()),
        "rem_half_interval": half_interval(rem),
        "rem_pooled": None,
        "total_variation": total_variation(curve.weights, case.weights),
        "variance_ratio": None,
        "label_ess_per_draw": None,
        "draws": None,
        "modes": int(curve.num_modes[-1]),
        "seconds": float(curve.seconds[-1]),
        "gradients": int(curve.num_gradients),
    }


def _curves(found: dict[str, Tally]) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Seconds and REM of each method, at times that grow by a twentieth."""
    curves = {}
    for name, tally in found.items():
        points = [tally.points[0]]
        points += [p for p in tally.points[1:] if p.seconds > 1.05 * points[-1].seconds or p is tally.points[-1]]
        curves[name] = np.array([p.seconds for p in points]), np.array([tally.rem(p) for p in points])
    return curves


def _rows(function: Callable[[Any], Any]) -> figures.Surface:
    """A function of one point as one of many, in NumPy."""
    many = jax.jit(jax.vmap(function))

    def rows(points: Float[np.ndarray, "n 2"]) -> Float[np.ndarray, " n"]:
        return np.asarray(many(jnp.asarray(points)))

    return rows


def _four_modes() -> Problem:
    means = [[-3.0, -3.0], [3.0, 3.0], [-3.0, 3.0], [3.0, -3.0]]
    covariances = [
        [[1.0, 0.3], [0.3, 0.6]],
        [[0.7, 0.0], [0.0, 1.2]],
        [[0.8, -0.2], [-0.2, 0.5]],
        [[1.0, 0.0], [0.0, 1.0]],
    ]
    return gaussian_mixture([0.3, 0.3, 0.2, 0.2], means, covariances, "four modes")


EXPERIMENTS: dict[str, Callable[[Settings], str]] = {
    f.__name__: f for f in (fig1, fig2, fig3, fig4, fig5, fig6, fig7, fig8, errata)
}
