"""One run at a time in a place of durable storage: a mark with its run's id and signs of life, ``holder.json``.

Two runs that copy to one URL push each other's checkpoints out. Rank 0 takes the place before it looks for copies:

- A run that has checkpoints of its own, and another id than the mark: refused. The copies there are not of it.
- A run that has none (a new machine, an empty folder) takes over the id with the copies, since it goes on from them.
- While another process holds the place and is alive: refused. It is gone where it has said that it ended, is a process
  of this machine that is not there, a job that Slurm says is over, or an earlier start of this job. Of all others the
  mark is watched for ``PATIENCE_SECONDS``: a holder rewrites it every ``BEAT_SECONDS``. No clock is read.

An object store has no lock: whoever slept, or wrote at the same moment, finds another's mark before its next copy, and
ends (:func:`require`).
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import time
from collections.abc import Mapping
from pathlib import Path

import msgspec

from toolkit.errors import ToolkitError
from toolkit.runtime import checkpoint, storage, telemetry
from toolkit.runtime import holder as holders
from toolkit.runtime.holder import Holder

MARK = "holder.json"
BEAT_SECONDS, PATIENCE_SECONDS = 60.0, 150.0
LEAVE_SECONDS = 10.0  # a job that is preempted has few


class Mark(msgspec.Struct, frozen=True, kw_only=True):
    """Whose the copies are, and who writes them."""

    run_id: str  # as in run.json
    folder: str  # the output directory, on the holder's host
    holder: Holder
    ended: bool = False  # the process has left; the next start of the run takes the place at once

    def __str__(self) -> str:
        return f"run {self.run_id} in {self.folder}, {holders.in_words(self.holder)}"


class Taken(ToolkitError):
    """The place is another run's."""


class Claim:
    """The hold of this process on a place, for the run in ``folder``."""

    def __init__(self, url: str, folder: str | Path, environment: Mapping[str, str] = os.environ) -> None:
        self.url, self.folder, self._environment = url.rstrip("/"), Path(folder), environment
        self.mine = Mark(run_id="", folder=str(self.folder.resolve()), holder=holders.of_this_process(environment))
        self._done = threading.Event()
        self._thread: threading.Thread | None = None

    def take(self) -> None:
        """Raise Taken where it is another run's, Unreachable where nobody can tell."""
        there, own = self._read(), telemetry.known_run_id(self.folder)
        if there is not None:
            if own != there.run_id and checkpoint.complete(self.folder):
                raise Taken(
                    f"{self.url} holds the copies of another run ({there}), not of the one in {self.folder}",
                    remedy=f"give another --durable; where those copies are of no more use, delete {self.url}/{MARK}",
                )
            self._require_gone(there)
            own = there.run_id
        self.mine = msgspec.structs.replace(self.mine, run_id=telemetry.run_id(self.folder, own))
        self._write(self.mine)
        self._thread = threading.Thread(target=self._beat, name="durable-place", daemon=True)
        self._thread.start()

    def check(self) -> None:
        """Raise Taken where another process has taken over; write the mark again where it is gone."""
        there = self._read()
        if there is None:
            self._write(self.mine)
        elif not self._is_mine(there):
            raise Taken(
                f"{self.url} belongs to another start by now ({there})",
                remedy="one run at a time copies to a place: end the other one, or give another --durable",
            )

    def leave(self) -> None:
        """The process ends: the next start need not wait. Storage that does not answer holds the end up for little."""
        self._done.set()
        giving = threading.Thread(target=self._give_back, name="durable-place", daemon=True)
        giving.start()
        giving.join(timeout=LEAVE_SECONDS)

    def _give_back(self) -> None:
        if self._thread is not None:
            self._thread.join()
        with contextlib.suppress(ToolkitError):
            there = self._read()
            if there is not None and self._is_mine(there):
                self._write(msgspec.structs.replace(self.mine, ended=True))

    def _require_gone(self, there: Mark) -> None:
        holder = there.holder
        if there.ended or self._is_mine(there) or self._is_known_to_be_gone(holder):
            return
        print(f"note: {self.url} may be in use by {there}; watching it for {PATIENCE_SECONDS:.0f} s", file=sys.stderr)
        until = time.monotonic() + PATIENCE_SECONDS
        while time.monotonic() < until:
            time.sleep(min(5.0, PATIENCE_SECONDS / 20.0))
            now = self._read()
            if now is not None and now.ended:
                return
            if now is not None and now != there:  # None: it is being written, or was deleted
                raise Taken(
                    f"{self.url} is in use by {now}",
                    remedy="one run at a time copies to a place: end the other one, or give another --durable",
                )

    def _is_known_to_be_gone(self, holder: Holder) -> bool:
        here, mine = holders.lives_here(holder), self.mine.holder
        if here is not None:
            return not here
        if holder.job_id and (holder.job_id, holder.cluster) == (mine.job_id, mine.cluster):
            return holder.restart_count < mine.restart_count or (bool(mine.run) and holder.run != mine.run)
        return holders.slurm_says(holder, Path(self.url), self._environment) == "over"

    def _is_mine(self, there: Mark) -> bool:
        return holders.is_same(there.holder, self.mine.holder)

    def _beat(self) -> None:
        while not self._done.wait(BEAT_SECONDS):
            with contextlib.suppress(ToolkitError):  # storage that is away: the next one may reach it
                there = self._read()
                if there is not None and not self._is_mine(there):
                    return  # told before the next copy
                holder = msgspec.structs.replace(self.mine.holder, beats=self.mine.holder.beats + 1)
                self.mine = msgspec.structs.replace(self.mine, holder=holder)
                self._write(self.mine)

    def _read(self) -> Mark | None:
        with storage.opened(self.url) as (system, root):
            for _ in range(5):
                try:
                    return msgspec.json.decode(system.cat_file(f"{root}/{MARK}"), type=Mark)
                except FileNotFoundError:
                    return None
                except msgspec.MsgspecError:  # a file is not written in one step, as an object is
                    time.sleep(0.1)
            return None  # torn by a kill

    def _write(self, mark: Mark) -> None:
        with storage.opened(self.url) as (system, root):
            system.makedirs(root, exist_ok=True)
            system.pipe_file(f"{root}/{MARK}", msgspec.json.format(msgspec.json.encode(mark), indent=1) + b"\n")


_held: dict[tuple[str, Path], Claim] = {}


def require(url: str, folder: str | Path) -> None:
    """Take the place, or see that it is still this process's; for rank 0. Raises Taken, or Unreachable."""
    key = (url, Path(folder).resolve())
    if key in _held:
        _held[key].check()
        return
    claim = Claim(url, folder)
    claim.take()
    _held[key] = claim


def leave() -> None:
    """Give back all that this process holds."""
    while _held:
        _held.popitem()[1].leave()
