"""Heads for tokens: the all-to-alls of DeepSpeed-Ulysses (arXiv 2309.14509), megatron-core's cp_comm_type ``a2a``.

Context-parallel ranks hold zigzag slices of a sequence (rank ``r`` of ``n`` the chunks ``r`` and ``2 n - 1 - r`` of
``2 n``) with every head. After :func:`heads_for_tokens` each has its part of the heads with every token, in order.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist


class _Exchange(torch.autograd.Function):
    """Part ``i`` goes to rank ``i``; its own inverse, so gradients go back the same way."""

    @staticmethod
    def forward(ctx: Any, parts: torch.Tensor, group: Any) -> torch.Tensor:
        ctx.group = group
        received = torch.empty_like(parts, memory_format=torch.contiguous_format)
        dist.all_to_all_single(received, parts.contiguous(), group=group)
        return received

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:  # type: ignore[override]
        received = torch.empty_like(gradient, memory_format=torch.contiguous_format)
        dist.all_to_all_single(received, gradient.contiguous(), group=ctx.group)
        return received, None


def in_order(parts: torch.Tensor) -> torch.Tensor:
    """Zigzag slices ``[n, 2c, ...]`` back to the true order ``[n * 2c, ...]``: rank r holds chunks r and 2n-1-r."""
    ranks, half = parts.size(0), parts.size(1) // 2
    chunks = [parts[rank, :half] for rank in range(ranks)] + [parts[rank, half:] for rank in reversed(range(ranks))]
    return torch.cat(chunks)


def zigzag(tensor: torch.Tensor, ranks: int) -> torch.Tensor:
    """The inverse: ``[n * 2c, ...]`` in order, as the slices ``[n, 2c, ...]`` of the ranks."""
    chunks = tensor.chunk(2 * ranks)
    return torch.stack([torch.cat((chunks[rank], chunks[2 * ranks - 1 - rank])) for rank in range(ranks)])


def heads_for_tokens(tensor: torch.Tensor, group: Any) -> torch.Tensor:
    """``[s / n, b, heads, d]`` of a slice to ``[s, b, heads / n, d]`` in order."""
    parts = tensor.unflatten(2, (group.size(), -1)).movedim(2, 0)
    return in_order(_Exchange.apply(parts, group))


def tokens_for_heads(tensor: torch.Tensor, group: Any) -> torch.Tensor:
    """``[s, b, heads / n, d]`` back to ``[s / n, b, heads, d]``."""
    parts = _Exchange.apply(zigzag(tensor, group.size()), group)
    return parts.movedim(0, 2).flatten(2, 3)
