"""Finding modes: the residual energy, descents, polish, merging, what is left out, and what may be missing."""

import dataclasses
from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import whmc
from contracts import FINDERS, columns, only_these_at_every_change, problem
from unchecked import unchecked
from whmc.modes.library import ModeLibrary
from whmc.modes.mixture import log_components, log_mixture
from whmc.search.descent import DescentResult, KnownModes, descend
from whmc.search.effort import Effort
from whmc.search.mode_search import FEWEST_EVEN, start_search, take
from whmc.search.peak import Peak
from whmc.search.polish import polish
from whmc.search.residual import log_tempered, residual_energy
from whmc.target.rows import evaluate_rows
from whmc.testing import SHAPES, Problem, gaussian_mixture, himmelblau, many_well, shells, two_scale_pair


@cache
def four() -> Problem:
    """Cached, so that searches of the same target share their compilations."""
    return himmelblau(1.0)


@cache
def ten() -> Problem:
    rng = np.random.default_rng(2)
    means, sizes = rng.uniform(-10, 10, (10, 10)), rng.uniform(0.3, 2.0, (10, 10))
    return gaussian_mixture(rng.dirichlet(np.full(10, 3.0)), means, sizes, "ten D=10")


def matched(found: ModeLibrary, truth: np.ndarray) -> bool:
    """Every true location is found, and nothing else."""
    gaps = np.linalg.norm(columns(found)[0][:, None] - truth, axis=-1)
    return found.size == len(truth) and bool(np.all(gaps.min(axis=0) < 0.05))


@pytest.mark.parametrize("name", only_these_at_every_change(FINDERS, ["multi-start", "tempered"]))
def test_every_finder_finds_the_four_modes(name):
    assert matched(whmc.find_modes(four().target, seed=1, finder=FINDERS[name]), four().locations)


def test_search_finds_ten_modes_with_their_weights():
    search = whmc.search_modes(ten().target, seed=0)
    assert matched(search.library, ten().locations)
    # Gaussians: Laplace is exact
    order = np.argsort(-ten().weights)
    np.testing.assert_allclose(np.exp(columns(search.library)[2]), ten().weights[order], rtol=1e-3)
    assert not search.missing.alarming and not search.missing.more_to_find
    assert np.all(np.diff(search.discovery, axis=0) >= 0) and search.discovery[-1, 2] == 10
    assert "10 modes" in str(search)


def residual(target, library, x, log_evidence=0.0, temperature=1.05):
    position = np.asarray(x, float)[None]
    value, slope = residual_energy(evaluate_rows(target, position), position, library, log_evidence, temperature)
    return value[0], slope[0]


def test_residual_energy_is_the_papers_with_the_chart_tempered_about_its_peak():
    """-log(pi/Z - q_T) at moderate values, where it can be computed without logs."""
    case = problem("pair")
    library = case.library.drop(1)
    x, log_z, temperature = jnp.array([7.0, 0.3]), 0.2, 1.3
    height = np.exp(float(log_mixture(log_components(library, jnp.asarray(library.location[0])))))
    tempered = height * (np.exp(float(log_mixture(log_components(library, x)))) / height) ** (1 / temperature)
    expected = -np.log(np.exp(float(case.target(x)) - log_z) - tempered)
    value, _ = residual(case.target, library, x, log_z, temperature)
    known, _ = log_tempered(library, np.asarray(x)[None], temperature)
    assert np.exp(known[0]) == pytest.approx(tempered, rel=1e-10)
    assert value == pytest.approx(expected, rel=1e-10)


@pytest.mark.parametrize("dof", [np.inf, 5.0])
def test_slopes_of_the_residual_energy_are_its_differences(dof):
    case = problem("three")
    location, scale, log_weight, _ = columns(case.library.drop(2))
    library = ModeLibrary.from_charts(location, scale, log_weight=log_weight, dof=dof)
    x, step = case.means[2] + 0.3, 1e-5
    _, slope = residual(case.target, library, x)
    for n in range(case.target.dim):
        ahead, behind = x.copy(), x.copy()
        ahead[n], behind[n] = ahead[n] + step, behind[n] - step
        rise = residual(case.target, library, ahead)[0] - residual(case.target, library, behind)[0]
        assert slope[n] == pytest.approx(rise / (2 * step), rel=1e-6, abs=1e-8)
        known = [log_tempered(library, row[None], 1.3)[0][0] for row in (ahead, behind)]
        assert log_tempered(library, x[None], 1.3)[1][0, n] == pytest.approx(
            (known[0] - known[1]) / (2 * step), rel=1e-6
        )


def test_residual_energy_removes_known_modes_only():
    case = problem("three")
    library = case.library.drop(2)
    known, unknown = case.means[0] + 0.5, case.means[2] + 0.1
    value, slope = residual(case.target, library, known)
    assert value == np.inf and np.all(slope == 0)
    value, slope = residual(case.target, library, unknown)
    assert value == pytest.approx(-float(case.target(jnp.asarray(unknown))), abs=1e-6)
    assert np.all(np.isfinite(slope))


def test_residual_does_not_depend_on_units():
    """The same problem in millimetres: the same starts are covered, the same modes found."""
    case = problem("pair")
    small = whmc.Target(lambda y: case.target(y * 1000.0), dim=2)
    library = case.library.drop(1)
    location, scale, _, _ = columns(library)
    there = ModeLibrary.from_charts(location / 1000, scale / 1000)
    x = np.array([6.0, 0.5])
    shift = float(-2 * np.log(1000.0))  # of the evidence, and of every density
    here, _ = residual(case.target, library, x)
    other, _ = residual(small, there, x / 1000, shift)
    assert here == pytest.approx(other + 2 * np.log(1000.0), rel=1e-9)


def test_residual_search_ends_in_no_known_mode_and_finds_all_others():
    case = ten()
    heaviest = np.argsort(-case.weights)[:4]
    known = KnownModes(
        ModeLibrary.from_charts(case.means[heaviest], case.scales[heaviest], log_weight=np.log(case.weights[heaviest])),
        float(np.log(case.weights[heaviest].sum())),
    )
    ends = whmc.Residual().find(jax.random.key(0), case.target, 256, known)
    nearest = np.argmin(np.linalg.norm(ends.position[ends.usable][:, None] - case.means, axis=-1), axis=1)
    assert set(nearest) == set(range(10)) - set(heaviest)
    assert ends.covered is not None and np.all(ends.covered == ~ends.usable)
    plain = whmc.MultiStart().find(jax.random.key(0), case.target, 256, known)
    assert ends.num_gradients < plain.num_gradients  # starts on known ground cost one evaluation


def test_descents_mask_failures():
    """NaN in half of the region, no density in a quarter: those starts are lost, the others arrive."""

    def logdensity(x):
        inside = jnp.where(x[1] > 3, -jnp.inf, -0.5 * jnp.sum(x**2))
        return jnp.where(x[0] > 3, jnp.nan, inside)

    target = whmc.Target(logdensity, dim=2, starts=(-5.0, 5.0))
    starts = np.array([[4.0, 0.0], [0.0, 4.0], [-2.0, 1.0], [1.0, -4.0]])
    ends = descend(target, starts)
    np.testing.assert_array_equal(ends.usable, [False, False, True, True])
    np.testing.assert_allclose(ends.position[2:], 0.0, atol=1e-3)


def test_descents_end_at_the_bottom():
    """A quadratic bowl is done in a few evaluations: rounding there must not keep the line search busy."""
    target = whmc.Target(lambda x: -0.5 * jnp.sum((x - 1.0) ** 2) + 1000.0, dim=3, starts=(-9.0, 9.0))
    ends = descend(target, target.draw_starts(jax.random.key(0), 64))
    assert np.all(ends.usable) and ends.num_gradients < 64 * 30
    np.testing.assert_allclose(ends.position, 1.0, atol=1e-5)


def test_polish_reaches_the_peak_and_tells_what_is_none():
    target = four().target
    peak, cost = polish(target, np.array([3.05, 1.9]), widest=12.0)
    assert cost >= 2 * 5  # at least two Newton steps, each a gradient and four for the curvature
    assert isinstance(peak, Peak) and np.linalg.norm(peak.location - [3.0, 2.0]) < 1e-8
    pair = gaussian_mixture([0.5, 0.5], [[-3.0, 0.0], [3.0, 0.0]], [[1.0, 1.0]] * 2).target
    assert polish(pair, np.array([0.0, 0.0]), widest=12.0)[0] == "saddle"
    climbed, _ = polish(pair, np.array([1e-3, 0.0]), widest=12.0)  # beside it: uphill, to the mode
    assert isinstance(climbed, Peak) and np.linalg.norm(climbed.location - [3.0, 0.0]) < 1e-6
    edge = whmc.Target(lambda x: jnp.where(x[0] > 0, -x[0] - 0.5 * x[1] ** 2, -jnp.inf), dim=2)
    assert polish(edge, np.array([1e-3, 0.0]), widest=5.0)[0] == "edge"
    assert polish(edge, np.array([-1.0, 0.0]), widest=5.0)[0] == "not finite"


def test_a_shell_has_flat_directions():
    peak, _ = polish(shells(3).target, np.array([-3.5, 0.3, 1.95]), widest=12.0)
    assert isinstance(peak, Peak) and peak.num_flat == 2


def test_duplicates_merge_by_the_precision_not_by_distance():
    """Two modes .02 apart with scale .001 are two; points .02 apart in a mode of scale 10 are one."""
    narrow = gaussian_mixture([0.5, 0.5], [[0.0, 0.0], [0.02, 0.0]], [[1e-6, 1e-6]] * 2).target
    ends = descend(narrow, np.array([[0.0005, 0.0], [0.0195, 0.0], [0.0201, 0.0001]]))
    state = take(start_search(narrow, 10), narrow, ends)
    assert len(state.peaks) == 2 and sorted(state.hits) == [1, 2]
    wide = gaussian_mixture([1.0], [[0.0, 0.0]], [[100.0, 100.0]]).target
    ends = DescentResult(np.array([[0.0, 0.0], [0.02, 0.0]]), np.ones(2, bool), 0)
    state = take(start_search(wide, 10), wide, ends)
    assert len(state.peaks) == 1 and state.hits.tolist() == [2]


def light_beside_heavy(num_in_light: int) -> whmc.Target:
    """A mode of weight 1e-8 beside one of weight 1; of 200 starts so many lie in the light one. A quarter is many."""
    case = gaussian_mixture([1 - 1e-8, 1e-8], [[0.0, 0.0], [8.0, 0.0]], [[1.0, 1.0]] * 2)
    starts = case.means[0] + np.random.default_rng(0).uniform(0.1, 1, (200, 2))
    starts[:num_in_light] += case.means[1] - case.means[0]
    return dataclasses.replace(case.target, starts=starts)


def test_light_modes_are_reported_but_kept_out():
    search = whmc.search_modes(light_beside_heavy(49), finder=whmc.MultiStart(200))
    assert search.library.size == 1 and len(search.spurious) == 1
    # the curve of the report counts what is kept, as the number of modes that are expected does
    assert search.discovery[:, 2].max() == search.num_found == 1 and search.state.discovery[-1, 2] == 2
    assert "1 mode below the weight floor" in str(search)
    # 256 importance draws of a Gaussian: each mass to 6 per cent
    assert search.spurious_share[0] == pytest.approx(1e-8, rel=5 * 0.06 * np.sqrt(2))


def test_a_mode_that_many_starts_hit_is_never_left_out():
    search = whmc.search_modes(light_beside_heavy(51), finder=whmc.MultiStart(200))
    assert search.library.size == 2 and len(search.spurious) == 0


def test_a_full_library_says_so():
    case = many_well(3)
    search = whmc.search_modes(case.target, finder=whmc.MultiStart(256), max_modes=5)
    assert search.library.size == 5 and search.num_capped == 3
    assert "the library is full at 5 charts" in str(search)
    # the heaviest are kept
    heaviest = np.sort(np.prod(case.weights[:, None], axis=1))[::-1][:5]
    laplace = np.exp(columns(search.library)[2])
    np.testing.assert_allclose(laplace, heaviest / heaviest.sum(), rtol=0.1)


def test_of_more_modes_than_it_may_keep_a_search_keeps_the_heaviest():
    """Basins are equal and weights are not: the first starts find hardly any of the heaviest."""
    rng = np.random.default_rng(0)
    means = np.stack(np.meshgrid(np.arange(15.0), np.arange(15.0)), axis=-1).reshape(-1, 2)
    weights = np.exp(2 * rng.standard_normal(len(means)))
    case = gaussian_mixture(weights / weights.sum(), means, np.full((len(means), 2), 0.1**2), "grid")
    target = whmc.Target(case.target.logdensity, dim=2, starts=(-0.5, 14.5))
    search = whmc.search_modes(target, max_modes=6, seed=0)
    assert search.num_capped > 100
    heaviest = means[np.argsort(-weights)[:6]]
    np.testing.assert_allclose(np.asarray(search.library.location), heaviest, atol=1e-3)


def test_a_limit_holds_for_the_whole_search_of_a_run():
    """Forty-eight starts are too few to tell whether basins are hit alike: without a limit the search would go on."""
    target = whmc.Target(lambda x: -0.5 * jnp.sum(x**2), dim=2, starts=(-5.0, 5.0))
    result = whmc.sample(target, seed=0, search=1000.0, chains=4, draws=50, warmup=100, progress=False)
    assert result.search.num_independent < FEWEST_EVEN and result.gradients.search < 2000


@pytest.mark.ci
def test_hundreds_of_modes_in_equal_basins_are_found_and_weighed():
    """Rastrigin in D = 3: 1331 modes, of which 179 hold all but a few millionths."""
    shape = SHAPES["rastrigin-3"]()
    result = whmc.sample(shape.target, seed=0)
    assert not result.alarms
    assert result.log_evidence_se < 0.01
    assert abs(result.log_evidence - shape.log_evidence) < 4.5 * result.log_evidence_se


@pytest.mark.ci
def test_points_on_a_shell_become_one_chart_with_its_moments():
    case = shells(5)
    search = whmc.search_modes(case.target, seed=0)
    assert search.library.size == 2
    location, scale, log_weight, _ = columns(search.library)
    order = np.argsort(location[:, 0])
    # 64 chains x 100 draws: means and deviations of a shell to a few per cent
    np.testing.assert_allclose(location[order], case.means, atol=0.3)
    np.testing.assert_allclose(np.exp(log_weight), 0.5, atol=0.1)
    np.testing.assert_allclose(np.diagonal(scale, axis1=1, axis2=2), np.diagonal(case.scales[0])[0], rtol=0.15)
    # chains start on the shell, where the density is
    heights = np.asarray(jax.vmap(case.target)(jnp.asarray(search.starts)))
    assert np.all(heights > float(case.target(jnp.asarray(case.locations[0]))) - 20)


@pytest.mark.ci
def test_mass_without_a_peak_is_found_by_the_population():
    """In D = 100 the broad mode's own centre lies in the slope of the narrow one: no descent can find it."""
    case = two_scale_pair(100, (0.8, 0.2))
    assert whmc.find_modes(case.target, finder=whmc.MultiStart(64)).size == 1
    search = whmc.search_modes(case.target, finder=(whmc.MultiStart(64), whmc.Tempered()))
    assert search.library.size == 2
    widths = np.exp(np.asarray(search.library.log_det) / 100)
    np.testing.assert_allclose(np.sort(widths), [1.0, 4.0], rtol=0.1)


@pytest.mark.parametrize("seed", range(4))
def test_a_narrow_mode_beside_a_broad_one_is_found_in_the_cold(seed):
    """In D = 20 the narrow mode holds .8 of the mass, and hardly a start lies in its basin. Of 4096 draws close around
    the broad mode's peak seven do, on average: all miss it with a chance of a thousandth."""
    case = two_scale_pair(20, (0.8, 0.2))
    low, high = case.target.starts
    # the start box itself also gives starts along its diagonal, where both modes lie
    uniform = dataclasses.replace(
        case.target, starts=lambda key, num: jax.random.uniform(key, (num, 20), minval=low, maxval=high)
    )
    assert whmc.find_modes(uniform, seed=seed, finder=whmc.MultiStart(256)).size == 1
    for search in ({"finder": whmc.Tempered()}, {"budget": 18_000.0}):
        assert matched(whmc.search_modes(uniform, seed=seed, **search).library, case.locations)


@pytest.mark.parametrize("budget", [1_000.0, 18_000.0])
def test_a_search_on_a_budget_keeps_to_it(budget):
    search = whmc.search_modes(four().target, seed=0, budget=budget)
    assert matched(search.library, four().locations)
    assert 0.4 * budget < search.num_gradients < budget


def without_count(logdensity):
    """A density with a loop whose length nobody knows beforehand: it counts as costly, and has no free starts."""

    def looped(x):
        return logdensity(x) + 0.0 * jax.lax.while_loop(lambda n: n < 1, lambda n: n + 1, jax.lax.stop_gradient(x[0]))

    return looped


def test_a_population_is_whole_where_hits_are_uneven():
    """A basin that one start in thirteen hits: there may be smaller ones."""
    case = gaussian_mixture(
        [0.5, 0.5], np.array([[0.0, 0.0], [9.0, 0.0]]), np.array([[3.0, 1.0], [0.2, 1.0]]), "uneven"
    )
    target = dataclasses.replace(case.target, starts=(-25.0, 10.0))
    target = whmc.Target(without_count(target.logdensity), dim=2, starts=target.starts)
    search = whmc.search_modes(target, seed=0, effort=Effort.of_run(4_000))
    hits = search.independent_hits
    assert matched(search.library, case.locations) and 0 < hits.min() < search.num_independent / 8
    assert search.state.num_particles == 256


def schools(x):
    """Rubin's eight schools, not centred: one mode, with a long tail that its curvature does not show."""
    effect = jnp.array([28.0, 8.0, -3.0, 7.0, -1.0, 1.0, 18.0, 12.0])
    error = jnp.array([15.0, 10.0, 16.0, 11.0, 9.0, 11.0, 10.0, 18.0])
    tau = jnp.exp(x[1])
    prior = -0.5 * (x[0] / 5) ** 2 - jnp.log1p((tau / 5) ** 2) + x[1] - 0.5 * jnp.sum(x[2:] ** 2)
    return prior - 0.5 * jnp.sum(((effect - x[0] - tau * x[2:]) / error) ** 2)


def test_a_tail_is_not_searched_as_if_it_were_a_mode():
    """A small population is annealed, and its particles in the tail lead to no whole one."""
    search = whmc.search_modes(whmc.Target(schools, dim=10, starts=(-2.0, 2.0)), seed=0, budget=18_000.0)
    assert search.library.size == 1
    assert search.state.num_particles < 256 and search.num_gradients < 1.4 * 18_000


def test_a_population_is_annealed_once():
    search = whmc.search_modes(four().target, seed=1, finder=whmc.Tempered())
    assert search.state.num_particles == search.num_starts == 256


def test_search_is_repeatable_and_leaves_the_users_precision_alone():
    found = []
    for doubles in (True, False):
        with jax.enable_x64(doubles):
            found.append(whmc.search_modes(four().target, seed=5))
            assert jnp.zeros(1).dtype == (jnp.float64 if doubles else jnp.float32)
    first, second = found
    assert second.library.location.dtype == jnp.float64
    np.testing.assert_array_equal(first.library.location, second.library.location)
    np.testing.assert_array_equal(first.discovery, second.discovery)


FLAT = whmc.Target(lambda x: jnp.sum(x) * 0.0 - jnp.inf, dim=2, starts=(-1.0, 1.0))
PLANE = whmc.Target(lambda x: jnp.sum(x), dim=2, starts=(-1.0, 1.0))
BOTH = (whmc.MultiStart(64), whmc.Tempered())
BAD = [
    (lambda: whmc.find_modes(PLANE, finder=BOTH), ValueError, "grows without bound.*improper.*bounds="),
    (lambda: whmc.find_modes(PLANE, finder=whmc.MultiStart(64)), ValueError, "grows without bound.*improper"),
    (lambda: whmc.find_modes(whmc.Target(lambda x: -jnp.sum(x**2), dim=2)), ValueError, "nowhere to start"),
    (lambda: whmc.find_modes(FLAT), ValueError, "no mode was found"),
    (lambda: whmc.find_modes(four().target, seed=-1), ValueError, "seed must be at least 0"),
    (lambda: whmc.find_modes(four().target, max_modes=0), ValueError, "max_modes must be at least 1"),
    (lambda: whmc.find_modes(four().target, finder="best"), TypeError, "whmc finder"),
    (lambda: whmc.find_modes(four().target, finder=()), ValueError, "finder is empty"),
    (lambda: whmc.MultiStart(0), ValueError, "num_starts must be a positive integer"),
    (lambda: whmc.Residual(temperature=0.5), ValueError, "temperature must be at least 1"),
    (lambda: whmc.sample(four().target, adapt="always"), ValueError, "adapt must be 'warmup' or 'regeneration'"),
]  # fmt: skip


@pytest.mark.parametrize(("call", "kind", "says"), BAD, ids=[says for _, _, says in BAD])
def test_bad_input_gets_one_clear_error(call, kind, says):
    with pytest.raises(kind, match=says):
        unchecked(call)
