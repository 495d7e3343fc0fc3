"""A reason that sets plans of two frameworks side by side names what their programs do differently."""

from __future__ import annotations

import itertools

import msgspec
import pytest

from tests.requests import request_for
from toolkit.registry.calibrations import load_calibration
from toolkit.search.planner import search
from toolkit.search.programs import programs
from toolkit.search.reasons import longer, reasons
from toolkit.strategy import FRAMEWORKS

CALIBRATION = load_calibration("assumed")


@pytest.mark.parametrize("method", ["full", "lora"])
def test_the_cause_is_the_same_both_ways_and_none_within_a_framework(method: str) -> None:
    request = request_for(gpus=8, method=method)
    for one, other in itertools.product(FRAMEWORKS, repeat=2):
        assert programs(request, one, other) == programs(request, other, one)
        assert not (one == other and programs(request, one, other))
    assert "eager" in programs(request, "megatron", "fsdp")
    assert "DeepSpeed" in programs(request, "ddp", "deepspeed")


def test_where_the_programs_are_alike_nothing_is_blamed_on_them() -> None:
    single = request_for(gpus=8, precision="fp32")
    assert not programs(single, "ddp", "deepspeed") and not programs(single, "ddp", "fsdp")
    fused = request_for(gpus=8)
    fused = fused.replace(workload=msgspec.structs.replace(fused.workload, kernels="fused"))
    assert not programs(fused, "megatron", "fsdp")
    assert not programs(request_for(gpus=8), "deepspeed", "fsdp")


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        ({"model": "llama-3.2-1b", "gpus": 1}, "Megatron's layers are fused kernels"),
        ({"model": "llama-2-7b", "gpus": 64}, "Megatron's layers are fused kernels"),
        (
            {"gpus": 1, "accelerator": "rtx-4090", "method": "lora", "global_batch": 16, "sequence_length": 2048},
            "DDP keeps adapters in float32",
        ),
        ({"gpus": 8, "method": "lora"}, "DDP keeps adapters in float32"),
    ],
)
def test_reasons_across_frameworks_name_the_programs(asked: dict, words: str) -> None:
    request = request_for(**asked)
    result = search(request, CALIBRATION, top=1)
    assert words in " | ".join(reasons(request, result, result.choices[0]))


def test_reasons_within_a_framework_do_not() -> None:
    request = request_for(gpus=64, framework="megatron")
    result = search(request, CALIBRATION, top=1)
    assert "the program" not in " | ".join(reasons(request, result, result.choices[0]))


@pytest.mark.parametrize(
    ("ratio", "words"), [(1.063, "6.3% longer"), (1.9, "90.0% longer"), (4.049, "4.05 times as long")]
)
def test_times_beyond_twice_are_multiples(ratio: float, words: str) -> None:
    assert longer(ratio) == words
