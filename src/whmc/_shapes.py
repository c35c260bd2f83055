"""Shapes in signatures, such as `Float[Array, "n dim"]`: for readers, for mypy, and for the tests, which check them.

jaxtyping makes a class of every shape, which takes a third of the time to import whmc. So it is asked only where it is
imported already, as the tests do before anything else.
"""

import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING or "jaxtyping" in sys.modules:
    from jaxtyping import Array, Bool, Float, Int, PyTree, Shaped, UInt32, UInt64
else:
    from jax import Array

    class PyTree:
        """Anything of any shape."""

        def __class_getitem__(cls, shape: Any) -> Any:
            return Any

    Bool = Float = Int = Shaped = UInt32 = UInt64 = PyTree

__all__ = ["Array", "Bool", "Float", "Int", "PyTree", "Shaped", "UInt32", "UInt64"]
