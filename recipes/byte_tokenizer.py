"""A tokenizer that needs no download: one token per byte of UTF-8, and four special ones.

Token ``b`` is byte ``b`` (0 to 255). The padding token is a token of its own: where padding and end are
the same, hiding the padding from the loss hides the end as well, and the model never learns to stop.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

BYTES = 256
BEGIN, END, PADDING, RESERVED = range(BYTES, BYTES + 4)
SPECIAL_TOKENS = {BEGIN: "<begin>", END: "<end>", PADDING: "<padding>", RESERVED: "<reserved>"}
_IDS = {text: token for token, text in SPECIAL_TOKENS.items()}
_SPECIAL = re.compile("(" + "|".join(map(re.escape, _IDS)) + ")")


class ByteTokenizer:
    """The part of a Hugging Face tokenizer that the training programs use, under the same names.

    The vocabulary has 260 entries, so that it can be cut in 2 or 4 by tensor parallelism.
    """

    bos_token_id = BEGIN
    eos_token_id = END
    pad_token_id = PADDING
    vocab_size = BYTES + len(SPECIAL_TOKENS)
    special_tokens_map = {
        "bos_token": SPECIAL_TOKENS[BEGIN],
        "eos_token": SPECIAL_TOKENS[END],
        "pad_token": SPECIAL_TOKENS[PADDING],
    }
    chat_template: str | None = None

    def __len__(self) -> int:
        return self.vocab_size

    def encode(self, text: str, add_special_tokens: bool = False) -> list[int]:
        """The bytes of the text; with ``add_special_tokens`` between a begin and an end token.

        A special token that is written out in the text is that token, as in the saved tokenizer.
        """
        tokens: list[int] = []
        for part in _SPECIAL.split(text):
            tokens += [_IDS[part]] if part in _IDS else part.encode("utf-8")
        return [BEGIN, *tokens, END] if add_special_tokens else tokens

    def __call__(
        self, text: str, add_special_tokens: bool = False, return_offsets_mapping: bool = False
    ) -> dict[str, list[Any]]:
        """``input_ids``, and the characters (first, last + 1) of each, as tokenizers of the library give them."""
        encoded: dict[str, list[Any]] = {"input_ids": self.encode(text, add_special_tokens)}
        if return_offsets_mapping:
            spans, at = [], 0
            for part in _SPECIAL.split(text):
                whole = part in _IDS
                spans += [(at, at + len(part))] if whole else _spans(part, at)
                at += len(part)
            encoded["offset_mapping"] = [(0, 0), *spans, (0, 0)] if add_special_tokens else spans
        return encoded

    def decode(self, tokens: list[int]) -> str:
        """The text of the byte tokens; special tokens leave no trace, broken UTF-8 becomes U+FFFD."""
        return bytes(token for token in tokens if token < BYTES).decode("utf-8", errors="replace")

    def save_pretrained(self, directory: str | Path) -> None:
        """Write the files from which ``AutoTokenizer.from_pretrained`` makes the same tokenizer."""
        folder = Path(directory)
        folder.mkdir(parents=True, exist_ok=True)
        config = _config_json() | ({"chat_template": self.chat_template} if self.chat_template else {})
        for name, content in (("tokenizer.json", _tokenizer_json()), ("tokenizer_config.json", config)):
            (folder / name).write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def _spans(text: str, first: int) -> list[tuple[int, int]]:
    """The character that each byte belongs to."""
    return [(at, at + 1) for at, character in enumerate(text, first) for _ in character.encode("utf-8")]


def _characters() -> dict[int, str]:
    """The printable character that stands for each byte in a byte-level vocabulary.

    The table of GPT-2 (openai/gpt-2, src/encoder.py, ``bytes_to_unicode``), which the ``ByteLevel``
    step of the tokenizers library uses: printable bytes stand for themselves, the others for the
    characters from U+0100 on, in order.
    """
    printable = [*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAC + 1), *range(0xAE, 0xFF + 1)]
    others = [byte for byte in range(BYTES) if byte not in printable]
    return {byte: chr(byte) for byte in printable} | {byte: chr(BYTES + n) for n, byte in enumerate(others)}


def _tokenizer_json() -> dict[str, Any]:
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [{"id": token, "content": text, **flags} for token, text in SPECIAL_TOKENS.items()],
        "normalizer": None,
        "pre_tokenizer": byte_level,
        "post_processor": None,
        "decoder": byte_level,
        "model": {  # pairs are never merged: a byte stays a token
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": False,
            "vocab": {text: byte for byte, text in sorted(_characters().items())},
            "merges": [],
        },
    }


def _config_json() -> dict[str, Any]:
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": SPECIAL_TOKENS[BEGIN],
        "eos_token": SPECIAL_TOKENS[END],
        "pad_token": SPECIAL_TOKENS[PADDING],
        "clean_up_tokenization_spaces": False,
    }
