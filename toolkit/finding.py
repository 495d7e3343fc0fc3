"""Finding: something that a check or a diagnosis has to say."""

from __future__ import annotations

import msgspec


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """``severity`` is error, warning or info; ``where`` is a key path or a line."""

    code: str
    severity: str
    message: str
    remedy: str = ""
    file: str = ""
    where: str = ""
    why: str = ""  # what happens otherwise
    source: str = ""  # where that was seen or is written
