"""Where jobs lie: the coordinates that set two jobs apart, and by how much."""

from __future__ import annotations

import math
from typing import Any

import msgspec
import pytest

from tests.validate.runs import job
from toolkit.intervals.likeness import distance, of_memory, point
from toolkit.residuals import FEATURES


def place(total: float = 8e9, **changes: object) -> tuple[float, ...]:
    made = job(**changes)
    return point((total, 8e9), made.model, made.cluster, made.workload, made.strategy)


BASE: dict[str, Any] = {"micro_batch": 1}


def test_a_coordinate_for_each_feature() -> None:
    assert len(place()) == len(FEATURES)


@pytest.mark.parametrize(
    ("total", "changes", "expected"),
    [
        (8e10, {}, 1.0),
        (8e9, {"gpu": "A100-SXM"}, 1.0),
        (8e9, {"gpu": "B200", "gpu_mem_gb": 180}, 1.0),
        (8e9, {"precision_norm": "fp8"}, 1.0),
        (8e9, {"tp": 4, "n_gpus": 16}, 0.25),
        (8e9, {"recompute_norm": "full"}, 0.4),
        (8e9, {"micro_batch": 2}, 0.0),
        (8e9, {"model": "mixtral-8x7b", "n_experts": 8, "top_k": 2, "vocab": 32000}, 1.0),
    ],
)
def test_distances(total: float, changes: dict[str, object], expected: float) -> None:
    assert distance(place(), place(total, **changes)) == pytest.approx(expected, abs=2e-3)


def test_a_small_layer_leaves_the_device_idle() -> None:
    """8e9 parameters in 32 layers, tp 2, 8192 tokens on H100: 6.2 ms at the peak; 1/100 of that is 0.062 ms."""
    made = job()
    tiny = point((8e9, 8e7), made.model, made.cluster, made.workload, made.strategy)
    busy = 6 * 8e7 / 32 / 2 * 8192 / made.cluster.accelerator.peak_flop_per_second["bf16"]
    assert distance(place(), tiny) == pytest.approx(2 * math.log10(1e-3 / busy), abs=2e-3)
    assert distance(of_memory(place()), of_memory(tiny)) == 0.0


def test_frameworks_lie_farther_apart_in_memory() -> None:
    """Another account of what is allocated: three times the distance."""
    torch = {"framework": "torchtitan FSDP2", "tp": 1, "pp": 1, "zero_norm": "1"}
    one, other = place(tp=1, pp=1), place(**torch)
    assert one[0] == 1.0 and other[0] == 0.0
    assert of_memory(one)[0] - of_memory(other)[0] == 3.0


def test_another_makers_card_is_far() -> None:
    made = job()
    card = msgspec.structs.replace(made.cluster.accelerator, architecture="cdna3")
    cluster = msgspec.structs.replace(made.cluster, accelerator=card)
    assert distance(place(), point((8e9, 8e9), made.model, cluster, made.workload, made.strategy)) == pytest.approx(1.5)
