"""Either training program with a batch that ruins it: ``python -m tests.recipes.faulty_batch PROGRAM BATCH HOW ...``.

    nan      one micro batch of that batch, on the last data-parallel rank, has a loss that is not finite
    spike    its labels are a token that never comes, so that the loss is high and its gradients as they are

Whoever reads that batch, in whichever step, gets it. Every batch that is read is noted in ``batches-RANK.txt``.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

GLOBAL_BATCH, NEVER = 16, 7  # a control character
RANK = int(os.environ.get("RANK", "0"))
Batch = dict[str, Any]


def note(batch: int) -> None:
    """In the working directory of the run."""
    with Path(f"batches-{RANK}.txt").open("a") as file:
        file.write(f"{batch}\n")


def in_pretraining(bad: int, how: str) -> None:
    """Reads whole batches; the loss follows each micro batch."""
    from recipes.pretrain import data, forward

    read, losses, now = data.micro_batches, forward.token_losses, {"bad": False}

    def micro_batches(sequences: Any, batch: int, training: Any, ranks: int, rank: int) -> Any:
        note(batch)
        for number, each in enumerate(read(sequences, batch, training, ranks, rank)):
            ruined = batch == bad and number == 1 and rank == ranks - 1
            now["bad"] = ruined and how == "nan"
            if batch == bad and how == "spike":
                each["labels"].fill_(NEVER)
            yield each

    def token_losses(found: Any, mask: Any) -> Any:
        return losses(found * float("nan") if now["bad"] else found, mask)

    data.micro_batches, forward.token_losses = micro_batches, token_losses


def in_fine_tuning(bad: int, how: str) -> None:
    """Reads one sample after another; the labels tell where the loss is to be none."""
    import numpy as np

    from recipes.finetune import data, trainer
    from toolkit.runtime.skipped import sample_of

    read, compute = data.Sequences.__getitem__, trainer.ContractTrainer.compute_loss

    def get(self: Any, index: int) -> Batch:
        row, sample = read(self, index), sample_of(index, self.global_batch, self.skipped)
        if self.shuffle and sample % GLOBAL_BATCH == 2 * RANK:  # the first of those of this rank
            note(sample // GLOBAL_BATCH)
        if self.shuffle and sample // GLOBAL_BATCH == bad and (how == "spike" or sample % GLOBAL_BATCH == 6):
            row = row | {"labels": np.full_like(row["labels"], NEVER)}
        return row

    def compute_loss(self: Any, model: Any, inputs: Batch, *more: Any, **keywords: Any) -> Any:
        ruined = how == "nan" and bool((inputs["labels"] == NEVER).all(1).any())
        loss = compute(self, model, inputs, *more, **keywords)
        return loss * float("nan") if ruined else loss

    data.Sequences.__getitem__, trainer.ContractTrainer.compute_loss = get, compute_loss


def main() -> int:
    """Ruin the batch, then run the program."""
    program, batch, how, *arguments = sys.argv[1:]
    if program == "finetune":
        in_fine_tuning(int(batch), how)
        from recipes.finetune import train

        return train.main(arguments)
    if "CUDA_VISIBLE_DEVICES" not in os.environ:
        from recipes.pretrain import machine

        machine.on_cpu()  # the library is imported below, and must find the shim
    in_pretraining(int(batch), how)
    from recipes.pretrain import train as pretrain

    return pretrain.main(arguments)


if __name__ == "__main__":
    from recipes import program

    program.leave(main())
