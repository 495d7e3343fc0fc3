"""Rows of local files: JSON lines or one JSON array (also gzipped) and Parquet; and which files are rows, which text.

By the ending of the name, in whatever case: ``.jsonl``, ``.json``, ``.jsonl.gz``, ``.json.gz`` and ``.parquet`` are
rows; ``.txt``, ``.md`` and what has no known ending are one text, unless it is plainly something else (a table, an
archive, JSON under another name), which is refused: as text a model would learn commas and brackets of it.
"""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from toolkit.errors import ToolkitError

JSON = (".jsonl", ".json", ".jsonl.gz", ".json.gz")
PARQUET = ".parquet"
TEXT = (".txt", ".md")
TABLES = (".csv", ".tsv", ".xlsx", ".xls", ".arrow", ".feather", ".ndjson", ".yaml", ".yml", ".toml", ".xml")
BINARY = (".gz", ".zst", ".zip", ".bz2", ".xz", ".tar", ".tgz", ".bin", ".idx", ".npy", ".npz", ".pt", ".pkl", ".h5")
KINDS = ".jsonl, .json (each also with .gz) or .parquet for rows, .txt for text"
NOT_DATA = ("dataset_info.json", "dataset_infos.json", "dataset_dict.json", "state.json")  # beside it, in snapshots
BYTE_ORDER_MARK = b"\xef\xbb\xbf"
SAMPLE_BYTES = 2**22  # of a file, to estimate its rows


def ending(path: Path) -> str:
    """The last ending of a name, with the one before it where that is ``.gz``, in small letters."""
    suffixes = [suffix.lower() for suffix in path.suffixes]
    return "".join(suffixes[-2:] if suffixes[-1:] == [".gz"] else suffixes[-1:])


def is_rows(path: Path) -> bool:
    """Whether the name of a file says that it holds rows."""
    return ending(path) in (*JSON, PARQUET)


def files_of(path: Path) -> list[Path]:
    """The file itself, or the files with rows in a folder and below it (a snapshot of the hub has them so), by name.

    ``.json`` counts only where there is nothing else, since snapshots describe themselves in such files; what lies
    in hidden folders (downloads under way, copies of editors) never.
    """
    if not path.is_dir():
        return [path]
    inside = [
        each
        for each in sorted(path.rglob("*"))
        if is_rows(each) and each.is_file() and not any(p.startswith(".") for p in each.relative_to(path).parts)
    ]
    plain = [each for each in inside if not ending(each).startswith(".json") or ending(each).startswith(".jsonl")]
    return plain or [each for each in inside if each.name not in NOT_DATA]


def require_regular(path: Path) -> None:
    """Raise ToolkitError for what cannot be read to its end: a device, a pipe, a socket, or what is not to be seen."""
    try:
        path.stat()
    except OSError as error:
        raise ToolkitError(f"cannot read {path}: {error.strerror}", remedy="check the path and its rights") from error
    if not path.is_file():
        raise ToolkitError(f"{path} is not a regular file", remedy=f"give a file: {KINDS}")


def rows_of(path: Path) -> Iterator[Mapping[str, Any]]:
    """All rows of one file; raises ToolkitError with file and line for what is none, cannot be read, or is text."""
    require_regular(path)
    if ending(path) == PARQUET:
        return _of_parquet(path)
    if not is_rows(path):
        raise ToolkitError(f"{path} is text, rows were expected", remedy="give a .jsonl, .json or .parquet file")
    return _of_array(path) if is_array(path) else _of_lines(path)


def text_of(path: Path) -> str:
    """A text file; raises ToolkitError for one that is plainly no text, or not UTF-8."""
    require_regular(path)
    if ending(path) in TABLES or path.suffix.lower() in BINARY:
        raise ToolkitError(f"{path} is no text, and of no kind that is read here", remedy=f"give {KINDS}")
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise ToolkitError(f"cannot read {path}: {error}", remedy="give a text file in UTF-8") from error
    first = text[:SAMPLE_BYTES].lstrip().partition("\n")[0]
    if ending(path) not in TEXT and first.startswith("{"):
        try:
            json.loads(first)
        except (ValueError, RecursionError):
            return text
        raise ToolkitError(f"{path} holds JSON lines, and its name does not say so", remedy="name it .jsonl")
    return text


def about_how_many(path: Path) -> int:
    """Rows of one file: counted where its format says, else from the size of its first ones; 1 of a text."""
    if ending(path) == PARQUET:
        import pyarrow.parquet

        return int(pyarrow.parquet.ParquetFile(path).metadata.num_rows)
    if not is_rows(path):
        return 1
    if is_array(path):
        return max(1, sum(1 for _ in _of_array(path)))
    with path.open("rb") as raw:
        file: Any = gzip.GzipFile(fileobj=raw) if ending(path).endswith(".gz") else raw
        first = file.read(SAMPLE_BYTES)
        lines = sum(bool(line.strip()) for line in first.splitlines())
        return max(1, round(lines * path.stat().st_size / max(1, raw.tell())))


def _open(path: Path) -> Any:
    return gzip.open(path, "rb") if ending(path).endswith(".gz") else path.open("rb")


def _unreadable(path: Path, error: Exception) -> ToolkitError:
    reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
    return ToolkitError(f"cannot read {path}: {reason}", remedy="check the file: is it whole, and may it be read?")


def is_array(path: Path) -> bool:
    """Whether a file of JSON is one array; else it has an object on each line."""
    try:
        with _open(path) as file:
            return bool(file.read(4096).removeprefix(BYTE_ORDER_MARK).lstrip()[:1] == b"[")
    except (OSError, EOFError, zlib.error) as error:
        raise _unreadable(path, error) from error


def _of_array(path: Path) -> Iterator[Mapping[str, Any]]:
    try:
        with _open(path) as file:
            rows = json.loads(file.read().decode("utf-8-sig"))
    except (OSError, EOFError, zlib.error) as error:
        raise _unreadable(path, error) from error
    except (ValueError, RecursionError) as error:
        raise ToolkitError(f"{path}: {error}", remedy="one JSON array of objects, or one object per line") from error
    for number, row in enumerate(rows, start=1):
        if not isinstance(row, dict):
            raise ToolkitError(
                f"{path}: element {number} of the array is {kind(row)}, not an object", remedy="an object for each row"
            )
        yield row


def _of_lines(path: Path) -> Iterator[Mapping[str, Any]]:
    try:
        with _open(path) as file:
            for number, line in enumerate(file, start=1):
                if number == 1:
                    line = line.removeprefix(BYTE_ORDER_MARK)
                if line.strip():
                    yield _row(path, number, line)
    except (OSError, EOFError, zlib.error) as error:
        raise _unreadable(path, error) from error


def _row(path: Path, number: int, line: bytes) -> Mapping[str, Any]:
    try:
        row = json.loads(line.decode("utf-8").rstrip("\r\n"))  # a torn line ends on itself, not on the next one
    except (ValueError, RecursionError) as error:  # of JSON, or of UTF-8
        raise ToolkitError(
            f"{path}: line {number}{fault(error)}", remedy="one JSON object per line, or one array of them, in UTF-8"
        ) from error
    if not isinstance(row, dict):
        raise ToolkitError(f"{path}: line {number} is {kind(row)}, not an object", remedy="one JSON object per line")
    return row


def fault(error: Exception) -> str:
    """What is wrong with one line, and where in it; JSON's own words number lines too, from this one on."""
    return f", column {error.colno}: {error.msg}" if isinstance(error, json.JSONDecodeError) else f": {error}"


def _of_parquet(path: Path) -> Iterator[Mapping[str, Any]]:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as error:
        raise ToolkitError(f"{path} needs pyarrow", remedy="pip install '.[train]'") from error
    try:
        for batch in pyarrow.parquet.ParquetFile(path).iter_batches():
            yield from batch.to_pylist()
    except (OSError, ValueError, pyarrow.ArrowException) as error:  # a ValueError: text that is not UTF-8
        raise ToolkitError(
            f"cannot read {path}: {' '.join(str(error).split())}", remedy="give a whole Parquet file, its text in UTF-8"
        ) from error


def kind(value: Any) -> str:
    """A value's kind, in the words of JSON."""
    words = {type(None): "null", str: "text", list: "a list", dict: "an object", bool: "true or false", bytes: "bytes"}
    return words.get(type(value), "a number" if isinstance(value, (int, float)) else type(value).__name__)


def columns(row: Mapping[str, Any]) -> str:
    """A row's columns and their kinds, for messages: ``text (null), id (a number)``."""
    return ", ".join(f"{name} ({kind(value)})" for name, value in row.items()) or "none"
