"""Documents to blocks of tokens, and the order in which training reads them.

The order depends on the contract's seed alone. Sequence ``i`` of a run is the same on 1 rank and on
1000, at any micro batch and after any restart: optimizer step ``k`` always reads the sequences
``k * global_batch_size`` to ``(k + 1) * global_batch_size - 1``.
"""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from recipes.finetune.documents import Document, local_file, read_documents
from toolkit.errors import ToolkitError
from toolkit.recipe import Contract

IGNORED = -100  # the label that the loss leaves out
HELD_OUT = 0.05


class Blocks(NamedTuple):
    """``n`` sequences of equal width: tokens and labels ``[n, L]``; ``lengths [n]`` is how much is not padding."""

    tokens: np.ndarray
    labels: np.ndarray
    lengths: np.ndarray

    def rows(self, first: int, last: int) -> Blocks:
        """The sequences ``first`` to ``last - 1``."""
        return Blocks(*(part[first:last] for part in self))


def encode(document: Document, tokenizer: Any) -> tuple[list[int], list[bool]]:
    """Tokens of a document and which of them enter the loss; the end token is the last, and is learnt.

    The begin token comes first where the tokenizer is one that writes it.
    """
    end, begin = tokenizer.eos_token_id, tokenizer.bos_token_id
    if document.messages:
        if not getattr(tokenizer, "chat_template", None):
            raise ToolkitError(
                "the dataset holds conversations and the tokenizer has no chat template",
                remedy="use the tokenizer of an instruction-tuned model, or rows with prompt and completion",
            )
        text = tokenizer.apply_chat_template(list(document.messages), tokenize=False)
        tokens = list(tokenizer.encode(text, add_special_tokens=False))
        trained = [True] * len(tokens)
    else:
        writes_begin = begin is not None and begin in tokenizer.encode("", add_special_tokens=True)
        tokens, trained = ([begin], [True]) if writes_begin else ([], [])
        for segment in document.segments:
            piece = tokenizer.encode(segment.text, add_special_tokens=False)
            tokens += piece
            trained += [segment.trained] * len(piece)
    if not tokens or tokens[-1] != end:
        tokens.append(end)
        trained.append(True)
    return tokens, trained


def pack(documents: Iterable[tuple[list[int], list[bool]]], length: int) -> Blocks:
    """Documents joined into one stream and cut every ``length`` tokens; the rest of less than one block is left out.

    Attention does not stop at a document's end within a block.
    """
    parts = [(np.asarray(tokens, np.int32), np.asarray(trained, bool)) for tokens, trained in documents]
    stream = np.concatenate([tokens for tokens, _ in parts]) if parts else np.empty(0, np.int32)
    trained = np.concatenate([mask for _, mask in parts]) if parts else np.empty(0, bool)
    count = len(stream) // length
    tokens = stream[: count * length].reshape(count, length)
    labels = np.where(trained[: count * length].reshape(count, length), tokens, np.int32(IGNORED))
    return Blocks(tokens, labels, np.full(count, length, np.int32))


def pad(documents: Iterable[tuple[list[int], list[bool]]], length: int, padding: int) -> Blocks:
    """One document per sequence, cut at ``length`` and filled up with padding that the loss does not see.

    A document of which nothing trained is left after the cut is dropped.
    """
    tokens, labels, lengths = [], [], []
    for ids, trained in documents:
        row = np.full(length, padding, np.int32)
        row[: len(ids)] = ids[:length]
        label = np.full(length, IGNORED, np.int32)
        label[: len(ids)] = np.where(trained[:length], ids[:length], IGNORED)
        if (label[1:] != IGNORED).any():  # the first token is never predicted
            tokens.append(row)
            labels.append(label)
            lengths.append(min(len(ids), length))
    shape = (len(tokens), length)
    return Blocks(
        np.reshape(np.asarray(tokens, np.int32), shape),
        np.reshape(np.asarray(labels, np.int32), shape),
        np.asarray(lengths, np.int32),
    )


def build(contract: Contract, tokenizer: Any) -> Blocks:
    """All sequences of the contract's dataset."""
    documents = (encode(document, tokenizer) for document in read_documents(contract.dataset))
    if contract.packing:
        return pack(documents, contract.sequence_length)
    padding = tokenizer.pad_token_id if tokenizer.pad_token_id is not None else tokenizer.eos_token_id
    return pad(documents, contract.sequence_length, padding)


def split(blocks: Blocks) -> tuple[Blocks, Blocks]:
    """Training and held-out sequences: the last 5 % (at least one) are never trained on."""
    count = len(blocks.tokens)
    if count < 2:
        raise ToolkitError(
            f"the dataset fills {count} sequence(s) of {blocks.tokens.shape[1]} tokens; training and evaluation need 2",
            remedy="give more text or a smaller sequence_length",
        )
    first = count - max(1, round(HELD_OUT * count))
    return blocks.rows(0, first), blocks.rows(first, count)


class Sequences:
    """A map-style dataset of ``samples`` sequences: epoch after epoch, each in its own seeded permutation."""

    def __init__(self, blocks: Blocks, samples: int, seed: int, shuffle: bool = True) -> None:
        self.blocks, self.samples, self.seed, self.shuffle = blocks, samples, seed, shuffle
        self._epoch = -1
        self._order = np.empty(0, np.int64)

    def __len__(self) -> int:
        return self.samples

    def block_of(self, index: int) -> int:
        """Which block the ``index``-th sequence of the run is."""
        count = len(self.blocks.tokens)
        epoch, position = divmod(index, count)
        if not self.shuffle:
            return position
        if epoch != self._epoch:
            self._order = np.random.default_rng([self.seed, epoch]).permutation(count)
            self._epoch = epoch
        return int(self._order[position])

    def __getitem__(self, index: int) -> dict[str, np.ndarray]:
        block = self.block_of(index)
        length = int(self.blocks.lengths[block])
        width = self.blocks.tokens.shape[1]
        return {
            "input_ids": self.blocks.tokens[block],
            "labels": self.blocks.labels[block],
            "attention_mask": (np.arange(width) < length).astype(np.int32),
        }


def cache_folder(output_dir: Path, contract: Contract) -> Path:
    """Where the blocks of this dataset, tokenizer and length lie; a changed local file is another dataset."""
    path = local_file(contract.dataset)
    stamp = f"{path.stat().st_size} {path.stat().st_mtime_ns}" if path is not None and path.is_file() else ""
    parts = (contract.dataset, stamp, contract.tokenizer or contract.model, contract.sequence_length, contract.packing)
    return output_dir / "data" / hashlib.sha256(repr(parts).encode()).hexdigest()[:16]


def store(blocks: Blocks, folder: Path) -> None:
    """Write the blocks so that either all of the folder is there or none of it."""
    temporary = folder.with_name(f".{folder.name}.{os.getpid()}")
    temporary.mkdir(parents=True)
    for name, part in blocks._asdict().items():
        np.save(temporary / f"{name}.npy", part)
    if folder.exists():
        shutil.rmtree(folder)
    temporary.rename(folder)


def load(folder: Path) -> Blocks:
    """Read stored blocks, mapped: the ranks of a node share one copy in the page cache."""
    try:
        return Blocks(*(np.load(folder / f"{name}.npy", mmap_mode="r") for name in Blocks._fields))
    except OSError as error:
        raise ToolkitError(
            f"cannot read the tokens that rank 0 wrote to {folder}: {error}",
            remedy="the output directory must be on storage that all nodes share",
        ) from error
