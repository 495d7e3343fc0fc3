"""Rows of a csv file of measured runs: text and numbers by column, checked once, every fault with its line."""

from __future__ import annotations

import csv
import io
import math
from dataclasses import dataclass

from toolkit.errors import Problem, ToolkitError

TEXT = (
    *("id", "source", "model", "task", "framework", "gpu", "interconnect", "zero_stage", "sp", "tied", "recompute"),
    *("flash_attn", "optimizer", "offload", "mem_kind", "scoreset", "precision_norm", "recompute_norm", "zero_norm"),
    *("mem_basis", "outcome"),
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
    "ep": 1_000_000,
    "micro_batch": 10**9,
    "global_batch": 10**9,
    "grad_accum": 10**9,
}
MAY_BE_ZERO = frozenset(("n_experts", "top_k"))  # of a dense model
NUMBERS = (*("params_b", "gpu_mem_gb", "peak_mem_gib", "tokens_per_s_per_gpu", "step_time_s", "implied_step_time_s"),)
COLUMNS = (*TEXT, *COUNTS, *NUMBERS)
MOST_SHOWN = 20  # problems; the rest is counted


@dataclass(frozen=True)
class Row:
    """One run. A blank field is ``""``, or None as a number: what the source does not state."""

    line: int
    texts: dict[str, str]
    numbers: dict[str, float]

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
    """Every row of a csv file in UTF-8.

    Raises ToolkitError with all problems: not text, not csv, no rows, missing or repeated columns, a row with more
    fields than columns, and in a numeric column anything but a number in its range.
    """
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ToolkitError(
            f"{where} is not text in UTF-8: {error}", remedy="give a csv file of measured runs"
        ) from error
    problems: list[Problem] = []
    rows: list[Row] = []
    reader = csv.reader(io.StringIO(text, newline=""), strict=True)
    try:
        header = [name.strip() for name in next(reader, [])]
        _check_header(header, where)
        for fields in reader:
            if not any(field.strip() for field in fields):
                continue
            if len(fields) > len(header):
                problems.append(
                    Problem(
                        f"{where}, line {reader.line_num}: {len(fields)} fields, but {len(header)} columns",
                        "put a field that holds a comma into double quotes",
                    )
                )
                continue
            texts = {name: field.strip() for name, field in zip(header, fields, strict=False)}
            rows.append(Row(reader.line_num, texts, _numbers(texts, f"{where}, line {reader.line_num}", problems)))
    except csv.Error as error:
        problems.append(
            Problem(f"{where}, line {reader.line_num}: {error}", "it must be csv, as Python's csv writes it")
        )
    if len(problems) > MOST_SHOWN:
        problems = [*problems[:MOST_SHOWN], Problem(f"{where}: {len(problems) - MOST_SHOWN} more problems like these")]
    if problems:
        raise ToolkitError(*problems)
    if not rows:
        raise ToolkitError(f"{where} has no rows", remedy="each run is one row under the header")
    return rows


def _check_header(header: list[str], where: str) -> None:
    missing = [name for name in COLUMNS if name not in header]
    twice = sorted({name for name in header if name and header.count(name) > 1})
    problems = []
    if missing:
        problems.append(
            Problem(
                f"{where} lacks {len(missing)} of {len(COLUMNS)} columns: {', '.join(missing)}",
                "the first line names the columns; leave a field empty where a source does not state it",
            )
        )
    if twice:
        problems.append(
            Problem(f"{where} has columns of the same name: {', '.join(twice)[:200]}", "rename one of them")
        )
    if problems:
        raise ToolkitError(*problems)


def _numbers(texts: dict[str, str], where: str, problems: list[Problem]) -> dict[str, float]:
    found: dict[str, float] = {}
    for column in (*COUNTS, *NUMBERS):
        text = texts.get(column, "")
        if not text:
            continue
        most = COUNTS.get(column, 1e18)
        least = 0 if column in MAY_BE_ZERO else 1 if column in COUNTS else 1e-18
        value = _number(text)
        whole = column not in COUNTS or value == math.floor(value) if math.isfinite(value) else False
        if whole and least <= value <= most:
            found[column] = value
        else:
            kind = f"a whole number from {least} to {most:,}" if column in COUNTS else "a number above 0"
            problems.append(
                Problem(f"{where}: {column} = {text[:40]!r} is not {kind}", "correct it, or leave the field empty")
            )
    return found


def _number(text: str) -> float:
    try:
        return float(text) if len(text) < 40 and "_" not in text else math.nan
    except ValueError:
        return math.nan
