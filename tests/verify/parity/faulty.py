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
    """A model with a BatchNorm before its final norm; in every run, so also in the reference."""
    import torch

    from recipes.finetune import model

    load = model.load_base

    class Normed(torch.nn.Module):
        def __init__(self, norm: Any, size: int) -> None:
            super().__init__()
            self.norm, self.batch = norm, torch.nn.BatchNorm1d(size, affine=False)

        def forward(self, hidden: Any) -> Any:
            return self.norm(self.batch(hidden.transpose(1, 2)).transpose(1, 2))

    def with_norm(*positional: Any, **keywords: Any) -> Any:
        made, said = load(*positional, **keywords)
        made.model.norm = Normed(made.model.norm, made.config.hidden_size)
        return made, said

    model.load_base = with_norm


def divided_by_accumulation_twice() -> None:
    """The loss, already a mean over the tokens of the whole step, is divided by the number of micro-batches again."""
    from accelerate import Accelerator

    backward = Accelerator.backward
    Accelerator.backward = lambda self, loss, **keywords: backward(self, loss / 2, **keywords)


def local_norm() -> None:
    """Each rank clips by the norm of its own shards."""
    import torch
    from accelerate import Accelerator

    def clip(self: Any, parameters: Any, limit: float, norm_type: int = 2) -> Any:
        gradients = [each.grad.to_local() for each in parameters if each.grad is not None]
        norm = torch.stack([each.norm() for each in gradients]).norm()
        for each in gradients:
            each.mul_(min(1.0, limit / (float(norm) + 1e-6)))
        return norm

    Accelerator.clip_grad_norm_ = clip


def not_clipped() -> None:
    """The norm is told, and nothing is clipped."""
    from accelerate import Accelerator

    clip = Accelerator.clip_grad_norm_
    Accelerator.clip_grad_norm_ = lambda self, parameters, limit, *more: clip(self, parameters, float("inf"), *more)


def decay_on_norms() -> None:
    """One group of parameters, all of them decayed."""
    from transformers import Trainer

    Trainer.get_decay_parameter_names = lambda self, model: [name for name, _ in model.named_parameters()]


def bf16_reduction() -> None:
    """Gradients are rounded to bf16 before they are added over the ranks, as torch's bf16_compress_hook does."""
    import torch.nn.parallel

    create = torch.nn.parallel.DistributedDataParallel.__init__

    def rounding(self: Any, *positional: Any, **keywords: Any) -> None:
        create(self, *positional, **keywords)

        def hook(_, bucket):  # type: ignore[no-untyped-def]  # torch looks at annotations
            whole = bucket.buffer()
            work = torch.distributed.all_reduce(whole.bfloat16().div_(RANKS), async_op=True)
            return work.get_future().then(lambda done: whole.copy_(done.value()[0]))

        self.register_comm_hook(None, hook)

    torch.nn.parallel.DistributedDataParallel.__init__ = rounding


def no_master_weights() -> None:
    """The weights have no copy in fp32: each update is rounded to bf16."""
    import torch

    update = torch.optim.AdamW.step

    def rounded(self: Any, *positional: Any, **keywords: Any) -> Any:
        result = update(self, *positional, **keywords)
        with torch.no_grad():
            for group in self.param_groups:
                for each in group["params"]:
                    each.copy_(each.bfloat16())
        return result

    torch.optim.AdamW.step = rounded


def scheduler_by_rank() -> None:
    """The scheduler is stepped once for every rank."""
    import recipes.finetune.trainer as trainer

    right = trainer.learning_rate
    trainer.learning_rate = lambda step, *more: right(RANKS * step, *more)


def ignored_tokens_counted() -> None:
    """The loss is divided by all tokens, padding too."""
    from transformers import Trainer

    get = Trainer.get_batch_samples

    def counting_all(self: Any, *more: Any) -> Any:
        batches, _ = get(self, *more)
        return batches, RANKS * sum(each["labels"].numel() for each in batches)

    Trainer.get_batch_samples = counting_all


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


def untied() -> None:
    """The output layer gets a tensor of its own."""
    import torch

    from recipes.finetune import model

    load = model.load_base

    def apart(*positional: Any, **keywords: Any) -> Any:
        made, said = load(*positional, **keywords)
        made.lm_head.weight = torch.nn.Parameter(made.lm_head.weight.detach().clone())
        return made, said

    model.load_base = apart
    model._check_size = lambda *_: None


def rest_dropped() -> None:
    """Steps of an epoch are rounded down: what does not fill a window of accumulation is dropped."""
    from recipes import schedule

    schedule.total_steps = lambda contract, sequences: int(contract.epochs * sequences) // contract.global_batch_size


def seed_by_rank() -> None:
    """Weights are drawn from seed + rank."""
    from recipes.pretrain import model

    draw = model.initialise
    model.initialise = lambda chunk, config, seed, vocabulary: draw(chunk, config, seed + RANK, vocabulary)


def drawn_for_the_shard() -> None:
    """The spread of weights follows from the width of a shard."""
    from recipes.pretrain import model

    draw = model.initialise

    def wider(chunk: Any, *more: Any) -> None:
        draw(chunk, *more)
        for parameter in chunk.parameters():
            if getattr(parameter, "tensor_model_parallel", False):
                parameter.data.mul_(RANKS**0.5)

    model.initialise = wider


def padding_in_the_softmax() -> None:
    """Rows that pad the vocabulary for tensor parallelism take part in the loss."""
    from recipes.pretrain import model

    model.hide_padding = lambda *_: None


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
    divided_by_accumulation_twice,
    local_norm,
    not_clipped,
    decay_on_norms,
    bf16_reduction,
    no_master_weights,
    scheduler_by_rank,
    ignored_tokens_counted,
    padding_is_the_end,
    positions_missing,
    untied,
    rest_dropped,
)
PRETRAIN = (
    drawn_for_the_shard,
    padding_in_the_softmax,
    seed_by_rank,
    norms_not_marked,
    ties_not_summed,
    norm_counts_twice,
    same_dropout_inside,
    wrong_slices,
)


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
