"""Every test runs with shapes and types checked, float64, strict promotion, and warnings as errors."""

import os
import shutil
import tempfile
from pathlib import Path

import pytest
from jaxtyping import install_import_hook

# most of the time goes into compiling, and many tests compile the same: workers and subprocesses share what they have
OWN_CACHE = None if "JAX_COMPILATION_CACHE_DIR" in os.environ else tempfile.mkdtemp(prefix="whmc-tests-")
os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", OWN_CACHE or "")
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0.3")

install_import_hook("whmc", "beartype.beartype")

import jax  # noqa: E402

jax.config.update("jax_enable_x64", True)
jax.config.update("jax_numpy_dtype_promotion", "strict")


def pytest_unconfigure(config):
    """The process that made the cache, which is the one that started the workers, takes it away."""
    if OWN_CACHE is not None:
        shutil.rmtree(OWN_CACHE, ignore_errors=True)


def pytest_collection_modifyitems(items):
    """Marks the tests of users' own models and of the paper, and those of long.txt as slow.

    A line that names no test is an error.
    """
    lines = (Path(__file__).parent / "long.txt").read_text().splitlines()
    left = {line for line in lines if line and not line.startswith("#")}
    files = {item.path.name for item in items}
    for item in items:
        name = item.nodeid.rsplit("/", 1)[-1].split("@")[0]  # without the group that xdist adds
        if name.startswith(("test_frontend_", "test_labelling", "test_bounds", "test_symmetry")):
            item.add_marker(pytest.mark.models)
        if name.startswith("test_paper_"):
            item.add_marker(pytest.mark.paper)
        if name in left:
            left.discard(name)
            item.add_marker(pytest.mark.slow)
    # if a whole file was collected, all of its lines are there
    unknown = [name for name in left if name.split("::")[0] in files and len(items) > 300]
    if unknown:
        raise pytest.UsageError(f"long.txt names tests that do not exist: {unknown}")
