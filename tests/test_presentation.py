"""The same numbers give the same draws, however they are computed."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import whmc
from contracts import CHARTS, CYCLE, KERNELS, numbers_of, problem, states_at, wrong_libraries
from whmc.kernels.block import run_block
from whmc.kernels.settings import arrays


def _run(kernel, case, positions, num_steps, *, length=8, first=0, chains=None):
    library = case.library
    states = states_at(case.target, library, positions)
    return _block(kernel, case.target, library, states, first, num_steps, length)


def _block(kernel, target, library, states, first, num_steps, length):
    chains = len(states.logdensity)
    states, trace, made = run_block(
        arrays(kernel),
        target,
        library,
        states,
        jax.random.key(3),
        jnp.full(chains, first),
        num_steps,
        np.ones(chains, bool),
        False,
        length=length,
    )
    np.testing.assert_array_equal(made, num_steps)
    return states, trace


ALL = whmc.Cycle(tuple(kernel for kernel in KERNELS.values() if kernel is not CYCLE))
"""Every kernel, one after the other: flights with one leg and with two, moves that are none, with keys of their own."""


def _agree(kernel, case, library, target=None, *, chains=3, num_steps=4):
    """A block of the kernel, against its moves made one by one from where the block was before each step: positions,
    and what every move tells of itself."""
    kernel, target = arrays(kernel), target or case.target
    states = states_at(target, library, case.draw(np.random.default_rng(0), chains)[0])
    _, trace = _block(kernel, target, library, states, 0, num_steps, num_steps)
    one = jax.jit(lambda noise, x: kernel.move(noise, whmc.init(x, target, library), target, library))
    for chain in range(chains):
        position = states.position[chain]
        for step in range(num_steps):
            state, info = one(numbers_of(kernel, library, jax.random.key(3), step, chain), position)
            position = trace.position[step, chain]
            np.testing.assert_allclose(state.position, position, rtol=1e-9, atol=1e-9)
            np.testing.assert_allclose(state.log_mixture, trace.log_mixture[step, chain], rtol=1e-9, atol=1e-9)
            recorded = jax.tree.map(lambda rows, t=step, c=chain: rows[t, c], trace.info)
            jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-6, atol=1e-6), info, recorded)
    return trace


def test_a_block_makes_the_moves_of_the_default_cycle():
    _agree(CYCLE, problem("rotated"), wrong_libraries(problem("rotated").library)["shifted"])


def _two_charts_of_a_mode(library):
    charts = wrong_libraries(library)["duplicated"].charts()
    return library.with_charts([*charts[:2], dataclasses.replace(charts[2], mode=0)], capacity=4)


KINDS = CHARTS | {"several of a mode": _two_charts_of_a_mode}


@pytest.mark.ci
@pytest.mark.parametrize("charts", KINDS)
def test_a_block_makes_the_moves_of_every_kernel_with_every_kind_of_chart(charts):
    case = problem("rotated")
    library = KINDS[charts](case.library)
    trace = _agree(ALL, case, library)
    accepted = [np.mean(info.accepted) for info in trace.info]
    assert np.mean(np.array(accepted) > 0) > 0.7, accepted  # a move that is always refused shows little


@pytest.mark.ci
@pytest.mark.parametrize("kernel", ["local", "throat", "trajectory", "blackjax"])
def test_a_block_makes_the_moves_of_a_kernel_that_is_alone(kernel):
    """It then has one stage, the two legs of one flight, or no flight at all: each is another way through the block."""
    case = problem("rotated")
    _agree(KERNELS[kernel], case, case.library)


@pytest.mark.ci
def test_a_block_makes_the_moves_of_a_target_without_scores():
    case = problem("rotated")
    walks = whmc.Cycle((whmc.LocalWalk(), whmc.LocalWalk(), whmc.Wormhole(), whmc.GibbsWormhole(), whmc.Independence()))
    _agree(walks, case, case.library, case.target.without_scores)


@pytest.mark.ci
def test_without_jit_the_same():
    case = problem("line")
    library = case.library
    state = whmc.init(jnp.asarray(case.means[0]), case.target, library)
    key = jax.random.key(0)
    quick, _ = jax.jit(CYCLE.step)(key, state, case.target, library)
    slow, _ = CYCLE.step(key, state, case.target, library)
    np.testing.assert_allclose(quick.position, slow.position, rtol=1e-9, atol=1e-9)


@pytest.mark.ci
def test_fewer_chains_and_other_cuts_give_the_same_draws():
    case = problem("three")
    positions = case.draw(np.random.default_rng(0), 6)[0]
    _, whole = _run(CYCLE, case, positions, 8)
    _, few = _run(CYCLE, case, positions[:2], 8)
    np.testing.assert_allclose(whole.position[:, :2], few.position, rtol=1e-9, atol=1e-9)
    states, first = _run(CYCLE, case, positions, 3)
    _, rest = _block(CYCLE, case.target, case.library, states, 3, 5, 8)
    np.testing.assert_array_equal(whole.position[:3], first.position[:3])
    np.testing.assert_array_equal(whole.position[3:], rest.position[:5])


@pytest.mark.ci
def test_jump_commutes_with_permuting_coordinates():
    case = problem("three")
    library, target = case.library, case.target
    order = np.random.default_rng(1).permutation(target.dim)

    def shuffle(rows):
        rows = rows[..., order]
        return rows[:, order, :] if rows.ndim == 3 else rows

    shuffled = dataclasses.replace(
        library,
        **{name: shuffle(getattr(library, name)) for name in ("location", "scale", "inverse_scale", "covariance")},
    )
    back = np.argsort(order)
    other = whmc.Target(lambda x: target.logdensity(x[back]), dim=target.dim)
    x = jnp.asarray(case.draw(np.random.default_rng(2), 1)[0][0])
    p = jax.random.normal(jax.random.key(0), x.shape)
    kernel = whmc.Wormhole(throat=4)
    i, k = jnp.asarray(0), jnp.asarray(2)
    one = kernel.jump(whmc.init(x, target, library), p, i, k, target, library)
    two = kernel.jump(whmc.init(x[order], other, shuffled), p[order], i, k, other, shuffled)
    np.testing.assert_allclose(one.proposal.position[order], two.proposal.position, atol=1e-8)
    np.testing.assert_allclose(one.log_ratio, two.log_ratio, atol=1e-7)


def test_same_seed_same_draws_other_seed_other_draws():
    case = problem("pair")
    one, two, other = (
        whmc.sample(case.target, modes=case.locations, seed=seed, chains=4, draws=30, warmup=40) for seed in (1, 1, 2)
    )
    np.testing.assert_array_equal(one.draws, two.draws)
    assert np.any(one.draws != other.draws)


def test_draws_do_not_depend_on_when_blocks_are_computed():
    """Many blocks in flight, many times: a counter that changes under a block would show here."""
    case = problem("pair")
    runs = [whmc.sample(case.target, modes=case.locations, seed=1, chains=4, draws=900, warmup=40) for _ in range(4)]
    for other in runs[1:]:
        np.testing.assert_array_equal(runs[0].draws, other.draws)
    short = whmc.sample(case.target, modes=case.locations, seed=1, chains=4, draws=130, warmup=40)
    np.testing.assert_array_equal(runs[0].draws[:, :130], short.draws)


@pytest.mark.ci
def test_adding_a_constant_to_the_log_density_changes_nothing():
    case = problem("pair")
    one = whmc.sample(case.target, modes=case.locations, seed=1, chains=4, draws=30, warmup=40)
    for shift in (1000.0, -1000.0):
        moved = whmc.Target(lambda x, shift=shift: case.target.logdensity(x) + shift, dim=2)
        two = whmc.sample(moved, modes=case.locations, seed=1, chains=4, draws=30, warmup=40)
        np.testing.assert_allclose(one.draws, two.draws, atol=1e-6)


@pytest.mark.ci
def test_blackjax_form_is_the_same_kernel():
    case = problem("rotated")
    library = case.library
    algorithm = whmc.blackjax.as_top_level_api(case.target, library, CYCLE)
    state = algorithm.init(jnp.asarray(case.means[0]))
    key = jax.random.key(5)
    one, info = jax.jit(algorithm.step)(key, state)
    two, _ = CYCLE.step(key, state, case.target, library)
    np.testing.assert_allclose(one.position, two.position, rtol=1e-9, atol=1e-9)
    assert len(info) == 3
