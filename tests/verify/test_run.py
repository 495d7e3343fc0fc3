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
EXACT = 1e-4  # padding, norms in a flat tensor of their own, and the 4 bytes of Adam's step


def dry(framework: str, layers: int, model: Any = LLAMA_8B, sequence: int = 2048, **strategy: Any) -> dict[str, Any]:
    return verify(made(framework, model, sequence, **strategy), load_calibration(), layers)


def made(framework: str, model: Any = LLAMA_8B, sequence: int = 2048, **strategy: Any) -> Plan:
    return plan("dry", model, EIGHT_NODES, framework=framework, workload={"sequence_length": sequence}, **strategy)


def errors(found: dict[str, Any], part: str) -> list[float]:
    return [row["relative_errors"][part] for row in found["ranks"]]


def agrees(found: dict[str, Any], exact: tuple[str, ...] = STATES, peak: float = 0.01, sent: float = 0.03) -> None:
    """Parts to the byte, the peak and what is sent on each axis within a tolerance, and so no finding."""
    for part in exact:
        assert errors(found, part) == [pytest.approx(0.0, abs=EXACT)] * len(found["ranks"]), part
    assert max(abs(row["relative_error"]) for row in found["ranks"]) < peak
    for axis, one in found["communication"].items():
        assert abs(one["relative_error"]) < sent, axis
    assert found["findings"] == []


@pytest.mark.slow
@pytest.mark.usefixtures("forked")
@pytest.mark.parametrize("micro_batches", [1, 4])
@pytest.mark.parametrize("stage", [0, 1, 2, 3])
def test_deepspeed_at_64_gpus(stage: int, micro_batches: int) -> None:
    found = dry("deepspeed", 4, zero_stage=stage, gradient_accumulation_steps=micro_batches)
    agrees(found)
    # what a step sends: an all-reduce and a gather of 2 P, the reduction after every micro batch at stage 2
    whole = 2 * 1_923_125_248
    moved = {(one["operation"], one["dtype"]): one["bytes"] for one in found["collectives"]}
    several = min(micro_batches, 2)  # a dry run needs no more
    assert moved.get(("all_reduce", "bfloat16"), 0) == {0: 1, 1: 1, 2: several, 3: 0}[stage] * whole
    assert moved.get(("reduce_scatter", "bfloat16"), 0) == (several * whole if stage == 3 else 0)


@pytest.mark.slow
@pytest.mark.usefixtures("forked")
def test_a_model_that_zero_3_holds_whole() -> None:
    """Two layers and a large vocabulary: the tensor that crosses max_live_parameters is gathered all the same."""
    agrees(dry("deepspeed", 2, zero_stage=3))


@pytest.mark.slow
@pytest.mark.usefixtures("forked")
@pytest.mark.parametrize(("stage", "offload"), [(1, 1), (2, 1), (3, 1), (3, 2)])
def test_deepspeed_offload(stage: int, offload: int) -> None:
    agrees(dry("deepspeed", 4, zero_stage=stage, offload=offload), (*STATES, "host"))


@pytest.mark.slow
@pytest.mark.usefixtures("forked")
def test_a_secondary_copy() -> None:
    found = dry("deepspeed", 4, zero_stage=3, hpz=8)
    agrees(found)
    assert found["ranks"][0]["other_bytes"]["secondary"] == pytest.approx(
        2 * 1_923_125_248 / 8, rel=1e-4
    )  # persistent ones have none


@pytest.mark.slow
@pytest.mark.usefixtures("forked")
@pytest.mark.parametrize(
    "strategy",
    [
        {"zero_stage": 3},
        {"zero_stage": 2},
        {"zero_stage": 3, "dp_shard": 8},
        {"zero_stage": 3, "recompute": 2},
        {"zero_stage": 3, "offload": 2},
    ],
    ids=str,
)
def test_fsdp2_at_64_gpus(strategy: dict[str, int]) -> None:
    agrees(dry("fsdp", 4, **strategy), (*STATES, "host") if "offload" in strategy else STATES, peak=0.001)


@pytest.mark.slow
@pytest.mark.usefixtures("forked")
def test_fsdp2_of_few_layers_and_many_words() -> None:
    agrees(dry("fsdp", 2, zero_stage=3), peak=0.001)


@pytest.mark.slow
@pytest.mark.usefixtures("forked")
@pytest.mark.parametrize("micro_batches", [1, 2])
def test_data_parallelism(micro_batches: int) -> None:
    agrees(dry("ddp", 2, gradient_accumulation_steps=micro_batches))


@pytest.mark.slow
@pytest.mark.usefixtures("forked")
@pytest.mark.parametrize("framework", ["ddp", "deepspeed"])
def test_adapters(framework: str) -> None:
    work = {"sequence_length": 2048, "method": "lora"}
    stage = 3 if framework == "deepspeed" else 0
    job = plan("dry", LLAMA_8B, EIGHT_NODES, framework=framework, workload=work, zero_stage=stage)
    agrees(verify(job, load_calibration(), 4), ("parameters",))


@pytest.mark.slow
@pytest.mark.usefixtures("forked")
@pytest.mark.parametrize("changes", [{"precision": "fp16"}, {"optimizer": "adamw_unfused"}], ids=str)
def test_other_workloads(changes: dict[str, str]) -> None:
    work = {"sequence_length": 128} | changes
    job = plan("dry", LLAMA_8B, DGX, framework="deepspeed", workload=work, zero_stage=2)
    agrees(verify(job, load_calibration(), 4), STATES)


@pytest.mark.slow
@pytest.mark.usefixtures("forked")
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
    for axis, one in found["communication"].items():
        assert abs(one["relative_error"]) < 0.01, axis


@pytest.mark.slow
@pytest.mark.usefixtures("forked")
@pytest.mark.parametrize(
    "changes",
    [
        {"ep": 8},
        {"ep": 2},
        {"ep": 8, "tp": 2, "sequence_parallel": 1},
        {"ep": 2, "tp": 4, "sequence_parallel": 1},
        {"ep": 8, "tp": 2, "etp": 2, "sequence_parallel": 1},
        {"ep": 8, "pp": 2},
        {"ep": 8, "pp": 2, "recompute": 2},
    ],
    ids=str,
)
def test_megatron_mixture(changes: dict[str, int]) -> None:
    """Balanced routing; expert states over ep and the expert-data-parallel group, exact."""
    found = dry("megatron", 4, QWEN_30B_A3B, 4096, zero_stage=1, **changes)
    agrees(found, peak=0.02, sent=0.015)
    assert found["assumptions"] == [
        "every expert gets its share of the tokens: predicted with expert_peak_load 1, not 1.2"
    ]
    # a copy of each token for each of its experts, there and back, forward and backward and again where recomputed
    tp, pp, ep, etp = (changes.get(name, 1) for name in ("tp", "pp", "ep", "etp"))
    passes = 3 if changes.get("recompute") else 2
    micro_batches = 2 if pp == 1 else 3
    copies = passes * 2 * (4 // pp) * micro_batches * (4096 / tp) * 8
    moved = sum(
        one["bytes"]
        for one in found["collectives"]
        if one["operation"] == "all_to_all" and one["kind"] == found["ranks"][0]["kind"]
    )
    assert moved == pytest.approx(copies * 2048 * 2, rel=1e-3)  # and a weight of each copy
    # parameters of an expert: three matrices, in 128 / ep experts cut over etp
    experts = (4 // pp) * (128 // ep) * 3 * 2048 * 768 // etp
    reduced = [one for one in found["collectives"] if one["operation"] == "reduce_scatter"]
    assert (64 // (pp * ep * etp), 4 * experts) in [(one["ranks"], one["bytes"]) for one in reduced]


@pytest.mark.slow
@pytest.mark.usefixtures("forked")
def test_wide_experts_one_on_each_rank() -> None:
    mixture = msgspec.structs.replace(QWEN_30B_A3B, num_experts=8, num_experts_per_tok=2, moe_intermediate_size=4096)
    agrees(dry("megatron", 4, mixture, 4096, zero_stage=1, ep=8, pp=2))


@pytest.mark.slow
@pytest.mark.usefixtures("forked")
@pytest.mark.parametrize(
    ("job", "words"),
    [
        (
            plan("dry", LLAMA_8B, EIGHT_NODES, framework="ddp", workload={"method": "qlora"}),
            "4-bit kernels need a GPU",
        ),
        (
            plan("dry", LLAMA_8B, DGX, framework="megatron", tp=2, zero_stage=1, workload={"precision": "fp8"}),
            "fp8 needs Transformer Engine",
        ),
    ],
)
def test_what_cannot_be_run_dry_is_said(job: Plan, words: str) -> None:
    with pytest.raises(ToolkitError, match=words):
        verify(job, load_calibration(), 4)


@pytest.mark.slow
@pytest.mark.usefixtures("forked")
def test_a_time_limit() -> None:
    with pytest.raises(ToolkitError, match="took more than 0.1 s"):
        verify(made("deepspeed", zero_stage=3), load_calibration(), 4, limit=0.1)


def test_a_framework_that_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "deepspeed", None)  # as Python itself marks what cannot be imported
    with pytest.raises(ToolkitError, match=r"deepspeed is not installed(.|\n)*pip install '.\[train\]'"):
        verify(made("deepspeed", zero_stage=3), load_calibration(), 4)


@pytest.mark.slow
@pytest.mark.usefixtures("forked")
@pytest.mark.parametrize(
    ("framework", "layers", "strategy"),
    [
        ("ddp", 1, {}),
        ("deepspeed", 2, {"zero_stage": 3}),
        ("fsdp", 4, {"zero_stage": 3}),
        ("ddp", 1, {"method": "lora"}),
    ],
)
def test_pairs_and_their_reference(framework: str, layers: int, strategy: dict[str, Any]) -> None:
    """Parts to the byte, the reference among them; under FSDP its forward pass is the peak, with four layers."""
    method = strategy.pop("method", "full")
    contract = {"objective": "dpo", "dpo_beta": 0.1, "dpo_loss": "sigmoid", "packing": False, "method": method}
    work = {"sequence_length": 2048, "objective": "dpo", "method": method}
    made = plan("dry", LLAMA_8B, EIGHT_NODES, framework=framework, workload=work, contract=contract, **strategy)
    found = verify(made, load_calibration(), layers)
    agrees(found, (*STATES, "reference") if method == "full" else STATES, peak=0.03)
