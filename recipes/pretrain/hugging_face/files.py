"""Safetensors folders, tensor by tensor: neither reading nor writing holds more than a file at a time."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch

from toolkit.errors import ToolkitError

INDEX, SINGLE = "model.safetensors.index.json", "model.safetensors"
SHARD_BYTES = 5.0e9  # the size of a file that transformers writes


class Weights:
    """The tensors of a Hugging Face folder by name. Files are mapped, and each tensor is read when it is asked for."""

    def __init__(self, folder: str | Path) -> None:
        """Raises ToolkitError for a folder without safetensors, or whose index names files that are not there."""
        self.folder = Path(folder)
        self._open: dict[Path, Any] = {}
        self._file_of = self._index()

    @property
    def names(self) -> set[str]:
        """All tensors."""
        return set(self._file_of)

    def read(self, name: str) -> torch.Tensor:
        """One tensor, as stored."""
        return self._handle(self._file_of[name]).get_tensor(name)

    def shape(self, name: str) -> list[int]:
        """The shape of one tensor, without reading it."""
        return list(self._handle(self._file_of[name]).get_slice(name).get_shape())

    def dtype(self) -> torch.dtype:
        """One dtype in which nothing is lost: that of all tensors, or fp32 where they differ."""
        found = {self._handle(path).get_slice(name).get_dtype() for name, path in self._file_of.items()}
        kinds = {"F32": torch.float32, "BF16": torch.bfloat16, "F16": torch.float16}
        if unknown := sorted(found - set(kinds)):
            raise ToolkitError(
                f"{self.folder} holds tensors of type {', '.join(unknown)}",
                remedy="give weights in F32, BF16 or F16: quantised ones cannot be trained as they are",
            )
        one = {kinds[name] for name in found}
        return one.pop() if len(one) == 1 else torch.float32

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
    """What one rank writes: tensors are kept until a file is full. :func:`finish` names the files of all ranks."""

    def __init__(self, folder: Path, rank: int, shard_bytes: float = SHARD_BYTES) -> None:
        self.folder, self.rank, self.shard_bytes = folder, rank, shard_bytes
        self.written: list[tuple[str, list[str], int]] = []  # file, its tensors, their bytes
        self._tensors: dict[str, torch.Tensor] = {}
        self._bytes = 0

    def add(self, name: str, tensor: torch.Tensor) -> None:
        """Keep a copy of one tensor, or write out what is kept where it would be too much with it."""
        size = tensor.numel() * tensor.element_size()
        if self._tensors and self._bytes + size > self.shard_bytes:
            self.flush()
        self._tensors[name] = tensor.detach().to("cpu", copy=True).contiguous()
        self._bytes += size

    def flush(self) -> None:
        """Write what is kept."""
        if not self._tensors:
            return
        from safetensors.torch import save_file

        file = f"part-{self.rank:06d}-{len(self.written):06d}.safetensors"
        save_file(self._tensors, self.folder / file, metadata={"format": "pt"})
        self.written.append((file, list(self._tensors), self._bytes))
        self._tensors, self._bytes = {}, 0


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
