"""One optimizer step of a pretraining run: a global batch through the library's schedule, and the update."""

from __future__ import annotations

from typing import Any

from megatron.core import parallel_state
from megatron.core.pipeline_parallel import get_forward_backward_func

from recipes.pretrain import data, forward
from recipes.pretrain.config import CoreConfig
from recipes.pretrain.model import Built
from recipes.step_clock import FORWARD_BACKWARD, OPTIMIZER, OTHER, StepClock
from recipes.stragglers import OwnSeconds


def optimizer_step(
    built: Built,
    core: CoreConfig,
    sequences: data.Sequences,
    batch: int,
    device: str,
    clock: StepClock,
    own: OwnSeconds,
) -> tuple[float, Any, list[Any]]:
    """One global batch through the library's schedule and one update.

    The mean loss per token, the gradient norm, and of each micro batch the sum of its losses, where this rank has them.
    """
    training = core.training
    ranks, rank = parallel_state.get_data_parallel_world_size(), parallel_state.get_data_parallel_rank()
    for chunk in built.chunks:
        chunk.zero_grad_buffer()
    built.optimizer.zero_grad()
    clock.enter(FORWARD_BACKWARD)
    batches = [
        clock.reads(own.reads(data.micro_batches(sequences, batch, training, ranks, rank))) for _ in built.chunks
    ]
    several = len(built.chunks) > 1  # the interleaved schedule takes lists, the others one of each
    results = get_forward_backward_func()(
        forward_step_func=forward.forward_step(device, own),
        data_iterator=batches if several else batches[0],
        model=built.chunks if several else built.chunks[0],
        num_microbatches=training.global_batch_size // (training.micro_batch_size * ranks),
        seq_length=training.sequence_length,
        micro_batch_size=training.micro_batch_size,
        forward_only=False,
    )
    clock.enter(OPTIMIZER)
    _, gradient_norm, _ = built.optimizer.step()
    clock.enter(OTHER)
    return forward.mean_loss(results, device), gradient_norm, [each["loss"][0] for each in results]
