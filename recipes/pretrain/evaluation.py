"""The mean loss of held-out sequences, the same on every layout."""

from __future__ import annotations

import math
from typing import Any

import torch
from megatron.core import parallel_state
from megatron.core.pipeline_parallel import get_forward_backward_func

from recipes.pretrain import forward
from recipes.pretrain.config import CoreConfig
from recipes.pretrain.data import Sequences, evaluation_batches
from recipes.pretrain.model import Built


def mean_loss(built: Built, core: CoreConfig, held_out: Sequences | None, most: int, device: str) -> float | None:
    """Loss per token of the first ``most`` held-out sequences, on every rank; None where there are none.

    Each sequence counts once, however many ranks there are: the batches that they do not fill are filled with
    sequences of weight 0.
    """
    count = min(most, len(held_out)) if held_out is not None else 0
    if held_out is None or count <= 0:
        return None
    size = core.training.micro_batch_size
    ranks, rank = parallel_state.get_data_parallel_world_size(), parallel_state.get_data_parallel_rank()
    several = len(built.chunks) > 1
    # an interleaved pipeline takes its micro-batches in groups
    group = core.transformer.get("microbatch_group_size_per_vp_stage") or core.parallel["pipeline_model_parallel_size"]
    batches = math.ceil(count / (size * ranks))
    batches = math.ceil(batches / group) * group if several else batches
    streams = [evaluation_batches(held_out, count, batches, size, ranks, rank) for _ in built.chunks]
    for chunk in built.chunks:
        chunk.eval()
    with torch.no_grad():
        results: list[dict[str, Any]] = get_forward_backward_func()(
            forward_step_func=forward.forward_step(device),
            data_iterator=streams if several else streams[0],
            model=built.chunks if several else built.chunks[0],
            num_microbatches=batches,
            seq_length=core.training.sequence_length,
            micro_batch_size=size,
            forward_only=True,
        )
    for chunk in built.chunks:
        chunk.train()
    return forward.mean_loss(results, device)
