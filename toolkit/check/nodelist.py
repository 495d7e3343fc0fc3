"""Node lists as Slurm writes them: ``n[1-4,7],m3`` is six hosts, whatever a comma seems to say."""

from __future__ import annotations

import re
from collections.abc import Iterator

from toolkit.errors import ToolkitError

MOST_HOSTS = 100_000
_RANGE = re.compile(r"(\d+)(?:-(\d+))?")


def hostnames(text: str) -> list[str]:
    """The hosts of a node list, in order, as ``scontrol show hostnames`` prints them.

    Ranges keep leading zeros (``n[08-10]`` is n08, n09, n10); several brackets multiply. Raises ToolkitError for
    brackets that do not close and for what is no range.
    """
    found: list[str] = []
    for part in _parts(text):
        found += _expanded(part, text)
        if len(found) > MOST_HOSTS:
            raise ToolkitError(f"node list {text[:60]!r} names more than {MOST_HOSTS:,} hosts", remedy="correct it")
    return found


def _parts(text: str) -> Iterator[str]:
    """Pieces between the commas outside of brackets."""
    depth, begin = 0, 0
    for at, letter in enumerate(text):
        depth += (letter == "[") - (letter == "]")
        if depth not in (0, 1):
            raise ToolkitError(f"brackets of node list {text[:60]!r} do not match", remedy="write n[1-4,7]")
        if letter == "," and depth == 0:
            yield text[begin:at]
            begin = at + 1
    if depth:
        raise ToolkitError(f"a bracket of node list {text[:60]!r} is not closed", remedy="write n[1-4,7]")
    yield text[begin:]


def _expanded(part: str, text: str) -> list[str]:
    before, bracket, rest = part.partition("[")
    if not bracket:
        if not part.strip():
            raise ToolkitError(f"a name is missing in node list {text[:60]!r}", remedy="write n1,n2")
        return [part.strip()]
    inside, _, after = rest.partition("]")
    ends = _expanded(after, text) if after else [""]
    found: list[str] = []
    for piece in inside.split(","):
        matched = _RANGE.fullmatch(piece.strip())
        if not matched:
            raise ToolkitError(f"{piece!r} in node list {text[:60]!r} is no range", remedy="write n[1-4,7]")
        low, high = matched[1], matched[2] or matched[1]
        if int(high) < int(low) or int(high) - int(low) >= MOST_HOSTS:
            raise ToolkitError(f"range {piece!r} of node list {text[:60]!r} is no range", remedy="write n[1-4,7]")
        width = len(low) if low.startswith("0") else 0
        found += [f"{before.strip()}{n:0{width}d}{end}" for n in range(int(low), int(high) + 1) for end in ends]
    return found
