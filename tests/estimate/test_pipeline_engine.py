"""Engines around Megatron's parallelism: identities, runs of BLOOM's tuning on A100 and of nanotron on H100."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from tests.estimate.shapes import CALIBRATION, GIB, gpt, llama, megatron, peak, published, static
from toolkit.errors import ToolkitError
from toolkit.estimate.framework_memory import communicators
from toolkit.estimate.memory_pipeline_engine import engine_bytes, engine_communicators, under_engine
from toolkit.strategy import Strategy
from toolkit.workload import Workload

BLOOM = Workload(sequence_length=2048, precision="fp16", attention="eager", dropout=True, engine="deepspeed")
ROWS = published("megatron_memory.toml")["bloom_tuning"]


def layout(tp: int, pp: int, dp: int, b: int, m: int) -> Strategy:
    return megatron(
        tp=tp, etp=tp, pp=pp, dp=dp, dp_shard=dp, micro_batch_size=b, gradient_accumulation_steps=m,
        sequence_parallel=0, recompute=2,
    )  # fmt: skip


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row['precision']}-{row['layout']}")
def test_runs_of_bloom_tuning(row: dict[str, Any]) -> None:
    """GB as read from nvidia-smi, on the stage of the embedding; bf16 holds blocks that nobody accounts for."""
    model = gpt(*row["shape"], vocab_size=250000, tie_word_embeddings=True)
    work = msgspec.structs.replace(BLOOM, precision=row["precision"])
    found = peak(model, work, layout(*row["layout"]))
    assert found.total_bytes / GIB == pytest.approx(row["gb"], rel=0.07 if row["precision"] == "fp16" else 0.15)


@pytest.mark.parametrize(("precision", "each"), [("fp16", 2 + 2 + 12 / 4), ("bf16", 2 + 6 + 12 / 4)])
def test_bytes_a_parameter(precision: str, each: float) -> None:
    model, work = gpt(24, 2048, 16), msgspec.structs.replace(BLOOM, precision=precision)
    one = layout(1, 1, 4, 1, 4)
    plain = peak(model, msgspec.structs.replace(work, engine="default"), one)
    parameters = plain.parameters_bytes / 2.0
    assert static(peak(model, work, one)) == pytest.approx(each * parameters)


def test_engine_has_communicators_of_its_own() -> None:
    one = layout(4, 4, 2, 1, 8)
    axes = communicators(one.tp, one.pp, one.cp, one.ep, one.dp)
    assert (axes, engine_communicators(axes)) == (4, 10)
    assert engine_bytes(BLOOM, one, CALIBRATION) == 6 * CALIBRATION["communicator_bytes"]
    assert engine_bytes(Workload(), one, CALIBRATION) == 0.0


@pytest.mark.parametrize("row", published("megatron_memory.toml")["nanotron"], ids=lambda row: str(row["layout"]))
def test_runs_of_nanotron(row: dict[str, Any]) -> None:
    """Peaks as nanotron logs them, in GB of an unstated base."""
    layers, hidden, ffn = row["shape"]
    model = llama(
        num_hidden_layers=layers, hidden_size=hidden, intermediate_size=ffn, num_attention_heads=32,
        num_key_value_heads=32, head_dim=hidden // 32, vocab_size=131072, tie_word_embeddings=True,
    )  # fmt: skip
    tp, pp, dp, b, m = row["layout"]
    strategy = msgspec.structs.replace(layout(tp, pp, dp, b, m), recompute=0, zero_stage=row["zero_stage"])
    strategy = msgspec.structs.replace(strategy, sequence_parallel=int(tp > 1))
    found = peak(model, Workload(sequence_length=4096, engine="nanotron"), strategy)
    assert found.total_bytes / GIB == pytest.approx(row["gb"], rel=0.15)


def test_nanotron_keeps_gradients_three_times() -> None:
    """Float32 ones, DDP's buckets, and the 16-bit ones that the last backward pass leaves."""
    model, one = gpt(24, 2048, 16), layout(1, 1, 4, 1, 1)
    work = Workload(sequence_length=128, engine="nanotron")  # few activations: the gradients outgrow them
    found, plain = peak(model, work, one), peak(model, msgspec.structs.replace(work, engine="default"), one)
    parameters = plain.parameters_bytes / 2.0
    buckets = found.communication_buffers_bytes - plain.communication_buffers_bytes
    assert buckets == pytest.approx(2.0 * parameters)
    assert found.gradients_bytes > 5.0 * parameters
    assert plain.gradients_bytes == pytest.approx(4.0 * parameters)


@pytest.mark.parametrize("row", published("megatron_memory.toml")["internevo"], ids=lambda row: str(row["layout"]))
def test_memory_table_of_internevo(row: dict[str, Any]) -> None:
    """Whole GB, as nvidia-smi shows them."""
    layers, hidden, heads, ffn = row["shape"]
    model = llama(
        num_hidden_layers=layers, hidden_size=hidden, intermediate_size=ffn, num_attention_heads=heads,
        num_key_value_heads=heads, vocab_size=103168,
    )  # fmt: skip
    strategy = layout(*row["layout"], 1, 4)
    work = Workload(sequence_length=2048, engine="internevo", fused_accumulation=False)
    if row["fsdp"]:
        strategy = msgspec.structs.replace(strategy, framework="fsdp", zero_stage=3, etp=1)
        work = msgspec.structs.replace(work, kernels="megatron")
    found = peak(model, work, strategy)
    assert found.total_bytes / GIB == pytest.approx(row["gb"], rel=0.07)


def test_internevo_takes_thirty_bytes_a_parameter() -> None:
    """Weights and gradients, three float32 states, and four tensors of the step that nothing freed can hold."""
    model, one = gpt(24, 2048, 16), layout(1, 1, 1, 1, 1)
    found = peak(model, Workload(sequence_length=128, engine="internevo"), one)
    plain = peak(model, Workload(sequence_length=128), one)
    parameters = plain.parameters_bytes / 2.0
    temporaries = found.optimizer_temporaries_bytes + found.framework_bytes - plain.framework_bytes
    activations = plain.activations_bytes + plain.logits_bytes
    assert static(found) == pytest.approx(16.0 * parameters)
    assert temporaries == pytest.approx(14.0 * parameters, abs=0.1 * activations)


def test_unknown_engine() -> None:
    with pytest.raises(ToolkitError, match="unknown engine 'colossal'"):
        under_engine(Workload(engine="colossal"), layout(1, 1, 1, 1, 1))
