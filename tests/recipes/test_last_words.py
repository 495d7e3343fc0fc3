"""What a user reads when a run fails on two real ranks: what has happened, once, and what to do about it."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests import finetune_runs
from tests.recipes import test_exact_resume, test_exact_resume_pretrain
from toolkit.runtime import checkpoint, outcome
from toolkit.verify.parity.start import write

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("forked")]
SAVED, TROUBLE = 2, 3


def failed(program: str, layout: str, folder: Path, kind: str, rank: int, *more: str) -> str:
    """Started by the launcher of launch.sh, until it fails; what it said on stderr."""
    plans = test_exact_resume if program == "finetune" else test_exact_resume_pretrain
    write(plans.plan_of(folder, layout), folder)
    words = ["-m", "toolkit.runtime.torchrun", str(folder / "run"), "--standalone", "--nproc-per-node=2"]
    words += [
        "-m",
        "tests.recipes.troubled",
        program,
        kind,
        str(TROUBLE),
        str(rank),
        "--plan",
        str(folder / "plan.json"),
    ]
    words += ["--max-steps", "8", "--save-steps", str(SAVED), *more]
    environment = finetune_runs.environment(PYTHONPATH=str(Path.cwd()), TMPDIR=str(folder))
    done = subprocess.run(
        [sys.executable, *words], capture_output=True, text=True, timeout=240, cwd=folder, env=environment
    )
    assert done.returncode == 1, done.stdout + done.stderr
    return done.stderr


@pytest.mark.parametrize(
    ("program", "layout", "more"),
    [("finetune", "zero2", ()), ("finetune", "zero3", ()), ("pretrain", "dp2", ("--async-save",))],
)
def test_a_disk_that_refuses_in_the_middle_of_a_save(
    program: str, layout: str, more: tuple[str, ...], tmp_path: Path
) -> None:
    said = failed(program, layout, tmp_path, "full", 0, *more)
    run = tmp_path / "run"
    assert "Traceback" not in said and len(re.findall("^error:", said, re.M)) == 1, said
    *_, what, remedy = said.strip().splitlines()
    assert what.startswith(f"error: {run}/checkpoint-4")
    assert re.search(r"could not be written \(rank \d on .+\): ", what)
    assert re.search(rf"{run} has [\d.]+ \w?i?B free, a checkpoint takes [\d.]+ \w?iB \(as checkpoint-2\)", remedy)
    assert "checkpoint-2 is whole" in remedy and remedy.endswith("the same command goes on from there")
    assert checkpoint.newest_valid(run) == run / "checkpoint-2"
    found = outcome.read(run)
    assert found is not None and (found.state, found.kind, found.told) == ("failed", "storage", True)
    assert (
        what.removeprefix("error: ").partition(" (rank")[0] in found.reason and "checkpoint-2 is whole" in found.reason
    )
    files = [*(run / "stacks").glob("error-rank-*.txt"), *tmp_path.glob("run-error-rank-*.txt")]
    assert any("Traceback" in path.read_text() for path in files)


def test_a_folder_that_is_gone(tmp_path: Path) -> None:
    said = failed("pretrain", "dp2", tmp_path, "gone", 0)
    assert "Traceback" not in said
    assert f"error: {tmp_path / 'run'} is gone, or its mount is (rank" in said


def test_a_bug_of_one_rank_is_shown_and_its_witness_is_not(tmp_path: Path) -> None:
    said = failed("finetune", "zero2", tmp_path, "bug", 1)
    assert said.count("Traceback") == 1 and said.count("ValueError: a bug of the program") == 2
    last = said.strip().splitlines()[-1]
    assert re.match(rf"error: rank 1 on .+, after step {TROUBLE}: ValueError: a bug of the program", last)
    assert "closed by peer" not in said and "gloo" not in said
    stacks = tmp_path / "run" / "stacks"
    assert "a bug of the program" in (stacks / "error-rank-1.txt").read_text()
    assert (
        "in _train" in (stacks / "error-rank-1.txt").read_text()
        or "in train" in (stacks / "error-rank-1.txt").read_text()
    )


def test_who_sees_a_killed_process_says_a_line(tmp_path: Path) -> None:
    said = failed("finetune", "zero2", tmp_path, "killed", 1)
    assert "Traceback" not in said, said
    assert "error: rank 1 was killed by SIGKILL" in said
    assert "in _train" in (tmp_path / "run" / "stacks" / "error-rank-0.txt").read_text()
