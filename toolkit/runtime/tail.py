"""The end of a file of lines that only grows, without reading the rest: a run of ten million steps has gigabytes."""

from __future__ import annotations

import io
from collections.abc import Iterator
from pathlib import Path
from typing import IO

BLOCK_BYTES = 2**20


def length_of_whole_lines(file: IO[bytes]) -> int:
    """Bytes up to the last line end: what follows is a line that was being written."""
    end = file.seek(0, io.SEEK_END)
    while end > 0:
        start = max(0, end - BLOCK_BYTES)
        file.seek(start)
        place = file.read(end - start).rfind(b"\n")
        if place >= 0:
            return start + place + 1
        end = start
    return 0


def lines_backwards(path: Path) -> Iterator[bytes]:
    """Whole lines without their ends, the last one first; a torn last one is left out. Raises OSError."""
    with path.open("rb") as file:
        end, rest = length_of_whole_lines(file), b""
        first = True  # what follows the last line end is no line
        while end > 0:
            start = max(0, end - BLOCK_BYTES)
            file.seek(start)
            pieces = (file.read(end - start) + rest).split(b"\n")
            if first:
                pieces.pop()
                first = False
            rest, end = pieces[0], start
            yield from reversed(pieces[1:])
            if end == 0:
                yield rest
