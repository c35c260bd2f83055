"""What JAX has compiled for whmc is kept in the user's cache folder, so that a second run starts at once.

JAX's own cache does it. It is switched on for the length of a call of ours, and the user's settings are then as they
were. A user who has set JAX's cache keeps that one; `WHMC_CACHE=off` keeps nothing; `WHMC_CACHE=folder` names another.
"""

import contextlib
import os
import threading
from collections.abc import Iterator
from pathlib import Path

import jax
from jax.experimental.compilation_cache import compilation_cache as jax_cache

LEAST_SECONDS = 0.1
"""What compiles in less is compiled again."""

_lock = threading.Lock()
_inside = 0
_before: dict[str, object] = {}


def cache_folder() -> Path | None:
    """Where compiled code is kept; None: nowhere, or JAX knows where."""
    wanted = os.environ.get("WHMC_CACHE", "")
    if wanted.lower() in ("off", "0", "no") or getattr(jax.config, "jax_compilation_cache_dir", None):
        return None
    if wanted:
        return Path(wanted)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "whmc" / "jax"


@contextlib.contextmanager
def kept_code(wanted: bool = True) -> Iterator[None]:
    """Inside of it, compiled code is kept and found again, if wanted.

    May be nested, and entered by several threads; then the first decides.
    """
    global _inside
    with _lock:
        _inside += 1
        if _inside == 1 and wanted:
            _switch_on()
    try:
        yield
    finally:
        with _lock:
            _inside -= 1
            if _inside == 0:
                _switch_back()


def _switch_on() -> None:
    folder = cache_folder()
    if folder is None:
        return
    settings = {
        "jax_compilation_cache_dir": str(folder),
        "jax_persistent_cache_min_compile_time_secs": LEAST_SECONDS,
        "jax_persistent_cache_min_entry_size_bytes": -1,
    }
    _before.update({name: getattr(jax.config, name) for name in settings})
    for name, value in settings.items():
        jax.config.update(name, value)
    jax_cache.reset_cache()  # else JAX remembers that there was none


def _switch_back() -> None:
    if not _before:
        return
    for name, value in _before.items():
        jax.config.update(name, value)
    _before.clear()
    jax_cache.reset_cache()
