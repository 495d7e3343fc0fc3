"""Megatron's layers under DeepSpeed's pipeline engine: identities, and runs of BLOOM's tuning on A100 80 GB."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from tests.estimate.shapes import CALIBRATION, GIB, gpt, megatron, peak, published, static
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


def test_unknown_engine() -> None:
    with pytest.raises(ToolkitError, match="unknown engine 'colossal'"):
        under_engine(Workload(engine="colossal"), layout(1, 1, 1, 1, 1))
