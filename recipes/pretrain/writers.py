"""The processes that write a rank's files of a checkpoint: what a killed one has not written is written all the same.

megatron-core 0.16.1 (``dist_checkpointing/strategies/filesystem_async.py``) forks one for each file and waits for all
of them to tell that they are done. One that is killed, say by the kernel when memory runs out, never does: the rank
stands still until its watchdog ends the run, or, with ``--async-save``, at the next save; and where the process that
waits for them in the background is killed, the run ends. Here each has a pipe of its own, which ends with it, and what
is not written then is written by the process that waits for it, in the end the rank.

What was written is told to the rank through a server process that the library starts at the first save. Where that one
is killed the next save ends the run, and where the rank is, it stays for ever, with 200 MB and the rank's output open.
Here it is told in memory that the rank shares with what it forks: there is no server.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import pickle
import queue
import signal
import sys
import tempfile
from collections.abc import Callable
from multiprocessing import get_context
from multiprocessing.connection import Connection
from typing import Any

PR_SET_PDEATHSIG = 1  # prctl(2)
WIDTH = 8  # bytes of the length before the text


class Told:
    """As much of a queue as the library uses, for one value of one save."""

    def __init__(self) -> None:
        self.again: Callable[[], None] | None = None  # what writes and tells it, where nobody else has
        if sys.platform == "linux":
            self._file = os.fdopen(os.memfd_create("told"), "w+b")
        else:
            self._file = tempfile.TemporaryFile()  # noqa: SIM115  (it stays as long as this does)

    def put(self, value: Any) -> None:
        """In the rank, or in a process that it has forked."""
        text = pickle.dumps(value)
        left, place = memoryview(text), WIDTH
        while left:
            written = os.pwrite(self._file.fileno(), left, place)
            left, place = left[written:], place + written
        os.pwrite(self._file.fileno(), len(text).to_bytes(WIDTH), 0)  # last: what is torn was never told

    def get_nowait(self) -> Any:
        """In the rank, which writes by itself what nobody has told of; else raises queue.Empty."""
        size = os.pread(self._file.fileno(), WIDTH, 0)
        again, self.again = self.again, None
        if not size and again is not None:
            print("warning: the process that writes a checkpoint was killed; the rank writes it itself", flush=True)
            again()
            size = os.pread(self._file.fileno(), WIDTH, 0)
        if not size:
            raise queue.Empty
        left, pieces = int.from_bytes(size), list[bytes]()
        while left:
            pieces.append(os.pread(self._file.fileno(), left, WIDTH + sum(map(len, pieces))))
            left -= len(pieces[-1])
        return pickle.loads(b"".join(pieces))


def install() -> None:
    """In the library's place, for the next save of this process."""
    from megatron.core.dist_checkpointing.strategies import filesystem_async

    library: Any = filesystem_async
    library._results_queue = Told()
    library.FileSystemWriterAsync.write_preloaded_data_multiproc = staticmethod(_write_all)


def in_background(request: Any) -> Any:
    """The library's request, of which the rank keeps the copy in host memory until all is written.

    On a GPU that copy is made in any case. On processors the library makes none, and relies on that of the fork.
    """
    if request.async_fn is None:
        return request
    rank, given, told = request.async_fn_args
    live = {id(tensor) for _, _, (_, tensors) in given for _, tensor in tensors}

    def staged() -> Any:
        buckets = [
            (file, key, (texts, [(item, tensor.clone() if id(tensor) in live else tensor) for item, tensor in tensors]))
            for file, key, (texts, tensors) in request.preload_fn()
        ]
        told.again = lambda: request.async_fn(rank, buckets, told)
        return buckets

    return request._replace(preload_fn=staged)


def _write_all(transforms: list[Any], use_msc: bool, rank: int, buckets: list[Any], results: Any) -> None:
    """As the library calls it; ``use_msc`` is another storage client, which this program does not use."""
    fork, started, found = get_context("fork"), [], dict[int, Any]()
    for number, bucket in enumerate(buckets):
        ours, theirs = fork.Pipe(duplex=False)
        process = fork.Process(target=_tell, args=(theirs, os.getpid(), transforms, number, bucket))
        process.start()
        theirs.close()  # only the process holds it now: it ends with it
        started.append((process, ours))
    for number, (process, ours) in enumerate(started):
        try:
            found[number] = ours.recv()
        except (EOFError, OSError):
            process.join()
            print(
                f"warning: a process that writes a checkpoint of rank {rank} was killed"
                f" (exit code {process.exitcode}); the rank writes it itself",
                flush=True,
            )
            found[number] = _write(transforms, number, buckets[number])
        ours.close()
        process.join()
    failed = next((each for each in found.values() if isinstance(each, Exception)), None)
    results.put(failed or found)


def _tell(connection: Connection, parent: int, transforms: list[Any], number: int, bucket: Any) -> None:
    if sys.platform == "linux":  # it must not go on where what waits for it is killed: the rank writes that file then
        with contextlib.suppress(OSError, AttributeError):
            ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)
    connection.send(_write(transforms, number, bucket))


def _write(transforms: list[Any], number: int, bucket: Any) -> Any:
    """What the library notes of each tensor that it has written, or the exception that it has met."""
    from megatron.core.dist_checkpointing.strategies.filesystem_async import FileSystemWriterAsync

    told: queue.Queue[Any] = queue.Queue()
    count: queue.Queue[int] = queue.Queue()
    count.put(number)
    FileSystemWriterAsync.write_preloaded_data(transforms, number, bucket, told, count, True)
    return told.get()[1]
