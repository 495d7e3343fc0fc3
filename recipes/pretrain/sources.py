"""Texts to pretrain on, cut into parts that workers read for themselves.

JSON lines are cut by bytes, Parquet by row groups, data sets of the hub by rows; a text file and a compressed one
are one part each. The parts, and so the order of the documents, depend on the input and ``part_bytes`` alone.
"""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec

from recipes import hub
from recipes.finetune import rows
from recipes.finetune.documents import local_file, require_text
from toolkit.errors import ToolkitError
from toolkit.registry.files import is_there

LINES, COMPRESSED, WHOLE, TEXT, PARQUET, HUB = "lines", "lines.gz", "whole", "text", "parquet", "hub"
ROWS = 10_000  # of a data set of the hub in one part
HINT = "give a .jsonl, .json (each also with .gz), .parquet or text file, a folder of them, or a hub name"


class Part(msgspec.Struct, frozen=True):
    """``first`` to ``last`` (left out) of a file: bytes, row groups or rows, whichever its kind is cut by."""

    kind: str
    path: str
    first: int = 0
    last: int = 0
    stamp: str = ""  # size and time of change: another file is another part


def parts_of(dataset: str, part_bytes: int) -> list[Part]:
    """All parts of a file, of the files in a folder (by name), or of a hub name's ``train`` split.

    Of a folder those with rows, or its texts where there are none; a README beside them is no text of the corpus.
    """
    if not dataset:
        raise ToolkitError("--dataset is empty", remedy=HINT)
    path = local_file(dataset)
    if path is None:
        found = len(_hub(dataset))
        return [Part(HUB, dataset, first, min(first + ROWS, found)) for first in range(0, found, ROWS)]
    if not is_there(path):
        raise ToolkitError(f"dataset {dataset!r} does not exist", remedy=HINT)
    if not path.is_dir():
        return _of_file(path, part_bytes)
    files = rows.files_of(path) or [
        each
        for each in sorted(path.rglob("*"))
        if rows.ending(each) in rows.TEXT and each.is_file() and each.stem.lower() != "readme"
    ]
    if not files:
        raise ToolkitError(f"{dataset} holds no file with rows, and no text", remedy=HINT)
    return [part for each in files for part in _of_file(each, part_bytes)]


def texts(part: Part, column: str) -> Iterator[str]:
    """The texts of one part, without empty ones; raises ToolkitError for rows of another form, and says where."""
    if part.kind == TEXT:
        yield from filter(None, [rows.text_of(Path(part.path))])
        return
    for place, row in _rows(part):
        text = row.get(column) if isinstance(row, Mapping) else None
        if not isinstance(text, str):
            found = rows.columns(row) if isinstance(row, Mapping) else f"{rows.kind(row)} instead of a row"
            raise ToolkitError(
                f"{part.path}: {place} has no text in column {column!r} (it has {found})",
                remedy="name the column with --text-column; conversations are for recipes.finetune",
            )
        require_text(text, f"{part.path}: {place}")
        if text:
            yield text


def _of_file(path: Path, part_bytes: int) -> list[Part]:
    rows.require_regular(path)
    status = path.stat()
    stamp = f"{status.st_size} {status.st_mtime_ns}"
    kind = _kind(path)
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


def _kind(path: Path) -> str:
    ending = rows.ending(path)
    if ending == rows.PARQUET:
        return PARQUET
    if not rows.is_rows(path):
        return TEXT
    if rows.is_array(path):
        return WHOLE
    return COMPRESSED if ending.endswith(".gz") else LINES


def _rows(part: Part) -> Iterator[tuple[str, Any]]:
    if part.kind == PARQUET:
        yield from _of_groups(part)
    elif part.kind == HUB:
        data = _hub(part.path)
        yield from ((f"row {index}", data[index]) for index in range(part.first, part.last))
    elif part.kind == WHOLE:
        yield from ((f"element {number}", row) for number, row in enumerate(rows.rows_of(Path(part.path)), start=1))
    else:
        for place, line in _lines(part):
            if not line.strip():
                continue
            try:
                yield place, json.loads(line.decode("utf-8").rstrip("\r\n"))
            except (ValueError, RecursionError) as error:
                what = f"{part.path}: {place}{rows.fault(error)}"
                raise ToolkitError(what, remedy="one JSON object per line") from error


def _lines(part: Part) -> Iterator[tuple[str, bytes]]:
    """Lines that begin within the part's bytes: each line of a file is in one part, however the file is cut."""
    mark = rows.BYTE_ORDER_MARK
    try:
        if part.kind == COMPRESSED:
            with gzip.open(part.path, "rb") as packed:
                yield from ((f"line {at}", line.removeprefix(mark)) for at, line in enumerate(packed, start=1))
            return
        with Path(part.path).open("rb") as file:
            if part.first:
                file.seek(part.first - 1)
                file.readline()  # the rest of a line that began in the part before
            while (place := file.tell()) < part.last and (line := file.readline()):
                yield f"the line at byte {place}", line if place else line.removeprefix(mark)
    except (OSError, EOFError, zlib.error) as error:
        raise ToolkitError(f"cannot read {part.path}: {error}", remedy="check the file") from error


def _of_groups(part: Part) -> Iterator[tuple[str, Any]]:
    """Rows of row groups; their numbers in the file are not known without reading those before."""
    table, at = _parquet(Path(part.path)), 0
    where = f"of row groups {part.first} to {part.last - 1}"
    try:
        for batch in table.iter_batches(row_groups=list(range(part.first, part.last))):
            for row in batch.to_pylist():
                at += 1
                yield f"row {at} {where}", row
    except (OSError, ValueError) as error:  # pyarrow's are of these kinds, and text that is not UTF-8
        raise ToolkitError(
            f"cannot read {part.path}, rows {where}: {' '.join(str(error).split())}", remedy="check the file"
        ) from error


def _parquet(path: Path) -> Any:
    import pyarrow
    import pyarrow.parquet

    try:
        return pyarrow.parquet.ParquetFile(path)
    except (OSError, pyarrow.ArrowException) as error:
        raise ToolkitError(f"cannot read {path}: {error}", remedy="check the file") from error


def _hub(name: str) -> Any:
    hub.settle()
    try:
        import datasets

        return datasets.load_dataset(name, split="train")
    except Exception as error:  # the library raises many kinds: network, name, split, format
        raise ToolkitError(
            f"dataset {name!r} is neither a local file nor a data set of the hub that can be read: {hub.reason(error)}",
            remedy=HINT,
        ) from error
