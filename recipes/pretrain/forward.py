"""One forward pass and its loss, as megatron-core's pipeline schedules want them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from megatron.core import parallel_state

from recipes.stragglers import OwnSeconds


def context_slice(batch: dict[str, torch.Tensor], ranks: int, rank: int) -> dict[str, torch.Tensor]:
    """The part of this context-parallel rank of ``[b, s]`` tensors: chunks ``rank`` and ``2 n - 1 - rank`` of 2 n.

    The zigzag gives every rank the same number of causal pairs. (The library's own
    ``get_batch_on_this_cp_rank`` changes its signature after 0.16.)
    """
    if ranks == 1:
        return batch
    pieces = {name: tensor.chunk(2 * ranks, dim=1) for name, tensor in batch.items()}
    return {name: torch.cat([piece[rank], piece[2 * ranks - 1 - rank]], dim=1) for name, piece in pieces.items()}


def forward_step(device: str, own: OwnSeconds | None = None) -> Callable[[Iterator[dict[str, torch.Tensor]], Any], Any]:
    """The schedules' ``forward_step_func``: model output and the function that makes a loss of it; timed by ``own``."""

    def step(batches: Iterator[dict[str, torch.Tensor]], model: Any) -> Any:
        ranks, rank = parallel_state.get_context_parallel_world_size(), parallel_state.get_context_parallel_rank()
        batch = {name: tensor.to(device) for name, tensor in context_slice(next(batches), ranks, rank).items()}
        if own is not None:
            own.begin_forward()
        output = model(batch["tokens"], batch["position_ids"], None, labels=batch["labels"])
        if own is not None:
            own.end_forward()
        return output, lambda losses: token_losses(losses, batch["loss_mask"])

    return step


def token_losses(
    losses: torch.Tensor, mask: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, dict[str, torch.Tensor]]:
    """Sum of this rank's token losses, their number, and both for the report.

    The library divides: by the tokens of the micro-batch or, with ``calculate_per_token_loss``, by those
    of the whole step.
    """
    total = (losses.float().view(-1) * mask.reshape(-1)).sum()
    count = mask.sum()
    return total, count.to(torch.int), {"loss": torch.stack([total.detach(), count])}


def mean_loss(results: list[dict[str, torch.Tensor]], device: str) -> float:
    """Mean loss per token over all micro-batches and ranks; the same number on every rank."""
    sums = torch.zeros(2, device=device)
    if parallel_state.is_pipeline_last_stage(ignore_virtual=True):
        sums = torch.stack([result["loss"] for result in results]).sum(0)
        torch.distributed.all_reduce(sums, group=parallel_state.get_data_parallel_group(with_context_parallel=True))
    if parallel_state.get_pipeline_model_parallel_world_size() > 1:
        torch.distributed.broadcast(
            sums,
            parallel_state.get_pipeline_model_parallel_last_rank(),
            group=parallel_state.get_pipeline_model_parallel_group(),
        )
    return float(sums[0] / sums[1])
