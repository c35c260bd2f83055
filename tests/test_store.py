"""Stores: stopped anywhere, a run goes on as if it had not been; damage is refused or repaired; nothing is lost."""

import collections
import dataclasses
import errno
import gc
import hashlib
import itertools
import json
import os
import pickle
import shutil
import signal
import subprocess
import sys
import textwrap
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import whmc
from contracts import only_these_at_every_change
from whmc._pytree import pytree
from whmc.cli.as_json import as_json
from whmc.estimate.modes import BY_CHARTS
from whmc.report import write_report
from whmc.run.chains import Mover
from whmc.run.checkpoint import Checkpoints, read_state
from whmc.run.interrupt import Interrupt
from whmc.run.state import Stage
from whmc.storage import store as storing
from whmc.storage.serialize import SCHEMA, Damaged, NotPlain, decode, encode, pack, unpack
from whmc.storage.store import SYNC, Store, StoreError
from whmc.testing import gaussian_mixture

pytestmark = pytest.mark.xdist_group("store")  # its runs are made once, not in every worker


def logdensity(x):
    near, far = -0.5 * jnp.sum((x - 3) ** 2), -jnp.sum((x + 3) ** 2)
    return jnp.logaddexp(near + jnp.log(0.7), far + jnp.log(0.3))


def make_target(**changes):
    return whmc.Target(**{"logdensity": logdensity, "dim": 2, "starts": (-6.0, 6.0)} | changes)


TARGET = make_target()
SETTINGS = {
    "seed": 3,
    "chains": 4,
    "draws": 250,
    "warmup": 60,
    "finder": whmc.MultiStart(32),
}  # so few that the search goes on


def same(first, second):
    """All that a run leaves behind, bit by bit."""
    assert np.array_equal(first.draws, second.draws)
    assert np.array_equal(first.chart, second.chart)
    ours, theirs = jax.tree.leaves(dict(first.steps)), jax.tree.leaves(dict(second.steps))
    assert all(np.array_equal(a, b) for a, b in zip(ours, theirs, strict=True))
    assert np.array_equal(first.library.location, second.library.location)
    assert np.array_equal(first.log_evidence, second.log_evidence, equal_nan=True)
    assert np.array_equal(first.modes.weight, second.modes.weight)
    assert np.array_equal(first.modes.location, second.modes.location)
    # a run that was finished, and then went on, has told its modes twice
    ledgers = [dataclasses.replace(one.gradients, modes=0) for one in (first, second)]
    assert first.num_failed == second.num_failed and ledgers[0] == ledgers[1]
    return True


@pytest.fixture(scope="module", params=only_these_at_every_change(["warmup", "regeneration"], ["warmup"]))
def adapt(request):
    return request.param


@pytest.fixture(scope="module")
def whole(adapt):
    return whmc.sample(TARGET, adapt=adapt, **SETTINGS)


@pytest.fixture(scope="module")
def stored(adapt, tmp_path_factory):
    folder = tmp_path_factory.mktemp("stored") / "run"
    whmc.sample(TARGET, adapt=adapt, store=folder, **SETTINGS)
    return folder


def test_a_stored_run_is_the_run(whole, stored):
    loaded = whmc.load(stored)
    assert same(loaded, whole)
    assert isinstance(loaded.draws.base, np.memmap) or whole.num_updates  # draws are on the disk until asked for
    assert same(whmc.resume(stored, TARGET), whole)
    assert loaded.settings["plan"]["seed"] == 3 and "jax" in loaded.settings["versions"]


class Killed(BaseException):
    """As good as SIGKILL for the files: nothing after it is written."""


class Recording:
    """What one run did to its store, so that it can be done again without the run.

    steps: the calls in their order, each with what the store was given; what it packed is in `packed`. stages: of the
    state that was saved by each checkpoint.
    """

    def __init__(self):
        self.steps, self.packed, self.stages = [], [], []

    @property
    def checkpoints(self):
        """The contents of its checkpoints."""
        names = [name for name, *_ in self.steps if name in ("write_setup", "checkpoint")]
        return [content for content, name in zip(self.packed, names, strict=True) if name == "checkpoint"]

    def replay(self, folder, *, at=0, die=None):
        """All of it in a new folder; at the operation `at` on a file, before, in the middle of or after it: `die`.

        Returns for each operation how many checkpoints were complete before it.
        """
        operations, contents = Operations(at, die), iter(self.packed)
        with pytest.MonkeyPatch.context() as patch:
            operations.install(patch)
            patch.setattr(storing, "pack", lambda tree: next(contents))
            store = Store.create(folder)
            for name, given, options in self.steps:
                getattr(store, name)(*given, **options)
                operations.done += name == "checkpoint"
            store.close()
        return operations.seen


class Operations:
    """Counts syncs, renames, deletions and writes; dies at one of them."""

    def __init__(self, at, die):
        self.at, self.die, self.done, self.seen = at, die, 0, []

    def begins(self):
        """Before an operation; whether to die in it."""
        self.seen.append(self.done)
        return len(self.seen) == self.at

    def install(self, patch):
        for name in ("fsync", "replace", "unlink"):
            patch.setattr(os, name, self.wrapped(getattr(os, name)))
        patch.setattr(Store, "append", self.half_appended(Store.append))
        patch.setattr(Store, "write", self.half_written(Store.write))

    def wrapped(self, real):
        """Dies before it, or after it where its number is even."""

        def call(*arguments):
            now = self.begins()
            if now and self.at % 2:
                self.die()
            found = real(*arguments)
            if now:
                self.die()
            return found

        return call

    def half_appended(self, real):
        """Half of the rows are written."""

        def append(store, rows):
            if self.begins():
                content = rows.tobytes()
                store.draws.write(content[: len(content) // 2])
                store.draws.flush()
                self.die()
            real(store, rows)

        return append

    def half_written(self, real):
        """Half of the new file is written."""

        def write(store, name, content, **options):
            if self.begins():
                store.path(f"{name}.new").write_bytes(content[: len(content) // 2])
                self.die()
            real(store, name, content, **options)

        return write


@pytest.fixture(scope="module")
def recording(adapt, tmp_path_factory):
    """Of one run."""
    found = Recording()

    def taken(name, real):
        def call(store, *given, **options):
            kept = [np.array(one) if isinstance(one, np.ndarray) else {} for one in given]
            found.steps.append((name, list(given) if name == "write_settings" else kept, options))
            return real(store, *given, **options)

        return call

    def packed(tree):
        found.packed.append(pack(tree))
        return found.packed[-1]

    def saved(checkpoints, state, **options):
        found.stages.append(state.stage)
        save(checkpoints, state, **options)

    save = Checkpoints.save
    with pytest.MonkeyPatch.context() as patch:
        for name in ("write_settings", "append", "write_setup", "checkpoint"):
            patch.setattr(Store, name, taken(name, getattr(Store, name)))
        patch.setattr(storing, "pack", packed)
        patch.setattr(Checkpoints, "save", saved)
        whmc.sample(TARGET, adapt=adapt, store=tmp_path_factory.mktemp("recorded") / "run", **SETTINGS)
    return found


REPLAYS = """
import os, pickle, signal, sys
sys.path.insert(0, {here!r})
from pathlib import Path
from test_store import Recording
recording, folder = pickle.loads(Path(sys.argv[1]).read_bytes()), Path(sys.argv[2])
for at in range(1, int(sys.argv[3]) + 1):
    if os.fork() == 0:
        recording.replay(folder / str(at), at=at, die=lambda: os.kill(os.getpid(), signal.SIGKILL))
        os._exit(0)
    if os.WTERMSIG(os.wait()[1]) != signal.SIGKILL:
        sys.exit(f"operation {{at}} was not reached")
"""


@pytest.mark.ci
def test_killed_at_any_operation_on_a_file_the_run_is_where_it_was(adapt, recording, whole, tmp_path):
    """SIGKILL before, in the middle of or after each sync, rename, deletion and write of a run, in every stage of it.

    What the run does to its store is recorded once, and done again up to each of these operations. What is then on the
    disk is the last checkpoint or the one that was under way; from each of them the run is resumed once.
    """
    saved = recording.checkpoints
    done = recording.replay(tmp_path / "count")
    (tmp_path / "recording").write_bytes(pickle.dumps(recording))
    code = textwrap.dedent(REPLAYS.format(here=os.path.dirname(__file__)))
    (tmp_path / "runs").mkdir()
    arguments = [str(tmp_path / "recording"), str(tmp_path / "runs"), str(len(done))]
    subprocess.run([sys.executable, "-c", code, *arguments], check=True)
    killed, resumed = collections.Counter(), set()
    for at, num in enumerate(done, start=1):
        folder = tmp_path / "runs" / str(at)
        killed[recording.stages[min(num, len(saved) - 1)]] += 1
        if not (folder / "settings.json").exists():  # before it was a run: the same folder can be used again
            assert num <= 1
            Store.create(folder).close()
            continue
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that an older checkpoint was used
            store = Store.open(folder)
            store.read()
        content = store.path(store.sound).read_bytes()
        assert content in saved[max(num - 1, 0) : num + 1], at
        number = saved.index(content)
        if number not in resumed:
            resumed.add(number)
            assert same(whmc.resume(folder, TARGET), whole), at
    assert resumed == set(map(saved.index, saved)) and len(resumed) > 6
    assert set(killed) == set(Stage) and min(killed.values()) >= 4


def test_without_power_the_last_checkpoint_on_the_disk_is_left(monkeypatch, tmp_path):
    """What no sync has forced to the disk may be gone: the newest checkpoint empty, the end of the draws cut off."""
    for num in range(1, 2 * SYNC + 4):
        synced = []
        monkeypatch.setattr(os, "fsync", synced.append)
        store = Store.create(tmp_path / f"{num}")
        store.write_setup({})
        for n in range(num):
            synced.clear()
            store.append(np.arange(3.0) + n)
            store.checkpoint({"n": n})
            if len(synced) == 3:  # draws, checkpoint, folder
                left, num_bytes = n, store.num_bytes
            assert n - left < SYNC
        store.close()
        if left < num - 1:
            store.path("checkpoint.whmc").write_bytes(b"")
        os.truncate(store.path("draws.bin"), num_bytes)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that an older checkpoint was used
            assert Store(store.folder).read()[0]["n"] == left


def test_more_draws_continue_the_chains(adapt, stored, tmp_path):
    folder = shutil.copytree(stored, tmp_path / "more")
    more = whmc.resume(folder, TARGET, draws=400)
    assert more.draws.shape == (4, 400, 2)
    assert np.array_equal(more.draws[:, :250], whmc.load(stored).draws)
    if adapt == "warmup":
        assert same(more, whmc.sample(TARGET, **{**SETTINGS, "draws": 400}))
    with pytest.raises(ValueError, match="draws is 100, but the run has"):
        whmc.resume(folder, TARGET, draws=100)


def damage(path, rng):
    """A bit turned over, or the end cut off."""
    content = bytearray(path.read_bytes())
    if rng.random() < 0.5:
        content = content[: rng.integers(len(content))]
    else:
        content[rng.integers(len(content))] ^= 1 << rng.integers(8)
    path.write_bytes(content)


def outcome(folder, whole, *, resumed):
    """Whether the store could be used, and the error if not; draws that are given are right."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that an older checkpoint was used
        try:
            loaded = whmc.load(folder)
        except StoreError as error:
            return False, str(error)
        assert np.array_equal(loaded.draws, whole.draws[:, : loaded.draws.shape[1]])
        if resumed:
            assert same(whmc.resume(folder, TARGET), whole)
    return True, ""


def test_200_damaged_files_are_refused_or_repaired(stored, whole, tmp_path):
    """Refused with one clear error, or repaired from the checkpoint before: then resuming ends in the same draws."""
    rng = np.random.default_rng(0)
    names = sorted(path.name for path in stored.iterdir() if path.name != "lock")
    assert len(names) >= 5
    refused = repaired = 0
    for trial in range(200):
        folder = shutil.copytree(stored, tmp_path / "damaged")
        before = (folder / names[trial % len(names)]).read_bytes()
        damage(folder / names[trial % len(names)], rng)
        kept, message = outcome(folder, whole, resumed=trial < 40)
        repaired, refused = repaired + kept, refused + (not kept)
        if not kept:
            assert str(folder) in message and len(message) < 600, message
            assert (folder / names[trial % len(names)]).read_bytes() != before
        shutil.rmtree(folder)
    assert refused > 20 and repaired > 20


def test_a_warning_names_what_was_damaged(stored, tmp_path):
    folder = shutil.copytree(stored, tmp_path / "run")
    (folder / "checkpoint.whmc").write_bytes(b"whmc 1 nothing")
    with pytest.warns(UserWarning, match=r"checkpoint.whmc: .* the checkpoint before it was used"):
        whmc.resume(folder, TARGET)
    whmc.resume(folder, TARGET)  # mended


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"logdensity": lambda x: logdensity(x) - 0.001}, "the log density is"),
        ({"logdensity": lambda x: logdensity(x.astype(jnp.float32)).astype(float)}, "the log density is"),
        ({"dim": 3}, "dimension 2"),
        ({"names": ("a", "b")}, "parameters are"),
    ],
)
def test_a_changed_target_is_refused(stored, changes, text):
    with pytest.raises(StoreError, match=text):
        whmc.resume(stored, make_target(**changes))


def stopped_in_the_warm_up(folder, monkeypatch):
    """A run that was killed after its second checkpoint of the warm-up, while its search still goes on."""
    real, calls = Store.checkpoint, itertools.count()

    def checkpoint(store, tree, **options):
        real(store, tree, **options)
        if next(calls) == 3:
            raise Killed

    monkeypatch.setattr(Store, "checkpoint", checkpoint)
    with pytest.raises(Killed):
        whmc.sample(TARGET, store=folder, **SETTINGS)
    monkeypatch.undo()


def test_a_stopped_run_says_that_charts_alone_tell_its_modes(tmp_path, monkeypatch):
    """Two Gaussians three standard deviations apart: two charts, and one mode once ascents are made."""
    case = gaussian_mixture([0.6, 0.4], [[-1.5, 0.0], [1.5, 0.0]], np.tile(np.eye(2), (2, 1, 1)))
    real = Store.checkpoint

    def checkpoint(store, tree, **options):
        real(store, tree, **options)
        if tree["moment"].num_drawn:
            raise Killed

    monkeypatch.setattr(Store, "checkpoint", checkpoint)
    settings = {"seed": 0, "chains": 4, "draws": 150, "warmup": 100, "progress": False}
    with pytest.raises(Killed):
        whmc.sample(case.target, modes=case.locations, store=tmp_path / "run", **settings)
    monkeypatch.undo()
    for stopped in (part := whmc.load(tmp_path / "run"), whmc.load(part.save(tmp_path / "part.nc"))):
        assert stopped.modes.notes == (BY_CHARTS,) and BY_CHARTS in stopped.summary()
        assert len(stopped.modes) == 2 and np.all(stopped.modes.peaks == -1) and np.all(np.isnan(stopped.modes.pass_))
        rows = str(stopped.modes).splitlines()[1:3]
        assert all(row.split()[-2:] == ["?", "?"] for row in rows)
        assert stopped._repr_html_().count("<td>?</td><td>?</td>") == 2
        write_report(stopped, tmp_path / "report.html")
        page = (tmp_path / "report.html").read_text()
        assert page.count("<td>?</td><td>?</td>") == 2 and BY_CHARTS in page
        told = json.loads(json.dumps(as_json(stopped), allow_nan=False))
        assert told["notes"] == [BY_CHARTS] and [mode["peaks"] for mode in told["modes"]] == [None, None]
    finished = whmc.resume(tmp_path / "run", case.target)
    assert len(finished.modes) == 1 and as_json(finished)["modes"][0]["peaks"] == 2
    assert BY_CHARTS not in finished.summary() and "?" not in str(finished.modes)


def test_the_start_region_counts_while_the_run_still_searches(tmp_path, stored, monkeypatch):
    """Another region would send the search elsewhere; when nothing is searched any more it does not matter."""
    elsewhere = make_target(starts=(-5.0, 6.0))
    stopped_in_the_warm_up(tmp_path / "run", monkeypatch)
    with pytest.raises(StoreError, match="the start region is not the one of the run"):
        whmc.resume(tmp_path / "run", elsewhere)
    assert same(whmc.resume(stored, elsewhere), whmc.load(stored))


def test_a_complete_run_is_resumed_without_compiling(stored, monkeypatch):
    before = whmc.load(stored)

    def compiled(*_):
        raise AssertionError("the block was compiled")

    monkeypatch.setattr(Mover, "compile", compiled)
    assert same(whmc.resume(stored, TARGET), before)


def test_draws_that_have_lost_their_settings_are_not_emptied(stored, tmp_path):
    folder = shutil.copytree(stored, tmp_path / "run")
    (folder / "settings.json").unlink()
    size = (folder / "draws.bin").stat().st_size
    with pytest.raises(StoreError, match=r"lost its settings\.json"):
        whmc.sample(TARGET, store=folder, **SETTINGS)
    assert (folder / "draws.bin").stat().st_size == size > 0 and (folder / "checkpoint.whmc").exists()


def test_a_store_of_another_schema_is_refused(stored, tmp_path):
    """As written by version 0.1.0: the number is named, and what to do."""
    folder = shutil.copytree(stored, tmp_path / "run")
    settings = json.loads((folder / "settings.json").read_text())
    del settings["sha256"]
    settings["schema"] = 1
    digest = hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()
    (folder / "settings.json").write_text(json.dumps({**settings, "sha256": digest}))
    for use in (whmc.load, lambda folder: whmc.resume(folder, TARGET)):
        with pytest.raises(StoreError, match=rf"has schema 1, this whmc reads {SCHEMA}: use the whmc that wrote it"):
            use(folder)


def test_other_versions_are_told_of(stored, tmp_path):
    folder = shutil.copytree(stored, tmp_path / "run")
    settings = json.loads((folder / "settings.json").read_text())
    del settings["sha256"]
    settings["versions"]["jax"] = "0.0.1"
    digest = hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()
    (folder / "settings.json").write_text(json.dumps({**settings, "sha256": digest}))
    with pytest.warns(UserWarning, match=r"versions have changed since this run began \(jax 0\.0\.1 -> "):
        whmc.resume(folder, TARGET)


def test_a_checkpoint_is_the_state_of_the_run(stored):
    """Read, written and read again: the same tree."""
    state = read_state(Store.open(stored))
    assert state.stage is Stage.COMPLETE and state.plan.seed == 3
    again = unpack(pack({"state": [state.plan, state.inputs, state.learned, state.moment]}))["state"]
    ours, theirs = (
        jax.tree.leaves(encode(tree, {}), is_leaf=lambda one: not isinstance(one, (dict, list)))
        for tree in ([state.plan, state.inputs, state.learned, state.moment], again)
    )
    assert ours == theirs


def test_what_cannot_be_opened_says_why(stored, tmp_path):
    with pytest.raises(StoreError, match="holds a run: continue it with"):
        whmc.sample(TARGET, store=stored)
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(StoreError, match="not empty: choose another"):
        whmc.sample(TARGET, store=tmp_path)
    with pytest.raises(StoreError, match="is a file: give a folder"):
        whmc.sample(TARGET, store=tmp_path / "notes.txt")
    with pytest.raises(StoreError, match="is not a run of whmc"):
        whmc.resume(tmp_path, TARGET)
    with pytest.raises(FileNotFoundError, match="does not exist"):
        whmc.load(tmp_path / "nowhere")
    with pytest.raises(Damaged, match="no result of whmc"):
        whmc.load(tmp_path / "notes.txt")


def test_a_store_in_use_is_left_alone(stored):
    holder = Store.open(stored)
    holder.hold()
    try:
        with pytest.raises(StoreError, match="in use by another process"):
            whmc.resume(stored, TARGET)
    finally:
        holder.close()
    whmc.resume(stored, TARGET)


def test_a_full_disk_keeps_the_last_checkpoint(monkeypatch, tmp_path, adapt, whole):
    """Every append after the first fails half way, as it does when the disk is full."""
    real, calls = Store.append, itertools.count()

    def append(store, rows):
        if next(calls) < 1:
            return real(store, rows)
        store.draws.write(rows.tobytes()[: rows.nbytes // 2])
        store.draws.flush()
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Store, "append", append)
    with pytest.raises(OSError, match="No space left") as failure:
        whmc.sample(TARGET, adapt=adapt, store=tmp_path / "run", **SETTINGS)
    assert any("whmc.resume(" in note for note in failure.value.__notes__)
    monkeypatch.undo()
    assert same(whmc.resume(tmp_path / "run", TARGET), whole)


def test_a_disk_that_is_full_when_closing_too_says_where_the_run_is(monkeypatch, tmp_path):
    """What is still buffered cannot be written when the file is closed: the first error is the one that counts."""

    class Full:
        def __init__(self, file):
            self.file = file

        def fileno(self):
            return self.file.fileno()

        def write(self, content):
            raise OSError(errno.ENOSPC, "No space left on device")

        def close(self):
            self.file.close()
            raise OSError(errno.ENOSPC, "No space left on device")

    real = Store.append

    def append(store, rows):
        store.draws = Full(store.draws)
        real(store, rows)

    monkeypatch.setattr(Store, "append", append)
    with pytest.raises(OSError, match="No space left") as failure:
        whmc.sample(TARGET, store=tmp_path / "run", **SETTINGS)
    assert any("whmc.resume(" in note for note in failure.value.__notes__)
    monkeypatch.undo()
    assert whmc.resume(tmp_path / "run", TARGET).draws.shape == (4, 250, 2)  # the lock is free


@pytest.mark.ci
@pytest.mark.filterwarnings("ignore:Exception ignored in. <function File.close")  # h5netcdf, of a file half opened
def test_damaged_files_of_results_are_refused(whole, tmp_path):
    """A bit anywhere: refused, or it was one that holds nothing of the result."""
    path = whole.save(tmp_path / "result.nc")
    content, rng = path.read_bytes(), np.random.default_rng(1)
    refused = 0
    for _ in range(60):
        changed = bytearray(content)
        changed[rng.integers(len(content))] ^= 1 << rng.integers(8)
        path.write_bytes(changed if rng.random() < 0.7 else changed[: rng.integers(len(content))])
        try:
            loaded = whmc.load(path)
        except Damaged:
            refused += 1
        else:
            assert np.array_equal(loaded.draws, whole.draws)
            assert np.array_equal(loaded.constrained()["x"], whole.draws)
    gc.collect()  # what h5netcdf says when its files go away, it says here
    assert refused > 30


class Trouble(Exception):
    """A user's own."""


def test_a_function_that_raises_keeps_the_last_checkpoint(tmp_path):
    """A callback that fails after a while; without the trouble the run goes on."""
    state = {"calls": 0, "most": 10**9}

    def value(x):
        state["calls"] += 1
        if state["calls"] > state["most"]:
            raise Trouble("the simulator stopped")
        return -0.5 * np.sum(np.square(x), axis=-1)

    @jax.custom_vjp
    def black_box(x):
        return jax.pure_callback(value, jax.ShapeDtypeStruct((), x.dtype), x, vmap_method="expand_dims")

    black_box.defvjp(lambda x: (black_box(x), x), lambda x, g: (-g * x,))
    target = whmc.Target(black_box, dim=2, starts=(-1.0, 1.0))
    library = whmc.ModeLibrary.from_charts(np.zeros((1, 2)), np.eye(2)[None])
    settings = {"modes": library, "seed": 0, "chains": 4, "draws": 350, "warmup": 30}
    whole = whmc.sample(target, **settings)
    state["most"] = state["calls"] + (state["calls"] * 2) // 3
    with pytest.raises(Exception, match="the simulator stopped") as failure:
        whmc.sample(target, store=tmp_path / "run", **settings)
    assert any("whmc.resume(" in note for note in failure.value.__notes__)
    state["most"] = 10**9
    assert 0 < whmc.load(tmp_path / "run").draws.shape[1] < 350
    assert same(whmc.resume(tmp_path / "run", target), whole)


def test_ctrl_c_returns_what_exists_and_the_run_goes_on(tmp_path, adapt, monkeypatch):
    """The interrupt comes after the second block, whatever the machine does meanwhile."""
    real = Store.checkpoint
    blocks = itertools.count()

    def checkpoint(store, tree, **options):
        real(store, tree, **options)
        moment = tree["moment"]
        if (moment.num_drawn or moment.adaptation is not None) and next(blocks) == 1:
            os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setattr(Store, "checkpoint", checkpoint)
    settings = {**SETTINGS, "draws": 900}
    part = whmc.sample(TARGET, adapt=adapt, store=tmp_path / "run", **settings)
    assert 0 < part.draws.shape[1] < 900
    assert "stopped early" in [alarm.name for alarm in part.alarms]
    monkeypatch.undo()
    assert same(whmc.resume(tmp_path / "run", TARGET), whmc.sample(TARGET, adapt=adapt, **settings))


def interrupted_twice():
    with Interrupt() as interrupt:
        signal.raise_signal(signal.SIGINT)
        assert interrupt.asked
        signal.raise_signal(signal.SIGINT)


def test_ctrl_c_twice_aborts():
    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        interrupted_twice()
    assert signal.getsignal(signal.SIGINT) is before


@pytree
class Mine(whmc.LocalHMC):
    """A kernel that is not one of whmc's."""


def test_a_kernel_of_ones_own_is_asked_for_again(tmp_path):
    settings = {**SETTINGS, "kernel": Mine(num_steps=3)}
    whmc.sample(TARGET, store=tmp_path / "run", **settings)
    assert whmc.load(tmp_path / "run").kernel is None
    with pytest.raises(StoreError, match="kernel of its own, Mine: give it again"):
        whmc.resume(tmp_path / "run", TARGET, draws=300)
    more = whmc.resume(tmp_path / "run", TARGET, draws=300, kernel=settings["kernel"])
    assert same(more, whmc.sample(TARGET, **{**settings, "draws": 300}))


def test_plain_values_come_back_as_they_were():
    tree = {"a": [1, 2.5, np.inf, (True, None, "text")], "b": np.arange(3), "c": {"d": jnp.ones(2)}, 4: "key"}
    again = unpack(pack(tree))
    assert again["a"] == tree["a"] and again[4] == "key" and np.array_equal(again["b"], tree["b"])
    assert isinstance(again["c"]["d"], jax.Array) and np.isnan(unpack(pack({"x": np.nan}))["x"])


def test_code_is_never_stored_nor_run():
    with pytest.raises(NotPlain, match="cannot be stored"):
        encode(logdensity, {})
    with pytest.raises(NotPlain, match="may be read"):
        decode({"class": "Popen", "fields": {"args": "true"}}, {})
    with pytest.raises(NotPlain, match="may be read"):
        decode({"object": "anything"}, {})
    array = np.array([print], dtype=object)
    with pytest.raises(NotPlain, match="Python objects"):
        pack({"x": array})


KILLED = """
import os, signal, sys
sys.path.insert(0, {here!r})
from pathlib import Path
import jax
jax.config.update("jax_numpy_dtype_promotion", "strict")
import whmc
from test_store import SETTINGS, TARGET
from whmc.run import prepare
from whmc.run.checkpoint import Checkpoints
folder, adapt, stage = Path(sys.argv[1]), sys.argv[2], sys.argv[3]
save, search = Checkpoints.save, prepare.search_modes

def die(*_):
    os.kill(os.getpid(), signal.SIGKILL)

def saved(checkpoints, state, **options):
    save(checkpoints, state, **options)
    if state.stage.name == stage != "SEARCH":
        die()

Checkpoints.save = saved
if stage == "SEARCH":  # after its first starts
    prepare.search_modes = lambda target, **settings: search(target, **{{**settings, "tell": die}})
if (folder / "settings.json").exists():
    whmc.resume(folder, TARGET)
else:
    whmc.sample(TARGET, store=folder, adapt=adapt, **SETTINGS)
"""


@pytest.mark.ci
def test_a_process_that_is_killed_in_every_stage_goes_on_to_the_same_draws(adapt, whole, tmp_path):
    """One process after the other: killed in the search, in the warm-up, while it samples, and when all is drawn."""
    code = textwrap.dedent(KILLED.format(here=os.path.dirname(__file__)))
    for stage in Stage:
        process = subprocess.run([sys.executable, "-c", code, str(tmp_path / "run"), adapt, stage.name])
        assert process.returncode == -signal.SIGKILL, stage
    assert same(whmc.resume(tmp_path / "run", TARGET), whole)


def test_a_checkpoint_that_is_renamed_while_it_is_looked_for_is_not_damage(stored, monkeypatch):
    """As when a run that is still going is loaded: warnings are errors here."""
    exists = type(stored).exists

    def still_there(path, **settings):
        return path.name == "checkpoint.new" or exists(path, **settings)

    monkeypatch.setattr(type(stored), "exists", still_there)
    whmc.load(stored, TARGET)


def test_a_density_that_fails_before_the_run_leaves_no_folder(tmp_path):
    def fails(x):
        raise RuntimeError("not today")

    with pytest.raises(RuntimeError, match="not today"):
        whmc.sample(make_target(logdensity=fails), store=tmp_path / "run", **SETTINGS)
    assert not (tmp_path / "run").exists()
