"""A result: modes that overlap, roles of moves, exactness, and how it shows itself."""

import dataclasses
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import whmc
from contracts import bent, problem
from reported import SCRIPT, exact, many_modes, one_mode
from whmc._pytree import pytree
from whmc.kernels.independence import AbstractIndependence
from whmc.kernels.settings import Role, move_roles
from whmc.modes.library import ModeLibrary
from whmc.modes.mixture import NUM_UNIFORM, draw_mixture
from whmc.paper.darting import DartingMC, RegenerationDartingMC
from whmc.paper.metric import MetricWormhole
from whmc.paper.network import NetworkWormhole
from whmc.testing import gaussian_mixture

# modes that overlap


def skewed(x):
    """A log-gamma mode with a long tail to the left, and a lighter normal one far to the right of it."""
    tail = 2.0 * x[0] - jnp.exp(x[0]) - 0.5 * x[1] ** 2
    return jnp.logaddexp(tail, jnp.log(0.2) - 0.5 * ((x[0] - 12) ** 2 + x[1] ** 2))


SKEWED = whmc.Target(skewed, dim=2, starts=(np.array([-6.0, -3.0]), np.array([15.0, 3.0])))
# of the gamma function of two, of the normal density, and of the second coordinate
LIGHTER = 0.2 * np.sqrt(2 * np.pi) / (1.0 + 0.2 * np.sqrt(2 * np.pi))


def charts(*rows):
    """Charts on a line: place, standard deviation and weight."""
    place, sd, weight = np.array(rows).T
    scale = np.stack([sd, np.ones_like(sd)], axis=1)[..., None] * np.eye(2)
    return ModeLibrary.from_charts(np.stack([place, 0 * place], axis=1), scale, log_weight=np.log(weight))


THREE_CHARTS = charts((0.7, 0.6, 0.4), (-0.2, 0.8, 0.2), (0.2, 0.7, 0.07), (12.0, 1.0, 0.33))


@pytest.fixture(scope="module")
def covered_thrice():
    return whmc.sample(SKEWED, modes=THREE_CHARTS, seed=0, draws=1000, progress=False)


def test_charts_that_overlap_are_one_mode_with_the_same_weight_again(covered_thrice):
    first = covered_thrice
    again = whmc.sample(SKEWED, modes=first.library, seed=1, draws=1000, progress=False)
    for result in (first, again):
        assert len(result.modes) == result.library.num_modes == 2
        assert abs(result.modes.weight[1] - LIGHTER) < 5 * result.modes.weight_se[1] < 0.05
        assert {alarm.name for alarm in result.alarms} <= {"few effective draws"}
    assert first.modes.num_charts[0] > 1 and first.label.max() == 1


# roles


@pytree
class OwnMove(AbstractIndependence):
    """An independence move of a user's own, with the library's mixture as q."""

    from_mixture = True

    log_threshold: float = 0.0

    def num_proposal(self, library):
        return NUM_UNIFORM, library.dim + 1

    def propose(self, noise, library):
        return draw_mixture(noise.uniform, noise.normal, library)[1], jnp.ones((), bool)

    def log_ratio(self, state, library):
        return state.log_ratio


@pytest.fixture(scope="module")
def own_move():
    case = problem("pair")
    kernel = whmc.Cycle((whmc.LocalHMC(), whmc.Wormhole(), OwnMove()))
    return case, whmc.sample(
        case.target, modes=case.library, kernel=kernel, chains=8, draws=300, warmup=50, progress=False
    )


def test_an_independence_move_of_ones_own_has_tours_bridge_and_flow(own_move):
    _, result = own_move
    assert list(result.roles.values()) == [Role.LOCAL, Role.JUMP, Role.MIXTURE]
    assert set(result.weight_estimates) == {"occupancy", "balance", "tours"}
    assert len(result.tours) > 100 and result.evidence.method == "bridge"
    assert abs(result.log_evidence) < 5 * result.log_evidence_se + 1e-6 < 0.1


def test_roles_come_back_from_a_file(own_move, tmp_path):
    _, result = own_move
    again = whmc.load(result.save(tmp_path / "result.nc"))
    assert again.kernel is None and again.roles == result.roles and again.exact
    assert again.log_evidence == pytest.approx(result.log_evidence) and len(again.tours) == len(result.tours)


def test_roles_are_those_of_the_types():
    moves = (whmc.GibbsWormhole(), whmc.WormholeTrajectory(), DartingMC(), RegenerationDartingMC(), NetworkWormhole())
    # the regions' truncated Gaussians are not the library's mixture: there is no bridge from them
    roles = [Role.JUMP, Role.JUMP, Role.JUMP, Role.INDEPENDENCE, Role.OTHER]
    assert list(move_roles(whmc.Cycle(moves)).values()) == roles
    assert move_roles(whmc.Cycle((whmc.Wormhole(), whmc.Wormhole(throat=4)))) == {
        "Wormhole[0]": Role.JUMP,
        "Wormhole[1]": Role.JUMP,
    }


# exactness


def test_a_cycle_is_exact_if_all_its_kernels_are():
    assert whmc.Cycle((whmc.LocalHMC(), whmc.Independence())).exact
    assert not whmc.Cycle((whmc.LocalHMC(), NetworkWormhole())).exact
    assert MetricWormhole().exact and not MetricWormhole(checked=False).exact


def test_a_kernel_that_is_not_exact_raises_an_alarm(own_move, tmp_path):
    case, _ = own_move

    @pytree
    class Inexact(OwnMove):
        @property
        def exact(self):
            return False

    result = whmc.sample(
        case.target, modes=case.library, kernel=Inexact(), chains=2, draws=20, warmup=0, progress=False
    )
    for one in (result, whmc.load(result.save(tmp_path / "result.nc"))):
        assert one.alarms[0].name == "kernel is not exact" and "ALARM kernel is not exact" in one.summary()


# how it shows itself


def test_a_result_in_one_line_computes_nothing():
    result = many_modes()
    before = set(vars(result))
    assert repr(result) == "Result(4 chains x 200 draws in 1 dimension, 30 modes)"
    assert set(vars(result)) == before
    num = len(result.alarms)
    assert repr(result).endswith(f"30 modes, {num} alarm{'' if num == 1 else 's'})")
    assert len(result.summary().splitlines()) > 30


def test_tables_are_short_unless_printed():
    result = many_modes()
    assert repr(result.modes) == "ModeTable(30 modes)" and len(result.modes.notes) == 1
    assert str(result.modes).count("\n") == 30 + 1
    assert repr(result.parameters) == "ParameterTable(1 scalar)" and str(result.parameters).count("\n") == 1
    assert repr(result.mode(3)).startswith("ModeDraws(mode 3: ")


def test_modes_that_were_never_visited_are_counted_in_one_line():
    result = many_modes()
    few = dataclasses.replace(result, chart=np.where(np.isin(result.chart, (3, 17)), result.chart, 5))
    table = few.modes
    assert len(table) == 30 and not table.visits[4] and np.isneginf(table.log_evidence[4])
    *lines, _ = str(table).splitlines()  # the last is a note
    assert [line.split()[0] for line in lines[1:-1]] == ["3", "5", "17"]
    assert lines[-1].strip() == "and 27 modes without a visit"
    page = few._repr_html_()
    assert "inf" not in few.summary() + page and page.count("27 modes without a visit") == 1


def test_of_many_modes_the_heaviest_are_printed():
    table = many_modes().modes
    columns = [field.name for field in dataclasses.fields(table) if field.name != "notes"]
    wide = {name: np.concatenate([getattr(table, name)] * 2) for name in columns}
    more = dataclasses.replace(table, notes=(), **wide)
    assert len(more.shown) == 40 and str(more).endswith("   and 20 lighter modes")
    assert more.weight[more.shown].min() >= np.delete(more.weight, more.shown).max()


def test_one_of_a_thing_is_not_called_many():
    text = one_mode().summary()
    assert text.startswith("4 chains x 200 draws in 1 dimension, 1 mode\n")
    assert not re.search(r"\b1 (modes|dimensions|chains|draws|charts)\b", text)


def test_tables_for_notebooks_are_escaped_and_have_no_script():
    case = gaussian_mixture([0.6, 0.4], [[0.0], [9.0]], np.ones((2, 1, 1)))
    named = dataclasses.replace(case.target, names=[SCRIPT])
    text = dataclasses.replace(exact(case), target=named)._repr_html_()
    assert "<script" not in text and "&lt;script&gt;" in text
    assert text.count("<table>") == text.count("</table>") == 2 and len(re.findall("<tr>", text)) == 2 + 2 + 1


def test_the_summary_speaks_of_what_was_spent(covered_thrice):
    text = covered_thrice.summary()
    assert re.search(r"^gradients: \d+ search \+ \d+ warm-up \+ \d+ sampling", text, flags=re.MULTILINE)


def test_a_run_of_hardly_any_draws_is_alarmed():
    case = problem("pair")
    result = whmc.sample(case.target, modes=case.library, draws=3, warmup=0, progress=False)
    assert "few effective draws" in [alarm.name for alarm in result.alarms]


@pytest.mark.parametrize("bends", [False, pytest.param(True, marks=pytest.mark.ci)])
def test_evidence_by_work_counts_its_gradients_and_agrees_with_the_bridge(bends):
    """In charts that fit, and in bent ones that do not.

    A gradient a step and one at the start of a path; one more at the end of those that come out of the throat.
    """
    from whmc.estimate.annealed_evidence import MIN_THROAT, NUM_PATHS, annealed_evidence

    case = problem("pair")
    library = bent(case.library) if bends else case.library
    with jax.enable_x64(True):
        draws = case.draw(np.random.default_rng(3), 16 * 200)[0].reshape(16, 200, 2)
        found = annealed_evidence(case.target, library, whmc.Wormhole(), draws, jax.random.key(0))
    assert found.num_gradients == NUM_PATHS * (2 * MIN_THROAT + 3)
    assert abs(found.log_evidence) < 5 * found.se + 1e-6 < (0.5 if bends else 0.1)
