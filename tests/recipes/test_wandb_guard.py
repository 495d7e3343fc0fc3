"""Real runs whose reports to wandb fail: they train to the end, and say once that nothing more is reported."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from recipes.wandb_guard import Guard
from tests import finetune_runs
from tests.recipes.test_pretrain import pretrain_plan
from toolkit.runtime.telemetry import read_steps
from toolkit.verify.parity.start import write

NOTE = "note: training goes on, and nothing more is reported to wandb: "
STEPS = 5


def test_after_the_first_failure_no_call_is_made(capsys: pytest.CaptureFixture[str]) -> None:
    guard, made = Guard(), list[int]()

    def call(number: int, *, fail: bool = False) -> int:
        made.append(number)
        if fail:
            raise ConnectionResetError("Connection\nlost")
        return number

    guarded = guard(call)
    assert guarded(1) == 1 and guarded(2, fail=True) is None and guarded(3) is None and guard(call)(4) is None
    assert made == [1, 2] and guard.failed
    assert capsys.readouterr().out == f"{NOTE}ConnectionResetError: Connection lost\n"


def test_a_request_to_stop_is_no_failure_of_wandb() -> None:
    guard = Guard()

    def stopped() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        guard(stopped)()
    assert not guard.failed


def _run(program: str, folder: Path, *words: str, **variables: str) -> str:
    """What one process said, which trained to the end."""
    one = {"ranks": 1, "micro_batch": 16, "total_steps": STEPS}
    write(finetune_runs.tiny_plan("ddp", **one) if program == "finetune" else pretrain_plan(processes=1), folder)
    environment = finetune_runs.environment(PYTHONPATH=str(Path.cwd()), **variables)
    done = subprocess.run(
        [sys.executable, "-m", *words, "--plan", str(folder / "plan.json"), "--max-steps", str(STEPS)],
        capture_output=True,
        text=True,
        timeout=240,
        cwd=folder,
        env=environment,
    )
    said = done.stdout + done.stderr
    assert done.returncode == 0 and "Traceback" not in said, said
    assert [step.step for step in read_steps(folder / "run")] == list(range(1, STEPS + 1))
    return said


@pytest.mark.slow
@pytest.mark.usefixtures("forked")
@pytest.mark.parametrize("program", ["finetune", "pretrain"])
def test_its_sender_is_killed_in_the_middle(program: str, tmp_path: Path) -> None:
    said = _run(program, tmp_path, "tests.recipes.troubled", program, "unheard", "3", "0", WANDB_MODE="offline")
    assert said.count(NOTE) == 1, said
    assert list((tmp_path / "run" / "wandb").glob("offline-run-*"))


@pytest.mark.slow
@pytest.mark.usefixtures("forked")
@pytest.mark.parametrize("program", ["finetune", "pretrain"])
def test_it_refuses_at_the_start(program: str, tmp_path: Path) -> None:
    said = _run(program, tmp_path, f"recipes.{program}.train", WANDB_API_KEY="too-short")
    assert said.count(NOTE) == 1 and "AuthenticationError" in said, said
