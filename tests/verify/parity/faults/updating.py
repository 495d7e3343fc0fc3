"""What the optimizer of the fine-tuning program does with gradients that are right."""

from __future__ import annotations

from typing import Any

from tests.verify.parity.faults import RANKS


def rate_times_ranks() -> None:
    """The learning rate grows with the number of ranks."""
    import recipes.finetune.trainer as trainer

    right = trainer.learning_rate
    trainer.learning_rate = lambda *arguments: RANKS * right(*arguments)


def not_clipped() -> None:
    """The norm is told, and nothing is clipped."""
    from accelerate import Accelerator

    clip = Accelerator.clip_grad_norm_
    Accelerator.clip_grad_norm_ = lambda self, parameters, limit, *more: clip(self, parameters, float("inf"), *more)


def decay_on_norms() -> None:
    """One group of parameters, all of them decayed."""
    from transformers import Trainer

    Trainer.get_decay_parameter_names = lambda self, model: [name for name, _ in model.named_parameters()]


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


def warmup_by_micro_batch() -> None:
    """The warm-up is as many steps as it should be, times the micro-batches of a step."""
    import msgspec

    import recipes.finetune.trainer as trainer

    right = trainer.learning_rate
    trainer.learning_rate = lambda step, total, contract: right(
        step, total, msgspec.structs.replace(contract, warmup_steps=4 * contract.warmup_steps)
    )


def decay_in_the_gradient() -> None:
    """Adam with L2 in the place of AdamW."""
    import torch

    torch.optim.AdamW.__setstate__ = torch.optim.Adam.__setstate__  # which sets it again where states are loaded
    _settings(decoupled_weight_decay=False)


def default_betas() -> None:
    """The contract's betas are not passed on."""
    _settings(betas=(0.9, 0.999))


def _settings(**values: Any) -> None:
    import torch

    create = torch.optim.AdamW.__init__

    def changed(self: Any, *positional: Any, **keywords: Any) -> None:
        create(self, *positional, **keywords)
        for group in self.param_groups:
            group.update(values)

    torch.optim.AdamW.__init__ = changed


def shards_not_gathered() -> None:
    """Under ZeRO-2 each rank updates its share of the weights and does not get those of the others."""
    import deepspeed.runtime.zero.stage_1_and_2 as stage

    stage.all_gather_dp_groups = lambda *_, **__: None
