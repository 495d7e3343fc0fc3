"""Bytes in, bytes out; the saved files describe the same tokenizer to the tokenizers library."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from recipes.byte_tokenizer import ByteTokenizer

TOKENIZER = ByteTokenizer()


@given(st.text())
def test_decoding_undoes_encoding(text: str) -> None:
    tokens = TOKENIZER.encode(text)
    assert TOKENIZER.decode(tokens) == text
    assert bytes(tokens) == text.encode()


@given(st.text())
def test_special_tokens_surround_and_vanish(text: str) -> None:
    tokens = TOKENIZER.encode(text, add_special_tokens=True)
    assert (tokens[0], tokens[-1]) == (TOKENIZER.bos_token_id, TOKENIZER.eos_token_id)
    assert TOKENIZER.decode(tokens) == text


def test_padding_is_not_the_end() -> None:
    special = {TOKENIZER.bos_token_id, TOKENIZER.eos_token_id, TOKENIZER.pad_token_id}
    assert len(special) == 3
    assert all(256 <= token < len(TOKENIZER) == 260 for token in special)
    assert len(TOKENIZER) % 4 == 0  # a vocabulary that tensor parallelism can cut


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tokenizer")
    TOKENIZER.save_pretrained(folder)
    return folder


@given(text=st.text(st.characters(exclude_categories=["Cs"])))
def test_the_tokenizers_library_reads_the_same(saved: Path, text: str) -> None:
    from tokenizers import Tokenizer

    library = Tokenizer.from_file(str(saved / "tokenizer.json"))
    assert library.get_vocab_size() == len(TOKENIZER)
    assert library.encode(text).ids == TOKENIZER.encode(text)
    assert library.decode(TOKENIZER.encode(text)) == text
    assert library.token_to_id("<padding>") == TOKENIZER.pad_token_id
