"""Hand-built plans, one for each kind of layout that an emitter must handle. The estimates are placeholders.

They are written out here, not searched, so that the emitters are tested on their own.
"""

from __future__ import annotations

from typing import Any

import msgspec

from toolkit.cluster import Accelerator, ClusterSpec, Link, Site
from toolkit.estimates import CommunicationEstimate, HostMemoryEstimate, MemoryEstimate, StepEstimate
from toolkit.model import ModelSpec
from toolkit.plan import Plan
from toolkit.recipe import Contract
from toolkit.strategy import Strategy
from toolkit.workload import Workload

H100 = Accelerator(
    name="h100-sxm-80gb",
    architecture="hopper",
    memory_bytes=85.0e9,
    memory_bandwidth_bytes_per_second=3.35e12,
    peak_flop_per_second={"bf16": 989e12, "fp16": 989e12, "fp8": 1979e12},
    source="NVIDIA H100 data sheet",
)
B200 = msgspec.structs.replace(H100, name="b200", architecture="blackwell", source="NVIDIA B200 data sheet")
MI300X = msgspec.structs.replace(H100, name="mi300x", vendor="AMD", architecture="cdna3", source="AMD data sheet")
CPU = Accelerator(
    name="cpu",
    vendor="generic",
    architecture="cpu",
    memory_bytes=8.0e9,
    memory_bandwidth_bytes_per_second=20e9,
    peak_flop_per_second={"bf16": 1e11, "fp32": 1e11},
    source="test",
)

LLAMA_8B = ModelSpec(
    name="llama-3.1-8b",
    num_hidden_layers=32,
    hidden_size=4096,
    intermediate_size=14336,
    num_attention_heads=32,
    num_key_value_heads=8,
    head_dim=128,
    vocab_size=128256,
    max_position_embeddings=131072,
    rope_theta=500000.0,
    rope_scaling_factor=8.0,
    norm_epsilon=1.0e-5,
    initializer_range=0.02,
)
LLAMA_70B = msgspec.structs.replace(
    LLAMA_8B,
    name="llama-3.1-70b",
    num_hidden_layers=80,
    hidden_size=8192,
    intermediate_size=28672,
    num_attention_heads=64,
)
LLAMA_405B = msgspec.structs.replace(
    LLAMA_8B,
    name="llama-3.1-405b",
    num_hidden_layers=126,
    hidden_size=16384,
    intermediate_size=53248,
    num_attention_heads=128,
)
TINY = msgspec.structs.replace(
    LLAMA_8B,
    name="tiny",
    num_hidden_layers=4,
    hidden_size=64,
    intermediate_size=176,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=16,
    vocab_size=259,
    max_position_embeddings=256,
    rope_theta=10000.0,
    rope_scaling_factor=0.0,
)
QWEN_30B_A3B = ModelSpec(
    name="qwen3-30b-a3b",
    model_type="qwen3_moe",
    num_hidden_layers=48,
    hidden_size=2048,
    intermediate_size=6144,
    num_attention_heads=32,
    num_key_value_heads=4,
    head_dim=128,
    vocab_size=151936,
    max_position_embeddings=40960,
    qk_norm="head",
    num_experts=128,
    num_experts_per_tok=8,
    moe_intermediate_size=768,
    rope_theta=1000000.0,
    norm_epsilon=1.0e-6,
)
DEEPSEEK_V2_LITE = ModelSpec(
    name="deepseek-v2-lite",
    model_type="deepseek_v2",
    num_hidden_layers=27,
    hidden_size=2048,
    intermediate_size=10944,
    num_attention_heads=16,
    num_key_value_heads=16,
    head_dim=192,
    vocab_size=102400,
    max_position_embeddings=163840,
    num_experts=64,
    num_experts_per_tok=6,
    moe_intermediate_size=1408,
    num_shared_experts=2,
    shared_expert_intermediate_size=2816,
    kv_lora_rank=512,
    qk_nope_head_dim=128,
    qk_rope_head_dim=64,
    v_head_dim=128,
    mlps="D" + "E" * 26,
)
GPT2 = ModelSpec(
    name="gpt2",
    model_type="gpt2",
    num_hidden_layers=12,
    hidden_size=768,
    intermediate_size=3072,
    num_attention_heads=12,
    num_key_value_heads=12,
    head_dim=64,
    vocab_size=50257,
    tie_word_embeddings=True,
    gated_mlp=False,
    attention_bias=True,
    attention_output_bias=True,
    mlp_bias=True,
    norm_bias=True,
    learned_positions=1024,
    hidden_act="gelu_new",
)

DGX = ClusterSpec(
    name="dgx-h100",
    accelerator=H100,
    nodes=2,
    gpus_per_node=8,
    intra_node=Link(name="NVLink 4", bandwidth_bytes_per_second=450e9, latency_seconds=2e-6),
    inter_node=Link(name="NDR InfiniBand", bandwidth_bytes_per_second=50e9, latency_seconds=5e-6),
    host_memory_bytes=2.0e12,
    host_cores=112,
    storage_bandwidth_bytes_per_second=10e9,
    site=Site(partition="gpu", account="research", time_limit="12:00:00", memory_per_node="0"),
    source="test",
)
SIXTEEN = msgspec.structs.replace(DGX, nodes=16)
LAPTOP = ClusterSpec(
    name="local-cpu",
    accelerator=CPU,
    nodes=1,
    gpus_per_node=2,
    intra_node=Link(name="memory", bandwidth_bytes_per_second=5e9, latency_seconds=1e-5),
    inter_node=Link(name="Ethernet", bandwidth_bytes_per_second=1e9, latency_seconds=5e-5),
    host_memory_bytes=16e9,
    host_cores=2,
    site=Site(gpu_request="none", exclusive=False, time_limit="00:10:00"),
    source="test",
)


PARAMETERS = {"llama-3.1-8b": 8_030_261_248, "llama-3.1-70b": 70_553_706_496, "tiny": 208_000, "gpt2": 124_439_808}


def with_site(cluster: ClusterSpec, **changes: Any) -> ClusterSpec:
    """The cluster with another site."""
    return msgspec.structs.replace(cluster, site=msgspec.structs.replace(cluster.site, **changes))


def plan(
    name: str,
    model: ModelSpec,
    cluster: ClusterSpec,
    batch: int = 0,
    workload: dict[str, Any] | None = None,
    contract: dict[str, Any] | None = None,
    **strategy: Any,
) -> Plan:
    """A plan whose batch triple, world size, workload and contract agree; dp is what is left of the GPUs."""
    degrees = {"micro_batch_size": 1, "gradient_accumulation_steps": 8, "etp": 1} | strategy
    taken = degrees.get("tp", 1) * degrees.get("pp", 1) * degrees.get("cp", 1)
    degrees.setdefault("dp", cluster.num_gpus // taken)
    degrees.setdefault("dp_shard", degrees["dp"])
    layout = Strategy(**degrees)
    batch = batch or layout.micro_batch_size * layout.gradient_accumulation_steps * layout.dp
    shared = {"sequence_length": 4096, "global_batch_size": batch} | (workload or {})
    work = Workload(**shared)
    learnt = {key: getattr(work, key) for key in ("precision", "method", "optimizer")}
    return Plan(
        name=name,
        program="pretrain" if layout.framework == "megatron" else "finetune",
        recipe=f"{name}@1",
        model=model,
        cluster=cluster,
        workload=work,
        contract=Contract(
            **{
                "model": model.name,
                "dataset": "sample",
                "sequence_length": work.sequence_length,
                "global_batch_size": batch,
                "warmup_steps": 10,
                "total_steps": 100,
                **learnt,
                **(contract or {}),
            }
        ),
        strategy=layout,
        memory=MemoryEstimate(**dict.fromkeys(MemoryEstimate.__struct_fields__, 1.0e9)),
        host_memory=HostMemoryEstimate(process_bytes=1e9, offload_bytes=0.0, loading_bytes=0.0),
        communication=CommunicationEstimate(),
        step=StepEstimate(**dict.fromkeys(StepEstimate.__struct_fields__, 1.0)),
        memory_limit_bytes=80e9,
        total_parameters=PARAMETERS.get(model.name, 1_000_000_000),
        active_parameters=PARAMETERS.get(model.name, 1_000_000_000),
    )


def all_plans() -> dict[str, Plan]:
    """Every kind of layout, by name."""
    tiny = {"workload": {"sequence_length": 64}, "micro_batch_size": 2, "gradient_accumulation_steps": 2}
    moe = {"sequence_parallel": 1, "zero_stage": 1, "framework": "megatron"}
    plans = [
        plan("ddp", LLAMA_8B, DGX, framework="ddp", workload={"method": "lora"}, recompute=2),
        plan("qlora", LLAMA_8B, DGX, framework="ddp", workload={"method": "qlora"}),
        plan("zero0", LLAMA_8B, DGX, zero_stage=0, workload={"method": "lora"}),
        plan("zero1", LLAMA_8B, DGX, zero_stage=1),
        plan("zero2-fp16", LLAMA_8B, DGX, zero_stage=2, workload={"precision": "fp16"}),
        plan("zero2-offload", LLAMA_8B, DGX, zero_stage=2, offload=1),
        plan("zero3", LLAMA_70B, DGX, zero_stage=3, recompute=2),
        plan("zero3-hpz", LLAMA_8B, DGX, zero_stage=3, hpz=8),
        plan("zero3-offload", LLAMA_70B, DGX, zero_stage=3, offload=2, recompute=2),
        plan("zero2-fp32-sums", LLAMA_8B, DGX, zero_stage=2, workload={"gradient_accumulation_dtype": "fp32"}),
        plan("fsdp", LLAMA_8B, DGX, framework="fsdp", zero_stage=3, recompute=2),
        plan("fsdp-hybrid", LLAMA_8B, DGX, framework="fsdp", zero_stage=3, dp_shard=8),
        plan("tiny", TINY, LAPTOP, zero_stage=2, **tiny),
        plan("tiny-ddp", TINY, LAPTOP, framework="ddp", **tiny),
        plan("tiny-megatron", TINY, LAPTOP, framework="megatron", tp=2, sequence_parallel=1, **tiny),
        plan("dense", LLAMA_70B, DGX, framework="megatron", tp=8, pp=2, sequence_parallel=1, recompute=1),
        plan("interleaved", LLAMA_70B, DGX, framework="megatron", tp=4, pp=2, virtual_pipeline_stages=5, zero_stage=1),
        plan(
            "long",
            LLAMA_8B,
            DGX,
            framework="megatron",
            tp=2,
            cp=4,
            sequence_parallel=1,
            zero_stage=1,
            recompute=2,
            workload={"sequence_length": 32768},
        ),
        plan(
            "some-layers",
            LLAMA_70B,
            DGX,
            framework="megatron",
            tp=4,
            pp=2,
            virtual_pipeline_stages=5,
            zero_stage=1,
            recompute=2,
            recompute_layers=15,
        ),
        plan(
            "heads",
            LLAMA_8B,
            DGX,
            framework="megatron",
            tp=2,
            cp=4,
            cp_method="a2a",
            workload={"sequence_length": 32768},
        ),
        plan(
            "levels",
            LLAMA_8B,
            DGX,
            framework="megatron",
            tp=2,
            cp=8,
            cp_method="a2a+p2p",
            workload={"sequence_length": 65536},
        ),
        plan(
            "shorter-ends",
            LLAMA_405B,
            SIXTEEN,
            framework="megatron",
            tp=8,
            pp=16,
            virtual_pipeline_stages=4,
            sequence_parallel=1,
            gradient_accumulation_steps=32,
        ),
        plan("shorter-last", DEEPSEEK_V2_LITE, DGX, framework="megatron", pp=4, zero_stage=1),
        plan("uneven-ends", msgspec.structs.replace(LLAMA_8B, num_hidden_layers=61), DGX, framework="megatron", pp=4),
        plan("fp8", LLAMA_8B, DGX, framework="megatron", tp=2, zero_stage=1, workload={"precision": "fp8"}),
        plan("gpt2", GPT2, DGX, framework="megatron", zero_stage=1, workload={"sequence_length": 1024}),
        plan("experts", QWEN_30B_A3B, DGX, tp=4, ep=4, etp=1, **moe),
        plan("latent", DEEPSEEK_V2_LITE, DGX, ep=8, **(moe | {"sequence_parallel": 0})),
    ]
    return {one.name: one for one in plans}
