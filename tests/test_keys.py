"""No random number is used twice: all keys that a run derives from its seed are different."""

import re
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from whmc.keys import Stream, child, stream_key

pytestmark = pytest.mark.xdist_group("keys")  # what derives them is compiled once, not in every worker

SOURCE = Path(__file__).parent.parent / "src" / "whmc"


def children(keys, num):
    """fold_in(key, 0), ..., fold_in(key, num - 1) of every key."""
    return jax.vmap(lambda key: jax.vmap(lambda n: jax.random.fold_in(key, n))(jnp.arange(num)))(keys).ravel()


# how each stream branches, with numbers as in a run: every level of a path is a level of keys
PATHS = {
    Stream.CHAINS: (32, 200, 4),  # chain, step, move and what the moves of a cycle share
    Stream.SEARCH: (4, 32, 3),  # finder and what follows the last, batch, use
    Stream.ONGOING_SEARCH: (17, 2),  # look, use
    Stream.FOLDING: (3, 3),
    Stream.SYMMETRY_CHECK: (3, 3),
    Stream.RESTART: (50, 3, 32, 8),  # period, version, chain, try
    Stream.EVIDENCE: (2, 1024, 3),  # direction, path, use
    Stream.PROBE: (8,),
    Stream.CHECK: (8,),
    Stream.FAILURE: (1024,),
}


def all_keys(root_of):
    """The data of all keys of a run, as whole numbers; root_of: the root of each stream."""
    found = []
    for stream, branches in PATHS.items():
        keys = root_of(stream)[None]
        found.append(keys)
        for num in branches:
            keys = children(keys, num)
            found.append(keys)
    pairs = np.concatenate([np.asarray(jax.random.key_data(keys)) for keys in found]).astype(np.uint64)
    return pairs[:, 0] << np.uint64(32) | pairs[:, 1]


def num_reused(keys):
    return len(keys) - len(np.unique(keys))


def test_every_stream_has_its_paths():
    assert set(PATHS) == set(Stream)


def test_all_keys_of_a_run_are_different():
    keys = np.concatenate([all_keys(lambda stream, seed=seed: stream_key(seed, stream)) for seed in (0, 1)])
    assert len(keys) > 100_000
    assert num_reused(keys) == 0


def test_keys_that_the_host_derives_are_different():
    """Three levels of children of every stream: finders, batches and uses of a search have as many."""
    level = [stream_key(seed, stream) for seed in (0, 1) for stream in Stream]
    found = list(level)
    for _ in range(3):
        level = [child(key, n) for key in level for n in range(4)]
        found += level
    data = {tuple(np.asarray(jax.random.key_data(key)).tolist()) for key in found}
    assert len(data) == len(found) > 1000


def test_chains_that_start_from_the_seed_itself_would_share_keys_with_the_streams():
    """The control: fold_in(key(seed), 1) is a stream's root and the key of chain 1."""
    seed = jax.random.key(0)
    keys = all_keys(lambda stream: seed if stream == Stream.CHAINS else jax.random.fold_in(seed, int(stream)))
    assert num_reused(keys) > 100


def test_splitting_gives_the_same_keys_as_folding_in():
    """Why a key must not be both split and folded."""
    key = jax.random.key(3)
    split = jax.random.key_data(jax.random.split(key, 5))
    np.testing.assert_array_equal(split, jax.random.key_data(children(key[None], 5)))


def test_only_one_module_makes_keys_from_seeds():
    rooms = ("target", "modes", "search", "kernels", "warmup", "estimate", "run")
    makers = [
        str(path.relative_to(SOURCE))
        for room in rooms
        for path in (SOURCE / room).glob("*.py")
        if re.search(r"random\.(key|PRNGKey)\(", path.read_text())
    ]
    assert makers == []
