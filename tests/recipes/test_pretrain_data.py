"""From texts to indexed tokens to sequences: nothing depends on how many processes there are."""

import gzip
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from recipes.byte_tokenizer import BEGIN, END, ByteTokenizer
from recipes.pretrain import parts, prepare, sources, tokens
from toolkit.errors import ToolkitError

ROOT = Path(__file__).parents[2]
SAMPLE = ROOT / "recipes" / "data" / "sample.txt"


def corpus(folder: Path, documents: int = 200) -> Path:
    """Paragraphs of the sample as JSON lines."""
    paragraphs = SAMPLE.read_text(encoding="utf-8").split("\n\n")[:documents]
    path = folder / "corpus.jsonl"
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in paragraphs), encoding="utf-8")
    return path


def texts_of(dataset: Path, part_bytes: int) -> list[str]:
    return [text for part in sources.parts_of(str(dataset), part_bytes) for text in sources.texts(part, "text")]


@settings(max_examples=60, deadline=None)
@given(
    texts=st.lists(st.text(max_size=40), min_size=1, max_size=12),
    blank=st.booleans(),
    newline=st.booleans(),
    part_bytes=st.integers(1, 400),
)
def test_every_line_is_in_one_part_however_the_file_is_cut(tmp_path_factory, texts, blank, newline, part_bytes):
    path = tmp_path_factory.mktemp("cut") / "some.jsonl"
    lines = [json.dumps({"text": text}, ensure_ascii=False) for text in texts]
    content = ("\n\n" if blank else "\n").join(lines) + ("\n" if newline else "")
    path.write_text(content, encoding="utf-8", errors="surrogatepass", newline="\n")
    assert texts_of(path, part_bytes) == [text for text in texts if text]  # of no characters is no document


def test_the_same_texts_from_every_kind_of_file(tmp_path):
    plain = corpus(tmp_path, 30)
    expected = texts_of(plain, 1000)
    assert len(expected) == 29  # one is empty
    packed = tmp_path / "corpus.jsonl.gz"
    packed.write_bytes(gzip.compress(plain.read_bytes()))
    import pyarrow
    import pyarrow.parquet

    table = tmp_path / "corpus.parquet"
    pyarrow.parquet.write_table(pyarrow.table({"text": expected}), table, row_group_size=7)
    assert texts_of(packed, 1000) == texts_of(table, 1000) == texts_of(table, 10**9) == expected
    assert len(sources.parts_of(str(table), 1)) == 5  # ceil(29 / 7) row groups
    assert texts_of(tmp_path, 10**9) == expected * 3  # a folder: its files by name


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ('{"text": "good"}\n{"text": 5}\n', "the line at byte 17 has no text in column 'text'"),
        ('{"content": "good"}\n', "it has content (text)"),
        ("[1]\n", "element 1 of the array is a number"),
        ("{\n", "the line at byte 0, column 2: Expecting"),
    ],
)
def test_rows_of_another_form_are_named(tmp_path, content, said):
    path = tmp_path / "bad.jsonl"
    path.write_text(content)
    with pytest.raises(ToolkitError) as raised:
        texts_of(path, 1000)
    assert said in str(raised.value)


def test_documents_end_and_tokenizers_differ():
    tokenizer = ByteTokenizer()
    assert tokens.encode(["ab", ""], tokenizer) == [[BEGIN, 97, 98, END], [BEGIN, END]]
    saved = tokens.fingerprint(tokenizer)
    assert saved == tokens.fingerprint(ByteTokenizer())
    changed = ByteTokenizer()
    changed.eos_token_id = 0
    assert tokens.fingerprint(changed) != saved


def test_copies_of_a_text_are_held_out_together():
    share = [parts.is_held_out(f"document {number}", 0.1) for number in range(5000)]
    assert share == [parts.is_held_out(f"document {number}", 0.1) for number in range(5000)]
    assert 0.08 < np.mean(share) < 0.12  # 5000 draws of 0.1: standard deviation 0.0042
    assert not any(parts.is_held_out(f"document {number}", 0.0) for number in range(100))


def command(dataset: Path, out: Path, *more: str) -> list[str]:
    program = [sys.executable, "-m", "recipes.pretrain.prepare", "--dataset", str(dataset), "--out", str(out)]
    return [*program, "--tokenizer", "byte", "--held-out", "0.1", *more]


def prepared(dataset: Path, out: Path, *more: str) -> subprocess.CompletedProcess:
    return subprocess.run(command(dataset, out, *more), cwd=ROOT, capture_output=True, text=True, timeout=120)


def content(out: Path) -> list[bytes]:
    return [tokens.beside(out, ending).read_bytes() for ending in prepare.RESULTS if ending != ".json"]


@pytest.mark.slow
def test_the_result_does_not_depend_on_workers_parts_or_a_crash(tmp_path):
    dataset = corpus(tmp_path)
    one, two, torn = (tmp_path / name for name in ("one", "two", "v1.5"))
    assert prepared(dataset, one, "--workers", "1").returncode == 0
    assert prepared(dataset, two, "--workers", "3", "--part-mib", "0.004").returncode == 0
    assert content(one) == content(two)

    arguments = command(dataset, torn, "--workers", "2", "--part-mib", "0.0005")
    running = subprocess.Popen(arguments, cwd=ROOT, stdout=subprocess.DEVNULL, start_new_session=True)
    parts = tokens.beside(torn, ".parts")
    while len(list(parts.glob("0*.json"))) < 3 and running.poll() is None:
        time.sleep(0.002)
    os.killpg(running.pid, signal.SIGKILL)
    running.wait()
    finished = {path.name: path.stat().st_mtime_ns for path in parts.glob("0*.json")}
    assert len(finished) >= 3 and not tokens.beside(torn, ".json").exists()
    other = prepared(dataset, torn, "--part-mib", "0.0007")
    assert other.returncode == 2 and "parts of another input" in other.stderr
    again = subprocess.run(arguments, cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert again.returncode == 0, again.stderr
    assert f"{len(finished)} of " in again.stdout and "parts were finished before" in again.stdout
    assert content(torn) == content(one)
    assert not parts.exists()

    expected = [text.encode() for text in texts_of(dataset, 10**9)]
    manifest = tokens.read_manifest(str(one))
    assert manifest.documents + manifest.held_out_documents == len(expected) == 195  # five texts are empty
    assert manifest.tokens + manifest.held_out_tokens == sum(map(len, expected)) + 2 * 195  # begin and end
    assert manifest.held_out_documents > 5
    assert again.stderr == ""


@pytest.mark.slow
def test_what_cannot_be_prepared_is_a_sentence(tmp_path):
    dataset = corpus(tmp_path, 5)
    for arguments, said in (
        ((tmp_path / "gone.jsonl", tmp_path / "out"), "does not exist"),
        ((dataset, tmp_path / "out", "--text-column", "body"), "no text in column 'body'"),
        ((dataset, tmp_path / "out", "--workers", "0"), "--workers is '0'"),
        ((dataset, tmp_path / "out", "--tokenizer", str(tmp_path / "none")), "cannot load the tokenizer"),
    ):
        done = prepared(*arguments)
        assert done.returncode == 2, done.stderr
        assert said in done.stderr and "Traceback" not in done.stderr


@pytest.mark.slow
def test_every_layout_reads_the_same_tokens_at_the_same_step(tmp_path):
    """Both kinds of data; the property over data-parallel sizes, micro-batches and starts."""
    import msgspec
    import torch

    from recipes.pretrain import data, indexed
    from recipes.pretrain.config import CoreConfig, Training
    from tests.recipes.test_pretrain import pretrain_plan
    from toolkit.emit.megatron import core_config

    out = tmp_path / "indexed"
    assert prepared(corpus(tmp_path), out, "--workers", "1").returncode == 0
    plan = pretrain_plan(processes=1)
    plan = msgspec.structs.replace(plan, contract=msgspec.structs.replace(plan.contract, dataset=str(out)))
    core = msgspec.convert(core_config(plan), CoreConfig)
    long = msgspec.structs.replace(core, training=msgspec.structs.replace(core.training, train_steps=400))
    made = indexed.load(plan, long, data.learning_rate_contract(plan, long), tmp_path / "run", 0)
    assert len(made.train) < 400 * 8  # several epochs
    stream = np.fromfile(tokens.beside(out, ".bin"), np.uint16)
    small, held_out = data.split(stream, 32, 42)
    assert held_out is not None and len(held_out) + len(small) == (len(stream) - 1) // 32
    kept = {start.tobytes() for start in map(held_out.sample, range(len(held_out)))}
    assert not any(small.sample(index).tobytes() in kept for index in range(len(small)))

    def batch(sequences, step, ranks, size):
        training = Training(micro_batch_size=size, global_batch_size=24, sequence_length=32)
        rows = [
            [one["tokens"] for one in data.micro_batches(sequences, step, training, ranks, rank)]
            for rank in range(ranks)
        ]
        # rank r has micro-batches r, r + n, r + 2 n: together in their order
        return torch.cat([rows[rank][number] for number in range(len(rows[0])) for rank in range(ranks)])

    @settings(max_examples=40, deadline=None)
    @given(step=st.integers(0, 120), shape=st.sampled_from([(1, 1), (1, 24), (2, 4), (4, 3), (8, 1), (24, 1), (3, 2)]))
    def same(step, shape):
        for sequences in (made.train, small):
            assert torch.equal(batch(sequences, step, *shape), batch(sequences, step, 1, 24))

    same()
    # an epoch has every token that fills a sequence once
    assert sorted(np.concatenate([small.sample(index)[:-1] for index in range(len(small))])) == sorted(
        stream[: 32 * len(small)]
    )


@settings(max_examples=60, deadline=None)
@given(count=st.integers(1, 40), ranks=st.integers(1, 5), size=st.integers(1, 4), more=st.integers(0, 3))
@pytest.mark.slow
def test_each_held_out_sequence_counts_once(count, ranks, size, more):
    from recipes.pretrain import data

    sequences = data.Windows(np.arange(1 + 4 * 50), 4, None)
    batches = -(-count // (size * ranks)) + more
    seen = []
    for rank in range(ranks):
        for batch in data.evaluation_batches(sequences, count, batches, size, ranks, rank):
            assert batch["tokens"].shape == (size, 4)
            seen += [
                int(row[0]) // 4 for row, mask in zip(batch["tokens"], batch["loss_mask"], strict=True) if mask.all()
            ]
    assert sorted(seen) == list(range(count))
