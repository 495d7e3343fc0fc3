"""Machines and models built by hand, so that these tests do not move with the registry."""

from __future__ import annotations

from typing import Any

from toolkit.cluster import Accelerator, ClusterSpec, Link
from toolkit.estimate.communication import communication
from toolkit.estimate.step import step
from toolkit.estimates import CommunicationEstimate, StepEstimate
from toolkit.model import ModelSpec
from toolkit.registry.calibrations import load_calibration
from toolkit.strategy import Strategy
from toolkit.workload import Workload

A100 = Accelerator(
    name="a100-sxm4-80gb",
    architecture="ampere",
    memory_bytes=85e9,
    memory_bandwidth_bytes_per_second=2.039e12,
    peak_flop_per_second={"bf16": 312e12, "fp16": 312e12, "fp32": 19.5e12},
    achievable_flop_per_second={"bf16": 271.2e12},
    host_link_bytes_per_second=31e9,
    source="NVIDIA A100 data sheet; stas00/ml-engineering MAMF",
)
CPU = Accelerator(
    name="cpu",
    architecture="cpu",
    memory_bytes=8e9,
    memory_bandwidth_bytes_per_second=20e9,
    peak_flop_per_second={"fp32": 5e10, "bf16": 5e10},
    source="assumed",
)
CALIBRATION = load_calibration("assumed")


def cluster(gpus: int, inside: float = 300e9, outside: float = 25e9, **changes: Any) -> ClusterSpec:
    """A100 nodes of 8 with NVLink3 inside and one HDR card per GPU (Selene, arXiv 2104.04473)."""
    values: dict[str, Any] = {
        "name": "selene",
        "accelerator": A100,
        "nodes": max(1, gpus // 8),
        "gpus_per_node": min(gpus, 8),
        "intra_node": Link(name="NVLink3", bandwidth_bytes_per_second=inside, latency_seconds=2e-6),
        "inter_node": Link(name="InfiniBand HDR", bandwidth_bytes_per_second=outside, latency_seconds=2e-6),
    }
    return ClusterSpec(**values | changes)


def gpt(layers: int, hidden: int, heads: int, vocab_size: int = 51200, **changes: Any) -> ModelSpec:
    """GPT as in the Megatron papers: MLP four times wider, no gate, tied head, learned positions."""
    values: dict[str, Any] = {
        "name": f"gpt-{layers}x{hidden}",
        "model_type": "gpt2",
        "num_hidden_layers": layers,
        "hidden_size": hidden,
        "intermediate_size": 4 * hidden,
        "num_attention_heads": heads,
        "num_key_value_heads": heads,
        "head_dim": hidden // heads,
        "vocab_size": vocab_size,
        "gated_mlp": False,
        "tie_word_embeddings": True,
    }
    return ModelSpec(**values | changes)


def llama(layers: int = 32, hidden: int = 4096, heads: int = 32, key_value_heads: int = 8) -> ModelSpec:
    """A Llama-3 shape."""
    return gpt(
        layers,
        hidden,
        heads,
        vocab_size=128256,
        model_type="llama",
        num_key_value_heads=key_value_heads,
        intermediate_size=hidden * 7 // 2,
        gated_mlp=True,
        tie_word_embeddings=False,
    )


def mixture() -> ModelSpec:
    """A small mixture of experts with a shared expert and one dense layer."""
    return gpt(
        8,
        1024,
        16,
        model_type="qwen2_moe",
        gated_mlp=True,
        num_experts=64,
        num_experts_per_tok=4,
        moe_intermediate_size=512,
        num_shared_experts=1,
        shared_expert_intermediate_size=512,
        mlps="D" + "E" * 7,
    )


def timed(
    model: ModelSpec, machines: ClusterSpec, workload: Workload, strategy: Strategy
) -> tuple[CommunicationEstimate, StepEstimate]:
    """Communication and step of one strategy with the shipped calibration."""
    sent = communication(model, machines, workload, strategy, CALIBRATION)
    return sent, step(model, machines, workload, strategy, sent, CALIBRATION)
