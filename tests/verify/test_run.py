"""Dry runs of the real frameworks at 64 GPUs and reduced depth, beside the planner's figures."""

from __future__ import annotations

import sys
from typing import Any

import msgspec
import pytest

from tests.plans import DGX, LLAMA_8B, LLAMA_70B, QWEN_30B_A3B, plan
from toolkit.errors import ToolkitError
from toolkit.plan import Plan
from toolkit.registry.calibrations import load_calibration
from toolkit.verify.run import verify

EIGHT_NODES = msgspec.structs.replace(DGX, nodes=8)
STATES = ("parameters", "gradients", "optimizer")
EXACT = 1e-6  # padding, and the 4 bytes of Adam's step


def dry(framework: str, layers: int, model: Any = LLAMA_8B, sequence: int = 2048, **strategy: Any) -> dict[str, Any]:
    return verify(made(framework, model, sequence, **strategy), load_calibration(), layers)


def made(framework: str, model: Any = LLAMA_8B, sequence: int = 2048, **strategy: Any) -> Plan:
    return plan("dry", model, EIGHT_NODES, framework=framework, workload={"sequence_length": sequence}, **strategy)


def errors(found: dict[str, Any], part: str) -> list[float]:
    return [row["relative_errors"][part] for row in found["ranks"]]


@pytest.mark.slow
@pytest.mark.parametrize("stage", [1, 2, 3])
def test_deepspeed_at_64_gpus(stage: int) -> None:
    found = dry("deepspeed", 4, zero_stage=stage)
    exact = ("parameters", "optimizer") if stage == 2 else STATES
    for part in exact:
        assert errors(found, part) == [pytest.approx(0.0, abs=EXACT)], part
    # stage 2 keeps whole tensors that reach into its share, on both sides of it: the bound M2 takes one side
    assert abs(errors(found, "gradients")[0]) < 0.06
    assert abs(found["ranks"][0]["relative_error"]) < 0.005
    # what a step sends: an all-reduce and a gather of 2 P, the reduction after every micro batch at stage 2
    whole = 2 * 1_923_125_248
    moved = {(one["operation"], one["dtype"]): one["bytes"] for one in found["collectives"]}
    reductions = {1: 1, 2: 2, 3: 0}[stage]
    assert moved.get(("all_reduce", "bfloat16"), 0) == reductions * whole
    gathers = moved["all_gather", "bfloat16"] / whole
    assert gathers == 1.0 if stage < 3 else 2.9 < gathers < 3.1
    assert moved.get(("reduce_scatter", "bfloat16"), 0) == (2 * whole if stage == 3 else 0)


@pytest.mark.slow
def test_fsdp2_at_64_gpus() -> None:
    found = dry("fsdp", 4, zero_stage=3)
    for part in STATES:
        assert errors(found, part) == [pytest.approx(0.0, abs=EXACT)], part
    # accelerate shards embedding and head apart and reduces in 16 bits; the estimate keeps both gathered
    assert found["ranks"][0]["relative_error"] > 0.0
    replicated = dry("fsdp", 4, zero_stage=3, dp_shard=8)
    for part in STATES:
        assert errors(replicated, part) == [pytest.approx(0.0, abs=EXACT)], part
    assert [one["ranks"] for one in replicated["collectives"]] == [8, 8, 8]


@pytest.mark.slow
@pytest.mark.parametrize(
    "changes",
    [{}, {"virtual_pipeline_stages": 2}, {"cp": 2, "dp": 1}, {"recompute": 2}],
    ids=["1f1b", "interleaved", "cp", "recompute"],
)
def test_megatron_70b(changes: dict[str, int]) -> None:
    layout = {"tp": 8, "pp": 4, "dp": 2, "sequence_parallel": 1, "zero_stage": 1} | changes
    nodes = layout["tp"] * layout["pp"] * layout["dp"] * layout.get("cp", 1) // 8
    job = plan(
        "dry",
        LLAMA_70B,
        msgspec.structs.replace(DGX, nodes=nodes),
        framework="megatron",
        workload={"sequence_length": 4096},
        **layout,
    )
    found = verify(job, load_calibration(), 8)
    assert [row["kind"] for row in found["ranks"]] == ["first stage", "second stage", "last stage"]
    for part in STATES:
        assert errors(found, part) == [pytest.approx(0.0, abs=EXACT)] * 3, part
    assert max(abs(error) for error in errors(found, "peak")) < 0.02


@pytest.mark.slow
@pytest.mark.parametrize(
    ("job", "words"),
    [
        (made("deepspeed", zero_stage=2, offload=1), "cannot be told apart"),
        (made("megatron", QWEN_30B_A3B, tp=4, ep=4, zero_stage=1), "routing depends on values"),
    ],
)
def test_what_cannot_be_run_dry_is_said(job: Plan, words: str) -> None:
    with pytest.raises(ToolkitError, match=words):
        verify(job, load_calibration(), 4)


@pytest.mark.slow
def test_a_time_limit() -> None:
    with pytest.raises(ToolkitError, match="took more than 0.1 s"):
        verify(made("deepspeed", zero_stage=3), load_calibration(), 4, limit=0.1)


def test_a_framework_that_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "deepspeed", None)  # as Python itself marks what cannot be imported
    with pytest.raises(ToolkitError, match=r"deepspeed is not installed(.|\n)*pip install '.\[train\]'"):
        verify(made("deepspeed", zero_stage=3), load_calibration(), 4)


def test_plain_data_parallelism_has_no_dry_run() -> None:
    with pytest.raises(ToolkitError, match="a ddp plan has no dry run"):
        verify(made("ddp"), load_calibration(), 4)
