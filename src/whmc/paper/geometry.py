"""The geometry of wormholes: metrics (Eqs 2-5), vicinity (Eq. 6), vector field (Eq. 7), networks.

A wormhole is the segment from the mode a = θ̂₁ (`origin`) to the mode b = θ̂₂ (`goal`): v_W = b - a, unit vector
u = v*_W. For a position x let s = ⟨x - a, u⟩ be its place along the line, d = |v_W| the length of the segment and r the
distance of x from the line.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np

from whmc._pytree import pytree
from whmc._shapes import Array, Bool, Float, Int
from whmc.modes.library import ModeLibrary
from whmc.target.target import Numbers, Target

Metric = Callable[[Array], Array]
"""position (D,) -> positive definite matrix (D, D), such as a Fisher information."""

Scalar = Float[Array, ""] | float
Pairs = Int[np.ndarray, "num 2"] | Int[Array, "num 2"]
"""Rows (i, j): a wormhole from mode i to mode j."""


@pytree
class Network:
    """W wormholes; those that are not `active` have no influence."""

    origin: Float[Array, "num dim"]
    goal: Float[Array, "num dim"]
    active: Bool[Array, " num"]

    @classmethod
    def between(cls, library: ModeLibrary, wormholes: Pairs | None = None) -> "Network":
        """Wormholes between the library's modes: the given pairs, or all. Unused places have none."""
        pairs = jnp.asarray(all_pairs(library.capacity) if wormholes is None else wormholes)
        ends = library.location[pairs]
        origin, goal = ends[:, 0], ends[:, 1]
        used = jnp.all(library.log_weight[pairs] > -jnp.inf, axis=1)
        # a segment without length has no direction
        return cls(origin, goal, used & jnp.any(origin != goal, axis=1))

    @property
    def direction(self) -> Float[Array, "num dim"]:
        """The unit vectors v*_W, one a row."""
        return jax.vmap(direction)(self.origin, self.goal)

    def ends_at(self, position: Float[Array, " dim"]) -> Bool[Array, ""]:
        """Whether a wormhole ends at exactly this position, where the mollifier of Eq. (5) [mollNT] has its kink."""
        ends = jnp.all(self.origin == position, axis=1) | jnp.all(self.goal == position, axis=1)
        return jnp.any(ends & self.active)


def safe_norm(vector: Float[Array, " dim"]) -> Float[Array, ""]:
    """|x|, with gradient zero at zero, where it has none: a chain may start at a mode."""
    square = vector @ vector
    at_zero = square == 0
    return jnp.where(at_zero, 0.0, jnp.sqrt(jnp.where(at_zero, 1.0, square)))


def direction(origin: Float[Array, " dim"], goal: Float[Array, " dim"]) -> Float[Array, " dim"]:
    """v*_W = (b - a)/|b - a|, zero where the ends coincide."""
    length = safe_norm(goal - origin)
    return (goal - origin) / jnp.where(length > 0, length, 1.0)


def arc_length(curve: Float[Array, "points dim"], metric: Metric) -> Float[Array, ""]:
    """Eq. (2) [arcL]: ∫ √(θ̇ᵀ G(θ) θ̇) dt of a curve through these points, by the midpoint rule on each piece.

    Exact for a straight line under a constant metric; else the error falls as 1/points².
    """
    pieces = curve[1:] - curve[:-1]
    matrices = jax.vmap(metric)(0.5 * (curve[1:] + curve[:-1]))
    return jnp.sum(jnp.sqrt(jnp.einsum("ni,nij,nj->n", pieces, matrices, pieces)))


def pseudo_wormhole_metric(origin: Float[Array, " dim"], goal: Float[Array, " dim"]) -> Float[Array, "dim dim"]:
    """Unnumbered [psuNwormhole]: G*_W = I - u uᵀ, the Euclidean product of what is normal to the wormhole.

    Only semi-definite: the wormhole itself has length zero.
    """
    u = direction(origin, goal)
    return jnp.eye(len(u), dtype=u.dtype) - jnp.outer(u, u)


def wormhole_metric(
    origin: Float[Array, " dim"], goal: Float[Array, " dim"], shrink: Scalar
) -> Float[Array, "dim dim"]:
    """Eq. (3) [Nwormhole]: G_W = G*_W + ε u uᵀ = I - (1 - ε) u uᵀ, ε = `shrink`.

    Its inverse has eigenvalue 1/ε along u and 1 across.
    """
    u = direction(origin, goal)
    return pseudo_wormhole_metric(origin, goal) + shrink * jnp.outer(u, u)


def straight_distance(origin: Float[Array, " dim"], goal: Float[Array, " dim"], shrink: Scalar) -> Float[Array, ""]:
    """Unnumbered, after Eq. (3): dist(θ̂₁, θ̂₂) = √ε |v_W|, the length of the segment under G_W.

    Lengths shrink, energies do not: along u the kinetic energy is ½χ²₁ under any constant metric, so G_W makes the way
    over a barrier shorter and not lower. Only -½ log|G|, at most ½ log(1/ε), is won on entering the wormhole.
    """
    return jnp.sqrt(shrink) * safe_norm(goal - origin)


def mollifier(
    position: Float[Array, " dim"], origin: Float[Array, " dim"], goal: Float[Array, " dim"], influence: Scalar
) -> Float[Array, ""]:
    """Eq. (5) [mollNT]: m = exp{-(|x - a| + |x - b| - |a - b|)/F}, F = `influence`.

    One on the segment, constant on ellipsoids with foci a and b. It has a kink at a and b: continuous, not smooth
    there as the text says. Erratum: the text has m in (0, 1); on the segment it is 1.
    At a and b its gradient is taken as zero, as on the rest of the segment: one of its subgradients.
    """
    at_end = jnp.all(position == origin) | jnp.all(position == goal)
    position = jnp.where(at_end, jax.lax.stop_gradient(position), position)
    detour = safe_norm(position - origin) + safe_norm(position - goal) - safe_norm(goal - origin)
    # rounding may make the detour of a point on the segment slightly negative
    return jnp.exp(-jnp.maximum(detour, 0.0) / influence)


def vicinity(
    position: Float[Array, " dim"], origin: Float[Array, " dim"], goal: Float[Array, " dim"]
) -> Float[Array, ""]:
    """Eq. (6) [vicinity]: V = ⟨x - a, x - b⟩ + |⟨x - a, u⟩| |⟨x - b, u⟩|.

    Since ⟨x - a, x - b⟩ = r² + s(s - d), it equals

        r²               beside the segment, 0 ≤ s ≤ d: the squared distance from it;
        r² + 2 s(s - d)  beyond an end: on the line itself 2 |x - a| |x - b|.

    Erratum: the text calls it the Euclidean distance from the segment. It is the square of that beside it, and no
    distance beyond the ends, where it grows at once with slope 2d: V is continuous, with a kink in the planes s = 0 and
    s = d. Where a = b it is |x - a|².
    """
    u = direction(origin, goal)
    from_origin, from_goal = position - origin, position - goal
    return from_origin @ from_goal + jnp.abs(from_origin @ u) * jnp.abs(from_goal @ u)


def field_mollifier(
    position: Float[Array, " dim"], origin: Float[Array, " dim"], goal: Float[Array, " dim"], influence: Scalar
) -> Float[Array, ""]:
    """Unnumbered, below [xf]: m = exp{-V/(D F)}, V of Eq. (6) [vicinity], D the dimension, F = `influence`."""
    return jnp.exp(-vicinity(position, origin, goal) / (len(position) * influence))


def vector_field(
    position: Float[Array, " dim"], velocity: Float[Array, " dim"], network: Network, influence: Scalar
) -> Float[Array, " dim"]:
    """Unnumbered [xf]: f = Σ_k m_k(x) ⟨v, u_k⟩ u_k, m_k = exp{-V_k/(D F)}. The paper prints one wormhole; they add up.

    Erratum: the first printed line has a factor U(θ) that the second has not. With it f would change with the
    constant that U is known up to, so the second line is meant. f is odd in v: what makes the integrator reversible.
    """
    along = network.direction @ velocity
    return (field_mollifiers(position, network, influence) * along) @ network.direction


def wind(
    position: Float[Array, " dim"], velocity: Float[Array, " dim"], network: Network, influence: Scalar
) -> Float[Array, " dim"]:
    """Eq. (7) [windeq], first line of Eq. (A.1) [rmldxf]: θ̇ = v + f(θ, v)."""
    return velocity + vector_field(position, velocity, network, influence)


def mollifiers(position: Float[Array, " dim"], network: Network, influence: Scalar) -> Float[Array, " num"]:
    """m of Eq. (5) [mollNT] for each wormhole."""
    values = jax.vmap(lambda a, b: mollifier(position, a, b, influence))(network.origin, network.goal)
    return jnp.where(network.active, values, 0.0)


def field_mollifiers(position: Float[Array, " dim"], network: Network, influence: Scalar) -> Float[Array, " num"]:
    """exp{-V_k/(D F)} for each wormhole."""
    values = jax.vmap(lambda a, b: field_mollifier(position, a, b, influence))(network.origin, network.goal)
    return jnp.where(network.active, values, 0.0)


def network_shares(mollifiers: Float[Array, " num"]) -> Float[Array, " num"]:
    """m'_k = m_k (1 - ∏_j (1 - m_j)) / Σ_j m_j: the part of the metric that each wormhole has in a network.

    Smooth in every m_j; they sum to 1 - ∏(1 - m_j) ≤ 1, and m' = m where there is one wormhole.
    """
    total = jnp.sum(mollifiers)
    # far from all wormholes the ratio tends to one; its square must not underflow in the gradient
    far = total < jnp.sqrt(jnp.finfo(total.dtype).tiny)
    return mollifiers * jnp.where(far, 1.0, (1 - jnp.prod(1 - mollifiers)) / jnp.where(far, 1.0, total))


def overall_metric(
    position: Float[Array, " dim"], network: Network, shrink: Scalar, influence: Scalar, base: Metric | None = None
) -> Float[Array, "dim dim"]:
    """Eq. (4) [finalM]: G = (1 - m) G₀ + m G_W, and for a network G = (1 - Σ m'_k) G₀ + Σ m'_k G_{W_k}.

    The paper prints one wormhole only; `network_shares` gives m' for several, and Eq. (4) for one. `base` is G₀,
    identity unless given. Positive definite wherever G₀ is. Erratum: sums of several printed m could exceed one, and
    1 - Σ m would make G indefinite where wormholes meet, which is at every mode; hence m'.
    """
    shares = network_shares(mollifiers(position, network, influence))
    rest = jnp.eye(len(position), dtype=position.dtype) if base is None else base(position)
    metrics = jax.vmap(lambda a, b: wormhole_metric(a, b, shrink))(network.origin, network.goal)
    return (1 - jnp.sum(shares)) * rest + jnp.einsum("n,nij->ij", shares, metrics)


def hessian_metric(target: Target, softness: Scalar = 1.0) -> jax.tree_util.Partial:
    """A base metric: SoftAbs of the Hessian of U = -log π, whose eigenvalues λ become λ coth(λ/`softness`).

    Smooth and positive definite: |λ| where it is large, `softness` where it is zero. Give the scale of the smallest
    curvature that should count.
    """
    return jax.tree_util.Partial(_hessian_metric, target, softness)


def _hessian_metric(target: Target, softness: Scalar, position: Float[Array, " dim"]) -> Float[Array, "dim dim"]:
    return softness * soft_abs(-jax.hessian(target)(position) / softness)


@jax.custom_jvp
def soft_abs(matrix: Float[Array, "dim dim"]) -> Float[Array, "dim dim"]:
    """A coth A of a symmetric matrix."""
    values, vectors = jnp.linalg.eigh(matrix)
    return (vectors * _times_coth(values)[0]) @ vectors.T


@soft_abs.defjvp
def _soft_abs_jvp(primals: tuple[Array], tangents: tuple[Array]) -> tuple[Array, Array]:
    """d f(A) = Q (J ∘ Qᵀ dA Q) Qᵀ, J_ij = (f(λ_i) - f(λ_j))/(λ_i - λ_j): defined where eigenvalues meet, unlike dQ."""
    values, vectors = jnp.linalg.eigh(primals[0])
    height, _ = _times_coth(values)
    gap = values[:, None] - values[None, :]
    near = jnp.abs(gap) < jnp.finfo(gap.dtype).eps ** (1 / 3)
    _, slope = _times_coth(0.5 * (values[:, None] + values[None, :]))
    ratios = jnp.where(near, slope, (height[:, None] - height[None, :]) / jnp.where(near, 1.0, gap))
    change = vectors @ (ratios * (vectors.T @ tangents[0] @ vectors)) @ vectors.T
    return (vectors * height) @ vectors.T, change


def _times_coth(y: Float[Array, "*n"]) -> tuple[Float[Array, "*n"], Float[Array, "*n"]]:
    """y coth y and its derivative; series near zero, where the closed form is 0/0."""
    small = jnp.abs(y) < 1e-2
    z = jnp.where(small, 1.0, y)
    height = jnp.where(small, 1 + y**2 / 3 - y**4 / 45, z / jnp.tanh(z))
    slope = jnp.where(small, 2 * y / 3 - 4 * y**3 / 45, 1 / jnp.tanh(z) - z / jnp.sinh(z) ** 2)
    return height, slope


def all_pairs(num_modes: int) -> Int[np.ndarray, "num 2"]:
    """A wormhole between any two modes."""
    return np.stack(np.triu_indices(num_modes, 1), axis=1)


def spanning_tree(locations: Numbers) -> Int[np.ndarray, "num 2"]:
    """The paper's network of neighbours: the minimal spanning tree of the modes' distances. On the host, by SciPy."""
    from scipy.sparse.csgraph import minimum_spanning_tree
    from scipy.spatial.distance import pdist, squareform

    places = np.asarray(locations, float)
    if len(places) < 2:
        return all_pairs(len(places))
    distances = pdist(places)
    if np.any(distances == 0):
        raise ValueError("two modes are at the same place, and a wormhole between them has no direction: drop one")
    tree = minimum_spanning_tree(squareform(distances)).tocoo()
    pairs = np.sort(np.stack([tree.row, tree.col], axis=1), axis=1).astype(int)
    return pairs[np.lexsort((pairs[:, 1], pairs[:, 0]))]


def require_positive(name: str, value: object, meaning: str) -> None:
    """A setting that must be positive, checked where it is a plain number."""
    if isinstance(value, (int, float)) and not value > 0:
        raise ValueError(f"{name} must be > 0, got {value!r}: {meaning}")
