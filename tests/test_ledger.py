"""The ledger of a run: true calls of the density, counted by the density itself, are what the ledger tells."""

import dataclasses
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import whmc
from whmc.cli.as_json import as_json
from whmc.estimate import annealed_evidence
from whmc.frontends.blackbox import Density
from whmc.report.page import _facts
from whmc.run import advance
from whmc.run import chains as running
from whmc.search.polish import polish
from whmc.target.counted import counted
from whmc.target.rows import logdensities

pytestmark = pytest.mark.xdist_group("ledger")

WEIGHTS = np.log([0.7, 0.3])


class Counted:
    """Two Gaussians with their gradient, NaN beyond a wall, and how often they were asked for."""

    def __init__(self, wall=np.inf):
        self.wall, self.calls = wall, 0

    def __call__(self, x):
        self.calls += 1
        if x[0] > self.wall:
            return np.nan, np.zeros(2)
        ways = np.array([-4.0, 4.0])[:, None] - x
        heights = WEIGHTS - 0.5 * np.sum(ways**2, axis=1)
        return np.logaddexp(*heights), np.exp(heights - np.logaddexp(*heights)) @ ways


@pytest.fixture
def asked(monkeypatch):
    """Rows that the density was asked for at finite positions, and those among them that stood in the same row of the
    batch before, which are no calls."""
    seen, real, alone = {"rows": 0, "repeated": 0}, Density._once, Density._alone

    def once(self, points):
        before, finite = self._last[0], np.all(np.isfinite(points), axis=1)
        same = np.all(points == before, axis=1) if before.shape == points.shape else np.zeros(len(points), bool)
        seen["rows"] += int(finite.sum())
        seen["repeated"] += int((finite & same).sum())
        return real(self, points)

    def value(self, points):  # of finite positions only
        seen["rows"] += len(points)
        return alone(self, points)

    monkeypatch.setattr(Density, "_once", once)
    monkeypatch.setattr(Density, "_alone", value)
    return seen


def run(function, *, starts=(-8.0, 8.0), **settings):
    target = whmc.from_numpy(function, True, dim=2, starts=starts, symmetries=settings.pop("symmetries", None))
    return whmc.sample(target, **{"chains": 4, "warmup": 50, "draws": 60, "seed": 0, "progress": False} | settings)


def told_alike(result):
    """All texts tell what the ledger has."""
    spent = result.gradients
    assert spent.total == sum(dataclasses.asdict(spent).values())
    text = result.summary()
    line = re.search(r"^gradients: (.*); failed evaluations: (\d+)$", text, flags=re.MULTILINE)
    parts = {name: int(num) for num, name in re.findall(r"(\d+) ([a-z-]+)", line[1])}
    assert sum(parts.values()) == spent.total and int(line[2]) == result.num_failed
    assert (parts["search"], parts["warm-up"], parts["sampling"]) == (spent.search, spent.warmup, spent.sampling)
    if result.search is not None:
        assert f"starts, {spent.search} gradients;" in text and result.search.num_gradients == spent.search
    assert as_json(result)["gradients"] == {**dataclasses.asdict(spent), "total": spent.total}
    assert _facts(result)["gradients in all"] == f"{spent.total:,}"
    return True


FINDERS = (whmc.MultiStart(48), whmc.Tempered(num_particles=32, num_starts=32))
BOTH = [[-4.0, -4.0], [4.0, 4.0]]


@pytest.mark.parametrize(
    ("function", "settings", "phases"),
    [
        pytest.param(Counted(wall=4.5), {"finder": FINDERS}, {"search"}, id="search, and where the density fails"),
        pytest.param(
            Counted(),
            {"symmetries": [whmc.Exchange([0], [1])], "finder": whmc.MultiStart(16)},
            {"search"},
            id="symmetry",
            marks=pytest.mark.ci,
        ),
        pytest.param(
            Counted(),
            {"modes": BOTH, "kernel": whmc.Cycle((whmc.LocalHMC(2), whmc.GibbsWormhole(), whmc.Independence()))},
            {"evidence"},
            id="modes, Gibbs form, annealing",
            marks=pytest.mark.ci,
        ),
    ],
)
def test_the_ledger_is_the_number_of_true_calls(function, settings, phases, asked, monkeypatch):
    monkeypatch.setattr(annealed_evidence, "NUM_PATHS", 32)
    monkeypatch.setattr(advance, "needs_annealing", lambda evidence: "evidence" in phases)
    result = run(function, **settings)
    spent = result.gradients
    assert {name for name, num in dataclasses.asdict(spent).items() if num} == {
        *("warmup", "sampling", "modes", "other"), *phases
    }  # fmt: skip
    assert (result.failed_at is None) == (function.wall == np.inf)
    assert asked["rows"] == spent.total
    assert function.calls == spent.total - asked["repeated"]
    assert told_alike(result)


@pytest.mark.ci
def test_with_adaptation_only_chains_that_stand_still_are_evaluated_besides(asked, monkeypatch):
    """In a block some chains wait for others; compiled code evaluates them all."""
    idle, real = [], running.move_chains

    def moved(kernel, target, library, states, noise, num_steps, active, update_waits):
        found = real(kernel, target, library, states, noise, num_steps, active, update_waits)
        made, local, jump = found[2], *kernel.kernels[:2]
        idle.append(int(np.sum(made.max() - made)) * int(local.cost() + jump.cost() + 1))
        return found

    monkeypatch.setattr(running, "move_chains", moved)
    # a chart that is too wide: chains regenerate now and then, each at its own step
    library = whmc.ModeLibrary.from_charts(np.array(BOTH[1:]), 3.0 * np.eye(2)[None])
    result = run(Counted(), modes=library, adapt="regeneration", warmup=0, draws=300)
    assert result.num_updates and sum(idle) > 0
    assert asked["rows"] == result.gradients.total + sum(idle)
    assert result.search.num_gradients == result.gradients.search


def test_why_a_descent_did_not_end_in_a_mode_is_counted():
    """At an edge: four log densities tell that it is one."""
    target = whmc.Target(lambda x: jnp.where(x[0] < 1.0, x[0] - x[1] ** 2, -jnp.inf), dim=2, starts=(-1.0, 1.0))
    with jax.enable_x64(True), counted() as spent:
        why, cost = polish(target, np.array([1.0, 0.0]) - 1e-9, widest=2.0)
    assert isinstance(why, str) and cost == spent.num


def test_counts_inside_of_counts_are_seen_by_both():
    target = whmc.Target(lambda x: -0.5 * x @ x, dim=2)
    with counted() as outer:
        logdensities(target, np.zeros((3, 2)))
        with counted() as inner:
            logdensities(target, np.zeros((4, 2)))
    assert (outer.num, inner.num) == (7, 4)
