"""Safetensors folders, tensor by tensor: reading holds what is mapped of a few files, writing holds one tensor.

A file begins with the length of its header (8 bytes), then the header: JSON that says where each tensor lies, and that
may be followed by blanks. So room for the header is left when a file is begun, tensors are written as they come, and
the header is filled in when the file is full.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from toolkit.errors import ToolkitError

INDEX, SINGLE = "model.safetensors.index.json", "model.safetensors"
SHARD_BYTES = 5.0e9  # the size of a file that transformers writes
HEADER_BYTES = 2**18  # room for the header of a file, about 2,000 tensors
MAPPED_BYTES = 2**29  # read of mapped files before they are closed: what was read stays in memory until then
KINDS = {"F32": torch.float32, "BF16": torch.bfloat16, "F16": torch.float16}


class Weights:
    """The tensors of a Hugging Face folder by name. Files are mapped, and each tensor is read when it is asked for."""

    def __init__(self, folder: str | Path) -> None:
        """Raises ToolkitError for a folder without safetensors, or whose index names files that are not there."""
        self.folder = Path(folder)
        self._open: dict[Path, Any] = {}
        self._read = 0
        self._file_of = self._index()

    @property
    def names(self) -> set[str]:
        """All tensors."""
        return set(self._file_of)

    def read(self, name: str) -> torch.Tensor:
        """One tensor, as stored: a view of the file, to be copied by whoever keeps it."""
        if self._read > MAPPED_BYTES:
            self._open.clear()
            self._read = 0
        found: torch.Tensor = self._asked(name, lambda handle: handle.get_tensor(name))
        self._read += found.nbytes
        return found

    def shape(self, name: str) -> list[int]:
        """The shape of one tensor, without reading it."""
        return list(self._asked(name, lambda handle: handle.get_slice(name).get_shape()))

    def dtype(self) -> torch.dtype:
        """One dtype in which nothing is lost: that of all tensors, or fp32 where they differ."""
        found = {
            self._asked(name, lambda handle, name=name: handle.get_slice(name).get_dtype()) for name in self._file_of
        }
        if unknown := sorted(found - set(KINDS)):
            raise ToolkitError(
                f"{self.folder} holds tensors of type {', '.join(unknown)}",
                remedy="give weights in F32, BF16 or F16: quantised ones cannot be trained as they are",
            )
        one = {KINDS[name] for name in found}
        return one.pop() if len(one) == 1 else torch.float32

    def _asked(self, name: str, ask: Callable[[Any], Any]) -> Any:
        """What a file says of a tensor; raises ToolkitError where the index is wrong about it."""
        from safetensors import SafetensorError

        path = self._file_of[name]
        try:
            return ask(self._handle(path))
        except (OSError, SafetensorError) as error:
            raise ToolkitError(
                f"{path} has no sound tensor {name}, though it is said to: {error}",
                remedy="download the folder again",
            ) from error

    def _index(self) -> dict[str, Path]:
        path = self.folder / INDEX
        try:
            if path.is_file():
                where = {name: self.folder / file for name, file in json.loads(path.read_text())["weight_map"].items()}
            else:
                files = sorted(self.folder.glob("*.safetensors"))
                where = {name: file for file in files for name in self._handle(file).keys()}  # noqa: SIM118
        except (OSError, ValueError, KeyError, AttributeError, TypeError) as error:
            raise ToolkitError(f"cannot read {path}: {error}", remedy="download the folder again") from error
        gone = sorted({str(file.name) for file in where.values() if not file.is_file()})
        if gone:
            raise ToolkitError(f"{self.folder} lacks {', '.join(gone)}", remedy="download the folder again")
        if not where:
            raise ToolkitError(
                f"{self.folder} has no *.safetensors",
                remedy="give a folder with config.json and safetensors; save_pretrained writes them",
            )
        return where

    def _handle(self, path: Path) -> Any:
        if path not in self._open:
            from safetensors import SafetensorError, safe_open

            try:
                self._open[path] = safe_open(str(path), framework="pt")
            except (OSError, SafetensorError) as error:
                raise ToolkitError(f"cannot read {path}: {error}", remedy="download the file again") from error
        return self._open[path]


class Writer:
    """What one rank writes, each tensor as it comes. :func:`finish` names the files of all ranks."""

    def __init__(self, folder: Path, rank: int, shard_bytes: float = SHARD_BYTES) -> None:
        self.folder, self.rank, self.shard_bytes = folder, rank, shard_bytes
        self.written: list[tuple[str, list[str], int]] = []  # file, its tensors, their bytes
        self._file: Any = None
        self._header: dict[str, Any] = {}
        self._header_bytes = self._bytes = 0

    def add(self, name: str, tensor: torch.Tensor) -> None:
        """Write one tensor, to a new file where this one would be too large with it."""
        place = {
            "dtype": next(kind for kind, dtype in KINDS.items() if dtype == tensor.dtype),
            "shape": list(tensor.shape),
        }
        room = len(name) + len(json.dumps(place)) + 80  # with its offsets
        full = self._bytes + tensor.nbytes > self.shard_bytes or self._header_bytes + room > HEADER_BYTES - 64
        if self._header and full:
            self.flush()
        if self._file is None:
            self._file = (self.folder / self._name()).open("wb")
            self._file.seek(8 + HEADER_BYTES)
        self._file.write(tensor.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().data)
        self._header[name] = place | {"data_offsets": [self._bytes, self._bytes + tensor.nbytes]}
        self._header_bytes += room
        self._bytes += tensor.nbytes

    def flush(self) -> None:
        """Finish the file that is being written."""
        if self._file is None:
            return
        header = json.dumps({"__metadata__": {"format": "pt"}} | self._header, separators=(",", ":")).encode()
        self._file.seek(0)
        self._file.write(HEADER_BYTES.to_bytes(8, "little") + header.ljust(HEADER_BYTES))
        self._file.close()
        self.written.append((self._name(), list(self._header), self._bytes))
        self._file, self._header, self._header_bytes, self._bytes = None, {}, 0, 0

    def abandon(self) -> None:
        """Give up the file that is being written: what it still holds in memory cannot be written either."""
        if self._file is not None:
            with contextlib.suppress(OSError):
                self._file.close()

    def _name(self) -> str:
        return f"part-{self.rank:06d}-{len(self.written):06d}.safetensors"


def finish(folder: Path, written: list[tuple[str, list[str], int]]) -> None:
    """Give the files of all ranks the names that ``from_pretrained`` looks for, and write their index."""
    if len(written) == 1:
        (folder / written[0][0]).rename(folder / SINGLE)
        return
    where: dict[str, str] = {}
    for number, (file, names, _) in enumerate(written, start=1):
        name = f"model-{number:05d}-of-{len(written):05d}.safetensors"
        (folder / file).rename(folder / name)
        where |= dict.fromkeys(names, name)
    index = {"metadata": {"total_size": sum(size for *_, size in written)}, "weight_map": dict(sorted(where.items()))}
    (folder / INDEX).write_text(json.dumps(index, indent=2) + "\n")
