"""A file system that does not take what a run writes: told in sentences, with what is needed to go on.

    what could not be written, by which rank, and what the file system said;
    how much room there is, how much a checkpoint takes, which one is whole and goes on

Libraries tell such a refusal in many forms (:mod:`toolkit.runtime.room`), and none tells the rest. What kind it is
follows from the number of the error: a disk or quota that is full, a right or a folder that is gone is so for every
node (``storage``); a read-only or stale mount and an input/output error are this node's (``device``).
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

from toolkit.errors import Problem, ToolkitError
from toolkit.runtime import checkpoint, faults, manifest, room
from toolkit.runtime.save_failed import OF_THE_NODE, CopyFailed, SaveFailed
from toolkit.units import format_bytes

GONE = (errno.ENOENT, errno.ENOTDIR)
RIGHTS = (errno.EACCES, errno.EPERM)


@contextlib.contextmanager
def in_sentences(folder: str | Path, who: str = "") -> Iterator[None]:
    """Inside, a refusal of the file system comes out as a SaveFailed, whatever a library made of it; ``who`` met it."""
    try:
        yield
    except (KeyboardInterrupt, SystemExit, GeneratorExit):
        raise
    except BaseException as error:  # of torch's distributed checkpoints
        told = explained(error, Path(folder), who)
        if told is None:
            raise
        raise told from error


def explained(error: BaseException, folder: Path, who: str = "") -> SaveFailed | None:
    """None where it is no refusal of the file system, or one that is told already."""
    if isinstance(error, CopyFailed):
        return None
    remedy = _remedy(folder)
    if not _is_folder(folder):  # whatever it was that could not go on without
        return SaveFailed(Problem(f"{folder} is gone, or its mount is ({who})", remedy))
    if isinstance(error, ToolkitError) and not isinstance(error, SaveFailed):
        return None
    if isinstance(error, SaveFailed):
        problem = Problem(error.problems[0].message, remedy)
        return SaveFailed(problem, kind=error.kind, rank=error.rank, host=error.host)
    found = _refusal(error, folder)
    if found is None:
        return None
    path = Path(os.fsdecode(found.filename)) if isinstance(found.filename, str | bytes) else None
    torn = _torn(folder)
    what = str(path) if path is not None else str(torn) if torn is not None else f"a file in {folder}"
    reason = found.strerror or str(found)
    by = f" ({who})" if who else ""
    kind = "device" if found.errno in OF_THE_NODE else "storage"
    return SaveFailed(Problem(f"{what} could not be written{by}: {reason}", remedy), kind=kind)


def _refusal(error: BaseException, folder: Path) -> OSError | None:
    """The error of the file system, where it is one that a person has to look after."""
    if isinstance(error, ConnectionError | TimeoutError) or faults.kind(error) in faults.WITNESSES:
        return None
    found = room.refusal(error)
    if found is None:
        return None
    inside = isinstance(found.filename, str) and Path(found.filename).is_relative_to(folder)
    if found.errno in (*room.NO_ROOM, *OF_THE_NODE) and (found.filename or found.errno not in room.OF_SOCKETS_TOO):
        return found
    if found.errno in RIGHTS and inside:
        return found
    if found.errno in GONE and inside and not _is_folder(Path(found.filename).parent):
        return OSError(errno.ENOENT, "the folder is gone", found.filename)
    return None


def _remedy(folder: Path) -> str:
    """Room, need, and what goes on; what cannot be found out is left out."""
    whole: list[Path] = []
    with contextlib.suppress(OSError, ToolkitError):
        whole = checkpoint.newest_complete(folder)
    parts = []
    with contextlib.suppress(OSError):
        parts.append(_free(folder))
    with contextlib.suppress(OSError, ToolkitError):
        parts += _need(folder, whole)
    said = f"{', '.join(parts)}; " if parts else ""
    if whole:
        return f"{said}{whole[-1].name} is whole: mend it or make room, and the same command goes on from there"
    return f"{said}there is no whole checkpoint: mend it or make room, and the same command starts again"


def _free(folder: Path) -> str:
    space = os.statvfs(folder)
    text = f"{folder} has {format_bytes(1.0 * space.f_bavail * space.f_frsize)} free"
    if space.f_files and space.f_favail == 0:
        text += " but room for no more files (inodes)"
    return text


def _need(folder: Path, whole: list[Path]) -> Iterable[str]:
    if whole:
        size = sum(each.bytes for each in manifest.read(whole[-1]).files.values())
        return [f"a checkpoint takes {format_bytes(1.0 * size)} (as {whole[-1].name})"]
    torn = _torn(folder)
    if torn is None:
        return []
    size = sum(path.stat().st_size for path in torn.rglob("*") if path.is_file())
    return [f"a checkpoint takes more than {format_bytes(1.0 * size)} (as much is written of {torn.name})"]


def _torn(folder: Path) -> Path | None:
    """The checkpoint that is being written: the newest folder of that name without a manifest."""
    found: list[tuple[int, Path]] = []
    with contextlib.suppress(OSError):
        for path in folder.iterdir():
            number = re.fullmatch(r"checkpoint-(\d+)", path.name)
            if number and not (path / manifest.MANIFEST).exists():
                found.append((int(number[1]), path))
    return max(found)[1] if found else None


def _is_folder(path: Path) -> bool:
    try:
        return path.is_dir()
    except OSError:  # a stale mount
        return True  # what it is, the error itself tells
