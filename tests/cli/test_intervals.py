"""Intervals from outside: in tables, in JSON, in plan.json; and wider where less was measured."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from toolkit.cli.main import group
from toolkit.plan import load
from toolkit.registry.residuals import load_residuals

JOB = ("--model", "llama-2-7b", "--framework", "megatron", "--tp", "2", "--micro-batch", "1", "--global-batch", "256")


def toolkit(*argv: str) -> str:
    done = CliRunner().invoke(group, argv)
    assert done.exit_code in (0, 1), done.output
    return done.output


def estimate(*argv: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(toolkit("estimate", *JOB, "--json", *argv))
    return found


def test_json_of_a_plan_holds_both_intervals_and_their_runs() -> None:
    found = estimate("--gpus", "64")
    for part, unit, middle in (("step", "seconds", "seconds"), ("memory", "bytes", "total_bytes")):
        bar = found["interval80"][part]
        assert bar[f"low_{unit}"] < found[part][middle] < bar[f"high_{unit}"]
        assert bar["distance"] == bar["based_on"][0]["distance"]
        known = {run.id for run in getattr(load_residuals(), "step_time" if part == "step" else "peak_memory").runs}
        assert {run["id"] for run in bar["based_on"]} <= known
        assert len({run["source"] for run in bar["based_on"]}) == len(bar["based_on"])


def test_an_interval_is_wider_where_less_was_measured() -> None:
    def factor(found: dict[str, Any]) -> float:
        bar = found["interval80"]["step"]
        return float(bar["high_seconds"] / bar["low_seconds"])

    usual, far = estimate("--gpus", "64"), estimate("--gpus", "64", "--accelerator", "mi355x", "--precision", "fp32")
    assert far["interval80"]["step"]["distance"] > 1 > usual["interval80"]["step"]["distance"]
    assert factor(far) > factor(usual)


def test_tables_show_intervals_and_name_runs() -> None:
    text = toolkit("plan", "--params", "7B", "--gpus", "64", "--top", "2")
    assert "80% intervals of plan 1" in text and "runs like it: " in text
    assert "nothing like it was measured" in toolkit(
        "estimate", *JOB, "--gpus", "64", "--accelerator", "mi355x", "--precision", "fp32"
    )


def test_plan_json_keeps_them(tmp_path: Path) -> None:
    toolkit("plan", "--params", "7B", "--gpus", "64", "--out", str(tmp_path / "out"))
    plan = load((tmp_path / "out" / "plan.json").read_bytes())
    assert plan.step_interval80 is not None and plan.memory_interval80 is not None
    assert plan.step_interval80.low < plan.step.seconds < plan.step_interval80.high
    assert plan.memory_interval80.low < plan.memory.total_bytes < plan.memory_interval80.high


@pytest.mark.parametrize(
    "text",
    ["{}", "nonsense", '{"calibration": "assumed", "features": [], "sources": [], "step_time": 1, "peak_memory": 2}'],
)
def test_a_broken_table_of_ones_own_is_a_sentence(tmp_path: Path, monkeypatch: Any, text: str) -> None:
    (tmp_path / "residuals").mkdir()
    (tmp_path / "residuals" / "assumed.json").write_text(text)
    monkeypatch.setenv("TOOLKIT_DATA", str(tmp_path))
    load_residuals.cache_clear()
    try:
        done = CliRunner().invoke(group, ["estimate", *JOB, "--gpus", "64"])
        assert "residuals/assumed.json" in str(done.exception)
    finally:
        load_residuals.cache_clear()


def test_every_output_says_which_calibration_it_used(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    row = 'unit = "1"\nmeaning = "m"\nlow = 0.8\nhigh = 1.0\nstatus = "measured"\n'
    path.write_text(f'name = "mine"\nsummary = "s"\n[coefficients.sustained_matmul_fraction]\nvalue = 0.8\n{row}')
    own = ("--calibration", str(path))
    assert estimate("--gpus", "64")["calibration"] == "assumed"
    assert estimate("--gpus", "64", *own)["calibration"] == str(path)
    assert estimate("--gpus", "64", *own)["step"]["seconds"] > estimate("--gpus", "64")["step"]["seconds"]
    out = tmp_path / "out"
    for command in (("plan", "--params", "7B", "--out", str(out)), ("estimate", *JOB)):
        text = " ".join(toolkit(*command, "--gpus", "64", *own).split())
        assert "1 were measured on your machine" in text and "mine.toml" in text.replace(" ", "")
    assert load((out / "plan.json").read_bytes()).calibration == str(path)
    assert f"with calibration {path}" in (out / "launch.sh").read_text()
