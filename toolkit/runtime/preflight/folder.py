"""Why the output directory cannot be made or written: one sentence, what helps, and whose matter it is.

========  ========================================================  =====================================
kind      what                                                      what follows where all nodes have it
========  ========================================================  =====================================
input     a wrong path, rights, a file system that is read-only     exit code 2: give another one
full      no space, no inodes, a quota                              exit code 1: other nodes would not help
mount     a stale or broken mount, a disk that fails                exit code 1
========  ========================================================  =====================================

What only some of several nodes have is those nodes' own fault, whatever its kind.
"""

from __future__ import annotations

import errno
import os
import pwd
import stat
from pathlib import Path
from typing import NamedTuple

INPUT = (errno.EROFS, errno.EACCES, errno.EPERM, errno.ENOTDIR, errno.EEXIST, errno.ELOOP, errno.ENAMETOOLONG)
FULL = (errno.ENOSPC, errno.EDQUOT)
ANOTHER = "give another --output-dir"
ROOM = "delete old runs, give another --output-dir, or keep fewer checkpoints (--keep)"


class Refusal(NamedTuple):
    """``text`` goes on after "cannot write to DIR: "."""

    text: str
    remedy: str
    kind: str  # input | full | mount


def refusal(error: OSError, folder: Path) -> Refusal:
    """What an error of making or writing ``folder`` means."""
    number, said = error.errno or 0, error.strerror or str(error)
    if number in FULL:
        return _full(number, said, folder)
    if number in (errno.EEXIST, errno.ENOTDIR, errno.ELOOP, errno.ENOENT) and (found := _in_the_way(folder, said)):
        return found
    if number in (errno.EACCES, errno.EPERM):
        return _rights(said, folder)
    if number == errno.EROFS:
        return Refusal(said, f"{ANOTHER}; a local disk that has failed is read-only too: look at dmesg", "input")
    if number == errno.ENAMETOOLONG:
        return Refusal(said, "give an --output-dir with shorter names", "input")
    if number == errno.ESTALE:
        help_ = "its server has another folder there by now: mount it again on this node (umount -l), or drain the node"
        return Refusal(f"{said}: the mount is of a folder that is no more", help_, "mount")
    help_ = "look at the mount and at dmesg of this node, or drain it"
    return Refusal(said, ANOTHER if number in INPUT else help_, "input" if number in INPUT else "mount")


def _full(number: int, said: str, folder: Path) -> Refusal:
    if number == errno.EDQUOT:
        return Refusal(said, "look at your quota (quota -s, lfs quota -h), and " + ROOM, "full")
    try:
        space = os.statvfs(_deepest(folder))
        if space.f_files and not space.f_favail and space.f_bavail:
            return Refusal(f"{said}: no more files can be made (inodes)", ROOM, "full")
    except OSError:
        pass
    return Refusal(said, ROOM, "full")


def _in_the_way(folder: Path, said: str) -> Refusal | None:
    """The first part of the path that is something else than a directory."""
    for part in (*reversed(folder.parents), folder):
        try:
            mode = part.lstat().st_mode
        except OSError:
            return None
        if stat.S_ISDIR(mode):
            continue
        if not stat.S_ISLNK(mode):
            return Refusal(f"{part} is a file, not a directory", f"move it away, or {ANOTHER}", "input")
        target = part.readlink()
        try:
            part.stat()
        except FileNotFoundError:
            text = f"{part} is a link to {target}, which is not there"
            return Refusal(text, f"make that directory, remove the link, or {ANOTHER}", "input")
        except OSError as error:
            if error.errno != errno.ELOOP:
                return None
            return Refusal(f"{part} is a link that leads to itself", f"remove the link, or {ANOTHER}", "input")
        if not part.is_dir():
            text = f"{part} is a link to {target}, a file, not a directory"
            return Refusal(text, f"remove the link, or {ANOTHER}", "input")
    return Refusal(said, ANOTHER, "input")


def _rights(said: str, folder: Path) -> Refusal:
    place = _deepest(folder)
    try:
        found = place.stat()
    except OSError:
        return Refusal(said, ANOTHER, "input")
    text = f"{said}: {place} belongs to {_name(found.st_uid)} ({stat.filemode(found.st_mode)}), "
    text += f"and this is {_name(os.geteuid())}"
    return Refusal(text, f"ask its owner for the right to write there, or {ANOTHER}", "input")


def _deepest(folder: Path) -> Path:
    """The last part of the path that is there, as far as this user may see."""
    for part in (folder, *folder.parents):
        try:
            part.stat()
        except OSError:
            continue
        return part
    return Path("/")


def _name(user: int) -> str:
    try:
        return pwd.getpwuid(user).pw_name
    except KeyError:
        return f"user {user}"
