"""Models, machines and shorthands of the memory tests, built by hand."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import msgspec

from tests.estimate.machines import A100, CALIBRATION, cluster, gpt
from toolkit.cluster import ClusterSpec
from toolkit.estimate.activations import Activations, activations
from toolkit.estimate.layout import stages, tables
from toolkit.estimate.memory import memory, stage_memory
from toolkit.estimates import MemoryEstimate
from toolkit.model import ModelSpec
from toolkit.strategy import Strategy
from toolkit.workload import Workload

MIB, GIB = 2.0**20, 2.0**30
PUBLISHED = Path(__file__).resolve().parent.parent / "published"


def published(name: str) -> dict[str, Any]:
    """A table of published or counted figures."""
    return tomllib.loads((PUBLISHED / name).read_text())


def llama(**changes: Any) -> ModelSpec:
    """Llama-3-8B, or what the changes make of it."""
    values: dict[str, Any] = {
        "name": "llama-3-8b",
        "num_hidden_layers": 32,
        "hidden_size": 4096,
        "intermediate_size": 14336,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "vocab_size": 128256,
    }
    return ModelSpec(**values | changes)


TINY = llama(
    vocab_size=256,
    hidden_size=64,
    intermediate_size=176,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=16,
)
LLAMA_7B = llama(intermediate_size=11008, num_key_value_heads=32, vocab_size=32000)
LLAMA_70B = llama(
    num_hidden_layers=80, hidden_size=8192, intermediate_size=28672, num_attention_heads=64, vocab_size=32000
)
LLAMA_405B = llama(num_hidden_layers=126, hidden_size=16384, intermediate_size=53248, num_attention_heads=128)
MIXTURE = llama(
    hidden_size=2048,
    intermediate_size=8192,
    num_attention_heads=16,
    num_key_value_heads=4,
    num_hidden_layers=24,
    num_experts=64,
    num_experts_per_tok=6,
    moe_intermediate_size=1408,
    num_shared_experts=2,
    shared_expert_intermediate_size=2816,
    mlps="DD" + "E" * 22,
    tie_word_embeddings=True,
)
GPT_7B = gpt(32, 4096, 32)
GPT_175B = gpt(96, 12288, 96)


def machine(gpus: int, memory_gib: float = 79.35, **changes: Any) -> ClusterSpec:
    """Nodes of 8 cards that a process sees with this memory."""
    card = msgspec.structs.replace(A100, memory_bytes=memory_gib * GIB)
    return cluster(gpus, accelerator=card, **changes)


def megatron(**changes: Any) -> Strategy:
    """Tensor 8, pipeline 4, data 2, with sequence parallelism and the distributed optimizer."""
    values: dict[str, Any] = {
        "framework": "megatron",
        "tp": 8,
        "etp": 8,
        "pp": 4,
        "dp": 2,
        "dp_shard": 2,
        "zero_stage": 1,
        "gradient_accumulation_steps": 8,
        "sequence_parallel": 1,
    }
    return Strategy(**values | changes)


def zero(stage: int, ranks: int, **changes: Any) -> Strategy:
    """DeepSpeed with a ZeRO stage on so many ranks."""
    values: dict[str, Any] = {"framework": "deepspeed", "dp": ranks, "dp_shard": ranks, "zero_stage": stage}
    return Strategy(**values | changes)


def fsdp(ranks: int, **changes: Any) -> Strategy:
    """Fully sharded over so many ranks."""
    values: dict[str, Any] = {"framework": "fsdp", "dp": ranks, "dp_shard": ranks, "zero_stage": 3}
    return Strategy(**values | changes)


def peak(model: ModelSpec, workload: Workload, strategy: Strategy, machines: ClusterSpec | None = None) -> Any:
    """The estimate of the fullest stage."""
    gpus = int(strategy.tp * strategy.pp * strategy.cp * strategy.dp)
    return memory(model, machines or machine(gpus), workload, strategy, CALIBRATION)


def of_stages(model: ModelSpec, workload: Workload, strategy: Strategy) -> list[MemoryEstimate]:
    """The estimates of first and last (and second) stage."""
    table = tables(model, workload, strategy.framework)
    return [
        stage_memory(model, machine(8), workload, strategy, CALIBRATION, table, stage)
        for stage in stages(model, strategy, table)
    ]


def activations_of(model: ModelSpec, workload: Workload, strategy: Strategy, which: int = 0) -> Activations:
    """Activations of the first (0) or last (1) stage."""
    table = tables(model, workload, strategy.framework)
    return activations(model, workload, strategy, table, stages(model, strategy, table)[which], 1.0)


def static(estimate: MemoryEstimate) -> float:
    """Parameters, gradients and optimizer states."""
    return estimate.parameters_bytes + estimate.gradients_bytes + estimate.optimizer_bytes


def transient(estimate: MemoryEstimate) -> float:
    """Everything of the model that is not static."""
    return estimate.total_bytes - static(estimate) - estimate.framework_bytes
