"""Files of rows as people have them: arrays, byte order marks, gzip, folders; and what only looks like data."""

import gzip
import json
import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from recipes.byte_tokenizer import ByteTokenizer
from recipes.finetune import data, documents, packing, prepare, rows
from recipes.finetune.documents import read_documents, read_rows
from tests import finetune_runs
from toolkit.errors import ToolkitError
from toolkit.recipe import Contract

ROWS = [{"text": f"row {n} says something"} for n in range(6)]
LINES = "".join(json.dumps(row) + "\n" for row in ROWS)
MARK = "\ufeff"


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("rows.jsonl", LINES),
        ("ROWS.JSONL", LINES),
        ("rows.jsonl", LINES.replace("\n", "\r\n")),
        ("rows.jsonl", LINES.replace("\n", "\n\n \n")),
        ("rows.jsonl", MARK + LINES),
        ("rows.json", LINES),
        ("rows.json", MARK + json.dumps(ROWS)),
        ("rows.jsonl", json.dumps(ROWS)),
        ("rows.jsonl", json.dumps(ROWS, indent=1)),
        ("rows.jsonl.gz", gzip.compress(LINES.encode())),
        ("rows.json.gz", gzip.compress(json.dumps(ROWS).encode())),
        ("a 'b' \"c\" ü 日本 %{x}\n.jsonl", LINES),
        ("-rows.jsonl", LINES),
        ("~rows.jsonl", LINES),
    ],
)
def test_the_same_rows_in_every_form(name: str, content: str | bytes, tmp_path: Path) -> None:
    path = tmp_path / name
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    assert list(read_rows(str(path))) == ROWS
    assert documents.about_how_many(str(path)) == pytest.approx(6, abs=3)


def test_a_byte_order_mark_is_no_part_of_a_text(tmp_path: Path) -> None:
    path = tmp_path / "text.txt"
    path.write_text(MARK + "hello")
    (document,) = read_documents(str(path))
    assert document.segments[0].text == "hello"


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.csv", "text\nabc\n", "no text, and of no kind that is read here"),
        ("a.TSV", "text\nabc\n", "no text, and of no kind"),
        ("a.tar.gz", gzip.compress(b"abc"), "no text, and of no kind"),
        ("a", LINES, "holds JSON lines, and its name does not say so"),
        ("a.log", MARK + LINES, "holds JSON lines"),
        ("a.jsonl", gzip.compress(LINES.encode()), "line 1: 'utf-8' codec"),
        ("a.jsonl.gz", LINES, "cannot read .*Not a gzipped file"),
        ("a.jsonl.gz", gzip.compress(LINES.encode())[:-12], "cannot read .*[Cc]ompressed file ended"),
        ("a.jsonl", LINES.encode("utf-16"), "line 1: 'utf-8' codec"),
        ("a.jsonl", LINES + '{"text": "cut', "line 7, column 10: Unterminated string"),
        ("a.jsonl", LINES + '{"text": null}', r"row 7 has the columns text \(null\)"),
        ("a.jsonl", LINES + '{"messages": "hello"}', r"row 7 has the columns messages \(text\)"),
        ("a.jsonl", LINES + '{"messages": []}', "row 7 is a conversation without messages"),
        ("a.jsonl", LINES + "null", "line 7 is null, not an object"),
        ("a.jsonl", LINES + '{"text": "a", "other"\n' + LINES, "line 7, column 22: Expecting ':' delimiter(\\n|$)"),
        ("a.json", "[1", "a.json: "),
    ],
)
def test_what_only_looks_like_data_is_a_sentence(name: str, content: str | bytes, message: str, tmp_path: Path) -> None:
    path = tmp_path / name
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    with pytest.raises(ToolkitError, match=message):
        list(read_documents(str(path)))


def test_parquet_of_other_kinds_is_a_sentence(tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    texts = pyarrow.array([b"\xff\xfe"] * 3, pyarrow.binary())
    for column, message in (
        (texts, r"row 1 has the columns text \(bytes\)"),
        (texts.view(pyarrow.string()), "cannot read .* 'utf-8' codec"),
        (pyarrow.array([1, 2]), r"row 1 has the columns text \(a number\)"),
        (pyarrow.array(["a", None]), r"row 2 has the columns text \(null\)"),
    ):
        path = tmp_path / "rows.parquet"
        parquet.write_table(pyarrow.table({"text": column}), path)
        with pytest.raises(ToolkitError, match=message):
            list(read_documents(str(path)))
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(ToolkitError, match="cannot read"):
        list(read_documents(str(path)))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda path: path.symlink_to("/dev/zero"), "is not a regular file"),
        (os.mkfifo, "is not a regular file"),
        (lambda path: path.symlink_to("nowhere.jsonl"), "does not exist"),
        (lambda path: path.symlink_to(path.name), "does not exist"),
        (lambda path: path.mkdir(), "is a folder without"),
    ],
)
def test_what_could_be_read_for_ever_is_not_begun(make: Callable[[Path], None], message: str, tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    make(path)
    for read in (read_documents, read_rows, documents.check_file):
        with pytest.raises(ToolkitError, match=message):
            list(read(str(path)) or ())


@pytest.mark.parametrize("name", ["/tmp/" + "a" * 300 + ".jsonl", "a\0b.jsonl", "~nobody-at-all/rows.jsonl"])
def test_names_that_no_file_can_have_do_not_exist(name: str, tmp_path: Path) -> None:
    with pytest.raises(ToolkitError, match="does not exist"):
        read_documents(name)
    assert data.cache_folder(tmp_path, Contract(dataset=name, tokenizer=name))


def test_a_folder_is_read_without_what_is_hidden_or_describes_it(tmp_path: Path) -> None:
    names = ("b.jsonl.gz", "a.jsonl", ".cache/half.jsonl", "dataset_info.json", "README.md")
    (tmp_path / ".cache").mkdir()
    for name in names:
        content = LINES.encode()
        (tmp_path / name).write_bytes(gzip.compress(content) if name.endswith(".gz") else content)
    assert [path.name for path in rows.files_of(tmp_path)] == ["a.jsonl", "b.jsonl.gz"]
    for name in names[:2]:
        (tmp_path / name).unlink()
    (tmp_path / "train.json").write_text(json.dumps(ROWS))
    assert [path.name for path in rows.files_of(tmp_path)] == ["train.json"]


def test_rows_with_nothing_to_learn_are_counted_and_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A text of no characters would teach that texts end at once."""
    path = tmp_path / "rows.jsonl"
    path.write_text('{"text": ""}\n{"prompt": "", "completion": ""}\n' + LINES)
    made = finetune_runs.tiny_plan("ddp", 2, 0, 8, sequence_length=16, dataset=str(path))
    assert prepare.main(["--plan", str(finetune_runs.write(made, tmp_path / "some")), "--workers", "1"]) == 0
    assert "8 documents, 2 dropped" in capsys.readouterr().out
    path.write_text('{"text": ""}\n{"messages": [{"role": "user", "content": "a"}]}\n')
    made = finetune_runs.tiny_plan(
        "ddp", 2, 0, 8, sequence_length=16, dataset=str(path), completion_only=True, packing=False
    )
    assert prepare.main(["--plan", str(finetune_runs.write(made, tmp_path / "none")), "--workers", "1"]) == 2
    assert "(2 of 2 documents have nothing to learn in 16 tokens" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("contract", "message"),
    [
        ({"sequence_length": 1}, "sequence_length is 1"),
        ({"sequence_length": 257}, "sequence_length 257 exceeds the model's 256 positions"),
        ({"chat_template": "zephir"}, "chat_template 'zephir' is not one of"),
        ({"dataset": ""}, "the contract names no dataset"),
    ],
)
def test_what_training_would_refuse_is_not_prepared(
    contract: dict[str, object], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made = finetune_runs.tiny_plan("ddp", 2, 0, 8, **contract)
    assert prepare.main(["--plan", str(finetune_runs.write(made, tmp_path)), "--workers", "1"]) == 2
    assert capsys.readouterr().err.count(message) == 1
    assert not (tmp_path / "run").exists()


def test_sequences_that_no_memory_holds_are_a_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "rows.jsonl").write_text(LINES)
    contract = Contract(dataset=str(tmp_path / "rows.jsonl"), tokenizer="byte", sequence_length=64, packing=False)

    def too_much(*_: object) -> None:
        raise MemoryError("Unable to allocate 74.5 GiB")

    monkeypatch.setattr(packing, "pad", too_much)
    with pytest.raises(ToolkitError, match="of 6 documents do not fit into this machine's memory.*74.5 GiB"):
        data.build(contract, ByteTokenizer(), 258)


def blocks() -> data.Blocks:
    rows = np.arange(12, dtype=np.int32).reshape(3, 4)
    return data.Blocks(rows, rows, rows, np.full(3, 4, np.int32))


def test_tokens_are_stored_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Numbers of processes are used again, in containers at every start: what a killed one left is in nobody's way."""
    folder = tmp_path / "data" / "abc"
    left = folder.with_name(f".abc.{os.getpid()}")
    left.mkdir(parents=True)
    (left / "tokens.npy").write_bytes(b"half")
    data.store(blocks(), {"documents": 3}, folder)
    data.store(blocks(), {"documents": 4}, folder)  # another process was first: its tokens stay
    assert data.counts(folder) == {"documents": 3}
    assert left.exists() and [path.name for path in folder.parent.iterdir() if path not in (left, folder)] == []
    os.utime(left, (0, 0))

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(np, "save", full)
        with pytest.raises(ToolkitError, match="cannot write the tokens to .*: No space left on device"):
            data.store(blocks(), {}, tmp_path / "data" / "other")
    data.store(blocks(), {}, folder)
    assert [path.name for path in folder.parent.iterdir()] == ["abc"]  # what was abandoned a day ago is gone


def test_stored_tokens_that_were_torn_are_a_sentence(tmp_path: Path) -> None:
    folder = tmp_path / "abc"
    data.store(blocks(), {"documents": 3}, folder)
    assert (data.load(folder).tokens == blocks().tokens).all()
    for name, content in (("labels.npy", b""), ("labels.npy", b"x" * 40), ("lengths.npy", None)):
        path = folder / name
        whole = path.read_bytes()
        path.unlink()
        if content is not None:
            path.write_bytes(content)
        with pytest.raises(ToolkitError, match=f"cannot read the tokens that rank 0 wrote to {folder}"):
            data.load(folder)
        path.write_bytes(whole)
    (folder / "labels.npy").write_bytes((folder / "labels.npy").read_bytes()[:-4])
    with pytest.raises(ToolkitError, match="remove .* if it is damaged"):
        data.load(folder)
    (folder / "counts.json").write_text("{")
    with pytest.raises(ToolkitError, match="cannot read .*counts.json"):
        data.counts(folder)
