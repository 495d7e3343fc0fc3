"""Why two frameworks differ in time whatever the layout: the programs that run under them."""

from __future__ import annotations

from toolkit.estimate.layer_bytes import FUSED_LAYERS
from toolkit.search.request import Request


def programs(request: Request, one: str, other: str) -> str:
    """What of the programs, not of the degrees, makes plans of two frameworks differ; empty where nothing does."""
    if one == other:
        return ""
    workload = request.workload
    if "megatron" in (one, other):
        if workload.kernels in (*FUSED_LAYERS, "unfused"):
            return ""
        return "Megatron's layers are fused kernels, those of Hugging Face models eager ones"
    if "ddp" not in (one, other) or workload.precision == "fp32" or workload.weights != "default":
        return ""
    rest = {"deepspeed": "DeepSpeed", "fsdp": "FSDP"}[other if one == "ddp" else one]
    if workload.method != "full":
        if rest == "FSDP":
            return ""
        return "DDP keeps adapters in float32 and casts around them, DeepSpeed casts them to 16 bits once"
    return f"DDP casts float32 weights and activations as it goes (autocast), under {rest} layers are 16-bit throughout"
