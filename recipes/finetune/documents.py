"""Documents of a dataset: the shipped sample, a local file, or a data set of the hub."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from toolkit.errors import ToolkitError

SAMPLE = Path(__file__).parent.parent / "data" / "sample.txt"
PREFERENCES = SAMPLE.with_name("preferences.jsonl")  # pairs, for objective dpo (preferences.py)
SHIPPED = {"sample": SAMPLE, "sample-preferences": PREFERENCES}
FORMS = '{"text"}, {"prompt", "completion"} or {"messages"}'

REMEDY = "set it to 'sample', a .jsonl, .parquet or .txt file, or a hub name: owner/name[/configuration][:split]"


class Segment(NamedTuple):
    """A piece of a document; only ``trained`` pieces enter the loss (a prompt does not)."""

    text: str
    trained: bool


class Document(NamedTuple):
    """Segments in order. A conversation is kept as messages: only a tokenizer knows how to write it."""

    segments: tuple[Segment, ...] = ()
    messages: tuple[Mapping[str, Any], ...] = ()


def local_file(dataset: str) -> Path | None:
    """The file or folder that a dataset's name stands for, or None where it is a name of the hub."""
    if dataset in SHIPPED:
        return SHIPPED[dataset]
    path = Path(dataset).expanduser()
    return path if path.exists() or path.suffix in (".txt", ".md", ".jsonl", ".json", ".parquet") else None


def read_documents(dataset: str) -> Iterator[Document]:
    """All documents of ``sample``, of a ``.jsonl``, ``.json``, ``.parquet`` or text file, of a folder of such files in
    the order of their names, or of a data set of the hub.

    Raises ToolkitError for a file that is missing, unreadable or has rows of another form.
    """
    if not dataset:
        raise ToolkitError("the contract names no dataset", remedy=REMEDY)
    path = local_file(dataset)
    if path is None:
        return _rows_to_documents(_hub_rows(dataset), dataset)
    files = files_of(path)
    if path.is_dir() and not files:
        raise ToolkitError(f"dataset {dataset!r} is a folder without .jsonl or .parquet files", remedy=REMEDY)
    if not path.exists():
        raise ToolkitError(f"dataset {dataset!r} does not exist", remedy=REMEDY)
    return itertools.chain.from_iterable(_file_documents(each) for each in files)


def read_rows(dataset: str) -> Iterator[Mapping[str, Any]]:
    """Rows as they are, of a ``.jsonl``, ``.json`` or ``.parquet`` file, a folder of them, or a data set of the hub.

    Raises ToolkitError as :func:`read_documents` does, and for a text file, which has none.
    """
    if not dataset:
        raise ToolkitError("the contract names no dataset", remedy=REMEDY)
    path = local_file(dataset)
    if path is None:
        return _hub_rows(dataset)
    files = files_of(path)
    if not path.exists() or not files:
        raise ToolkitError(f"dataset {dataset!r} does not exist, or is a folder without files", remedy=REMEDY)
    return itertools.chain.from_iterable(map(_file_rows, files))


def _file_rows(path: Path) -> Iterator[Mapping[str, Any]]:
    if path.suffix == ".json" and path.read_bytes()[:4096].lstrip()[:1] == b"[":
        return _json_array(path)
    if path.suffix in (".jsonl", ".json"):
        return _json_rows(path)
    if path.suffix == ".parquet":
        return _parquet_rows(path)
    raise ToolkitError(f"{path} is text, rows were expected", remedy="give a .jsonl, .json or .parquet file")


def files_of(path: Path) -> list[Path]:
    """The file itself, or the files with rows in a folder and below it (a snapshot of the hub has them so)."""
    if not path.is_dir():
        return [path]
    return sorted(each for each in path.rglob("*") if each.suffix in (".jsonl", ".parquet") and each.is_file())


def _file_documents(path: Path) -> Iterator[Document]:
    if path.suffix in (".jsonl", ".json", ".parquet"):
        return _rows_to_documents(_file_rows(path), str(path))
    try:
        return iter([Document((Segment(path.read_text(encoding="utf-8"), True),))])  # one document
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


def _json_array(path: Path) -> Iterator[Mapping[str, Any]]:
    try:
        rows = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise ToolkitError(f"{path}: {error}", remedy="a JSON array of objects, or one object per line") from error
    for number, row in enumerate(rows, start=1):
        if not isinstance(row, dict):
            raise ToolkitError(f"{path}: element {number} is not an object", remedy=f"objects with {FORMS}")
        yield row


def _json_rows(path: Path) -> Iterator[Mapping[str, Any]]:
    with path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            if not line.strip():
                continue
            try:
                row = json.loads(line)
            except (ValueError, RecursionError) as error:  # of JSON, or of UTF-8
                raise ToolkitError(f"{path}: line {number}: {error}", remedy="one JSON object per line") from error
            if not isinstance(row, dict):
                raise ToolkitError(f"{path}: line {number} is not an object", remedy=f"one object per line: {FORMS}")
            yield row


def _parquet_rows(path: Path) -> Iterator[Mapping[str, Any]]:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as error:
        raise ToolkitError(f"{path} needs pyarrow", remedy="pip install '.[train]'") from error
    try:
        for batch in pyarrow.parquet.ParquetFile(path).iter_batches():
            yield from batch.to_pylist()
    except (OSError, pyarrow.ArrowException) as error:
        raise ToolkitError(f"cannot read {path}: {error}", remedy="give a Parquet file") from error


def hub_name(dataset: str) -> tuple[str, str | None, str]:
    """``owner/name[/configuration][:split]`` as name, configuration and split; raises ToolkitError for another form."""
    place, _, split = dataset.partition(":")
    parts = place.split("/")
    if len(parts) > 3 or not all(parts):
        raise ToolkitError(f"dataset {dataset!r} is no file, and no name of the hub", remedy=REMEDY)
    return "/".join(parts[:2]), parts[2] if len(parts) == 3 else None, split or "train"


def _hub_rows(dataset: str) -> Iterator[Mapping[str, Any]]:
    name, configuration, split = hub_name(dataset)
    import datasets

    try:
        rows = datasets.load_dataset(name, configuration, split=split)
    except Exception as error:  # the library raises many kinds: network, name, configuration, split, format
        raise ToolkitError(
            f"dataset {dataset!r} is neither a local file nor a data set of the hub that can be read: {error}",
            remedy=REMEDY,
        ) from error
    return itertools.chain(rows)


def check_file(dataset: str) -> None:
    """Raise ToolkitError where a local dataset is missing, or its first row has columns that nothing can be learnt of.

    Reads one row, and nothing of the hub.
    """
    path = local_file(dataset)
    if path is None:
        hub_name(dataset)
    elif next(read_documents(dataset), None) is None:
        raise ToolkitError(f"dataset {dataset!r} has no rows", remedy=REMEDY)


def about_how_many(dataset: str) -> int:
    """Rows of a dataset: counted where its format says, else from the size of its first rows.

    Of a text file 1; of the hub what the data set on this machine holds.
    """
    path = local_file(dataset)
    if path is None:
        import datasets

        name, configuration, split = hub_name(dataset)
        return len(datasets.load_dataset(name, configuration, split=split))
    return sum(map(_about_how_many_in, files_of(path)))


def _about_how_many_in(path: Path) -> int:
    if path.suffix == ".parquet":
        import pyarrow.parquet

        return int(pyarrow.parquet.ParquetFile(path).metadata.num_rows)
    if path.suffix not in (".jsonl", ".json"):
        return 1
    with path.open("rb") as file:
        first = file.read(2**22)
    lines = sum(bool(line.strip()) for line in first.splitlines())
    return max(1, round(lines * path.stat().st_size / max(1, len(first))))
