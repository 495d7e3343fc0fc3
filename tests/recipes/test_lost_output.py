"""Real runs whose output nobody takes train to the end: nobody reads, the log's disk is full, or there is none."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests import finetune_runs
from tests.recipes.test_pretrain import pretrain_plan
from toolkit.runtime.telemetry import read_steps
from toolkit.verify.parity.start import write

STEPS = 3


@pytest.mark.slow
@pytest.mark.parametrize(("program", "where"), [("finetune", ">/dev/full 2>&1"), ("pretrain", "<&- >&- 2>&-")])
def test_a_run_without_a_place_for_its_output_is_the_same_run(program: str, where: str, tmp_path: Path) -> None:
    """It ended at its first line, as if the disk of its output directory were full, or with code 1 at its last one."""
    one = {"ranks": 1, "micro_batch": 16, "total_steps": STEPS}
    write(finetune_runs.tiny_plan("ddp", **one) if program == "finetune" else pretrain_plan(processes=1), tmp_path)
    words = ["--plan", str(tmp_path / "plan.json"), "--max-steps", str(STEPS)]
    shell = ["sh", "-c", f'exec "$0" "$@" {where}', sys.executable, "-m", f"recipes.{program}.train", *words]
    assert subprocess.run(shell, env=finetune_runs.environment(), timeout=240).returncode == 0
    assert [each.step for each in read_steps(tmp_path / "run")] == list(range(1, STEPS + 1))
