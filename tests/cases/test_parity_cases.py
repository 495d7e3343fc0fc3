"""Parity faults that other projects met: the figures that they report, in this code, and where each is injected.

Sources: transformers pull request 34191 and axolotl 1100 (G01); mlx-lm 1413, OpenNMT-py 2209 (G03); ms-swift 9907
(G05); DeepSpeed 5583, accelerate 2393, qlora 276 (G07); pytorch 49794, yolov5 401 (G09). The faults of ``FAULTS`` run
in the real training programs (tests/verify/parity/test_faults.py, slow).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from recipes import schedule
from recipes.finetune.data import Sequences
from recipes.finetune.packing import Blocks
from tests.verify.parity.fault_table import FAULTS
from toolkit.cli.parity import plans_of
from toolkit.recipe import Contract
from toolkit.verify.parity.compare import mean_of_means, token_weighted
from toolkit.verify.parity.run import parity

INJECTED = {
    "G01": ("mean_of_means",),
    "G03": ("rest_dropped",),
    "G05": ("tail_dropped",),
    "G07": ("logged_by_one_rank", "seed_by_rank", "rate_times_ranks", "summed_gradients"),
    "G09": ("batch_norm",),
}


def test_every_case_is_injected_into_real_training() -> None:
    assert {fault for faults in INJECTED.values() for fault in faults} <= set(FAULTS)


def test_g01_token_weighted_and_mean_of_means() -> None:
    micro = [(10 * 4.0, 10), (90 * 2.0, 90)]
    assert token_weighted(micro) == pytest.approx(2.20) and mean_of_means(micro) == pytest.approx(3.00)


def test_g03_a_rest_is_an_optimizer_step() -> None:
    assert schedule.total_steps(Contract(epochs=1.0, global_batch_size=4), 10) == 3
    assert token_weighted([(0.0, 0), (0.0, 0)]) is None  # no trained token, no division


def test_g05_the_union_over_epochs_is_the_data_set() -> None:
    empty = np.zeros((103, 1), np.int32)
    sequences = Sequences(Blocks(empty, empty, empty, empty[:, 0]), 5 * 103, seed=42)
    seen = {sequences.block_of(index) for index in range(5 * 103)}
    assert len(set(range(103)) - seen) == 0 and 103 - 103 // 8 * 8 == 7


@pytest.mark.parametrize("ranks", [1, 2])
def test_g07_one_global_batch_and_one_schedule_on_every_layout(ranks: int) -> None:
    reference, plans = plans_of("tiny", f"dp{ranks}+ga{4 // ranks}", {"cluster": "local-cpu"})
    (plan,) = plans.values()
    assert plan.contract == reference.contract
    strategy = plan.strategy
    cut = strategy.dp * strategy.micro_batch_size * strategy.gradient_accumulation_steps
    assert cut == reference.contract.global_batch_size


@pytest.mark.slow
@pytest.mark.usefixtures("forked")
def test_g09_batch_norm_is_told_and_passes_when_synchronised(tmp_path: Path) -> None:
    options: dict[str, Any] = {"cluster": "local-cpu", "sequence_length": 32, "global_batch": 8}
    reference, plans = plans_of("tiny", "ddp2", options)
    assert msgspec.structs.asdict(reference.contract)["precision"] == "fp32"
    programs = dict.fromkeys(("reference", "ddp2"), ("tests.verify.parity.faulty", "batch_norm"))
    found = parity(reference, plans, 3, 300.0, tmp_path, programs=programs)["pairs"][0]
    assert found["verdict"] == "fail" and "not expected to agree" in found["cause"]
    assert "GroupNorm" in found["cause"] and "run again with SyncBatchNorm, it passes" in found["cause"], found
    assert found["again"]["verdict"] == "pass"
