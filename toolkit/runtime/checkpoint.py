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
from toolkit.runtime import durable, lease, manifest, retention, shares, sums
from toolkit.runtime.manifest import MANIFEST, Damage, FileEntry, Manifest
from toolkit.runtime.together import ALONE, Group

__all__ = ["MANIFEST", "Damage", "FileEntry", "Manifest"]  # by these names they are read from here as well

FINISHED, LATEST = "FINISHED", "latest"
# the name that the Hugging Face Trainer gives; ".old" while one of the same step is written anew
NAME, SET_ASIDE = re.compile(r"checkpoint-(\d+)(\.old)?"), re.compile(r"incomplete-(\d+)(\.old)?")
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
        doomed = [path for path, other in _named(folder, SET_ASIDE) if other <= step]
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
    """Write the pointer: the name of the newest checkpoint, for people and other programs (this one looks itself)."""
    durable.replace(Path(directory) / LATEST, f"{name}\n".encode())


def facts(checkpoint: str | Path) -> dict[str, Any]:
    """What :func:`commit` was given."""
    return manifest.flat(manifest.read(checkpoint))


def is_complete(checkpoint: Path) -> bool:
    """Whether there is a readable manifest, and each of its files with the right size."""
    try:
        return not manifest.damage(checkpoint, manifest.read(checkpoint), deep=False)
    except ToolkitError:
        return False


def complete(directory: str | Path) -> list[Path]:
    """The checkpoints of a run that look whole by manifest and sizes, oldest step first."""
    return [path for path in _all(directory) if is_complete(path)]


def verify(checkpoint: str | Path, group: Group = ALONE, deep: bool = True) -> list[Damage]:
    """All that is wrong with a checkpoint, by file; hashing is shared out over the ranks, which all get the answer."""
    path = Path(checkpoint)
    try:
        known = manifest.read(path)
        sizes = {name: each.bytes for name, each in known.files.items()}
        mine = manifest.damage(path, known, shares.to_hash(sizes, group.hosts)[group.rank], deep)
        mine += _beside_the_sums(path, known) if group.rank == 0 else []
    except ToolkitError as error:
        kind = "later" if isinstance(error, manifest.OfAnotherVersion) else "unreadable"
        mine = [Damage(MANIFEST, kind if os.path.lexists(path / MANIFEST) else "missing", error.problems[0].message)]
    found = dict.fromkeys(each for part in group.share(mine) for each in part)  # several may not read the manifest
    return sorted(found, key=lambda each: each.file)


def _beside_the_sums(path: Path, known: Manifest) -> list[Damage]:
    found = []
    try:
        extra = sorted(set(manifest.file_names(path)) - set(known.files))
        found += [Damage(name, "extra", "the manifest does not have it") for name in extra]
    except OSError as error:
        found.append(Damage(Path(error.filename or path).name, "unreadable", error.strerror or str(error)))
    match = NAME.fullmatch(path.name)
    if match and int(match[1]) != known.step:
        found.append(Damage(MANIFEST, "inconsistent", f"it is of step {known.step}, the folder's name of another"))
    return found


def newest_valid(directory: str | Path, group: Group = ALONE, deep: bool = True) -> Path | None:
    """The newest checkpoint whose every file is as its manifest says; None where there is none."""
    return choose(directory, group, deep)[0]


def choose(directory: str | Path, group: Group = ALONE, deep: bool = True) -> tuple[Path | None, list[Path]]:
    """The newest valid checkpoint, and the newer ones that are damaged, the oldest first; the same on every rank.

    Those that only cannot be read now are passed over too, and are in neither. Raises ToolkitError on every rank where
    one of them does not see what rank 0 sees: it would go on from another checkpoint than the others.
    """
    found: list[Path] = []
    sums.on_first(lambda: found.extend(complete(directory)), group, Path(directory))
    damaged: list[Path] = []
    for path in reversed(group.share(found)[0]):
        _require_visible(path, group)
        kinds = {each.kind for each in verify(path, group, deep) if each.fatal}
        if not kinds:
            return path, damaged[::-1]
        if not kinds & {"unreadable", "later"}:
            damaged.append(path)
    return None, damaged[::-1]


def _require_visible(path: Path, group: Group) -> None:
    seen = group.share(os.path.lexists(path / MANIFEST))
    blind = [rank for rank, sees in enumerate(seen) if not sees]
    if seen[0] and blind:
        raise ToolkitError(
            f"rank {blind[0]} on {group.hosts[blind[0]]} does not see {path}, which rank 0 on {group.hosts[0]} sees",
            remedy="the output directory must be on storage that all nodes share",
        )


def set_aside_incomplete(directory: str | Path) -> list[Path]:
    """What a start does first, on one rank: rename torn checkpoints to ``incomplete-N``; returns these.

    So no file of theirs gets into a new ``checkpoint-N``. Half-written pointers are deleted. Of a step that was
    being saved again, the older checkpoint gets its name back where the newer is not whole. What cannot be read now
    keeps its name: storage may be back at the next start. Raises OfAnotherVersion, and touches nothing, where another
    version of this toolkit has saved: the run would go on from older ones, and these be deleted in time.
    """
    folder = Path(directory)
    torn = [path for path in _all(directory) if _is_torn(path)]
    for path in _inside(folder):
        if HALF_WRITTEN.fullmatch(path.name):
            durable.remove(path)
    moved = [_set_aside(path) for path in torn]
    for old in [path for path in _all(folder) if path.name.endswith(".old")]:
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
    if not pointer.is_file() or (folder / pointer.read_text(errors="replace").strip() / MANIFEST).is_file():
        return
    if stays := complete(folder):
        point_to(folder, stays[-1].name)
    else:
        durable.remove(pointer)


def prune(directory: str | Path, keep: int = 2, keep_every: int = 0, saved: int | None = None) -> list[Path]:
    """Delete what :func:`retention.doomed` gives of the whole checkpoints; returns what went. For one rank to call.

    ``saved`` is the step of the last save, where there has been one: what is newer was passed over at the start, since
    it cannot be read, and neither counts nor goes. Torn ones that were set aside go once there is a whole one as new as
    they are. Raises OSError for one that cannot be deleted, when all others are.
    """
    whole = {path: manifest.read(path).step for path in complete(directory)}
    if saved is not None:
        whole = {path: step for path, step in whole.items() if step <= saved}
    gone = retention.doomed(whole.items(), keep, keep_every)
    newest = max(whole.values(), default=-1)
    aside = [path for path, step in _named(directory, SET_ASIDE) if step <= newest]
    errors = []
    for path in (*gone, *aside):
        try:
            discard(path) if path in whole else durable.remove_tree(path)
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
    if target.exists():
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


def _all(directory: str | Path) -> list[Path]:
    return [path for path, _ in _named(directory, NAME)]


def _named(directory: str | Path, name: re.Pattern[str]) -> list[tuple[Path, int]]:
    """Folders and steps, the oldest step first; of one step the one that is being replaced first."""
    folder = Path(directory)
    found = [(int(match[1]), not match[2], path) for path in _inside(folder) if (match := name.fullmatch(path.name))]
    return [(path, step) for step, _, path in sorted(found)]


def _inside(folder: Path) -> list[Path]:
    """What a folder holds, nothing where there is none; raises ToolkitError where this user may not look."""
    try:
        return list(folder.iterdir()) if folder.is_dir() else []
    except OSError as error:
        raise ToolkitError(
            f"cannot read {folder}: {reason(error)}", remedy="ask for the right to, or give another --output-dir"
        ) from error
