"""One job at a time in an output directory: a lease with a heartbeat, by the clock of the file server.

Two jobs that write one directory delete each other's checkpoints. Whoever trains holds ``.lease.G``, G being one
more than that of the holder before; the file is made by linking, which fails for all but one of several that try.
A thread rewrites it every ``HEARTBEAT_SECONDS``. Another job that finds one

- of its own Slurm job (requeued, or started again in it), or of a process of this machine that is gone, takes over
  at once;
- whose last heartbeat is younger than ``STALE_SECONDS`` refuses;
- that is older watches it for two more heartbeats, then takes over.

Ages are differences of two modification times of this directory, that of the lease and that of a file written now:
clocks of nodes may be wrong by hours. A holder that was only asleep finds the higher number, and must not commit
(:meth:`Lease.check`): numbers only grow, so that it cannot come back.
"""

from __future__ import annotations

import contextlib
import os
import platform
import re
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType

import msgspec

from toolkit.errors import ToolkitError

HEARTBEAT_SECONDS, STALE_SECONDS = 15.0, 120.0
NAME = re.compile(r"\.lease\.(\d+)")


class Holder(msgspec.Struct, frozen=True, kw_only=True):
    """Who holds a lease."""

    host: str
    pid: int
    born: str = ""  # the process's start, in ticks since boot, with boot and name space: a number may be used again
    job_id: str = ""
    restart_count: int = 0
    beats: int = 0


class Lease:
    """A context manager; entering takes the lease or raises ToolkitError, leaving gives it back."""

    def __init__(
        self,
        directory: str | Path,
        environment: Mapping[str, str] = os.environ,
        heartbeat_seconds: float = HEARTBEAT_SECONDS,
        stale_seconds: float = STALE_SECONDS,
    ) -> None:
        self.directory = Path(directory)
        self.heartbeat_seconds, self.stale_seconds = heartbeat_seconds, stale_seconds
        restarts = environment.get("SLURM_RESTART_COUNT", "0")
        self.holder = Holder(
            host=platform.node(),
            pid=os.getpid(),
            born=_born(os.getpid()),
            job_id=environment.get("SLURM_JOB_ID", ""),
            restart_count=int(restarts) if restarts.isdecimal() else 0,
        )
        self._path: Path | None = None
        self._done = threading.Event()
        self._thread: threading.Thread | None = None

    def __enter__(self) -> Lease:
        try:
            self._take()
        except PermissionError as error:
            raise ToolkitError(
                f"cannot write in {self.directory}: {error.strerror}",
                remedy="ask for the right to, or give another --output-dir",
            ) from error
        return self

    def _take(self) -> None:
        generation = self._free_generation()
        path = self.directory / f".lease.{generation}"
        temporary = self.directory / f".lease-of-{self.holder.host}-{self.holder.pid}"
        temporary.write_bytes(msgspec.json.encode(self.holder))
        try:
            os.link(temporary, path)
        except FileExistsError:
            self._refuse(path, "took it in this moment")
        finally:
            temporary.unlink()
        self._path = path
        for number, old in self._all():
            if number < generation:
                old.unlink(missing_ok=True)
        _held[self.directory.resolve()] = self
        self._thread = threading.Thread(target=self._beat, name="lease", daemon=True)
        self._thread.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._done.set()
        _held.pop(self.directory.resolve(), None)
        if self._thread is not None:
            self._thread.join()
        if self._path is not None and not self._superseded():
            self._path.unlink(missing_ok=True)
        self._path = None

    def check(self) -> None:
        """Raise ToolkitError where another job has taken over: this one must write nothing more."""
        if self._path is not None and (later := self._superseded()):
            self._refuse(later, "took over, since this one had given no sign")

    def _superseded(self) -> Path | None:
        """The lease that counts, where it is not this one (or this one's path, where all are gone)."""
        assert self._path is not None
        newest = next((path for _, path in self._all()), self._path)
        holder = _read(newest)
        mine = holder is not None and (holder.host, holder.pid, holder.born) == (
            self.holder.host,
            self.holder.pid,
            self.holder.born,
        )
        return None if mine else newest

    def _all(self) -> list[tuple[int, Path]]:
        found = [(int(match[1]), path) for path in self.directory.iterdir() if (match := NAME.fullmatch(path.name))]
        return sorted(found, reverse=True)

    def _beat(self) -> None:
        beats = 0
        while not self._done.wait(self.heartbeat_seconds):
            beats += 1
            with contextlib.suppress(OSError):  # a full or absent disk: the next one may reach it
                self._rewrite(msgspec.json.encode(msgspec.structs.replace(self.holder, beats=beats)))

    def _rewrite(self, content: bytes) -> None:
        assert self._path is not None
        descriptor = os.open(self._path, os.O_WRONLY)  # not created: it may have been taken away
        try:
            os.pwrite(descriptor, content, 0)  # beats only grow, so the content does not get shorter
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def _free_generation(self) -> int:
        """The number to take, after waiting where that is needed; raises ToolkitError where the directory is held."""
        for number, path in self._all():
            holder = _read(path)
            if holder is None or self._may_follow(holder):
                return number + 1
            age = self._now() - _modified(path)
            if -self.heartbeat_seconds <= age <= self.stale_seconds:
                self._refuse(path, f"gave a sign {max(age, 0.0):.0f} s ago")
            # old, or from a clock ahead of the server's: no sign in this time, on this process's own clock, decides
            patience = 2 * self.heartbeat_seconds if age > 0 else self.stale_seconds
            until = time.monotonic() + patience
            while time.monotonic() < until:
                time.sleep(min(1.0, patience / 20))
                if path.exists() and _read(path) != holder:
                    self._refuse(path, "is alive: its heartbeat goes on")
            return number + 1
        return 1

    def _may_follow(self, holder: Holder) -> bool:
        here = holder.host == self.holder.host and _space(holder.born) == _space(self.holder.born)
        if here and _born(holder.pid) == holder.born:
            return False  # the process is there
        return here or bool(holder.job_id and holder.job_id == self.holder.job_id)

    def _now(self) -> float:
        """The time that the file server writes on a file now."""
        probe = self.directory / f".clock-of-{self.holder.host}-{self.holder.pid}"
        try:
            with probe.open("wb", buffering=0) as file:
                file.write(b"?")
                os.fsync(file.fileno())
            return probe.stat().st_mtime
        finally:
            probe.unlink(missing_ok=True)

    def _refuse(self, path: Path, why: str) -> None:
        holder = _read(path)
        who = "another job" if holder is None else f"process {holder.pid} on {holder.host}"
        job = f" (job {holder.job_id})" if holder and holder.job_id else ""
        raise ToolkitError(
            f"{self.directory} belongs to {who}{job}, which {why}",
            remedy=f"give another --output-dir, or stop that job: {self.stale_seconds:.0f} s after its last sign"
            " the directory is free",
        )


_held: dict[Path, Lease] = {}


def require(directory: str | Path) -> None:
    """Raise ToolkitError where this process held the lease of a directory and another job has taken over."""
    found = _held.get(Path(directory).resolve())
    if found is not None:
        found.check()


def holder(directory: str | Path) -> str:
    """Who writes in a directory now, in words; "" where nobody is known to."""
    other = Lease(directory, {})
    for _, path in other._all():
        found = _read(path)
        if found is None:
            continue
        here = found.host == other.holder.host and _space(found.born) == _space(other.holder.born)
        alive = _born(found.pid) == found.born if here else time.time() - _modified(path) <= other.stale_seconds
        if alive:
            return f"process {found.pid} on {found.host}" + (f" (job {found.job_id})" if found.job_id else "")
    return ""


def _read(path: Path) -> Holder | None:
    try:
        return msgspec.json.decode(path.read_bytes(), type=Holder)
    except (OSError, msgspec.MsgspecError):
        return None


def _modified(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except FileNotFoundError:
        return float("-inf")


def _born(pid: int) -> str:
    """What no other process has: start time, boot, and the name space of process numbers; "" where there is none."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
        fields = stat.rpartition(")")[2].split()
        if fields[0] == "Z":
            return ""
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{fields[19]} {boot} {Path('/proc/self/ns/pid').readlink()}"
    except OSError:
        return ""


def _space(born: str) -> str:
    return born.partition(" ")[2]
