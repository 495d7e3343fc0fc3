"""Losses and gradients of the fine-tuning program: what they are divided by, and over whom they are summed."""

from __future__ import annotations

from typing import Any

from tests.verify.parity.faults import RANKS


def mean_of_means() -> None:
    """Each micro-batch's loss is its own token mean, and the means are averaged."""
    from transformers import Trainer

    get = Trainer.get_batch_samples
    Trainer.get_batch_samples = lambda self, *more: (get(self, *more)[0], None)


def logged_by_one_rank() -> None:
    """The loss that is shown is rank 0's own, not the mean over ranks."""
    import transformers.trainer as trainer

    trainer.nested_gather = lambda tensor, *_, **__: tensor


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


def ignored_tokens_counted() -> None:
    """The loss is divided by all tokens, padding too."""
    from transformers import Trainer

    get = Trainer.get_batch_samples

    def counting_all(self: Any, *more: Any) -> Any:
        batches, _ = get(self, *more)
        return batches, RANKS * sum(each["labels"].numel() for each in batches)

    Trainer.get_batch_samples = counting_all


def tokens_of_own_rank() -> None:
    """Each rank divides by its own trained tokens, and the means are averaged over the ranks."""
    from recipes.finetune import arguments

    make = arguments.training_arguments
    arguments.training_arguments = lambda *more, **keywords: (
        make(*more, **keywords) | {"average_tokens_across_devices": False}
    )


def not_divided_by_accumulation() -> None:
    """The loss of each micro-batch counts as much as that of the whole step."""
    from accelerate import Accelerator

    backward = Accelerator.backward
    Accelerator.backward = lambda self, loss, **keywords: backward(self, loss * 4, **keywords)


def last_micro_batch_alone() -> None:
    """Gradients are zeroed before each backward pass, also inside of a window of accumulation."""
    from accelerate import Accelerator

    backward = Accelerator.backward

    def alone(self: Any, loss: Any, **keywords: Any) -> None:
        for model in self._models:
            model.zero_grad()
        backward(self, loss, **keywords)

    Accelerator.backward = alone


def never_zeroed() -> None:
    """Gradients of the step before are added to."""
    import torch

    torch.nn.Module.zero_grad = lambda *_, **__: None
    torch.optim.Optimizer.zero_grad = lambda *_, **__: None


def one_rank_counts() -> None:
    """Rank 0's gradients are sent to all where a mean over all should be."""
    import torch.nn.parallel

    create = torch.nn.parallel.DistributedDataParallel.__init__

    def sending(self: Any, *positional: Any, **keywords: Any) -> None:
        create(self, *positional, **keywords)

        def hook(_, bucket):  # type: ignore[no-untyped-def]  # torch looks at annotations
            work = torch.distributed.broadcast(bucket.buffer(), 0, async_op=True)
            return work.get_future().then(lambda done: done.value()[0])

        self.register_comm_hook(None, hook)

    torch.nn.parallel.DistributedDataParallel.__init__ = sending


def clipped_in_the_window() -> None:
    """Gradients are clipped after every micro-batch, before the window of accumulation is full."""
    import torch
    from accelerate import Accelerator

    backward = Accelerator.backward

    def clipping(self: Any, loss: Any, **keywords: Any) -> None:
        backward(self, loss, **keywords)
        torch.nn.utils.clip_grad_norm_(self._models[0].parameters(), 0.25)

    Accelerator.backward = clipping
