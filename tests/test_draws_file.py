"""Draws as records of fixed length: what is written is read again."""

import jax
import numpy as np
import pytest

import whmc
from whmc.kernels.base import StepInfo
from whmc.kernels.block import Trace
from whmc.kernels.stored import StoredKernel
from whmc.storage.draws_file import INFO_FIELDS, DrawsInMemory, DrawsOnDisk, Record
from whmc.storage.store import Store

STEPS, CHAINS, DIM = 50, 4, 3


def info(rng, shape):
    return StepInfo(
        label=rng.integers(0, 5, shape),
        proposed=rng.integers(0, 5, shape),
        log_ratio=np.where(rng.uniform(size=shape) < 0.1, -np.inf, rng.normal(size=shape)),
        accepted=rng.uniform(size=shape) < 0.5,
        regenerated=rng.uniform(size=shape) < 0.1,
        num_gradients=rng.integers(0, 99, shape),
        num_failed=rng.integers(0, 3, shape),
    )


def trace(num_moves, shape=(STEPS, CHAINS)):
    """num_moves: of a cycle, or 0 for a single kernel, whose info is not a tuple."""
    rng = np.random.default_rng(num_moves)
    infos = tuple(info(rng, shape) for _ in range(max(num_moves, 1)))
    return Trace(
        rng.normal(size=(*shape, DIM)),
        rng.normal(size=shape),
        np.where(rng.uniform(size=shape) < 0.1, -np.inf, rng.normal(size=shape)),
        rng.integers(0, 5, shape),
        infos if num_moves else infos[0],
    )


def same(first, second):
    assert jax.tree.structure(first) == jax.tree.structure(second)
    for one, other in zip(jax.tree.leaves(first), jax.tree.leaves(second), strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.fixture(params=[0, 1, 3], ids=["single kernel", "cycle of one", "cycle of three"])
def num_moves(request):
    return request.param


def test_a_record_holds_every_field_of_a_step():
    assert set(INFO_FIELDS) == set(StepInfo.__dataclass_fields__)


def test_the_record_knows_its_kernel(num_moves):
    move = whmc.LocalHMC()
    kernel = whmc.Cycle((move,) * num_moves) if num_moves else move
    assert Record.of(kernel, DIM) == Record(DIM, num_moves)
    assert Record.of(StoredKernel.of(kernel), DIM) == Record(DIM, num_moves)


@pytest.mark.parametrize("shape", [(STEPS, CHAINS), (STEPS,)])
def test_records_become_the_same_trace_again(num_moves, shape):
    before = trace(num_moves, shape)
    record = Record(DIM, num_moves)
    rows = record.rows(before)
    assert rows.shape == shape and rows.dtype == record.dtype
    same(record.trace(rows), before)


def test_what_is_read_from_the_file_is_what_was_written(num_moves, tmp_path, monkeypatch):
    """Also where the file is read in many pieces; positions stay in the file."""
    before = trace(num_moves)
    record = Record(DIM, num_moves)
    (tmp_path / "draws.bin").write_bytes(record.rows(before).tobytes())
    after = record.read(tmp_path / "draws.bin", STEPS, CHAINS)
    same(after, before)
    assert isinstance(after.position, np.memmap)
    monkeypatch.setattr("whmc._memmap.PIECE", 5 * record.dtype.itemsize)
    same(record.read(tmp_path / "draws.bin", STEPS, CHAINS), before)


def test_fewer_steps_than_the_file_holds_may_be_read(tmp_path):
    before = trace(3)
    record = Record(DIM, 3)
    (tmp_path / "draws.bin").write_bytes(record.rows(before).tobytes() + b"a record that was cut off")
    same(record.read(tmp_path / "draws.bin", 20, CHAINS), jax.tree.map(lambda rows: rows[:20], before))


def test_draws_in_memory_and_on_disk_are_read_alike(num_moves, tmp_path):
    """Whole blocks and parts of single chains: rows by their numbers, also across the parts that were written."""
    whole, part = trace(num_moves), trace(num_moves, (7,))
    with Store.create(tmp_path / "run") as store:
        logs = (DrawsInMemory(), DrawsOnDisk(store, Record(DIM, num_moves)))
        for log in logs:
            assert [log.append(whole), log.append(part), log.append(whole)] == [0, 200, 207]
        for start, num in ((0, 1), (199, 1), (195, 10), (200, 7), (206, 3), (150, 257)):
            same(*(log.read(start, num) for log in logs))
        same(logs[0].read(200, 7), part)
        for log in logs:
            same(log.steps(STEPS, CHAINS), whole)
