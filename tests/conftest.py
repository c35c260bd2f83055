"""Every test runs with shapes and types checked, float64, strict promotion, and warnings as errors."""

from jaxtyping import install_import_hook

install_import_hook("whmc", "beartype.beartype")

import jax  # noqa: E402

jax.config.update("jax_enable_x64", True)
jax.config.update("jax_numpy_dtype_promotion", "strict")
