"""All saves of one run: begin, commit, prune, copy to durable storage, and for how long training stood still for it.

In the background (asynchronous saves, or with durable storage) fsync, hashing, manifest, pruning and the copy are
done by a thread with a process group of its own, while training goes on; the next save waits for it, and so does the
end of the run. A process that ends before leaves a folder without a manifest: the checkpoint before it counts.
"""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from toolkit.errors import ToolkitError, reason
from toolkit.runtime import checkpoint, lease, manifest, place, skipped, storage, sums, telemetry, together
from toolkit.runtime.manifest import Manifest
from toolkit.runtime.save_failed import CopyFailed, SaveFailed
from toolkit.runtime.together import Group


class Saver:
    """Every rank has one and calls it at the same steps."""

    def __init__(
        self,
        directory: str | Path,
        keep: int = 2,
        keep_every: int = 0,
        background: bool = False,
        durable: str = "",
        group: Group | None = None,
    ) -> None:
        self.directory, self.keep, self.keep_every, self.durable = Path(directory), keep, keep_every, durable
        self.background = background or bool(durable)
        self.group = group if group is not None else together.group(own=self.background)
        self.saved_step = -1  # after which the newest save of this process was
        self._stalled, self._depth = 0.0, 0  # seconds, since it was last asked for
        self._behind: Path | None = None  # what durable storage has not got
        self._since = 0.0  # when the save under way began
        self._thread: threading.Thread | None = None
        self._error: BaseException | None = None

    @contextlib.contextmanager
    def stalling(self) -> Iterator[None]:
        """Training stands still in here; may be nested."""
        since, self._depth = time.perf_counter(), self._depth + 1
        try:
            yield
        finally:
            self._depth -= 1
            if self._depth == 0:
                self._stalled += time.perf_counter() - since

    def begin(self, step: int) -> Path:
        """The fresh folder to write to; waits for the save before, and raises what it ended with."""
        with self.stalling():
            self.wait()
            self._since, self.saved_step = time.perf_counter(), step
            return checkpoint.begin(self.directory, step, self.group, self._require)

    def commit(self, path: Path, facts: dict[str, Any]) -> None:
        """Declare it whole once all ranks are here; in the background, if this run saves so."""
        with self.stalling():
            if not self.background:
                self._finish(path, facts)
                return
            self._thread = threading.Thread(target=self._in_background, args=(path, facts), name="commit")
            self._thread.start()

    def wait(self) -> None:
        """Until the save before is over; raises what it ended with."""
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        if self._error is not None:
            error, self._error = self._error, None
            raise error

    def close(self, goes_on: bool = False) -> None:
        """The run ends here: until all is saved; a copy that durable storage refused is tried once more.

        Also one that it has refused an earlier start, which had trained to the end. Raises CopyFailed on all ranks,
        but of a run that ``goes_on``, which was asked to stop and must be started again: its next copy makes up for it.
        """
        with self.stalling():
            self.wait()
            if not self.durable:
                return
            try:
                behind = self._behind or (self._left_behind() if self.saved_step < 0 else None)
                if behind is not None:
                    self._copy(behind)
            except place.Taken:
                raise
            except ToolkitError as error:
                said = error.problems[0]
                if goes_on:
                    if self.group.rank == 0:
                        print(f"note: {said.message}; it is tried again by the next start", file=sys.stderr)
                    return
                raise CopyFailed(
                    f"the newest checkpoint is whole in {self.directory}, and was not copied: {said.message}",
                    remedy=f"{said.remedy}; then the same command copies it",
                ) from error
            self._behind = None

    def _copy(self, path: Path) -> None:
        sums.on_first(lambda: place.require(self.durable, self.directory), self.group, self.durable)
        storage.upload(path, self.durable, self.group)

    def _left_behind(self) -> Path | None:
        """The newest checkpoint of the run, where durable storage has not got it; the same on every rank."""
        found: list[str] = []

        def look() -> None:
            whole = checkpoint.newest_complete(self.directory)
            found.extend(each.name for each in whole if storage.damage(f"{self.durable.rstrip('/')}/{each.name}"))

        sums.on_first(look, self.group, self.durable)
        names = self.group.share(found)[0]
        return self.directory / names[0] if names else None

    def take_stall_seconds(self) -> float:
        """For how long training stood still for saves since this was last called."""
        found, self._stalled = self._stalled, 0.0
        return found

    def _require(self) -> None:
        lease.require(self.directory)

    def _in_background(self, path: Path, facts: dict[str, Any]) -> None:
        try:
            self._finish(path, facts)
        except BaseException as error:  # told at the next save, on all ranks
            self._error = error

    def _finish(self, path: Path, facts: dict[str, Any]) -> None:
        known = {"versions": telemetry.versions(), "world_size": self.group.size} | facts
        known["save_seconds"] = time.perf_counter() - self._since
        checkpoint.commit(path, known, self.group, self._require)
        if self.durable:
            self._upload(path)
        sums.on_first(lambda: self._prune(path), self.group, self.directory)

    def _prune(self, path: Path) -> None:
        """What cannot be deleted costs room, and not the run: on NFS what somebody still reads keeps its folder."""
        self._require()
        try:
            checkpoint.prune(self.directory, self.keep, self.keep_every, manifest.read(path).step)
        except OSError as error:
            print(f"note: cannot delete {error.filename or self.directory}: {reason(error)}", file=sys.stderr)

    def _upload(self, path: Path) -> None:
        """Storage that is not there for a while must not end the run: the next checkpoint makes up for it.

        Raises Taken where another run has the place by now, which goes on from what was copied.
        """
        try:
            self._copy(path)
        except place.Taken:
            raise
        except ToolkitError as error:  # the same on all ranks, as what is behind must be: close copies it together
            self._behind = path
            if self.group.rank == 0:
                print(f"note: {error.problems[0].message}; it is tried again with the next one", file=sys.stderr)
            return
        self._behind = None
        if self.group.rank == 0:
            self._delete_old_copies(path)

    def _delete_old_copies(self, path: Path) -> None:
        """What cannot be deleted there costs room; credentials that may write and not delete are common."""
        try:
            known = manifest.read(path)
            skipped.discard_copies(self.durable, known.more.get(skipped.FACT) or ())
            storage.prune(self.durable, self.keep, self.keep_every, known.step)
        except ToolkitError as error:
            said = error.problems[0].message
            print(f"note: older copies cannot be deleted, and stay: {said}", file=sys.stderr)


def start_from_durable(
    directory: str | Path,
    url: str,
    group: Group,
    require: Callable[[dict[str, Any], str], None] | None = None,
    newer_than: int = -1,
    usable: Callable[[Manifest], bool] = bool,
) -> str | None:
    """Fetch the newest valid checkpoint of durable storage, if it is newer than this step; its name, or None.

    ``newer_than`` is the step of the newest that is whole in the run's own folder, ``usable`` tells of a manifest
    whether this run can go on from there. Damaged ones, also those found out on their way, are passed over. Every rank
    calls it. Raises ToolkitError on all where ``require`` does so, which is called on rank 0 with the facts of the
    newest one and its URL before anything is fetched; and where the storage cannot be read, or none be copied, and the
    run has nothing of its own: it would begin anew although there may be something to go on from. The place is this
    run's afterwards, or Taken is raised (:mod:`toolkit.runtime.place`).
    """
    if not url:
        return None
    found: list[str] = []

    def look() -> None:
        try:
            if require is not None:  # before anything is written there
                list(_newer(url, require, sys.maxsize, usable))
            place.require(url, directory)
            found.extend(_newer(url, None, newer_than, usable))
        except storage.Unreachable as error:
            if newer_than < 0:
                raise
            print(f"note: {error.problems[0].message}; going on without it", file=sys.stderr)

    sums.on_first(look, group, url)
    unread: ToolkitError | None = None
    for name in group.share(found)[0]:
        try:
            return storage.fetch(url, name, Path(directory), group).name
        except ToolkitError as error:
            if isinstance(error, storage.Unreachable | SaveFailed):
                unread = unread or error
            if group.rank == 0:
                print(f"note: {error.problems[0].message}", file=sys.stderr)
    if unread is not None and newer_than < 0:
        raise unread
    return None


def _newer(
    url: str,
    require: Callable[[dict[str, Any], str], None] | None,
    newer_than: int,
    usable: Callable[[Manifest], bool],
) -> Iterator[str]:
    """What could be fetched, the newest first."""
    for name in reversed(storage.names(url)):
        target = f"{url.rstrip('/')}/{name}"
        try:
            known = storage.read(target)
        except (storage.NotThere, manifest.NoManifest):
            continue
        if require is not None:
            require(manifest.flat(known), target)
            require = None
        if known.step <= newer_than:
            return
        if known.step == storage.step_of(name) and usable(known):
            wrong = storage.damage(target)
            if unread := next((each.text for each in wrong if each.kind == "unreadable"), ""):
                raise storage.Unreachable(f"{target}: {unread}", remedy="look whether the storage can be reached")
            if not wrong:
                yield name
