"""How fast a file system takes a durable write: small beside the room that there is, and nothing is left behind.

    bytes of a write = min(64 MiB, free bytes / 16), and nothing at all where that is less than ``LEAST_BYTES``

A job of the same user may be saving into the room that is left, so the probe must not use it up. Quotas cannot be asked
for in a portable way: a write that meets one is taken back at once. The file is removed when the write has ended, in
whatever way; by a handler where SIGTERM, SIGHUP, SIGINT, SIGUSR1 or SIGUSR2 end the process; and after SIGKILL by the
next start of this node in the folder.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import FrameType

WRITES, WRITE_BYTES, WRITE_SECONDS, CHUNK = 3, 64 * 2**20, 3.0, 4 * 2**20
SHARE_OF_FREE, LEAST_BYTES = 1.0 / 16.0, 64 * 2**10
ENDING = (signal.SIGTERM, signal.SIGHUP, signal.SIGINT, signal.SIGUSR1, signal.SIGUSR2)
_written: set[Path] = set()  # what is there now and must go


def measure(folder: Path, node: int, free_bytes: float) -> tuple[float, float]:
    """Bytes a second of the fastest of ``WRITES`` writes, 0 without room for one, and the file server's clock.

    The clock is that of the server minus this node's own, in seconds. Raises OSError as the file system does.
    """
    remove_old(folder, node)
    size = int(min(1.0 * WRITE_BYTES, SHARE_OF_FREE * free_bytes))
    timed = size >= LEAST_BYTES
    chunk = os.urandom(min(CHUNK, size) if timed else 1)  # zeros may be compressed away
    path = folder / f"write-{node}-{os.getpid()}"
    end, speed, clock = time.perf_counter() + WRITE_SECONDS, 0.0, 0.0
    for _ in range(WRITES if timed else 1):
        found, clock = _write(path, chunk, size if timed else 1, end)
        speed = max(speed, found)
        if time.perf_counter() > end:
            break
    return speed if timed else 0.0, clock


def remove_old(folder: Path, node: int) -> None:
    """What a start of this node has left that was killed."""
    for path in folder.glob(f"write-{node}-*"):
        with contextlib.suppress(OSError):
            path.unlink()


def _write(path: Path, chunk: bytes, size: int, end: float) -> tuple[float, float]:
    before, start, written = time.time(), time.perf_counter(), 0
    _written.add(path)
    try:
        with path.open("wb", buffering=0) as file:
            while written < size and (not written or time.perf_counter() < end):
                written += file.write(chunk)
            os.fsync(file.fileno())
            seconds, after = time.perf_counter() - start, time.time()
            changed = os.fstat(file.fileno()).st_mtime
    finally:
        path.unlink(missing_ok=True)
        _written.discard(path)
    # the server's clock said `changed` at some moment between `before` and `after`
    return written / seconds, changed - min(max(changed, before), after)


def remove_now() -> None:
    """For a process that ends while a write is still going on."""
    for path in list(_written):
        with contextlib.suppress(OSError):
            path.unlink()


@contextlib.contextmanager
def cleaned_up() -> Iterator[None]:
    """Inside, a signal that ends this process removes the probe first; does nothing outside the main thread."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def ended(number: int, _: FrameType | None) -> None:
        remove_now()
        signal.signal(number, before[signal.Signals(number)])
        os.kill(os.getpid(), number)

    before = {number: signal.getsignal(number) for number in ENDING}
    taken = [number for number, handler in before.items() if handler not in (signal.SIG_IGN, None)]
    for number in taken:
        signal.signal(number, ended)
    try:
        yield
    finally:
        for number in taken:
            signal.signal(number, before[number])
        remove_now()
