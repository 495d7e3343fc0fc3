"""A batch that ruins a run, in both programs on two real ranks: it stops there, or goes on as if it had never been.

The undisturbed run beside each has the batch left out from its beginning; the two are compared to the last bit.
"""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests import finetune_runs
from tests import resumed_runs as runs
from tests.recipes import test_exact_resume, test_exact_resume_pretrain
from toolkit.plan import Plan
from toolkit.runtime import checkpoint, outcome, skipped
from toolkit.runtime.divergence import DIVERGED
from toolkit.runtime.skipped import Skipped
from toolkit.runtime.telemetry import read_events, read_run, read_steps
from toolkit.verify.parity.start import write

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("forked")]

BAD, SAVED, STOPPED, LAST = 4, 3, 7, 9  # batch 4 is that of step 5
NONE = -1


def plan_of(program: str, folder: Path) -> Plan:
    if program == "finetune":
        return test_exact_resume.plan_of(folder, "zero2")
    return test_exact_resume_pretrain.plan_of(folder, "dp2")


def run(program: str, folder: Path, last: int, *arguments: str, batch: int = NONE, how: str = "nan") -> tuple[int, str]:
    """Until step ``last``; exit code and what it said."""
    words = ["-m", "toolkit.runtime.torchrun", str(folder / "run"), "--standalone", "--nproc-per-node=2"]
    words += ["-m", "tests.recipes.faulty_batch", program, str(batch), how, "--plan", str(folder / "plan.json")]
    words += ["--max-steps", str(last), "--save-steps", str(SAVED), "--keep", "9", *arguments]
    environment = finetune_runs.environment(PYTHONPATH=str(Path.cwd()))
    done = subprocess.run(
        [sys.executable, *words], capture_output=True, text=True, timeout=240, cwd=folder, env=environment
    )
    return done.returncode, done.stdout + done.stderr


def batches(folder: Path, rank: int) -> list[int]:
    return [int(line) for line in (folder / f"batches-{rank}.txt").read_text().split()]


def left_out_from_the_beginning(program: str, folder: Path, last: int, *left_out: int) -> None:
    write(plan_of(program, folder.parent), folder)
    (folder / "run").mkdir()
    skipped.write(folder / "run", Skipped(batches=left_out))
    code, said = run(program, folder, last)
    assert code == 0, said


def assert_same_end(program: str, one: Path, other: Path, last: int) -> None:
    ends = [folder / "run" / f"checkpoint-{last}" for folder in (one, other)]
    if program == "finetune":
        assert runs.assert_same_checkpoints(*ends) > 100
    else:
        first, second = map(runs.tensors, ends)
        assert first.keys() == second.keys() and len(first) >= 27
        assert all(first[name] == second[name] for name in first)


@pytest.mark.parametrize("program", ["finetune", "pretrain"])
def test_a_loss_that_is_not_finite(program: str, tmp_path: Path) -> None:
    """Stops and tells it; told to skip, goes back and on; resumed once more, it is still the run without the batch."""
    folder, other = tmp_path / "bad", tmp_path / "good"
    write(plan_of(program, tmp_path), folder)
    code, said = run(program, folder, STOPPED, batch=BAD)
    assert code == DIVERGED, said
    where = (
        "step 5: the loss is not finite; batch 4, samples 64 to 79; not finite already in samples 70 to 71 (rank 1 on"
    )
    assert said.count(where) == 1 and "Traceback" not in said
    told = outcome.read(folder / "run")
    assert told is not None and (told.state, told.kind) == ("failed", "diverged")
    assert where in told.reason and told.where == "the loss itself: what each module gives is finite"
    assert [(event.kind, event.action) for event in read_events(folder / "run")] == [("nan", "stop")]
    assert sorted(path.name for path in checkpoint.complete(folder / "run")) == ["checkpoint-3"]

    code, said = run(program, folder, STOPPED, "--on-nan", "skip", batch=BAD)
    assert code == 0, said
    assert "resuming from checkpoint-3" in said and "back to step 3, without batch 4 (samples 64 to 79)" in said
    assert read_run(folder / "run").skipped_batches == (BAD,)
    code, said = run(program, folder, LAST, batch=BAD)  # goes on from step 7, and reads the bad batch no more
    assert code == 0, said
    left_out_from_the_beginning(program, other, LAST, BAD)
    runs.assert_same_telemetry(other, folder)
    assert_same_end(program, other, folder, LAST)
    for rank in (0, 1):
        read = batches(folder, rank)
        # by the start that stopped, and by the one that went back; each looks where it comes from, in pretraining anew
        assert read.count(BAD) == (2 if program == "finetune" else 4)
        after = read[len(read) - read[::-1].index(BAD) :]
        assert {3, 5, 6, 7, 8, 9} <= set(after) <= {3, 5, 6, 7, 8, 9, 10}  # loaders read ahead
    known = checkpoint.facts(folder / "run" / f"checkpoint-{LAST}")
    assert known["skipped_batches"] == [BAD] and known["samples_seen"] == 16 * LAST
    assert known["data"]["epoch"] * runs.EPOCH + known["data"]["position"] == 16 * (LAST + 1)
    listed = json.loads((folder / "run" / skipped.SKIPPED).read_text())
    assert listed["batches"] == [BAD] and listed["setbacks"][0]["back_to"] == SAVED
    assert [step.step for step in read_steps(folder / "run")] == list(range(1, LAST + 1))


@pytest.mark.parametrize("program", ["finetune", "pretrain"])
def test_a_spike_before_the_first_checkpoint(program: str, tmp_path: Path) -> None:
    """Back to the beginning, and on without it and what is beside it."""
    folder, other = tmp_path / "bad", tmp_path / "good"
    write(plan_of(program, tmp_path), folder)
    rule = ("--spike-window", "3", "--spike-deviations", "2", "--save-steps", "50")  # the loss falls fast
    code, said = run(program, folder, STOPPED, *rule, "--on-spike", "skip", "--skip-batches", "3", batch=5, how="spike")
    assert code == 0, said
    assert "step 6: loss" in said and "back to step 0, without batch 4, 5, 6" in said
    left_out_from_the_beginning(program, other, STOPPED, 4, 5, 6)
    runs.assert_same_telemetry(other, folder)
    assert_same_end(program, other, folder, STOPPED)
