"""BFGS and L-BFGS with a line search that tolerates rounding. Importing this module imports optimistix."""

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import optimistix
from jaxtyping import Array

ROUNDING = 1e-13
"""Relative rise of the energy that is taken for rounding."""

TOLERANCE = 1e-6
"""Relative and absolute change of position and energy at which a descent ends; Newton steps do the rest."""

HISTORY = 10
"""Past steps that L-BFGS remembers."""


class RoundingArmijo(optimistix.BacktrackingArmijo):
    """Armijo's rule, up to rounding.

    At the bottom of a valley the next step promises less than the energy's rounding error. Armijo's rule then refuses
    every step, and the descent would go on halving it until its last evaluation.
    """

    def step(self, first_step: Any, y: Any, y_eval: Any, f_info: Any, f_eval_info: Any, state: Any) -> Any:
        slack = ROUNDING * (1 + jnp.abs(f_info.as_min()))
        lowered = optimistix.FunctionInfo.Eval(f_eval_info.as_min() - slack)
        return super().step(first_step, y, y_eval, f_info, lowered, state)


def _silent(**_: Any) -> None:
    """Prints nothing."""


class DenseBFGS(optimistix.AbstractBFGS):
    """BFGS that keeps a dense inverse Hessian."""

    rtol: float = TOLERANCE
    atol: float = TOLERANCE
    norm: Callable[[Any], Array] = optimistix.max_norm
    use_inverse: bool = True
    descent: optimistix.NewtonDescent = optimistix.NewtonDescent()
    search: RoundingArmijo = RoundingArmijo()
    verbose: Callable[..., None] = _silent


class LimitedBFGS(optimistix.AbstractLBFGS):
    """L-BFGS, which keeps the last few steps."""

    rtol: float = TOLERANCE
    atol: float = TOLERANCE
    norm: Callable[[Any], Array] = optimistix.max_norm
    use_inverse: bool = True
    descent: optimistix.NewtonDescent = optimistix.NewtonDescent()
    search: RoundingArmijo = RoundingArmijo()
    history_length: int = HISTORY
    verbose: Callable[..., None] = _silent
