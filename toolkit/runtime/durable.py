"""What reaches the disk, in which order: the only place where checkpoints write, rename, delete and fsync.

POSIX promises little without fsync: after a power cut a file that was not fsynced may be empty, and a name
that was made, renamed or removed without an fsync of its directory may be there or not. Everything here says
what it is about to do to the observers first, so that tests can stop a process before each operation, one by one
(:mod:`tests.kill_points`), or let the disk be full there.
"""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Callable, Iterator
from pathlib import Path

NO_FSYNC_OF_FOLDERS = (errno.EINVAL, errno.EBADF, errno.ENOSYS, errno.ENOTSUP)

# Called with the operation's name and path, before it happens.
Observer = Callable[[str, Path], None]
observers: list[Observer] = []


def announce(operation: str, path: Path) -> None:
    """Tell the observers what happens next."""
    for observer in observers:
        observer(operation, path)


@contextlib.contextmanager
def naming(path: Path) -> Iterator[None]:
    """Inside, an error of a write or fsync, which does not tell of which file, gets its name."""
    try:
        yield
    except OSError as error:
        error.filename = error.filename or str(path)
        raise


def create(path: Path, content: bytes) -> None:
    """Write a new file and fsync it; its name is durable only after :func:`sync_directory` of its folder."""
    announce("open", path)
    with naming(path), path.open("wb", buffering=0) as file:
        half = len(content) // 2
        for part in (content[:half], content[half:]):
            announce("write", path)
            view = memoryview(part)
            while view:
                view = view[file.write(view) :]
        announce("fsync", path)
        os.fsync(file.fileno())


def replace(path: Path, content: bytes) -> None:
    """Replace a file in one step: a reader sees the old content or the new, also after a power cut."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        create(temporary, content)
    except OSError as error:
        error.filename = str(path)
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)  # of a full disk: what was written of it is of no use
        raise
    announce("rename", path)
    temporary.replace(path)
    sync_directory(path.parent)


def sync(path: Path) -> None:
    """Wait until a file that somebody else wrote is on the disk."""
    announce("fsync", path)
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sync_directory(path: Path) -> None:
    """Wait until the names in a folder are on the disk, where the file system has a way to say so.

    Some have none (SMB, some of FUSE and of virtual machines), and refuse; databases go on there too (PostgreSQL,
    ``fsync_fname_ext`` in ``src/backend/storage/file/fd.c``).
    """
    announce("fsync-directory", path)
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in NO_FSYNC_OF_FOLDERS:
            raise
    finally:
        os.close(descriptor)


def make_directory(path: Path) -> None:
    """Make a folder that must not exist, and its parents; the name is on the disk afterwards."""
    if not path.parent.is_dir():
        path.parent.mkdir(parents=True, exist_ok=True)
    announce("mkdir", path)
    path.mkdir()
    sync_directory(path.parent)


def rename(path: Path, target: Path) -> Path:
    """Rename within one folder; the new name is on the disk afterwards."""
    announce("rename", target)
    path.rename(target)
    sync_directory(target.parent)
    return target


def remove(path: Path) -> None:
    """Delete a file; it is gone from the disk afterwards. No error where it is gone before."""
    announce("unlink", path)
    path.unlink(missing_ok=True)
    sync_directory(path.parent)


def remove_tree(path: Path) -> None:
    """Delete a folder with all that is in it, in the order of names; of a link the link, a file as it is.

    What somebody else has deleted meanwhile is no error.
    """
    if path.is_symlink() or not path.is_dir():
        announce("unlink", path)
        path.unlink(missing_ok=True)
        return
    with contextlib.suppress(FileNotFoundError):
        for each in sorted(path.iterdir()):
            remove_tree(each)
        announce("rmdir", path)
        path.rmdir()
