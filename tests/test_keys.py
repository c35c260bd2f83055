"""No random number is used twice: what runs derive, draw from and count, recorded while they run."""

import contextlib
import dataclasses
import itertools
import re
import threading
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import whmc
from whmc._pytree import pytree
from whmc.estimate import annealed_evidence
from whmc.kernels.random import draw_noise
from whmc.keys import Stream, child, stream_key
from whmc.run import advance, chains
from whmc.run.plan import Plan
from whmc.run.settings import settings_of
from whmc.search import find
from whmc.search.effort import Effort
from whmc.search.mode_search import REGION_DRAW, start_search
from whmc.search.peak import Peak
from whmc.search.representatives import fold_target

pytestmark = pytest.mark.xdist_group("keys")  # what derives them is compiled once, not in every worker

SOURCE = Path(__file__).parent.parent / "src" / "whmc"


# chains: Philox's numbers by key and counter


@pytree
class OwnNoise(whmc.LocalHMC):
    """A kernel that draws by itself, from a key for each step."""

    def num_noise(self, library):
        return None

    def draw(self, key, library):
        return draw_noise(key, *whmc.LocalHMC().num_noise(library))


class Philox(np.random.Philox):
    """Tells its thread of each key and counter that it is made with, and how many counters are used."""

    here = threading.local()

    def __init__(self, *, counter, key):
        super().__init__(counter=counter, key=key)
        place, purpose, *rest = counter.tolist()
        assert not any(rest)
        self.stream, self.place = (*key.tolist(), purpose), place

    def random_raw(self, size):
        self.here.made.append((self.stream, self.place, size))
        return super().random_raw(size)


@contextlib.contextmanager
def ranges_of(monkeypatch, first_chain=lambda number: number):
    """For each stream of numbers, the ranges of counters that steps of running chains used."""
    used, real, draw = {}, chains.Mover._move, chains.draw_block
    lock = threading.Lock()

    def moved(self, task, first, length, settings, number, group):
        Philox.here.made = []
        found = real(self, task, first, length, settings, number, group)
        steps = found.steps
        made = Philox.here.made
        assert len(made) % len(steps) == 0
        with lock:
            for n, (stream, place, num_words) in enumerate(made):
                each, left = divmod(num_words, length * 4)  # four words for a counter
                assert not left
                if steps[n % len(steps)]:
                    used.setdefault(stream, []).append((place, place + int(steps[n % len(steps)]) * each))
        return found

    def drawn(kernel, library, key, first_step, length, number=0):
        return draw(kernel, library, key, first_step, length, first_chain(number))

    with monkeypatch.context() as patch:
        patch.setattr(np.random, "Philox", Philox)
        patch.setattr(chains.Mover, "_move", moved)
        patch.setattr(chains, "draw_block", drawn)
        yield used


def num_overlaps(used):
    """Pairs of neighbouring ranges of one stream that have a counter in common."""
    num = 0
    for ranges in used.values():
        ordered = sorted(ranges)
        num += sum(later[0] < before[1] for before, later in itertools.pairwise(ordered))
    return num


TARGET = whmc.Target(lambda x: jnp.logaddexp(-0.5 * x @ x, -0.5 * (x - 8) @ (x - 8)), dim=2, starts=(-4.0, 12.0))
NUM = {"chains": 17, "warmup": 60, "draws": 130}
"""Two groups of nine chains, the last of which is a copy; rounds of 20 and 40 steps, two blocks of draws."""


def run_chains(seed):
    kernel = whmc.Cycle((whmc.LocalHMC(1), whmc.Wormhole(), OwnNoise(1)))
    whmc.sample(TARGET, modes=[[0.0, 0.0], [8.0, 8.0]], kernel=kernel, seed=seed, progress=False, **NUM)


def test_no_step_of_a_chain_takes_numbers_that_another_has_taken(monkeypatch):
    with ranges_of(monkeypatch) as used:
        for seed in (0, 1):
            run_chains(seed)
    assert len({root for root, _, _ in used}) == 2  # a key for each run
    assert {chain for _, chain, _ in used} == set(range(NUM["chains"]))
    assert {purpose for _, _, purpose in used} == {0, 3}  # of all moves together, and of the third, which draws itself
    assert len(used) == 2 * 17 * 2 and num_overlaps(used) == 0
    for ranges in used.values():  # without gaps from the first step to the last
        ordered = sorted(ranges)
        assert len(ordered) >= 4 and ordered[0][0] == 0
        assert all(before[1] == later[0] for before, later in itertools.pairwise(ordered))


def test_groups_that_count_their_chains_from_zero_would_share_numbers(monkeypatch):
    """The control."""
    with ranges_of(monkeypatch, first_chain=lambda number: 0) as used:
        run_chains(0)
    assert num_overlaps(used) == 8 * 2 * 4  # the chains of the second group, in two streams, in all four blocks


# the host: keys derived by SeedSequence, and what is drawn from them


class Recorded:
    """Keys of the host by how they were derived, and how often each was drawn from."""

    def __init__(self):
        self.derived, self.drawn = {}, {}

    @property
    def num_shared(self):
        """Keys that were derived in two ways."""
        return len(self.derived) - len(set(self.derived.values()))

    def draw(self, key):
        self.drawn[key] = self.drawn.get(key, 0) + 1

    @property
    def drawn_again(self):
        return [key for key, num in self.drawn.items() if num > 1]


@contextlib.contextmanager
def recorded(monkeypatch, path=lambda entropy, spawn_key: spawn_key):
    found, sequence, generator, split = Recorded(), np.random.SeedSequence, np.random.default_rng, jax.random.split

    class Sequence(sequence):
        def __init__(self, entropy, *, spawn_key):
            super().__init__(entropy, spawn_key=path(entropy, spawn_key))
            self.way = (tuple(np.atleast_1d(entropy).tolist()), spawn_key)

        def generate_state(self, num):
            state = super().generate_state(num)
            found.derived[self.way] = tuple(state.tolist())
            return state

    def default_rng(seed):
        if isinstance(seed, list):  # a key; else a number that is written in the code
            found.draw(tuple(seed))
        return generator(seed)

    def splitted(key, *arguments):
        if not isinstance(key, jax.core.Tracer):
            found.draw(tuple(np.asarray(jax.random.key_data(key)).tolist()))
        return split(key, *arguments)

    with monkeypatch.context() as patch:
        patch.setattr(np.random, "SeedSequence", Sequence)
        patch.setattr(np.random, "default_rng", default_rng)
        patch.setattr(jax.random, "split", splitted)
        yield found


def beside_a_wall(x):
    """Two Gaussians of unequal width, and NaN beyond a wall."""
    far = jnp.logaddexp(-0.5 * x @ x, -0.5 * (x - 8) @ (x - 8) / 0.3)
    return jnp.where(x[0] > 9.0, jnp.nan, far)


WALLED = whmc.Target(beside_a_wall, dim=2, starts=(-4.0, 12.0))


def run_all(seed):
    """A run with all that derives keys: search, restarts at refitted charts, evidence, and a density that fails."""
    finder = (whmc.MultiStart(16), whmc.Tempered(num_particles=16, num_starts=16))
    settings = {"adapt": "regeneration", "chains": 4, "warmup": 0, "draws": 230, "max_modes": 8, "progress": False}
    result = whmc.sample(WALLED, finder=finder, seed=seed, **settings)
    assert result.num_updates and result.failed_at is not None


def before_a_run(seed):
    """Folding, the check of a target, probes of a store."""
    target = whmc.Target(lambda x: -0.5 * x @ x, dim=2, starts=(-4.0, 4.0), symmetries=[whmc.Exchange([0], [1])])
    with jax.enable_x64(True):
        fold_target(target, seed)
        settings_of(target, Plan(), None, probed=True)
    whmc.Target(lambda x: -0.5 * x @ x, dim=2, starts=(-4.0, 4.0)).check(seed=seed)


def test_keys_of_the_host_are_all_different_and_drawn_from_once(monkeypatch):
    monkeypatch.setattr(advance, "needs_annealing", lambda evidence: True)
    for way in ("_inward", "_outward"):  # only the keys that they are given matter here
        nothing = jax.jit(lambda target, library, rows, *_: jnp.zeros(len(rows)))
        monkeypatch.setattr(annealed_evidence, way, nothing)
    with recorded(monkeypatch) as found:
        run_all(0)
        before_a_run(0)
        before_a_run(1)
    streams = {way[1][0] for way in found.derived if len(way[0]) == 1}
    assert streams == set(Stream)
    assert len(found.derived) > 50 and found.num_shared == 0
    region = found.derived[found.derived[(0,), (int(Stream.SEARCH),)], (REGION_DRAW,)]
    probes = found.derived[(0,), (int(Stream.PROBE),)]
    # alike for all seeds: how the start region is measured, and where a store compares a target with itself
    assert set(found.drawn_again) == {region, probes}
    parents = {way[0] for way in found.derived}
    assert len(found.drawn) > 30 and not parents & set(found.drawn)  # what has children is not drawn from


def test_streams_without_their_number_would_share_keys(monkeypatch):
    """The control: every stream begins with the key of the seed."""
    with recorded(monkeypatch, lambda entropy, spawn_key: () if np.ndim(entropy) == 0 else spawn_key) as found:
        before_a_run(0)
    assert found.num_shared > 2 and len(found.drawn_again) > 0


def test_a_second_population_has_keys_of_its_own(monkeypatch):
    """Where a small population finds something, a whole one follows, and draws around the peaks are made again."""
    keys, peak = [], Peak(np.zeros(2), 0.0, np.eye(2))

    def run_finder(state, target, finder, key, *_, **__):
        keys.append(tuple(np.asarray(jax.random.key_data(key)).tolist()))
        return dataclasses.replace(state, peaks=(*state.peaks, peak))

    monkeypatch.setattr(find, "run_finder", run_finder)
    with jax.enable_x64(True):
        state = start_search(TARGET, 8)
        even = dataclasses.replace(state, num_independent=100, hits=np.array([100]), independent_hits=np.array([100]))
        find._with_finder(even, TARGET, whmc.Tempered(), stream_key(0, Stream.SEARCH), Effort(frugal=1e3), print)
    assert len(keys) == 4 == len(set(keys))


def test_keys_that_the_host_derives_are_different():
    """Three levels of children of every stream: finders, batches and uses of a search have as many."""
    level = [stream_key(seed, stream) for seed in (0, 1) for stream in Stream]
    found = list(level)
    for _ in range(3):
        level = [child(key, n) for key in level for n in range(4)]
        found += level
    data = {tuple(np.asarray(jax.random.key_data(key)).tolist()) for key in found}
    assert len(data) == len(found) > 1000


def test_splitting_gives_the_same_keys_as_folding_in():
    """Why a key must not be both split and folded."""
    key = jax.random.key(3)
    folded = jax.vmap(lambda n: jax.random.fold_in(key, n))(jnp.arange(5))
    split = jax.random.key_data(jax.random.split(key, 5))
    np.testing.assert_array_equal(split, jax.random.key_data(folded))


def test_only_one_module_makes_keys_from_seeds():
    rooms = ("target", "modes", "search", "kernels", "warmup", "estimate", "run")
    makers = [
        str(path.relative_to(SOURCE))
        for room in rooms
        for path in (SOURCE / room).glob("*.py")
        if re.search(r"random\.(key|PRNGKey)\(", path.read_text())
    ]
    assert makers == []
