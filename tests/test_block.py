"""A block of steps: how records are packed, and which chains step."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.stats import kstest

import whmc
from contracts import (
    CYCLE,
    KERNELS,
    only_these_at_every_change,
    problem,
    states_at,
    wrong_libraries,
)
from whmc._pytree import pytree
from whmc.kernels.base import StepInfo
from whmc.kernels.block import Trace, compute_block, draw_block, regenerated, run_block
from whmc.kernels.flight import state_packing
from whmc.kernels.packing import Packing
from whmc.kernels.random import Places, block_keys, block_noise
from whmc.kernels.settings import arrays
from whmc.run.chains import Mover

CHAINS, LENGTH = 6, 40
LIBRARY = wrong_libraries(problem("pair").library)["shifted"]


def record(seed=0):
    """One step of five chains, with leaves of several dtypes and shapes."""
    rng = np.random.default_rng(seed)
    return {
        "position": jnp.asarray(rng.normal(size=(5, 3))),
        "logdensity": jnp.asarray(rng.normal(size=5)),
        "matrix": jnp.asarray(rng.normal(size=(5, 2, 2))),
        "label": jnp.asarray(rng.integers(0, 9, 5)),
        "accepted": jnp.asarray(rng.uniform(size=5) < 0.5),
        "small": jnp.asarray(rng.integers(0, 9, (5, 2)), jnp.int32),
    }


def test_packed_records_come_back_as_they_were():
    rows = [record(seed) for seed in range(4)]
    packing = Packing.of(rows[0])
    packed = [packing.pack(row) for row in rows]
    assert [part.dtype for part in packed[0]] == packing.kinds() and len(packing.kinds()) == 4
    stacked = [jnp.stack(parts) for parts in zip(*packed, strict=True)]
    again = packing.unpack(stacked)
    for n, row in enumerate(rows):
        for name, values in row.items():
            assert again[name].dtype == values.dtype
            np.testing.assert_array_equal(again[name][n], values)


def test_empty_rows_have_room_for_a_record():
    row = record()
    packing = Packing.of(row)
    for room, part in zip(packing.empty(7, 5), packing.pack(row), strict=True):
        assert room.shape == (7, *part.shape) and room.dtype == part.dtype


def test_a_cycle_regenerates_where_any_of_its_moves_does():
    def info(*flags):
        zero = np.zeros(len(flags), int)
        return StepInfo(zero, zero, zero.astype(float), np.ones(len(flags), bool), np.array(flags), zero, zero)

    np.testing.assert_array_equal(regenerated(info(True, False)), [True, False])
    both = (info(True, False, False), info(False, False, True))
    np.testing.assert_array_equal(regenerated(both), [True, False, True])


@pytest.fixture(scope="module")
def block():
    """A function that runs a block of the default cycle on one target; it compiles once.

    The charts are wrong: with right ones every step is a regeneration.
    """
    case, library = problem("pair"), LIBRARY
    states = states_at(case.target, library, case.draw(np.random.default_rng(0), CHAINS)[0])

    def run(num_steps=LENGTH, active=None, *, update_waits=False, states=states, first=0):
        return run_block(
            arrays(CYCLE),
            case.target,
            library,
            states,
            jax.random.key(1),
            jnp.broadcast_to(jnp.asarray(first), CHAINS),
            num_steps,
            np.ones(CHAINS, bool) if active is None else np.asarray(active),
            update_waits,
            length=LENGTH,
        )

    run.start = states
    return run


def same(first, second):
    for one, other in zip(jax.tree.leaves(first), jax.tree.leaves(second), strict=True):
        np.testing.assert_array_equal(one, other)


def test_the_last_row_is_the_state(block):
    states, trace, made = block()
    np.testing.assert_array_equal(made, LENGTH)
    np.testing.assert_array_equal(trace.position[-1], states.position)
    np.testing.assert_array_equal(trace.logdensity[-1], states.logdensity)


def test_rows_past_those_that_were_made_are_not_written(block):
    _, whole, _ = block()
    states, part, made = block(7)
    np.testing.assert_array_equal(made, 7)
    same(jax.tree.map(lambda rows: rows[:7], whole), jax.tree.map(lambda rows: rows[:7], part))
    np.testing.assert_array_equal(part.position[7:], 0.0)
    np.testing.assert_array_equal(states.position, whole.position[6])


def test_a_chain_that_is_not_active_keeps_its_state_and_disturbs_no_other(block):
    _, whole, _ = block()
    active = np.array([True, False, True, True, False, True])
    states, trace, made = block(active=active)
    np.testing.assert_array_equal(made, np.where(active, LENGTH, 0))
    np.testing.assert_array_equal(states.position[~active], block.start.position[~active])
    same(jax.tree.map(lambda rows: rows[:, active], whole), jax.tree.map(lambda rows: rows[:, active], trace))


def test_a_chain_stops_at_its_regeneration_only_if_an_update_waits(block):
    whole_states, whole, _ = block()
    back = np.asarray(regenerated(whole.info))
    assert back.any(axis=0).all()  # every chain regenerates within the block
    expected = np.argmax(back, axis=0) + 1
    assert len(set(expected.tolist())) > 1  # not all at once
    states, trace, made = block(update_waits=True)
    np.testing.assert_array_equal(made, expected)
    for chain, num in enumerate(expected):
        np.testing.assert_array_equal(states.position[chain], whole.position[num - 1, chain])
        np.testing.assert_array_equal(trace.position[:num, chain], whole.position[:num, chain])
    # and it goes on from there as if it had not stopped
    later, _, more = block(LENGTH - int(expected.min()), made < LENGTH, states=states, first=made)
    for chain in np.flatnonzero(expected == expected.min()):
        assert more[chain] == LENGTH - expected.min()
        np.testing.assert_allclose(later.position[chain], whole_states.position[chain], rtol=1e-12)


def test_the_trace_is_what_its_class_says(block):
    _, trace, _ = block()
    assert isinstance(trace, Trace) and len(trace.info) == 3
    assert trace.position.shape == (LENGTH, CHAINS, 2) and trace.label.shape == (LENGTH, CHAINS)
    state = whmc.init(trace.position[5, 2], problem("pair").target, LIBRARY)
    np.testing.assert_allclose(trace.logdensity[5, 2], state.logdensity, rtol=1e-9)
    np.testing.assert_allclose(trace.log_mixture[5, 2], state.log_mixture, rtol=1e-9)


MARK = 0.73908513321516064
"""A number that stands in a density once, and nowhere else."""


def copies(kernel, library):
    """How often the target is written into the block of a kernel, before the compiler sees it."""
    target = whmc.Target(lambda x: -0.5 * jnp.sum((x - MARK) ** 2), dim=2)
    states = state_packing(library, CHAINS).pack(states_at(target, library, np.zeros((CHAINS, 2))))
    noise = draw_block(kernel, library, jax.random.key(0), np.zeros(CHAINS, int), LENGTH)
    flags = jnp.asarray(LENGTH), jnp.ones(CHAINS, bool), jnp.asarray(False)
    text = compute_block.lower(arrays(kernel), target, library, states, noise, *flags).as_text()
    return len(re.findall(r"dense<0\.7390851332", text))


@pytest.mark.parametrize("name", ["local", "wormhole", "throat", "independence", "cycle", "gibbs", "trajectory"])
def test_the_target_stands_in_the_block_once(name):
    """With its gradient; the Gibbs jump also weighs the charts by the density alone."""
    assert copies(KERNELS[name], LIBRARY) == (2 if name == "gibbs" else 1)


def test_a_kernel_that_is_no_flight_brings_its_own_copy():
    """And parts no flights: those before and after it share one."""
    mixed = whmc.Cycle((whmc.LocalHMC(), whmc.WormholeTrajectory(), whmc.Wormhole(), whmc.Independence()))
    assert copies(mixed, LIBRARY) == 2


def test_a_move_of_a_subclass_is_what_the_block_runs():
    """Not the flight that it inherits."""
    library = LIBRARY
    states = states_at(problem("pair").target, library, np.zeros((CHAINS, 2)))
    rest = (jax.random.key(1), np.zeros(CHAINS, int), 2, np.ones(CHAINS, bool), False)
    for kernel in (Still(), whmc.Cycle((Still(), Still()))):
        ends, trace, _ = run_block(arrays(kernel), problem("pair").target, library, states, *rest, length=2)
        np.testing.assert_array_equal(ends.position, 0.0)
        assert not any(map(np.any, jax.tree.leaves(trace.info)))


@pytree
class Still(whmc.LocalHMC):
    """Stays where it is."""

    def move(self, noise, state, target, library):
        del noise, target, library
        whole, flag = jnp.zeros((), int), jnp.zeros((), bool)
        return state, StepInfo(whole, whole, jnp.zeros(()), flag, flag, whole, whole)


def test_numbers_of_a_step_depend_on_chain_and_step_only():
    """Not on where a block begins, how long it is, or how many chains run beside."""
    key = jax.random.key(5)
    whole = block_noise(key, Places(np.array([0, 0, 0]), 20), 5, 3)
    part = block_noise(key, Places(np.array([7, 12]), 8), 5, 3)
    for chain, first in ((0, 7), (1, 12)):
        for name in ("uniform", "normal"):
            wanted = getattr(whole, name)[first : first + 8, chain]
            np.testing.assert_array_equal(getattr(part, name)[: len(wanted), chain], wanted)
    later = block_noise(key, Places(np.array([3]), 4, first_chain=2), 5, 3)
    np.testing.assert_array_equal(later.normal[:, 0], whole.normal[3:7, 2])
    keys = block_keys(key, Places(np.array([0, 0, 0]), 20), 1)
    np.testing.assert_array_equal(block_keys(key, Places(np.array([7, 12]), 8), 1)[:, 1], keys[12:20, 1])
    other = block_noise(jax.random.key(6), Places(np.array([0]), 20), 5, 3)
    words = np.concatenate([whole.uniform.ravel(), other.uniform.ravel()])
    assert len(np.unique(words)) == len(words)


def test_numbers_of_a_block_have_the_laws_that_they_should_have():
    noise = block_noise(jax.random.key(0), Places(np.zeros(8, int), 5000), 3, 3)
    assert noise.uniform.shape == noise.normal.shape == (5000, 8, 3)
    assert np.all((noise.uniform > 0) & (noise.uniform < 1))
    for column, law in ((noise.uniform.ravel(), "uniform"), (noise.normal.ravel(), "norm")):
        assert kstest(column, law).pvalue > 1e-4
    rows = np.concatenate([noise.uniform, noise.normal], axis=-1)[:, :4].reshape(5000, -1)
    apart = np.corrcoef(rows.T) - np.eye(rows.shape[1])
    assert np.abs(apart).max() < 5.5 / np.sqrt(5000)  # 276 pairs


@pytest.mark.parametrize("num", only_these_at_every_change([1, 16, 17, 40], [1, 17]))
def test_chains_in_groups_are_the_chains(num):
    """Groups have one size; copies that fill the last one neither move nor show."""
    case, library = problem("pair"), LIBRARY
    mover = Mover(case.target, jax.random.key(0))
    positions = case.draw(np.random.default_rng(1), num)[0]
    chains, _ = mover.start(library, positions)
    assert len({group.logdensity.shape for group in chains.groups}) == 1
    np.testing.assert_array_equal(chains.states.position, positions)
    kernel = arrays(whmc.Cycle((whmc.LocalHMC(), whmc.Independence())))
    block = mover.dispatch(chains, kernel, library, 5)
    assert block.trace.position.shape[1:] == (num, 2) and np.all(block.made == 5) and len(block.made) == num
    np.testing.assert_array_equal(block.trace.position[4], block.chains.states.position)
    # some chains only: the others stay where they were
    some = np.arange(num) % 2 == 0
    half = mover.dispatch(chains, kernel, library, 5, active=some)
    assert np.all(half.made == np.where(some, 5, 0)) and np.all(half.chains.made == half.made)
    np.testing.assert_array_equal(half.chains.states.position[~some], positions[~some])
    np.testing.assert_allclose(half.chains.states.position[some], block.chains.states.position[some], rtol=1e-12)
