"""Sequences of tokens, in an order that depends on the contract alone, and the micro-batches of one step.

Small data sets are tokenised at the start by every rank (:class:`Windows`); corpora come from indexed files
(:mod:`recipes.pretrain.indexed`).
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple, Protocol

import numpy as np
import torch

from recipes import schedule
from recipes.finetune.data import encode
from recipes.finetune.documents import read_documents, require_text
from recipes.pretrain.config import CoreConfig, Training, learning_rate_contract
from recipes.pretrain.tokens import is_prefix
from recipes.tokenizer import load_tokenizer
from toolkit.errors import ToolkitError
from toolkit.plan import Plan

HELD_OUT = 0.05  # of the windows of a small data set, as the fine-tuning program holds out


class Sequences(Protocol):
    """Training or held-out sequences of ``sequence_length`` inputs, as long as one epoch."""

    sequence_length: int

    def __len__(self) -> int: ...

    def sample(self, index: int) -> np.ndarray:
        """The ``sequence_length + 1`` tokens of sample ``index``, counted over all epochs."""


class Data(NamedTuple):
    """What a run reads: ``steps`` optimizer steps of ``train``; ``sha256`` tells these tokens from others."""

    train: Sequences
    held_out: Sequences | None
    steps: int
    sha256: str


class Windows:
    """A stream cut into windows of ``sequence_length`` targets; each epoch visits them in its own permutation.

    Window ``w`` holds tokens ``w s`` to ``w s + s``: inputs and, shifted by one, labels. The incomplete last
    one is left out. Sample ``i`` of the run is window ``permutation(i // n)[i % n]``, so which samples a step
    trains on follows from the step's number, not from the number of ranks. ``first`` and ``count`` pick some of the
    windows; without a seed they come in their order.
    """

    def __init__(
        self, tokens: np.ndarray, sequence_length: int, seed: int | None, first: int = 0, count: int | None = None
    ) -> None:
        self.tokens, self.sequence_length, self.seed, self.first = tokens, sequence_length, seed, first
        whole = max(0, (len(tokens) - 1) // sequence_length)
        self.count = whole - first if count is None else count
        self._permutation = functools.lru_cache(maxsize=2)(self._draw)

    def __len__(self) -> int:
        return self.count

    def _draw(self, epoch: int) -> np.ndarray:
        if self.seed is None:
            return np.arange(self.count)
        return np.random.default_rng([self.seed, epoch]).permutation(self.count)

    def sample(self, index: int) -> np.ndarray:
        """The ``sequence_length + 1`` tokens of sample ``index``, counted over all epochs."""
        epoch, place = divmod(index, self.count)
        start = (self.first + int(self._permutation(epoch)[place])) * self.sequence_length
        return np.asarray(self.tokens[start : start + self.sequence_length + 1], np.int64)


def micro_batches(
    sequences: Sequences, step: int, training: Training, ranks: int, rank: int
) -> Iterator[dict[str, torch.Tensor]]:
    """The micro-batches of one step for one data-parallel rank: rank r takes numbers r, r + n, r + 2 n ..."""
    size = training.micro_batch_size
    for start in range(rank * size, training.global_batch_size, ranks * size):
        first = step * training.global_batch_size + start
        yield _batch(sequences, range(first, first + size), 1.0)


def evaluation_batches(
    sequences: Sequences, count: int, batches: int, size: int, ranks: int, rank: int
) -> Iterator[dict[str, torch.Tensor]]:
    """The first ``count`` sequences once, for one rank of ``ranks``; what fills the last batches has no weight.

    ``batches`` of ``size`` on each rank: as many as ``count`` needs or more.
    """
    for number in range(batches):
        first = (number * ranks + rank) * size
        rows = range(first, first + size)
        yield _batch(sequences, [min(row, count - 1) for row in rows], [float(row < count) for row in rows])


def _batch(sequences: Sequences, indices: range | list[int], weights: float | list[float]) -> dict[str, torch.Tensor]:
    rows = torch.from_numpy(np.stack([sequences.sample(index) for index in indices]))
    mask = torch.ones(len(rows), sequences.sequence_length)
    if isinstance(weights, list):
        mask *= torch.tensor(weights)[:, None]
    return {
        "tokens": rows[:, :-1].contiguous(),
        "labels": rows[:, 1:].contiguous(),
        "position_ids": torch.arange(sequences.sequence_length).expand(len(rows), -1).contiguous(),
        "loss_mask": mask,
    }


def load(plan: Plan, core: CoreConfig, folder: Path, rank: int) -> Data:
    """The data of the contract's run; every rank calls it.

    Raises ToolkitError for data that cannot be read, that is shorter than one sequence, or whose tokens the
    model does not know or another tokenizer made.
    """
    contract = learning_rate_contract(plan, core)
    if is_prefix(contract.dataset):
        from recipes.pretrain import indexed

        return indexed.load(plan, core, contract, folder, rank)
    tokens = _tokens(plan)
    train, held_out = split(tokens, core.training.sequence_length, core.training.seed)
    if not len(train):
        raise ToolkitError(
            f"dataset {contract.dataset!r} has {len(tokens)} tokens, one sequence needs {train.sequence_length + 1}",
            remedy="give more text, or a smaller sequence_length",
        )
    require_known(plan, int(tokens.max()))
    return Data(train, held_out, schedule.total_steps(contract, len(train)), hashlib.sha256(tokens).hexdigest())


def split(tokens: np.ndarray, sequence_length: int, seed: int) -> tuple[Windows, Windows | None]:
    """Training windows, and the last 5 % (at least one, of two or more) that are never trained on."""
    count = len(Windows(tokens, sequence_length, seed))
    held = max(1, round(HELD_OUT * count)) if count > 1 else 0
    train = Windows(tokens, sequence_length, seed, 0, count - held)
    return train, Windows(tokens, sequence_length, None, count - held, held) if held else None


def require_known(plan: Plan, largest: int) -> None:
    """Raise ToolkitError for a token beyond the model's vocabulary."""
    if largest >= plan.model.vocab_size:
        raise ToolkitError(
            f"the data holds token {largest}, the model's vocabulary ends at {plan.model.vocab_size - 1}",
            remedy="use the model's own tokenizer, or a model with as many tokens as this one has",
        )


def _tokens(plan: Plan) -> np.ndarray:
    """The documents of the data set one after another, an end token after each."""
    tokenizer, pieces = load_tokenizer(plan), []
    for number, document in enumerate(read_documents(plan.contract.dataset), start=1):
        if document.messages:
            raise ToolkitError(
                f"row {number} of {plan.contract.dataset!r} is a conversation",
                remedy="train on it with a recipe for recipes.finetune, or give texts",
            )
        for segment in document.segments:
            require_text(segment.text, f"row {number} of {plan.contract.dataset!r}")
        if any(segment.text for segment in document.segments):
            pieces.append(np.asarray(encode(document, tokenizer)[0], np.int32))
    return np.concatenate(pieces) if pieces else np.empty(0, np.int32)
