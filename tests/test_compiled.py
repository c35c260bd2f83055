"""Compiled code is kept for the length of a call, and the user's settings are as they were."""

import os
import subprocess
import sys
import textwrap

import jax
import pytest

from whmc.target.compiled import cache_folder, kept_code

NAMES = ("jax_compilation_cache_dir", "jax_persistent_cache_min_compile_time_secs")


def settings():
    return {name: getattr(jax.config, name) for name in NAMES}


@pytest.fixture
def without_cache(monkeypatch):
    """As a user has it who has set nothing."""
    before = settings()
    jax.config.update("jax_compilation_cache_dir", None)
    yield monkeypatch
    for name, value in before.items():
        jax.config.update(name, value)


def test_settings_are_ours_inside_and_the_users_outside(without_cache, tmp_path):
    without_cache.setenv("WHMC_CACHE", str(tmp_path))
    before = settings()
    with kept_code():
        assert jax.config.jax_compilation_cache_dir == str(tmp_path)
        with kept_code():
            pass
        assert jax.config.jax_compilation_cache_dir == str(tmp_path)
    assert settings() == before


@pytest.mark.parametrize("wanted", ["off", "0"])
def test_nothing_is_kept_if_it_is_not_wanted(without_cache, wanted):
    with kept_code(wanted=False), kept_code():
        assert jax.config.jax_compilation_cache_dir is None
    without_cache.setenv("WHMC_CACHE", wanted)
    with kept_code():
        assert jax.config.jax_compilation_cache_dir is None


def test_a_cache_of_the_users_own_stays(without_cache, tmp_path):
    jax.config.update("jax_compilation_cache_dir", str(tmp_path))
    assert cache_folder() is None
    with kept_code():
        assert jax.config.jax_compilation_cache_dir == str(tmp_path)


@pytest.mark.ci
def test_code_is_found_again_by_another_process_and_the_users_own_is_not_kept(tmp_path):
    program = textwrap.dedent("""
        import logging, sys
        import jax, jax.numpy as jnp
        jax.config.update("jax_log_compiles", True)
        hits = []
        class Listen(logging.Handler):
            def emit(self, record):
                hits.append("Persistent compilation cache hit" in record.getMessage())
        logging.getLogger("jax").addHandler(Listen())
        logging.getLogger("jax").setLevel(logging.DEBUG)
        logging.getLogger("jax").propagate = False
        import whmc
        jax.jit(lambda x: jnp.sin(x) + 1)(1.0)
        def logdensity(x):  # long enough that compiling it takes more than a moment
            y = x
            for n in range(40):
                y = jnp.sin(y + n) + 0.1 * jnp.roll(y, 1)
            return -jnp.sum(jnp.cosh(x)) + 1e-3 * jnp.sum(y)
        whmc.find_modes(whmc.Target(logdensity, dim=3, starts=(-2.0, 2.0)), finder=whmc.MultiStart(8))
        jax.jit(lambda x: jnp.cos(x) + 2)(1.0)
        print(sum(hits))
    """)
    environment = {k: v for k, v in os.environ.items() if not k.startswith("JAX_")} | {"WHMC_CACHE": str(tmp_path)}
    seen = []
    for _ in range(2):
        done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, env=environment)
        assert done.returncode == 0, done.stderr
        seen.append((int(done.stdout), len([name for name in os.listdir(tmp_path) if name.endswith("-cache")])))
    (first_hits, first_kept), (second_hits, second_kept) = seen
    assert first_hits == 0 and first_kept >= 1
    assert second_hits >= 1 and second_kept == first_kept
