"""Symmetries: groups, folding, unfolding; a symmetry that is none is refused."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import whmc
from contracts import columns
from unchecked import unchecked
from whmc.run.sample import _folded
from whmc.search.representatives import fold_target
from whmc.target.folding import Fold, FoldedTarget, Shares
from whmc.target.symmetry import Group

pytestmark = [pytest.mark.models, pytest.mark.xdist_group("symmetry")]  # its runs are made once, not in every worker

DATA = np.array([-3.0, -2.9, -3.2, 0.1, 0.0, -0.2, 0.3, 4.0, 4.1, 3.8])
NAMES = ["m0", "m1", "m2", "l0", "l1", "l2"]
COMPONENTS = whmc.Exchange(["m0", "l0"], ["m1", "l1"], ["m2", "l2"])


def mixture(x):
    """Means and log weights of three components, the weights normalised in the likelihood."""
    mean, log_weight = x[:3], jax.nn.log_softmax(x[3:])
    heights = log_weight - 0.5 * ((jnp.asarray(DATA)[:, None] - mean) / 0.5) ** 2
    return jnp.sum(jax.nn.logsumexp(heights, axis=1)) - 0.5 * jnp.sum((mean / 5) ** 2) - 0.5 * jnp.sum(x[3:] ** 2)


def plain(**more):
    return whmc.Target(mixture, dim=6, starts=([-6.0] * 3 + [-1.0] * 3, [6.0] * 3 + [1.0] * 3), names=NAMES, **more)


@pytest.mark.parametrize(
    ("symmetries", "order"),
    [
        ([whmc.Exchange([0], [1], [2])], 6),
        ([whmc.Exchange([0, 3], [1, 4], [2, 5])], 6),
        ([whmc.Flip([0, 1]), whmc.Flip(2)], 4),
        ([whmc.Exchange([0], [1]), whmc.Flip(0)], 8),  # with each sign, in each order
        ([whmc.Exchange([0], [1], [2], [3], [4])], 120),
        ([whmc.Exchange([0], [1]), whmc.Exchange([1], [0])], 2),
    ],
)
def test_groups_have_all_their_elements(symmetries, order):
    group = Group.generated(symmetries, lambda one: np.array([one]), 6)
    assert len(group) == order
    all_images = jax.jit(jax.vmap(group.act, (0, None)))
    images = np.asarray(all_images(jnp.arange(order), jnp.arange(1.0, 7.0)))
    assert len(np.unique(images, axis=0)) == order
    np.testing.assert_array_equal(images[0], np.arange(1.0, 7.0))
    again = np.concatenate([all_images(jnp.arange(order), jnp.asarray(one)) for one in images])
    np.testing.assert_array_equal(np.unique(again, axis=0), np.unique(images, axis=0))  # closed


def shares(group, fold, points):
    every, log_share = jnp.arange(len(group)), Shares(group, fold).log_share
    return jax.jit(jax.vmap(lambda x: jax.vmap(lambda g: jnp.exp(log_share(group.act(g, x))))(every)))(points)


def test_shares_of_all_images_add_up():
    """The identity that folding rests on; with an element missing it fails."""
    group = Group.generated([whmc.Exchange([0, 1], [2, 3]), whmc.Flip(4)], lambda one: np.array([one]), 5)
    anchors = jax.random.normal(jax.random.key(0), (3, 5))
    fold = Fold(np.asarray(anchors), group.average(np.arange(1.0, 6.0)))
    points = jax.random.normal(jax.random.key(1), (20, 5))
    np.testing.assert_allclose(shares(group, fold, points).mean(axis=1), 1.0, rtol=1e-12)
    part = Group(group.order[:-1], group.sign[:-1], group.generators)
    assert np.abs(shares(part, fold, points).mean(axis=1) - 1).max() > 0.1


def test_the_fold_of_a_gaussian_pair_is_one_gaussian():
    """0.5 N(m, I) + 0.5 N(-m, I), folded at m with the right precision, is N(m, I)."""
    mean = jnp.array([0.7, -0.4])

    def pair(x):
        return jnp.logaddexp(-0.5 * jnp.sum((x - mean) ** 2), -0.5 * jnp.sum((x + mean) ** 2)) - jnp.log(2.0)

    target = whmc.Target(pair, dim=2, starts=(-3.0, 3.0), symmetries=[whmc.Flip([0, 1])])
    kept = FoldedTarget(target, Fold(np.asarray(mean)[None], np.ones(2)))
    for x in jax.random.normal(jax.random.key(2), (20, 2)):
        assert float(kept(x)) == pytest.approx(float(-0.5 * jnp.sum((x - mean) ** 2)), abs=1e-12)


@pytest.fixture(scope="module")
def runs():
    short = whmc.MultiStart(64)
    unfolded = whmc.sample(plain(), finder=short, seed=1, draws=1000)
    return unfolded, whmc.sample(plain(symmetries=[COMPONENTS]), finder=short, seed=1, draws=1000)


def test_one_chart_serves_all_images(runs):
    whole, kept = runs
    assert whole.library.num_modes == 6 and kept.library.num_modes == 1
    assert np.all(np.abs(whole.modes.weight - 1 / 6) < 5 * whole.modes.weight_se)
    assert "one of 6 images" in kept.summary()
    apart = abs(whole.log_evidence - kept.log_evidence)
    assert apart < 3 * np.hypot(whole.log_evidence_se, kept.log_evidence_se) + 1e-9


def test_unfolded_draws_are_those_of_the_whole(runs):
    """Images equally often, and the same means, squares and products as a run without the symmetry, z below 5."""
    whole, kept = runs
    draws = kept.unfolded(seed=2).draws
    orders, counts = np.unique(np.argsort(draws[..., :3], axis=-1).reshape(-1, 3), axis=0, return_counts=True)
    num = counts.sum()
    assert len(orders) == 6 and np.all(np.abs(counts / num - 1 / 6) < 5 * np.sqrt(1 / 6 * 5 / 6 / num))
    assert np.array_equal(np.sort(draws[0, 0]), np.sort(kept.draws[0, 0]))
    assert [alarm.name for alarm in kept.unfolded().alarms] == [alarm.name for alarm in kept.alarms]
    pairs = [
        (lambda x: x[..., 0]),
        (lambda x: x[..., 4] ** 2),
        (lambda x: x[..., 1] * x[..., 4]),
        (lambda x: x[..., 0] * x[..., 2]),
    ]
    for of in pairs:
        one, other = (by_chain_mean(of(x)) for x in (whole.draws, draws))
        assert abs(one[0] - other[0]) < 5 * np.hypot(one[1], other[1])


def by_chain_mean(values):
    """The mean and its standard error across chains."""
    means = values.mean(axis=1)
    return means.mean(), means.std(ddof=1) / np.sqrt(len(means))


def test_folding_is_kept_by_files_and_stores(tmp_path, runs):
    _, kept = runs
    target = plain(symmetries=[COMPONENTS])
    kept.save(tmp_path / "result.nc")
    again = whmc.load(tmp_path / "result.nc", target)
    np.testing.assert_array_equal(again.unfolded(seed=2).draws, kept.unfolded(seed=2).draws)
    whole = whmc.sample(target, finder=whmc.MultiStart(64), seed=1, draws=40, warmup=100, store=tmp_path / "run")
    more = whmc.resume(tmp_path / "run", target, draws=60)
    np.testing.assert_array_equal(more.draws[:, :40], whole.draws)
    np.testing.assert_array_equal(whmc.load(tmp_path / "run", target).unfolded().draws, more.unfolded().draws)


def test_known_modes_and_initial_positions_are_brought_home():
    target = plain(symmetries=[COMPONENTS])
    place = [-3.0, 0.0, 4.0, 0.0, 0.1, 0.0]
    initial = np.tile([4.0, -3.0, 0.0, 0.0, 0.0, 0.1], (4, 1))
    result = whmc.sample(target, modes=[place], initial=initial, chains=4, draws=50, warmup=100)
    assert np.all(np.argmin(result.draws[..., :3], axis=-1) == 0)


def test_a_library_found_with_symmetries_serves_the_run():
    target = plain(symmetries=[COMPONENTS])
    library = whmc.find_modes(target, finder=whmc.MultiStart(64))
    assert library.num_modes == 1
    assert whmc.sample(target, modes=library, chains=4, draws=20, warmup=50).library.num_modes == 1


def test_symmetries_of_constrained_values():
    """Weights on a simplex: no permutation of the unconstrained coordinates, and with a Jacobian of its own."""
    target = simplex_target([whmc.Exchange("mean", "weight")])
    with jax.enable_x64(True):
        kept = fold_target(target, 0)
        x = jnp.asarray(kept.draw_starts(jax.random.key(0), 1)[0])
        images = [kept.image(g, x) for g in range(len(kept.group))]
        np.testing.assert_allclose(
            sorted(float(kept.constrain(image)["mean"][0]) for image in images),
            sorted(float(mean) for mean in kept.constrain(x)["mean"] for _ in range(2)),
        )
    result = whmc.sample(target, finder=whmc.MultiStart(64), seed=0, draws=300)
    assert result.library.num_modes == 1
    weights = result.unfolded().constrained()["weight"]
    assert np.allclose(weights.sum(axis=-1), 1.0)
    mean, se = by_chain_mean(weights[..., 0])
    assert abs(mean - 1 / 3) < 5 * se


def simplex_target(symmetries):
    def constrain(x):
        logits = jnp.concatenate([x[3:], jnp.zeros(1)])
        return {"mean": x[:3], "weight": jax.nn.softmax(logits), "sum": jnp.sum(x[:3])}

    def unconstrain(values):
        log_weight = jnp.log(values["weight"])
        return jnp.concatenate([values["mean"], log_weight[:-1] - log_weight[-1]])

    def logdensity(x):
        values = constrain(x)
        mean, log_weight = values["mean"], jnp.log(values["weight"])
        heights = log_weight - 0.5 * ((jnp.asarray(DATA)[:, None] - mean) / 0.5) ** 2
        jacobian = jnp.sum(log_weight)  # of the additive log-ratio map, a symmetric function of the weights
        return (
            jnp.sum(jax.nn.logsumexp(heights, axis=1))
            - 0.5 * jnp.sum((mean / 5) ** 2)
            + 2 * log_weight.sum()
            + jacobian
        )

    return whmc.Target(
        logdensity, dim=5, starts=([-6.0] * 3 + [-1.0] * 2, [6.0] * 3 + [1.0] * 2),
        constrain=constrain, unconstrain=unconstrain, symmetries=symmetries,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("symmetries", "message"),
    [
        ([whmc.Exchange([0], [1], [2])], r"not symmetric under Exchange\(\[0\], \[1\], \[2\]\)"),
        ([whmc.Flip(0)], r"not symmetric under Flip\(0\)"),
    ],
)
def test_what_is_no_symmetry_is_refused(symmetries, message):
    target = plain(symmetries=symmetries)
    with pytest.raises(ValueError, match=message):
        whmc.sample(target)
    assert "✗ symmetries" in str(target.check())


def test_a_false_symmetry_is_refused_around_given_modes():
    """Modes of one height and two widths: equal at the modes, not around them."""

    def uneven(x):
        widths = jnp.where(x[0] > 0, 1.0, 0.5)
        return -0.5 * jnp.sum(((jnp.abs(x) - jnp.array([4.0, 0.0])) / widths) ** 2)

    target = whmc.Target(uneven, dim=2, symmetries=[whmc.Flip(0)])
    with pytest.raises(ValueError, match=r"not symmetric under Flip\(0\)"):
        whmc.sample(target, modes=[[4.0, 0.0], [-4.0, 0.0]], draws=10)


def test_an_exchange_of_means_without_their_weights_is_refused():
    with pytest.raises(ValueError, match="not symmetric under Exchange"):
        whmc.sample(simplex_target([whmc.Exchange("mean")]))


@pytest.mark.parametrize(
    ("symmetry", "message"),
    [
        (lambda: whmc.Exchange([0], [7]), "coordinate 7"),
        (lambda: whmc.Exchange("nu"), "'nu'"),
        (lambda: whmc.Exchange([0, 1], [2]), "the same number"),
        (lambda: whmc.Exchange([0, 1], [1, 2]), "two components"),
        (lambda: whmc.Exchange([0]), "only one component"),
        (lambda: whmc.Exchange("m0", [1]), "names of values, or"),
        (lambda: whmc.Flip("m0[0]"), "'m0\\[0\\]'"),
        (lambda: whmc.Flip(), "got none"),
    ],
)
def test_wrong_symmetries_are_named(symmetry, message):
    with pytest.raises(ValueError, match=message):
        plain(symmetries=[symmetry()])


def test_a_single_symmetry_needs_no_list():
    assert len(plain(symmetries=COMPONENTS).group) == 6 and len(plain(symmetries=whmc.Flip(0)).group) == 2
    with pytest.raises(TypeError, match=r"must be Exchange\(...\) or Flip\(...\), or a list of them, got 'm0'"):
        unchecked(lambda: plain(symmetries="m0"))


def network(symmetries, **more):
    """A network with three hidden units by the names of a model: each may be flipped, and all change places."""
    shapes = {"w": (3, 2), "b": (3,)}
    return whmc.Target(
        lambda x: -jnp.sum(x**2), dim=9, symmetries=symmetries,
        constrain=lambda x: {"w": x[:6].reshape(shapes["w"]), "b": x[6:]},
        unconstrain=lambda values: jnp.concatenate([values["w"].ravel(), values["b"]]), **more,
    )  # fmt: skip


def test_parts_of_values_have_names():
    """Rows by their number, and by their coords where they have some; as Stan numbers its coordinates too."""
    units = [whmc.Flip(f"w[{k}]", f"b[{k}]") for k in range(3)]
    target = network([whmc.Exchange("w", "b"), *units])
    assert len(target.group) == 6 * 8
    signs = np.unique(target.group.sign[np.all(target.group.order == np.arange(9), axis=1)], axis=0)
    rows = signs[:, :6].reshape(8, 3, 2)
    assert len(signs) == 8 and np.all(rows == signs[:, 6:, None])
    named = {"dims": {"w": ["unit", "input"], "b": ["unit"]}, "coords": {"unit": ["x", "y", "z"], "input": [7, 8]}}
    by_coords = network([whmc.Flip("w[y][8]", "b[z]")], **named)
    np.testing.assert_array_equal(by_coords.group.sign[1], [1, 1, 1, -1, 1, 1, 1, 1, -1])
    names = [f"w.{k}.{n}" for k in (1, 2, 3) for n in (1, 2)]
    as_stan = network(whmc.Flip("w.2.1"), names=[*names, "b.1", "b.2", "b.3"])
    np.testing.assert_array_equal(as_stan.group.sign[1], [1, 1, -1, 1, 1, 1])


@pytest.mark.parametrize(
    ("symmetries", "message"),
    [
        ([whmc.Exchange("w", "b"), whmc.Flip([0, 4, 8])], "names, not numbers of coordinates such as 0; the model has"),
        (whmc.Flip("w[3]"), r"unknown name 'w\[3\]' in symmetries; .*such as 'w\[0\]\[0\]'"),
        (whmc.Flip("b[0][0]"), "unknown name"),
        (whmc.Flip("w.1"), "unknown name"),
        (whmc.Flip("v[0]"), "unknown name 'v"),
    ],
)
def test_names_and_numbers_that_a_model_has_not_are_told(symmetries, message):
    with pytest.raises(ValueError, match=message):
        network(symmetries)


def test_modes_of_a_template_are_brought_home():
    """Two points that are images of each other under the fold, given in the template's shape and within bounds."""
    template = {"place": np.zeros(2), "size": np.zeros(())}
    target = whmc.Target(
        lambda p: -0.5 * jnp.sum((jnp.sort(p["place"]) - jnp.array([-2.0, 3.0])) ** 2) - jnp.log(p["size"]) ** 2,
        template=template, bounds={"size": (0.0, None)}, symmetries=[whmc.Exchange("place")],
    )  # fmt: skip
    folded, library = _folded(target, [{"place": [3.0, -2.0], "size": 1.0}], seed=0)
    assert library.num_modes == 1
    home = folded.home(columns(library).location)
    np.testing.assert_allclose(columns(library).location, home)
    np.testing.assert_allclose(np.sort(columns(library).location[0, :2]), [-2.0, 3.0], atol=1e-6)


def test_too_large_a_group_is_refused():
    with pytest.raises(ValueError, match="more than 5040 images"):
        whmc.Target(lambda x: -jnp.sum(x**2), dim=8, symmetries=[whmc.Exchange(*([n] for n in range(8)))])
