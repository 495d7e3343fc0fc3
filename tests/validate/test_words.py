"""What words mean: frameworks, networks with their units, recomputed parts, where memory was read."""

from __future__ import annotations

import pytest

from toolkit.validate.frameworks import engine_of, framework_of, has_recipe_defaults, shard_of, zero_of
from toolkit.validate.kernels import (
    flash_generation_of,
    fused_loss_of,
    fuses_accumulation,
    kernels_of,
    logged_losses_of,
)
from toolkit.validate.networks import Network, per_gpu
from toolkit.validate.notes import has_shorter_samples, read_on_last_stage
from toolkit.validate.overlaps import data_overlap_of, tensor_overlap_of
from toolkit.validate.recomputed import recomputed_layers, recomputes_by_default
from toolkit.validate.states import optimizer_of, sums_of, weights_of


@pytest.mark.parametrize(
    ("words", "zero", "model_parallel", "gpus", "expected"),
    [
        ("Megatron-LM", "", True, 8, "megatron"),
        ("Megatron-LM", "", False, 1, "megatron"),
        ("Megatron-DeepSpeed", "1", True, 64, "megatron"),
        ("Megatron-DeepSpeed", "3", False, 64, "deepspeed"),
        ("Megatron-Core (FSDP+EP)", "3", True, 64, "fsdp"),
        ("accelerate + DeepSpeed ZeRO-3 offload", "3", False, 8, "deepspeed"),
        ("DeepSpeed", "0", False, 8, "deepspeed"),
        ("NeMo 24.12", "", True, 64, "megatron"),
        ("NeMo AutoModel (PyTorch)", "3", False, 8, "fsdp"),
        ("nanotron", "0", True, 8, "megatron"),
        ("InternEvo/InternLM", "1", False, 8, "megatron"),
        ("torchtitan FSDP2", "3", True, 64, "fsdp"),
        ("torchtune 0.5", "", False, 1, "ddp"),
        ("Composer/llm-foundry FSDP", "2", False, 8, "fsdp"),
        ("LitGPT (Fabric)", "", False, 1, "ddp"),
        ("MaxText", "hsdp", False, 16, "fsdp"),
        ("JAX Pax", "0", True, 8, "megatron"),
        ("ColossalAI", "2", False, 8, "deepspeed"),
        ("Axolotl + FSDP", "3", False, 8, "fsdp"),
        ("Unsloth", "", False, 1, "ddp"),
        ("HF Trainer", "", False, 8, "ddp"),
        ("Hugging Face Accelerate (DeepSpeed)", "2", False, 8, "deepspeed"),
        ("Megatron-LM (Hugging Face checkpoints)", "", True, 8, "megatron"),
        ("Levanter", "3", False, 8, "fsdp"),
        ("GPT-NeoX", "1", True, 96, "megatron"),
        ("something new", "", True, 8, "megatron"),
        ("something new", "3", False, 8, "fsdp"),
        ("something new", "1", False, 8, "deepspeed"),
        ("something new", "0", False, 8, "ddp"),
    ],
)
def test_frameworks(words: str, zero: str, model_parallel: bool, gpus: int, expected: str) -> None:
    assert framework_of(words, zero, model_parallel, gpus) == expected


def test_recipe_defaults_are_nemo_and_bridge() -> None:
    assert has_recipe_defaults("NeMo (dgxc)") and has_recipe_defaults("Megatron-Bridge (x)")
    assert not has_recipe_defaults("Megatron-LM") and not has_recipe_defaults("Megatron-Core")


@pytest.mark.parametrize(
    ("text", "per_node", "fabric", "gbytes"),
    [
        ("", 8, "", 0),
        ("NVLink4 + 8x400Gb/s IB per node (stated ref. infra)", 8, "InfiniBand", 50),
        ("NVLink; 4x100Gb Omni-Path per node", 8, "Omni-Path", 6.25),
        ("NVLink; 4x100Gb Omni-Path per node", 4, "Omni-Path", 12.5),
        ("1600 Gbps node-node interconnect (RoCE)", 8, "RoCE", 25),
        ("RoCE 2 Tb/s per node", 8, "RoCE", 31.25),
        ("400Gb/s RoCE per GPU", 8, "RoCE", 50),
        ("Eos: NVLink4 450GB/s one-way, IB 400Gb/s", 8, "InfiniBand", 50),
        ("NVLink4 + IB 8x50 GB/s", 8, "InfiniBand", 50),
        ("config/validation: 800 Gb/s inter-node total, 150 GB/s intra", 8, "", 12.5),
        ("p5.48xlarge EFA 3200Gb/s per node", 8, "EFA", 50),
        ("A3 Mega GPUDirect-TCPXO 8x200Gb/s", 8, "TCPX", 25),
        ("RoCE RDMA", 8, "RoCE", 0),
        ("NVLINK Gen4 900 GB/s + NVSWITCH Gen3", 8, "", 0),
        ("Storage: 2x ConnectX-7 IB NDR 400Gb/s, Compute: 8x ConnectX-7 IB NDR 400Gb/s", 8, "InfiniBand", 50),
        ("BF3 200Gbps for NS and 2xBF3 400Gbps for EW", 4, "", 25),
        ("ROCE2; Data bandwidth for GPU-PCIe: 504 GB/s; PCIe-NIC: 500 GB/s", 8, "RoCE", 0),
        ("2x Mellanox ConnectX-5 Ex 100Gb/s Ethernet", 8, "Ethernet", 3.125),
        ("1x Ethernet 100Gb/Sec, 8x NVIDIA Quantum-2 CX7 InfiniBand (400Gb/s)", 8, "InfiniBand", 50),
    ],
)
def test_networks_by_unit_and_by_whom_they_belong_to(text: str, per_node: int, fabric: str, gbytes: float) -> None:
    assert per_gpu(text, per_node) == Network(fabric, pytest.approx(gbytes * 1e9))


@pytest.mark.parametrize(
    ("text", "ranks"),
    [("fsdp(shard=128)", 128), ("fsdp128 x dp2", 128), ("fsdp in node, dp across nodes", 8), ("zero1", 0), ("", 0)],
)
def test_sharding_groups(text: str, ranks: int) -> None:
    assert shard_of(text, 8) == ranks


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("selective (every 2nd layer)", 2),
        ("selective-layer", 2),
        ("selective-op", 0),
        ("full", 0),
        ("every 4th layer", 4),
    ],
)
def test_layers_that_run_again(text: str, expected: int) -> None:
    assert recomputed_layers(text) == expected


def test_losses_for_the_logs() -> None:
    assert [logged_losses_of(words) for words in ("Composer/llm-foundry FSDP", "torchtitan FSDP2")] == [2, 0]


def test_memory_of_the_last_rank() -> None:
    assert read_on_last_stage("torch max_memory_allocated on the logging (last) rank; steady 1 GiB")
    assert not read_on_last_stage("max over ranks")
    assert not read_on_last_stage("GPU memory of first/last (embedding) stage")


@pytest.mark.parametrize(
    ("words", "framework", "compiled", "expected"),
    [
        ("Composer/llm-foundry FSDP", "fsdp", False, "loss"),
        ("torchtitan FSDP2", "fsdp", True, "fused"),
        ("torchtitan FSDP2", "fsdp", False, "default"),
        ("Megatron-LM CI (dev)", "fsdp", False, "megatron"),
        ("Megatron-LM CI (dev)", "megatron", True, "default"),
        ("DeepSpeed", "deepspeed", True, "default"),
        ("Megatron-DeepSpeed", "deepspeed", False, "megatron"),
        ("MaxText 25.01", "fsdp", False, "fused"),
        ("NeMo AutoModel (PyTorch)", "fsdp", False, "fused"),
        ("LLaMA-Factory Unsloth+FA2", "ddp", False, "fused"),
        ("LLaMA-Factory HF+FA2", "ddp", False, "default"),
    ],
)
def test_kernels(words: str, framework: str, compiled: bool, expected: str) -> None:
    assert kernels_of(words, framework, compiled) == expected


@pytest.mark.parametrize(
    ("words", "stated", "expected"),
    [
        ("Composer/llm-foundry FSDP", "1", 1),
        ("Composer/llm-foundry FSDP", "flash-attn 2", 2),
        ("JAX Pax + TransformerEngine", "", 3),
        ("MaxText 25.01", "1", 3),
        ("torchtitan FSDP2", "sdpa", 0),
        ("torchtitan FSDP2", "fa3", 3),
        ("Megatron-LM", "1", 2),
        ("Megatron-Core (Pai-Megatron-Patch)", "1", 0),
        ("NeMo AutoModel (PyTorch)", "", 3),
        ("LLaMA-Factory HF+FA2", "flash_attention_2", 2),
    ],
)
def test_generation_of_fused_attention(words: str, stated: str, expected: int) -> None:
    assert flash_generation_of(words, stated) == expected


@pytest.mark.parametrize(
    ("words", "framework", "precision", "expected"),
    [
        ("LitGPT (Fabric)", "ddp", "bf16-true", "bf16"),
        ("LitGPT (Fabric)", "fsdp", "bf16-mixed", "default"),
        ("LitGPT (Fabric)", "megatron", "bf16-true", "default"),
        ("torchtune 0.5", "ddp", "bf16", "bf16"),
        ("torchtune 0.5", "ddp", "fp32", "default"),
        ("torchtitan FSDP2", "fsdp", "bf16", "default"),
    ],
)
def test_weights(words: str, framework: str, precision: str, expected: str) -> None:
    assert weights_of(words, framework, precision, "bf16") == expected


@pytest.mark.parametrize(
    ("words", "precision", "expected"),
    [
        ("NeMo (x)", "FP8 (hybrid)", "fp8"),
        ("Megatron-Bridge", "MXFP8", "fp8"),
        ("Megatron-Bridge", "FP8 blockwise", "default"),
        ("Megatron-LM", "fp8", "default"),
        ("Megatron-LM", "fp8 (e4m3, fp8 params)", "fp8"),
    ],
)
def test_eight_bit_weights(words: str, precision: str, expected: str) -> None:
    assert weights_of(words, "megatron", precision, "fp8") == expected


def test_eight_bit_weights_in_the_notes() -> None:
    assert weights_of("Megatron-LM", "megatron", "bf16+fp8", "fp8", "test current_scaling_native_fp8") == "fp8"
    assert weights_of("Megatron-LM", "fsdp", "bf16", "bf16", "deterministic=True") == "default"


def test_recipes_that_recompute_without_saying_so() -> None:
    assert recomputes_by_default("torchtune 0.2")
    assert recomputes_by_default("LLaMA-Factory HF+FA2")
    assert not recomputes_by_default("LitGPT (Fabric)")


@pytest.mark.parametrize(
    ("words", "name"),
    [
        ("", "adamw"),
        ("AdamW", "adamw"),
        ("PagedAdamW", "adamw_paged"),
        ("bitsandbytes PagedAdamW8bit", "adamw_8bit_paged"),
        ("8-bit Adam", "adamw_8bit"),
        ("Muon", "muon"),
        ("SGD momentum", "sgd"),
    ],
)
def test_optimizers(words: str, name: str) -> None:
    assert optimizer_of(words) == name


def test_samples_shorter_than_the_most_they_may_be() -> None:
    assert has_shorter_samples("Alpaca2k samples are much shorter than max seq len")
    assert has_shorter_samples("max length 1024 (samples may be shorter)")
    assert has_shorter_samples("Baseline (unpacked): batch 2")
    assert not has_shorter_samples("+packed; baseline not packed so real tokens shorter than 4096")
    assert not has_shorter_samples("shorter warm-up")


def test_a_master_copy_in_bf16() -> None:
    assert weights_of("deepspeed", "deepspeed", "bf16", "bf16", "adam bf16 master+states") == "bf16"
    assert weights_of("deepspeed", "deepspeed", "bf16", "bf16", "adam fp32 master+states") == "default"


@pytest.mark.parametrize(
    ("words", "framework", "precision", "expected"),
    [
        ("Megatron-Bridge", "megatron", "bf16", "bf16"),
        ("NeMo (dgxc)", "megatron", "fp8", "bf16"),
        ("InternEvo", "megatron", "bf16", "bf16"),
        ("Megatron-LM", "megatron", "bf16", "default"),
        ("Megatron-LM", "megatron", "fp16", "bf16"),
        ("Megatron-DeepSpeed", "megatron", "fp16", "default"),
        ("NeMo AutoModel", "fsdp", "bf16", "default"),
    ],
)
def test_in_what_gradients_are_summed(words: str, framework: str, precision: str, expected: str) -> None:
    assert sums_of(words, framework, precision, "adam") == expected


def test_engines() -> None:
    assert engine_of("Megatron-DeepSpeed (bigscience)", "megatron") == "deepspeed"
    assert engine_of("GPT-NeoX 2.0", "megatron") == "deepspeed"
    assert engine_of("nanotron", "megatron") == "nanotron"
    assert engine_of("InternEvo/InternLM", "fsdp") == engine_of("InternEvo/InternLM", "megatron") == "internevo"
    assert engine_of("Megatron-DeepSpeed", "deepspeed") == engine_of("Megatron-LM", "megatron") == "default"


def test_whose_loss_is_fused() -> None:
    assert fused_loss_of("Megatron-Bridge 0.4") == fused_loss_of("Megatron-Core (Pai-Megatron-Patch)") == "te"
    assert fused_loss_of("NeMo (dgxc)") == fused_loss_of("Megatron-LM CI (dev)") == "native"


def test_full_sharding_beside_a_sharded_optimizer() -> None:
    assert zero_of("1", "zero1(all dp)+fsdp") == "3"
    assert zero_of("1", "zero1(all dp)") == "1"
    assert zero_of("", "fsdp2 (ZeRO-3)") == ""


@pytest.mark.parametrize(
    ("words", "tensor", "data", "fused"),
    [
        ("NeMo 24.09", "all", "all", True),
        ("Megatron-LM", "backward", "none", True),
        ("Megatron-Core", "backward", "all", True),
        ("Megatron-DeepSpeed (bigscience)", "none", "none", False),
        ("Megatron-DeepSpeed", "backward", "none", False),
        ("InternEvo/InternLM v0.2.1dev", "backward", "gradients", False),
    ],
)
def test_what_a_framework_overlaps(words: str, tensor: str, data: str, fused: bool) -> None:
    assert (tensor_overlap_of(words, True), data_overlap_of(words)) == (tensor, data)
    assert fuses_accumulation(words) is fused


def test_user_buffers_need_sequence_parallelism() -> None:
    assert tensor_overlap_of("NeMo 24.09", False) == "backward"
