"""The padding token is never the end token, whatever the tokenizer brings."""

from typing import Any

import pytest

from recipes.byte_tokenizer import PADDING, ByteTokenizer
from recipes.finetune import padding


def library_tokenizer(words: list[str], **special: str) -> Any:
    """A tokenizer of the library with these words."""
    from tokenizers import Tokenizer, models
    from transformers import PreTrainedTokenizerFast

    vocabulary = {word: number for number, word in enumerate(words)}
    made = Tokenizer(models.WordLevel(vocabulary, unk_token=words[0]))
    return PreTrainedTokenizerFast(tokenizer_object=made, **special)


def test_a_padding_token_of_its_own_is_kept() -> None:
    assert padding.settle(ByteTokenizer(), 260) == (PADDING, "")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "special", "vocabulary", "number", "said"),
    [
        (["a", "</s>", "<unk>"], {"pad_token": "</s>"}, 3, 2, "pads with its end token; <unk> is used"),
        (["a", "</s>", "<unk>"], {}, 3, 2, "has no padding token; <unk> is used"),
        (["a", "</s>", "<|finetune_right_pad_id|>", "<unk>"], {}, 4, 2, "<|finetune_right_pad_id|> is used"),
        (["a", "</s>"], {"pad_token": "</s>"}, 64, 2, "<|padding|> was added, in a row that the model has to spare"),
        (["a", "b", "</s>"], {"pad_token": "</s>"}, 3, 0, "no row to spare: sequences are filled with token 0"),
        (["</s>", "b", "c"], {}, 3, 1, "filled with token 1"),
        (["a", "</s>", "b", "<unk>"], {}, 3, 0, "filled with token 0"),  # the model has no row for <unk>
    ],
)
def test_padding_is_never_the_end(
    words: list[str], special: dict[str, str], vocabulary: int, number: int, said: str
) -> None:
    tokenizer = library_tokenizer(words, eos_token="</s>", **special)
    found, remark = padding.settle(tokenizer, vocabulary)
    assert (found, said in remark) == (number, True), remark
    assert found != tokenizer.eos_token_id and found < vocabulary
    assert tokenizer.pad_token_id != tokenizer.eos_token_id
    assert tokenizer.pad_token_id in (found, None)
