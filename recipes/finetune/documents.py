"""Documents of a dataset: the shipped sample, a local file, or a data set of the hub."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from toolkit.errors import ToolkitError

SAMPLE = Path(__file__).parent.parent / "data" / "sample.txt"
FORMS = '{"text"}, {"prompt", "completion"} or {"messages"}'

REMEDY = "set it to 'sample', a .jsonl, .parquet or .txt file, or a hub name with a train split"


class Segment(NamedTuple):
    """A piece of a document; only ``trained`` pieces enter the loss (a prompt does not)."""

    text: str
    trained: bool


class Document(NamedTuple):
    """Segments in order. A conversation is kept as messages: only a tokenizer knows how to write it."""

    segments: tuple[Segment, ...] = ()
    messages: tuple[Mapping[str, Any], ...] = ()


def local_file(dataset: str) -> Path | None:
    """The file that a dataset's name stands for, or None where it is a name of the hub."""
    if dataset == "sample":
        return SAMPLE
    path = Path(dataset).expanduser()
    return path if path.exists() or path.suffix in (".txt", ".md", ".jsonl", ".json", ".parquet") else None


def read_documents(dataset: str) -> Iterator[Document]:
    """All documents of ``sample``, of a ``.jsonl``, ``.parquet`` or text file, or of a hub name's ``train`` split.

    Raises ToolkitError for a file that is missing, unreadable or has rows of another form.
    """
    if not dataset:
        raise ToolkitError("the contract names no dataset", remedy=REMEDY)
    path = local_file(dataset)
    if path is None:
        return _rows_to_documents(_hub_rows(dataset), dataset)
    if not path.is_file():
        what = "is a folder" if path.is_dir() else "does not exist"
        raise ToolkitError(f"dataset {dataset!r} {what}", remedy=REMEDY)
    if path.suffix in (".jsonl", ".json"):
        return _rows_to_documents(_json_rows(path), str(path))
    if path.suffix == ".parquet":
        return _rows_to_documents(_parquet_rows(path), str(path))
    try:
        return iter([Document((Segment(path.read_text(encoding="utf-8"), True),))])
    except (OSError, UnicodeDecodeError) as error:
        raise ToolkitError(f"cannot read {path}: {error}", remedy="give a text file in UTF-8") from error


def _rows_to_documents(rows: Iterator[Mapping[str, Any]], where: str) -> Iterator[Document]:
    for number, row in enumerate(rows, start=1):
        if isinstance(row.get("text"), str):
            yield Document((Segment(row["text"], True),))
        elif isinstance(row.get("prompt"), str) and isinstance(row.get("completion"), str):
            yield Document((Segment(row["prompt"], False), Segment(row["completion"], True)))
        elif isinstance(row.get("messages"), list):
            yield Document(messages=tuple(row["messages"]))
        else:
            raise ToolkitError(
                f"{where}: row {number} has the columns {', '.join(map(str, row)) or 'none'}",
                remedy=f"rows must have the columns {FORMS}, as text",
            )


def _json_rows(path: Path) -> Iterator[Mapping[str, Any]]:
    with path.open(encoding="utf-8") as file:
        for number, line in enumerate(file, start=1):
            if not line.strip():
                continue
            try:
                row = json.loads(line)
            except json.JSONDecodeError as error:
                raise ToolkitError(f"{path}: line {number}: {error}", remedy="one JSON object per line") from error
            if not isinstance(row, dict):
                raise ToolkitError(f"{path}: line {number} is not an object", remedy=f"one object per line: {FORMS}")
            yield row


def _parquet_rows(path: Path) -> Iterator[Mapping[str, Any]]:
    import pyarrow.parquet

    for batch in pyarrow.parquet.ParquetFile(path).iter_batches():
        yield from batch.to_pylist()


def _hub_rows(dataset: str) -> Iterator[Mapping[str, Any]]:
    import datasets

    try:
        rows = datasets.load_dataset(dataset, split="train")
    except Exception as error:  # the library raises many kinds: network, name, split, format
        raise ToolkitError(
            f"dataset {dataset!r} is neither a local file nor a data set of the hub that can be read: {error}",
            remedy=REMEDY,
        ) from error
    return itertools.chain(rows)
