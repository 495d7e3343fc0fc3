"""What the fine-tuning program reads, and which of it is learnt."""

from __future__ import annotations

from typing import Any

from tests.verify.parity.faults import RANKS


def same_samples() -> None:
    """The sampler of every rank believes that it is rank 0's."""
    from accelerate.data_loader import BatchSamplerShard

    create = BatchSamplerShard.__init__

    def everyone_is_first(self: Any, *positional: Any, **keywords: Any) -> None:
        create(self, *positional, **keywords)
        self.process_index = 0

    BatchSamplerShard.__init__ = everyone_is_first


def tail_dropped() -> None:
    """The data set is cut to a multiple of three times the ranks before it is shuffled."""
    from recipes.finetune import data

    create = data.Sequences.__init__

    def cut(self: Any, blocks: Any, *more: Any, **keywords: Any) -> None:
        whole = len(blocks.tokens) // (3 * RANKS) * 3 * RANKS
        create(self, blocks.rows(0, whole), *more, **keywords)

    data.Sequences.__init__ = cut


def padding_is_the_end() -> None:
    """The end token is taken for padding, and not learnt."""
    from recipes.finetune import batches

    collate = batches.Collate.__call__

    def masked(self: Any, rows: Any) -> Any:
        batch = collate(self, rows)
        end = batch["input_ids"] == batch["input_ids"].max()
        return batch | {"labels": batch["labels"].masked_fill(end, -100)}

    batches.Collate.__call__ = masked


def positions_missing() -> None:
    """Documents that are packed into a sequence are numbered through, so that attention does not stop between them."""
    import torch

    from recipes.finetune import batches

    batches.prove_isolation = lambda *_: None
    collate = batches.Collate.__call__

    def through(self: Any, rows: Any) -> Any:
        batch = collate(self, rows)
        return batch | {"position_ids": torch.arange(batch["input_ids"].shape[1]).expand_as(batch["input_ids"])}

    batches.Collate.__call__ = through


def rest_dropped() -> None:
    """Steps of an epoch are rounded down: what does not fill a window of accumulation is dropped."""
    from recipes import schedule

    schedule.total_steps = lambda contract, sequences: int(contract.epochs * sequences) // contract.global_batch_size


def one_order_for_all_epochs() -> None:
    """The sampler is never told the epoch, so that each has the order of the first."""
    from recipes.finetune import data

    right = data.Sequences.block_of
    data.Sequences.block_of = lambda self, index: right(self, index % len(self.blocks.tokens))


def end_filled_from_the_start() -> None:
    """What is missing to a multiple of 8 at the end of an epoch is taken from its start."""
    from recipes.finetune import data

    right = data.Sequences.block_of

    def filled(self: Any, index: int) -> int:
        count = len(self.blocks.tokens)
        epoch, place = divmod(index, -(-count // 8) * 8)
        return right(self, epoch * count + place % count)

    data.Sequences.block_of = filled
