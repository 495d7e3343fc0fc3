"""What a process prints is no reason to end it: where nobody can take it, it is lost, and the process goes on.

A reader that is gone (``| head``, a terminal or a login node that was lost), a log on a disk that is full, and a reader
that has stopped to read (Ctrl-S, a pager) end a program of Python at its next ``print``, or hold it there until its
watchdog takes it for hanging. Here a write that fails is dropped, and so is one that is not taken for :data:`PATIENCE`
seconds, until somebody reads again; a letter that the encoding of the terminal does not have is written as its number.
What matters is in files: ``steps.jsonl``, ``outcome.json``, ``stacks/``.

Where standard input, output or error are closed, the next file that is opened gets their number, and what native code
prints goes into that file, be it a checkpoint. So they are opened first, on nothing.
"""

from __future__ import annotations

import contextlib
import io
import os
import select
import stat
import sys
from typing import Any, TextIO

PATIENCE = 30.0  # seconds; less than a step may take before it counts as hanging
PIECE = 4096  # bytes that a pipe takes whole where it takes any (PIPE_BUF of Linux)


def keep() -> None:
    """For this process from now on; of streams that somebody has put in the place of the real ones nothing changes."""
    for number in (0, 1, 2):
        try:
            os.fstat(number)
        except OSError:
            _open_on_nothing(number)
    sys.stdout = _kept(sys.stdout, sys.__stdout__, 1)
    sys.stderr = _kept(sys.stderr, sys.__stderr__, 2)


def _open_on_nothing(number: int) -> None:
    opened = os.open(os.devnull, os.O_RDWR)  # the lowest number that is free, perhaps this one
    if opened != number:
        os.dup2(opened, number)
        os.close(opened)
    os.set_inheritable(number, True)


def _kept(stream: TextIO | None, real: TextIO | None, number: int) -> Any:
    if stream is not real or (stream is not None and _number(stream) != number):
        return stream
    if stream is not None:
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    errors, raw = getattr(stream, "errors", None) or "strict", _Raw(number, "wb", closefd=False)
    at_once = bool(getattr(stream, "write_through", False))  # python -u
    return io.TextIOWrapper(
        raw if at_once else io.BufferedWriter(raw),  # type: ignore[type-var]
        encoding=getattr(stream, "encoding", None) or "utf-8",
        errors="backslashreplace" if errors == "strict" else errors,
        line_buffering=bool(getattr(stream, "line_buffering", True)),
        write_through=at_once,
    )


def _number(stream: TextIO) -> int:
    try:
        return stream.fileno()
    except (OSError, ValueError, AttributeError):
        return -1


class _Raw(io.FileIO):
    """A stream that takes everything."""

    waits = PATIENCE  # 0 once nobody has read for that long

    def write(self, data: Any) -> int:
        """Its bytes, or as many of them as are lost."""
        left = memoryview(data).cast("B")
        size = len(left)
        with contextlib.suppress(OSError):
            if stat.S_ISREG(os.fstat(self.fileno()).st_mode):
                while left:
                    left = left[super().write(left) or 0 :]
                return size
            ready = select.poll()
            ready.register(self.fileno(), select.POLLOUT)
            while left:
                if not ready.poll(self.waits * 1000.0):
                    self.waits = 0.0
                    break
                left, self.waits = left[super().write(left[:PIECE]) or 0 :], PATIENCE
        return size
