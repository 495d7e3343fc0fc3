"""Tokenising by several processes is tokenising by one; how long it takes is told; nobody waits in a collective."""

import json
import multiprocessing
import os
import socket
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from recipes import waiting
from recipes.byte_tokenizer import ByteTokenizer
from recipes.finetune import data, documents, material, preparation, prepare, tokenise
from recipes.finetune.documents import Document, Segment
from recipes.finetune.preparation import Estimate
from tests import finetune_runs
from toolkit.errors import ToolkitError
from toolkit.recipe import Contract


def rows_file(folder: Path, count: int) -> Path:
    path = folder / "rows.jsonl"
    rows = [
        {"text": f"text {n} " * (n % 7 + 1)}
        if n % 3
        else {"prompt": f"what is {n}?", "completion": f"{n} of course" * (n % 5 + 1)}
        for n in range(count)
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@given(st.integers(1, 400), st.integers(1, 5))
def test_chunks_are_the_rows_in_order(count: int, first: int) -> None:
    rows = [Document((Segment(str(n), True),)) for n in range(count)]
    chunks = list(tokenise._chunks(iter(rows[1:]), rows[0], first))
    assert [row for chunk in chunks for row in chunk.documents] == rows
    assert [chunk.first for chunk in chunks] == [first + n for n in range(0, count, tokenise.CHUNK)]
    assert all(0 < len(chunk.documents) <= tokenise.CHUNK for chunk in chunks)


@pytest.mark.slow
@pytest.mark.parametrize("packing", [True, False])
def test_any_number_of_processes_makes_the_same_sequences(packing: bool, tmp_path: Path) -> None:
    path = rows_file(tmp_path, tokenise.FIRST + 5 * tokenise.CHUNK + 17)
    contract = Contract(dataset=str(path), tokenizer="byte", sequence_length=64, packing=packing)
    one, counts = data.build(contract, ByteTokenizer(), 258)
    assert counts["documents"] == tokenise.FIRST + 5 * tokenise.CHUNK + 17
    for workers in (2, 3):
        several, same = data.build(contract, ByteTokenizer(), 258, workers)
        assert same == counts
        assert all((a == b).all() for a, b in zip(one, several, strict=True))


@pytest.mark.slow
def test_the_first_wrong_row_is_named_whoever_finds_it(tmp_path: Path) -> None:
    """Rows are read ahead of what is tokenised: an unreadable one must not be told before an earlier wrong one."""
    path = rows_file(tmp_path, tokenise.FIRST + 40)
    wrong = {"messages": [{"role": "user", "content": 5}]}
    for more, said in ((json.dumps(wrong) + "\nno\n", "row 1065 of the dataset: the content"), ("no\n", "line 1065")):
        path.write_text(path.read_text() + more)
        contract = Contract(dataset=str(path), tokenizer="byte", sequence_length=64)
        for workers in (1, 2):
            with pytest.raises(ToolkitError, match=said):
                data.build(contract, ByteTokenizer(), 258, workers)
        rows_file(tmp_path, tokenise.FIRST + 40)


def test_three_million_rows_at_156_a_second_are_five_hours() -> None:
    """A run that was killed after exactly 1,800 s of them, with 4 ranks (LlamaFactory#2424)."""
    estimate = Estimate(rows=2_969_526, rate=155.57)
    assert round(estimate.seconds) == 19_088
    said = preparation.warning(estimate, ranks=4, command="python -m recipes.finetune.prepare --plan p.json")
    assert "2,969,526 rows at 155.57 rows/s by 1 process takes 19,088 s (5 h 18 min), and 3 other rank(s) wait" in said
    assert "1,800 s" in said and "recipes.finetune.prepare --plan p.json" in said
    by_sixteen = estimate._replace(workers=16)
    assert by_sixteen.seconds == pytest.approx(19_088 / 16, rel=1e-4)
    assert "1,800 s" not in preparation.warning(by_sixteen, 4)  # 1,193 s: a word, but within the time-out
    assert preparation.warning(estimate._replace(workers=64 * 16), 4) == ""
    assert preparation.warning(estimate, ranks=1) == ""  # nobody waits


@given(st.integers(1, 10**9), st.floats(1e-3, 1e7), st.integers(1, 1024))
def test_time_is_rows_over_rate_and_processes(rows: int, rate: float, workers: int) -> None:
    seconds = Estimate(rows, rate, workers).seconds
    assert seconds * rate * workers == pytest.approx(rows)


def test_rows_are_counted_or_taken_from_the_size(tmp_path: Path) -> None:
    assert documents.about_how_many("sample") == 1
    assert documents.about_how_many(str(rows_file(tmp_path, 500))) == 500  # all of a small file is read
    big = tmp_path / "big.jsonl"
    big.write_text(json.dumps({"text": "x" * 985}) + "\n")  # 1,000 bytes a row
    big.write_text(big.read_text() * 9000)
    assert documents.about_how_many(str(big)) == pytest.approx(9000, rel=1e-3)


def test_what_is_prepared_is_what_a_run_reads(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch) -> None:
    plan = finetune_runs.tiny_plan(ranks=2, dataset=str(rows_file(tmp_path, 300)))
    path = finetune_runs.write(plan, tmp_path)
    assert prepare.main(["--plan", str(path), "--estimate"]) == 0
    said = capsys.readouterr().out
    assert said.startswith("about: tokenising 300 rows at ") and not (tmp_path / "run").exists()
    assert prepare.main(["--plan", str(path), "--workers", "2"]) == 0
    assert "training and" in capsys.readouterr().out
    monkeypatch.setattr(preparation, "make", None)  # nothing is made again
    read = material.read(plan, ByteTokenizer(), 258, tmp_path / "run", 0)
    assert read.training + read.held_out > 2 and read.counts["documents"] == 300
    with pytest.raises(SystemExit) as left:
        prepare.main(["--plan", str(path), "--workers", "0", "--output-dir="])
    said = capsys.readouterr().err
    assert left.value.code == 2 and "--workers is '0'" in said and "--output-dir is ''" in said


def free_port() -> int:
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        return int(server.getsockname()[1])


def rank_of_a_run(rank: int, port: int, what: str, results: Any) -> None:
    """Rank 0 works for 7 s; the group that follows gives up after 5."""
    import datetime

    from torch import distributed

    os.environ.update(RANK=str(rank), WORLD_SIZE="2", MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    waiting.BEAT, waiting.PATIENCE = 0.2, 30.0
    done = []

    def work() -> None:
        if what == "fails":
            raise ToolkitError("row 7 is wrong", remedy="mend it")
        if what == "dies":
            os._exit(9)
        time.sleep(7.0)
        done.append(rank)

    try:
        waiting.first_rank_works(work, rank, 2)
        distributed.init_process_group("gloo", timeout=datetime.timedelta(seconds=5))
        distributed.barrier()
        results.put((rank, "through", done))
        distributed.barrier()
        distributed.destroy_process_group()
    except ToolkitError as error:
        results.put((rank, str(error), done))
        time.sleep(2.0)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("what", "expected"),
    [
        ("works", {0: "through", 1: "through"}),
        ("fails", {0: "row 7 is wrong", 1: "row 7 is wrong"}),
        ("dies", {1: "rank 0 is gone"}),
    ],
)
def test_others_wait_longer_than_a_group_would_and_hear_of_failures(what: str, expected: dict[int, str]) -> None:
    spawn = multiprocessing.get_context("spawn")
    results, port = spawn.Queue(), free_port()
    ranks = [spawn.Process(target=rank_of_a_run, args=(rank, port, what, results)) for rank in (0, 1)]
    for process in ranks:
        process.start()
    found = [results.get(timeout=120) for _ in expected]
    for process in ranks:
        process.join(timeout=60)
    for rank, said, done in found:
        assert said.startswith(expected[rank]), said
        assert done == ([0] if what == "works" and rank == 0 else [])


def test_the_tokenizers_own_files_are_part_of_the_name(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text("{}")
    contract = Contract(dataset="sample", tokenizer=str(tmp_path))
    before = data.cache_folder(tmp_path, contract)
    (tmp_path / "tokenizer.json").write_text('{"other": 1}')
    assert data.cache_folder(tmp_path, contract) != before


def test_no_more_processes_than_processors() -> None:
    assert 1 <= tokenise.processes() <= len(os.sched_getaffinity(0))
