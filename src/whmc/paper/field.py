"""FieldWormhole: the paper's second algorithm, HMC with a vector field along the wormholes (Appendix A)."""

import jax
import jax.numpy as jnp

from whmc._pytree import pytree
from whmc._shapes import Array, Float, Int
from whmc.kernels.base import AbstractKernel, ChainState, StepInfo
from whmc.kernels.random import Noise
from whmc.modes.library import ModeLibrary
from whmc.paper.geometry import Network, Pairs, field_mollifiers, require_positive, vector_field
from whmc.paper.implicit import Count, Flag, Flight, Scalar, Solver, fly, settle
from whmc.paper.metric import MAX_ITERATIONS, TOLERANCE
from whmc.paper.plain_hmc import log_joint
from whmc.target.target import Target


def log_stretch(
    position: Float[Array, " dim"],
    velocity: Float[Array, " dim"],
    network: Network,
    influence: Scalar,
    scale: Scalar,
) -> Float[Array, ""]:
    """log|det(I + c ∇f(θ, v))| with ∇f = Σ_k u_k ⟨v, u_k⟩ ∇m_kᵀ, below Eq. (A.6) [dbvc]; c = `scale`, ± e/2.

    A matrix of rank W: by the determinant lemma it is the W x W determinant of I + c diag⟨v, u_k⟩ [⟨∇m_k, u_j⟩],
    for one wormhole the number 1 + c ⟨v, u⟩ ⟨∇m, u⟩. So it takes O(W² D + W³) operations, O(D) for one.
    """
    ways = network.direction
    slopes = jax.jacrev(field_mollifiers)(position, network, influence)
    stretch = jnp.eye(len(ways), dtype=ways.dtype) + scale * (ways @ velocity)[:, None] * (slopes @ ways.T)
    if len(ways) < 2:
        return jnp.sum(jnp.log(jnp.abs(jnp.diagonal(stretch))))
    return jnp.linalg.slogdet(stretch)[1]


def field_leapfrog(
    flight: Flight, target: Target, network: Network, influence: Scalar, step_size: Scalar, solver: Solver
) -> Flight:
    """Eqs (A.2)-(A.4) [xflmc:1, xflmc:0, xflmc:2]: kick(e/2) ∘ drift(e) ∘ kick(e/2), the drift with the field:

    θ' = θ + e [v + (f(θ, v) + f(θ', v))/2]      implicit in θ'

    Kicks keep volume; the drift, at fixed v, has det = det(I + e/2 ∇f(θ, v)) / det(I - e/2 ∇f(θ', v)).
    """
    half_step = 0.5 * step_size
    velocity = flight.momentum + half_step * flight.found.score
    here = vector_field(flight.position, velocity, network, influence)
    known = flight.position + step_size * velocity + half_step * here

    def drift(position: Float[Array, " dim"]) -> Float[Array, " dim"]:
        return known + half_step * vector_field(position, velocity, network, influence)

    moved = solver.solve(drift, known + half_step * here)
    volume = log_stretch(flight.position, velocity, network, influence, half_step) - log_stretch(
        moved.value, velocity, network, influence, -half_step
    )
    found = target.evaluate(moved.value)
    return Flight(
        moved.value,
        velocity + half_step * found.score,
        found,
        None,
        flight.log_volume + volume,
        flight.converged & moved.converged & jnp.isfinite(volume),
        flight.num_failed + found.failed.astype(int),
    )


@pytree
class FieldWormhole(AbstractKernel):
    """Eqs (A.1)-(A.5) [rmldxf, xflmc:1, xflmc:0, xflmc:2, adjacpt] with G = I and the field of a network, Σ_k f_k.

        θ̇ = v + f(θ, v),  v̇ = -∇U(θ);    accept with exp(-ΔH) ∏_l |det J_l|,  H = U + ½|v|²

    The flow does not keep H: dH/dt = ⟨∇U, f⟩. Inside a wormhole (m = 1) position moves at twice the velocity, so of a
    barrier ΔU the velocity pays one half on the way up and the acceptance the other: that is all that is won.

    *When the step is well defined.* For one wormhole the equation is one-dimensional, in the place s' along the line;
    beside the segment m does not change with s, and beyond an end |∂m/∂s| ≤ 2d/(D F) if d² ≥ D F (else
    2 exp(d²/(2DF) - ½)/√(DF)), d the length of the wormhole. So it is a contraction with one solution if

        e |⟨v, u⟩| d < D F;      for a network it suffices that  e/2 Σ_k |⟨v, u_k⟩| max|∇m_k| < 1.

    Otherwise, where the flight leaves an end the solution is still unique but the iteration may oscillate about it;
    where it enters one there may be three solutions, and the iteration ends in one of them or in none. What does not
    converge, and what does not return to its start by the way back, is rejected and counted (`checked`); so the kernel
    stays exact, and a too large step costs acceptance only. The paper's "time reversible" takes the one solution for
    granted. With `checked` = False it is not exact: for tests and the record.

    wormholes: pairs of charts (W, 2), such as `spanning_tree(locations)`; None: all pairs of the library's.
    """

    step_size: Float[Array, ""] | float = 0.05  # meets the condition above for d up to about D F / .15
    num_steps: Int[Array, ""] | int = 20  # a trajectory of one standard deviation of a unit mode
    influence: Float[Array, ""] | float = 0.3  # the paper's
    wormholes: Pairs | None = None
    tolerance: Scalar = TOLERANCE
    max_iterations: Count = MAX_ITERATIONS
    checked: Flag = True

    @property
    def exact(self) -> bool:
        return bool(self.checked)

    def __post_init__(self) -> None:
        require_positive("influence", self.influence, "it is F in exp(-V/(D F)), try 0.3")

    def num_noise(self, library: ModeLibrary) -> tuple[int, int]:
        return 1, library.dim

    def move(
        self, noise: Noise, state: ChainState, target: Target, library: ModeLibrary
    ) -> tuple[ChainState, StepInfo]:
        network = Network.between(library, self.wormholes)
        solver = Solver(self.tolerance, self.max_iterations)

        def advance(flight: Flight) -> Flight:
            return field_leapfrog(flight, target, network, self.influence, self.step_size, solver)

        start = Flight.begin(state, noise.normal)
        end, sound = fly(advance, start, solver, num_steps=self.num_steps, checked=self.checked)
        return settle(
            noise.uniform[0],
            log_joint(end) - log_joint(start) + end.log_volume,
            state,
            end,
            library,
            sound=sound,
            num_steps=self.num_steps,
            checked=self.checked,
        )
