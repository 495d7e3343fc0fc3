"""Bytes of a DeepSpeed 0.19.8 engine by part, each storage once, whichever optimizer class holds it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import torch

from toolkit.verify.live import local

# attributes of DeepSpeed's optimizers (stage_1_and_2.py, stage3.py, bf16_optimizer.py, fp16 optimizers), in order:
# a storage counts for the first part that holds it
FLAT_PARAMETERS = ("bit16_groups_flat", "lp_param_buffer", "bf16_groups_flat", "fp16_groups_flat")
MASTER = (
    "single_partition_of_fp32_groups",
    "fp32_partitioned_groups_flat",
    "fp32_groups_flat_partition",
    "fp32_groups_flat",
    "fp32_groups",
    "fp32_param_groups",
)
GRADIENTS = (
    "grad_partitions_flat_buffer",
    "grads_in_partition",
    "all_grad_tensors",
    "averaged_gradients",
    "fp32_groups_gradients_flat",
    "fp32_groups_gradient_flat_partition",
    "fp32_groups_gradients",
    "fp32_groups_actual_gradients",
)


def leaves(value: Any) -> Iterator[torch.Tensor]:
    """Tensors in nested lists and dictionaries; a flat partition object gives its tensor."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, dict):
        for inner in value.values():
            yield from leaves(inner)
    elif isinstance(value, (list, tuple)):
        for inner in value:
            yield from leaves(inner)
    elif hasattr(value, "flat_partition"):
        yield from leaves(value.flat_partition)


def states(engine: Any) -> list[torch.Tensor]:
    """Master copies, their gradients, and the moments of the optimizer inside the engine."""
    inner = getattr(engine.optimizer, "optimizer", engine.optimizer)
    master = [tensor for name in MASTER for tensor in leaves(getattr(engine.optimizer, name, None))]
    gradients = [tensor.grad for tensor in master if tensor.grad is not None]
    moments = [tensor for state in getattr(inner, "state", {}).values() for tensor in leaves(state)]
    return master + gradients + moments


def holders(engine: Any) -> dict[str, list[torch.Tensor]]:
    """The engine's tensors by part."""
    optimizer = engine.optimizer
    parameters = list(engine.module.parameters())

    def named(names: tuple[str, ...]) -> list[torch.Tensor]:
        return [tensor for name in names for tensor in leaves(getattr(optimizer, name, None))]

    sharded = [tensor for p in parameters for tensor in leaves(getattr(p, "ds_tensor", None))]
    second = [tensor for p in parameters for tensor in leaves(getattr(p, "ds_secondary_tensor", None))]
    master = named(MASTER)
    buckets = [bucket.buffer for bucket in getattr(optimizer, "ipg_buckets", {}).values()]
    buckets.append(getattr(optimizer, "temp_grad_buffer_for_gpu_offload", None))
    whole = [parameter.data for parameter in parameters]
    gradients = [p.grad for p in parameters if p.grad is not None]
    accumulated = [tensor for p in parameters for tensor in leaves(getattr(p, "grad_accum", None))]
    return {
        "buckets": list(leaves(buckets)),
        "parameters": named(FLAT_PARAMETERS) + sharded + ([] if sharded else whole),
        "secondary": second,
        "gathered": whole if sharded else [],
        "gradients": gradients + accumulated + named(GRADIENTS) + [t.grad for t in master if t.grad is not None],
        "optimizer": states(engine),
    }


def bytes_by_part(parts: dict[str, list[torch.Tensor]], elsewhere: Iterable[int] = ()) -> dict[str, int]:
    """Bytes of distinct storages, each counted for the first part that holds it; not those that are elsewhere."""
    seen = set(elsewhere)
    counted = {}
    for name, tensors in parts.items():
        counted[name] = 0
        for tensor in tensors:
            storage = local(tensor).untyped_storage()
            if storage._cdata not in seen:
                seen.add(storage._cdata)
                counted[name] += storage.nbytes()
    return counted
