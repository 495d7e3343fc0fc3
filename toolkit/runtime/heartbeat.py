"""Signs of life of a process that holds an output directory, and whether another job has taken it meanwhile.

A process that slept (a suspended job, a machine that was paused) does not know that it did. Its thread looks before
each sign whether another holds the directory, and whoever is about to write asks :meth:`Heartbeat.is_lost`, which looks
itself where no sign could be given for long.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from pathlib import Path

import msgspec

from toolkit.runtime import holder as holders
from toolkit.runtime.holder import LEASE, Holder

# Signs are counted from here, so that each is as long as the one before: a file that grows is torn to who reads it in
# that moment, and one that is torn is nobody's
FIRST_BEAT = 10**9


class Heartbeat:
    """Of the lease in ``path``, which ``holder`` has written: rewritten every so many ``seconds`` by a thread."""

    def __init__(self, path: Path, holder: Holder, seconds: float, stale_seconds: float) -> None:
        self.path, self.holder, self.seconds, self.stale_seconds = path, holder, seconds, stale_seconds
        self._lost = False
        self._known = time.monotonic()  # when the lease was last seen to be this process's
        self._done = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Begin."""
        self._thread = threading.Thread(target=self._beat, name="lease", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End; nothing is written afterwards."""
        self._done.set()
        if self._thread is not None:
            self._thread.join()

    def superseded(self) -> Path | None:
        """The lease that counts, where it is not this one (or this one's path, where all are gone).

        Raises OSError where that cannot be read: then the storage ends the run, and nobody is said to have taken over.
        """
        newest = next((path for _, path in holders.files(self.path.parent, LEASE)), self.path)
        found = holders.read_now(newest)
        return None if found is not None and holders.is_same(found, self.holder) else newest

    def is_lost(self) -> bool:
        """Whether another process is known to hold the directory; costs nothing while signs of life are written."""
        if not self._lost and time.monotonic() - self._known > self.stale_seconds / 2.0:
            with contextlib.suppress(OSError):  # storage that is away tells nothing
                self._look()
        return self._lost

    def _look(self) -> None:
        """Only what can be read counts: an error of the file system must not end a run."""
        newest = next((path for _, path in holders.files(self.path.parent, LEASE)), None)
        found = holders.read(newest) if newest is not None else None
        self._lost = found is not None and not holders.is_same(found, self.holder)
        self._known = time.monotonic()

    def _beat(self) -> None:
        beats = FIRST_BEAT
        while not self._lost and not self._done.wait(self.seconds):
            beats += 1
            with contextlib.suppress(OSError, msgspec.MsgspecError):  # a full or absent disk: the next one may reach it
                self._look()
                if not self._lost:
                    self._rewrite(msgspec.json.encode(msgspec.structs.replace(self.holder, beats=beats)))

    def _rewrite(self, content: bytes) -> None:
        descriptor = os.open(self.path, os.O_RDWR)  # not created: it may have been taken away
        try:
            there = msgspec.json.decode(os.pread(descriptor, 2**16, 0), type=Holder)
            if holders.is_same(there, self.holder):  # not another's, who began at 1 again
                os.pwrite(descriptor, content, 0)  # as long as what is there
                os.fsync(descriptor)
        finally:
            os.close(descriptor)
