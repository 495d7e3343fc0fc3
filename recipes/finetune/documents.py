"""Documents of a dataset: the shipped sample, a local file, or a data set of the hub."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from recipes import hub
from recipes.finetune import rows
from toolkit.errors import ToolkitError
from toolkit.registry.files import expanded, is_there

SAMPLE = Path(__file__).parent.parent / "data" / "sample.txt"
PREFERENCES = SAMPLE.with_name("preferences.jsonl")  # pairs, for objective dpo (preferences.py)
SHIPPED = {"sample": SAMPLE, "sample-preferences": PREFERENCES}
FORMS = '{"text"}, {"prompt", "completion"} or {"messages"}'

REMEDY = (
    "set it to 'sample', a .jsonl, .json, .parquet or .txt file, a folder with such rows,"
    " or a hub name: owner/name[/configuration][:split]"
)


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
    path = expanded(dataset)
    return path if is_there(path) or rows.is_rows(path) or rows.ending(path) in rows.TEXT else None


def read_documents(dataset: str) -> Iterator[Document]:
    """All documents of ``sample``, of a file with rows (:mod:`recipes.finetune.rows`) or of text, of a folder of files
    with rows in the order of their names, or of a data set of the hub.

    Raises ToolkitError for a file that is missing, unreadable or has rows of another form.
    """
    files = _files(dataset)
    if files is None:
        return _rows_to_documents(_hub_rows(dataset), dataset)
    return itertools.chain.from_iterable(map(_file_documents, files))


def read_rows(dataset: str) -> Iterator[Mapping[str, Any]]:
    """Rows as they are, of a file with rows, a folder of them, or a data set of the hub.

    Raises ToolkitError as :func:`read_documents` does, and for a text file, which has none.
    """
    files = _files(dataset)
    return _hub_rows(dataset) if files is None else itertools.chain.from_iterable(map(rows.rows_of, files))


def _files(dataset: str) -> list[Path] | None:
    """The local files of a dataset; None for a name of the hub."""
    if not dataset:
        raise ToolkitError("the contract names no dataset", remedy=REMEDY)
    path = local_file(dataset)
    if path is None:
        return None
    if not is_there(path):
        raise ToolkitError(f"dataset {dataset!r} does not exist", remedy=REMEDY)
    found = rows.files_of(path)
    if not found:
        raise ToolkitError(f"dataset {dataset!r} is a folder without .jsonl, .json or .parquet files", remedy=REMEDY)
    return found


def _file_documents(path: Path) -> Iterator[Document]:
    if rows.is_rows(path):
        return _rows_to_documents(rows.rows_of(path), str(path))
    text = rows.text_of(path)
    return iter([Document((Segment(text, True),))] if text else [])  # one document


def _rows_to_documents(found: Iterator[Mapping[str, Any]], where: str) -> Iterator[Document]:
    for number, row in enumerate(found, start=1):
        if isinstance(row.get("text"), str):
            yield Document((Segment(row["text"], True),))
        elif isinstance(row.get("prompt"), str) and isinstance(row.get("completion"), str):
            yield Document((Segment(row["prompt"], False), Segment(row["completion"], True)))
        elif isinstance(row.get("messages"), list) and row["messages"]:
            yield Document(messages=tuple(row["messages"]))
        elif row.get("messages") == []:
            raise ToolkitError(f"{where}: row {number} is a conversation without messages", remedy="remove the row")
        else:
            raise ToolkitError(
                f"{where}: row {number} has the columns {rows.columns(row)}",
                remedy=f"rows must have the columns {FORMS}: text, but for messages, which is a list",
            )


def require_text(text: str, what: str) -> None:
    """Raise ToolkitError for a string that is no text: half of a surrogate pair, which JSON can hold and UTF-8 not."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise ToolkitError(
            f"{what} holds U+{ord(text[error.start]):04X}, half of a pair, which is no character",
            remedy="correct or remove the row",
        ) from error


def hub_name(dataset: str) -> tuple[str, str | None, str]:
    """``owner/name[/configuration][:split]`` as name, configuration and split; raises ToolkitError for another form."""
    place, _, split = dataset.partition(":")
    parts = place.split("/")
    if len(parts) > 3 or not all(parts):
        raise ToolkitError(f"dataset {dataset!r} is no file, and no name of the hub", remedy=REMEDY)
    return "/".join(parts[:2]), parts[2] if len(parts) == 3 else None, split or "train"


def _hub_rows(dataset: str) -> Iterator[Mapping[str, Any]]:
    name, configuration, split = hub_name(dataset)
    hub.settle()
    import datasets

    try:
        found = datasets.load_dataset(name, configuration, split=split)
    except Exception as error:  # the library raises many kinds: network, name, configuration, split, format
        raise ToolkitError(
            f"dataset {dataset!r} is neither a local file nor a data set of the hub that can be read:"
            f" {hub.reason(error)}",
            remedy=REMEDY,
        ) from error
    return itertools.chain(found)


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
    return sum(map(rows.about_how_many, rows.files_of(path)))
