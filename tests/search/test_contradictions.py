"""Pins that forbid one another, or that a dense model has no use for, are bad input and never a plan."""

from __future__ import annotations

import pytest

from tests.requests import asked, request_for
from toolkit.errors import ToolkitError
from toolkit.search.constraints import violated
from toolkit.search.planner import search
from toolkit.strategy import Strategy

DENSE = {"params": "7B", "gpus": "8"}


@pytest.mark.parametrize("model", ["llama-2-7b", "qwen2.5-0.5b", "gemma-3-1b"])
@pytest.mark.parametrize("framework", ["any", "ddp", "deepspeed", "fsdp", "megatron"])
@pytest.mark.parametrize("etp", [2, 3, 8])
def test_a_dense_model_has_no_experts_to_cut(model: str, framework: str, etp: int) -> None:
    with pytest.raises(ToolkitError, match="no experts to cut") as caught:
        asked(model=model, gpus="8", framework=framework, etp=etp)
    assert "1 for a dense model" in str(caught.value)


def test_what_does_nothing_wrong_passes() -> None:
    for pins in ({"etp": 1}, {"tp": 2, "etp": 2}, {"recompute_layers": 12}, {"recompute_layers": 0}):
        assert asked(**DENSE, **pins).request.pins == pins
    for recompute in ("none", "full"):
        layers = 12 * (recompute == "full")
        assert asked(**DENSE, recompute=recompute, recompute_layers=layers).request.pins["recompute_layers"] == layers


@pytest.mark.parametrize("recompute", ["none", "selective"])
@pytest.mark.parametrize("framework", ["any", "ddp", "megatron"])
def test_recomputed_layers_belong_to_full_recomputation(recompute: str, framework: str) -> None:
    with pytest.raises(ToolkitError) as caught:
        asked(**DENSE, framework=framework, recompute=recompute, recompute_layers=12)
    assert f"--recompute-layers 12 needs --recompute full, not {recompute}" in str(caught.value)


def test_all_contradictions_are_told_at_once() -> None:
    with pytest.raises(ToolkitError) as caught:
        asked(**DENSE, recompute="none", recompute_layers=3, etp=4)
    assert len(caught.value.problems) == 2


@pytest.mark.parametrize("framework", ["ddp", "deepspeed", "fsdp"])
def test_only_megatron_cuts_experts_by_a_degree_of_their_own(framework: str) -> None:
    request = request_for(model="mixtral-8x7b", gpus=8, global_batch=64)
    stage = {"ddp": 0, "deepspeed": 1, "fsdp": 3}[framework]
    for etp in (1, 2, 4):
        strategy = Strategy(
            framework=framework, etp=etp, dp=8, dp_shard=8, zero_stage=stage, gradient_accumulation_steps=8
        )
        assert (etp > 1) == ("whole_experts" in {rule.name for rule, _ in violated(request, strategy)})
    from toolkit.registry.calibrations import load_calibration

    pinned = request.replace(framework=framework, pins={"etp": 2})
    assert not search(pinned, load_calibration("assumed"), top=1).choices
