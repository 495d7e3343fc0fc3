"""The plan that is run dry: fewer layers and micro batches, the same kinds of ranks."""

from __future__ import annotations

import msgspec
import pytest

from tests.plans import DEEPSEEK_V2_LITE, DGX, LLAMA_8B, LLAMA_70B, plan
from toolkit import plan as plans
from toolkit.errors import ToolkitError
from toolkit.estimate.partition import fullest_rank
from toolkit.registry.calibrations import load_calibration
from toolkit.verify.predicted import ranks
from toolkit.verify.reduced import micro_batches, reduced, with_layers
from toolkit.verify.run import relative_error

PIPELINED = plan(
    "pipelined", LLAMA_70B, DGX, framework="megatron", tp=2, pp=8, zero_stage=1, gradient_accumulation_steps=64
)


def test_a_reduced_plan_is_a_plan() -> None:
    small = reduced(PIPELINED, 8)
    assert small.model.num_hidden_layers == 8
    assert plans.load(plans.dump(small)) == small
    s = small.strategy
    assert small.contract.global_batch_size == s.micro_batch_size * s.gradient_accumulation_steps * s.dp
    assert reduced(PIPELINED, 0).model == PIPELINED.model


def test_micro_batches_fill_every_stage() -> None:
    """1F1B: ``p`` in flight, and one more; interleaved: a multiple of ``p`` (schedules.py:1015)."""
    assert micro_batches(PIPELINED) == 9
    strategy = msgspec.structs.replace(PIPELINED.strategy, virtual_pipeline_stages=5)
    assert micro_batches(msgspec.structs.replace(PIPELINED, strategy=strategy)) == 16
    assert micro_batches(plan("few", LLAMA_8B, DGX, zero_stage=2, gradient_accumulation_steps=8)) == 2
    assert micro_batches(plan("one", LLAMA_8B, DGX, zero_stage=2, gradient_accumulation_steps=1)) == 1


def test_prediction_of_few_micro_batches_is_that_of_many() -> None:
    """Else a dry run would witness another peak than the plan's."""
    calibration = load_calibration()
    for virtual in (1, 5):
        strategy = msgspec.structs.replace(PIPELINED.strategy, virtual_pipeline_stages=virtual)
        whole = msgspec.structs.replace(PIPELINED, strategy=strategy)
        assert ranks(reduced(whole, 0), calibration) == ranks(whole, calibration)


def test_kinds_of_ranks() -> None:
    calibration = load_calibration()
    assert [(one.kind, one.rank) for one in ranks(PIPELINED, calibration)] == [
        ("first stage", 0),
        ("second stage", 2),
        ("last stage", 14),
    ]
    assert [one.kind for one in ranks(plan("z2", LLAMA_8B, DGX, zero_stage=2), calibration)] == ["fullest rank"]
    assert [one.kind for one in ranks(plan("z3", LLAMA_8B, DGX, zero_stage=3), calibration)] == ["every rank"]


def test_layers_of_a_mixed_stack_are_cut_from_the_front() -> None:
    small = with_layers(DEEPSEEK_V2_LITE, 3)
    assert small.layer_mlps == "DEE"


@pytest.mark.parametrize(("layers", "words"), [(81, "has 80"), (7, "cannot be split over 8 stages")])
def test_impossible_layers_are_refused(layers: int, words: str) -> None:
    with pytest.raises(ToolkitError, match=words):
        reduced(PIPELINED, layers)


def test_the_fullest_rank() -> None:
    assert fullest_rank((20.0, 60.0, 20.0), 4) == 0  # shares of 25: the first and the last touch 80 each
    assert fullest_rank((10.0, 60.0, 30.0), 4) == 2  # 70, 60, 90, 30
    assert fullest_rank((50.0, 10.0, 40.0), 5) == 2
    assert fullest_rank((100.0,), 4) == 0


def test_relative_error() -> None:
    assert relative_error(103.0, 100.0) == pytest.approx(0.03)
    assert relative_error(0.0, 0.0) == 0.0
    assert relative_error(5.0, 0.0) > 1.0
