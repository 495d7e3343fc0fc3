"""Folders that a user names: why one cannot be read, or written, in words; nothing is made or opened to find out."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

from toolkit.errors import ToolkitError, reason

NAME_MAX = 255  # bytes of one name on the file systems of Linux
REMEDY = "give a run's output directory, or one checkpoint"


def shown(path: str | Path) -> str:
    """A name for a sentence: on one line, whatever characters it has."""
    text = os.fspath(path)
    return text if text.isprintable() else repr(text)[1:-1]


def require(path: str | Path, remedy: str = REMEDY) -> None:
    """Raise ToolkitError unless this is a folder whose names can be read."""
    text = os.fspath(path)
    if not text:
        raise ToolkitError("the directory has an empty name", remedy="name one, or . for this one")
    try:
        mode = Path(text).stat().st_mode
    except (OSError, ValueError) as error:
        if isinstance(error, FileNotFoundError):
            why = "is a link to what is not there" if os.path.islink(text) else "is not there"  # noqa: PTH114
            raise ToolkitError(f"{shown(path)} {why}", remedy=remedy) from error
        raise ToolkitError(f"cannot read {_short(path)}: {reason(error)}", remedy=remedy) from error
    if stat.S_ISREG(mode):
        raise ToolkitError(f"{shown(path)} is a file, not a folder", remedy=remedy)
    if not stat.S_ISDIR(mode):
        raise ToolkitError(f"{shown(path)} is not a folder", remedy=remedy)
    if not os.access(text, os.R_OK | os.X_OK):
        raise ToolkitError(
            f"cannot read {shown(path)}: {os.strerror(errno.EACCES)}", remedy="ask its owner for the right to read it"
        )


def require_place(path: str | Path) -> None:
    """Raise ToolkitError where no folder of this name can be made: what it is to lie in is no folder, or not yours."""
    text, remedy = os.fspath(path), "give another DST"
    try:
        if not text or "\0" in text:
            raise ToolkitError(f"DST is {text!r}, no name of a folder", remedy=remedy)
        longest = max(len(os.fsencode(part)) for part in Path(text).parts or (".",))
        if longest > NAME_MAX:
            raise ToolkitError(f"cannot write {_short(path)}: {os.strerror(errno.ENAMETOOLONG)}", remedy=remedy)
        above = Path(os.path.abspath(text)).parent  # noqa: PTH100  links stay as they are
        while not os.path.lexists(above):
            above = above.parent
        mode = above.stat().st_mode
    except OSError as error:
        raise ToolkitError(f"cannot write {_short(path)}: {reason(error)}", remedy=remedy) from error
    if not stat.S_ISDIR(mode):
        raise ToolkitError(f"cannot write {shown(path)}: {shown(above)} is a file, not a folder", remedy=remedy)
    if not os.access(above, os.W_OK | os.X_OK):
        raise ToolkitError(f"cannot write {shown(path)}: {shown(above)} is read-only, or not yours", remedy=remedy)


def _short(path: str | Path) -> str:
    text = shown(path)
    return text if len(text) <= 200 else f"{text[:200]}..."
