"""What a shell carries of other tools changes no run: the plan says how it trains."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from recipes import inherited
from tests import finetune_runs
from toolkit.runtime.telemetry import read_steps

NOTE = "are not read: the plan says how the run trains"
OTHERS = {
    "ACCELERATE_MIXED_PRECISION": "bf16",
    "ACCELERATE_USE_DEEPSPEED": "true",
    "ACCELERATE_GRADIENT_ACCUMULATION_STEPS": "2",
    "OMPI_COMM_WORLD_SIZE": "2",
    "TORCH_FORCE_WEIGHTS_ONLY_LOAD": "1",
}


def test_only_what_the_plan_says_is_taken_out() -> None:
    kept = {"NCCL_DEBUG": "INFO", "ACCELERATE_CPU_AFFINITY": "1", "PATH": "/bin", "TORCH_LOGS": "", "RANK": "0"}
    environment = kept | OTHERS
    assert inherited.leave_out(environment) == sorted(OTHERS) and environment == kept
    assert inherited.leave_out(environment) == [] and inherited.note([]) == ""
    assert "ACCELERATE_USE_DEEPSPEED, OMPI_COMM_WORLD_SIZE and 1 more are not" in inherited.note(sorted(OTHERS))


@pytest.mark.parametrize("program", ["finetune", "pretrain"])
def test_both_programs_leave_them_out_before_all_else(program: str, tmp_path: Path) -> None:
    done = _start(program, tmp_path / "missing.json", **OTHERS)
    assert done.returncode == 2 and "missing.json" in done.stderr and done.stdout.count(NOTE) == 1, done
    assert NOTE not in _start(program, tmp_path / "missing.json", RANK="1", WORLD_SIZE="2", **OTHERS).stdout


@pytest.mark.slow
def test_a_run_among_such_variables_is_the_same_run(tmp_path: Path) -> None:
    """A contract in fp32 was trained in bf16 without a word, and an engine that nobody asked for ended the start."""
    steps = []
    for folder, variables in ((tmp_path / "plain", {}), (tmp_path / "others", OTHERS)):
        made = finetune_runs.tiny_plan("ddp", ranks=1, micro_batch=16, precision="fp32", total_steps=2)
        done = _start("finetune", finetune_runs.write(made, folder), **variables)
        assert done.returncode == 0 and (NOTE in done.stdout) == bool(variables), done.stdout + done.stderr
        steps.append([(each.loss, each.gradient_norm) for each in read_steps(folder / "run")])
    assert steps[0] == steps[1] and len(steps[0]) == 2


def _start(program: str, path: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", f"recipes.{program}.train", "--plan", str(path)],
        capture_output=True,
        text=True,
        timeout=240,
        env=finetune_runs.environment(**variables),
    )
