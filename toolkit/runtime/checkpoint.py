"""The commit protocol: a folder is a checkpoint once its manifest is there, and from then on it is whole.

    begin    rank 0 makes the fresh folder checkpoint-N (what lay there is set aside)
             every rank writes its part, with whatever the framework has
    commit   all ranks wait for one another; each fsyncs and hashes its share of the files;
             rank 0 writes manifest.json (temporary file, fsync, rename, fsync of the folder),
             then the pointer ``latest`` of the run; nobody goes on before
    prune    of those that may go the manifest is deleted first

The frameworks name their newest checkpoint before every rank has written its part, or find it by the folder's
name alone, and fsync nothing: a job that is killed, or a machine that loses power, leaves a torn one that they
resume from. Here such a folder has no manifest, and is set aside at the next start.

``FINISHED`` in the output directory says that the whole run is done; a job that is requeued after its
end finds it and leaves at once.
"""

from __future__ import annotations

import contextlib
import os
import re
import time
from collections.abc import Callable, Iterable
from pathlib import Path, PurePosixPath
from typing import Any

import msgspec

from toolkit.errors import ToolkitError, reason
from toolkit.runtime import durable, lease, manifest, retention, sums
from toolkit.runtime.inventory import (
    NAME,
    SET_ASIDE,
    choose,
    complete,
    every,
    inside,
    is_complete,
    named,
    newest_complete,
    newest_valid,
    verify,
)
from toolkit.runtime.manifest import MANIFEST, Damage, FileEntry, Manifest
from toolkit.runtime.together import ALONE, Group

# by these names they are read from here as well
__all__ = ["MANIFEST", "NAME", "SET_ASIDE", "Damage", "FileEntry", "Manifest", "choose", "complete", "is_complete"]
__all__ += ["every", "newest_complete", "newest_valid", "verify"]

FINISHED, LATEST = "FINISHED", "latest"
HALF_WRITTEN = re.compile(rf"\.({LATEST}|{FINISHED})\.\d+")


def begin(directory: str | Path, step: int, group: Group = ALONE, require: Callable[[], None] | None = None) -> Path:
    """Make the fresh folder of a save on rank 0; every rank calls it, and may write once it returns.

    A torn folder of this name is set aside; those set aside before make room. A valid checkpoint of the same step stays
    valid under the name ``checkpoint-N.old`` until the new one is committed. ``require`` as in :func:`commit`.
    """
    path = Path(directory) / f"checkpoint-{step}"

    def make() -> None:
        if require is not None:
            require()
        _make_room(Path(directory), step)
        if os.path.lexists(path):  # a link to nowhere too
            old = path.with_name(f"{path.name}.old")
            if old.exists():
                discard(old)
            if is_complete(path):
                others = [each.name for each in complete(directory) if each != path]
                if others:  # else there is a moment in which the pointer names a folder that is being written
                    point_to(directory, others[-1])
                durable.rename(path, old)
            else:
                _set_aside(path)
        durable.make_directory(path)

    sums.on_first(make, group, path)
    return path


def _make_room(folder: Path, step: int) -> None:
    """Delete what was set aside of steps up to this one, where there is a whole one: the disk may be full of it."""
    with contextlib.suppress(OSError, ToolkitError):  # tried again by the next prune
        doomed = [path for path, other in named(folder, SET_ASIDE) if other <= step]
        for path in doomed if doomed and complete(folder) else ():
            durable.remove_tree(path)


def commit(
    checkpoint: str | Path, facts: dict[str, Any], group: Group = ALONE, require: Callable[[], None] | None = None
) -> Manifest:
    """Declare a checkpoint whole; every rank calls it after its last write, ``facts`` are those of rank 0.

    ``require`` is called on rank 0 right before the manifest is written, and raises where it must not be.
    Raises ToolkitError on every rank where any of them could not read or fsync a file, or rank 0 could not
    write the manifest: then the folder is no checkpoint, and the older ones are what they were.
    """
    path = Path(checkpoint)
    group.share(None)  # all have written
    since = time.perf_counter()
    files = sums.of_all(path, group)
    made = manifest.make({"commit_seconds": time.perf_counter() - since} | facts, files)

    def write() -> None:
        inside = {path / folder for name in files for folder in PurePosixPath(name).parents}
        for folder in sorted({*inside, path, path.parent}):  # also those that hold folders only
            durable.sync_directory(folder)
        if require is not None:
            require()
        durable.replace(path / MANIFEST, manifest.encode(made))
        if NAME.fullmatch(path.name):
            point_to(path.parent, path.name)
        old = path.with_name(f"{path.name}.old")
        if old.exists():
            discard(old)

    sums.on_first(write, group, path)
    return made


def point_to(directory: str | Path, name: str) -> None:
    """Write the pointer: the name of the newest checkpoint, for people and other programs (this one looks itself).

    A folder that somebody has given its name stays as it is: a checkpoint is one without a pointer too.
    """
    if (Path(directory) / LATEST).is_dir() and not (Path(directory) / LATEST).is_symlink():
        return
    durable.replace(Path(directory) / LATEST, f"{name}\n".encode())


def facts(checkpoint: str | Path) -> dict[str, Any]:
    """What :func:`commit` was given."""
    return manifest.flat(manifest.read(checkpoint))


def set_aside_incomplete(directory: str | Path) -> list[Path]:
    """What a start does first, on one rank: rename torn checkpoints to ``incomplete-N``; returns these.

    So no file of theirs gets into a new ``checkpoint-N``. Half-written pointers are deleted. Of a step that was
    being saved again, the older checkpoint gets its name back where the newer is not whole. What cannot be read now
    keeps its name: storage may be back at the next start. Raises OfAnotherVersion, and touches nothing, where another
    version of this toolkit has saved: the run would go on from older ones, and these be deleted in time.
    """
    folder = Path(directory)
    torn = [path for path in every(directory) if _is_torn(path)]
    for path in inside(folder):
        if HALF_WRITTEN.fullmatch(path.name):
            durable.remove(path)
    moved = [_set_aside(path) for path in torn]
    for old in [path for path in every(folder) if path.name.endswith(".old")]:
        path = old.with_name(old.name.removesuffix(".old"))
        if is_complete(path):
            discard(old)
        elif not os.path.lexists(path):
            durable.rename(old, path)
    _correct_pointer(folder)
    return moved


def set_aside(directory: str | Path, doomed: Iterable[Path]) -> list[Path]:
    """Rename these to ``incomplete-N``, which returns; a pointer to one of them names the newest that stays.

    With what :func:`choose` found damaged, so that it does not count as one of the newest, for which others go.
    """
    moved = [_set_aside(path) for path in doomed]
    _correct_pointer(Path(directory))
    return moved


def _correct_pointer(folder: Path) -> None:
    """Where it names what is not there: the newest that is, or none."""
    pointer = folder / LATEST
    if not pointer.is_file():
        return
    with contextlib.suppress(OSError):  # what stands there may be no name at all
        if (folder / pointer.read_text(errors="replace").strip() / MANIFEST).is_file():
            return
    if stays := complete(folder):
        point_to(folder, stays[-1].name)
    else:
        durable.remove(pointer)


def prune(directory: str | Path, keep: int = 2, keep_every: int = 0, saved: int | None = None) -> list[Path]:
    """Delete what :func:`retention.doomed` gives of the whole checkpoints; returns what went. For one rank to call.

    ``saved`` is the step of the last save, where there has been one: what is newer was passed over at the start, since
    it cannot be read, and neither counts nor goes. Torn ones that were set aside go once there is a whole one as new as
    they are. What stays whatever it is like is not looked at. Raises OSError for one that cannot be deleted, when all
    others are.
    """
    found = [each for each in named(directory, NAME) if saved is None or each[1] <= saved]
    whole = retention.looked_at(found, is_complete, keep, keep_every)
    gone = retention.doomed(whole, keep, keep_every)
    newest = max((step for _, step in whole), default=-1)
    aside = [path for path, step in named(directory, SET_ASIDE) if step <= newest]
    errors = []
    for path in (*gone, *aside):
        try:
            discard(path) if path in gone else durable.remove_tree(path)
        except OSError as error:
            errors.append(error)
    if errors:
        raise errors[0]
    return gone


def discard(checkpoint: Path) -> None:
    """Delete a checkpoint: its manifest first, so that what is left of it after a kill is not taken for one."""
    durable.remove(checkpoint / MANIFEST)
    if checkpoint.is_symlink():  # to another disk
        durable.remove_tree(checkpoint.resolve())
    durable.remove_tree(checkpoint)


def mark_finished(directory: str | Path, facts: dict[str, Any]) -> None:
    """Declare the whole run done, and when; raises ToolkitError where another job has the directory by now."""
    lease.require(directory)
    content = msgspec.json.encode(facts | {"ended_unix": time.time()})
    durable.replace(Path(directory) / FINISHED, msgspec.json.format(content, indent=2) + b"\n")


def finished(directory: str | Path) -> dict[str, Any] | None:
    """What :func:`mark_finished` was given, and ``ended_unix``; None while the run is not done."""
    path = Path(directory) / FINISHED
    try:
        if not path.is_file():
            return None
        return msgspec.json.decode(path.read_bytes(), type=dict[str, Any])
    except (OSError, msgspec.MsgspecError) as error:
        raise ToolkitError(f"cannot read {path}: {reason(error)}", remedy="choose another --output-dir") from error


def _set_aside(path: Path) -> Path:
    target = path.with_name(path.name.replace("checkpoint", "incomplete"))
    if os.path.lexists(target):
        durable.remove_tree(target)  # an older torn one of the same step
    return durable.rename(path, target)


def _is_torn(path: Path) -> bool:
    """Whether something is known to be wrong: what nobody can read at this moment may be whole."""
    try:
        found = manifest.damage(path, manifest.read(path), deep=False)
    except manifest.OfAnotherVersion:
        raise
    except ToolkitError as error:
        unread = isinstance(error.__cause__, OSError)
        return not unread or isinstance(error.__cause__, FileNotFoundError | NotADirectoryError)
    return any(each.kind != "unreadable" for each in found)
