"""The same numbers give the same draws, however they are computed."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import whmc
from contracts import CYCLE, KERNELS, numbers_of, only_these_at_every_change, problem, states_at
from whmc.kernels.block import run_block
from whmc.kernels.settings import arrays


def _run(kernel, case, positions, num_steps, *, length=8, first=0, chains=None):
    library = case.library
    states = states_at(case.target, library, positions)
    return _block(kernel, case, library, states, first, num_steps, length)


def _block(kernel, case, library, states, first, num_steps, length):
    chains = len(states.logdensity)
    states, trace, made = run_block(
        arrays(kernel),
        case.target,
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


@pytest.mark.parametrize("kernel", only_these_at_every_change(KERNELS, ["cycle"]))
def test_block_and_loop_agree(kernel):
    chosen = arrays(KERNELS[kernel])
    case = problem("rotated")
    positions = case.draw(np.random.default_rng(0), 5)[0]
    _, trace = _run(chosen, case, positions, 6)
    library, one = case.library, jax.jit(type(chosen).move)
    for chain in range(5):
        state = whmc.init(jnp.asarray(positions[chain]), case.target, library)
        for step in range(6):
            noise = numbers_of(chosen, library, jax.random.key(3), step, chain)
            state, _ = one(chosen, noise, state, case.target, library)
            np.testing.assert_allclose(state.position, trace.position[step, chain], rtol=1e-9, atol=1e-9)


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
    _, rest = _block(CYCLE, case, case.library, states, 3, 5, 8)
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
