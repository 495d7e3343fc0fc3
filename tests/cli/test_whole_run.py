"""What a plan says of its whole run: price, failures, and the checkpoint interval that it suggests."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from toolkit import plan as plans
from toolkit.errors import ToolkitError

PLAN = ("plan", "--params", "7B", "--gpus", "64", "--top", "1")


def toolkit(*argv: str) -> subprocess.CompletedProcess[str]:
    done = subprocess.run([sys.executable, "-m", "toolkit", *argv], capture_output=True, text=True, check=False)
    assert "Traceback" not in done.stderr, done.stderr
    return done


def test_days_gpu_hours_failures_and_price() -> None:
    run = json.loads(toolkit(*PLAN, "--tokens", "1T", "--price-per-gpu-hour", "2", "--json").stdout)["plans"][0]
    whole, failures = run["whole_run"], run["resilience"]
    assert whole["gpu_hours"] == pytest.approx(whole["seconds"] * 64 / 3600)
    assert whole["cost"] == pytest.approx(2 * whole["gpu_hours"])
    assert whole["cost_per_billion_tokens"] == pytest.approx(whole["cost"] / whole["tokens"] * 1e9)
    assert whole["expected_seconds"] == pytest.approx(whole["seconds"] / whole["goodput"])
    assert whole["interruptions"] == pytest.approx(whole["expected_seconds"] / (50_700 * 3600 / 64))
    young = (2 * failures["checkpoint_seconds"] * failures["failure_interval_seconds"]) ** 0.5
    assert failures["checkpoint_steps"] * run["step"]["seconds"] == pytest.approx(young, rel=0.01)


def test_the_text_says_what_is_assumed_only_where_the_run_has_a_length() -> None:
    said = toolkit(*PLAN, "--tokens", "1T").stdout
    for words in (
        "with failures: ",
        "interruptions, one in ",
        "cost unknown",
        "a failure every 50,700 GPU-hours is assumed",
    ):
        assert words in said, words
    assert "GPU-hours" not in toolkit(*PLAN).stdout


def test_the_written_plan_suggests_an_interval_and_leaves_the_contract_alone(tmp_path: Path) -> None:
    assert toolkit(*PLAN, "--out", str(tmp_path / "plan")).returncode == 0
    text = (tmp_path / "plan" / "plan.json").read_text()
    steps = plans.load(text).resilience.checkpoint_steps  # type: ignore[union-attr]
    assert steps > 1
    assert f"--save-steps {steps}" in (tmp_path / "plan" / "COMMANDS.txt").read_text()
    assert "save" not in json.dumps(json.loads(text)["contract"])
    edited = text.replace(f'"checkpoint_steps": {steps}', '"checkpoint_steps": 0')
    with pytest.raises(ToolkitError, match="resilience.checkpoint_steps is 0"):
        plans.load(edited)


def test_a_plan_written_before_failures_were_known_still_loads(tmp_path: Path) -> None:
    assert toolkit(*PLAN, "--out", str(tmp_path / "plan")).returncode == 0
    values = json.loads((tmp_path / "plan" / "plan.json").read_text())
    del values["resilience"], values["cluster"]["gpu_seconds_per_failure"], values["cluster"]["restart_seconds"]
    assert plans.load(json.dumps(values)).resilience is None


def test_explain_shows_the_equations_of_failures() -> None:
    said = toolkit(*PLAN, "--tokens", "1T", "--explain").stdout
    for anchor in ("R4", "R5", "R6", "R7", "R8", "R9"):
        assert f"[{anchor}]" in said, anchor


@pytest.mark.parametrize("objective", ["memory", "cost"])
def test_other_objectives_show_the_front(objective: str) -> None:
    assert "Pareto front of step time, memory and GPUs" in toolkit(*PLAN, "--objective", objective).stdout
    assert "Pareto front" not in toolkit(*PLAN).stdout


def test_the_front_of_one_count_is_in_the_json() -> None:
    document = json.loads(toolkit(*PLAN, "--json").stdout)
    points = document["pareto"]
    assert {point["gpus"] for point in points} == {64}
    order = [(point["step_seconds"], -point["total_bytes"]) for point in points]
    assert order == sorted(order) and len(points) > 5
    fastest = document["plans"][0]["step"]["seconds"]
    assert points[0]["step_seconds"] <= fastest * (1 + 1e-9)


def test_estimate_takes_a_price() -> None:
    argv = ("--params", "7B", "--gpus", "64", "--zero", "2", "--micro-batch", "1", "--tokens", "1B")
    done = toolkit("estimate", *argv, "--price-per-gpu-hour", "3", "--json")
    run = json.loads(done.stdout)["whole_run"]
    assert run["cost"] == pytest.approx(3 * run["gpu_hours"])
