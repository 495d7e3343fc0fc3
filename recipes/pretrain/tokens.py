"""Indexed token files: what lies beside them, which tokenizer made them, and how a text becomes a document.

megatron-core's format (``megatron/core/datasets/indexed_dataset.py``): ``PREFIX.bin`` has all tokens one after
another, ``PREFIX.idx`` where each document begins; both are memory-mapped. ``PREFIX.json`` says what they are made of;
documents held out for evaluation lie in ``PREFIX-held-out`` alike. Written by :mod:`recipes.pretrain.prepare`.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import msgspec

from recipes.byte_tokenizer import SPECIAL_TOKENS, ByteTokenizer
from recipes.tokenizer import tokenizer_named
from toolkit.errors import ToolkitError
from toolkit.registry.files import expanded, is_there

HELD_OUT = "-held-out"


class Manifest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """``PREFIX.json``. Counts are of the documents to train on, and of those held out; hashes are of the ``.bin``."""

    dataset: str
    tokenizer: str
    tokenizer_sha256: str
    end: int  # the token after each document
    documents: int
    tokens: int
    largest: int  # the largest token of both files
    sha256: str
    held_out_documents: int = 0
    held_out_tokens: int = 0
    held_out_sha256: str = ""


def beside(prefix: str | Path, ending: str) -> Path:
    """``PREFIX`` with an ending; a dot within the prefix's own name stays."""
    path = expanded(str(prefix))
    return path.with_name(path.name + ending)


def is_prefix(dataset: str) -> bool:
    """Whether a contract's dataset is the prefix of an indexed token file."""
    return bool(dataset) and is_there(path := beside(dataset, ".idx")) and path.is_file()


def read_manifest(prefix: str) -> Manifest:
    """What the files are made of; raises ToolkitError for files that other programs wrote or that are torn."""
    path = beside(prefix, ".json")
    try:
        manifest = msgspec.json.decode(path.read_bytes(), type=Manifest)
    except (OSError, msgspec.MsgspecError) as error:
        raise ToolkitError(
            f"cannot read {path}: {error}",
            remedy="make the files with python -m recipes.pretrain.prepare, which records the tokenizer there",
        ) from error
    if not beside(prefix, ".bin").is_file():
        raise ToolkitError(f"{beside(prefix, '.bin')} is not there", remedy="prepare the data again")
    return manifest


def load_tokenizer(name: str) -> Any:
    """``byte``, a hub name, or a path."""
    return tokenizer_named(name)


def fingerprint(tokenizer: Any) -> str:
    """SHA-256 of all that decides which tokens a text becomes; not padding and truncation, which change by use."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    content: Any
    if isinstance(tokenizer, ByteTokenizer):
        content = {"bytes": 256, "special": SPECIAL_TOKENS}
    elif backend is not None:
        content = json.loads(backend.to_str())
        content.pop("padding", None)
        content.pop("truncation", None)
    else:
        content = {"class": type(tokenizer).__name__, "vocabulary": tokenizer.get_vocab()}
    special = {"end": tokenizer.eos_token_id, "begin": begin_token(tokenizer)}
    text = json.dumps([content, special], sort_keys=True, ensure_ascii=True)
    return hashlib.sha256(text.encode()).hexdigest()


def begin_token(tokenizer: Any) -> int | None:
    """The token that this tokenizer writes before a text, if it is one that does."""
    begin = tokenizer.bos_token_id
    return begin if begin is not None and begin in tokenizer.encode("", add_special_tokens=True) else None


def encode(texts: list[str], tokenizer: Any) -> list[list[int]]:
    """Tokens of each text, between the begin token (where the tokenizer writes one) and the end token."""
    begin, end = begin_token(tokenizer), tokenizer.eos_token_id
    if end is None:
        raise ToolkitError(
            "the tokenizer has no end token, so documents would run into one another",
            remedy="use a tokenizer whose configuration names an eos_token",
        )
    if isinstance(tokenizer, ByteTokenizer):
        rows = [tokenizer.encode(text) for text in texts]
    else:
        rows = tokenizer(texts, add_special_tokens=False, verbose=False)["input_ids"] if texts else []
    return [[*([] if begin is None else [begin]), *row, end] for row in rows]
