"""A thread in each rank that ends a run which hangs, with the stacks of all ranks on the disk.

The program says which section it is in (``start-up``, ``step``, ``evaluation``, ``save``). A section hangs when it has
taken longer than

    limit = min(ceiling, max(floor, 2 * median, median + 10 * 1.4826 * MAD))        of its last 100 durations
    limit = ceiling                                                                 while fewer than 5 are known

seconds (1.4826 * MAD is the standard deviation of normal durations, and of durations of minutes it can be nearly none:
hence twice the median); that of ``start-up``, which comes once, is a
setting. Durations are those of the first 5 and later; a section that saved something slow once has a large MAD. Of an
evaluation each batch is one (:meth:`Watchdog.went_on`): however many there are, it hangs where one of them does.

A rank whose section hangs writes ``stacks/HANG``; all ranks look for that file, also those that wait in a collective,
since the thread does: each dumps the stacks of its threads to ``stacks/rank-N.txt`` and says where it was in
``stacks/rank-N.json``. Then all exit with code 77, and the launcher starts the run again from its checkpoint. A rank
that left no file is stopped, or its node is gone: it is the one to look at; so is one that is in another section or
step than the others.

A process that was not running itself (suspended by the scheduler, or stopped) does not count that time: the thread
notices that its own sleep took too long. A thread that holds the interpreter's lock for ever stops this one too; for
that a timer in C (faulthandler) is set anew at every look, which dumps the stacks and ends the process with code 1.

Cost: two readings of the clock for each section, and in the thread one ``stat`` of a file every ``poll`` seconds.
"""

from __future__ import annotations

import contextlib
import faulthandler
import os
import statistics
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec

from toolkit.runtime import durable, holder, lease, outcome
from toolkit.runtime.hang import (
    FOLDER,
    HUNG,
    MARK,
    Hang,
    Place,
    Stamp,
    describe,
    in_one_line,
    new,
    read_hang,
    stamps,
    written,
)

KNOWN, FEWEST, DEVIATIONS = 100, 5, 10.0
MAD_TO_SIGMA = 1.4826
GRACE_SECONDS = 5.0  # for the other ranks to see the mark and dump too
IDLE = ""


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """Seconds. ``floor`` 0 switches the watchdog off."""

    floor: float = 120.0
    ceiling: float = 1800.0
    start_up: float = 86400.0  # it may have to tokenise
    poll: float = 1.0


def limit(durations: list[float], limits: Limits) -> float:
    """Seconds after which a section with these durations hangs."""
    if len(durations) < FEWEST:
        return limits.ceiling
    middle = statistics.median(durations)
    spread = statistics.median(abs(each - middle) for each in durations)
    return min(limits.ceiling, max(limits.floor, 2.0 * middle, middle + DEVIATIONS * MAD_TO_SIGMA * spread))


class Watchdog:
    """Watches one rank; ``leave`` is what ends the process."""

    def __init__(
        self,
        directory: str | Path,
        rank: int,
        world_size: int,
        limits: Limits,
        leave: Callable[[int], object] = os._exit,
    ) -> None:
        self.rank, self.world_size, self.limits = rank, world_size, limits
        self.folder = Path(directory) / FOLDER
        self._leave = leave
        self._durations: dict[str, deque[float]] = {}
        self._section, self._step, self._since = IDLE, 0, time.monotonic()
        self._ended = threading.Event()
        self._old: dict[str, Stamp] = {}  # what an earlier start has left
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Begin with section ``start-up``; marks of an earlier start are no longer of interest to rank 0."""
        if not self.limits.floor:
            return
        self.folder.mkdir(parents=True, exist_ok=True)
        self._old = stamps(self.folder)
        if self.rank == 0:
            (self.folder / MARK).unlink(missing_ok=True)
        self.enter("start-up")
        self._thread = threading.Thread(target=self._watch, name="watchdog", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """No more watching."""
        self._ended.set()
        if self._thread is not None:
            self._thread.join()
            faulthandler.cancel_dump_traceback_later()
            self._thread = None

    def enter(self, section: str, step: int = 0) -> str:
        """The program is in another section from now on; returns the one before. ``IDLE`` is watched by nobody."""
        now, before = time.monotonic(), self._section
        if before != IDLE and (before, self._step) != (section, step):
            self._durations.setdefault(before, deque(maxlen=KNOWN)).append(now - self._since)
        self._section, self._step, self._since = section, step, now
        return before

    def went_on(self, section: str) -> None:
        """Where the program is in this section: a part of it is done, and the next begins. Each is a duration."""
        now = time.monotonic()
        if self._section == section:
            self._durations.setdefault(section, deque(maxlen=KNOWN)).append(now - self._since)
            self._since = now

    @contextlib.contextmanager
    def section(self, name: str, step: int = 0) -> Iterator[None]:
        """Inside, the program is in ``name``; afterwards in nothing that is watched."""
        self.enter(name, step)
        try:
            yield
        finally:
            self.enter(IDLE)

    def place(self) -> Place:
        """Where this rank is, and its limit there."""
        section = self._section
        if section == IDLE:
            most = 0.0
        elif section == "start-up":
            most = self.limits.start_up
        else:
            most = limit(list(self._durations.get(section, ())), self.limits)
        seconds = time.monotonic() - self._since
        return Place(rank=self.rank, section=section, step=self._step, seconds=seconds, limit=most)

    def _watch(self) -> None:
        looked = time.monotonic()
        stuck = max(self.limits.ceiling, self.limits.start_up) + GRACE_SECONDS
        while not self._ended.wait(self.limits.poll):
            now = time.monotonic()
            slept = now - looked - self.limits.poll
            if slept > 5.0 * self.limits.poll:  # this process was not running
                self._since += slept
            looked = now
            with contextlib.suppress(OSError, ValueError, RuntimeError):  # stderr may be closed
                faulthandler.dump_traceback_later(stuck, exit=True)
            if self._has_ended(self.place()):
                self._leave(HUNG)
                return

    def _has_ended(self, found: Place) -> bool:
        """Whether the run is over: a hang, of this rank or another. What it leaves is on the disk by then.

        A file system that refuses now and then must not end this thread: nobody would see a hang any more, and the
        timer in C, which is not set anew, would end a run that is well.
        """
        over = 0.0 < found.limit < found.seconds
        try:
            if over:
                if self._is_anothers():  # whose ranks would take the mark for theirs
                    return True
                self._mark(found)
            if not self._marked():
                return over and found.seconds > found.limit + GRACE_SECONDS and self._tell_without_files(found)
            self._dump(found)
        except Exception:
            return over and found.seconds > found.limit + GRACE_SECONDS and self._tell_without_files(found)
        return True

    def _tell_without_files(self, found: Place) -> bool:
        """No mark can be made, as on a full disk: this rank ends alone, and the launcher ends the others."""
        hang = Hang(first=found, ranks=(found,), silent=())
        with contextlib.suppress(OSError, ValueError, RuntimeError):  # stderr may be closed
            print(describe(hang), file=sys.stderr, flush=True)
            faulthandler.dump_traceback(all_threads=True)
        with contextlib.suppress(OSError):
            done = max(0, found.step - (found.section == "step"))
            outcome.Presence(self.folder.parent, self.rank).hung(self.rank, done, in_one_line(hang))
        return True

    def _is_anothers(self) -> bool:
        folder = self.folder.parent
        return lease.is_lost(folder) or holder.is_of_another_run(folder, holder.of_this_process().run)

    def _mark(self, found: Place) -> None:
        with contextlib.suppress(OSError):
            self.folder.mkdir(parents=True, exist_ok=True)
            if not self._marked():
                durable.replace(self.folder / MARK, msgspec.json.encode(found))

    def _marked(self) -> bool:
        return MARK in new(self.folder, self._old)

    def _dump(self, found: Place) -> None:
        with contextlib.suppress(OSError):
            with (self.folder / f"rank-{self.rank}.txt").open("w") as file:
                file.write(f"rank {self.rank}: {found.section or 'between sections'}, step {found.step}\n")
                file.flush()
                faulthandler.dump_traceback(file, all_threads=True)
            durable.replace(self.folder / f"rank-{self.rank}.json", msgspec.json.encode(found))
        end = time.monotonic() + GRACE_SECONDS + 2.0 * self.limits.poll
        while time.monotonic() < end and len(written(self.folder, self._old)) < self.world_size:
            time.sleep(0.1)
        if self.rank == min(written(self.folder, self._old), default=self.rank):
            with contextlib.suppress(OSError, msgspec.MsgspecError):
                hang = read_hang(self.folder.parent, self.world_size, self._old)
                done = max(0, hang.first.step - (hang.first.section == "step"))
                outcome.Presence(self.folder.parent, self.rank).hung(hang.first.rank, done, in_one_line(hang))
                print(describe(hang), file=sys.stderr)
                sys.stderr.flush()
