"""Fixed-length windows over a token stream, in an order that depends on the seed and the step alone."""

from __future__ import annotations

import functools
from collections.abc import Iterator

import numpy as np
import torch

from recipes.finetune.data import encode
from recipes.finetune.documents import read_documents
from recipes.finetune.model import load_tokenizer
from recipes.pretrain.config import CoreConfig, Training
from toolkit.errors import ToolkitError
from toolkit.plan import Plan


class Windows:
    """A stream cut into windows of ``sequence_length`` targets; each epoch visits them in its own permutation.

    Window ``w`` holds tokens ``w s`` to ``w s + s``: inputs and, shifted by one, labels. The incomplete last
    one is left out. Sample ``i`` of the run is window ``permutation(i // n)[i % n]``, so which samples a step
    trains on follows from the step's number, not from the number of ranks.
    """

    def __init__(self, tokens: np.ndarray, sequence_length: int, seed: int) -> None:
        self.tokens, self.sequence_length, self.seed = tokens, sequence_length, seed
        self.count = max(0, (len(tokens) - 1) // sequence_length)
        self._permutation = functools.lru_cache(maxsize=2)(self._draw)

    def __len__(self) -> int:
        return self.count

    def _draw(self, epoch: int) -> np.ndarray:
        return np.random.default_rng([self.seed, epoch]).permutation(self.count)

    def sample(self, index: int) -> np.ndarray:
        """The ``sequence_length + 1`` tokens of sample ``index``, counted over all epochs."""
        epoch, place = divmod(index, self.count)
        start = int(self._permutation(epoch)[place]) * self.sequence_length
        return self.tokens[start : start + self.sequence_length + 1].astype(np.int64)


def micro_batches(
    windows: Windows, step: int, training: Training, ranks: int, rank: int
) -> Iterator[dict[str, torch.Tensor]]:
    """The micro-batches of one step for one data-parallel rank: rank r takes numbers r, r + n, r + 2 n ..."""
    size = training.micro_batch_size
    positions = torch.arange(windows.sequence_length).expand(size, -1).contiguous()
    for start in range(rank * size, training.global_batch_size, ranks * size):
        first = step * training.global_batch_size + start
        rows = torch.from_numpy(np.stack([windows.sample(first + row) for row in range(size)]))
        yield {
            "tokens": rows[:, :-1].contiguous(),
            "labels": rows[:, 1:].contiguous(),
            "position_ids": positions,
            "loss_mask": torch.ones(size, windows.sequence_length),
        }


def windows(plan: Plan, core: CoreConfig) -> Windows:
    """The windows of the contract's data set: its documents one after another, an end token after each.

    Raises ToolkitError for data that cannot be read, that is shorter than one window, or whose tokens the
    model does not know.
    """
    tokenizer = load_tokenizer(plan)
    pieces = [
        np.asarray(encode(document, tokenizer)[0], np.int32) for document in read_documents(plan.contract.dataset)
    ]
    tokens = np.concatenate(pieces) if pieces else np.empty(0, np.int32)
    made = Windows(tokens, core.training.sequence_length, core.training.seed)
    if not made.count:
        raise ToolkitError(
            f"dataset {plan.contract.dataset!r} has {len(tokens)} tokens, one sequence needs"
            f" {made.sequence_length + 1}",
            remedy="give more text, or a smaller sequence_length",
        )
    largest = int(tokens.max())
    if largest >= plan.model.vocab_size:
        raise ToolkitError(
            f"the data holds token {largest}, the model's vocabulary ends at {plan.model.vocab_size - 1}",
            remedy="use the model's own tokenizer, or a model with as many tokens as this one has",
        )
    return made
