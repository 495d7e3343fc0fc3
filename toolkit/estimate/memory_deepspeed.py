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
from toolkit.estimate.partition import first_partition, fullest_partition
from toolkit.estimate.precision import NF4_BYTES, UNFUSED, resident_states
from toolkit.estimate.states import Share, States
from toolkit.model import ModelSpec
from toolkit.numeric import Number, maximum, minimum, where
from toolkit.strategy import Strategy
from toolkit.workload import Precision, Workload

# Beside the states, a non-fused Adam builds float32 denominators; on one flat tensor (a shard of ZeRO-1 or 2) their
# quotient too. A fused kernel builds neither.
LIST_TEMPORARY = 4.0
FLAT_TEMPORARY = 8.0


@equation("M1", "P*b/n")
def shared_bytes(parameters: Number, bytes_per_parameter: Number, ranks: Number) -> Number:
    """One kind of state of ``P`` parameters divided over ``n`` ranks. Source: ZeRO, arXiv 1910.02054, figure 1."""
    return 1.0 * parameters * bytes_per_parameter / ranks


@equation("M3", "contiguous*(1 + overlap)*b*B")
def bucket_bytes(elements: float, bytes_per_value: float, overlap: bool, contiguous: bool = True) -> float:
    """Gradient buckets of ZeRO-1 and 2: one, or two when reduction overlaps with the backward pass.

    Alive from the first backward pass to the reduction's end. Without contiguous gradients there is none.
    Source: ``stage_1_and_2.py:2192``; measured by users in microsoft/DeepSpeed#1302.
    """
    return contiguous * (1.0 + overlap) * bytes_per_value * elements


@equation("M4", "b*P where P <= live + n_max, else b*(max(live, n_max) + prefetch)")
def live_bytes(
    parameters: Number, bytes_per_value: float, live: float, prefetch: float, largest_tensor: Number
) -> Number:
    """Parameters that ZeRO-3 keeps gathered: ``stage3_max_live_parameters`` plus the prefetch, at most all.

    The prefetcher runs ahead of the modules until the limit is reached, and the tensor that crosses it is gathered
    all the same: a model whose other tensors stay below the limit is gathered whole. Source:
    ``partitioned_param_coordinator.py:453`` and ``:620``; counted in dry runs of 2 to 32 layers.
    """
    some = minimum(1.0 * parameters, maximum(1.0 * largest_tensor, live) + prefetch)
    return bytes_per_value * where(parameters <= live + largest_tensor, 1.0 * parameters, some)


@equation("M5", "b*P/h")
def secondary_bytes(parameters: Number, bytes_per_value: float, hpz: Number) -> Number:
    """Secondary copy of ZeRO++ (hpZ), whole within ``h`` ranks. Source: arXiv 2306.10209, section 3.2."""
    return where(hpz > 1, bytes_per_value * parameters / hpz, 0.0)


@equation("M6", "max(b*G_r + (4 + b)*P/W, (4 + a)*P/W)")
def partitioned_step_bytes(
    parameters: Number, ranks: Number, held: Number, bytes_per_value: float, temporary: float
) -> Number:
    """ZeRO-1 and 2 in the optimizer step: float32 gradients of the shard. Source: ``stage_1_and_2.py:3118``.

    First the kept gradients, their flat 16-bit copy and the float32 one; then the float32 gradients and what the
    optimizer allocates, ``a``: nothing in a fused Adam, else the denominators and their quotient, ``4 P / W`` each
    (a 7B on 8 V100 died in the last of these with 28.28 GiB allocated: hiyouga/LLaMA-Factory#1221).
    """
    flattening = held + (4.0 + bytes_per_value) * parameters / ranks
    return maximum(flattening, (4.0 + temporary) * parameters / ranks)


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
    per_parameter = precision.master + resident_states(workload, precision) + where(stage > 0, clone, 0.0)
    optimizer = where(offload > 0, 0.0, shared_bytes(trained, per_parameter, over))

    touching = minimum(trained, fullest_partition(share.tensors, ranks * strategy.tp))
    held = value * touching  # b G_r
    one_shard = where(offload > 0, 0.0, shared_bytes(trained, 4.0 if wide else value, ranks))
    full_wide = where(stage == 1, 4.0 * trained, where(stage == 2, shared_bytes(trained, 4.0, ranks), 0.0))
    gradients = where(stage == 3, one_shard, full_wide if wide else 0.0)

    first_copy = value * trained  # param.grad of stages 0 and 1 lives across micro batches
    partitioned = 0.0 if wide else held
    accumulated = where(stage < 2, first_copy, where(stage == 2, partitioned, 0.0))
    # in the last backward of stage 1 gradients move into the bucket; those above its size stay where they are
    bucket = float(defaults.reduce_bucket_elements(model.hidden_size))
    oversized = value * minimum(trained, 1.0 * sum(size for size in share.tensors if size > bucket))
    # where gradients accumulate, the embedding's is whole before it is added to the others
    added = where(strategy.gradient_accumulation_steps > 1, value * minimum(share.largest, trained), 0.0)
    waiting = value * minimum(share.largest, trained)  # one gradient above the bucket's size, until it is reduced
    # of stage 1's ranks the one that owns the embedding holds most: its gradient there, and as it leaves the bucket
    last = first_copy + added if wide else oversized + waiting
    # stage 2 puts the gradients of a micro batch into a tensor of their own before they are added to the others
    several = where(strategy.gradient_accumulation_steps > 1, 2.0, 1.0)
    final = where(stage == 0, first_copy + added, where(stage == 1, last, several * partitioned + waiting))
    final = where(stage == 3, 0.0, final)
    split = (stage == 1) | (stage == 2)
    # under offload such a gradient is cloned, and those of the rank's own tensors stay until they are copied out
    own = where(offload > 0, waiting, partitioned)
    # at stage 1 a gradient is added to what is there before it is copied
    one_by_one = (stage == 1) & (strategy.gradient_accumulation_steps > 1)
    together = where(one_by_one, maximum(own, waiting), own + waiting)
    head = where(split, together, where(stage == 3, waiting, 0.0))
    copied_out = where(split, partitioned + 2.0 * waiting, 0.0)
    first = value * minimum(trained, first_partition(share.tensors, ranks * strategy.tp))
    handed = where(stage == 0, first_copy, where(stage == 2, partitioned, 0.0))
    handed = where(stage == 1, first_copy if wide else first, handed)
    on_host = value * minimum(share.largest, trained)  # the buffer that each gradient is copied through
    # stage 1 moves gradients to the host after the last micro batch only
    accumulated = where((offload > 0) & (stage > 1), 0.0, accumulated)
    final = where(offload > 0, copied_out, final)

    buffers, backward = _buffers(model, strategy, share, trained, value, on_host)
    flat, several = (FLAT_TEMPORARY, LIST_TEMPORARY) if workload.optimizer in UNFUSED else (0.0, 0.0)
    split_step = partitioned_step_bytes(trained, ranks, held, value, flat)
    if wide:
        split_step = flat * trained / ranks
    whole_step = (value + (4.0 if precision.master else 0.0) + several) * trained
    group_step = sub_group_step_bytes(trained, ranks, float(defaults.SUB_GROUP_SIZE))
    if precision.master == 2.0:  # gradients have the master copy's type already
        split_step, whole_step, group_step = flat * trained / ranks, (value + several) * trained, 0.0
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
        handed=where(offload > 0, 0.0, handed),
        head=head,
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
    # in 16-bit elements: 4-bit matrices are gathered as they are packed
    everything = trained + share.frozen - share.packed * (1.0 - NF4_BYTES / value)
    live = live_bytes(everything, value, float(defaults.MAX_LIVE_PARAMETERS), prefetch, share.largest)
    secondary = secondary_bytes(everything, value, strategy.hpz)
    persistent = value * share.small
    # stage 3 allocates its bucket once, whatever the overlap (stage3.py:782)
    third = bucket_bytes(bucket, value, overlap=False) + live + secondary + persistent
    buckets = bucket_bytes(minimum(bucket, trained), value, defaults.OVERLAP_COMM, defaults.CONTIGUOUS_GRADIENTS)
    # made in the first backward; stage 2 frees them after every micro batch, stage 1 after the last one
    keeps = (stage == 1) & (strategy.gradient_accumulation_steps > 1)
    split = where(keeps, buckets, 0.0) + where((strategy.offload > 0) & (stage > 0), on_host, 0.0)
    flat = value * minimum(1.0 * trained, bucket)  # stage 0 flattens one bucket for its all-reduce
    backward = where(((stage == 1) | (stage == 2)) & (keeps == 0), buckets, 0.0)
    return where(stage == 3, third, where(stage == 0, flat, split)), backward
