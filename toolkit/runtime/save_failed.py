"""The error of a save that the storage did not take; the same on every rank where all have met at it."""

from __future__ import annotations

import errno
import re
from collections.abc import Iterable

from toolkit.errors import Problem, ToolkitError

# of a mount or disk of one node
OF_THE_NODE = (errno.EIO, errno.ESTALE, errno.EROFS, errno.ENOTCONN, errno.ENODEV)
NUMBER, RANK = re.compile(r"\[Errno (\d+)\]"), re.compile(r"rank (\d+): ")


class SaveFailed(ToolkitError):
    """``kind`` is one of :mod:`toolkit.runtime.faults`: storage, or device. Inputs are not to blame: exit code 1.

    ``rank`` on ``host`` is the one that met it, where that is known and may be another one.
    """

    exit_code = 1

    def __init__(
        self,
        *problems: Problem | str,
        remedy: str = "",
        kind: str = "storage",
        rank: int | None = None,
        host: str = "",
    ) -> None:
        super().__init__(*problems, remedy=remedy)
        self.kind, self.rank, self.host = kind, rank, host


class CopyFailed(SaveFailed):
    """Durable storage has refused the last copy: what this disk lacks does not matter, nothing here is lost."""


def rank_of(texts: Iterable[str]) -> int | None:
    """The first that begins with one."""
    return next((int(found[1]) for text in texts if (found := RANK.match(text))), None)


def kind_of(texts: Iterable[str]) -> str:
    """Of errors of the file system in the form that Python gives them."""
    numbers = {int(number) for text in texts for number in NUMBER.findall(text)}
    return "device" if numbers and numbers <= set(OF_THE_NODE) else "storage"
