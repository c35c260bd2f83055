"""The paper's geometry, Eqs 2-7, against closed forms and automatic differentiation."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from contracts import problem
from whmc.modes.library import ModeLibrary
from whmc.paper.geometry import (
    Network,
    all_pairs,
    arc_length,
    direction,
    field_mollifier,
    field_mollifiers,
    hessian_metric,
    mollifier,
    mollifiers,
    network_shares,
    overall_metric,
    pseudo_wormhole_metric,
    soft_abs,
    spanning_tree,
    straight_distance,
    vector_field,
    vicinity,
    wind,
    wormhole_metric,
)
from whmc.testing import gaussian_mixture

pytestmark = pytest.mark.paper

A, B = jnp.array([1.0, -2.0, 0.5]), jnp.array([3.0, 1.0, -1.0])
U = (B - A) / jnp.linalg.norm(B - A)
LENGTH = float(jnp.linalg.norm(B - A))
SHRINK, INFLUENCE = 0.03, 0.3
ONE = Network(A[None], B[None], jnp.ones(1, bool))
THREE = Network(
    jnp.stack([A, A, B]), jnp.stack([B, jnp.array([0.0, 2.0, 1.0]), jnp.array([0.0, 2.0, 1.0])]), jnp.ones(3, bool)
)


def _normal(seed: int, *shape: int) -> jax.Array:
    return jax.random.normal(jax.random.key(seed), shape)


def _at(along: float, across: jax.Array) -> jax.Array:
    """The point with place `along` on the line (0 at A, 1 at B) and displacement `across` normal to it."""
    return A + along * (B - A) + across - (across @ U) * U


def test_pseudo_metric_is_the_product_of_what_is_normal_to_the_wormhole():
    first, second = _normal(0, 2, 3)
    metric = pseudo_wormhole_metric(A, B)
    expected = (first - (first @ U) * U) @ (second - (second @ U) * U)
    np.testing.assert_allclose(first @ metric @ second, expected, atol=1e-14)
    np.testing.assert_allclose(metric @ U, 0.0, atol=1e-15)  # degenerate along the wormhole, and only there
    np.testing.assert_allclose(jnp.linalg.eigvalsh(metric), [0, 1, 1], atol=1e-14)


def test_wormhole_metric_has_inverse_eigenvalue_one_over_shrink_along_the_wormhole():
    metric = wormhole_metric(A, B, SHRINK)
    np.testing.assert_allclose(metric, jnp.eye(3) - (1 - SHRINK) * jnp.outer(U, U), atol=1e-15)
    np.testing.assert_allclose(jnp.linalg.inv(metric) @ U, U / SHRINK, rtol=1e-12)
    np.testing.assert_allclose(jnp.linalg.eigvalsh(metric), [SHRINK, 1, 1], atol=1e-14)


def test_wormhole_shortens_the_way_by_the_root_of_shrink():
    line = A + jnp.linspace(0.0, 1.0, 7)[:, None] * (B - A)
    length = arc_length(line, lambda x: wormhole_metric(A, B, SHRINK))
    np.testing.assert_allclose(length, np.sqrt(SHRINK) * LENGTH, rtol=1e-13)
    np.testing.assert_allclose(straight_distance(A, B, SHRINK), length, rtol=1e-13)
    # on the segment the overall metric is the wormhole's, whatever the base
    overall = arc_length(line, lambda x: overall_metric(x, ONE, SHRINK, INFLUENCE, lambda y: 5 * jnp.eye(3)))
    np.testing.assert_allclose(overall, length, rtol=1e-7)


def test_arc_length_of_a_curve_under_a_varying_metric():
    """The unit circle, and under |x|² I a ray, whose length is ∫ x dx; errors fall as 1/points²."""
    angle = jnp.linspace(0.0, 2 * jnp.pi, 2001)
    circle = jnp.stack([jnp.cos(angle), jnp.sin(angle)], axis=1)
    np.testing.assert_allclose(arc_length(circle, lambda x: jnp.eye(2)), 2 * np.pi, rtol=1e-6)
    ray = jnp.stack([jnp.linspace(1.0, 3.0, 50), jnp.zeros(50)], axis=1)
    np.testing.assert_allclose(arc_length(ray, lambda x: (x @ x) * jnp.eye(2)), 4.0, rtol=1e-12)


def test_mollifier_is_one_on_the_segment_and_falls_with_the_detour():
    for along in (0.0, 0.3, 1.0):
        np.testing.assert_allclose(mollifier(_at(along, jnp.zeros(3)), A, B, INFLUENCE), 1.0, atol=1e-13)
    beyond = _at(1.25, jnp.zeros(3))  # a quarter of the length there and back
    np.testing.assert_allclose(mollifier(beyond, A, B, INFLUENCE), np.exp(-0.5 * LENGTH / INFLUENCE), rtol=1e-12)
    across = _normal(1, 3)
    far = float(jnp.linalg.norm(_at(0.5, across) - _at(0.5, jnp.zeros(3))))
    detour = 2 * np.hypot(far, 0.5 * LENGTH) - LENGTH
    np.testing.assert_allclose(mollifier(_at(0.5, across), A, B, INFLUENCE), np.exp(-detour / INFLUENCE), rtol=1e-12)
    assert mollifier(_at(0.5, across), A, B, 0.1) < mollifier(_at(0.5, across), A, B, 0.3)


def test_gradient_of_the_mollifier():
    x = _at(0.4, 0.5 * _normal(2, 3))
    pull = (x - A) / jnp.linalg.norm(x - A) + (x - B) / jnp.linalg.norm(x - B)
    expected = -mollifier(x, A, B, INFLUENCE) / INFLUENCE * pull
    np.testing.assert_allclose(jax.grad(mollifier)(x, A, B, INFLUENCE), expected, rtol=1e-12)
    for end in (A, B):
        # a kink: the slope is one of the subgradients
        np.testing.assert_array_equal(jax.grad(mollifier)(end, A, B, INFLUENCE), 0.0)


def test_vicinity_is_the_squared_distance_beside_the_segment_and_more_beyond():
    across = _normal(3, 3)
    radius = jnp.linalg.norm(_at(0.0, across) - A)
    for along in (0.0, 0.2, 0.9, 1.0):
        np.testing.assert_allclose(vicinity(_at(along, jnp.zeros(3)), A, B), 0.0, atol=1e-14)
        np.testing.assert_allclose(vicinity(_at(along, across), A, B), radius**2, rtol=1e-12)
    for along in (-0.7, 1.4):
        s = along * LENGTH
        np.testing.assert_allclose(vicinity(_at(along, across), A, B), radius**2 + 2 * s * (s - LENGTH), rtol=1e-12)
    on_the_line = _at(1.4, jnp.zeros(3))
    ends = jnp.linalg.norm(on_the_line - A) * jnp.linalg.norm(on_the_line - B)
    np.testing.assert_allclose(vicinity(on_the_line, A, B), 2 * ends, rtol=1e-12)
    # the kink: no slope along the line just before the end, 2d just after
    slopes = [jax.grad(vicinity)(_at(1 + shift, across), A, B) @ U for shift in (-1e-9, 1e-9)]
    np.testing.assert_allclose(slopes, [0.0, 2 * LENGTH], atol=1e-6)


def test_vector_field_and_wind():
    x, v = _at(0.3, 0.4 * _normal(4, 3)), _normal(5, 3)
    weight = float(jnp.exp(-vicinity(x, A, B) / (3 * INFLUENCE)))
    np.testing.assert_allclose(field_mollifier(x, A, B, INFLUENCE), weight, rtol=1e-14)
    np.testing.assert_allclose(vector_field(x, v, ONE, INFLUENCE), weight * (v @ U) * U, rtol=1e-12)
    np.testing.assert_allclose(wind(x, v, ONE, INFLUENCE), v + weight * (v @ U) * U, rtol=1e-12)
    # odd in v; and a network's is the sum
    np.testing.assert_allclose(vector_field(x, -v, THREE, 1.0), -vector_field(x, v, THREE, 1.0), rtol=1e-14)
    parts = [
        vector_field(x, v, Network(THREE.origin[n : n + 1], THREE.goal[n : n + 1], jnp.ones(1, bool)), 1.0)
        for n in range(3)
    ]
    np.testing.assert_allclose(vector_field(x, v, THREE, 1.0), sum(parts), rtol=1e-12)


def test_overall_metric_is_equation_four_for_one_wormhole():
    base = jnp.array([[2.0, 0.3, 0.0], [0.3, 1.0, 0.2], [0.0, 0.2, 0.5]])
    x = _at(0.6, 0.3 * _normal(6, 3))
    m = mollifier(x, A, B, INFLUENCE)
    expected = (1 - m) * base + m * wormhole_metric(A, B, SHRINK)
    np.testing.assert_allclose(overall_metric(x, ONE, SHRINK, INFLUENCE, lambda y: base), expected, rtol=1e-12)
    identity = jnp.eye(3) - m * (1 - SHRINK) * jnp.outer(U, U)
    np.testing.assert_allclose(overall_metric(x, ONE, SHRINK, INFLUENCE), identity, rtol=1e-12, atol=1e-14)


def test_shares_of_a_network():
    values = jnp.array([0.2, 0.9, 0.5])
    shares = network_shares(values)
    np.testing.assert_allclose(jnp.sum(shares), 1 - 0.8 * 0.1 * 0.5, rtol=1e-14)
    np.testing.assert_allclose(shares / shares[0], values / values[0], rtol=1e-14)
    np.testing.assert_allclose(network_shares(jnp.array([0.37])), [0.37], rtol=1e-14)
    np.testing.assert_allclose(network_shares(jnp.array([0.37, 0.0])), [0.37, 0.0], rtol=1e-14)
    # where wormholes meet, at a mode, every printed m is one, and the shares still sum to one
    np.testing.assert_allclose(jnp.sum(network_shares(jnp.ones(4))), 1.0, rtol=1e-14)
    assert network_shares(jnp.zeros(0)).shape == (0,)


@pytest.mark.parametrize("place", ["mode", "segment", "near", "far", "very far"])
def test_metric_of_a_network_is_positive_definite_with_finite_slopes_everywhere(place):
    x = {
        "mode": A,
        "segment": 0.5 * (A + B),
        "near": A + 0.1 * _normal(7, 3),
        "far": A + 40.0,
        "very far": A + 1e4,
    }[place]
    matrix = overall_metric(x, THREE, SHRINK, INFLUENCE)
    values = jnp.linalg.eigvalsh(matrix)
    assert float(values[0]) > SHRINK - 1e-12 and float(values[-1]) < 1 + 1e-12
    assert np.all(np.isfinite(jax.jacfwd(lambda y: overall_metric(y, THREE, SHRINK, INFLUENCE))(x)))
    assert np.all(np.isfinite(jax.jacrev(lambda y: vector_field(y, U, THREE, INFLUENCE))(x)))


def test_far_from_all_wormholes_the_base_is_left_alone():
    np.testing.assert_array_equal(overall_metric(A + 1e4, THREE, SHRINK, INFLUENCE), jnp.eye(3))
    none = Network(jnp.zeros((0, 3)), jnp.zeros((0, 3)), jnp.zeros(0, bool))
    np.testing.assert_array_equal(overall_metric(A, none, SHRINK, INFLUENCE), jnp.eye(3))
    np.testing.assert_array_equal(vector_field(A, U, none, INFLUENCE), jnp.zeros(3))


def test_unused_places_of_a_library_have_no_wormholes():
    library = ModeLibrary.from_charts(np.stack([A, B]), np.tile(np.eye(3), (2, 1, 1)), capacity=4)
    network = Network.between(library)
    assert network.origin.shape == (6, 3) and int(jnp.sum(network.active)) == 1
    x = _at(0.5, 0.2 * _normal(8, 3))
    for of in (mollifiers, field_mollifiers):
        np.testing.assert_array_equal(np.asarray(of(x, network, INFLUENCE))[~np.asarray(network.active)], 0.0)
    np.testing.assert_allclose(
        overall_metric(x, network, SHRINK, INFLUENCE), overall_metric(x, ONE, SHRINK, INFLUENCE), rtol=1e-12
    )
    np.testing.assert_allclose(vector_field(x, U, network, 1.0), vector_field(x, U, ONE, 1.0), rtol=1e-12)
    given = Network.between(library, np.array([[1, 0], [0, 0]]))
    np.testing.assert_array_equal(given.active, [True, False])
    np.testing.assert_allclose(given.direction[0], -U, rtol=1e-14)
    np.testing.assert_array_equal(direction(A, A), jnp.zeros(3))
    assert bool(network.ends_at(B)) and not bool(network.ends_at(x))
    assert not bool(network.ends_at(jnp.zeros(3)))  # where the unused places are


def _soft(values: np.ndarray, softness: float) -> np.ndarray:
    return values / np.tanh(values / softness)


def test_hessian_metric_is_soft_abs_of_the_curvature():
    case = problem("rotated")
    x = jnp.array([2.5, 1.0])  # between the modes, where the curvature has both signs
    curvature = -np.asarray(jax.hessian(case.target)(x))
    values, vectors = np.linalg.eigh(curvature)
    assert values[0] < 0 < values[1]
    metric = hessian_metric(case.target, 0.5)(x)
    np.testing.assert_allclose(metric, (vectors * _soft(values, 0.5)) @ vectors.T, rtol=1e-10, atol=1e-12)
    assert float(jnp.linalg.eigvalsh(metric)[0]) >= 0.5 - 1e-12  # softness is its least eigenvalue


@pytest.mark.parametrize("spread", [0.0, 1e-7, 1e-5, 0.3, 3.0])
def test_derivative_of_soft_abs_where_eigenvalues_meet(spread):
    """Central differences of step h are right to h² + 1e-16/h, about 1e-10."""
    turn = jnp.linalg.qr(_normal(9, 3, 3))[0]
    matrix = (turn * jnp.array([0.4, 0.4 + spread, -1.2])) @ turn.T
    change = _normal(10, 3, 3)
    change = change + change.T
    _, slope = jax.jvp(soft_abs, (matrix,), (change,))
    h = 1e-5
    expected = (soft_abs(matrix + h * change) - soft_abs(matrix - h * change)) / (2 * h)
    np.testing.assert_allclose(slope, expected, atol=2e-8)


def test_slopes_of_the_hessian_metric_are_finite_at_round_modes():
    case = gaussian_mixture([0.5, 0.5], [[0, 0], [30, 0]], np.tile(np.eye(2), (2, 1, 1)))
    slopes = jax.jacfwd(hessian_metric(case.target, 1.0))(jnp.array([0.3, -0.2]))
    np.testing.assert_allclose(slopes, 0.0, atol=1e-10)  # the curvature is constant there


def test_networks_of_modes():
    np.testing.assert_array_equal(all_pairs(4), [[0, 1], [0, 2], [0, 3], [1, 2], [1, 3], [2, 3]])
    assert all_pairs(1).shape == (0, 2)
    # two clusters on a line and one mode aside: worked by hand
    modes = [[0.0, 0], [10, 0], [1, 0], [12, 0], [1, 5]]
    np.testing.assert_array_equal(spanning_tree(modes), [[0, 2], [1, 2], [1, 3], [2, 4]])
    assert spanning_tree([[1.0, 2.0]]).shape == (0, 2)
    with pytest.raises(ValueError, match="same place"):
        spanning_tree([[0.0, 0], [1, 0], [0, 0]])
