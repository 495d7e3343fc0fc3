"""Memory of pipeline schedules and of a vocabulary cut over the pipeline, against published tables."""

from __future__ import annotations

from typing import Any

import pytest

from tests.estimate.shapes import CALIBRATION, GIB, gpt, machine, megatron, peak, published
from toolkit.estimate.framework_memory import as_measured
from toolkit.estimate.layout import in_flight, stages, tables, zero_bubble_in_flight
from toolkit.strategy import Strategy
from toolkit.workload import Workload

FIGURES = published("megatron_memory.toml")
TABLE_4 = [(row, name) for row in FIGURES["zero_bubble"] for name in row["gb"]]


def pipeline(p: int, b: int, v: int, **changes: Any) -> Strategy:
    """One data-parallel rank, plain Adam."""
    plain: dict[str, Any] = {
        "tp": 1, "etp": 1, "dp": 1, "dp_shard": 1, "sequence_parallel": 0, "zero_stage": 0, "pp": p,
        "micro_batch_size": b, "virtual_pipeline_stages": v, "gradient_accumulation_steps": 8 * p,
    }  # fmt: skip
    return megatron(**plain | changes)


@pytest.mark.parametrize(("row", "schedule"), TABLE_4, ids=lambda x: x if isinstance(x, str) else str(x["layout"]))
def test_zero_bubble_table(row: dict[str, Any], schedule: str) -> None:
    model = gpt(*row["shape"])
    work = Workload(sequence_length=1024, precision="fp16", attention="eager", dropout=True)
    found = peak(model, work, pipeline(*row["layout"], schedule=schedule))
    assert found.total_bytes / GIB == pytest.approx(row["gb"][schedule], rel=0.07)


@pytest.mark.parametrize("row", FIGURES["vocabulary_parallel"], ids=lambda row: str(row["reserved_gib"]))
def test_vocabulary_over_the_pipeline(row: dict[str, Any]) -> None:
    model = gpt(32, 3072, 24, vocab_size=row["vocabulary"], tie_word_embeddings=False)
    work = Workload(sequence_length=row["sequence_length"], precision="fp16", dropout=True)
    for place, figure in row["reserved_gib"].items():
        strategy = pipeline(8, 1, 1, zero_stage=1, vocabulary=place, gradient_accumulation_steps=128)
        found = peak(model, work, strategy)
        seen = as_measured(found, machine(8).accelerator, strategy, CALIBRATION, "reserved")
        assert seen / GIB == pytest.approx(figure, rel=0.10)


def test_a_spread_vocabulary_is_an_equal_part_of_every_stage() -> None:
    model, work = gpt(32, 3072, 24), Workload()
    spread = stages(model, pipeline(8, 1, 1, vocabulary="spread"), tables(model, work, "megatron"))
    assert {(stage.embedding, stage.head) for stage in spread} == {(1 / 8, 1 / 8)}


def test_both_ends_lie_on_the_first_device_of_a_v() -> None:
    model, work = gpt(32, 3072, 24), Workload()
    first, last = stages(model, pipeline(8, 1, 2, schedule="zb-v"), tables(model, work, "megatron"))
    assert (first.embedding, first.head, last.embedding, last.head) == (1, 1, 0, 0)
    assert first.in_flight == last.in_flight == 8


def test_zero_bubble_holds_what_the_first_stage_of_1f1b_holds_or_twice_that() -> None:
    assert zero_bubble_in_flight(8, 64, 1.0) == in_flight(8, 1, 64, 0, 1.0) == 8
    assert zero_bubble_in_flight(8, 64, 2.0) == 16
    assert zero_bubble_in_flight(8, 4, 2.0) == 4
