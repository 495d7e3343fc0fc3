"""A folder that is there whole or not at all: written under another name beside it, and nothing of it left on failure.

Every rank writes into ``.NAME.incomplete``; rank 0 gives it its name at the end. What had that name is kept until
then. Whatever keeps it from being written (no room, no right) is one sentence, the same on every rank.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

from recipes import ranks
from toolkit.errors import Problem, ToolkitError, reason
from toolkit.runtime import room, together

READ_ONLY = "its disk can only be read"


@contextlib.contextmanager
def fresh(folder: Path, rank: int) -> Iterator[Path]:
    """An empty folder beside ``folder`` to write into, deleted where the block fails; :func:`complete` it inside."""
    temporary = folder.with_name(f".{folder.name}.incomplete")

    def empty() -> None:
        shutil.rmtree(temporary, ignore_errors=True)
        temporary.mkdir(parents=True)

    ranks.on_first_rank(lambda: told(folder, empty), rank)
    try:
        yield temporary
    finally:
        if rank == 0:  # after complete it has another name
            shutil.rmtree(temporary, ignore_errors=True)


def everywhere(folder: Path, write: Callable[[], object], joint: bool = False) -> None:
    """Every rank writes its part; what one of them could not is raised on all. All ranks call it.

    ``joint``: the ranks wait for one another in ``write``, of torch's distributed checkpoints. There a rank may fail
    without a reason of its own since another has failed (CheckpointException, which is no Exception). One that fails
    by itself raises at once, and its launcher stops those that still wait for it.
    """
    group = together.group()
    problems: tuple[Problem, ...] = ()
    unknown: BaseException | None = None
    try:
        told(folder, write)
    except ToolkitError as error:
        if joint and group.size > 1 and isinstance(error.__cause__, Exception):
            raise
        problems = error.problems
    except (KeyboardInterrupt, SystemExit, GeneratorExit):
        raise
    except BaseException as error:
        if joint and group.size > 1 and isinstance(error, Exception):
            raise
        unknown = error
    found = group.share((problems, unknown is not None))
    if known := dict.fromkeys(problem for each, _ in found for problem in each):
        raise ToolkitError(*known)
    if unknown is not None:
        raise unknown
    if failed := [rank for rank, (_, wrong) in enumerate(found) if wrong]:
        raise ToolkitError(f"cannot write {folder}: rank {failed[0]} failed", remedy="its own message tells why")


def complete(folder: Path, temporary: Path) -> None:
    """Give it its name; what had it before is deleted after that. For one rank to call."""
    old = folder.with_name(f".{folder.name}.replaced")
    _remove(old)
    replaced = folder.is_symlink() or folder.exists()
    if replaced:
        folder.rename(old)
    try:
        temporary.rename(folder)
    except OSError:
        if replaced:
            old.rename(folder)
        raise
    _remove(old)


def told(folder: Path, write: Callable[[], object]) -> None:
    """Write; what the file system refuses is raised as a ToolkitError about ``folder``."""
    try:
        write()
    except ToolkitError:
        raise
    except (KeyboardInterrupt, SystemExit, GeneratorExit):
        raise
    except BaseException as error:  # of torch's distributed checkpoints: CheckpointException is no Exception
        if (refused := room.refusal(error)) is None:
            raise
        raise unwritable(folder, refused) from error


def unwritable(folder: Path, error: OSError) -> ToolkitError:
    """That a folder cannot be written, with the remedy that fits."""
    remedy = "choose another place; what was there is as it was"
    if error.errno in room.NO_ROOM:
        remedy = "make room, or choose another place; what was there is as it was"
    return ToolkitError(f"cannot write {folder}: {reason(error)}", remedy=remedy)


def require_place(out: Path) -> None:
    """Raise ToolkitError where no folder ``out`` can be made, by what is there above it."""
    above = next(path for path in (out.absolute(), *out.absolute().parents)[1:] if os.path.lexists(path))
    if not above.is_dir():
        raise ToolkitError(f"{above} is a file: there can be no {out}", remedy="give another --out")
    if not os.access(above, os.W_OK | os.X_OK):
        why = READ_ONLY if os.statvfs(above).f_flag & os.ST_RDONLY else os.strerror(errno.EACCES)
        raise ToolkitError(f"no folder can be made in {above}: {why}", remedy="give another --out")


def _remove(path: Path) -> None:
    if path.is_symlink():
        path.unlink()
    else:
        shutil.rmtree(path, ignore_errors=True)
