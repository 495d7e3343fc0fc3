"""Equations M9..M10: states of PyTorch's DDP and FSDP2 as the Hugging Face Trainer runs them."""

from __future__ import annotations

from toolkit.equation import equation
from toolkit.estimate.precision import NF4_BYTES, value_bytes
from toolkit.estimate.states import Share, States
from toolkit.model import ModelSpec
from toolkit.numeric import Number, maximum, where
from toolkit.strategy import Strategy
from toolkit.workload import Precision, Workload


@equation("M9", "2*P_matrices")
def autocast_bytes(matrices: Number) -> Number:
    """16-bit casts of float32 weights that autocast keeps for the backward pass. Source: weight cache of torch.amp."""
    return 2.0 * matrices


@equation("M10", "b*(3*P_l + P_head) + 4*P_l")
def layer_backward_bytes(layer: Number, head: Number, bytes_per_value: float) -> Number:
    """FSDP2 while a layer's backward runs, beside the layer gathered in the forward pass.

    The next layer's all-gather output, its copy, this layer's 16-bit gradients and the previous one's float32
    reduce-scatter input; the head's gradient waits for the root unit. Source: torch 2.13,
    ``distributed/fsdp/_fully_shard/_fsdp_param_group.py``.
    """
    return bytes_per_value * (3.0 * layer + head) + 4.0 * layer


def ddp_states(model: ModelSpec, workload: Workload, strategy: Strategy, share: Share, precision: Precision) -> States:
    """Replicated float32 parameters, autocast, and DDP's buckets (a second copy of the gradients).

    ``gradient_as_bucket_view`` is false in the Hugging Face Trainer, so gradients and buckets both exist; with
    one rank there are no buckets. The fused AdamW of transformers 5.24 has no temporaries.
    """
    trained = share.trained + share.experts
    value = value_bytes(workload)
    base = value * (share.frozen - share.packed) + NF4_BYTES * share.packed
    casts = autocast_bytes(maximum(trained - share.small, 0.0)) if value < precision.parameters else 0.0
    gradients = precision.gradients * trained
    return States(
        parameters=precision.parameters * trained + base + casts,
        optimizer=(precision.master + precision.optimizer_states) * trained,
        gradients=0.0,
        buffers=where(strategy.dp * strategy.cp > 1, gradients, 0.0),
        accumulated=gradients,
        final=gradients,
        backward=0.0,
        step=gradients,
    )


def fsdp_states(model: ModelSpec, workload: Workload, strategy: Strategy, share: Share, precision: Precision) -> States:
    """Fully sharded (within ``dp_shard`` ranks, replicated between such groups), one unit per layer and a root.

    The root unit (embedding, head, final norm) stays gathered from forward to backward; layers are resharded
    after the forward pass. Gradients are reduced to shards after every micro batch (``sync_each_batch``).
    Parameters are gathered in 16 bits and reduced in float32 (measured: 4 P/W parameters, 8 P/W states).
    """
    ranks = 1.0 * strategy.dp_shard * strategy.cp
    trained = share.trained + share.experts
    value = value_bytes(workload)
    base = value * (share.frozen - share.packed) + NF4_BYTES * share.packed
    gradients = precision.gradients * trained / ranks
    frozen_share = share.frozen / (trained + share.frozen)
    layer, root = share.layer, share.root
    reduced = 1.0 - frozen_share  # only what is trained has gradients to reduce
    # stage 2 (reshard_after_forward off) keeps every layer gathered from forward to backward
    everything = value * (trained + share.frozen)
    gathered = where(strategy.zero_stage == 2, everything, value * (root + layer))
    on_device = where(strategy.offload == 2, 0.0, 1.0)  # cpu_offload moves shards, gradients and states
    return States(
        parameters=on_device * (precision.parameters * trained + base) / ranks,
        optimizer=on_device * (precision.master + precision.optimizer_states) * trained / ranks,
        gradients=0.0,
        buffers=gathered,
        accumulated=on_device * gradients,
        final=on_device * gradients + reduced * (value + 4.0) * root,
        backward=reduced * layer_backward_bytes(layer, share.largest, value),
        step=on_device * gradients,
    )
