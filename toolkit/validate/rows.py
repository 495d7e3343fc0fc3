"""Rows of a csv file of measured runs: text and numbers by column, checked once, every fault with its column.

A cell that cannot be read is a fault of its row, which is left out with that reason; the file is refused only where it
is no table of runs at all. Columns that have to be there are those of REQUIRED and one of MEASURED; any other column
may be absent, which is as if it were blank. Case and order of the header do not matter; commas, semicolons, tabs or
strokes part the fields, whichever makes most of the header known.
"""

from __future__ import annotations

import csv
import io
import math
import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from toolkit.errors import Problem, ToolkitError
from toolkit.validate.spellings import is_blank, spelled

TEXT = (
    *("id", "source", "model", "task", "framework", "gpu", "interconnect", "zero_stage", "sp", "tied", "recompute"),
    *("flash_attn", "optimizer", "offload", "mem_kind", "scoreset", "precision_norm", "recompute_norm", "zero_norm"),
    *("mem_basis", "outcome", "precision", "compile", "notes"),
)
# column: the largest count that is taken; far above any run, and small enough for every product in a formula
COUNTS = {
    "layers": 10_000,
    "hidden": 10_000_000,
    "heads": 100_000,
    "kv_heads": 100_000,
    "ffn": 100_000_000,
    "vocab": 100_000_000,
    "seq_len": 10**9,
    "n_experts": 100_000,
    "top_k": 100_000,
    "n_gpus": 1_000_000,
    "gpus_per_node": 576,
    "tp": 1_000_000,
    "pp": 10_000,
    "vpp": 10_000,
    "cp": 1_000_000,
    "dp": 1_000_000,
    "ep": 1_000_000,
    "micro_batch": 10**9,
    "global_batch": 10**9,
    "grad_accum": 10**9,
}
MAY_BE_ZERO = frozenset(("n_experts", "top_k", "cp", "ep", "vpp"))  # of a dense model; degrees that are not used
NUMBERS = (*("params_b", "gpu_mem_gb", "peak_mem_gib", "tokens_per_s_per_gpu", "step_time_s", "implied_step_time_s"),)
COLUMNS = (*TEXT, *COUNTS, *NUMBERS)
# columns that tell the machines and the length of samples; beside them a model, by name or by its widths
REQUIRED = ("gpu", "n_gpus", "seq_len")
MODEL = ("layers", "hidden", "heads")
MEASURED = ("step_time_s", "implied_step_time_s", "tokens_per_s_per_gpu", "peak_mem_gib", "outcome")
_UNITS = {"gpu_mem_gb": "gi?b", "peak_mem_gib": "gib", "params_b": "b", "step_time_s": "s", "implied_step_time_s": "s"}
_SEPARATORS = {",": "comma", ";": "semicolon", "\t": "tab", "|": "stroke"}


class Unusable(Exception):
    """Ends the reading of one row; ``job_of`` makes a skip of it."""


@dataclass(frozen=True)
class Row:
    """One run. A blank field is ``""``, or None as a number: what the source does not state."""

    line: int
    texts: dict[str, str]
    numbers: dict[str, float]
    faults: dict[str, str] = field(default_factory=dict)  # column, or empty for the whole row: why it cannot be read

    def text(self, column: str) -> str:
        """The field without blanks around it; empty where the file has no such column."""
        return self.texts.get(column, "")

    def count(self, column: str) -> int | None:
        """A whole number, or None where it is not stated."""
        value = self.numbers.get(column)
        return None if value is None else int(value)

    def number(self, column: str) -> float | None:
        """A number above 0, or None where it is not stated."""
        return self.numbers.get(column)

    def is_recommended_for(self, subject: str) -> bool:
        """Whether scoreset (time, mem, time+mem, both, or blank) recommends the row for ``time`` or ``mem``."""
        return subject in self.text("scoreset") or self.text("scoreset") == "both"

    @property
    def name(self) -> str:
        """The id, or the line where there is none."""
        return self.text("id") or f"line {self.line}"


def read(data: bytes, where: str) -> list[Row]:
    """Every row of a table in UTF-8: csv, or with semicolons, tabs or strokes between the fields.

    A row with a bad cell, or more fields than columns, comes with ``faults``. Raises ToolkitError with all problems:
    not text, no table, no rows, missing or repeated columns, a quote that is never closed.
    """
    text = _decoded(data, where)
    separator = _separator(text)
    rows: list[Row] = []
    header: list[str] = []
    for line, fields, error in _lines(text, separator, where):
        if not header:
            header = [re.sub(r"\s+", "_", name.strip().casefold()) for name in fields]
            _check_header(header, where)
        elif error:
            rows.append(Row(line, {}, {}, {"": f"unreadable: {error}"}))
        elif any(each.strip() for each in fields):
            rows.append(_row(line, header, fields, separator))
    if not header:
        _check_header(header, where)
    if not rows:
        raise ToolkitError(f"{where} has no rows", remedy="each run is one row under the header")
    return rows


def _decoded(data: bytes, where: str) -> str:
    """UTF-8; single bytes of another encoding do no harm below a header that is UTF-8."""
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        head = data.partition(b"\n")[0]
        if b"\0" not in data and head.isascii():
            return data.decode("utf-8-sig", errors="replace")
        raise ToolkitError(
            f"{where} is not text in UTF-8: {error}", remedy="give a csv file of measured runs"
        ) from error


def _separator(text: str) -> str:
    """What makes most of the first line known as columns; a comma where nothing does."""
    head = text.lstrip().partition("\n")[0]

    def known(mark: str) -> int:
        return sum(name.strip().strip('"').casefold() in COLUMNS for name in head.split(mark))

    return max(_SEPARATORS, key=known)


def _lines(text: str, separator: str, where: str) -> Iterator[tuple[int, list[str], str]]:
    """Number, fields, and what is wrong with the line; raises ToolkitError where the rest of the file is lost."""
    reader = csv.reader(io.StringIO(text, newline=""), strict=True, delimiter=separator)
    while True:
        try:
            fields = next(reader, None)
        except csv.Error as error:
            if reader.line_num > 1 and "end of data" not in str(error) and "limit" not in str(error):
                yield reader.line_num, [], str(error)  # a quote within quotes: the next line is sound again
                continue
            raise ToolkitError(
                f"{where}, line {reader.line_num}: {error}", remedy="it must be csv, as Python's csv writes it"
            ) from error
        if fields is None:
            return
        yield reader.line_num, fields, ""


def _row(line: int, header: list[str], fields: list[str], separator: str) -> Row:
    if any(each.strip() for each in fields[len(header) :]):
        cause = (
            f"unreadable: {len(fields)} fields, but {len(header)} columns (a {_SEPARATORS[separator]} without quotes)"
        )
        return Row(line, dict(zip(header, map(str.strip, fields), strict=False)), {}, {"": cause})
    texts, faults = spelled({name: each.strip() for name, each in zip(header, fields, strict=False)})
    numbers = _numbers(texts, separator, faults)
    return Row(line, texts, numbers, faults)


def _check_header(header: list[str], where: str) -> None:
    missing = [name for name in REQUIRED if name not in header]
    if "model" not in header and not set(MODEL) <= set(header):
        missing.append(f"model (or {', '.join(MODEL)})")
    if not set(MEASURED) & set(header):
        missing.append(f"a measurement ({', '.join(MEASURED)})")
    twice = sorted({name for name in header if name in COLUMNS and header.count(name) > 1})
    problems = []
    if missing:
        problems.append(
            Problem(
                f"{where} lacks columns: {'; '.join(missing)}",
                "the first line names the columns; leave a field empty where a source does not state it",
            )
        )
    if twice:
        problems.append(
            Problem(f"{where} has columns of the same name: {', '.join(twice)[:200]}", "rename one of them")
        )
    if problems:
        raise ToolkitError(*problems)


def _numbers(texts: dict[str, str], separator: str, faults: dict[str, str]) -> dict[str, float]:
    found: dict[str, float] = {}
    for column in (*COUNTS, *NUMBERS):
        text = texts.get(column, "")
        if is_blank(text) or text.casefold() == "none":
            continue
        most = COUNTS.get(column, 1e18)
        least = 0 if column in MAY_BE_ZERO else 1 if column in COUNTS else 1e-18
        value = _number(text, _UNITS.get(column, ""), separator == ";" and column not in COUNTS)
        whole = column not in COUNTS or value == math.floor(value) if math.isfinite(value) else False
        if whole and least <= value <= most:
            found[column] = value
        else:
            kind = f"a whole number from {least} to {most:,}" if column in COUNTS else "a number above 0"
            faults[column] = f"unreadable: {column} = {text[:40]!r} is not {kind}"
    return found


def _number(text: str, unit: str, decimal_comma: bool) -> float:
    """``4,096`` is 4096, except where a comma may be a decimal one; the column's own unit may follow."""
    if unit:
        text = re.sub(rf"(?<=[\d.])\s*{unit}$", "", text, flags=re.IGNORECASE)
    if not decimal_comma and re.fullmatch(r"\d{1,3}(,\d{3})+(\.\d+)?", text):
        text = text.replace(",", "")
    try:
        return float(text) if len(text) < 40 and "_" not in text else math.nan
    except ValueError:
        return math.nan
