"""Plain Python functions over many positions: here, in processes of our own, or in a pool of the user's.

Nothing in this file imports JAX, so that a worker starts in a moment.

Our own processes are fresh interpreters that are sent the function: a script needs no `if __name__ == "__main__"`,
and functions of notebooks work (by cloudpickle).
"""

import contextlib
import dataclasses
import functools
import importlib
import importlib.util
import math
import os
import pickle
import signal
import struct
import subprocess
import sys
import traceback
import weakref
from collections.abc import Callable, Sequence
from typing import Any, BinaryIO

import numpy as np

from whmc.frontends.extras import install

Table = Callable[[np.ndarray, bool], np.ndarray]
"""(points (n, dim), scored) -> (n, 1) log densities, or scored (n, 1 + dim) with their gradients."""


@dataclasses.dataclass(frozen=True)
class Rows:
    """The user's functions, applied to many positions: a Table.

    transform: from the unit cube to what `logp` takes; then positions and gradients are those of the cube.
    """

    logp: Callable[..., Any]
    grad: Callable[..., Any] | bool | None = None
    vectorized: bool = False
    args: Sequence[Any] = ()
    transform: Callable[[np.ndarray], Any] | None = None

    def __call__(self, points: np.ndarray, scored: bool) -> np.ndarray:
        # chains look at extreme places as a matter of course, and what comes out as NaN is counted: no warnings
        with np.errstate(all="ignore"):
            return self._inside(points, scored)

    def _inside(self, points: np.ndarray, scored: bool) -> np.ndarray:
        if self.transform is None:
            return self._table(points, scored)
        table = self._table(self.transformed(points), scored)
        if scored:
            inside = np.isfinite(table[:, 0])
            slopes = self._slopes(points[inside])
            table[inside, 1:] = np.einsum("nij,nj->ni", slopes, table[inside, 1:])
        return table

    def transformed(self, points: np.ndarray) -> np.ndarray:
        """Points of the unit cube as the prior means them."""
        assert self.transform is not None
        if self.vectorized:
            return _require("prior_transform", self.transform(points.copy()), points.shape)
        found = [_require("prior_transform", self.transform(row.copy()), row.shape) for row in points]
        return np.stack(found) if found else points

    def _slopes(self, points: np.ndarray, step: float = 6e-6) -> np.ndarray:
        """d transform_j / d u_i by differences, never outside of the cube; it is cheap beside a likelihood."""
        slopes = np.empty((*points.shape, points.shape[1]))
        for i in range(points.shape[1]):
            ahead, behind = points.copy(), points.copy()
            ahead[:, i] = np.minimum(points[:, i] + step, 0.5 * (points[:, i] + 1))
            behind[:, i] = np.maximum(points[:, i] - step, 0.5 * points[:, i])
            gap = (ahead - behind)[:, i : i + 1]
            slopes[:, i] = (self.transformed(ahead) - self.transformed(behind)) / gap
        return slopes

    def _table(self, points: np.ndarray, scored: bool) -> np.ndarray:
        if self.vectorized:
            return self._many(points, scored)
        table = np.zeros((len(points), 1 + points.shape[1] if scored else 1))
        for row, point in zip(table, points, strict=True):
            self._fill(row, point)
        return table

    def _fill(self, row: np.ndarray, point: np.ndarray) -> None:
        # copies: a function may work on what it is given
        found, slope = self.logp(point.copy(), *self.args), None
        if self.grad is True:
            found, slope = _pair(found)
        row[0] = _require("logp", found, ())
        if len(row) == 1 or not math.isfinite(row[0]):  # outside of the support there is no gradient to ask for
            return
        if callable(self.grad):
            slope = self.grad(point.copy(), *self.args)
        row[1:] = _require("the gradient", slope, point.shape)

    def _many(self, points: np.ndarray, scored: bool) -> np.ndarray:
        found, slopes = self.logp(points.copy(), *self.args), None
        if self.grad is True:
            found, slopes = _pair(found)
        values = _require("logp", found, points.shape[:1])[:, None]
        if not scored:
            return values
        if callable(self.grad):
            slopes = self.grad(points.copy(), *self.args)
        slopes = _require("the gradient", slopes, points.shape)
        return np.concatenate([values, np.where(np.isfinite(values), slopes, 0.0)], axis=1)


def _pair(found: Any) -> tuple[Any, Any]:
    if not isinstance(found, (tuple, list)) or len(found) != 2:
        raise TypeError(f"grad=True says that logp returns (value, gradient), it returned {_shown(found)}")
    return found[0], found[1]


def _require(what: str, found: Any, shape: tuple[int, ...]) -> np.ndarray:
    """What a function returned as real numbers of the shape that it must have."""
    try:
        numbers = np.asarray(found, np.float64)
    except (TypeError, ValueError) as error:
        remedy = ": give grad=True if the second is the gradient" if isinstance(found, tuple) else ""
        raise TypeError(f"{what} must return {_meant(shape)}, it returned {_shown(found)}{remedy}") from error
    if found is None or numbers.shape not in ((shape, (1,)) if shape == () else (shape,)):
        remedy = ", or give vectorized=True if it takes many positions" if shape == () else ""
        raise ValueError(f"{what} must return {_meant(shape)}, it returned {_shown(found)}{remedy}")
    return numbers.reshape(shape)


def _meant(shape: tuple[int, ...]) -> str:
    return "one real number" if shape == () else f"real numbers of shape {shape}"


def _shown(found: Any) -> str:
    shape = getattr(found, "shape", None)
    return f"{type(found).__name__} of shape {shape}" if shape is not None else repr(found)[:80]


def spread(rows: Rows, parallel: Any) -> Table:
    """The rows in this process (None, 1), in that number of worker processes, or in a pool: anything with `map`."""
    if parallel is None:
        return rows
    if callable(getattr(parallel, "map", None)):
        return Mapped(rows, parallel)
    if isinstance(parallel, bool) or not isinstance(parallel, (int, np.integer)) or parallel < 1:
        raise ValueError(f"parallel must be a number of processes, or a pool with a map method, got {parallel!r}")
    return rows if parallel == 1 else Workers(rows, int(parallel))


class Mapped:
    """Rows over a pool of the user's: one position a task, as emcee does it; a vectorized function in as few pieces as
    the pool has members."""

    def __init__(self, rows: Rows, pool: Any) -> None:
        self.rows, self.pool = rows, pool

    def __call__(self, points: np.ndarray, scored: bool) -> np.ndarray:
        pieces = np.array_split(points, min(self._pieces(), len(points))) if self.rows.vectorized else points[:, None]
        found = self.pool.map(functools.partial(self.rows, scored=scored), list(pieces))
        # an executor gives an iterator, dask futures
        return np.concatenate([one.result() if hasattr(one, "result") else one for one in found])

    def _pieces(self) -> int:
        sizes = (getattr(self.pool, name, None) for name in ("_processes", "_max_workers", "size"))
        return next((size for size in sizes if isinstance(size, int) and size > 0), os.cpu_count() or 1)


class WorkerDied(RuntimeError):
    """A process ended before it answered."""


class RemoteTraceback(Exception):
    """Where in a worker an exception came from; the cause of that exception here."""

    def __str__(self) -> str:
        return "\n" + str(self.args[0])


class Workers:
    """Processes that live as long as this object; they start at the first evaluation."""

    def __init__(self, rows: Rows, num: int) -> None:
        self.num, self._payload = num, packed(rows, num)
        self._processes: list[subprocess.Popen[bytes]] = []
        self._close: Callable[[], Any] | None = None

    def __call__(self, points: np.ndarray, scored: bool) -> np.ndarray:
        """Even shares of the rows to all workers at once."""
        parts = [part for part in np.array_split(points, self.num) if len(part)]
        try:
            answers = self._exchange(parts, scored)
        except BaseException:
            self.close()  # answers that were not read must not be taken for the next ones
            raise
        for answer in answers:
            if answer.flag:
                raise _received(pickle.loads(answer.content))
        return np.concatenate([answer.table() for answer in answers])

    def close(self) -> None:
        """Ends the processes; another evaluation starts new ones."""
        if self._close is not None:
            self._close()
        self._close, self._processes = None, []

    def _exchange(self, parts: list[np.ndarray], scored: bool) -> "list[Message]":
        if not self._processes:
            self._start()
        answers = []
        used = self._processes[: len(parts)]
        for process, part in zip(used, parts, strict=True):
            with contextlib.suppress(BrokenPipeError):  # it is dead: told when its answer is missing
                Message.of(part, scored).send(process.stdin)
        for process in used:
            answer = _receive(process.stdout)
            if answer is None:
                raise WorkerDied(_obituary(process))
            answers.append(answer)
        return answers

    def _start(self) -> None:
        # one thread each: the processes have all the cores, and libraries that start a thread for each would fight
        threads = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
        places = [os.path.abspath(place) for place in sys.path]
        program = f"import sys; sys.path[:] = {places!r}; from whmc.frontends.workers import serve; serve()"
        # close() and the end of this object may come at any time: what has started is always in the list
        self._close = weakref.finalize(self, _end, self._processes)
        for _ in range(self.num):
            process = subprocess.Popen(
                [sys.executable, "-c", program],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                env=threads | dict(os.environ),
            )
            self._processes.append(process)
            with contextlib.suppress(BrokenPipeError):
                Message(self._payload).send(process.stdin)


def packed(function: Any, num: int) -> bytes:
    """The function as bytes, by cloudpickle where it is installed: it also takes what has no importable name."""
    remedy = "define it at the top of a module, and open files, locks and connections inside of it"
    try:
        payload = _dumped(function)
    except Exception as error:
        if not importlib.util.find_spec("cloudpickle"):
            remedy = f"for lambdas and functions of notebooks {install('parallel')}; otherwise {remedy}"
        raise TypeError(
            f"parallel={num} sends logp to other processes, but it cannot be pickled ({error}): {remedy}"
        ) from error
    if b"__main__" in payload and not importlib.util.find_spec("cloudpickle"):
        raise TypeError(
            f"parallel={num} sends logp to other processes, which for functions of the main script needs cloudpickle: "
            f"{install('parallel')}, or move them into a module"
        )
    return payload


def _dumped(thing: Any) -> bytes:
    dumps = importlib.import_module("cloudpickle").dumps if importlib.util.find_spec("cloudpickle") else pickle.dumps
    return bytes(dumps(thing))


def serve() -> None:
    """A worker: takes a function, then answers requests until its input ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's business
    requests, answers = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what the function prints goes to standard error, not between our answers
    rows, broken = None, Message(b"")
    payload = _receive(requests)
    if payload is None:
        return
    try:
        rows = pickle.loads(payload.content)
    except BaseException as error:
        error.add_note("whmc: a worker process could not load logp; can it import the module that defines it?")
        broken = _failure(error)
    while (request := _receive(requests)) is not None:
        try:
            answer = broken if rows is None else Message.of(rows(request.table(), request.flag))
        except BaseException as error:
            answer = _failure(error)
        try:
            answer.send(answers)
        except BrokenPipeError:  # the parent is gone
            return


HEAD = struct.Struct("<QQ?")
"""Of a message: how many bytes follow, how many numbers are in a row, the flag."""


@dataclasses.dataclass(frozen=True)
class Message:
    """Bytes between processes; tables as they are in memory, which takes a third of the time of a pickle.

    flag: of a request whether it asks for gradients too, of an answer whether it tells of an exception.
    """

    content: bytes
    width: int = 1
    flag: bool = False

    @classmethod
    def of(cls, table: np.ndarray, flag: bool = False) -> "Message":
        return cls(np.ascontiguousarray(table, np.float64).tobytes(), table.shape[1], flag)

    def table(self) -> np.ndarray:
        return np.frombuffer(self.content).reshape(-1, self.width)

    def send(self, stream: Any) -> None:
        stream.write(HEAD.pack(len(self.content), self.width, self.flag) + self.content)
        stream.flush()


def _receive(stream: BinaryIO | Any) -> Message | None:
    """The next message; None at the end."""
    head = stream.read(HEAD.size)
    if len(head) < HEAD.size:
        return None
    size, width, flag = HEAD.unpack(head)
    content = bytes(stream.read(size))
    return Message(content, width, flag) if len(content) == size else None


def _failure(error: BaseException) -> Message:
    """An exception for the way home: itself if it can travel, its name, and where it came from."""
    blob = None
    with contextlib.suppress(Exception):
        blob = _dumped(error)
        pickle.loads(blob)
    told = f"{type(error).__name__}: {error}", "".join(traceback.format_exception(error))
    return Message(pickle.dumps((blob, *told)), flag=True)


def _received(failure: tuple[bytes | None, str, str]) -> BaseException:
    """The exception as it was, or one that tells of it; its cause shows the line in the worker."""
    blob, told, text = failure
    error: BaseException | None = None
    if blob is not None:
        with contextlib.suppress(Exception):
            error = pickle.loads(blob)
    if not isinstance(error, BaseException):
        error = RuntimeError(f"in a worker process: {told}")
    error.__cause__ = RemoteTraceback(text)
    return error


def _obituary(process: subprocess.Popen[bytes]) -> str:
    try:
        code = process.wait(timeout=5)
    except subprocess.TimeoutExpired:
        code = None
    how = "closed its output"
    if code is not None:
        how = f"was ended by {signal.Signals(-code).name}" if code < 0 else f"ended with code {code}"
    return (
        f"a worker process {how} while it evaluated logp: it may have run out of memory, or compiled code in it "
        "crashed; parallel=None shows where"
    )


def _end(processes: list[subprocess.Popen[bytes]]) -> None:
    """Idle workers end when their input does; one that computes is ended."""
    for process in processes:
        with contextlib.suppress(OSError):
            process.stdin.close()  # type: ignore[union-attr]
    for process in processes:
        try:
            process.wait(timeout=1)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        process.stdout.close()  # type: ignore[union-attr]
