"""Bytes by axis against counted and published figures."""

import tomllib
from pathlib import Path

import pytest

from tests.estimate.machines import CALIBRATION, cluster, gpt, llama, mixture, timed
from toolkit.estimate.collectives import ring_bytes
from toolkit.estimate.communication import communication
from toolkit.estimate.data_parallel import gradient_bytes
from toolkit.estimate.parameters import count_parameters, lora_parameters
from toolkit.strategy import Strategy
from toolkit.workload import Workload

PUBLISHED = Path(__file__).parent.parent / "published"
COUNTED = tomllib.loads((PUBLISHED / "deepspeed_collectives.toml").read_text())["counted"]
SMALL = gpt(2, 64, 4, 256, intermediate_size=176)


@pytest.mark.parametrize("row", COUNTED, ids=lambda row: f"zero{row['stage']}-gas{row['accumulation']}")
def test_deepspeed_sends_what_was_counted(row: dict[str, int]) -> None:
    """All-reduce, all-gather and reduce-scatter of 2 P bytes over 8 ranks, as many as DeepSpeed 0.19.8 makes."""
    strategy = Strategy(
        framework="deepspeed",
        dp=8,
        dp_shard=8,
        zero_stage=row["stage"],
        gradient_accumulation_steps=row["accumulation"],
    )
    sent = communication(SMALL, cluster(8), Workload(sequence_length=128), strategy, CALIBRATION)
    message = 2.0 * count_parameters(SMALL).total
    times = 2 * row["all_reduce"] + row["all_gather"] + row["reduce_scatter"]
    assert sent.dp_bytes == pytest.approx(times * ring_bytes(8, message), rel=1e-12)


def test_zero_3_gathers_again_beyond_the_live_limit() -> None:
    """Of a 70B model all but 1e9 parameters (stage3_max_live_parameters) are gathered twice per micro batch."""
    model = llama(80, 8192, 64)
    strategy = Strategy(framework="deepspeed", dp=64, dp_shard=64, zero_stage=3)
    sent = communication(model, cluster(64), Workload(), strategy, CALIBRATION)
    total = count_parameters(model).total
    expected = ring_bytes(64, 2.0 * (3 * total - 1e9))
    assert sent.dp_bytes == pytest.approx(expected, rel=1e-9)


def test_hpz_keeps_the_second_gather_inside() -> None:
    """ZeRO++ (arXiv 2306.10209, section 3.2): the backward gather stays in a group of 8, so it costs less."""
    model = llama(80, 8192, 64)
    plain = Strategy(framework="deepspeed", dp=64, dp_shard=64, zero_stage=3)
    grouped = Strategy(framework="deepspeed", dp=64, dp_shard=64, zero_stage=3, hpz=8)
    thin = cluster(64, outside=6.25e9)
    slow, fast = (communication(model, thin, Workload(), s, CALIBRATION) for s in (plain, grouped))
    assert fast.dp_seconds < 0.8 * slow.dp_seconds


def test_fsdp_hybrid_moves_traffic_inside() -> None:
    """Shards of 8 in a node: gathers stay inside, 1/8 of the gradients crosses nodes; the head is gathered once."""
    model = llama()
    full = Strategy(framework="fsdp", dp=64, dp_shard=64, zero_stage=3)
    hybrid = Strategy(framework="fsdp", dp=64, dp_shard=8, zero_stage=3)
    thin = cluster(64, outside=6.25e9)
    wide, near = (communication(model, thin, Workload(), s, CALIBRATION) for s in (full, hybrid))
    assert near.dp_seconds < 0.9 * wide.dp_seconds
    message = 2.0 * count_parameters(model).total
    head = 2.0 * count_parameters(model).head
    expected = 3 * ring_bytes(8, message) - ring_bytes(8, head) + 2 * ring_bytes(8, message / 8)
    assert near.dp_bytes == pytest.approx(expected, rel=1e-9)


def test_megatron_distributed_optimizer() -> None:
    """Gradients scattered in fp32, parameters gathered in bf16: 6 P instead of 8 P for an all-reduce in fp32."""
    model, total = gpt(24, 2048, 16), count_parameters(gpt(24, 2048, 16)).total
    plain, sharded = (
        communication(
            model,
            cluster(32),
            Workload(),
            Strategy(framework="megatron", dp=32, dp_shard=32, zero_stage=z),
            CALIBRATION,
        )
        for z in (0, 1)
    )
    assert plain.dp_bytes == pytest.approx(2 * ring_bytes(32, 4.0 * total), rel=1e-12)
    assert sharded.dp_bytes == pytest.approx(ring_bytes(32, 6.0 * total), rel=1e-12)


@pytest.mark.parametrize("sequence_parallel", [0, 1])
def test_tensor_parallel_bytes(sequence_parallel: int) -> None:
    """Four all-reduces of b*s*h per layer and micro batch (Megatron-LM, section 3); SP gathers two inputs again."""
    model = gpt(24, 2048, 16)
    strategy = Strategy(framework="megatron", tp=8, sequence_parallel=sequence_parallel, micro_batch_size=2)
    sent = communication(model, cluster(8), Workload(sequence_length=1024), strategy, CALIBRATION)
    message = 2 * 1024 * 2048 * 2.0
    assert sent.tp_bytes == ((4 + sequence_parallel) * 24 + 2 + 0.5 * sequence_parallel) * 2 * ring_bytes(8, message)


def test_full_recomputation_repeats_the_forward() -> None:
    """Half as many tensor-parallel collectives again (Narayanan et al. 2021, section 3.5)."""
    model, workload = gpt(24, 2048, 16), Workload(sequence_length=1024)
    none, full = (
        communication(model, cluster(8), workload, Strategy(framework="megatron", tp=8, recompute=r), CALIBRATION)
        for r in (0, 2)
    )
    assert (6 * 24 + 2) * none.tp_bytes == (4 * 24 + 2) * full.tp_bytes


def test_expert_parallel_bytes() -> None:
    """Dispatch and combine, forward and backward: each token to k experts, (ep - 1)/ep of them elsewhere."""
    model = mixture()
    strategy = Strategy(framework="megatron", ep=8, dp=8, dp_shard=8, zero_stage=1)
    sent = communication(model, cluster(8), Workload(sequence_length=1024), strategy, CALIBRATION)
    assert sent.ep_bytes == pytest.approx(4 * 7 * ring_bytes(8, 1024 * 4 * 1024 * 2.0), rel=1e-12)


def test_pipeline_and_context_bytes() -> None:
    """p2p: 2 m v messages; ring attention: keys and values cp - 1 times forward, twice that backward."""
    model = llama()
    workload = Workload(sequence_length=8192)
    pipeline = Strategy(framework="megatron", pp=4, virtual_pipeline_stages=2, gradient_accumulation_steps=8)
    context = Strategy(framework="megatron", cp=4)
    piped = communication(model, cluster(8), workload, pipeline, CALIBRATION)
    ringed = communication(model, cluster(8), workload, context, CALIBRATION)
    assert piped.pp_bytes == 2 * 8 * 2 * 8192 * 4096 * 2.0
    two = Strategy(framework="megatron", pp=2, gradient_accumulation_steps=8)
    ends = communication(model, cluster(8), workload, two, CALIBRATION)
    assert ends.pp_bytes == 8 * 8192 * 4096 * 2.0  # activations from one stage, gradients from the other
    assert ringed.cp_bytes == 32 * 3 * 3 * (8192 / 4) * 2 * 8 * 128 * 2.0


def test_adapters_reduce_only_themselves() -> None:
    """LoRA under ZeRO-2 sends the gradients of the adapters; ZeRO-3 still gathers the frozen base."""
    model = llama()
    lora = Workload(method="lora", lora_rank=16)
    trained = lora_parameters(model, 16)
    two = communication(model, cluster(8), lora, Strategy(dp=8, dp_shard=8, zero_stage=2), CALIBRATION)
    three = communication(model, cluster(8), lora, Strategy(dp=8, dp_shard=8, zero_stage=3), CALIBRATION)
    assert two.dp_bytes == pytest.approx(3 * ring_bytes(8, 2.0 * trained), rel=1e-9)
    assert three.dp_bytes > ring_bytes(8, 2.0 * count_parameters(model).total)


def test_gradient_types() -> None:
    """The framework's own accumulation type unless the workload says otherwise."""
    assert gradient_bytes(Workload(), "megatron") == 4.0
    assert gradient_bytes(Workload(), "deepspeed") == 2.0
    assert gradient_bytes(Workload(gradient_accumulation_dtype="bf16"), "megatron") == 2.0
    assert gradient_bytes(Workload(gradient_accumulation_dtype="fp32"), "fsdp") == 4.0
    assert gradient_bytes(Workload(precision="fp32"), "deepspeed") == 4.0


def test_one_gpu_sends_nothing() -> None:
    """No axis has a second member."""
    sent, _ = timed(llama(), cluster(1), Workload(), Strategy(framework="ddp"))
    assert all(getattr(sent, name) == 0.0 for name in sent.__struct_fields__)


def test_experts_are_reduced_over_the_ranks_that_hold_the_same_part_of_them() -> None:
    """tp 2, dp 8: with etp 1, ep 4 there are 16 / 4 = 4 such ranks; with etp 2, ep 4 there are 16 / 8 = 2.

    Halving the experts of a GPU and its group: each GPU sends 2 (n - 1)/n of its routed gradients.
    """
    model = mixture()
    work = Workload(sequence_length=128)

    def sent(etp: int) -> float:
        strategy = Strategy(
            framework="megatron",
            tp=2,
            dp=8,
            dp_shard=8,
            ep=4,
            etp=etp,
            sequence_parallel=1,
            gradient_accumulation_steps=4,
        )
        return communication(model, cluster(16), work, strategy, CALIBRATION).dp_bytes

    routed = 4.0 * model.mlps.count("E") * model.num_experts * 3 * model.hidden_size * model.moe_intermediate_size
    whole, cut = 2.0 * ring_bytes(4, routed / 4), 2.0 * ring_bytes(2, routed / 8)
    assert sent(1) - sent(2) == pytest.approx(whole - cut, rel=1e-9)
