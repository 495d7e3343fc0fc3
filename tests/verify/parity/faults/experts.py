"""The pretraining program: experts, what routes tokens to them, and what balances them."""

from __future__ import annotations

import re
from typing import Any

from tests.verify.parity.faults import RANKS


def router_not_marked() -> None:
    """The routers' weights are not marked as sequence parallel."""
    from megatron.core.transformer.moe import router

    create = router.TopKRouter.__init__

    def unmarked(self: Any, *positional: Any, **keywords: Any) -> None:
        create(self, *positional, **keywords)
        self.weight.sequence_parallel = False

    router.TopKRouter.__init__ = unmarked


def experts_divided_by_all_ranks() -> None:
    """Gradients of experts, which have seen the tokens of all ranks, are divided by the expert-parallel ranks again."""
    from recipes.pretrain import model

    finish = model.finalize_model_grads

    def divided(chunks: list[Any], *more: Any, **keywords: Any) -> None:
        finish(chunks, *more, **keywords)
        for chunk in chunks:
            for buffer in chunk.expert_parallel_buffers:
                buffer.scale_gradients(1.0 / RANKS)

    model.finalize_model_grads = divided


def experts_alike() -> None:
    """Experts are drawn by their number on the rank, so that each rank starts with the same ones."""
    from recipes.pretrain import initialise

    draw = initialise._draw

    def by_local_number(name: str, *more: Any) -> Any:
        local = re.sub(r"(?<=experts\.)\d+", lambda number: str(int(number[0]) % (4 // RANKS)), name)
        return draw(local, *more)

    initialise._draw = by_local_number


def balance_not_divided() -> None:
    """The loss that balances experts is added for every micro-batch, and not divided by their number."""
    from megatron.core.transformer.moe.moe_utils import MoEAuxLossAutoScaler

    right = MoEAuxLossAutoScaler.set_loss_scale
    MoEAuxLossAutoScaler.set_loss_scale = staticmethod(lambda scale: right(2.0 * scale))


def tokens_dropped() -> None:
    """Experts take no more tokens than their even share."""
    _settings(moe_expert_capacity_factor=1.0, moe_token_drop_policy="probs")


def router_in_bf16() -> None:
    """The routers compute in bf16, so that some tokens go to other experts."""
    from megatron.core.transformer.moe import router

    right = router.router_gating_linear
    router.router_gating_linear = lambda tokens, weight, *more: right(
        tokens.bfloat16().to(tokens), weight.bfloat16().to(weight), *more
    )


def bias_of_own_tokens() -> None:
    """A router's bias, with which it balances its experts, follows from the tokens of its own rank; in all runs."""
    import importlib

    import torch

    _settings(moe_router_enable_expert_bias=True, moe_router_score_function="sigmoid")
    finalize: Any = importlib.import_module("megatron.core.distributed.finalize_model_grads")

    def updated(tokens: torch.Tensor, bias: torch.Tensor, rate: float) -> torch.Tensor:
        return bias + torch.sign(tokens.mean(-1, keepdim=True) - tokens) * rate

    finalize.get_updated_expert_bias = updated


def _settings(**values: Any) -> None:
    from recipes.pretrain import model

    right = model.transformer_settings

    def changed(*arguments: Any) -> Any:
        settings, notes = right(*arguments)
        return settings | values, notes

    model.transformer_settings = changed
