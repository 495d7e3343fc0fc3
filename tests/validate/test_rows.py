"""Reading a csv of runs: every fault is told with its row and column, and nothing else comes out of bad bytes."""

from __future__ import annotations

import csv
import io

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.validate.runs import row, written
from toolkit.errors import ToolkitError
from toolkit.validate.rows import COLUMNS, COUNTS, NUMBERS, read


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
@pytest.mark.parametrize("value", ["x", "inf", "-1", "1e400", "1_0", "9" * 60, "0x10", "１e", "~8", "4k", "4,09"])
def test_a_bad_number_is_a_fault_of_its_row_alone(column: str, value: str) -> None:
    sound, bad, last = read(written({}, {column: value}, {"id": "c"}), "runs.csv")
    assert bad.faults[column].startswith(f"unreadable: {column} = {value[:40]!r} is not ")
    assert not sound.faults and not last.faults and last.name == "c"


@pytest.mark.parametrize("column", COUNTS)
def test_counts_are_whole_and_in_range(column: str) -> None:
    for value in ("1.5", str(COUNTS[column] + 1)):
        assert column in row(**{column: value}).faults
    assert row(**{column: COUNTS[column]}).count(column) == COUNTS[column]


@pytest.mark.parametrize("value", ["NA", "n/a", "n.a.", "none", "None", "-", "unknown", "NaN", " null "])
def test_ways_to_say_nothing(value: str) -> None:
    made = row(cp=value, peak_mem_gib=value)
    assert (made.count("cp"), made.number("peak_mem_gib"), made.faults) == (None, None, {})
    if value.casefold() != "none":  # which says something in columns of words
        assert row(interconnect=value, precision_norm=value).text("precision_norm") == ""


def test_thousands_units_and_degrees_that_are_not_used() -> None:
    made = row(hidden="4,096", vocab="128,256", gpu_mem_gb="80 GB", step_time_s="1,234.5s", ep="0", vpp=0)
    assert (made.count("hidden"), made.count("vocab"), made.number("gpu_mem_gb")) == (4096, 128256, 80)
    assert (made.number("step_time_s"), made.count("ep"), made.faults) == (1234.5, 0, {})


@pytest.mark.parametrize("separator", [";", "\t", "|"])
def test_other_separators(separator: str) -> None:
    out = io.StringIO()
    csv.writer(out, delimiter=separator).writerows(csv.reader(io.StringIO(written({}).decode())))
    (made,) = read(out.getvalue().encode(), "runs.csv")
    assert made.texts == row().texts and made.numbers == row().numbers


def test_a_comma_may_be_a_decimal_one_where_semicolons_part_the_fields() -> None:
    data = b"gpu;n_gpus;seq_len;model;step_time_s;vocab\nH100;8;4,096;llama-3-8b;1,234;128,256\n"
    (made,) = read(data, "runs.csv")
    assert (made.count("seq_len"), made.count("vocab"), list(made.faults)) == (4096, 128256, ["step_time_s"])


def test_columns_may_be_absent_and_the_case_of_the_header_does_not_matter() -> None:
    data = b"GPU,N_GPUs,Seq_Len,Model,Step Time S\nH100,8,4096,llama-3-8b,2\n"
    data = data.replace(b"Step Time S", b"Step Time s")
    (made,) = read(data, "runs.csv")
    assert (made.text("model"), made.number("step_time_s"), made.count("tp"), made.text("notes")) == (
        "llama-3-8b",
        2,
        None,
        "",
    )


def test_missing_and_repeated_columns_are_all_named() -> None:
    (missing,) = refused(b"id,seq_len,layers\n1,2,3\n")
    assert all(name in missing for name in ("gpu", "n_gpus", "model (or layers, hidden, heads)", "step_time_s"))
    lines = written({}).decode().split("\n")
    (twice,) = refused((lines[0] + ",TP\n").encode())
    assert twice == "runs.csv has columns of the same name: tp"


def test_a_line_that_is_no_row_is_left_out_alone() -> None:
    sound = written({}).rstrip().decode().split("\n")
    quoted = sound[1].replace("tests", '"te"sts"')
    long, quotes, last = read(f"{sound[0]}\n{sound[1]},more\n{quoted}\n{sound[1]},\n".encode(), "runs.csv")
    assert long.faults[""].startswith(f"unreadable: {len(COLUMNS) + 1} fields, but {len(COLUMNS)} columns")
    assert quotes.faults[""].startswith("unreadable: ") and (last.faults, last.name) == ({}, "a")


def test_one_byte_of_another_encoding_does_not_lose_the_file() -> None:
    made = read(written({}, {"source": "Universite"}).replace(b"Universite", b"Universit\xe9"), "runs.csv")
    assert [len(each.faults) for each in made] == [0, 0]


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "lacks"),
        (b"\xff\xfe\x00", "not text in UTF-8"),
        (b"\x89PNG\r\n\x1a\n", "not text in UTF-8"),
        (b'{"a": 1}', "lacks"),
        (written({})[: written({}).index(b"\n") + 1], "has no rows"),
        (written({}) + b'"never closed', "line 3"),
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
