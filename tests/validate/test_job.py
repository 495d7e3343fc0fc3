"""From rows to strategies, machines and workloads: each rule, and each reason to leave a row out."""

from __future__ import annotations

import pytest

from tests.validate.runs import job, reason
from toolkit.strategy import OFFLOAD, RECOMPUTE

MOE = {"model": "mixtral-8x7b", "kv_heads": 8, "n_experts": 8, "top_k": 2, "vocab": 32000}
BLANK = dict.fromkeys(("tp", "pp", "cp", "vpp", "sp"), "")


def test_a_row_that_states_everything_assumes_nothing() -> None:
    made = job()
    s = made.strategy
    assert (s.framework, s.tp, s.pp, s.dp, s.zero_stage, s.sequence_parallel) == ("megatron", 2, 2, 4, 1, 1)
    assert (s.micro_batch_size, s.gradient_accumulation_steps, s.recompute, s.offload) == (1, 16, 0, 0)
    assert (made.assumed, made.unscored) == ((), {})
    assert (made.cluster.nodes, made.cluster.gpus_per_node, made.cluster.accelerator.name) == (2, 8, "h100-sxm5-80gb")


@pytest.mark.parametrize(
    ("gpu", "memory", "name"),
    [
        ("A100-SXM", 40, "a100-sxm4-40gb"),
        ("A100-SXM", "", "a100-sxm4-80gb"),
        ("A100 (form factor not stated)", "", "a100-sxm4-80gb"),
        ("H100 (form factor not stated)", "", "h100-sxm5-80gb"),
        ("H100-SXM-HBM2e", 96, "h100-sxm5-96gb"),
        ("GB200", 186, "gb200"),
        ("A10G", 24, "a10g"),
    ],
)
def test_accelerators(gpu: str, memory: object, name: str) -> None:
    """The strongest card of a name where the memory is not stated: the run is known to have fitted."""
    assert job(gpu=gpu, gpu_mem_gb=memory, gpus_per_node="").cluster.accelerator.name == name


def test_the_interconnect_replaces_the_usual_link() -> None:
    usual, told = job().cluster.inter_node, job(interconnect="4x100Gb RoCE per node").cluster.inter_node
    assert (usual.name, usual.bandwidth_bytes_per_second) == ("InfiniBand NDR", 50e9)
    assert (told.name, told.bandwidth_bytes_per_second) == ("RoCE", 6.25e9)
    fast = job(interconnect="99999 Gb/s IB").cluster
    assert fast.inter_node.bandwidth_bytes_per_second == fast.accelerator.host_link_bytes_per_second


@pytest.mark.parametrize(
    ("changes", "stage", "shard"),
    [
        ({"zero_norm": ""}, 0, 4),
        ({"zero_norm": "", "framework": "NeMo 25"}, 1, 4),
        ({"zero_norm": "", "framework": "torchtitan FSDP2", **BLANK}, 3, 16),
        ({"zero_norm": "2", "framework": "llm-foundry FSDP", **BLANK}, 2, 16),
        ({"zero_norm": "hsdp", "framework": "MaxText", **BLANK}, 3, 8),
        ({"zero_norm": "hsdp", "framework": "MaxText", "zero_stage": "fsdp(shard=4)", **BLANK}, 3, 4),
        ({"zero_norm": "1", "zero_stage": "zero1(shard=2)"}, 1, 2),
    ],
)
def test_zero_stages_and_sharding_groups(changes: dict[str, object], stage: int, shard: int) -> None:
    strategy = job(**changes).strategy
    assert (strategy.zero_stage, strategy.dp_shard) == (stage, shard)


@pytest.mark.parametrize(
    ("changes", "on"),
    [
        ({"sp": ""}, 0),
        ({"sp": "", "framework": "NeMo 25"}, 1),
        ({"sp": "", **MOE}, 1),
        ({"sp": "0", "framework": "NeMo 25"}, 0),
        ({"sp": "1", "tp": 1}, 0),
    ],
)
def test_sequence_parallelism(changes: dict[str, object], on: int) -> None:
    made = job(**changes)
    assert made.strategy.sequence_parallel == on
    assert any("sequence parallelism" in said for said in made.assumed) == (changes["sp"] == "")


def test_expert_tensor_parallelism_follows_the_framework() -> None:
    assert job(ep=2, **MOE).strategy.etp == 2
    assert job(ep=2, framework="NeMo 25", **MOE).strategy.etp == 1
    assert job(ep=8, **MOE).strategy.etp == 1  # 2 x 8 x 2 stages would need 32 GPUs
    assert job(ep=2).strategy.ep == 1  # a dense model has no experts to spread


def test_virtual_stages() -> None:
    assert job(vpp="").strategy.virtual_pipeline_stages == 1
    assert job(vpp=4).strategy.virtual_pipeline_stages == 4
    assert job(vpp=4, pp=1).strategy.virtual_pipeline_stages == 1
    assert job(vpp=15, layers=30).strategy.virtual_pipeline_stages == 15
    assert "vpp 17" in reason(vpp=17)


def test_batches_complete_each_other() -> None:
    made = job(global_batch="", micro_batch=2, grad_accum=3)
    assert made.workload.global_batch_size == 24 and "global batch 24" in made.assumed
    assert job(micro_batch="", grad_accum=8).strategy.micro_batch_size == 2
    assert job(micro_batch="").strategy.micro_batch_size == 1
    assert reason(micro_batch="", global_batch="") == "missing: global_batch and micro_batch"
    assert reason(micro_batch=3).startswith("contradiction: global batch 64")


@pytest.mark.parametrize("name", RECOMPUTE)
def test_recomputation(name: str) -> None:
    assert RECOMPUTE[job(recompute_norm=name).strategy.recompute] == name


def test_recomputation_of_cheap_parts_and_none_stated() -> None:
    """Megatron recomputes modules by name; elsewhere parts that are cheap to run again do not count."""
    cheap = {"recompute_norm": "selective", "recompute": "selective:mlp-act+norm"}
    assert job(**cheap).strategy.recompute == 1
    assert job(**cheap).workload.recompute_modules == "layernorm+mlp_act"
    assert job(**cheap, framework="torchtitan FSDP2", zero_norm="3", tp=1, pp=1).strategy.recompute == 0
    assert "no recomputation" in job(recompute_norm="").assumed


@pytest.mark.parametrize(
    ("text", "offload"),
    [
        ("none", "none"),
        ("optimizer", "optimizer"),
        ("params+optim to CPU (FSDP cpu offload, fused optim)", "optimizer+parameters"),
    ],
)
def test_offload(text: str, offload: str) -> None:
    assert OFFLOAD[job(offload=text).strategy.offload] == offload


def test_offloaded_activations_leave_the_memory_unscored() -> None:
    assert job(offload="act-cpu alpha=0.5").unscored == {
        "peak_memory": "not modelled: activations offloaded to the host"
    }


@pytest.mark.parametrize(
    ("changes", "precision"),
    [
        ({"precision_norm": "mxfp8"}, "fp8"),
        ({"precision_norm": "int4-base", "task": "qlora"}, "bf16"),
        ({"precision_norm": ""}, "bf16"),
        ({"precision_norm": "", "gpu": "V100-SXM2", "gpu_mem_gb": 32}, "fp16"),
    ],
)
def test_precision(changes: dict[str, object], precision: str) -> None:
    assert job(**changes).workload.precision == precision


@pytest.mark.parametrize(
    ("changes", "attention"),
    [
        ({"flash_attn": "1"}, "flash"),
        ({"flash_attn": "sdpa"}, "flash"),
        ({"flash_attn": "0"}, "eager"),
        ({"flash_attn": "unfused"}, "eager"),
        ({}, "flash"),
        ({"framework": "Megatron-DeepSpeed"}, "eager"),
        ({"gpu": "V100-SXM2", "gpu_mem_gb": 32, "precision_norm": "fp16"}, "eager"),
    ],
)
def test_attention(changes: dict[str, object], attention: str) -> None:
    assert job(**changes).workload.attention == attention


def test_methods_optimizers_and_dropout() -> None:
    assert job(task="lora").workload.method == "lora" and job(task="sft").workload.method == "full"
    kinds = {"": "adamw", "PagedAdamW": "adamw_paged", "AdamW8bit": "adamw_8bit", "muon": "muon", "SGD": "sgd"}
    assert {text: job(optimizer=text).workload.optimizer for text in kinds} == kinds
    assert not job().workload.dropout
    gpt = {"model": "gpt-x", "ffn": 4 * 4096}
    assert job(**gpt).workload.dropout and not job(framework="NeMo 24", **gpt).workload.dropout


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"n_gpus": ""}, "missing: n_gpus"),
        ({"seq_len": ""}, "missing: seq_len"),
        ({"gpu": ""}, "missing: gpu"),
        ({"gpu": "TPU v5"}, "not modelled: unknown accelerator"),
        ({"tp": ""}, "missing: tp"),
        ({"framework": "something new", "zero_norm": "", "tp": "", "pp": ""}, "missing: tp, pp"),
        ({"tp": 3}, "contradiction: tp 3 x pp 2 x cp 1 does not divide 16 GPUs"),
        ({"n_gpus": "~16"}, "unreadable: n_gpus = '~16'"),
        ({"dp": 8}, "contradiction: dp 8 x tp 2 x pp 2 x cp 1 is not 16 GPUs"),
        ({"dp": 5, "pp": ""}, "missing: pp"),
        ({"dp": 4, "tp": "", "pp": ""}, "missing: tp, pp"),
        ({"offload": "xyz"}, "not modelled: offload 'xyz'"),
        ({"task": "DPO"}, "not modelled: task 'DPO'"),
        ({"outcome": "crashed"}, "not modelled: outcome 'crashed'"),
        ({"sp": "ulysses"}, "not modelled: sp 'ulysses'"),
        ({"precision_norm": "", "precision": "mixed"}, "not modelled: precision 'mixed'"),
        ({"gpu": "H100", "gpu_mem_gb": 64}, "not modelled: 'H100' with 64 GB"),
        ({"gpu": "A800", "gpu_mem_gb": 40}, "not modelled: 'A800' with 40 GB"),
        ({"gpu": "Ascend 910B", "gpu_mem_gb": 64}, "not modelled: unknown accelerator 'Ascend 910B'"),
        ({"pp": 16, "tp": 1, "layers": 8}, "contradiction: 16 pipeline stages for 8 layers"),
        ({"ep": 3, **MOE}, "contradiction: ep 3 with 8 experts"),
        ({"zero_norm": "4"}, "not modelled: zero_norm"),
        ({"precision_norm": "nvfp4"}, "not modelled: precision nvfp4"),
        ({"precision_norm": "fp8", "gpu": "A100-SXM"}, "not modelled: a100-sxm4-80gb has no fp8"),
        ({"recompute_norm": "some"}, "not modelled: recompute_norm"),
    ],
)
def test_reasons(changes: dict[str, object], words: str) -> None:
    assert reason(**changes).startswith(words)


def test_nothing_depends_on_id_or_source() -> None:
    one, other = job(), job(id="megatron-1", source="vtrain bigscience mlperf")
    assert (one.model, one.cluster, one.workload, one.strategy) == (
        other.model,
        other.cluster,
        other.workload,
        other.strategy,
    )


def test_gradients_of_recipes_are_summed_in_bf16() -> None:
    assert job(framework="Megatron-LM").workload.gradient_accumulation_dtype == "default"
    assert job(framework="NeMo 24.12").workload.gradient_accumulation_dtype == "bf16"
    assert job(framework="NeMo 24.12", optimizer="Muon").workload.gradient_accumulation_dtype == "default"
    assert job(framework="NeMo 24.12", precision_norm="fp32").workload.gradient_accumulation_dtype == "default"
