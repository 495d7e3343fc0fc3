"""The mean loss of held-out sequences, the same on every layout."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from megatron.core import parallel_state
from megatron.core.pipeline_parallel import get_forward_backward_func

from recipes.pretrain import forward
from recipes.pretrain.config import CoreConfig
from recipes.pretrain.data import Sequences, evaluation_batches
from recipes.pretrain.model import Built

FILLED = 4  # times as many micro batches as stages at once: one part in five of the time is the pipeline's filling


def mean_loss(
    built: Built,
    core: CoreConfig,
    held_out: Sequences | None,
    most: int,
    device: str,
    asked: Callable[[], bool] = lambda: False,
) -> float | None:
    """Loss per token of the first ``most`` held-out sequences, on every rank; None where there are none.

    None too where ``asked`` says, on all ranks alike, that the run is to stop: that is looked at before each batch, or
    in a pipeline before each ``FILLED`` times as many as it has stages, so that it is filled most of the time.

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
    stages = core.parallel["pipeline_model_parallel_size"]
    most_at_once = 1 if stages == 1 else math.ceil(FILLED * stages / group) * group
    results: list[dict[str, Any]] = []
    stopped = False
    with torch.no_grad():
        for first in range(0, batches, most_at_once):
            if stopped := asked():
                break
            results += get_forward_backward_func()(
                forward_step_func=forward.forward_step(device),
                data_iterator=streams if several else streams[0],
                model=built.chunks if several else built.chunks[0],
                num_microbatches=min(most_at_once, batches - first),
                seq_length=core.training.sequence_length,
                micro_batch_size=size,
                forward_only=True,
            )
    for chunk in built.chunks:
        chunk.train()
    return None if stopped else forward.mean_loss(results, device)
