"""Kernels that are broken on purpose fail the tests that ours pass."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.special import kolmogorov

import whmc
from broken import (
    AcceptedOnly,
    AdaptingAtEveryStep,
    CutOff,
    Identity,
    Jump,
    LocalWithoutResponsibility,
    WithoutCouplings,
    WithoutVolume,
)
from contracts import NUM_DRAWS, SMALLEST, banded, bent, problem, tailed, without_slopes, wrong_libraries
from whmc.kernels import flight
from whmc.kernels.block import compute_block
from whmc.kernels.independence import Independence, log_regeneration
from whmc.kernels.local import LocalHMC
from whmc.kernels.random import draw_noise
from whmc.modes.mixture import NUM_UNIFORM, draw_mixture
from whmc.testing import invariance_test, reversibility_test, two_scale_pair


def test_identity_passes_and_does_not_move():
    report = invariance_test(Identity(), problem("pair"), num_draws=NUM_DRAWS)
    assert report.passed
    assert report.moved == 0


def test_jump_written_out_passes():
    """The copy that the faults are put into is itself right."""
    assert invariance_test(Jump(), problem("rotated"), num_steps=(1, 10), num_draws=NUM_DRAWS).passed
    assert reversibility_test(Jump(), problem("rotated"), num_draws=NUM_DRAWS).passed


@pytest.mark.parametrize(
    ("kernel", "target"),
    [
        (Jump(energy=0.0), "pair"),
        (Jump(jacobian=0.0), "two-scale"),
        (Jump(responsibility=0.0), "two-scale"),
        (LocalWithoutResponsibility(), "two-scale"),
        (AdaptingAtEveryStep(), "log-gamma"),
    ],
    ids=["energy gap dropped", "Jacobian dropped", "responsibilities dropped", "labels ignored", "adapting"],
)
def test_fault_is_found(kernel, target):
    report = invariance_test(kernel, problem(target), num_steps=(1, 10), num_draws=NUM_DRAWS)
    assert not report.passed, str(report)


@pytest.mark.ci
@pytest.mark.parametrize(
    ("kind", "throat"),
    [(bent, None), (bent, 0), (bent, 6), (tailed, None), (tailed, 0)],
    ids=["bent local", "bent jump", "bent throat", "tailed local", "tailed jump"],
)
def test_a_chart_without_its_volume_is_found(kind, throat):
    case, kernel = problem("rotated"), whmc.LocalHMC() if throat is None else whmc.Wormhole(throat=throat)
    library = kind(case.library)
    assert invariance_test(kernel, case, library=library, num_steps=(1, 10), num_draws=NUM_DRAWS).passed
    report = invariance_test(WithoutVolume(kernel), case, library=library, num_steps=(1, 10), num_draws=NUM_DRAWS)
    assert not report.passed, str(report)


@pytest.mark.ci
@pytest.mark.parametrize("kernel", [whmc.LocalHMC(), whmc.Wormhole()])
def test_a_band_that_is_not_undone_is_found(kernel):
    case = problem("log-gamma")
    library = banded(case.library)
    assert invariance_test(kernel, case, library=library, num_steps=(1, 10), num_draws=NUM_DRAWS).passed
    report = invariance_test(WithoutCouplings(kernel), case, library=library, num_steps=(1, 10), num_draws=NUM_DRAWS)
    assert not report.passed, str(report)


@pytest.mark.ci
def test_keeping_accepted_draws_only_is_found():
    case = problem("two-scale")
    library = wrong_libraries(case.library)["wrong weights"]
    assert invariance_test(Independence(), case, library=library, num_steps=(1, 10), num_draws=NUM_DRAWS).passed
    report = invariance_test(AcceptedOnly(), case, library=library, num_steps=(1, 10), num_draws=NUM_DRAWS)
    assert not report.passed, str(report)


@pytest.mark.ci
@pytest.mark.parametrize("kernel", [whmc.LocalHMC(), whmc.Wormhole()], ids=["local", "jump"])
def test_a_fault_of_the_block_alone_is_found(kernel, monkeypatch):
    """The block leaves the responsibilities out of the ratio; the kernel's own move is right."""

    class Faulty(type(kernel)):
        def finish(self, noise, state, leg, proposal, library):
            info = super().finish(noise, state, leg, proposal, library)
            left_out = state.log_responsibility(leg.other) - proposal.log_responsibility(leg.label)
            return dataclasses.replace(info, log_ratio=info.log_ratio + left_out)

    def finish_of(self, n, noise_of):
        (kernel,) = self.kernels
        faulty = Faulty(**{field.name: getattr(kernel, field.name) for field in dataclasses.fields(kernel)})
        return whole(dataclasses.replace(self, kernels=(faulty,)), n, noise_of)

    whole, case = flight.Fleet.finish_of, problem("two-scale")
    assert invariance_test(kernel, case, num_steps=(1, 10), num_draws=NUM_DRAWS).passed
    monkeypatch.setattr(flight.Fleet, "finish_of", finish_of)
    compute_block.clear_cache()
    report = invariance_test(kernel, case, num_steps=(1, 10), num_draws=NUM_DRAWS)
    compute_block.clear_cache()  # before another test meets the broken one
    assert not report.passed, str(report)


def test_a_density_that_is_cut_off_where_its_score_fails_is_found():
    case = without_slopes(problem(SMALLEST), CutOff)
    report = invariance_test(LocalHMC(), case, num_steps=(1, 10), num_draws=NUM_DRAWS)
    assert not report.passed, str(report)


def test_lopsided_flow_is_found():
    assert not reversibility_test(Jump(energy=0.0), problem("pair"), num_draws=NUM_DRAWS).passed


def _regenerated(kernel, library, case, num, log_chance):
    """States after an accepted independence move that the coin called a regeneration, from exact draws."""
    starts = jnp.asarray(case.draw(np.random.default_rng(0), num)[0])

    def one(key, position):
        state = whmc.init(position, case.target, library)
        new, info = kernel.step(key, state, case.target, library)
        u = draw_noise(jax.random.fold_in(key, 7), 1, 0).uniform[0]
        return new.position, new.log_ratio, info.accepted & (jnp.log(u) < log_chance(state, new))

    positions, _, flags = jax.vmap(one)(jax.random.split(jax.random.key(0), num), starts)
    return np.asarray(positions)[np.asarray(flags)]


def _law_of_q(library, case, log_threshold, num):
    """Direct draws of Q: theta ~ q kept with probability min(1, w/c)."""

    def one(key):
        drawn = draw_noise(key, NUM_UNIFORM + 1, library.dim + 1)
        state = whmc.init(draw_mixture(drawn.uniform, drawn.normal, library)[1], case.target, library)
        return state.position, jnp.log(drawn.uniform[-1]) < state.log_ratio - log_threshold

    positions, kept = jax.vmap(one)(jax.random.split(jax.random.key(1), num))
    return np.asarray(positions)[np.asarray(kept)]


@pytest.mark.ci
@pytest.mark.parametrize("right", [True, False])
def test_regeneration_threshold_is_on_the_scale_of_the_ratio(right):
    """With c on the scale of w the state after a regeneration has law Q; with c on the scale of pi it has not."""
    case = two_scale_pair(2, separation=4.0)
    library = wrong_libraries(case.library)["shifted"]
    log_threshold = jnp.asarray(-0.5)

    def chance(state, new):
        if right:
            return log_regeneration(state.log_ratio, new.log_ratio, log_threshold)
        return log_regeneration(state.logdensity, new.logdensity, log_threshold)

    seen = _regenerated(Independence(log_threshold), library, case, 200_000, chance)
    expected = _law_of_q(library, case, log_threshold, 400_000)
    assert len(seen) > 5_000
    p_values = []
    for i in range(2):
        order = np.sort(np.concatenate([seen[:, i], expected[:, i]]))
        gap = np.max(
            np.abs(
                np.searchsorted(np.sort(seen[:, i]), order) / len(seen)
                - np.searchsorted(np.sort(expected[:, i]), order) / len(expected)
            )
        )
        root = np.sqrt(len(seen) * len(expected) / (len(seen) + len(expected)))
        p_values.append(kolmogorov(gap * root))
    assert (min(p_values) > 1e-6) == right, p_values
