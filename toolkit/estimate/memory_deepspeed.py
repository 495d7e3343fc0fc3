"""Equations M1..M7: what DeepSpeed's ZeRO stages keep on the device, as measured in DeepSpeed 0.19.8.

The byte counts were taken from real engines (4 ranks, and one process on a fake group at 64), category by
category; the lines are of DeepSpeed 0.19.8. Padding to ``2 W`` elements (``stage_1_and_2.py:441``) and to ``W``
per tensor (``partition_parameters.py:1690``) is left out: it is below one element in a thousand.

``P`` trained parameters, ``W`` ranks that share them, ``B`` elements of a gradient bucket, ``b`` bytes of a
16-bit (or float32) value.
"""

from __future__ import annotations

from toolkit import deepspeed_defaults as defaults
from toolkit.equation import equation
from toolkit.estimate.precision import NF4_BYTES
from toolkit.estimate.states import Share, States
from toolkit.model import ModelSpec
from toolkit.numeric import Number, maximum, minimum, where
from toolkit.strategy import Strategy
from toolkit.workload import Precision, Workload

# Beside the states, a non-fused Adam builds float32 denominators; on one flat tensor (a shard of ZeRO-1 or 2) their
# quotient too. A fused kernel builds neither: where the step is the peak, these figures are an upper bound.
LIST_TEMPORARY = 4.0
FLAT_TEMPORARY = 8.0


@equation("M1", "P*b/n")
def shared_bytes(parameters: Number, bytes_per_parameter: Number, ranks: Number) -> Number:
    """One kind of state of ``P`` parameters divided over ``n`` ranks. Source: ZeRO, arXiv 1910.02054, figure 1."""
    return 1.0 * parameters * bytes_per_parameter / ranks


@equation("M2", "min(P, P/W + n_max)")
def fullest_partition(parameters: Number, ranks: Number, largest_tensor: Number) -> Number:
    """Elements of whole tensors that touch the fullest rank's partition (ZeRO-1 and 2): an upper bound.

    Source: ``stage_1_and_2.py:1016``: a rank keeps the full gradient of every tensor that reaches into its shard, so
    with many ranks the embedding alone counts (1,050,673,152 bytes on rank 0 of Llama-3-8B at W = 64, where
    2 P / W is 250,945,664).
    """
    return minimum(1.0 * parameters, 1.0 * parameters / ranks + largest_tensor)


@equation("M3", "contiguous*(1 + overlap)*b*B")
def bucket_bytes(elements: float, bytes_per_value: float, overlap: bool, contiguous: bool = True) -> float:
    """Gradient buckets of ZeRO-1 and 2: one, or two when reduction overlaps with the backward pass.

    Alive from the first backward pass to the reduction's end. Without contiguous gradients there is none.
    Source: ``stage_1_and_2.py:2192``; measured by users in microsoft/DeepSpeed#1302.
    """
    return contiguous * (1.0 + overlap) * bytes_per_value * elements


@equation("M4", "b*max(min(P, live + prefetch), n_max + prefetch)")
def live_bytes(
    parameters: Number, bytes_per_value: float, live: float, prefetch: float, largest_tensor: Number
) -> Number:
    """Parameters that ZeRO-3 keeps gathered: ``stage3_max_live_parameters`` plus the prefetch, at most all.

    A tensor larger than that limit is gathered all the same. Source: ``partitioned_param_coordinator.py:116``.
    """
    gathered = minimum(1.0 * parameters, live + prefetch)
    return bytes_per_value * maximum(gathered, minimum(1.0 * parameters, largest_tensor + prefetch))


@equation("M5", "b*P/h")
def secondary_bytes(parameters: Number, bytes_per_value: float, hpz: Number) -> Number:
    """Secondary copy of ZeRO++ (hpZ), whole within ``h`` ranks. Source: arXiv 2306.10209, section 3.2."""
    return where(hpz > 1, bytes_per_value * parameters / hpz, 0.0)


@equation("M6", "max(b*G_r + (4 + b)*P/W, (4 + 8)*P/W)")
def partitioned_step_bytes(parameters: Number, ranks: Number, held: Number, bytes_per_value: float) -> Number:
    """ZeRO-1 and 2 in the optimizer step: float32 gradients of the shard. Source: ``stage_1_and_2.py:3118``.

    First the kept gradients, their flat 16-bit copy and the float32 one; then, in a non-fused Adam, the float32
    gradients, the denominators and their quotient, ``4 P / W`` each (a 7B on 8 V100 died in the last of these
    with 28.28 GiB allocated: hiyouga/LLaMA-Factory#1221).
    """
    flattening = held + (4.0 + bytes_per_value) * parameters / ranks
    return maximum(flattening, (4.0 + FLAT_TEMPORARY) * parameters / ranks)


@equation("M7", "4*min(P/W, sub_group)")
def sub_group_step_bytes(parameters: Number, ranks: Number, sub_group: float) -> Number:
    """ZeRO-3 in the optimizer step: float32 gradients of one sub group, updated by a fused Adam.

    Source: ``stage3.py:2683``; a 6.86B on 4 H100 with DeepSpeed's fused Adam peaked at 31.4 GiB.
    """
    return 4.0 * minimum(1.0 * parameters / ranks, sub_group)


def deepspeed_states(
    model: ModelSpec, workload: Workload, strategy: Strategy, share: Share, precision: Precision
) -> States:
    """States of every ZeRO stage, with what offload moves to the host taken away."""
    trained = share.trained + share.experts
    ranks = 1.0 * strategy.dp * strategy.cp
    stage, offload = strategy.zero_stage, strategy.offload
    value = precision.parameters
    wide = workload.gradient_accumulation_dtype == "fp32" and precision.master > 0.0
    # without a 16-bit copy ZeRO 1-3 still clone their shard (stage_1_and_2.py:560, stage3.py:1163)
    clone = 0.0 if precision.master else 4.0
    over = where(stage > 0, ranks, 1.0)
    all_over = where(stage == 3, ranks, 1.0)

    parameters = shared_bytes(trained, value, all_over) + _frozen_bytes(share, value, all_over)
    parameters = where(offload == 2, 0.0, parameters)
    per_parameter = precision.master + precision.optimizer_states + where(stage > 0, clone, 0.0)
    optimizer = where(offload > 0, 0.0, shared_bytes(trained, per_parameter, over))

    held = value * fullest_partition(trained, ranks, share.largest)  # b G_r
    one_shard = where(offload > 0, 0.0, shared_bytes(trained, 4.0 if wide else value, ranks))
    full_wide = where(stage == 1, 4.0 * trained, where(stage == 2, shared_bytes(trained, 4.0, ranks), 0.0))
    gradients = where(stage == 3, one_shard, full_wide if wide else 0.0)

    first_copy = value * trained  # param.grad of stages 0 and 1 lives across micro batches
    partitioned = 0.0 if wide else held
    accumulated = where(stage < 2, first_copy, where(stage == 2, partitioned, 0.0))
    final = where(stage == 0, first_copy, where(stage == 1, first_copy + partitioned, accumulated))
    on_host = value * minimum(share.largest, trained)  # the buffer that each gradient is copied through
    accumulated = where(offload > 0, 0.0, accumulated)
    final = where(offload > 0, 0.0, final)

    buffers, backward = _buffers(model, strategy, share, trained, value, on_host)
    split_step = FLAT_TEMPORARY * trained / ranks if wide else partitioned_step_bytes(trained, ranks, held, value)
    whole_step = (value + (4.0 if precision.master else 0.0) + LIST_TEMPORARY) * trained
    group_step = sub_group_step_bytes(trained, ranks, float(defaults.SUB_GROUP_SIZE))
    step = where(stage == 0, whole_step, where(stage == 3, group_step, split_step))
    return States(
        parameters=parameters,
        optimizer=optimizer,
        gradients=gradients,
        buffers=buffers,
        accumulated=accumulated,
        final=final,
        backward=backward,
        step=where(offload > 0, 0.0, step),
    )


def _frozen_bytes(share: Share, value: float, ranks: Number) -> Number:
    return shared_bytes(share.frozen - share.packed, value, ranks) + shared_bytes(share.packed, NF4_BYTES, ranks)


def _buffers(
    model: ModelSpec, strategy: Strategy, share: Share, trained: Number, value: float, on_host: Number
) -> tuple[Number, Number]:
    """Buffers that stay, and those of a layer's backward."""
    stage = strategy.zero_stage
    bucket = float(defaults.reduce_bucket_elements(model.hidden_size))
    prefetch = float(defaults.prefetch_bucket_elements(model.hidden_size))
    everything = trained + share.frozen
    live = live_bytes(everything, value, float(defaults.MAX_LIVE_PARAMETERS), prefetch, share.largest)
    secondary = secondary_bytes(everything, value, strategy.hpz)
    persistent = value * share.small
    # stage 3 allocates its bucket once, whatever the overlap (stage3.py:782)
    third = bucket_bytes(bucket, value, overlap=False) + live + secondary + persistent
    split = bucket_bytes(minimum(bucket, trained), value, defaults.OVERLAP_COMM, defaults.CONTIGUOUS_GRADIENTS)
    split = split + where((strategy.offload > 0) & (stage > 0), on_host, 0.0)
    flat = value * minimum(1.0 * trained, bucket)  # stage 0 flattens one bucket for its all-reduce
    buffers = where(stage == 3, third, where(stage == 0, flat, split))
    return buffers, 0.0 * buffers
