"""A run's folder: draws as they come, and a checkpoint after every block.

    settings.json          what was asked for, of what, with which versions; for people too
    draws.bin              one record for each step of each chain, appended
    setup-N.whmc           inputs and what is learned; checkpoints name the N that they belong to
    checkpoint.whmc        plan and moment, and how many bytes of draws.bin belong to it; checkpoint-previous.whmc

A file is written beside and renamed, so it is whole or not there. It holds its own SHA-256, which is checked before
anything else is read from it. What a crash leaves in draws.bin after the last checkpoint is cut off. No file holds
code, and none is unpickled.

A process that is killed loses at most a block. Every eighth checkpoint is fsynced, because fsync dominated the cost of
a store; the last fsynced checkpoint is always kept.
"""

import contextlib
import hashlib
import json
import os
import warnings
import zlib
from pathlib import Path
from typing import Any

import numpy as np

from whmc.storage.serialize import SCHEMA, Damaged, pack, unpack

CHUNK = 1 << 24

SYNC = 8
"""Every eighth checkpoint is fsynced, and every one with a new setup."""


class StoreError(RuntimeError):
    """A store that cannot be used, and what to do."""


class Store:
    """One run's folder, held by one process at a time."""

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder).absolute()
        self.num_bytes, self.checksum, self.setup = 0, 0, 0
        self.sound = "checkpoint.whmc"
        self.unsynced = 0  # checkpoints since the last one that was forced to the disk
        self.synced_setup = 0
        self.lock: Any = None
        self.draws: Any = None

    @classmethod
    def create(cls, folder: str | Path) -> "Store":
        """A new folder, or an empty one; it is a run from when `write_settings` was called."""
        store = cls(folder)
        if store.folder.exists() and not store.folder.is_dir():
            raise StoreError(f"store {str(folder)!r} is a file: give a folder")
        if store.path("settings.json").exists():
            raise StoreError(f"store {str(folder)!r} holds a run: continue it with whmc.resume(), or choose another")
        if store.folder.is_dir() and not all(_ours(path) for path in store.folder.iterdir()):
            raise StoreError(f"store {str(folder)!r} is not empty: choose another folder")
        if store.path("draws.bin").exists() and store.path("draws.bin").stat().st_size:
            raise StoreError(
                f"store {str(folder)!r} holds draws of a run that has lost its settings.json: put that file back, or "
                "choose another folder"
            )
        try:
            store.folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise StoreError(f"store {str(folder)!r} cannot be made: {error.strerror}") from error
        store.hold()
        for left in (*store.folder.glob("*.whmc"), *store.folder.glob("*.new")):
            left.unlink()  # of a run that was killed before it began
        store.draws = open(store.path("draws.bin"), "wb")  # noqa: SIM115 - held open while the run lasts
        return store

    def write_settings(self, settings: dict[str, Any]) -> None:
        """What was asked for; after the first checkpoint, so that a run always has one."""
        settings = {"schema": SCHEMA, **settings}
        self.write("settings.json", json.dumps({**settings, "sha256": _digest(settings)}, indent=1).encode())

    @classmethod
    def open(cls, folder: str | Path) -> "Store":
        """An old one; to go on with it, `hold` it."""
        store = cls(folder)
        if not store.path("settings.json").is_file():
            exists = "has no settings.json" if store.folder.is_dir() else "does not exist"
            raise StoreError(f"{str(folder)!r} is not a run of whmc: it {exists}")
        return store

    def path(self, name: str) -> Path:
        return self.folder / name

    def settings(self) -> dict[str, Any]:
        """What was asked for."""
        try:
            settings = json.loads(self.path("settings.json").read_text())
            schema, digest = settings["schema"], settings.pop("sha256")
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise StoreError(f"{self.path('settings.json')} is damaged ({error}): start the run again") from error
        if digest != _digest(settings):
            raise StoreError(
                f"{self.path('settings.json')} is damaged or edited, its checksum does not agree: start the run again"
            )
        if schema != SCHEMA:
            raise StoreError(f"{self.folder} has schema {schema}, this whmc reads {SCHEMA}: use the whmc that wrote it")
        return {name: value for name, value in settings.items() if name != "schema"}

    def hold(self) -> None:
        """Keeps other processes out; released when this one ends, however it ends."""
        self.lock = open(self.path("lock"), "a")  # noqa: SIM115
        try:
            import fcntl  # not on Windows: there two processes have to keep out of each other's way

            fcntl.flock(self.lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except ImportError:
            return
        except BlockingIOError as error:
            self.close()
            raise StoreError(f"{self.folder} is in use by another process: wait for it, or stop it") from error
        except OSError:
            return  # some file systems know no locks

    def __enter__(self) -> "Store":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Lets other processes in."""
        for one in (self.draws, self.lock):
            if one is not None:
                with contextlib.suppress(OSError):  # a full disk: what is still buffered does not count
                    one.close()
        self.draws = self.lock = None

    def write(self, name: str, content: bytes, *, sync: bool = True) -> None:
        """Whole or not at all: a new file, renamed over the old one."""
        fresh = self.path(f"{name}.new")
        with open(fresh, "wb") as file:
            file.write(content)
            file.flush()
            if sync:
                os.fsync(file.fileno())
        os.replace(fresh, self.path(name))

    def write_setup(self, tree: dict[str, Any]) -> None:
        """What changes seldom; the next checkpoint belongs to it."""
        self.write(f"setup-{self.setup + 1}.whmc", pack(tree))
        self.setup += 1

    def append(self, rows: np.ndarray) -> None:
        """Records at the end of draws.bin; they count from the next checkpoint on."""
        content = np.ascontiguousarray(rows).view(np.uint8).reshape(-1).data
        self.draws.write(content)
        self.draws.flush()
        self.num_bytes += len(content)
        self.checksum = zlib.crc32(content, self.checksum)

    def checkpoint(self, tree: dict[str, Any], *, last: bool = False) -> None:
        """The run can go on from here. The one before is kept, if it was forced to the disk; else the last that was."""
        sync = last or self.setup != self.synced_setup or self.unsynced == SYNC - 1
        if sync:
            os.fsync(self.draws.fileno())
        tree = {**tree, "setup": self.setup, "num_bytes": self.num_bytes, "checksum": self.checksum}
        current, previous = self.path("checkpoint.whmc"), self.path("checkpoint-previous.whmc")
        self.write("checkpoint.new", pack(tree), sync=sync)
        if self.unsynced == 0 and current.exists():
            os.replace(current, previous)
        os.replace(self.path("checkpoint.new"), current)
        if not sync:
            self.unsynced += 1
            return
        self.unsynced, self.synced_setup = 0, self.setup
        if os.name == "posix":  # elsewhere a folder cannot be opened
            folder = os.open(self.folder, os.O_RDONLY)
            try:
                os.fsync(folder)
            finally:
                os.close(folder)
        for old in range(self.setup - 2, 0, -1):  # two checkpoints, so at most two setups are needed
            if not self.path(f"setup-{old}.whmc").exists():
                break
            self.path(f"setup-{old}.whmc").unlink()

    def read(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """The newest sound checkpoint with its setup; a warning for what was wrong with newer ones."""
        damage = []
        for name in ("checkpoint.new", "checkpoint.whmc", "checkpoint-previous.whmc"):
            try:
                content = self.path(name).read_bytes()
            except FileNotFoundError:  # never written, or renamed by a run that is going on
                continue
            try:
                tree = unpack(content)
                setup = unpack(self.path(f"setup-{tree['setup']}.whmc").read_bytes())
                self._verify(tree["num_bytes"], tree["checksum"])
            except (StoreError, Damaged, OSError) as error:
                damage.append(f"{name}: {error}")
                continue
            self.num_bytes, self.checksum, self.setup = tree["num_bytes"], tree["checksum"], tree["setup"]
            self.sound = name
            for one in damage:
                warnings.warn(f"{one}; the checkpoint before it was used", stacklevel=3)
            return tree, setup
        if damage:
            raise StoreError(f"{self.folder} has no sound checkpoint left ({'; '.join(damage)}): start the run again")
        raise StoreError(f"{self.folder} has no checkpoint: start the run again")

    def _verify(self, num_bytes: int, checksum: int) -> None:
        """The draws that a checkpoint counts are there, and as they were written."""
        found, left = 0, num_bytes
        with open(self.path("draws.bin"), "rb") as file:
            while left and (content := file.read(min(CHUNK, left))):
                found, left = zlib.crc32(content, found), left - len(content)
        if left:
            raise StoreError(f"draws.bin lacks {left} bytes")
        if found != checksum:
            raise StoreError("draws.bin is damaged")

    def reopen(self) -> None:
        """Goes on behind the checkpoint that was read; damaged ones are gone for good."""
        if self.sound != "checkpoint.whmc":
            os.replace(self.path(self.sound), self.path("checkpoint.whmc"))
        for left in self.folder.glob("checkpoint.new*"):
            left.unlink(missing_ok=True)
        mode = "r+b" if self.path("draws.bin").exists() else "w+b"
        self.draws = open(self.path("draws.bin"), mode)  # noqa: SIM115
        self.draws.truncate(self.num_bytes)
        self.draws.seek(self.num_bytes)

    def rows(self, dtype: np.dtype) -> np.ndarray:
        """All records that count, from the disk as they are asked for."""
        num = self.num_bytes // dtype.itemsize
        if num == 0:
            return np.zeros(0, dtype)
        return np.memmap(self.path("draws.bin"), dtype, "r", shape=(num,))


def _digest(settings: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()


def _ours(path: Path) -> bool:
    """Left by a run that was killed before it began."""
    return path.name in ("lock", "draws.bin") or path.suffix in (".whmc", ".new")
