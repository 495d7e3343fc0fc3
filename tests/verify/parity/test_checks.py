"""Rules of ranks, on traces that are written out; and what the programs' data order promises."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from recipes import schedule
from recipes.finetune.data import Sequences
from recipes.finetune.packing import Blocks
from toolkit.recipe import Contract
from toolkit.record import StepRecord
from toolkit.verify.parity.checks import checks
from toolkit.verify.parity.traces import Run


def traced(folder: Path, ranks: list[dict[str, Any]]) -> Run:
    """A run of as many steps as ``samples`` lists; ``w`` is one weight's digest after each step, from the start."""
    folder.mkdir()
    for number, rank in enumerate(ranks):
        facts = {
            "place": rank.get("place", {"dp": number}),
            "draws": rank.get("draws", {"outside": [0.1]}),
            "batch_norms": rank.get("batch_norms", []),
            "dropouts": rank.get("dropouts", []),
            "tied": rank.get("tied", []),
        }
        weights = rank.get("w", ["a"] * (len(rank["samples"]) + 1))
        lines = [
            {"step": step, "samples": samples, "micro": [], "gradients": {}, "weights": {"w": weights[step]}}
            for step, samples in enumerate([[], *rank["samples"]])
        ]
        (folder / f"rank-{number}.jsonl").write_text("\n".join(map(json.dumps, [facts, *lines])))
    steps = range(1, 1 + len(ranks[0]["samples"]))
    return Run(
        folder, [StepRecord(step=n, seconds=1.0, tokens=1, loss=1.0, learning_rate=0.1, samples_seen=n) for n in steps]
    )


def problems(tmp_path: Path, ranks: list[dict[str, Any]], one: dict[str, Any] | None = None) -> dict[str, str]:
    reference = traced(tmp_path / "one", [one or {"samples": [["a", "b"], ["c", "d"]]}])
    other = traced(tmp_path / "other", ranks)
    return {check.name: check.problem for check in checks(reference, other) if not check.holds}


def test_distinct_samples_that_together_are_the_batch(tmp_path: Path) -> None:
    assert problems(tmp_path, [{"samples": [["a"], ["c"]]}, {"samples": [["b"], ["d"]]}]) == {}


def test_a_sampler_that_does_not_know_its_rank(tmp_path: Path) -> None:
    found = problems(tmp_path, [{"samples": [["a"], ["c"]]}, {"samples": [["a"], ["c"]]}])
    assert set(found) == {"samples"} and "read by several ranks" in found["samples"]


def test_other_samples_and_fewer_steps(tmp_path: Path) -> None:
    found = problems(tmp_path, [{"samples": [["a"]]}, {"samples": [["x"]]}])
    assert set(found) == {"samples", "steps"}
    assert "1 of them not in the single process's batch" in found["samples"]
    assert "takes 2 optimizer steps, 2 take 1" in found["steps"]


def test_copies_that_drift_name_their_axis(tmp_path: Path) -> None:
    ranks = [{"samples": [["a"], ["c"]], "w": ["0", "1", "2"]}, {"samples": [["b"], ["d"]], "w": ["0", "1", "3"]}]
    assert "differ in dp" in problems(tmp_path, ranks)["copies"]


def test_a_tied_embedding_that_comes_apart_between_stages(tmp_path: Path) -> None:
    tie, samples = [["w", "output"]], [["a", "b"], ["c", "d"]]
    ranks = [
        {"place": {"pp": 0}, "samples": samples, "tied": tie, "w": ["0", "1", "2"]},
        {"place": {"pp": 1}, "samples": samples, "tied": tie, "w": ["0", "1", "3"]},
    ]
    found = problems(tmp_path, ranks)
    assert set(found) == {"tied"} and "pipeline stage" in found["tied"]


@pytest.mark.parametrize(
    ("first", "second", "words"),
    [
        ({"outside": [0.1], "inside": [0.2]}, {"outside": [0.1], "inside": [0.3]}, None),
        ({"outside": [0.1], "inside": [0.2]}, {"outside": [0.1], "inside": [0.2]}, "same random numbers inside"),
        ({"outside": [0.1], "inside": [0.2]}, {"outside": [0.4], "inside": [0.3]}, "different random numbers outside"),
    ],
)
def test_random_numbers_of_tensor_parallel_ranks(
    tmp_path: Path, first: dict[str, Any], second: dict[str, Any], words: str | None
) -> None:
    samples = [["a", "b"], ["c", "d"]]
    ranks = [{"place": {"tp": n}, "samples": samples, "draws": draws} for n, draws in enumerate((first, second))]
    found = problems(tmp_path, ranks)
    assert words in found["dropout"] if words else found == {}


def test_random_numbers_of_data_parallel_ranks_matter_where_there_is_dropout(tmp_path: Path) -> None:
    ranks = [{"samples": [[a], [b]], "dropouts": ["lora_dropout"]} for a, b in ("ac", "bd")]
    assert "lose the same units" in problems(tmp_path, ranks)["dropout"]


def test_batch_norm_is_named_with_what_to_use_instead(tmp_path: Path) -> None:
    one = {"samples": [["a", "b"], ["c", "d"]], "batch_norms": ["features.norm"]}
    ranks = [{"samples": [[a], [b]], "batch_norms": ["features.norm"]} for a, b in ("ac", "bd")]
    (tmp_path / "apart").mkdir()
    found = problems(tmp_path / "apart", ranks, one)
    assert "features.norm" in found["batch_norm"] and "SyncBatchNorm" in found["batch_norm"]
    synchronised = [rank | {"batch_norms": []} for rank in ranks]
    (tmp_path / "together").mkdir()
    assert "batch_norm" not in problems(tmp_path / "together", synchronised, one)


def test_a_rest_of_an_epoch_is_a_step_too() -> None:
    """10 micro-batches in windows of 4: two whole windows and one of two (mlx-lm pull request 1413)."""
    assert schedule.total_steps(Contract(epochs=1.0, global_batch_size=4), 10) == 3


def test_no_sample_is_never_seen() -> None:
    """103 sequences on 8 ranks: cut to 96 before shuffling, 7 would never be seen (ms-swift pull request 9907)."""
    empty = np.zeros((103, 1), np.int32)
    sequences = Sequences(Blocks(empty, empty, empty, empty[:, 0]), 5 * 103, seed=42)
    seen = [{sequences.block_of(index) for index in range(epoch * 103, (epoch + 1) * 103)} for epoch in range(5)]
    assert all(each == set(range(103)) for each in seen)
