"""Reading a csv of runs: every fault is told with its line, and nothing else comes out of bad bytes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.validate.runs import row, written
from toolkit.errors import ToolkitError
from toolkit.validate.rows import COLUMNS, COUNTS, MOST_SHOWN, NUMBERS, read


def refused(data: bytes) -> list[str]:
    with pytest.raises(ToolkitError) as error:
        read(data, "runs.csv")
    return [problem.message for problem in error.value.problems]


def test_numbers_and_text() -> None:
    made = row(n_gpus="16.0", tokens_per_s_per_gpu="1.5e3", model="  x  ", tp="")
    assert (made.line, made.count("n_gpus"), made.number("tokens_per_s_per_gpu")) == (2, 16, 1500.0)
    assert (made.text("model"), made.count("tp"), made.text("no such column")) == ("x", None, "")


def test_an_empty_line_is_no_run_and_a_row_may_be_short() -> None:
    assert [each.name for each in read(written({}) + b"\n,,\nb\n", "runs.csv")] == ["a", "b"]


def test_a_row_without_id_is_called_by_its_line() -> None:
    assert row(id="").name == "line 2"


@pytest.mark.parametrize("column", [*COUNTS, *NUMBERS])
@pytest.mark.parametrize("value", ["x", "nan", "inf", "-1", "1e400", "1_0", "9" * 60, "0x10", "１e"])
def test_a_bad_number_is_told_with_its_line_and_column(column: str, value: str) -> None:
    (message,) = refused(written({}, {column: value}))
    assert message.startswith(f"runs.csv, line 3: {column} = {value[:40]!r}")


@pytest.mark.parametrize("column", COUNTS)
def test_counts_are_whole_and_in_range(column: str) -> None:
    for value in ("1.5", str(COUNTS[column] + 1)):
        assert column in refused(written({column: value}))[0]
    assert read(written({column: COUNTS[column]}), "runs.csv")[0].count(column) == COUNTS[column]


def test_all_problems_at_once_and_not_too_many() -> None:
    messages = refused(written(*({"tp": "x", "pp": "y"} for _ in range(30))))
    assert len(messages) == MOST_SHOWN + 1
    assert messages[-1] == "runs.csv: 40 more problems like these"


def test_missing_and_repeated_columns_are_all_named() -> None:
    lines = written({}).decode().split("\n")
    header = lines[0].replace("tp,", "", 1).replace(",gpu,", ",")
    (missing,) = refused(header.encode() + b"\n1\n")
    assert missing == f"runs.csv lacks 2 of {len(COLUMNS)} columns: gpu, tp"
    (twice,) = refused((lines[0] + ",tp\n").encode())
    assert twice == "runs.csv has columns of the same name: tp"


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "lacks"),
        (b"\xff\xfe\x00", "not text in UTF-8"),
        (b"\x89PNG\r\n\x1a\n", "not text in UTF-8"),
        (b'{"a": 1}', "lacks"),
        (written({})[: written({}).index(b"\n") + 1], "has no rows"),
        (written({}) + b'"never closed', "line 3"),
        (written({}).rstrip() + b",one too many\n", f"{len(COLUMNS) + 1} fields, but {len(COLUMNS)} columns"),
        (written({}) + b'"' + b"x" * 200_000 + b'"\n', "field larger than field limit"),
    ],
)
def test_what_is_no_csv_of_runs(data: bytes, words: str) -> None:
    assert any(words in message for message in refused(data))


@given(st.binary(max_size=300), st.integers(0, 2000))
def test_any_bytes_are_read_or_refused(junk: bytes, place: int) -> None:
    data = written({})
    try:
        assert read(data[:place] + junk + data[place:], "runs.csv")
    except ToolkitError as error:
        assert error.problems
