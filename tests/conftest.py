"""Every test runs with shapes and types checked, float64, strict promotion, and warnings as errors."""

import contextlib
import os
import shutil
import subprocess
import sys
import tempfile

import pytest
from jaxtyping import install_import_hook

# most of the time goes into compiling, and many tests compile the same: workers and subprocesses share what they have
OWN_CACHE = None if "JAX_COMPILATION_CACHE_DIR" in os.environ else tempfile.mkdtemp(prefix="whmc-tests-")
os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", OWN_CACHE or "")
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0.3")

# XLA's older code generator computes the same, at half of the time to compile, and so does its compiler without the
# passes that it calls expensive. Who sets XLA_FLAGS, if to nothing, tests what users run; so does .ci/run for the tests
# marked `as_users`. A version of JAX that does not know the flags goes without.
if "XLA_FLAGS" not in os.environ:
    quick = {"XLA_FLAGS": "--xla_cpu_use_fusion_emitters=false --xla_llvm_disable_expensive_passes=true"}
    tried = subprocess.run(
        [sys.executable, "-c", "import jax; jax.devices()"], env=os.environ | quick, capture_output=True
    )
    os.environ.update(quick if tried.returncode == 0 else {"XLA_FLAGS": ""})

install_import_hook("whmc", "beartype.beartype")

import jax  # noqa: E402

jax.config.update("jax_enable_x64", True)
jax.config.update("jax_numpy_dtype_promotion", "strict")


LONGEST = ("test_frontend_stan", "test_unknown", "test_frontend_pymc", "test_frontend_numpyro", "test_store")
"""Files with groups of tests that take minutes on one worker. They begin first, so that none ends alone."""


def pytest_collection_modifyitems(items):
    items.sort(key=lambda item: LONGEST.index(item.path.stem) if item.path.stem in LONGEST else len(LONGEST))


MOST_MAPPINGS = 30_000
"""Memory mappings of a process, of which Linux allows 65 530. Every compiled function takes some, and a process that
has too many is aborted: long before that, what was compiled is forgotten."""


def pytest_runtest_teardown(item):
    """Forgets compiled functions when there are too many."""
    with contextlib.suppress(FileNotFoundError), open("/proc/self/maps", "rb") as mappings:
        if sum(1 for _ in mappings) > MOST_MAPPINGS:
            jax.clear_caches()


def pytest_unconfigure(config):
    """Removes the cache, in the process that made it, which is the one that started the workers."""
    if OWN_CACHE is not None:
        shutil.rmtree(OWN_CACHE, ignore_errors=True)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item, call):
    """A skipped test fails where CI is set: what a developer may lack, CI must have."""
    return _no_skips((yield))


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(collector):
    """The same for a module that skips itself."""
    return _no_skips((yield))


def _no_skips(report):
    if "CI" in os.environ and report.skipped and not hasattr(report, "wasxfail"):
        report.outcome = "failed"
        report.longrepr = f"skipped, and CI is set: {report.longrepr}"
    return report
