"""What a plan says of its whole run: price, failures, and the checkpoint interval that it suggests."""

import json
import re
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
    assert f"every {steps:,} steps, which loses least to failures" in (tmp_path / "plan" / "COMMANDS.txt").read_text()
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


def test_one_count_says_what_a_billion_tokens_cost_as_a_sweep_does() -> None:
    argv = ("plan", "--params", "13B", "--gpus", "16", "--price-per-gpu-hour", "2.5", "--objective", "cost")
    first = json.loads(toolkit(*argv, "--json").stdout)["plans"][0]
    hours = 16 * first["step"]["seconds"] / 3600 / (1024 * 4096) * 1e9
    assert first["gpu_hours_per_billion_tokens"] == pytest.approx(hours)
    assert first["cost_per_billion_tokens"] == pytest.approx(2.5 * hours)
    assert f"1B tokens: {hours:.3g} GPU-hours, {2.5 * hours:.3g} at 2.5 a GPU-hour" in toolkit(*argv).stdout
    assert "1B tokens" not in toolkit(*PLAN).stdout  # no price, no cost


def test_figures_have_no_more_digits_than_they_are_worth() -> None:
    said = toolkit(*PLAN, "--tokens", "15T", "--price-per-gpu-hour", "2.5", "--explain").stdout
    for hours in re.findall(r"([0-9,.]+) GPU-hours", said.partition("assumed")[0]):
        assert len(hours.replace(",", "").replace(".", "").strip("0")) <= 3, hours
    assert not re.search(r"\d %", said)  # one style: 7.7%


def test_a_sweep_says_which_of_its_costs_have_failures() -> None:
    argv = ("plan", "--params", "7B", "--gpus", "8..16", "--tokens", "1T", "--price-per-gpu-hour", "2.5")
    assert "days and cost of the run have the failures to expect" in " ".join(toolkit(*argv).stdout.split())


def test_runs_that_an_interval_rests_on_can_be_found() -> None:
    said = " ".join(toolkit(*PLAN).stdout.split())
    files = re.findall(r"tests/published/\S+?\.csv", said)
    assert files
    rows = "".join(path.read_text() for path in (Path(__file__).parents[1] / "published").glob("*runs.csv"))
    names = re.findall(r"(?:runs like it|the nearest): (\S+) \(", said)
    assert len(names) == 2 and all(f"{name}," in rows for name in names)


def test_what_eliminated_candidates_is_told_in_words() -> None:
    said = toolkit(*PLAN, "--explain").stdout.partition(" candidates, ")[2].partition("\n\n")[0]
    assert "needs more memory than a GPU has" in said
    assert not re.search(r"[a-z]_[a-z]", said), said  # no names that only the source has
