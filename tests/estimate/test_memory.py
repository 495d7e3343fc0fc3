"""What users ran into, identities, and properties of the memory estimate."""

from __future__ import annotations

import numpy
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.estimate.machines import CALIBRATION
from tests.estimate.shapes import (
    GIB,
    LLAMA_7B,
    LLAMA_70B,
    LLAMA_405B,
    MIXTURE,
    fsdp,
    llama,
    machine,
    megatron,
    peak,
    published,
    static,
    zero,
)
from toolkit.equation import trace
from toolkit.estimate.framework_memory import as_measured
from toolkit.estimate.host import host_memory
from toolkit.estimate.memory import memory
from toolkit.estimate.parameters import count_parameters, lora_parameters
from toolkit.estimate.verdict import verdict
from toolkit.estimates import VERDICTS, MemoryEstimate
from toolkit.model import ModelSpec
from toolkit.strategy import CP_METHODS, Strategy
from toolkit.workload import Workload

P7 = 6738415616


def judged(found: MemoryEstimate, memory_gib: float) -> str:
    return VERDICTS[int(verdict(found.total_bytes, memory_gib * GIB))]


def test_seven_b_under_zero_2_does_not_fit_eight_v100() -> None:
    """hiyouga/LLaMA-Factory#1221: fp16, micro batch 1, 31.75 GiB: dies in the Adam step; ZeRO-3 ran."""
    work = Workload(sequence_length=1024, precision="fp16", optimizer="adamw_unfused")
    box = machine(8, 31.75)
    two = peak(LLAMA_7B, work, zero(2, 8, gradient_accumulation_steps=2), box)
    assert two.parameters_bytes / GIB == pytest.approx(12.55, abs=0.01)
    assert two.optimizer_bytes / GIB == pytest.approx(12 * P7 / 8 / GIB)
    assert two.gradients_bytes >= 2 * P7 / 8
    # the peak is the optimizer step: float32 gradients, denominators and their quotient are 4 P / N (3.14 GiB) each;
    # 28.28 GiB were allocated when the last of these was asked for
    before_last = two.total_bytes - two.framework_bytes - 4 * P7 / 8
    assert before_last / GIB == pytest.approx(28.28, abs=0.1)
    assert judged(two, 31.75) == "no"
    assert peak(LLAMA_7B, work, zero(3, 8), box).total_bytes < 0.8 * two.total_bytes
    assert judged(peak(LLAMA_7B, work, zero(2, 8, offload=1, recompute=2), box), 31.75) == "fits"


def test_aggregate_memory_is_not_the_test() -> None:
    """hiyouga/LLaMA-Factory#260: 8 x 32 GB hold less than 256 GB of a 7B: the 16-bit copy is on every card."""
    baichuan = llama(intermediate_size=11008, num_key_value_heads=32, vocab_size=64000)
    parameters = count_parameters(baichuan).total
    assert parameters == 7000559616
    two = peak(baichuan, Workload(sequence_length=2048, precision="fp16"), zero(2, 8), machine(8, 31.75))
    assert 16 * parameters < 8 * 31.75 * GIB  # the states of the whole job would fit into all cards together
    assert two.parameters_bytes == 2 * parameters
    assert judged(two, 31.75) != "fits"


def test_zero_shards_over_data_parallel_ranks_only() -> None:
    """microsoft/DeepSpeed#237: tensor parallel 8 on 8 GPUs leaves nothing for ZeRO to divide."""
    model = llama(num_hidden_layers=48, hidden_size=8192, intermediate_size=28672, num_attention_heads=64)
    work = Workload(sequence_length=2048)
    alone = peak(model, work, zero(2, 1, tp=8))
    eight = peak(model, work, zero(2, 8, tp=8))
    assert alone.optimizer_bytes == pytest.approx(6 * alone.parameters_bytes)
    assert eight.optimizer_bytes == pytest.approx(alone.optimizer_bytes / 8)
    assert eight.parameters_bytes == alone.parameters_bytes


def test_full_offload_does_not_shrink_with_more_gpus() -> None:
    """microsoft/DeepSpeed#4093: GPT-J with both offloads: working set, not states."""
    gptj = llama(
        hidden_size=4096,
        num_hidden_layers=28,
        num_attention_heads=16,
        num_key_value_heads=16,
        head_dim=256,
        intermediate_size=16384,
        gated_mlp=False,
        norm_bias=True,
        norms_per_layer=1,
        vocab_size=50400,
    )
    work = Workload(sequence_length=2048)
    two, four = (peak(gptj, work, zero(3, n, offload=2)) for n in (2, 4))
    assert static(two) == static(four) == 0
    assert four.total_bytes == pytest.approx(two.total_bytes, rel=0.01)
    assert two.total_bytes > 4 * GIB  # far above the 0.77 GB of the state-only estimate


def test_host_memory_of_full_offload_exceeds_a_small_host() -> None:
    """microsoft/DeepSpeed#4867: 15.5B on one node of 8 with 256 GB of host memory."""
    starchat = llama(
        hidden_size=6144,
        num_hidden_layers=40,
        intermediate_size=24576,
        num_attention_heads=48,
        num_key_value_heads=1,
        head_dim=128,
        gated_mlp=False,
        vocab_size=49152,
        tie_word_embeddings=True,
    )
    assert count_parameters(starchat).total == pytest.approx(15.5e9, rel=0.02)
    host = host_memory(starchat, machine(8), Workload(), zero(3, 8, offload=1), CALIBRATION)
    assert host.offload_bytes >= 18 * count_parameters(starchat).total
    assert host.total_bytes > 256e9
    assert host.total_bytes == host.process_bytes + max(host.offload_bytes, host.loading_bytes)
    none = host_memory(starchat, machine(8), Workload(), zero(3, 8), CALIBRATION)
    assert none.offload_bytes == 0


def test_host_memory_of_two_nodes_is_per_node() -> None:
    """The states of one node's ranks, not of all: DeepSpeed's own estimator multiplies by all GPUs."""
    one = host_memory(LLAMA_7B, machine(8), Workload(), zero(2, 8, offload=1), CALIBRATION)
    eight = host_memory(LLAMA_7B, machine(64), Workload(), zero(2, 64, offload=1), CALIBRATION)
    assert eight.offload_bytes < one.offload_bytes / 3
    assert eight.loading_bytes == one.loading_bytes == 8 * 2.0 * P7


def test_verdict_bands() -> None:
    """83e9 bytes on an 80 GB card that shows 79.35 GiB: tight. Columns as scalars."""
    limit = 79.35 * GIB
    assert VERDICTS[int(verdict(83e9, limit))] == "tight"
    assert VERDICTS[int(verdict(60e9, limit))] == "fits"
    assert VERDICTS[int(verdict(86e9, limit))] == "no"
    column = numpy.array([60e9, 83e9, 86e9])
    assert list(verdict(column, limit)) == [0, 1, 2]


def test_gpt_175b_totals_agree_with_the_formula_consensus() -> None:
    """GPT-3 175B, tp 8, pp 8, 64 A100: 59.27 GiB by Megatron-LM's script, embeddings included."""
    from tests.estimate.shapes import GPT_175B

    work = Workload(sequence_length=2048, precision="fp16", attention="eager", dropout=True)
    found = peak(
        GPT_175B,
        work,
        megatron(pp=8, dp=1, dp_shard=1, virtual_pipeline_stages=3, recompute=1, gradient_accumulation_steps=64),
    )
    ours = found.total_bytes - found.framework_bytes
    assert ours / GIB == pytest.approx(59.27, rel=0.02)


def test_instances_of_the_distributed_optimizer_divide_within_themselves() -> None:
    """--num-distributed-optimizer-instances 2: states over half of the data-parallel ranks."""
    work = Workload(sequence_length=512)
    whole = peak(LLAMA_7B, work, megatron(pp=1, dp=4, dp_shard=4))
    halves = peak(LLAMA_7B, work, megatron(pp=1, dp=4, dp_shard=2))
    assert halves.optimizer_bytes == pytest.approx(2.0 * whole.optimizer_bytes)
    assert halves.parameters_bytes == whole.parameters_bytes


def test_lora_and_qlora_keep_a_frozen_base() -> None:
    adapters = lora_parameters(LLAMA_7B, 16, "all-linear")
    work = Workload(sequence_length=1024, method="lora")
    lora = peak(LLAMA_7B, work, Strategy(framework="ddp", recompute=2), machine(1))
    assert lora.parameters_bytes == pytest.approx(2.0 * P7 + (4 + 2) * adapters, rel=1e-3)
    assert lora.optimizer_bytes == 8.0 * adapters
    assert lora.gradients_bytes <= 4.0 * adapters
    qlora = peak(LLAMA_7B, Workload(sequence_length=1024, method="qlora"), Strategy(framework="ddp", recompute=2))
    linear = P7 - 2 * 32000 * 4096 - 65 * 4096
    packed = linear * 4.127 / 8 + 2.0 * (P7 - linear)
    assert qlora.parameters_bytes == pytest.approx(packed + 6 * adapters, rel=1e-3)
    three = peak(LLAMA_7B, work, zero(3, 8))
    assert three.parameters_bytes == pytest.approx((2.0 * P7 + 2.0 * adapters) / 8)
    two = peak(LLAMA_7B, work, zero(2, 8))
    assert two.parameters_bytes == 2.0 * P7 + 2.0 * adapters


def test_ddp_is_twenty_two_bytes_a_parameter_with_autocast() -> None:
    """4 parameters, 2 casts (not of the token table), 4 gradients, 4 buckets, 8 Adam; one rank has no buckets."""
    strategy = Strategy(framework="ddp", dp=8, dp_shard=8, gradient_accumulation_steps=4)
    found = peak(LLAMA_7B, Workload(sequence_length=512), strategy)
    assert (static(found) + found.communication_buffers_bytes) / P7 == pytest.approx(
        22 - 2 * 32000 * 4096 / P7, rel=1e-4
    )
    alone = peak(LLAMA_7B, Workload(), Strategy(framework="ddp", gradient_accumulation_steps=4))
    assert alone.communication_buffers_bytes == 0
    single = peak(LLAMA_7B, Workload(precision="fp32"), strategy)
    assert single.parameters_bytes == 4.0 * P7


def test_hybrid_sharding_divides_by_its_group() -> None:
    work = Workload(sequence_length=4096)
    full, hybrid = peak(LLAMA_70B, work, fsdp(64)), peak(LLAMA_70B, work, fsdp(64, dp_shard=8))
    assert hybrid.optimizer_bytes == pytest.approx(8 * full.optimizer_bytes)
    assert hybrid.parameters_bytes == pytest.approx(8 * full.parameters_bytes)


def test_experts_divide_by_their_own_grid() -> None:
    """16-bit and float32 copies by ep etp; states by the expert data-parallel size dp cp t / (ep etp)."""
    work = Workload(sequence_length=4096)
    grid = {"tp": 1, "etp": 1, "pp": 1, "dp": 8, "dp_shard": 8, "sequence_parallel": 0}
    counted = count_parameters(MIXTURE)
    experts = sum(layer.routed_experts for layer in counted.layers)
    padding = 0 if 128256 % 128 == 0 else 1
    assert not padding
    dense = counted.total - experts
    one, eight = peak(MIXTURE, work, megatron(**grid)), peak(MIXTURE, work, megatron(**grid, ep=8))
    assert one.parameters_bytes == 2.0 * (dense + experts)
    assert eight.parameters_bytes == 2.0 * (dense + experts / 8)
    assert one.optimizer_bytes == pytest.approx(12.0 * (dense + experts) / 8)
    assert eight.optimizer_bytes == pytest.approx(12.0 * (dense / 8 + experts / 8))


def test_a_tied_head_is_copied_to_the_last_stage() -> None:
    work = Workload(sequence_length=2048)
    tied, untied = llama(tie_word_embeddings=True), llama()
    split = megatron(tp=1, etp=1, pp=2, dp=1, zero_stage=0, sequence_parallel=0)
    whole = megatron(tp=1, etp=1, pp=1, dp=1, zero_stage=0, sequence_parallel=0)
    assert peak(tied, work, split).parameters_bytes == peak(untied, work, split).parameters_bytes
    assert peak(untied, work, whole).parameters_bytes - peak(tied, work, whole).parameters_bytes == 2.0 * 128256 * 4096


def test_cpu_has_no_context() -> None:
    import msgspec

    from tests.estimate.machines import CPU

    box = msgspec.structs.replace(machine(2), accelerator=CPU, nodes=1, gpus_per_node=2)
    assert peak(LLAMA_7B, Workload(), zero(2, 2), box).framework_bytes == 0


def test_a_measurement_sees_part_of_the_estimate() -> None:
    box, strategy = machine(8), zero(2, 8)
    found = peak(LLAMA_7B, Workload(), strategy, box)
    allocated, reserved, device = (
        as_measured(found, box.accelerator, strategy, CALIBRATION, basis)
        for basis in ("allocated", "reserved", "device")
    )
    assert allocated < reserved < device == found.total_bytes


def test_every_equation_of_an_estimate_is_traced() -> None:
    with trace() as steps:
        peak(MIXTURE, Workload(), megatron(tp=1, etp=1, ep=8, dp=8, sequence_parallel=0))
    anchors = {step.anchor for step in steps}
    assert {"A1", "A3", "A5", "A6", "A10", "A13", "A17", "M8", "M11", "M13", "M14"} <= anchors


MODELS: dict[str, ModelSpec] = {"dense": LLAMA_7B, "mixture": MIXTURE, "large": LLAMA_405B}


@st.composite
def layouts(draw: st.DrawFn) -> Strategy:
    framework = draw(st.sampled_from(["ddp", "deepspeed", "fsdp", "megatron"]))
    is_megatron = framework == "megatron"
    power = st.integers(0, 3).map(lambda n: 2**n)
    tp, pp = (draw(power), draw(st.sampled_from([1, 2, 4]))) if is_megatron else (1, 1)
    dp = draw(power)
    return Strategy(
        framework=framework,
        tp=tp,
        pp=pp,
        cp=draw(st.sampled_from([1, 2])) if is_megatron else 1,
        ep=draw(st.sampled_from([1, 2, 8])) if is_megatron else 1,
        etp=draw(st.sampled_from([1, tp])),
        dp=dp,
        dp_shard=dp,
        virtual_pipeline_stages=draw(st.sampled_from([1, 2])) if pp > 1 else 1,
        zero_stage=draw(st.integers(0, 1 if is_megatron else 3)),
        hpz=draw(st.sampled_from([1, 8])),
        micro_batch_size=draw(st.integers(1, 4)),
        gradient_accumulation_steps=draw(st.sampled_from([1, 2, 16])),
        sequence_parallel=draw(st.integers(0, 1)),
        recompute=draw(st.integers(0, 2)),
        recompute_layers=draw(st.sampled_from([0, 2, 4])) if is_megatron else 0,
        offload=draw(st.integers(0, 2)) if framework == "deepspeed" else 0,
        cp_method=draw(st.sampled_from(CP_METHODS)) if is_megatron else "p2p",
    )


@settings(max_examples=60, deadline=None)
@given(layouts(), st.sampled_from(sorted(MODELS)), st.sampled_from(["full", "lora"]), st.sampled_from(["bf16", "fp32"]))
def test_columns_equal_scalars_and_parts_sum(strategy: Strategy, name: str, method: str, precision: str) -> None:
    work = Workload(sequence_length=2048, method=method, precision=precision)
    columns = Strategy(
        **{
            field: value if isinstance(value := getattr(strategy, field), str) else numpy.array([value, value])
            for field in strategy.__struct_fields__
        }
    )
    one = memory(MODELS[name], machine(8), work, strategy, CALIBRATION)
    many = memory(MODELS[name], machine(8), work, columns, CALIBRATION)
    hosts = [host_memory(MODELS[name], machine(8), work, s, CALIBRATION).total_bytes for s in (strategy, columns)]
    assert float(hosts[0]) == float(numpy.broadcast_to(hosts[1], 2)[1])
    parts = 0.0
    for field in one.__struct_fields__:
        scalar = float(getattr(one, field))
        assert scalar >= 0.0
        assert scalar == float(numpy.broadcast_to(getattr(many, field), 2)[1])
        parts += scalar
    assert parts == one.total_bytes


@settings(max_examples=60, deadline=None)
@given(layouts(), st.sampled_from(sorted(MODELS)))
def test_more_ranks_or_less_work_never_cost_memory(strategy: Strategy, name: str) -> None:
    import msgspec

    work = Workload(sequence_length=2048)

    def total(**changes: int) -> float:
        changed = msgspec.structs.replace(strategy, **changes)
        return float(peak(MODELS[name], work, changed, machine(8)).total_bytes)

    base = total(dp=max(strategy.dp, 2), dp_shard=max(strategy.dp, 2))
    assert total(dp=2 * max(strategy.dp, 2), dp_shard=2 * max(strategy.dp, 2)) <= base
    assert total(micro_batch_size=strategy.micro_batch_size + 1) >= total()
    assert total(recompute=2) <= total(recompute=0)
    if strategy.framework == "megatron" and strategy.tp > 1:
        assert total(sequence_parallel=1) <= total(sequence_parallel=0) * 1.02


def test_a_trillion_parameters_on_a_hundred_thousand_gpus() -> None:
    """Products of whole numbers overflow 64 bits silently; these stay exact."""
    kimi = llama(
        hidden_size=7168,
        num_hidden_layers=61,
        intermediate_size=18432,
        num_experts=384,
        num_experts_per_tok=8,
        moe_intermediate_size=2048,
        vocab_size=163840,
    )
    gpus = numpy.array([131072, 98304])
    strategy = Strategy(
        framework="megatron",
        tp=numpy.array([8, 8]),
        etp=numpy.array([1, 1]),
        pp=numpy.array([16, 16]),
        ep=numpy.array([64, 64]),
        dp=gpus // 128,
        dp_shard=gpus // 128,
        zero_stage=numpy.array([1, 1]),
        micro_batch_size=numpy.array([1, 1]),
        gradient_accumulation_steps=numpy.array([1024, 1024]),
    )
    found = memory(kimi, machine(131072), Workload(sequence_length=131072), strategy, CALIBRATION)
    for row in range(2):
        one = memory(kimi, machine(131072), Workload(sequence_length=131072), strategy.take(row), CALIBRATION)
        assert one.total_bytes == found.total_bytes[row] > 0
    everything = memory(kimi, machine(131072), Workload(), zero(3, 131072), CALIBRATION)
    assert 0 < everything.optimizer_bytes < 1e9


def test_figures_of_published_tables_are_present() -> None:
    assert published("megatron_memory.toml")["dry_run"]["static_mib"][0] == 24859


def test_the_smallest_adapters_cost_no_negative_bytes() -> None:
    work = Workload(method="lora", lora_rank=1, lora_targets="attention")
    found = peak(LLAMA_7B, work, Strategy(framework="ddp", dp=2, dp_shard=2))
    assert all(getattr(found, field) >= 0 for field in found.__struct_fields__)
    assert found.parameters_bytes >= 2.0 * P7


def test_fsdp_stage_2_keeps_every_layer_gathered() -> None:
    work = Workload(sequence_length=2048)
    three, two = peak(LLAMA_7B, work, fsdp(8)), peak(LLAMA_7B, work, fsdp(8, zero_stage=2))
    assert two.communication_buffers_bytes - three.communication_buffers_bytes > P7  # nearly 2 P more
    off = peak(LLAMA_7B, work, fsdp(8, offload=2))
    assert static(off) == 0


@pytest.mark.parametrize("framework", ["ddp", "fsdp", "deepspeed", "megatron"])
@pytest.mark.parametrize("recompute", [0, 1, 2])
def test_the_peak_is_the_largest_of_moments_that_grow_with_the_micro_batch(framework: str, recompute: int) -> None:
    """So the total is convex in the micro batch, and never falls.

    Parts need not be straight lines: where the peak leaves the loss for the first layer that runs again, its
    activations join what is kept, and gathered units are no longer what fills that room.
    """
    totals = []
    for micro in range(1, 9):
        strategy = Strategy(
            framework=framework,
            dp=8,
            dp_shard=8,
            zero_stage={"ddp": 0, "megatron": 1}.get(framework, 3),
            micro_batch_size=micro,
            recompute=recompute,
        )
        workload = Workload(sequence_length=4096, global_batch_size=8 * micro)
        totals.append(peak(LLAMA_7B, workload, strategy, machine(8)).total_bytes)
    steps = [after - before for before, after in zip(totals, totals[1:], strict=False)]
    assert steps[0] >= 0.0
    assert all(later >= earlier * (1.0 - 1e-9) for earlier, later in zip(steps, steps[1:], strict=False))
