"""Reading a GGUF file: its settings, and its tensors as float32 arrays.

Layout (the GGUF specification, version 3): magic, version, number of tensors, number of settings; the settings as
key, type, value; of every tensor its name, its dimensions (fastest first), its type and its offset; padding to the
alignment; the tensors. Three types are known here, each in blocks of 32 values with half-precision scales:

    F32    x
    Q8_0   x = d q             d, then 32 signed bytes q
    Q4_1   x = d q + m         d, m, then 16 bytes: the low halves are q_0 ... q_15, the high ones q_16 ... q_31
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
TEXT, ARRAY = 8, 9
F32, Q4_1, Q8_0 = 0, 3, 8
BLOCK = 32
Q4_1_BLOCK = np.dtype([("d", "<f2"), ("m", "<f2"), ("q", "u1", 16)])
Q8_0_BLOCK = np.dtype([("d", "<f2"), ("q", "i1", BLOCK)])


class Gguf:
    """``settings`` by key; :func:`tensors` gives every name with its array, one after another."""

    def __init__(self, path: Path) -> None:
        self.path = path
        with path.open("rb") as file:
            if file.read(4) != b"GGUF" or (version := _scalar(file, "I")) != 3:
                raise ValueError(f"{path} is not a GGUF file of version 3")
            del version
            tensors, settings = _scalar(file, "Q"), _scalar(file, "Q")
            self.settings: dict[str, Any] = {_text(file): _value(file, _scalar(file, "I")) for _ in range(settings)}
            self._places: list[tuple[str, list[int], int, int]] = []
            for _ in range(tensors):
                name = _text(file)
                shape = [_scalar(file, "Q") for _ in range(_scalar(file, "I"))][::-1]
                self._places.append((name, shape, _scalar(file, "I"), _scalar(file, "Q")))
            alignment = self.settings.get("general.alignment", 32)
            self._start = -(-file.tell() // alignment) * alignment

    def tensors(self) -> Iterator[tuple[str, np.ndarray]]:
        """Every tensor, in the order of the file."""
        for name, shape, kind, offset in self._places:
            yield name, _read(self.path, kind, self._start + offset, math.prod(shape)).reshape(shape)


def _read(path: Path, kind: int, offset: int, count: int) -> np.ndarray:
    if kind == F32:
        return np.fromfile(path, "<f4", count, offset=offset)
    if kind == Q8_0:
        blocks = np.fromfile(path, Q8_0_BLOCK, count // BLOCK, offset=offset)
        return blocks["d"].astype(np.float32)[:, None] * blocks["q"]
    if kind == Q4_1:
        blocks = np.fromfile(path, Q4_1_BLOCK, count // BLOCK, offset=offset)
        q = np.concatenate([blocks["q"] & 15, blocks["q"] >> 4], axis=1)
        return blocks["d"].astype(np.float32)[:, None] * q + blocks["m"].astype(np.float32)[:, None]
    raise ValueError(f"{path} has tensors of type {kind}; known are F32, Q4_1 and Q8_0")


def _scalar(file: BinaryIO, kind: str) -> Any:
    return struct.unpack("<" + kind, file.read(struct.calcsize("<" + kind)))[0]


def _text(file: BinaryIO) -> str:
    return file.read(_scalar(file, "Q")).decode("utf-8")


def _value(file: BinaryIO, kind: int) -> Any:
    if kind == TEXT:
        return _text(file)
    if kind == ARRAY:
        of, count = _scalar(file, "I"), _scalar(file, "Q")
        return [_value(file, of) for _ in range(count)]
    return _scalar(file, SCALARS[kind])
