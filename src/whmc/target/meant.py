"""What was meant by something that is neither a Target nor a log density: a model, which `whmc` has a function for."""

import inspect
from functools import partial
from types import ModuleType
from typing import Any

STATEMENTS = ("sample", "factor", "plate")
"""NumPyro's statements, of which a model has some."""


def is_pymc(found: object) -> bool:
    """Whether it is a PyMC model; PyMC itself is not imported for that."""
    return any(kind.__module__.split(".")[0] == "pymc" and kind.__name__ == "Model" for kind in type(found).__mro__)


def is_numpyro(found: object) -> bool:
    """Whether it is a function with statements of NumPyro, under whatever name that was imported."""
    function: Any = found.func if isinstance(found, partial) else found
    function = inspect.unwrap(function) if callable(function) else function
    if not inspect.isfunction(function):
        return False
    seen = inspect.getclosurevars(function)
    known = [*seen.globals.values(), *seen.nonlocals.values()]
    by_module = any(isinstance(one, ModuleType) and one.__name__ == "numpyro" for one in known)
    by_name = any(getattr(one, "__module__", None) == "numpyro.primitives" for one in known)
    return by_name or (by_module and any(name in function.__code__.co_names for name in STATEMENTS))


def model_of(found: object) -> str | None:
    """What to write for a model, if it is one."""
    if is_pymc(found):
        return "a PyMC model becomes a target by whmc.from_pymc(model)"
    return "a NumPyro model becomes a target by whmc.from_numpyro(model, *data)" if is_numpyro(found) else None


def target_by(found: object) -> str:
    """How to make a target of something that is none."""
    return model_of(found) or (
        "wrap it, whmc.Target(f, dim=..., starts=...) if it is a log density in jax.numpy, whmc.from_numpy(f, dim=..., "
        "starts=...) if it is one in NumPy, whmc.from_numpyro(model, *data) if it is a NumPyro model"
    )
