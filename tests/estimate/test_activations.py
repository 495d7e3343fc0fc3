"""Activations against the equations of Korthikanti et al., a dry run of megatron-core, and identities."""

from __future__ import annotations

import msgspec
import pytest

from tests.estimate.shapes import (
    GIB,
    GPT_7B,
    GPT_175B,
    LLAMA_70B,
    LLAMA_405B,
    MIB,
    MIXTURE,
    activations_of,
    llama,
    megatron,
    of_stages,
    published,
    static,
    transient,
)
from toolkit.estimate.activations import expert_exchange_bytes, kept_bytes
from toolkit.estimate.layer_bytes import layer_bytes
from toolkit.estimate.layout import in_flight
from toolkit.estimate.logits import chunked_logits_bytes, logits_bytes
from toolkit.estimate.selective import selective_bytes
from toolkit.workload import Workload

S, B, H, A = 2048, 1, 12288, 96
PAPER = Workload(sequence_length=S, precision="fp16", attention="eager", dropout=True)
FIGURES = published("megatron_memory.toml")
# a dry run has no kernel that adds to a gradient inside of its product
DRY = Workload(sequence_length=4096, fused_accumulation=False)


def layer(t: int, sequence_parallel: bool, selective: bool) -> float:
    parts = (selective_bytes if selective else layer_bytes)(GPT_175B, PAPER, "megatron", "A", "D")
    return float(kept_bytes(1.0 * S * B, *parts, t if sequence_parallel else 1, t, t, 1.0))


def test_table_2_of_korthikanti_2022_exactly() -> None:
    """Activation memory per layer, arXiv 2205.05198 table 2."""
    sbh, scores = float(S * B * H), 5.0 * A * S / H
    for t in (1, 2, 4, 8):
        assert layer(t, False, False) == pytest.approx(sbh * (10 + 24 / t + scores / t), rel=1e-15)
        assert layer(t, True, False) == pytest.approx(sbh * (34 / t + scores / t), rel=1e-15)
        assert layer(t, True, True) == pytest.approx(sbh * 34 / t, rel=1e-15)
        assert layer(t, False, True) == pytest.approx(sbh * (10 + 24 / t), rel=1e-15)


def test_full_recomputation_keeps_two_bytes_per_input_value() -> None:
    """2 s b h L of the same table; with sequence parallelism the inputs are divided too."""
    one = megatron(tp=1, etp=1, pp=1, sequence_parallel=0, recompute=2, gradient_accumulation_steps=1)
    kept = activations_of(GPT_175B, msgspec.structs.replace(PAPER, dropout=False), one).kept
    head = 4.0 * S * B * H  # input of the final norm and of the head
    assert kept - head == 2.0 * S * B * H * 96


def test_figure_1_of_korthikanti_2022() -> None:
    figure = FIGURES["korthikanti_figure_1"]
    activations = layer(8, True, True) * 96 / 8 * in_flight(8, 3, 64, 0, 1 / 3)
    assert activations / GIB == pytest.approx(figure["activations_gib"], rel=1e-6)
    states = 18.0 * (96 / 8) * 12 * H * H / 8
    assert states / GIB == pytest.approx(figure["parameters_and_optimizer_gib"], rel=1e-6)


def test_micro_batches_in_flight() -> None:
    assert [in_flight(4, 1, 8, k, 1.0) for k in range(4)] == [4, 3, 2, 1]
    assert in_flight(4, 1, 2, 0, 1.0) == 2
    assert in_flight(4, 2, 8, 0, 0.5) == pytest.approx(4 * (1 + 3 / 8))  # 1 + (p - 1) / (p v)
    assert [in_flight(4, 2, 8, k, 0.5) for k in range(4)] == [(4 * 2 + 3 - 2 * k) / 2 for k in range(4)]
    assert in_flight(4, 2, 4, 0, 0.5) == 4  # no more than there are
    assert in_flight(1, 1, 8, 0, 1.0) == 1


def test_a_first_chunk_without_layers_holds_nothing() -> None:
    """Embedding in the place of a layer: of 3 chunks one is empty, the others hold p micro batches each."""
    assert in_flight(8, 3, 64, 0, 0.0) == 8


@pytest.mark.parametrize("stage", [0, 3])
def test_dry_run_of_megatron_core(stage: int) -> None:
    """70B on 64 ranks. Static differs by the padded vocabulary (32,768 for 32,000), peak by unfused rotary tables."""
    run = FIGURES["dry_run"]
    found = of_stages(LLAMA_70B, DRY, megatron())[0 if stage == 0 else 1]
    assert static(found) / MIB == pytest.approx(run["static_mib"][stage], abs=12)
    assert transient(found) / MIB == pytest.approx(run["peak_above_static_mib"][stage], rel=0.04)


@pytest.mark.parametrize("row", FIGURES["dry_run"]["stage_0"], ids=lambda row: str(row["changes"]))
def test_dry_run_variants(row: dict) -> None:  # type: ignore[type-arg]
    found = of_stages(LLAMA_70B, DRY, megatron(**row["changes"]))[0]
    assert transient(found) / MIB == pytest.approx(row["peak_above_static_mib"], rel=0.04)


def test_dry_run_without_distributed_optimizer_is_18_bytes() -> None:
    found = of_stages(LLAMA_70B, DRY, megatron(zero_stage=0))[0]
    assert static(found) / MIB == pytest.approx(
        FIGURES["dry_run"]["without_distributed_optimizer"]["static_mib"], abs=14
    )


def test_dry_run_of_405b() -> None:
    figures = FIGURES["dry_run"]["llama_405b"]
    strategy = megatron(pp=9, dp=16, dp_shard=16, recompute=2, gradient_accumulation_steps=32)
    found = of_stages(LLAMA_405B, msgspec.structs.replace(DRY, sequence_length=8192), strategy)[0]
    assert static(found) / MIB == pytest.approx(figures["static_mib"], rel=1e-3)
    assert transient(found) / MIB == pytest.approx(figures["peak_above_static_mib"], rel=0.04)


@pytest.mark.parametrize("row", FIGURES["theoretical"], ids=lambda row: f"{row['model']}-tp{row['tp']}-dp{row['dp']}")
def test_theoretical_memory_usage_of_megatron_lm(row: dict) -> None:  # type: ignore[type-arg]
    model = {"gpt-7b": GPT_7B, "gpt-175b": GPT_175B, "llama-70b": LLAMA_70B}[row["model"]]
    strategy = megatron(
        tp=row["tp"],
        etp=row["tp"],
        pp=row["pp"],
        dp=row["dp"],
        dp_shard=row["dp"],
        zero_stage=row["zero_stage"],
        recompute=1,
        virtual_pipeline_stages=row.get("virtual", 1),
        sequence_parallel=int(row["tp"] > 1),
        gradient_accumulation_steps=64,
    )
    workload = PAPER if "gpt" in row["model"] else Workload(sequence_length=4096)
    assert static(of_stages(model, workload, strategy)[0]) / MIB == pytest.approx(
        row["weights_and_optimizer_mib"], rel=5e-4
    )
    if "activations_mib" in row:
        theirs = row["activations_mib"] * MIB
        if row["pp"] == 1:
            theirs -= 4.0 * S * B * model.vocab_size / row["tp"]  # float32 logits: ours are a part of their own
        assert activations_of(model, workload, strategy).kept == pytest.approx(theirs, rel=1e-3)


def test_logits_are_ten_bytes_and_fused_ones_are_small() -> None:
    """Full logits with their float32 copy and gradient; one float32 copy of 11,600 x 248,320 is 10.73 GiB."""
    assert logits_bytes(4096.0, 151936, 2.0, 1.0) == 4096 * 151936 * (2 + 4 + 4)
    assert (logits_bytes(11600.0, 248320, 2.0, 1.0) * 0.4) / GIB == pytest.approx(10.73, abs=0.01)
    assert chunked_logits_bytes(4096.0, 2048, 151936) < 0.02 * logits_bytes(4096.0, 151936, 2.0, 1.0)


def test_megatrons_compiled_loss_is_not_in_place() -> None:
    """--cross-entropy-loss-fusion: 4 bytes a logit more; its own tests grew by 390 MiB where that is 400."""
    one = megatron(tp=2, etp=2, pp=2, micro_batch_size=4, sequence_parallel=0)
    model, work = msgspec.structs.replace(GPT_7B, vocab_size=51200), Workload(sequence_length=1024)
    fused = msgspec.structs.replace(work, fused_cross_entropy=True)
    more = activations_of(model, fused, one, 1).logits - activations_of(model, work, one, 1).logits
    assert more / MIB == 400
    written_over = msgspec.structs.replace(fused, fused_loss="te")
    assert activations_of(model, written_over, one, 1).logits / MIB == 200


def test_large_vocabulary_makes_logits_the_top_activation_term() -> None:
    """Qwen2.5-3B, sequence 4096: 5.8 GiB of logits, more than all layers under recomputation keep."""
    qwen = llama(
        hidden_size=2048,
        intermediate_size=11008,
        num_hidden_layers=36,
        num_attention_heads=16,
        num_key_value_heads=2,
        vocab_size=151936,
        tie_word_embeddings=True,
    )
    found = of_stages(qwen, Workload(sequence_length=4096), megatron(framework="fsdp", tp=1, pp=1, dp=8, recompute=2))[
        0
    ]
    assert found.logits_bytes == 4096 * 151936 * 10.0
    assert found.logits_bytes > found.activations_bytes
    fused = Workload(sequence_length=4096, fused_cross_entropy=True)
    less = of_stages(qwen, fused, megatron(framework="fsdp", tp=1, pp=1, dp=8, recompute=2))[0]
    assert less.total_bytes < found.total_bytes - 4e9


def test_first_dense_layers_lie_on_the_first_stage() -> None:
    """Two dense layers of 24: the first of four stages keeps fewer routed tokens than the second."""
    strategy = megatron(tp=1, etp=1, ep=8, pp=4, dp=8, sequence_parallel=0)
    first, _, second = of_stages(MIXTURE, Workload(sequence_length=4096), strategy)
    assert first.gradients_bytes != second.gradients_bytes
    per_micro_batch = [
        activations_of(MIXTURE, Workload(), strategy, which).kept / alive for which, alive in ((0, 4), (2, 3))
    ]
    assert per_micro_batch[0] != per_micro_batch[1]


def test_experts_cut_by_tensor_parallelism_hold_the_tokens_of_all_their_ranks() -> None:
    """tp 4: with etp 1 a rank holds what a quarter of the tokens sends to experts; with etp 4 the inputs of all."""
    dispatched, inside = 10.0, 20.0
    assert kept_bytes(100, 0.0, 0.0, dispatched, inside, 1, 4, 1, 1.0) == 100 * (dispatched + inside) / 4
    assert kept_bytes(100, 0.0, 0.0, dispatched, inside, 1, 4, 4, 1.0) == 100 * (dispatched + inside / 4)
    assert kept_bytes(100, 0.0, 0.0, dispatched, inside, 1, 4, 4, 2.0) == 200 * (dispatched + inside / 4)


@pytest.mark.parametrize(
    ("ep", "etp", "load", "copies"),
    [
        (8, 1, 1.0, 4.0),  # sorted, received, computed, sorted back
        (8, 1, 1.5, 5.5),  # a rank sends what it has, whatever it receives
        (64, 1, 1.0, 3.0),  # one expert on each rank: nothing to sort back
        (1, 1, 1.0, 3.0),  # nothing received
        (8, 2, 1.0, 6.0),  # gathered before the experts, scattered after
    ],
)
def test_copies_of_tokens_in_a_layer_with_experts(ep: int, etp: int, load: float, copies: float) -> None:
    """Counted in a dry run of megatron-core 0.16.1: 128 MiB each at 4096 tokens, 8 experts of a token, hidden 2048."""
    assert expert_exchange_bytes(4096.0, 8, 2.0, 2048, 1, ep, etp, load, 64) == copies * 128 * MIB
