"""Texts to pretrain on, cut into parts that workers read for themselves.

JSON lines are cut by bytes, Parquet by row groups, data sets of the hub by rows; a text file and a compressed one
are one part each. The parts, and so the order of the documents, depend on the input and ``part_bytes`` alone.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec

from recipes.finetune.documents import local_file
from toolkit.errors import ToolkitError

LINES, COMPRESSED, TEXT, PARQUET, HUB = "lines", "lines.gz", "text", "parquet", "hub"
KINDS = {".jsonl": LINES, ".json": LINES, ".gz": COMPRESSED, ".txt": TEXT, ".md": TEXT, ".parquet": PARQUET}
ROWS = 10_000  # of a data set of the hub in one part


class Part(msgspec.Struct, frozen=True):
    """``first`` to ``last`` (left out) of a file: bytes, row groups or rows, whichever its kind is cut by."""

    kind: str
    path: str
    first: int = 0
    last: int = 0
    stamp: str = ""  # size and time of change: another file is another part


def parts_of(dataset: str, part_bytes: int) -> list[Part]:
    """All parts of a file, of the files in a folder (by name), or of a hub name's ``train`` split."""
    folder = Path(dataset).expanduser()
    if dataset and folder.is_dir():
        files = sorted(path for path in folder.rglob("*") if path.suffix in KINDS)
        if not files:
            raise ToolkitError(f"{dataset} holds no file ending in {', '.join(KINDS)}", remedy="give another folder")
        return [part for path in files for part in _of_file(path, part_bytes)]
    path = local_file(dataset) if dataset else None
    if path is not None or (dataset and folder.suffix in KINDS):
        path = path or folder
        if not path.is_file():
            raise ToolkitError(f"dataset {dataset!r} does not exist", remedy="give a file, a folder or a hub name")
        return _of_file(path, part_bytes)
    rows = len(_hub(dataset))
    return [Part(HUB, dataset, first, min(first + ROWS, rows)) for first in range(0, rows, ROWS)]


def texts(part: Part, column: str) -> Iterator[str]:
    """The texts of one part; raises ToolkitError for rows of another form, and says where they are."""
    if part.kind == TEXT:
        try:
            yield Path(part.path).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise ToolkitError(f"cannot read {part.path}: {error}", remedy="give a text file in UTF-8") from error
        return
    for place, row in _rows(part):
        text = row.get(column) if isinstance(row, Mapping) else None
        if not isinstance(text, str):
            columns = ", ".join(map(str, row)) if isinstance(row, Mapping) else "no columns"
            raise ToolkitError(
                f"{part.path}: {place} has no text in column {column!r} (it has {columns or 'none'})",
                remedy="name the column with --text-column; conversations are for recipes.finetune",
            )
        yield text


def _of_file(path: Path, part_bytes: int) -> list[Part]:
    kind = KINDS.get(path.suffix, TEXT)
    status = path.stat()
    stamp = f"{status.st_size} {status.st_mtime_ns}"
    if kind == LINES:
        starts = range(0, status.st_size, part_bytes)
        return [Part(kind, str(path), first, min(first + part_bytes, status.st_size), stamp) for first in starts]
    if kind != PARQUET:
        return [Part(kind, str(path), 0, status.st_size, stamp)]
    metadata = _parquet(path).metadata
    made, first, size = [], 0, 0
    for group in range(metadata.num_row_groups):
        size += metadata.row_group(group).total_byte_size
        if size >= part_bytes or group == metadata.num_row_groups - 1:
            made.append(Part(kind, str(path), first, group + 1, stamp))
            first, size = group + 1, 0
    return made


def _rows(part: Part) -> Iterator[tuple[str, Any]]:
    if part.kind == PARQUET:
        for batch in _parquet(Path(part.path)).iter_batches(row_groups=list(range(part.first, part.last))):
            yield from (("a row", row) for row in batch.to_pylist())
    elif part.kind == HUB:
        data = _hub(part.path)
        yield from ((f"row {index}", data[index]) for index in range(part.first, part.last))
    else:
        for place, line in _lines(part):
            if not line.strip():
                continue
            try:
                yield place, json.loads(line)
            except (ValueError, RecursionError) as error:
                raise ToolkitError(f"{part.path}: {place}: {error}", remedy="one JSON object per line") from error


def _lines(part: Part) -> Iterator[tuple[str, bytes]]:
    """Lines that begin within the part's bytes: each line of a file is in one part, however the file is cut."""
    try:
        if part.kind == COMPRESSED:
            with gzip.open(part.path, "rb") as packed:
                yield from ((f"line {number}", line) for number, line in enumerate(packed, start=1))
            return
        with Path(part.path).open("rb") as file:
            if part.first:
                file.seek(part.first - 1)
                file.readline()  # the rest of a line that began in the part before
            while (place := file.tell()) < part.last and (line := file.readline()):
                yield f"the line at byte {place}", line
    except (OSError, EOFError) as error:
        raise ToolkitError(f"cannot read {part.path}: {error}", remedy="check the file") from error


def _parquet(path: Path) -> Any:
    import pyarrow
    import pyarrow.parquet

    try:
        return pyarrow.parquet.ParquetFile(path)
    except (OSError, pyarrow.ArrowException) as error:
        raise ToolkitError(f"cannot read {path}: {error}", remedy="check the file") from error


def _hub(name: str) -> Any:
    try:
        import datasets

        return datasets.load_dataset(name, split="train")
    except Exception as error:  # the library raises many kinds: network, name, split, format
        raise ToolkitError(
            f"dataset {name!r} is neither a local file nor a data set of the hub that can be read: {error}",
            remedy="give a .jsonl, .jsonl.gz, .parquet or text file, a folder of them, or a hub name",
        ) from error
