"""The real training programs with one real fault in them: ``python -m tests.verify.parity.faulty FAULT ARGUMENTS``.

Each function patches the library or the program as the mistake would have been written, in this process only.
"""

from __future__ import annotations

import os
import sys
from typing import Any

RANK, RANKS = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))


def mean_of_means() -> None:
    """Each micro-batch's loss is its own token mean, and the means are averaged."""
    from transformers import Trainer

    get = Trainer.get_batch_samples
    Trainer.get_batch_samples = lambda self, *more: (get(self, *more)[0], None)


def logged_by_one_rank() -> None:
    """The loss that is shown is rank 0's own, not the mean over ranks."""
    import transformers.trainer as trainer

    trainer.nested_gather = lambda tensor, *_, **__: tensor


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


def summed_gradients() -> None:
    """Gradients are summed over the ranks where the loss is one for the mean."""
    import torch.nn.parallel

    create = torch.nn.parallel.DistributedDataParallel.__init__

    def summing(self: Any, *positional: Any, **keywords: Any) -> None:
        create(self, *positional, **keywords)

        def hook(_, bucket):  # type: ignore[no-untyped-def]  # torch looks at annotations
            work = torch.distributed.all_reduce(bucket.buffer(), async_op=True)
            return work.get_future().then(lambda done: done.value()[0])

        self.register_comm_hook(None, hook)

    torch.nn.parallel.DistributedDataParallel.__init__ = summing


def no_reduction() -> None:
    """Every rank steps on the gradients of its own samples."""
    import torch.nn.parallel

    create = torch.nn.parallel.DistributedDataParallel.__init__

    def local(self: Any, *positional: Any, **keywords: Any) -> None:
        create(self, *positional, **keywords)
        self.require_backward_grad_sync = False

    torch.nn.parallel.DistributedDataParallel.__init__ = local


def rate_times_ranks() -> None:
    """The learning rate grows with the number of ranks."""
    import recipes.finetune.trainer as trainer

    right = trainer.learning_rate
    trainer.learning_rate = lambda *arguments: RANKS * right(*arguments)


def batch_norm() -> None:
    """A model with a BatchNorm over its final hidden states; in every run, so also in the reference."""
    import torch

    from recipes.finetune import model

    load = model.load_base

    class Normed(torch.nn.Module):
        def __init__(self, norm: Any, size: int) -> None:
            super().__init__()
            self.norm, self.batch = norm, torch.nn.BatchNorm1d(size, affine=False)

        def forward(self, hidden: Any) -> Any:
            return self.batch(self.norm(hidden).transpose(1, 2)).transpose(1, 2)

    def with_norm(*positional: Any, **keywords: Any) -> Any:
        made, said = load(*positional, **keywords)
        made.model.norm = Normed(made.model.norm, made.config.hidden_size)
        return made, said

    model.load_base = with_norm


def rest_dropped() -> None:
    """Steps of an epoch are rounded down: what does not fill a window of accumulation is dropped."""
    from recipes import schedule

    schedule.total_steps = lambda contract, sequences: int(contract.epochs * sequences) // contract.global_batch_size


def seed_by_rank() -> None:
    """Weights are drawn from seed + rank."""
    from recipes.pretrain import model

    draw = model.initialise
    model.initialise = lambda chunk, config, seed, vocabulary: draw(chunk, config, seed + RANK, vocabulary)


def norms_not_marked() -> None:
    """The norms' weights are not marked as sequence parallel."""
    from recipes.pretrain import layers

    create = layers.Norm.__new__

    def unmarked(cls: Any, config: Any, *more: Any, **keywords: Any) -> Any:
        module = create(cls, config, *more, **keywords)
        for parameter in module.parameters():
            parameter.sequence_parallel = False
        return module

    layers.Norm.__new__ = unmarked


def ties_not_summed() -> None:
    """The two copies of a tied embedding keep the gradients of their own stages."""
    import importlib

    # by name: the package has a function of the module's name
    finalize: Any = importlib.import_module("megatron.core.distributed.finalize_model_grads")
    finalize._allreduce_word_embedding_grads = lambda *_, **__: None


def norm_counts_twice() -> None:
    """The gradient norm counts a parameter that every tensor-parallel rank holds once for each of them."""
    import megatron.core.optimizer.optimizer as optimizer

    optimizer.tensor_parallel.param_is_not_tensor_parallel_duplicate = lambda *_, **__: True


def same_dropout_inside() -> None:
    """The random state of tensor-parallel regions does not depend on the rank."""
    from recipes.pretrain import model

    seed_all = model.tensor_parallel.model_parallel_cuda_manual_seed
    model.tensor_parallel.model_parallel_cuda_manual_seed = lambda seed, **keywords: seed_all(
        seed, **keywords | {"tp_rank": 0, "ep_rank": 0, "etp_rank": 0}
    )


def wrong_slices() -> None:
    """Context-parallel ranks take contiguous slices, the attention believes in zigzag ones."""
    from recipes.pretrain import forward

    forward.context_slice = lambda batch, ranks, rank: {
        name: each.chunk(ranks, 1)[rank] for name, each in batch.items()
    }


FINETUNE = (
    mean_of_means,
    logged_by_one_rank,
    same_samples,
    tail_dropped,
    summed_gradients,
    no_reduction,
    rate_times_ranks,
    batch_norm,
    rest_dropped,
)
PRETRAIN = (seed_by_rank, norms_not_marked, ties_not_summed, norm_counts_twice, same_dropout_inside, wrong_slices)


def main() -> int:
    """Put the fault in, then run the program that it is a fault of."""
    fault, arguments = sys.argv[1], sys.argv[2:]
    finetune = {each.__name__: each for each in FINETUNE}
    if fault in finetune:
        finetune[fault]()
        from recipes.finetune import train

        return train.main(arguments)
    if "CUDA_VISIBLE_DEVICES" not in os.environ:
        from recipes.pretrain import machine

        machine.on_cpu()  # the library is imported below, and must find the shim
    {each.__name__: each for each in PRETRAIN}[fault]()
    from recipes.pretrain import train as pretrain

    return pretrain.main(arguments)


if __name__ == "__main__":
    from recipes import program

    program.leave(main())
