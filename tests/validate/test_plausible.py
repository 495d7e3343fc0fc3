"""Rows at odds with the hardware or with themselves, and what a blank field must have been."""

from __future__ import annotations

import pytest

from tests.validate.runs import job, validated, written
from toolkit.registry.calibrations import load_calibration
from toolkit.strategy import RECOMPUTE
from toolkit.validate.plausible import as_it_fitted, impossible
from toolkit.validate.score import score

ALONE = {"n_gpus": 8, "tp": 1, "pp": 1, "zero_norm": "3", "framework": "torchtitan FSDP2", "recompute_norm": ""}
TOKENS = 64 * 8192
# 6 FLOP for each of the 7.5 B parameters that a token passes through, on 16 GPUs
LEAST = 6 * 7.505e9 * TOKENS / 16 / 989e12


@pytest.mark.parametrize(("seconds", "possible"), [(1.05 * LEAST, True), (0.95 * LEAST, False)])
def test_no_step_is_faster_than_the_peak(seconds: float, possible: bool) -> None:
    reason = impossible(job(), seconds)
    assert bool(reason) is not possible
    if reason:
        assert "TFLOP/s" in reason and "989" in reason and "h100-sxm5-80gb" in reason


def test_a_guessed_precision_is_held_to_what_was_ever_measured() -> None:
    """Well below 989 TFLOP/s: what a run of unknown precision does beyond that was not bf16."""
    guessed = job(precision_norm="")
    assert "bf16" in guessed.assumed
    assert not impossible(guessed, LEAST * 989 / 680)  # attention adds a seventh
    assert "faster than any bf16 matrix product" in impossible(guessed, LEAST * 989 / 810)


def test_an_impossible_time_is_not_compared_but_memory_is() -> None:
    seconds = {"step_time_s": 0.5 * LEAST, "implied_step_time_s": 0.5 * LEAST}
    alone, both = (
        validated(written({"id": "a", "outcome": ""} | seconds | more)) for more in ({}, {"peak_mem_gib": 40})
    )
    assert [each["reason"] for each in alone["skipped"]] == [both["rows"][0]["unscored"]["step_time"]]
    assert both["rows"][0]["step_time"]["measured_seconds"] is None
    assert both["rows"][0]["peak_memory"]["measured_bytes"] == 40 * 2**30


@pytest.mark.parametrize(
    ("changes", "recomputed"),
    [
        ({"micro_batch": 2}, True),  # 2 x 8192 tokens of an 8B model, eager: more than 80 GB without
        ({"micro_batch": 2, "recompute_norm": "none"}, False),  # a row that says so is taken at its word
        ({"micro_batch": 2, "framework": "MaxText"}, False),  # has policies between none and all
        ({"micro_batch": 4, "framework": "JAX Pax"}, True),  # saves nothing by default
        ({"micro_batch": 1, "global_batch": 8, "seq_len": 1024}, False),  # fits as it is
        ({"micro_batch": 2, "outcome": "OOM"}, False),  # did not fit
    ],
)
def test_a_run_that_cannot_have_fitted_recomputed(changes: dict[str, object], recomputed: bool) -> None:
    made = as_it_fitted(job(**ALONE | changes), load_calibration())
    assert (made.strategy.recompute == RECOMPUTE.index("full")) is recomputed
    assert ("recomputation of every layer" in made.assumed) is recomputed


def test_a_deepspeed_run_of_unknown_stage_is_sharded_where_it_must_be() -> None:
    """70 B parameters of 16 bytes do not lie whole on each GPU of 80 GB, 1.3 B do."""
    unknown = ALONE | {"framework": "DeepSpeed", "zero_norm": "", "n_gpus": 64, "seq_len": 1024}
    large = job(**unknown | {"model": "llama-3-70b", "layers": 80, "hidden": 8192, "heads": 64, "ffn": 28672})
    assert (large.strategy.zero_stage, as_it_fitted(large, load_calibration()).strategy.zero_stage) == (0, 3)
    assert "ZeRO stage 3" in as_it_fitted(large, load_calibration()).assumed
    small = job(**unknown | {"model": "gpt", "layers": 24, "hidden": 2048, "heads": 16, "kv_heads": 16, "ffn": 8192})
    assert as_it_fitted(small, load_calibration()) is small


def test_hybrid_sharding_of_unknown_width_spans_as_many_nodes_as_it_must() -> None:
    """8.03 B parameters of 16 bytes are 128 GB: with one GPU of 80 GB in a node, two nodes share a copy."""
    hybrid = ALONE | {"zero_norm": "hsdp", "gpus_per_node": 1, "seq_len": 2048, "recompute_norm": "full"}
    made = job(**hybrid)
    assert (made.strategy.dp_shard, as_it_fitted(made, load_calibration()).strategy.dp_shard) == (1, 2)
    stated = job(**hybrid | {"zero_stage": "hsdp shard=1"})
    assert as_it_fitted(stated, load_calibration()) is stated


def test_a_rate_counts_without_a_stated_batch() -> None:
    """tokens/s, of which a step has as many as the assumed batch: 8 GPUs, one sequence each."""
    rate = {"global_batch": "", "step_time_s": "", "tokens_per_s_per_gpu": 4096}
    found = score(job(**ALONE | rate), load_calibration())
    assert not isinstance(found, str)
    assert found.measured_seconds == 8192 / 4096
