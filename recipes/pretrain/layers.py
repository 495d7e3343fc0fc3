"""The two layers that Transformer Engine brings and megatron-core alone does not have.

Without Transformer Engine, megatron-core's norm refuses sequence parallelism (torch_norm.py:32) and its
attention refuses context parallelism (dot_product_attention.py:58) and keeps the whole score matrix. These
stand in their places, on a GPU as on a CPU.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F  # noqa: N812
from megatron.core import parallel_state, tensor_parallel
from megatron.core.transformer.module import MegatronModule
from megatron.core.transformer.utils import is_layer_window_attention

from recipes.pretrain.exchange import heads_for_tokens, in_order, tokens_for_heads


class Norm:
    """RMSNorm or LayerNorm whose weights are marked ``sequence_parallel``; building one gives torch's own module.

    The mark makes ``finalize_model_grads`` sum their gradients over the tensor-parallel group: with
    sequence parallelism each rank has seen only its slice of the sequence. A class, as the library's
    WrappedTorchNorm is, because its specifications take a function for the finished layer.
    """

    def __new__(cls, config: Any, hidden_size: int, eps: float = 1e-5, **_: Any) -> Any:
        """The module for one hidden size."""
        kind = {"RMSNorm": torch.nn.RMSNorm, "LayerNorm": torch.nn.LayerNorm}[config.normalization]
        module = kind(hidden_size, eps=eps, dtype=config.params_dtype)
        for parameter in module.parameters():
            parameter.sequence_parallel = config.sequence_parallel
        return module


class _GatherSequence(torch.autograd.Function):
    """All-gather keys or values over the context-parallel group; the backward pass sums and keeps the own slice."""

    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor, group: Any) -> torch.Tensor:
        ctx.group = group
        parts = [torch.empty_like(tensor) for _ in range(group.size())]
        dist.all_gather(parts, tensor.contiguous(), group=group)
        return torch.stack(parts)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:  # type: ignore[override]
        gradient = gradient.contiguous()
        dist.all_reduce(gradient, group=ctx.group)
        return gradient[ctx.group.rank()], None


class CausalAttention(MegatronModule):
    """Causal attention in one kernel call; under context parallelism heads are exchanged, or keys and values gathered.

    cp_comm_type ``a2a`` exchanges heads for tokens before the kernel and back after it. Any other gathers: one
    all-gather of keys and one of values in the forward pass, one all-reduce of each gradient in the backward pass
    (``all_gather``; there is no ring here, which Transformer Engine brings).
    """

    def __init__(
        self,
        config: Any,
        layer_number: int,
        attn_mask_type: Any,
        attention_type: str,
        attention_dropout: float | None = None,
        softmax_scale: float | None = None,
        cp_comm_type: str | None = None,
        pg_collection: Any = None,
        **_: Any,
    ) -> None:
        super().__init__(config=config)
        self.group = pg_collection.cp if pg_collection is not None else parallel_state.get_context_parallel_group()
        self.exchanges = cp_comm_type == "a2a" and self.group.size() > 1
        self.scale = softmax_scale or config.kv_channels**-0.5
        windowed = is_layer_window_attention(config.window_size, config.window_attn_skip_freq, layer_number)
        self.window = int(config.window_size[0]) if windowed else None  # keys before the query's own
        self.dropout = config.attention_dropout if attention_dropout is None else attention_dropout

    def forward(
        self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, attention_mask: Any = None, **_: Any
    ) -> torch.Tensor:
        """``[s, b, heads, d]`` queries, ``[s, b, groups, d]`` keys and values; returns ``[s, b, heads * d]``."""
        if self.exchanges:
            query, key, value = (heads_for_tokens(tensor, self.group) for tensor in (query, key, value))
        elif self.group.size() > 1:
            key, value = (in_order(_GatherSequence.apply(tensor, self.group)) for tensor in (key, value))
        cut = query.size(0) < key.size(0)
        mask = self._mask(query, key) if cut or self.window is not None else None
        query, key, value = (tensor.permute(1, 2, 0, 3) for tensor in (query, key, value))
        arguments: dict[str, Any] = {
            "attn_mask": mask,
            "is_causal": mask is None,
            "scale": self.scale,
            "enable_gqa": query.size(1) != key.size(1),
        }
        if self.training and self.dropout > 0:
            with tensor_parallel.get_cuda_rng_tracker().fork():  # ranks of a tensor group drop different heads
                output = F.scaled_dot_product_attention(query, key, value, dropout_p=self.dropout, **arguments)
        else:
            output = F.scaled_dot_product_attention(query, key, value, **arguments)
        output = output.permute(2, 0, 1, 3)
        return (tokens_for_heads(output, self.group) if self.exchanges else output).flatten(2)

    def _mask(self, query: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
        """Which keys each query sees; a query of a zigzag slice is at the place in the sequence that it came from."""
        ranks, rank, half = key.size(0) // query.size(0), self.group.rank(), query.size(0) // 2
        mine = torch.arange(query.size(0), device=query.device)
        if ranks > 1:
            mine = torch.cat([mine[:half] + rank * half, mine[:half] + (2 * ranks - 1 - rank) * half])
        distance = mine[:, None] - torch.arange(key.size(0), device=query.device)[None]
        return (distance >= 0) & (distance <= (self.window if self.window is not None else key.size(0)))
