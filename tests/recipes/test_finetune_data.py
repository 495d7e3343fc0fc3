"""Documents, packing, the split, and an order that depends on nothing but the seed."""

import hashlib
import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from recipes.byte_tokenizer import BEGIN, END, PADDING, ByteTokenizer
from recipes.finetune import data
from recipes.finetune.documents import SAMPLE, Document, Segment, read_documents
from toolkit.errors import ToolkitError
from toolkit.recipe import Contract

TOKENIZER = ByteTokenizer()
documents = st.lists(
    st.lists(st.tuples(st.integers(0, 259), st.booleans()), min_size=1, max_size=40).map(
        lambda pairs: ([token for token, _ in pairs], [trained for _, trained in pairs])
    ),
    max_size=12,
)


def numbered_blocks(count: int) -> data.Blocks:
    """Block n holds nothing but the token n."""
    tokens = np.repeat(np.arange(count, dtype=np.int32)[:, None], 4, axis=1)
    return data.Blocks(tokens, tokens, np.full(count, 4, np.int32))


def test_the_sample_is_the_one_that_its_readme_describes() -> None:
    content = SAMPLE.read_bytes()
    assert len(content) == 148_476
    assert hashlib.sha256(content).hexdigest() == "cc660e04a3bef809b5436e822536cafefa278d55fb3639fb3e93665590d6fc0a"
    assert "148,476 bytes" in (SAMPLE.parent / "README.md").read_text()
    assert content.isascii()


@given(documents, st.integers(1, 16))
def test_packing_loses_less_than_a_block_and_keeps_the_order(parts: list, length: int) -> None:
    blocks = data.pack(parts, length)
    stream = [token for tokens, _ in parts for token in tokens]
    trained = [flag for _, flags in parts for flag in flags]
    kept = blocks.tokens.size
    assert 0 <= len(stream) - kept < length
    assert blocks.tokens.ravel().tolist() == stream[:kept]
    expected = [token if flag else data.IGNORED for token, flag in zip(stream, trained, strict=True)][:kept]
    assert blocks.labels.ravel().tolist() == expected


@given(documents, st.integers(2, 16))
def test_padding_never_enters_the_loss(parts: list, length: int) -> None:
    blocks = data.pad(parts, length, PADDING)
    useful = [(t, f) for t, f in parts if any(f[1:length])]
    assert len(blocks.tokens) == len(useful)  # documents without a trained token after the cut are dropped
    for row, label, width, (tokens, flags) in zip(*blocks, useful, strict=True):
        assert width == min(len(tokens), length)
        assert row.tolist() == tokens[:length] + [PADDING] * (length - width)
        assert [label[i] != data.IGNORED for i in range(width)] == flags[:width]
        assert (label[width:] == data.IGNORED).all()


def test_a_prompt_is_read_but_not_learnt_and_the_end_is() -> None:
    document = Document((Segment("2+2=", False), Segment("4", True)))
    tokens, trained = data.encode(document, TOKENIZER)
    assert tokens == [BEGIN, *b"2+2=4", END]
    assert trained == [True, False, False, False, False, True, True]


def test_conversations_need_a_template() -> None:
    with pytest.raises(ToolkitError, match="no chat template"):
        data.encode(Document(messages=({"role": "user", "content": "hi"},)), TOKENIZER)

    class Chat(ByteTokenizer):
        chat_template = "{{ messages }}"

        def apply_chat_template(self, messages: list, tokenize: bool) -> str:
            return "".join(f"<{m['role']}>{m['content']}" for m in messages)

    tokens, trained = data.encode(Document(messages=({"role": "user", "content": "hi"},)), Chat())
    assert tokens == [*b"<user>hi", END] and all(trained)


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
    blocks = data.pad([([1, 2, 3], [True, True, True])], 5, PADDING)
    row = data.Sequences(blocks, 1, 0)[0]
    assert row["input_ids"].tolist() == [1, 2, 3, PADDING, PADDING]
    assert row["labels"].tolist() == [1, 2, 3, -100, -100]
    assert row["attention_mask"].tolist() == [1, 1, 1, 0, 0]


def test_stored_blocks_are_read_back(tmp_path: Path) -> None:
    contract = Contract(dataset="sample", tokenizer="byte", sequence_length=128)
    blocks = data.build(contract, TOKENIZER)
    assert blocks.tokens.shape == ((148_476 + 2) // 128, 128)  # begin and end token
    folder = data.cache_folder(tmp_path, contract)
    data.store(blocks, folder)
    data.store(blocks, folder)
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
        Contract(dataset=str(text), tokenizer="byte"),
    ]
    folders = [data.cache_folder(tmp_path, contract) for contract in contracts]
    text.write_text("another")  # the same name, other content
    folders.append(data.cache_folder(tmp_path, contracts[-1]))
    assert len(set(folders)) == 5


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
        ("rows.jsonl", "[1]", "line 1 is not an object"),
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
