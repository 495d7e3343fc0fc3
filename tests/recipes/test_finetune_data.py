"""Documents, packing, the split, and an order that depends on nothing but the seed."""

import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from recipes.byte_tokenizer import BEGIN, END, PADDING, ByteTokenizer
from recipes.finetune import data, packing
from recipes.finetune.documents import SAMPLE, Document, Segment, check_file, hub_name, read_documents
from recipes.finetune.packing import Blocks
from recipes.schedule import total_steps
from toolkit.errors import ToolkitError
from toolkit.recipe import Contract

TOKENIZER = ByteTokenizer()
pieces = st.lists(
    st.lists(st.tuples(st.integers(0, 255), st.booleans()), min_size=1, max_size=40).map(
        lambda pairs: packing.Piece(
            np.asarray([token for token, _ in pairs], np.int32),
            np.asarray([at > 0 and trained for at, (_, trained) in enumerate(pairs)], bool),
        )
    ),
    max_size=12,
)
texts = st.lists(st.lists(st.integers(0, 255), min_size=1, max_size=40), max_size=12).map(
    lambda rows: [packing.Piece(np.asarray(row, np.int32), np.arange(len(row)) > 0, True) for row in rows]
)


def numbered_blocks(count: int) -> data.Blocks:
    """Block n holds nothing but the token n."""
    tokens = np.repeat(np.arange(count, dtype=np.int32)[:, None], 4, axis=1)
    return Blocks(tokens, tokens, np.tile(np.arange(4, dtype=np.int32), (count, 1)), np.full(count, 4, np.int32))


def test_the_sample_is_the_one_that_its_readme_describes() -> None:
    content = SAMPLE.read_bytes()
    assert len(content) == 148_476
    assert hashlib.sha256(content).hexdigest() == "cc660e04a3bef809b5436e822536cafefa278d55fb3639fb3e93665590d6fc0a"
    assert "148,476 bytes" in (SAMPLE.parent / "README.md").read_text()
    assert content.isascii()


def parts_of(blocks: Blocks) -> list[tuple[list[int], list[int]]]:
    """Tokens and labels of each document in the blocks, by where positions begin anew; padding is none."""
    found = []
    for tokens, labels, positions, length in zip(*blocks, strict=True):
        starts = [at for at in range(length) if positions[at] == 0]
        for first, last in zip(starts, [*starts[1:], length], strict=True):
            assert positions[first:last].tolist() == list(range(last - first))
            found.append((tokens[first:last].tolist(), labels[first:last].tolist()))
    return found


@given(texts, st.integers(2, 16))
def test_a_stream_loses_less_than_a_block_and_keeps_the_order(parts: list[packing.Piece], length: int) -> None:
    blocks, counts = packing.stream(parts, length)
    joined = [token for part in parts if len(part.tokens) > 1 for token in part.tokens.tolist()]
    kept = blocks.tokens.ravel().tolist()
    assert counts["tokens left out"] == len(joined) - len(kept)
    rows = [joined[at : at + length] for at in range(0, len(joined) - length + 1, length)]
    assert len(joined) - length * len(rows) < length
    left = iter(rows)
    assert all(row in left for row in blocks.tokens.tolist())  # in order; without a trained token a row is dropped
    for tokens, labels in parts_of(blocks):
        assert labels == [data.IGNORED, *tokens[1:]]  # nothing before a document predicts its beginning


@given(parts=pieces, length=st.integers(2, 48))
def test_whole_documents_stay_whole_and_none_is_lost(parts: list[packing.Piece], length: int) -> None:
    blocks, counts = packing.whole(parts, length, PADDING)
    useful = [part for part in parts if part.trained[:length].any()]
    expected = [
        (
            part.tokens[:length].tolist(),
            np.where(part.trained, part.tokens, data.IGNORED)[:length].tolist(),
        )
        for part in useful
    ]
    assert sorted(parts_of(blocks)) == sorted(expected)
    assert counts["dropped"] == len(parts) - len(useful)
    for tokens, labels, positions, used in zip(*blocks, strict=True):
        assert (tokens[used:] == PADDING).all() and (labels[used:] == data.IGNORED).all()
        assert positions[used:].tolist() == list(range(length - used))
    sizes = [min(len(part.tokens), length) for part in useful]
    assert len(blocks.tokens) <= max(1, 2 * -(-sum(sizes) // length))  # two sequences half empty would be one


@given(pieces, st.integers(2, 16))
def test_padding_never_enters_the_loss(parts: list[packing.Piece], length: int) -> None:
    blocks, counts = packing.pad(parts, length, PADDING)
    useful = [part for part in parts if part.trained[:length].any()]
    assert len(blocks.tokens) == len(useful)  # documents without a trained token after the cut are dropped
    assert counts["cut"] == sum(len(part.tokens) > length for part in parts)
    for row, label, _, width, part in zip(*blocks, useful, strict=True):
        assert width == min(len(part.tokens), length)
        assert row.tolist() == part.tokens[:length].tolist() + [PADDING] * (length - width)
        assert [label[i] != data.IGNORED for i in range(width)] == part.trained[:width].tolist()
        assert (label[width:] == data.IGNORED).all()


@pytest.mark.parametrize("arrange", [packing.whole, packing.pad])
def test_of_a_text_that_is_too_long_every_part_is_kept(arrange: Any) -> None:
    text = packing.Piece(np.arange(10, dtype=np.int32), np.arange(10) > 0, True)
    prompt = text._replace(divisible=False)
    assert sorted(parts_of(arrange([text], 4, PADDING)[0])) == [
        ([0, 1, 2, 3], [-100, 1, 2, 3]),
        ([4, 5, 6, 7], [-100, 5, 6, 7]),
        ([8, 9], [-100, 9]),
    ]
    assert parts_of(arrange([prompt], 4, PADDING)[0]) == [([0, 1, 2, 3], [-100, 1, 2, 3])]


def test_a_prompt_is_read_but_not_learnt_and_the_end_is() -> None:
    document = Document((Segment("2+2=", False), Segment("4", True)))
    tokens, trained = data.encode(document, TOKENIZER)
    assert tokens == [BEGIN, *b"2+2=4", END]
    assert trained == [False, False, False, False, False, True, True]


@given(count=st.integers(1, 50), seed=st.integers(0, 2**32))
def test_an_epoch_is_a_permutation_and_each_is_another(count: int, seed: int) -> None:
    sequences = data.Sequences(numbered_blocks(count), 3 * count, seed)
    epochs = np.asarray([sequences.block_of(i) for i in range(3 * count)]).reshape(3, count)
    for epoch in epochs:
        assert sorted(epoch) == list(range(count))
    if count > 20:
        assert (epochs[0] != epochs[1]).any() and (epochs[1] != epochs[2]).any()


def test_no_tail_is_left_out_over_the_epochs() -> None:
    """103 samples on 8 ranks: a sampler that floors before it shuffles never shows 7 of them."""
    sequences = data.Sequences(numbered_blocks(103), 5 * 104, 42)
    assert {sequences.block_of(i) for i in range(5 * 104)} == set(range(103))


def test_every_step_is_a_whole_one_and_they_are_rounded_up() -> None:
    """10 sequences, 4 a step: 3 steps, the last filled from the next epoch, so no step divides by another number."""
    assert total_steps(Contract(global_batch_size=4, epochs=1.0), 10) == 3
    sequences = data.Sequences(numbered_blocks(10), 3 * 4, 42)
    read = [sequences.block_of(i) for i in range(len(sequences))]
    assert sorted(read[:10]) == list(range(10)) and len(set(read[10:])) == 2


@given(start=st.integers(0, 300), seed=st.integers(0, 1000))
def test_the_order_does_not_depend_on_what_was_read_before(start: int, seed: int) -> None:
    """A resume in the middle of an epoch continues as if nothing had happened."""
    whole = data.Sequences(numbered_blocks(64), 400, seed)
    straight = [whole.block_of(i) for i in range(400)]
    resumed = data.Sequences(numbered_blocks(64), 400, seed)
    assert [resumed.block_of(i) for i in range(start, 400)] == straight[start:]
    assert [resumed.block_of(i) for i in (399, 0, 200, 1)] == [straight[i] for i in (399, 0, 200, 1)]


def test_the_seed_changes_the_order() -> None:
    orders = [[data.Sequences(numbered_blocks(64), 64, seed).block_of(i) for i in range(64)] for seed in (1, 2)]
    assert orders[0] != orders[1]


def test_the_held_out_part_is_never_trained_on() -> None:
    train, held_out = data.split(numbered_blocks(100))
    assert (len(train.tokens), len(held_out.tokens)) == (95, 5)
    assert not set(train.tokens[:, 0]) & set(held_out.tokens[:, 0])
    train, held_out = data.split(numbered_blocks(2))
    assert (len(train.tokens), len(held_out.tokens)) == (1, 1)
    with pytest.raises(ToolkitError, match="fills 1 sequence"):
        data.split(numbered_blocks(1))


def test_a_row_has_what_the_model_takes() -> None:
    piece = packing.Piece(np.asarray([1, 2, 3], np.int32), np.asarray([False, True, True]))
    row = data.Sequences(packing.pad([piece], 5, PADDING)[0], 1, 0)[0]
    assert row["input_ids"].tolist() == [1, 2, 3, PADDING, PADDING]
    assert row["labels"].tolist() == [-100, 2, 3, -100, -100]
    assert row["position_ids"].tolist() == [0, 1, 2, 0, 1]


def test_stored_blocks_are_read_back(tmp_path: Path) -> None:
    contract = Contract(dataset="sample", tokenizer="byte", sequence_length=128)
    blocks, counts = data.build(contract, TOKENIZER, PADDING)
    assert blocks.tokens.shape == ((148_476 + 2) // 128, 128)  # begin and end token
    assert counts["documents"] == 1 and counts["tokens left out"] == (148_476 + 2) % 128
    folder = data.cache_folder(tmp_path, contract)
    data.store(blocks, counts, folder)
    data.store(blocks, counts, folder)
    assert data.counts(folder) == counts
    assert data.documents_in(blocks) == len(blocks.tokens)
    assert [path.name for path in folder.parent.iterdir()] == [folder.name]
    for stored, part in zip(data.load(folder), blocks, strict=True):
        assert (stored == part).all()
    with pytest.raises(ToolkitError, match="shared|share"):
        data.load(tmp_path / "nowhere")


def test_another_dataset_or_length_is_another_folder(tmp_path: Path) -> None:
    text = tmp_path / "a.txt"
    text.write_text("one")
    contracts = [
        Contract(dataset="sample", tokenizer="byte"),
        Contract(dataset="sample", tokenizer="byte", sequence_length=8),
        Contract(dataset="sample", tokenizer="byte", packing=False),
        Contract(dataset="sample", tokenizer="byte", completion_only=True),
        Contract(dataset="sample", tokenizer="byte", chat_template="tulu"),
        Contract(dataset=str(text), tokenizer="byte"),
    ]
    folders = [data.cache_folder(tmp_path, contract) for contract in contracts]
    text.write_text("another")  # the same name, other content
    folders.append(data.cache_folder(tmp_path, contracts[-1]))
    assert len(set(folders)) == 7


ROWS = [{"text": "one"}, {"prompt": "two", "completion": "three"}, {"messages": [{"role": "user", "content": "x"}]}]
READ = [
    Document((Segment("one", True),)),
    Document((Segment("two", False), Segment("three", True))),
    Document(messages=({"role": "user", "content": "x"},)),
]


def test_json_lines(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text("\n\n".join(json.dumps(row) for row in ROWS))
    assert list(read_documents(str(path))) == READ


@pytest.mark.slow
def test_parquet(tmp_path: Path) -> None:
    import pyarrow
    import pyarrow.parquet

    path = tmp_path / "rows.parquet"
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(ROWS[:1]), path)
    assert list(read_documents(str(path))) == READ[:1]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("rows.jsonl", '{"text": "a"}\n{"txt": "b"}', "row 2 has the columns txt"),
        ("rows.jsonl", '{"text": 5}', "row 1 has the columns text"),
        ("rows.jsonl", '{"text": "a"}\n{"text"', "line 2"),
        ("rows.jsonl", "[1]", "element 1 of the array is a number, not an object"),
        ("rows.jsonl", b'{"text": "\xff"}', "line 1"),
        ("rows.json", '[{"text": "a"}, 5]', "element 2 of the array is a number"),
        ("rows.json", '[{"text": "a"}', "rows.json: "),
        ("rows.parquet", "no", "cannot read|needs pyarrow"),
        (
            "rows.json",
            '[{"instruction": "a", "output": "b"}]',
            "row 1 has the columns instruction .text., output .text.",
        ),
        ("text.txt", b"\xff\xfe", "cannot read"),
    ],
)
def test_bad_files_are_refused_with_the_place(tmp_path: Path, name: str, content: str | bytes, message: str) -> None:
    path = tmp_path / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(ToolkitError, match=message):
        list(read_documents(str(path)))


@pytest.mark.parametrize("dataset", ["missing.jsonl", "folder"])
def test_what_is_not_there_is_refused(tmp_path: Path, dataset: str) -> None:
    (tmp_path / "folder").mkdir()
    with pytest.raises(ToolkitError, match="does not exist|is a folder"):
        list(read_documents(str(tmp_path / dataset)))


def test_an_array_of_json(tmp_path: Path) -> None:
    path = tmp_path / "rows.json"
    path.write_text("  " + json.dumps(ROWS))
    assert list(read_documents(str(path))) == READ


def test_a_folder_is_its_files_in_order(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    for name, text in (("data/b.jsonl", "2"), ("a.jsonl", "1"), ("README.md", "no"), ("dataset_info.json", "{}")):
        (tmp_path / name).write_text(json.dumps({"text": text}))
    assert [document.segments[0].text for document in read_documents(str(tmp_path))] == ["1", "2"]
    contract = Contract(dataset=str(tmp_path), tokenizer="byte")
    before = data.cache_folder(tmp_path, contract)
    (tmp_path / "data" / "b.jsonl").write_text(json.dumps({"text": "three"}))
    assert data.cache_folder(tmp_path, contract) != before


@pytest.mark.slow
def test_a_hub_that_does_not_answer_is_a_sentence() -> None:
    code = (
        "from recipes.finetune.documents import read_documents\n"
        "from toolkit.errors import ToolkitError\n"
        "try:\n    list(read_documents('nobody/nothing:train'))\n"
        "except ToolkitError as error:\n    print(error)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=os.environ | {"HF_HUB_OFFLINE": "1"}
    )
    assert "'nobody/nothing:train' is neither a local file nor a data set of the hub that can be read" in done.stdout


def test_names_of_the_hub() -> None:
    assert hub_name("imdb") == ("imdb", None, "train")
    assert hub_name("HuggingFaceH4/ultrachat_200k:train_sft") == ("HuggingFaceH4/ultrachat_200k", None, "train_sft")
    assert hub_name("HuggingFaceTB/smoltalk/all") == ("HuggingFaceTB/smoltalk", "all", "train")
    for wrong in ("a/b/c/d", "a//b", "/a", ":train"):
        with pytest.raises(ToolkitError, match="no name of the hub"):
            hub_name(wrong)


def test_a_dataset_is_looked_at_before_anything_is_loaded(tmp_path: Path) -> None:
    check_file("sample")
    check_file("owner/name")  # the hub is not asked
    (tmp_path / "empty.jsonl").write_text("\n\n")
    with pytest.raises(ToolkitError, match="has no rows"):
        check_file(str(tmp_path / "empty.jsonl"))
    (tmp_path / "rows.jsonl").write_text('{"question": "a"}')
    with pytest.raises(ToolkitError, match="row 1 has the columns question"):
        check_file(str(tmp_path / "rows.jsonl"))


def test_text_is_a_stream_and_rows_with_prompts_stay_whole(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text("\n".join(json.dumps({"text": "ab" * 7}) for _ in range(8)))
    contract = Contract(dataset=str(path), tokenizer="byte", sequence_length=20)
    blocks, counts = data.build(contract, TOKENIZER, PADDING)
    assert (blocks.lengths == 20).all() and len(blocks.tokens) == 8 * 16 // 20 and counts["tokens left out"] == 8
    assert data.documents_in(blocks) > len(blocks.tokens)
    path.write_text("\n".join(json.dumps({"prompt": "a" * 5, "completion": "b"}) for _ in range(8)))
    blocks, counts = data.build(contract, TOKENIZER, PADDING)
    assert blocks.lengths.tolist() == [16] * 4  # two of 8 tokens each
    assert counts == {"documents": 8, "cut": 0, "dropped": 0, "conversations": 0, "tokens trained": 16}
    assert parts_of(blocks) == [([BEGIN, *b"aaaaab", END], [-100] * 6 + [ord("b"), END])] * 8
