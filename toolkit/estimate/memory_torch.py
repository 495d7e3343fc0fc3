"""Equations M9..M10: states of PyTorch's DDP and FSDP2 as the Hugging Face Trainer runs them."""

from __future__ import annotations

from toolkit.equation import equation
from toolkit.estimate.precision import NF4_BYTES, UNFUSED, resident_states, value_bytes
from toolkit.estimate.states import Share, States
from toolkit.model import ModelSpec
from toolkit.numeric import Number, maximum, minimum, where
from toolkit.strategy import Strategy
from toolkit.workload import Precision, Workload


@equation("M9", "2*P_matrices")
def autocast_bytes(matrices: Number) -> Number:
    """16-bit casts of float32 weights that autocast keeps for the backward pass. Source: weight cache of torch.amp."""
    return 2.0 * matrices


@equation("M10", "3*b*P_l + r*max(P_l, P_tail) + (r + 4)*P_l/W")
def layer_backward_bytes(
    layer: Number, tail: Number, bytes_per_value: float, reduced_bytes: float, shard_bytes: Number
) -> Number:
    """FSDP2 while a layer's backward runs: the layer gathered, the next one's all-gather output, this one's gradients,
    and the input of the reduce-scatter before it, which for the last layer is that of the tail (norm and head); and
    what leaves the reduce-scatter, in its own type and as the float32 shard that is added to the gradient.

    Source: torch 2.13, ``distributed/fsdp/_fully_shard/_fsdp_param_group.py``; counted in dry runs of it. Where the
    tail is smaller than a layer this is more than the last layer needs, by their difference in one reduction.
    """
    return bytes_per_value * (3.0 * layer) + reduced_bytes * maximum(layer, tail) + shard_bytes * layer


@equation("M20", "2*b*P_tail; backward b*P_tail; reduced (b + r)*P_tail + b*P_l + (r + 4)*P_tail/W")
def tail_bytes(
    layer: Number, tail: Number, bytes_per_value: float, reduced_bytes: float, shard_bytes: Number
) -> tuple[Number, Number, Number]:
    """FSDP2's last unit: while the loss is computed, while its gradient is, and while the unit's gradient is reduced.

    accelerate 1.15 shards the embedding alone and ``[norm, head]`` as a unit that is not resharded after the forward
    pass; with tied weights all three. The output of its all-gather lives beside the gathered parameters until the
    forward pass ends (``wait_for_unshard``: freed after the next unit's copy, and there is none). Source: accelerate
    1.15 ``utils/fsdp_utils.py:857-885``; torch 2.13 ``_fsdp_param_group.py``.
    """
    once = bytes_per_value * tail
    return 2.0 * once, once, (bytes_per_value + reduced_bytes + shard_bytes) * tail + bytes_per_value * layer


def ddp_states(model: ModelSpec, workload: Workload, strategy: Strategy, share: Share, precision: Precision) -> States:
    """Replicated float32 parameters, autocast, and DDP's buckets (a second copy of the gradients).

    ``gradient_as_bucket_view`` is false in the Hugging Face Trainer, so gradients and buckets both exist; with
    one rank there are no buckets. The fused AdamW of transformers 5.24 has no temporaries.
    """
    trained = share.trained + share.experts
    value = value_bytes(workload)
    base = value * (share.frozen - share.packed) + NF4_BYTES * share.packed
    # a look-up in the token table casts nothing; a head that is tied to it does
    table = share.root - share.tail if workload.method == "full" else 0.0
    matrices = maximum(trained - share.small - table, 0.0)
    casts = autocast_bytes(matrices) if value < precision.parameters else 0.0
    gradients = precision.gradients * trained
    last = minimum(share.largest, trained)  # the embedding's gradient is whole before it is added to the others
    return States(
        parameters=precision.parameters * trained + base,
        optimizer=(precision.master + resident_states(workload, precision)) * trained,
        gradients=0.0,
        buffers=where(strategy.dp * strategy.cp > 1, gradients, 0.0),
        accumulated=gradients,
        final=gradients + where(strategy.gradient_accumulation_steps > 1, precision.gradients * last, 0.0),
        backward=0.0,
        step=gradients + unfused_bytes(workload, precision) * trained,
        handed=gradients,
        casts=casts,
    )


def fsdp_states(model: ModelSpec, workload: Workload, strategy: Strategy, share: Share, precision: Precision) -> States:
    """Fully sharded (within ``dp_shard`` ranks, replicated between such groups): a unit for each layer, one for the
    embedding, and the tail of final norm and head.

    The tail stays gathered from forward to backward; layers and embedding are resharded after the forward pass.
    Gradients are reduced to shards after every micro batch (``sync_each_batch``), in the type that
    :func:`reduction_bytes` says. Source: accelerate 1.15; counted in dry runs (4 P/W parameters, 8 P/W states).
    """
    ranks = 1.0 * strategy.dp_shard * strategy.cp
    trained = share.trained + share.experts
    value = value_bytes(workload)
    base = value * (share.frozen - share.packed) + NF4_BYTES * share.packed
    gradients = precision.gradients * trained / ranks
    everything = trained + share.frozen
    reduced = trained / everything  # only what is trained has gradients to reduce
    wire = reduction_bytes(workload)
    # 4-bit matrices are gathered as they are packed, and made whole one by one
    layer, tail = share.layer * (NF4_BYTES / value if workload.method == "qlora" else 1.0), share.tail
    # stage 2 (reshard_after_forward off) keeps every unit gathered from forward to backward, and fetches none again
    kept_gathered = strategy.zero_stage == 2
    shards = reduced * (wire + precision.gradients) / ranks
    loss, loss_backward, head = tail_bytes(layer, tail, value, reduced * wire, shards)
    backward = layer_backward_bytes(layer, tail, value, reduced * wire, shards)
    backward = backward - value * layer * where(kept_gathered, 2.0, 0.0)
    embedding = maximum(
        ((value + wire) * reduced + shards) * (share.root - tail) - backward, 0.0
    )  # its gradient comes last
    on_device = where(strategy.offload == 2, 0.0, 1.0)  # cpu_offload moves shards, gradients and states
    return States(
        parameters=on_device * (precision.parameters * trained + base) / ranks,
        optimizer=on_device * (precision.master + resident_states(workload, precision)) * trained / ranks,
        gradients=0.0,
        buffers=where(kept_gathered, value * maximum(everything - tail, 0.0), 0.0),
        accumulated=on_device * gradients,
        final=on_device * gradients + embedding,
        backward=backward,
        step=on_device * (gradients + unfused_bytes(workload, precision) * trained / ranks),
        loss=loss,
        loss_backward=loss_backward,
        head=head,
        handed=on_device * gradients,
    )


def unfused_bytes(workload: Workload, precision: Precision) -> float:
    """Denominators that torch.optim's AdamW builds for all parameters at once unless it is fused, per parameter.

    Source: torch 2.13 ``optim/adam.py``, ``_multi_tensor_adam``.
    """
    return precision.parameters if workload.optimizer in UNFUSED else 0.0


def reduction_bytes(workload: Workload) -> float:
    """Bytes per gradient that FSDP reduces: accelerate sets ``reduce_dtype`` to the compute type, torchtitan float32.

    Source: accelerate 1.15 ``set_mixed_precision``; torchtitan ``mixed_precision_reduce``.
    """
    return 4.0 if workload.gradient_accumulation_dtype == "fp32" else value_bytes(workload)
