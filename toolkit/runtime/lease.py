"""One job at a time in an output directory: a lease with a heartbeat, by the clock of the file server.

Two jobs that write one directory delete each other's checkpoints. Whoever trains holds ``.lease.G``, G being one
more than that of the holder before; the file is made by linking, which fails for all but one of several that try (by
exclusive creation where the file system has no hard links: then it is empty for a moment, and who reads it in that
moment takes the next number; the first ends at its next heartbeat).
A thread rewrites it every ``HEARTBEAT_SECONDS`` (:mod:`toolkit.runtime.heartbeat`). Another job that finds one

- of its own Slurm job (requeued, or started again in it), of a job that Slurm says has ended or waits, or of a process
  of this machine that is gone, takes over at once;
- whose last heartbeat is younger than ``STALE_SECONDS`` refuses;
- that is older watches it for two more heartbeats, then takes over.

A batch script holds ``.job.G`` as well, for as long as its job runs (:mod:`toolkit.runtime.holder`): only processes of
that job may take the lease.

Ages are differences of two modification times of this directory, that of the lease and that of a file written now:
clocks of nodes may be wrong by hours. A holder that was only asleep finds the higher number, and must not commit
(:meth:`Lease.check`): numbers only grow, so that it cannot come back. Its heartbeat finds out too, and ends it after
the step that it is in, without a save (:func:`is_lost`).

    python -m toolkit.runtime.lease DIR       changes nothing; exit code 2, and a sentence, where another job is there
"""

from __future__ import annotations

import contextlib
import errno
import os
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType

import msgspec

from toolkit.errors import ToolkitError
from toolkit.runtime import holder as holders
from toolkit.runtime.heartbeat import FIRST_BEAT, Heartbeat
from toolkit.runtime.holder import JOB, LEASE, STALE_SECONDS, Holder
from toolkit.runtime.save_failed import SaveFailed, kind_of

HEARTBEAT_SECONDS = 15.0
NO_LINKS = (errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK)


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
        self.holder = holders.of_this_process(environment)
        self._environment = environment
        self._heart: Heartbeat | None = None

    def __enter__(self) -> Lease:
        try:
            self._take()
        except PermissionError as error:
            raise ToolkitError(
                f"cannot write in {self.directory}: {error.strerror}",
                remedy="ask for the right to, or give another --output-dir",
            ) from error
        except OSError as error:
            raise SaveFailed(
                f"cannot take the lease of {self.directory}: {error.strerror or error}",
                remedy="make room or mend the storage, then start again: nothing was changed",
                kind=kind_of([str(error)]),
            ) from error
        return self

    def look(self) -> None:
        """Raise ToolkitError where the lease could not be taken because of another job."""
        found = self._job()
        if found is not None and self.holder.job_id == found[1].job_id:
            return  # its script has looked
        self._free_generation()
        self._require_no_job()

    def _take(self) -> None:
        generation = self._free_generation()
        self._require_no_job()
        path = self.directory / f"{LEASE}.{generation}"
        self.holder = msgspec.structs.replace(self.holder, folder=self.directory.stat().st_ino, beats=FIRST_BEAT)
        temporary = self.directory / f".lease-of-{self.holder.host}-{self.holder.pid}"
        try:
            temporary.write_bytes(msgspec.json.encode(self.holder))
            if not _made(temporary, path):
                self._refuse(path, "took it in this moment")
        finally:
            temporary.unlink(missing_ok=True)
        heart = Heartbeat(path, self.holder, self.heartbeat_seconds, self.stale_seconds)
        try:
            if later := heart.superseded():
                self._refuse(later, "took it in this moment")
            self._require_no_job()  # a batch script looks at leases after it has made its file, in turn
        except ToolkitError:
            path.unlink(missing_ok=True)
            raise
        for number, old in holders.files(self.directory, LEASE):
            if number < generation:
                old.unlink(missing_ok=True)
        self._heart = _held[_key(self.directory)] = heart
        heart.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        heart, self._heart = self._heart, None
        _held.pop(_key(self.directory), None)
        if heart is None:
            return
        heart.stop()
        with contextlib.suppress(OSError):  # storage that is away must not hide why the run ends
            if not heart.superseded():
                heart.path.unlink(missing_ok=True)

    def check(self) -> None:
        """Raise ToolkitError where another job has taken over: this one must write nothing more."""
        require(self.directory)

    def _free_generation(self) -> int:
        """The number to take, after waiting where that is needed; raises ToolkitError where the directory is held."""
        for number, path in holders.files(self.directory, LEASE):
            holder = holders.read_now(path)
            if holder is not None and not self._may_follow(holder):
                self._require_gone(path, holder)
            return number + 1
        return 1

    def _may_follow(self, holder: Holder) -> bool:
        here = holders.lives_here(holder)
        if here is not None:
            return not here
        if not holder.job_id or holder.job_id != self.holder.job_id:
            return self._has_job()  # whose script has looked
        return holder.restart_count < self.holder.restart_count or (
            bool(self.holder.run) and holder.run != self.holder.run
        )

    def _job(self) -> tuple[Path, Holder] | None:
        """The batch script that holds the directory."""
        found = ((path, holders.read(path)) for _, path in holders.files(self.directory, JOB))
        return next(((path, holder) for path, holder in found if holder is not None), None)

    def _has_job(self) -> bool:
        found = self._job()
        mine = self.holder.job_id
        return found is not None and found[1].job_id == mine and self.holder.run.startswith(f"{mine}-")

    def _require_no_job(self) -> None:
        """Raise ToolkitError where another job's script holds the directory."""
        found = self._job()
        if found is not None and found[1].job_id != self.holder.job_id and holders.lives_here(found[1]) is not False:
            self._require_gone(*found)

    def _require_gone(self, path: Path, holder: Holder) -> None:
        """Raise ToolkitError unless the holder is known to be gone, or gives no sign in some time."""
        said, until = holders.slurm_says(holder, path, self._environment), time.monotonic() + self.stale_seconds
        while said == "ending" and time.monotonic() < until:
            time.sleep(1.0)
            said = holders.slurm_says(holder, path, self._environment)
        if said == "over":
            return
        copied = holders.is_copied(holder, self.directory)
        if not copied and (said == "suspended" or (said == "running" and path.name.startswith(f"{JOB}."))):
            self._refuse(path, f"is {said}", holder)
        before, age = holders.sign(path), self._now() - holders.modified(path)
        if not copied and -self.heartbeat_seconds <= age <= self.stale_seconds:
            self._refuse(path, f"gave a sign {max(age, 0.0):.0f} s ago", holder)
        # old, or from a clock ahead of the server's: no sign in this time, on this process's own clock, decides
        patience = 2 * self.heartbeat_seconds if age >= -self.heartbeat_seconds else self.stale_seconds
        until = time.monotonic() + patience
        while time.monotonic() < until:
            time.sleep(min(1.0, patience / 20))
            if holders.sign(path) not in (None, before):
                self._refuse(path, "is alive: its heartbeat goes on", holder)

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

    def _refuse(self, path: Path, why: str, holder: Holder | None = None) -> None:
        raise _belongs(self.directory, path, why, holder, self.stale_seconds)


_held: dict[str, Heartbeat] = {}


def _key(directory: str | Path) -> str:
    """Without links; never an error, as Path.resolve has for links in a circle."""
    return os.path.realpath(directory)


def _made(content: Path, path: Path) -> bool:
    """Whether it was this process that made ``path``, with the content of another file of its directory."""
    try:
        os.link(content, path)
    except FileExistsError:
        return content.samefile(path)  # the file server has answered a second time
    except OSError as error:
        if error.errno not in NO_LINKS:
            raise
        try:
            with path.open("xb") as file:
                file.write(content.read_bytes())
        except FileExistsError:
            return False
    return True


def require(directory: str | Path) -> None:
    """Raise ToolkitError where this process held the lease of a directory and another job has taken over."""
    found = _held.get(_key(directory))
    if found is not None and found.superseded():
        raise taken(directory)


def is_lost(directory: str | Path) -> bool:
    """Whether this process held the lease of a directory and is known to have it no more; for every step to ask."""
    found = _held.get(_key(directory))
    return found is not None and found.is_lost()


def taken(directory: str | Path) -> ToolkitError:
    """What ends a run whose lease is lost, on whichever of its ranks."""
    newest = next((path for _, path in holders.files(Path(directory), LEASE)), Path(directory) / LEASE)
    return _belongs(directory, newest, "took over, since this one had given no sign")


def _belongs(
    directory: str | Path, path: Path, why: str, known: Holder | None = None, stale_seconds: float = STALE_SECONDS
) -> ToolkitError:
    holder = holders.read(path) or known
    return ToolkitError(
        f"{directory} belongs to {holders.in_words(holder)}, which {why}",
        remedy=holders.how_to_end(holder, stale_seconds),
    )


def main(words: list[str]) -> int:
    """Look at a directory that a run is about to be started in."""
    try:
        Lease(words[0]).look()
    except ToolkitError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    except OSError as error:  # the run itself tells what it cannot write
        print(f"note: whether {words[0]} is another job's cannot be seen: {error}", file=sys.stderr)
    except KeyboardInterrupt:
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
