"""Riemannian HMC (Girolami and Calderhead 2011), and with it the paper's first algorithm: the wormhole metric.

    H(θ, p) = U(θ) + ½ log|G(θ)| + ½ pᵀ G(θ)⁻¹ p,    p ~ N(0, G(θ))

By the generalised leapfrog, kick(e/2) ∘ drift(e) ∘ kick(e/2) with

    p½ = p - e/2 ∇_θ H(θ, p½)                         implicit in p½
    θ' = θ + e/2 [G(θ)⁻¹ + G(θ')⁻¹] p½                implicit in θ'
    p' = p½ - e/2 ∇_θ H(θ', p½)

which keeps volume and is reversible wherever both equations are solved.
"""

import jax
import jax.numpy as jnp
from jax.scipy.linalg import cho_solve

from whmc._pytree import pytree
from whmc._shapes import Array, Float, Int
from whmc.kernels.base import AbstractKernel, ChainState, StepInfo
from whmc.kernels.random import Noise
from whmc.modes.library import ModeLibrary
from whmc.paper.geometry import Metric, Network, Pairs, overall_metric, require_positive
from whmc.paper.implicit import Count, Flag, Flight, Scalar, Solver, fly, settle
from whmc.target.target import Target

TOLERANCE = 1e-9
"""Of the implicit equations: volume is then kept to about this, far below what any number of draws could see."""

MAX_ITERATIONS = 100
"""A contraction by .8 needs 93 iterations for `TOLERANCE`; what contracts less is quicker rejected."""


@pytree
class Terrain:
    """The metric at a position. slopes[i, j, k] = ∂G_ij/∂θ_k."""

    factor: Float[Array, "dim dim"]
    inverse: Float[Array, "dim dim"]
    log_det: Float[Array, ""]
    slopes: Float[Array, "dim dim dim"]


def survey(position: Float[Array, " dim"], metric: Metric) -> Terrain:
    """G = L Lᵀ, G⁻¹, log|G| and ∂G. All NaN where G is not positive definite: such a flight is rejected."""
    factor = jnp.linalg.cholesky(metric(position))
    inverse = cho_solve((factor, True), jnp.eye(len(position), dtype=position.dtype))
    log_det = 2 * jnp.sum(jnp.log(jnp.diagonal(factor)))
    return Terrain(factor, inverse, log_det, jax.jacfwd(metric)(position))


def force(score: Float[Array, " dim"], terrain: Terrain, momentum: Float[Array, " dim"]) -> Float[Array, " dim"]:
    """-∂_k H = ∂_k log π - ½ tr(G⁻¹ ∂_k G) + ½ vᵀ ∂_k G v,  v = G⁻¹ p."""
    velocity = terrain.inverse @ momentum
    weights = jnp.outer(velocity, velocity) - terrain.inverse
    return score + 0.5 * jnp.einsum("ij,ijk->k", weights, terrain.slopes)


def log_joint(flight: Flight) -> Float[Array, ""]:
    """-H(θ, p)."""
    terrain: Terrain = flight.local
    kinetic = 0.5 * flight.momentum @ terrain.inverse @ flight.momentum
    return flight.found.logdensity - 0.5 * terrain.log_det - kinetic


def generalised_leapfrog(flight: Flight, target: Target, metric: Metric, step_size: Scalar, solver: Solver) -> Flight:
    """One step. Its Jacobian is one, so `log_volume` stays as it was."""
    terrain, score, momentum = flight.local, flight.found.score, flight.momentum
    half = solver.solve(lambda p: momentum + 0.5 * step_size * force(score, terrain, p), momentum)

    here = terrain.inverse @ half.value

    def drift(position: Float[Array, " dim"]) -> Float[Array, " dim"]:
        there = cho_solve((jnp.linalg.cholesky(metric(position)), True), half.value)
        return flight.position + 0.5 * step_size * (here + there)

    moved = solver.solve(drift, flight.position + step_size * here)
    found = target.evaluate(moved.value)
    terrain = survey(moved.value, metric)
    return Flight(
        moved.value,
        half.value + 0.5 * step_size * force(found.score, terrain, half.value),
        found,
        terrain,
        flight.log_volume,
        flight.converged & half.converged & moved.converged,
        flight.num_failed + found.failed.astype(int),
    )


def _move(
    noise: Noise,
    state: ChainState,
    target: Target,
    library: ModeLibrary,
    metric: Metric,
    kernel: "MetricWormhole | RiemannianHMC",
    checked: Flag,
) -> tuple[ChainState, StepInfo]:
    """p ~ N(0, G); a flight; accept with exp(-ΔH), reject what was not solved or does not retrace."""
    solver = Solver(kernel.tolerance, kernel.max_iterations)
    terrain = survey(state.position, metric)
    start = Flight.begin(state, terrain.factor @ noise.normal, terrain)

    def advance(flight: Flight) -> Flight:
        return generalised_leapfrog(flight, target, metric, kernel.step_size, solver)

    end, sound = fly(advance, start, solver, num_steps=kernel.num_steps, checked=checked)
    return settle(
        noise.uniform[0],
        log_joint(end) - log_joint(start),
        state,
        end,
        library,
        sound=sound,
        num_steps=kernel.num_steps,
        checked=checked,
    )


@pytree
class RiemannianHMC(AbstractKernel):
    """Riemannian manifold HMC with metric G₀, the paper's second baseline: `MetricWormhole` without wormholes.

    base: G₀, a `jax.tree_util.Partial` of a position, such as `hessian_metric(target)` or a Fisher information; the
    identity unless given, which is plain HMC. Every step of a checked trajectory takes two gradients, and the metric's
    own evaluations come on top.
    """

    step_size: Float[Array, ""] | float = 0.1  # in units where the metric makes modes unit: well below the limit of 2
    num_steps: Int[Array, ""] | int = 10  # one standard deviation
    base: jax.tree_util.Partial | None = None
    tolerance: Scalar = TOLERANCE
    max_iterations: Count = MAX_ITERATIONS
    checked: Flag = True

    @property
    def exact(self) -> bool:
        return bool(self.checked)

    def num_noise(self, library: ModeLibrary) -> tuple[int, int]:
        return 1, library.dim

    def move(
        self, noise: Noise, state: ChainState, target: Target, library: ModeLibrary
    ) -> tuple[ChainState, StepInfo]:
        def metric(position: Float[Array, " dim"]) -> Float[Array, "dim dim"]:
            return jnp.eye(len(position), dtype=position.dtype) if self.base is None else self.base(position)

        return _move(noise, state, target, library, metric, self, self.checked)


@pytree
class MetricWormhole(AbstractKernel):
    """Section 3's first algorithm: Riemannian HMC with G of Eq. (4) [finalM] over a network of wormholes.

    The paper gives the metric and leaves the dynamics to Riemannian HMC; here the log-determinant is in the energy,
    both implicit equations are solved to `tolerance`, and every trajectory is retraced. With `checked` = False
    neither convergence nor the way back counts: that is *not* exact, and there for tests and for the record.

    A wormhole is short, not low: along it the kinetic energy is what it always is, so a barrier in log π stays, less
    ½ log(1/ε) for entering. It pays where modes are far apart for the length of a trajectory, not where the valley
    between them is deep. At its ends and edge G⁻¹ falls from 1/ε to 1 within a distance of about ε F, so the equations
    contract only for small steps; larger ones are rejected more often, never wrong. A mode's own location is a kink of
    G, from which no flight can be retraced: it alone, of probability zero, is left unchecked, since chains start there.

    wormholes: pairs of charts (W, 2), such as `spanning_tree(locations)`; None: all pairs of the library's.
    base: G₀, a `jax.tree_util.Partial` of a position; None: identity.
    """

    step_size: Float[Array, ""] | float = 0.05  # larger ones rarely converge at the wormholes' ends
    num_steps: Int[Array, ""] | int = 20  # a trajectory of one standard deviation of a unit mode, or 1/√ε in a wormhole
    shrink: Float[Array, ""] | float = 0.03  # the paper's, for its Figure 1
    influence: Float[Array, ""] | float = 0.3  # the paper's, for its Figure 1
    wormholes: Pairs | None = None
    base: jax.tree_util.Partial | None = None
    tolerance: Scalar = TOLERANCE
    max_iterations: Count = MAX_ITERATIONS
    checked: Flag = True

    @property
    def exact(self) -> bool:
        return bool(self.checked)

    def __post_init__(self) -> None:
        require_positive("shrink", self.shrink, "it is ε in Eq. (3), try 0.03")
        require_positive("influence", self.influence, "it is F in Eq. (5), try 0.3")

    def num_noise(self, library: ModeLibrary) -> tuple[int, int]:
        return 1, library.dim

    def move(
        self, noise: Noise, state: ChainState, target: Target, library: ModeLibrary
    ) -> tuple[ChainState, StepInfo]:
        network = Network.between(library, self.wormholes)

        def metric(position: Float[Array, " dim"]) -> Float[Array, "dim dim"]:
            return overall_metric(position, network, self.shrink, self.influence, self.base)

        # no flight from a kink of the metric can be retraced, and chains start at modes: a set of probability zero may
        # be left unchecked, but not be a trap
        checked = jnp.asarray(self.checked) & ~network.ends_at(state.position)
        return _move(noise, state, target, library, metric, self, checked)
