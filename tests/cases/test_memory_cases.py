"""Every thread of memory.toml through the public command: an OOM is no fit, a run that fitted no "no"."""

from __future__ import annotations

import json
import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from toolkit.cli.main import group
from toolkit.errors import ToolkitError
from toolkit.estimate.logits import logits_bytes
from toolkit.estimate.memory_deepspeed import bucket_bytes
from toolkit.estimate.verdict import verdict
from toolkit.estimates import VERDICTS
from toolkit.registry.accelerators import load_accelerator

CASES = tomllib.loads(Path(__file__).with_name("memory.toml").read_text())
GIB = 2.0**30


def toolkit(*argv: str) -> Any:
    return CliRunner().invoke(group, [str(word) for word in argv], catch_exceptions=False)


def estimate(case: str, *argv: str, **options: Any) -> dict[str, Any]:
    """``toolkit estimate`` of a case; what does not fit exits with 1 and is printed all the same."""
    asked = {"gpus": CASES[case]["gpus"], "accelerator": CASES[case]["accelerator"]}
    asked |= {"micro-batch": 1, "sequence-length": 1024, "global-batch": asked["gpus"] if "gpus" not in options else 8}
    words = [word for name, value in (asked | options).items() for word in (f"--{name}", value)]
    done = toolkit("estimate", "--json", *argv, *words)
    assert done.exit_code in (0, 1), done.output
    element: dict[str, Any] = json.loads(done.stdout)
    assert (element["verdict"] == "no") == (done.exit_code == 1)
    return element


def parts(element: dict[str, Any]) -> dict[str, float]:
    return {
        name.removesuffix("_bytes"): value / GIB
        for name, value in element["memory"].items()
        if value and name.endswith("_bytes")
    }


def said(element: dict[str, Any], *words: str) -> bool:
    return any(all(word in sentence for word in words) for sentence in element["reason"])


@pytest.mark.parametrize("recompute", ["none", "full"])
@pytest.mark.parametrize("length", [512, 1024, 2048])
def test_a01_the_temporary_of_a_non_fused_adam(recompute: str, length: int) -> None:
    case = CASES["A01"]
    options = {"model": case["model"], "precision": "fp16", "recompute": recompute, "sequence-length": length}
    two = estimate("A01", zero=2, optimizer="adamw_unfused", **options)
    assert two["verdict"] == "no"
    assert parts(two)["parameters"] == pytest.approx(12.55, abs=0.01)  # whole on every card
    assert parts(two)["optimizer"] == pytest.approx(12 * case["parameters"] / 8 / GIB)
    # with activations kept, what they free is room for the step
    assert recompute == "none" or parts(two)["optimizer_temporaries"] >= case["failing_allocation_gib"]
    assert said(two, "12.55 GiB of parameters are replicated", "are sharded over 8")
    assert said(two, "fits with one of", "--zero 3", "--offload optimizer")
    # a fused kernel needs no such temporary: a near miss, which nobody may call a fit
    assert estimate("A01", zero=2, **options)["verdict"] != "fits"
    assert estimate("A01", zero=3, optimizer="adamw_unfused", **options)["verdict"] != "no"


def test_a03_the_sum_of_all_cards_is_not_the_test(tmp_path: Path) -> None:
    case = CASES["A03"]
    (tmp_path / "config.json").write_text(json.dumps(case["config"]))
    element = estimate("A03", model=str(tmp_path), zero=2)
    assert element["verdict"] != "fits"
    whole = f"{case['failing_allocation_gib']:.2f} GiB"  # 4 P on each card
    assert said(element, "replicated", "sharded over 8", f"loads the weights in float32 replicates {whole}")
    assert 16 * case["parameters"] < 8 * element["memory"]["limit_bytes"]  # all cards together would hold the states
    with pytest.raises(ToolkitError, match="v100-sxm2-32gb has no bf16"):
        estimate("A03", model=str(tmp_path), zero=2, precision="bf16")


@pytest.mark.parametrize("size", [*CASES["A05"]["too_large"], CASES["A05"]["ceiling"]])
def test_a05_zero_needs_data_parallel_ranks(size: str) -> None:
    for layout in (("--framework", "deepspeed", "--zero", "2"), ("--framework", "megatron", "--zero", "1")):
        element = estimate("A05", "--params", size, "--tp", "8", *layout)
        assert said(element, "ZeRO has no effect with data-parallel size 1")
        if size in CASES["A05"]["too_large"]:
            assert element["verdict"] == "no"


def test_a05_replicated_and_sharded_states_of_a_40b_on_64_gpus() -> None:
    element = estimate("A05", "--params", "40B", "--framework", "deepspeed", "--tp", "8", "--zero", "2", gpus="64")
    found = parts(element)
    assert found["parameters"] >= 2 * 40e9 / 8 / GIB  # 2 P / TP on every rank
    assert found["optimizer"] >= 12 * 40e9 / 64 / GIB
    assert found["activations"] > 1.0
    assert found["total"] > (2 / 8 + 14 / 64) * 40e9 / GIB + found["activations"]


def test_a07_full_offload_is_working_set() -> None:
    case = CASES["A07"]
    options = {"model": case["model"], "zero": 3, "offload": "optimizer+parameters", "sequence-length": 2048}
    two, four = (estimate("A07", gpus=gpus, **options) for gpus in case["gpus"])
    for element in (two, four):
        assert element["verdict"] == "fits"
        assert said(element, "parameters and optimizer live in host memory", "more GPUs hardly change it")
        assert element["strategy"]["offload"] == "optimizer+parameters"
        assert {"activations", "logits", "communication_buffers", "framework"} <= set(parts(element))
        assert element["memory"]["total_bytes"] == pytest.approx(case["measured_gb"] * 1e9, rel=0.25)
    assert two["memory"]["total_bytes"] == pytest.approx(four["memory"]["total_bytes"], rel=0.01)
    layer = json.loads(toolkit("models", case["model"], "--json").stdout)
    assert 4 * case["largest_layer_parameters"] / GIB == pytest.approx(case["estimator_gb"], abs=0.005)
    assert layer["total_parameters"] == 6050882784


def test_a09_buckets_explain_zero_2() -> None:
    case = CASES["A09"]
    knobs = zip(case["bucket"], case["overlap"], case["contiguous"], strict=True)
    ours = [bucket_bytes(size, 2.0, overlap, contiguous) / 2**20 for size, overlap, contiguous in knobs]
    measured = case["measured_mb"]
    assert sorted(range(5), key=ours.__getitem__) == sorted(range(5), key=measured.__getitem__)
    for mine, theirs in zip(ours, measured, strict=True):
        assert mine - ours[-1] == pytest.approx(theirs - measured[-1], abs=4)


def test_a11_the_host_runs_out() -> None:
    case = CASES["A11"]
    options = {"params": case["parameters"], "zero": 3, "recompute": "full", "sequence-length": 2048}
    for offload in ("optimizer", "optimizer+parameters"):
        element = estimate("A11", offload=offload, **options)
        assert element["verdict"] == "no"  # the GPUs have room
        assert element["memory"]["total_bytes"] < element["memory"]["limit_bytes"]
        assert said(element, "of host memory on a node that has 256 GiB", "NVMe", "for its buffers")
    spoken = " ".join(estimate("A11", offload="optimizer", **options)["reason"])
    estimator = re.search(r"DeepSpeed's own estimator, with its margin: (\S+) GiB", spoken)
    assert estimator and float(estimator[1]) == pytest.approx(case["estimator_host_gib"], rel=0.005)
    needed = estimate("A11", offload="optimizer", **options)["host_memory"]["offload_bytes"]
    assert case["host_gb"] * 1e9 < 18 * 15.5e9 < needed < case["estimator_host_gib"] * GIB


def test_a13_logits_of_a_large_vocabulary() -> None:
    case = CASES["A13"]
    words, failing = case["vocabulary"], case["failing_allocation_gib"]
    tokens = round(failing * GIB / (4 * words))  # of the micro batch that died
    options = {"model": case["model"], "framework": "fsdp"}
    died = estimate("A13", **options, **{"sequence-length": tokens})
    assert died["verdict"] == "no"
    assert parts(died)["total"] == pytest.approx(case["used_gib"] + failing, rel=0.05)
    assert died["memory"]["logits_bytes"] == pytest.approx(10 * tokens * words)
    assert said(died, "logits of", "fused or chunked linear cross entropy")
    saved = estimate("A13", **options, recompute="full", **{"sequence-length": 4096})
    assert saved["memory"]["logits_bytes"] == pytest.approx(10 * 4096 * words)
    assert said(saved, "logits of 4,096 tokens x 151,936 words", "its largest part")
    second = case["second"]
    copy = logits_bytes(second["tokens"], second["vocabulary"], 2.0, 1.0) * 4 / 10
    assert copy / GIB == pytest.approx(second["copy_gib"], abs=0.01)


def test_a15_units() -> None:
    case = CASES["A15"]
    assert case["bytes_needed"] / GIB == pytest.approx(case["gib"], abs=0.05)
    card = load_accelerator(case["accelerator"])
    assert card.memory_bytes / GIB == pytest.approx(case["usable_gib"], abs=0.15)
    assert VERDICTS[int(verdict(case["bytes_needed"], card.memory_bytes))] == "tight"
    for name, total in case["totals_mib"].items():
        usable = load_accelerator(name).memory_bytes
        assert 0.93 * total * 2**20 < usable <= total * 2**20, name
