"""What wandb (0.31) has written of a run offline: its own log of records, of which it ships no reader in Python.

A header of seven bytes, then blocks of 32 KiB as LevelDB's log has them: CRC-32 (4 bytes), length (2), kind (1), data.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

HEADER, BLOCK = 7, 32 * 2**10
FULL, FIRST, MIDDLE, LAST = 1, 2, 3, 4


def history(file: Path) -> list[tuple[int, dict[str, Any]]]:
    """Step and values of each row that was logged."""
    from wandb.proto import wandb_internal_pb2

    rows = []
    for data in _records(file.read_bytes()):
        record = wandb_internal_pb2.Record()
        record.ParseFromString(data)
        if record.WhichOneof("record_type") == "history":
            items = record.history.item
            values = {each.key or "/".join(each.nested_key): json.loads(each.value_json) for each in items}
            rows.append((record.history.step.num, values))
    return rows


def _records(content: bytes) -> Iterator[bytes]:
    assert content[:4] == b":W&B"
    at, parts = HEADER, b""
    while at + 7 <= len(content):
        left = BLOCK - at % BLOCK
        if left < 7:  # a header is not split
            at += left
            continue
        _, length, kind = struct.unpack_from("<IHB", content, at)
        piece = content[at + 7 : at + 7 + length]
        at += 7 + length
        parts = piece if kind in (FULL, FIRST) else parts + piece
        if kind in (FULL, LAST):
            yield parts
