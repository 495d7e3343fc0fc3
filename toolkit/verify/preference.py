"""What preference training (DPO) adds to a dry run: pairs, trl's head, and a frozen reference with its forward pass.

The head is trl's own code (1.16.0), scoring every position of both answers. Its tiles are folded by kernels of Triton
and summed by products that write in place, on a GPU; the torch code in their place on processors makes copies that no
GPU has, so here they do nothing.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

from toolkit.errors import ToolkitError
from toolkit.plan import Plan

Loss = Callable[[Any, Any], Any]


def is_preference(plan: Plan) -> bool:
    """Whether the plan trains on pairs."""
    return plan.workload.objective == "dpo"


def rows(plan: Plan) -> int:
    """Sequences of a micro batch: two of each pair."""
    return plan.strategy.micro_batch_size * (2 if is_preference(plan) else 1)


def with_head(plan: Plan, model: Any) -> Any:
    """The model with trl's head, where it trains on pairs: before adapters, as the trainer of trl does."""
    if not is_preference(plan):
        return model
    try:
        from trl.kernels import chunked_logprob
        from trl.trainer.utils import add_fused_lm_head
    except ImportError as error:
        raise ToolkitError(
            "objective dpo needs trl: the dry run is its own code", remedy="pip install '.[dpo]'"
        ) from error
    for name in ("_forward_tile", "_backward_tile", "_addmm_fp32"):
        setattr(chunked_logprob, name, lambda *_, **__: None)
    add_fused_lm_head(model, outputs=("log_probs", "entropy", "mean_logits", "is_top1"))
    return model


def frozen(model: Any) -> Any:
    """A reference: nothing of it is trained."""
    return model.requires_grad_(False).eval()


def loss_of(plan: Plan, policy: Any, reference: Any) -> Loss:
    """From the wrapped model and tokens to the loss; ``policy`` is the model inside, for adapters to be switched off.

    Likelihood: the model's own loss. Pairs: trl's sigmoid loss; the others differ in a few numbers.
    """
    if not is_preference(plan):
        return lambda model, tokens: model(input_ids=tokens, labels=tokens).loss
    import torch

    def scored(model: Any, tokens: Any) -> tuple[Any, Any]:
        found = model(input_ids=tokens, labels=tokens, fused_lm_head=True, use_cache=False)
        chosen, rejected = found.log_probs.sum(1).chunk(2)
        return chosen, rejected

    def loss(model: Any, tokens: Any) -> Any:
        chosen, rejected = scored(model, tokens)
        alone = contextlib.nullcontext() if reference is not None else policy.disable_adapter()
        with torch.no_grad(), alone:
            other = scored(reference if reference is not None else policy, tokens)
        margin = plan.contract.dpo_beta * ((chosen - other[0]) - (rejected - other[1]))
        return -torch.nn.functional.logsigmoid(margin).mean()

    return loss
