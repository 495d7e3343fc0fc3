"""Corpora as people have them, preparations that end half-way, and files that are torn afterwards."""

import gzip
import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from recipes.pretrain import parts, prepare, soundness, sources, tokens
from recipes.pretrain.parts import Counted, Job
from recipes.pretrain.tokens import Manifest
from toolkit.errors import ToolkitError
from toolkit.runtime.lease import Lease

ROWS = [{"text": f"document {n} of some words"} for n in range(40)]
LINES = "".join(json.dumps(row) + "\n" for row in ROWS)
TEXTS = [row["text"] for row in ROWS]
MARK = "\ufeff"


def texts_of(path: Path | str, part_bytes: int = 300) -> list[str]:
    return [text for part in sources.parts_of(str(path), part_bytes) for text in sources.texts(part, "text")]


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.JSONL", LINES),
        ("a.jsonl", MARK + LINES),
        ("a.jsonl.gz", gzip.compress((MARK + LINES).encode())),
        ("a.jsonl", LINES + '{"text": ""}\n'),
        ("a.json", json.dumps(ROWS)),
        ("a.jsonl", MARK + json.dumps(ROWS, indent=1)),
        ("a.json.gz", gzip.compress(json.dumps(ROWS).encode())),
    ],
)
def test_the_same_texts_in_every_form(name: str, content: str | bytes, tmp_path: Path) -> None:
    path = tmp_path / name
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    assert texts_of(path) == TEXTS


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.csv", "text\na\n", "no text, and of no kind that is read here"),
        ("a", LINES, "holds JSON lines, and its name does not say so"),
        ("a.jsonl", LINES + '{"text": "\\ud800"}\n', "holds U.D800, half of a pair"),
        ("a.jsonl", LINES + '{"text": "a", "other"\n' + LINES, "the line at byte [0-9]+, column 22: Expecting ':' d"),
        ("a.jsonl", LINES + '{"text": null}\n', r"no text in column 'text' \(it has text \(null\)\)"),
        ("a.jsonl.gz", gzip.compress(LINES.encode())[:-9], "cannot read"),
        ("a.jsonl.gz", gzip.compress(os.urandom(10_000))[:40] + b"\xaa" * 90, "cannot read|line 1"),
    ],
)
def test_what_is_no_corpus_is_a_sentence(name: str, content: str | bytes, message: str, tmp_path: Path) -> None:
    path = tmp_path / name
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    with pytest.raises(ToolkitError, match=message):
        texts_of(path)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("", "--dataset is empty"),
        ("/dev/zero", "not a regular file"),
        ("~nobody-at-all/a.jsonl", "does not exist"),
        ("/tmp/" + "a" * 300 + ".jsonl", "does not exist"),
        ("/nowhere/a.parquet", "does not exist"),
    ],
)
def test_names_of_no_corpus(name: str, message: str) -> None:
    with pytest.raises(ToolkitError, match=message):
        sources.parts_of(name, 100)


def test_a_snapshot_is_its_rows_and_not_its_page(tmp_path: Path) -> None:
    for name, content in {"a.jsonl": LINES, "README.md": "# no", "dataset_info.json": "{}", ".x/b.jsonl": "x"}.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(content)
    assert texts_of(tmp_path) == TEXTS
    (tmp_path / "a.jsonl").rename(tmp_path / "book.txt")
    (tmp_path / "dataset_info.json").unlink()
    assert texts_of(tmp_path) == [LINES]


def by_hand(folder: Path, job: Job, workers: int) -> Iterator[Counted]:
    """As :func:`parts.count`, in this process."""
    parts._worker.clear()
    parts._worker.update(folder=folder)
    for number in range(len(job.parts)):
        if not parts.is_finished(folder, job, number):
            done.append(number)
            _, problem = parts._tokenise(number)
            if problem:
                raise ToolkitError(problem)
    for number in range(len(job.parts)):
        yield msgspec.json.decode((folder / f"{number:06d}.json").read_bytes(), type=Counted)


done: list[int] = []


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Tokenising in this process, and no joining (which imports megatron-core)."""
    monkeypatch.setattr(prepare, "count", by_hand)
    monkeypatch.setattr(prepare, "_join", lambda job, folder, out, which, counted: "0" * 64)
    done.clear()
    yield
    parts._worker.clear()


def run(dataset: Path, out: Path, *more: str) -> int:
    words = ["--dataset", str(dataset), "--tokenizer", "byte", "--out", str(out), "--part-mib", "0.0005"]
    return prepare.main([*words, "--held-out", "0.1", *more])


def test_a_corrected_file_leaves_the_parts_of_the_others(
    here: None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    (folder / "a.jsonl").write_text(LINES[:400].rpartition("\n")[0] + "\n")
    (folder / "b.jsonl").write_text(LINES + "no\n")
    assert run(folder, tmp_path / "o") == 2
    assert "b.jsonl" in capsys.readouterr().err and (tmp_path / "o.parts").is_dir()
    assert run(folder, tmp_path / "o", "--text-column", "body") == 2  # other options
    assert "parts of another input, tokenizer or other options" in capsys.readouterr().err
    first = len(sources.parts_of(str(folder / "a.jsonl"), 524))
    (folder / "b.jsonl").write_text(LINES)
    done.clear()
    assert run(folder, tmp_path / "o") == 0
    assert done and min(done) == first and not (tmp_path / "o.parts").exists()
    assert run(folder, tmp_path / "o") == 2 and "exists" in capsys.readouterr().err
    assert run(folder, tmp_path / "o", "--force") == 0


def test_a_part_that_a_power_cut_made_shorter_is_made_again(here: None, tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text(LINES)
    job = Job("x", "byte", "", "text", 0.1, 260, sources.parts_of(str(path), 500))
    folder = tmp_path / "parts"
    folder.mkdir()
    parts.claim(folder, job, False)
    list(by_hand(folder, job, 1))
    assert done == list(range(len(job.parts)))
    done.clear()
    torn = parts.file_of(folder, 1, "")
    torn.write_bytes(torn.read_bytes()[:-2])
    (folder / "000000.json").write_bytes(b"")
    list(by_hand(folder, job, 1))
    assert done == [0, 1]


def test_joining_that_was_killed_is_done_again(here: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text(LINES)

    def killed(*_: Any) -> str:
        (tmp_path / "o.bin").write_bytes(b"half")
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(prepare, "_join", killed)
        assert run(path, tmp_path / "o") == 130  # as a shell counts an interrupt
    assert not tokens.is_prefix(str(tmp_path / "o"))
    done.clear()
    assert run(path, tmp_path / "o") == 0 and not done
    shutil.rmtree(tmp_path / "o.parts", ignore_errors=True)
    (tmp_path / "o.json").unlink()
    (tmp_path / "o.bin").write_bytes(b"of another program")
    assert run(path, tmp_path / "o") == 2  # nothing says that this is ours


def test_two_at_a_time_and_a_full_disk_are_sentences(
    here: None, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text(LINES)
    (tmp_path / "o.parts").mkdir()
    with Lease(tmp_path / "o.parts", environment={}):
        assert run(path, tmp_path / "o") == 2
        assert "belongs to process" in capsys.readouterr().err
        assert run(path, tmp_path / "o", "--force") == 2

    def full(*_: Any) -> str:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(prepare, "_join", full)
        assert run(path, tmp_path / "o") == 2
    assert "cannot write" in (said := capsys.readouterr().err) and "No space left on device" in said
    assert run(path, tmp_path / "o") == 0
    for option in (("--part-mib", "inf"), ("--held-out", "nan"), ("--workers", "0")):
        with pytest.raises(SystemExit) as left:
            run(path, tmp_path / "p", *option)
        assert left.value.code == 2 and f"{option[0]} is {option[1]!r}" in capsys.readouterr().err


@pytest.fixture
def indexed(tmp_path: Path) -> Path:
    """An indexed file of three documents in the library's layout, written by hand."""
    rows = [np.arange(length, dtype=np.uint16) for length in (5, 1, 9)]
    content = b"".join(row.tobytes() for row in rows)
    lengths = np.asarray([len(row) for row in rows], np.int32)
    places = np.asarray([0, 10, 12], np.int64)
    prefix = tmp_path / "c"
    tokens.beside(prefix, ".bin").write_bytes(content)
    tokens.beside(prefix, ".idx").write_bytes(
        soundness.HEADER.pack(soundness.MARK, 1, 8, 3, 4)
        + lengths.tobytes()
        + places.tobytes()
        + np.arange(4, dtype=np.int64).tobytes()
    )
    manifest = Manifest(
        dataset="d",
        tokenizer="byte",
        tokenizer_sha256="",
        end=0,
        documents=3,
        tokens=15,
        largest=8,
        sha256=hashlib.sha256(content).hexdigest(),
    )
    tokens.beside(prefix, ".json").write_bytes(msgspec.json.encode(manifest))
    return prefix


def test_files_that_fit_their_manifest_are_taken(indexed: Path) -> None:
    soundness.require_sound(str(indexed), tokens.read_manifest(str(indexed)))


@pytest.mark.parametrize("ending", [".bin", ".idx"])
def test_any_torn_or_flipped_byte_is_found(indexed: Path, ending: str) -> None:
    manifest, path = tokens.read_manifest(str(indexed)), tokens.beside(indexed, ending)
    content = path.read_bytes()
    changes: list[Callable[[int], bytes]] = [
        lambda at: content[:at],
        lambda at: content[:at] + bytes([content[at] ^ 0x55]) + content[at + 1 :],
        lambda at: content + content[: at + 1],
    ]
    for change in changes:
        for at in range(len(content)):
            path.write_bytes(change(at))
            with pytest.raises(ToolkitError):
                soundness.require_sound(str(indexed), manifest)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"tokens": 16}, "do not lie one after another"),
        ({"documents": 2}, "counts 2"),
        ({"tokens": -1}, "less than nothing"),
        ({"sha256": "0" * 64}, "is damaged: its SHA-256"),
        ({"held_out_documents": 1, "held_out_tokens": 4}, "cannot read .*-held-out.bin"),
    ],
)
def test_a_manifest_of_other_files_is_refused(indexed: Path, changes: dict[str, Any], message: str) -> None:
    manifest = msgspec.structs.replace(tokens.read_manifest(str(indexed)), **changes)
    with pytest.raises(ToolkitError, match=message):
        soundness.require_sound(str(indexed), manifest)
