"""ZeRO on the device against the bytes that DeepSpeed 0.19.8 allocates, and the knobs of its buckets."""

from __future__ import annotations

import pytest

from tests.estimate.shapes import LLAMA_7B, MIB, TINY, fsdp, llama, peak, published, static, zero
from toolkit import deepspeed_defaults as defaults
from toolkit.estimate.layout import stages, tables
from toolkit.estimate.memory import stage_share
from toolkit.estimate.memory_deepspeed import (
    bucket_bytes,
    deepspeed_states,
    live_bytes,
    secondary_bytes,
    shared_bytes,
    sub_group_step_bytes,
)
from toolkit.estimate.parameters import count_parameters
from toolkit.estimate.partition import flat_sizes, fullest_partition
from toolkit.estimate.precision import state_precision
from toolkit.estimate.states import States
from toolkit.model import ModelSpec
from toolkit.strategy import Strategy
from toolkit.workload import Workload

FIGURES = published("deepspeed_memory.toml")
EIGHT_B = FIGURES["8b"]


def states(model: ModelSpec, strategy: Strategy, **workload: object) -> States:
    work = Workload(**workload)  # type: ignore[arg-type]
    table = tables(model, work, "deepspeed")
    share = stage_share(model, strategy, table, stages(model, strategy, table)[0])
    return deepspeed_states(model, work, strategy, share, state_precision(work, "deepspeed"))


def test_tiny_engine_byte_for_byte() -> None:
    tiny, ranks = FIGURES["tiny"], FIGURES["tiny"]["ranks"]
    parameters = count_parameters(TINY).total
    assert parameters == tiny["parameters"]
    one = states(TINY, zero(1, ranks))
    assert one.parameters == tiny["zero1_parameters"]
    assert one.accumulated == tiny["zero1_gradients"]
    assert one.optimizer == tiny["zero1_master"] + 8 * parameters / ranks
    assert one.handed >= tiny["zero1_kept"]  # of rank 0; ours are of the fullest
    wide = states(TINY, zero(1, ranks), gradient_accumulation_dtype="fp32")
    total = wide.parameters + wide.optimizer + wide.gradients + wide.accumulated
    assert total == tiny["zero1_fp32_accumulation_per_parameter"] * parameters
    for precision, key in (("bf16", "zero3_states_per_shard_element"), ("fp32", "zero3_fp32_states_per_shard_element")):
        three = states(TINY, zero(3, ranks), precision=precision)
        assert three.parameters + three.optimizer + three.gradients == tiny[key] * parameters / ranks


def test_llama_3_8b_on_64_ranks_byte_for_byte() -> None:
    model, ranks = llama(), EIGHT_B["ranks"]
    assert count_parameters(model).total == EIGHT_B["parameters"]
    three = states(model, zero(3, ranks))
    assert three.parameters == EIGHT_B["zero3_parameters"]
    assert three.gradients == EIGHT_B["zero3_gradients"]
    assert three.optimizer == EIGHT_B["zero3_master"] + EIGHT_B["zero3_adam"]
    assert secondary_bytes(EIGHT_B["parameters"], 2.0, 8) == EIGHT_B["hpz8_secondary"]
    # rank 0 holds the gradient of the embedding; the fullest rank reaches into a layer beside it, or the head
    sizes = flat_sizes(model, count_parameters(model))
    assert 2 * sizes[0] == EIGHT_B["zero2_kept_rank_0"]
    fullest = 2 * fullest_partition(sizes, ranks)
    assert EIGHT_B["zero2_kept_rank_0"] < fullest < 1.5 * EIGHT_B["zero2_kept_rank_0"]
    assert fullest > 4 * 2 * EIGHT_B["parameters"] / ranks  # not the textbook's 2 P / W


def test_fp32_accumulation_in_zero_2_is_a_flat_partition() -> None:
    two = states(llama(), zero(2, 64), gradient_accumulation_dtype="fp32")
    assert two.gradients == 4 * EIGHT_B["parameters"] / 64
    assert two.accumulated == 0


@pytest.mark.parametrize(
    ("stage", "layers", "key"), [(1, 4, "zero1_4_layers_mib"), (2, 4, "zero2_4_layers_mib"), (3, 32, "zero3_mib")]
)
def test_peak_of_an_engine(stage: int, layers: int, key: str) -> None:
    """Within 5 % of the counted peak (its CPU attention keeps one copy of its output more than ours)."""
    figures = FIGURES["peaks"]
    model = llama(num_hidden_layers=layers)
    found = peak(model, Workload(sequence_length=2048), zero(stage, 64))
    ours = found.total_bytes - found.framework_bytes
    buckets = {1: 2, 2: 2, 3: 1}[stage]
    ours -= buckets * 2.0 * defaults.reduce_bucket_elements(4096)
    # the counted engine had one bucket of 5e8 elements; ZeRO-2 peaks at the logits, before it exists
    ours += 0 if stage == 2 else figures["bucket_mib"] * MIB
    assert ours / MIB == pytest.approx(figures[key], rel=0.05)


def test_peak_of_fsdp2() -> None:
    figures = FIGURES["peaks"]
    found = peak(llama(), Workload(sequence_length=2048), fsdp(64, gradient_accumulation_steps=2))
    assert found.parameters_bytes / MIB == pytest.approx(figures["fsdp2_parameters_mib"], abs=0.01)
    assert found.optimizer_bytes / MIB == pytest.approx(figures["fsdp2_states_mib"], abs=0.01)
    assert found.communication_buffers_bytes / MIB == pytest.approx(2 * figures["fsdp2_tail_mib"], rel=1e-4)
    assert (found.total_bytes - found.framework_bytes) / MIB == pytest.approx(figures["fsdp2_mib"], rel=0.001)


def test_bucket_knobs_explain_what_users_measured() -> None:
    """Rank order of the five settings, and every difference to 4 MiB."""
    knobs = FIGURES["knobs"]
    ours = [
        bucket_bytes(size, 2.0, overlap, contiguous)
        for size, overlap, contiguous in zip(knobs["bucket"], knobs["overlap"], knobs["contiguous"], strict=True)
    ]
    measured = knobs["measured_mb"]
    assert sorted(range(5), key=ours.__getitem__) == sorted(range(5), key=measured.__getitem__)
    for mine, theirs in zip(ours, measured, strict=True):
        assert (mine - ours[-1]) / MIB == pytest.approx(theirs - measured[-1], abs=4)


def test_live_parameters_of_zero_3() -> None:
    assert live_bytes(5e8, 2.0, 1e9, 1e7, 1e6) == 2 * 5e8  # a small model is gathered whole
    assert live_bytes(7e9, 2.0, 1e9, 1e7, 1e6) == 2 * (1e9 + 1e7)
    assert live_bytes(671e9, 2.0, 1e9, 1e7, 7.5e9) == 2 * (7.5e9 + 1e7)  # a tensor above the limit


def test_stages_shard_one_kind_of_state_after_another() -> None:
    """ZeRO, arXiv 1910.02054 figure 1: 16 P, 4 P + 12 P/N, 2 P + 14 P/N, 16 P/N for 7.5 B on 64 ranks."""
    model = LLAMA_7B
    parameters = float(count_parameters(model).total)
    found = [states(model, zero(stage, 64)) for stage in range(4)]
    assert found[0].parameters + found[0].optimizer + found[0].accumulated == 16 * parameters
    assert found[1].parameters + found[1].optimizer + found[1].accumulated == pytest.approx((4 + 12 / 64) * parameters)
    assert found[2].parameters + found[2].optimizer == pytest.approx((2 + 12 / 64) * parameters)
    assert found[3].parameters + found[3].optimizer + found[3].gradients == pytest.approx(16 / 64 * parameters)
    assert shared_bytes(7.5e9, 16.0, 64) == pytest.approx(1.875e9)  # 1.9 GB in the figure


def test_offload_leaves_parameters_or_nothing_on_the_device() -> None:
    model = LLAMA_7B
    parameters = float(count_parameters(model).total)
    optimizer = states(model, zero(2, 8, offload=1))
    assert (optimizer.parameters, optimizer.optimizer, optimizer.accumulated) == (2 * parameters, 0, 0)
    both = states(model, zero(3, 8, offload=2))
    assert (both.parameters, both.optimizer, both.gradients, both.step) == (0, 0, 0, 0)


def test_gradients_count_once_per_peak() -> None:
    """Accumulation keeps gradients beside all activations; one micro batch frees the room that they take."""
    work = Workload(sequence_length=4096)
    one = peak(LLAMA_7B, work, zero(1, 8, gradient_accumulation_steps=1))
    many = peak(LLAMA_7B, work, zero(1, 8, gradient_accumulation_steps=8))
    assert many.total_bytes > one.total_bytes
    assert many.gradients_bytes >= 2.0 * count_parameters(LLAMA_7B).total
    assert static(one) < static(many)


def test_zero_3_holds_float32_gradients_of_one_sub_group_in_the_step() -> None:
    """``stage3.py:2683``: 4 bytes for each element of the shard, at most those of a sub group (1e9)."""
    assert sub_group_step_bytes(8.0e9, 8, 1.0e9) == 4.0e9
    assert sub_group_step_bytes(80.0e9, 8, 1.0e9) == 4.0e9
    assert sub_group_step_bytes(8.0e9, 64, 1.0e9) == 0.5e9


@pytest.mark.parametrize("stage", [1, 2])
def test_offloaded_gradients_are_in_host_memory_in_the_optimizer_step_too(stage: int) -> None:
    """The CPU optimizer updates on the host (``stage_1_and_2.py:570-590``): no gradient is left on the device."""
    offloaded = states(LLAMA_7B, zero(stage, 8, offload=1))
    assert offloaded.handed == offloaded.step == 0.0
    # stage 1 moves them after the last micro batch, stage 2 after every one (counted in dry runs)
    assert offloaded.accumulated == (2.0 * count_parameters(LLAMA_7B).total if stage == 1 else 0.0)
    assert states(LLAMA_7B, zero(stage, 8)).final > 0.0
