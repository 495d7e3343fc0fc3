"""A thread in each rank that ends a run which hangs, with the stacks of all ranks on the disk.

The program says which section it is in (``start-up``, ``step``, ``evaluation``, ``save``). A section hangs when it has
taken longer than

    limit = min(ceiling, max(floor, median + 10 * 1.4826 * MAD))        of its last 100 durations
    limit = ceiling                                                     while fewer than 5 are known

seconds (1.4826 * MAD is the standard deviation of normal durations); that of ``start-up``, which comes once, is a
setting. Durations are those of the first 5 and later; a section that saved something slow once has a large MAD.

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
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import msgspec

from toolkit.runtime import durable, outcome

HUNG = 77  # exit code
FOLDER, MARK = "stacks", "HANG"
KNOWN, FEWEST, DEVIATIONS = 100, 5, 10.0
MAD_TO_SIGMA = 1.4826
GRACE_SECONDS = 5.0  # for the other ranks to see the mark and dump too
IDLE = ""
Stamp = tuple[int, int]  # inode and time of change of a file: another one where it has been written anew


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """Seconds. ``floor`` 0 switches the watchdog off."""

    floor: float = 120.0
    ceiling: float = 1800.0
    start_up: float = 86400.0  # it may have to tokenise
    poll: float = 1.0


class Place(msgspec.Struct, frozen=True, kw_only=True):
    """Where a rank is."""

    rank: int
    section: str
    step: int
    seconds: float
    limit: float = 0.0


class Hang(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of a hang, from the files of the ranks."""

    first: Place
    ranks: tuple[Place, ...]
    silent: tuple[int, ...]  # ranks that wrote nothing

    @property
    def suspects(self) -> tuple[int, ...]:
        """Silent ranks, or else those whose section and step are not those of most."""
        if self.silent:
            return self.silent
        where = [(each.section, each.step) for each in self.ranks]
        most = max(set(where), key=where.count)
        odd = tuple(each.rank for each in self.ranks if (each.section, each.step) != most)
        return odd if len(odd) < len(where) / 2 else ()


def limit(durations: list[float], limits: Limits) -> float:
    """Seconds after which a section with these durations hangs."""
    if len(durations) < FEWEST:
        return limits.ceiling
    middle = statistics.median(durations)
    spread = statistics.median(abs(each - middle) for each in durations)
    return min(limits.ceiling, max(limits.floor, middle + DEVIATIONS * MAD_TO_SIGMA * spread))


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
        self._old = _stamps(self.folder)
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
            found = self.place()
            if found.limit and found.seconds > found.limit:
                self._mark(found)
            if self._marked():
                self._dump(found)
                self._leave(HUNG)
                return

    def _mark(self, found: Place) -> None:
        with contextlib.suppress(OSError):
            self.folder.mkdir(parents=True, exist_ok=True)
            if not self._marked():
                durable.replace(self.folder / MARK, msgspec.json.encode(found))

    def _marked(self) -> bool:
        return MARK in _new(self.folder, self._old)

    def _dump(self, found: Place) -> None:
        with contextlib.suppress(OSError):
            with (self.folder / f"rank-{self.rank}.txt").open("w") as file:
                file.write(f"rank {self.rank}: {found.section or 'between sections'}, step {found.step}\n")
                file.flush()
                faulthandler.dump_traceback(file, all_threads=True)
            durable.replace(self.folder / f"rank-{self.rank}.json", msgspec.json.encode(found))
        end = time.monotonic() + GRACE_SECONDS + 2.0 * self.limits.poll
        while time.monotonic() < end and len(_written(self.folder, self._old)) < self.world_size:
            time.sleep(0.1)
        if self.rank == min(_written(self.folder, self._old), default=self.rank):
            with contextlib.suppress(OSError, msgspec.MsgspecError):
                hang = read_hang(self.folder.parent, self.world_size, self._old)
                done = max(0, hang.first.step - (hang.first.section == "step"))
                outcome.Presence(self.folder.parent, self.rank).hung(hang.first.rank, done, in_one_line(hang))
                print(describe(hang), file=sys.stderr)
                sys.stderr.flush()


def _stamps(folder: Path) -> dict[str, Stamp]:
    """Of each file of a hang; what its clock says is compared with nothing, since that of a node may be wrong."""
    found: dict[str, Stamp] = {}
    for path in (folder / MARK, *folder.glob("rank-*.json")):
        with contextlib.suppress(OSError):
            stat = path.stat()
            found[path.name] = (stat.st_ino, stat.st_mtime_ns)
    return found


def _new(folder: Path, old: Mapping[str, Stamp]) -> list[str]:
    return [name for name, stamp in _stamps(folder).items() if old.get(name) != stamp]


def _written(folder: Path, old: Mapping[str, Stamp]) -> list[int]:
    return [int(name[len("rank-") : -len(".json")]) for name in _new(folder, old) if name != MARK]


def read_hang(directory: str | Path, world_size: int, old: Mapping[str, Stamp] | None = None) -> Hang:
    """The newest hang of a run, from the files that its ranks left, but for ``old`` ones; OSError if there was none."""
    folder = Path(directory) / FOLDER
    ranks = sorted(_written(folder, old or {}))
    return Hang(
        first=msgspec.json.decode((folder / MARK).read_bytes(), type=Place),
        ranks=tuple(msgspec.json.decode((folder / f"rank-{rank}.json").read_bytes(), type=Place) for rank in ranks),
        silent=tuple(rank for rank in range(world_size) if rank not in ranks),
    )


def in_one_line(hang: Hang) -> str:
    """The same for ``outcome.json``."""
    return "; ".join(line.strip() for line in describe(hang).removeprefix("error: ").splitlines())


def describe(hang: Hang) -> str:
    """What happened, for the log."""
    first = hang.first
    text = (
        f"error: the run hangs: {first.section} {first.step or ''} has taken {first.seconds:.0f} s on rank"
        f" {first.rank}, its limit is {first.limit:.0f} s; exit code {HUNG}"
    )
    if hang.silent:
        text += f"\n  no answer from rank {', '.join(map(str, hang.silent))}: stopped, or its node is gone"
    elif hang.suspects:
        names = [f"{each.rank} ({each.section} {each.step})" for each in hang.ranks if each.rank in hang.suspects]
        text += f"\n  elsewhere than the others: rank {', '.join(names)}"
    return f"{text}\n  the stacks of the ranks are in the folder {FOLDER} of the output directory"
