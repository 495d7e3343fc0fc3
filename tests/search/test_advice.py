"""Advice follows from the numbers of a strategy: each kind where it holds, and none where it does not."""

from __future__ import annotations

import pytest

from tests.requests import request_for
from toolkit.registry.calibrations import load_calibration
from toolkit.search.advice import advice
from toolkit.search.planner import choose
from toolkit.strategy import Strategy

CALIBRATION = load_calibration("assumed")


def said(request, **strategy) -> str:
    degrees = {"dp": request.cluster.num_gpus, "dp_shard": request.cluster.num_gpus} | strategy
    return " | ".join(advice(request, choose(request, CALIBRATION, Strategy(**degrees))))


def test_replicated_and_sharded_states_are_told_apart() -> None:
    """ZeRO-2 of Llama-2-7B on 8 GPUs: 2 P = 12.55 GiB stay whole, an fp32 load would make it 4 P = 25.1 GiB."""
    words = said(request_for(gpus=8), zero_stage=2)
    assert "12.55 GiB of parameters are replicated" in words
    assert "sharded over 8" in words
    assert "float32" not in words
    assert "replicates 25.1 GiB, and does not fit" in said(request_for(gpus=8, accelerator="v100-32gb"), zero_stage=2)
    assert "replicated" not in said(request_for(gpus=8), zero_stage=3)
    assert "replicated" not in said(request_for(gpus=8), framework="megatron", tp=8, dp=1, dp_shard=1, zero_stage=1)


@pytest.mark.parametrize(
    ("degrees", "experts", "spread"),
    [
        ({"ep": 8, "dp": 128}, 16, "ep 8"),
        ({"ep": 64, "dp": 128}, 2, "ep 64"),
        ({"ep": 128, "dp": 128}, 1, "ep 128"),
        ({"ep": 8, "tp": 2, "etp": 2, "dp": 64, "sequence_parallel": 1}, 8, "ep 8 x etp 2"),
        ({"ep": 8, "tp": 2, "etp": 1, "dp": 64, "sequence_parallel": 1}, 16, "ep 8"),
        ({"ep": 8, "cp": 2, "dp": 64}, 16, "ep 8"),
        ({"ep": 1, "tp": 4, "etp": 1, "dp": 32, "sequence_parallel": 1}, 128, "ep 1"),
    ],
)
def test_experts_are_the_same_on_fewer_ranks_than_all_else(degrees: dict[str, int], experts: int, spread: str) -> None:
    """Ranks that hold the same experts: dp cp tp / (ep etp); dense parameters are the same on dp cp."""
    request = request_for(model="deepseek-v3", gpus=128, framework="megatron")
    degrees = {
        "framework": "megatron",
        "zero_stage": 1,
        "dp_shard": degrees["dp"],
        "gradient_accumulation_steps": 1,
    } | degrees
    words = said(request, **degrees)
    ranks = degrees["dp"] * degrees.get("cp", 1)
    assert "every data-parallel rank however many" not in words
    assert f"the same on all {ranks} data-parallel ranks" in words
    assert f"spread by {spread}" in words and f"sharded over {ranks} ranks, those of experts over {experts}" in words
    assert ("on one rank only" if experts == 1 else f"are the same on {experts};") in words


def test_experts_that_follow_all_else_need_no_word() -> None:
    request = request_for(model="mixtral-8x7b", gpus=8, framework="megatron")
    words = said(request, framework="megatron", zero_stage=1, tp=2, etp=2, dp=4, dp_shard=4, sequence_parallel=1)
    assert "every data-parallel rank" in words and "expert" not in words


def test_logits_of_a_large_vocabulary_are_named() -> None:
    """4096 x 151,936 x (2 + 4 + 4) bytes = 5.8 GiB for a 3B (NeMo Automodel pull request 2336)."""
    request = request_for(model="qwen2.5-3b", gpus=8, sequence_length=4096)
    words = said(request, zero_stage=2)
    assert "151,936 words" in words and "5.796 GiB" in words and "fused or chunked" in words
    assert "fused or chunked" not in said(request_for(gpus=8), zero_stage=2)


def test_logits_that_are_the_largest_part_are_called_so() -> None:
    words = said(request_for(model="qwen2.5-0.5b", gpus=8), zero_stage=2, micro_batch_size=4, recompute=2)
    assert "its largest part" in words


def test_full_offload_leaves_a_working_set_that_more_gpus_do_not_shrink() -> None:
    """GPT-J-6B took 13 GB on 2 GPUs and on 4 (DeepSpeed issue 4093)."""
    totals = []
    for gpus in (2, 4):
        request = request_for(model="gpt-j-6b", gpus=gpus, accelerator="a100-80gb")
        assert "more GPUs hardly change it" in said(request, zero_stage=3, offload=2)
        strategy = Strategy(dp=gpus, dp_shard=gpus, zero_stage=3, offload=2)
        totals.append(choose(request, CALIBRATION, strategy).estimate.memory.total_bytes)
    assert abs(totals[1] / totals[0] - 1) < 0.02
    assert "hardly" not in said(request_for(gpus=8), zero_stage=3, offload=1)


def test_what_overflows_the_host_is_no_fit() -> None:
    """A 15.5B with everything offloaded needs some 350 GB, and a node of 256 GB was killed (DeepSpeed issue 4867)."""
    request = request_for(model="starcoder", gpus=8, accelerator="rtx-4090")
    strategy = Strategy(dp=8, dp_shard=8, zero_stage=3, offload=2, recompute=2)
    choice = choose(request, CALIBRATION, strategy)
    assert choice.estimate.memory.total_bytes < choice.limit_bytes
    assert choice.verdict == "no"
    assert "host memory on a node that has 256 GiB" in said(request, zero_stage=3, offload=2, recompute=2)


def test_padding_of_the_vocabulary_is_stated() -> None:
    """32,000 words over tp 8 are 32,768 rows, over tp 1 and 2 they need none."""
    request = request_for(gpus=8)
    words = said(request, framework="megatron", tp=8, etp=8, dp=1, dp_shard=1)
    assert "padded to 32,768 rows (a multiple of 128 x tp 8)" in words
    assert "padded" not in said(request, framework="megatron", tp=2, etp=2, dp=4, dp_shard=4)
    assert "padded" not in said(request, zero_stage=2)


def test_packed_samples_follow_the_context_axis() -> None:
    """cp 4 with tp 8 and sequence parallelism: cp x lcm(2, tp) = 32, not lcm(2 cp, tp) = 8."""
    request = request_for(gpus=32)
    degrees = {"framework": "megatron", "tp": 8, "etp": 8, "cp": 4, "dp": 1, "dp_shard": 1}
    assert "multiple of 32 tokens" in said(request, **degrees, sequence_parallel=1)
    assert "multiple of 8 tokens" in said(request, **degrees)


def test_what_mostly_waits_is_told() -> None:
    request = request_for(model="gpt2", gpus=1024, sequence_length=1024, global_batch=1024)
    assert "fewer GPUs or a larger global batch" in said(request, framework="ddp")
    assert "waste less" not in said(request_for(gpus=8, global_batch=64), zero_stage=1)


def test_the_convention_of_mfu_is_told_where_attention_is_large() -> None:
    """Llama-3.1-8B at 131,072 tokens: attention is three quarters of the model FLOP, and half of it is executed."""
    long = said(request_for(model="llama-3.1-8b", gpus=64, sequence_length=131072, global_batch=64), zero_stage=3)
    assert "causal kernels do half of it" in long
    assert "causal kernels" not in said(request_for(gpus=8), zero_stage=3)
