"""Which thread compiles the block, and how often: beside the search, or once for all groups of chains."""

import threading

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import whmc
from whmc._pytree import pytree
from whmc.kernels import block
from whmc.modes.layers.banded import Banded
from whmc.run import prepare
from whmc.run.ahead import CompileAhead
from whmc.run.plan import Plan
from whmc.run.progress import Progress
from whmc.run.regeneration import adaptive_blocks
from whmc.run.sample import begin
from whmc.storage.draws_file import DrawsInMemory
from whmc.warmup import warmup as warming

MAIN = "MainThread"


@pytest.fixture
def compiled(monkeypatch):
    """The thread of each compilation of the block, which is traced just before."""
    threads: list[str] = []

    class Fleet(block.Fleet):
        def __init__(self, *arguments) -> None:
            threads.append(threading.current_thread().name)
            super().__init__(*arguments)

    monkeypatch.setattr(block, "Fleet", Fleet)
    return threads


def pair():
    """Two Gaussians, in a function of its own: nothing is compiled for it yet."""
    return whmc.Target(
        lambda x: jnp.logaddexp(-0.5 * jnp.sum((x - 4) ** 2), -0.5 * jnp.sum((x + 4) ** 2)), dim=2, starts=(-9.0, 9.0)
    )


def test_the_block_is_compiled_beside_the_search_and_never_again(compiled):
    whmc.sample(pair(), draws=20, warmup=20, progress=False)
    assert len(compiled) == 1 and compiled != [MAIN]


def test_compiling_ahead_that_fails_is_told_and_changes_no_draw(compiled, monkeypatch):
    asked = {"draws": 20, "warmup": 0, "chains": 2, "kernel": whmc.Independence(), "progress": False}
    right = whmc.sample(pair(), **asked)

    def fail(self, library):
        raise RuntimeError("out of order")

    monkeypatch.setattr(CompileAhead, "_compile_block", fail)
    with pytest.warns(RuntimeWarning, match=r"compiling beside the search failed \(RuntimeError: out of order\)"):
        slower = whmc.sample(pair(), **asked)
    np.testing.assert_array_equal(slower.draws, right.draws)
    assert compiled[1:] == [MAIN]


def test_an_error_of_the_users_is_told_and_not_that_of_compiling_ahead():
    """Both compilations fail alike: one error, and no warning."""

    @pytree
    class Broken(whmc.LocalHMC):
        def num_noise(self, library):
            raise ZeroDivisionError("in the user's kernel")

    with pytest.raises(ZeroDivisionError, match="in the user's kernel"):
        whmc.sample(pair(), draws=20, chains=2, kernel=Broken(), progress=False)


def banded(width):
    """One chart with a band of so many couplings."""
    coupling = np.zeros((1, width, 3))
    return whmc.ModeLibrary.empty(3, diagonal=True).add(np.zeros(3), Banded.of(np.ones(3), coupling[0]))


def in_two_groups(adapt):
    plan = Plan(adapt=adapt, chains=32, warmup=45, draws=10)
    target = whmc.Target(lambda x: -0.5 * jnp.sum(x**2), dim=3, starts=(-3.0, 3.0))
    return begin(target, plan, modes=banded(1), kernel=whmc.Independence())


def test_a_wider_band_of_the_warmup_is_compiled_once_for_all_groups(compiled, monkeypatch):
    learn = warming.learn

    def learn_wider(*arguments):
        warmup, draws = learn(*arguments)
        (one,), wide = warmup.library.charts(), banded(2).charts()[0].scale
        library = warmup.library.with_charts([one.moved(one.location, wide)])
        return warming.adopt(warmup, library), draws

    monkeypatch.setattr(warming, "learn", learn_wider)
    with jax.enable_x64(True):
        target, state = in_two_groups("warmup")
        state = prepare.prepare(state, target, Progress(False))
        assert compiled == [MAIN, MAIN] and state.knowledge.rounds == 2
        trace, _ = prepare.mover_of(state, target).steps(state.chains, state.newest.kernel, state.newest.library, 5)
    assert trace.position.shape == (5, 32, 3) and compiled == [MAIN, MAIN]


def test_a_wider_band_of_a_mode_found_while_sampling_is_compiled_once_for_all_groups(compiled):
    def look(search, target, library, position, logdensity, key):
        grown = library.add(np.full(3, 9.0), Banded.of(np.ones(3), np.zeros((2, 3))), log_weight=-9.0)
        return search, grown if library.size == 1 else library

    with jax.enable_x64(True):
        target, state = in_two_groups("regeneration")
        state = prepare.prepare(state, target, Progress(False))
        capacity = state.newest.library.capacity
        *_, state = adaptive_blocks(state, target, DrawsInMemory(), Progress(False), look)
    version = state.moment.adaptation.version
    assert state.newest.library.size == 2 and state.newest.library.capacity == capacity
    assert state.newest.library.bend.coupling.shape[1] == 2 and version.max() > 0  # chains have gone over
    assert compiled == [MAIN, MAIN]
