"""Both programs end with the stacks of all ranks when one of them hangs, and go on from their checkpoint."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests import finetune_runs
from tests.finetune_runs import tiny_plan, write
from toolkit.runtime.hang import read_hang
from toolkit.runtime.telemetry import read_steps

pytestmark = pytest.mark.slow
# a machine that is busy with other things is slow without hanging
LIMITS = ("--hang-after", "8", "--hang-at-most", "60", "--save-steps", "4")


def run(path: Path, *arguments: str, environment=None) -> subprocess.Popen:
    words = finetune_runs.command(path, 2, "--max-steps", "12", *LIMITS, *arguments)
    return subprocess.Popen(
        words,
        env=finetune_runs.environment(**(environment or {})),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )


def test_a_rank_that_sleeps_in_its_data_loader(tmp_path: Path) -> None:
    path = write(tiny_plan("ddp", zero=0, total_steps=12, warmup_steps=1), tmp_path)
    (tmp_path / "sitecustomize.py").write_text(
        "import os, time\n"
        "if os.environ.get('RANK') == '1':\n"
        "    import recipes.finetune.data as data\n"
        "    read = data.Sequences.__getitem__\n"
        "    def slow_read(self, index):\n"
        "        if index // 16 == 7: time.sleep(300)\n"  # in the eighth step
        "        return read(self, index)\n"
        "    data.Sequences.__getitem__ = slow_read\n"
    )
    process = run(path, environment={"PYTHONPATH": f"{tmp_path}:{Path.cwd()}"})
    said = process.communicate(timeout=300)[0]
    assert process.returncode != 0 and "the run hangs" in said, said
    assert "slow_read" in (tmp_path / "run" / "stacks" / "rank-1.txt").read_text()
    assert (tmp_path / "run" / "stacks" / "rank-0.txt").exists()
    again = run(path)
    said = again.communicate(timeout=300)[0]
    assert again.returncode == 0, said
    assert [step.step for step in read_steps(tmp_path / "run")] == list(range(1, 13))


def test_a_rank_of_the_pretraining_program_that_is_stopped(tmp_path: Path) -> None:
    words = [sys.executable, "-m", "toolkit", "plan", "--recipe", "tiny-pretrain", "--cluster", "local-cpu"]
    subprocess.run([*words, "--gpus", "1x2", "--tp", "1", "--pp", "1", "--out", str(tmp_path)], check=True)
    start = [*finetune_runs.command(tmp_path / "plan.json", 2), *LIMITS]
    start[start.index(finetune_runs.PROGRAM)] = "recipes.pretrain.train"
    process = subprocess.Popen(
        start,
        env=finetune_runs.environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    steps, end = tmp_path / "run" / "steps.jsonl", time.monotonic() + 240
    while not (steps.exists() and steps.read_bytes().count(b"\n") >= 6):
        assert time.monotonic() < end and process.poll() is None
        time.sleep(0.05)
    (stopped,) = [pid for pid in children(process.pid) if b"RANK=1\0" in (Path(f"/proc/{pid}/environ")).read_bytes()]
    os.kill(stopped, signal.SIGSTOP)
    try:
        while not (tmp_path / "run" / "stacks" / "rank-0.json").exists():
            assert time.monotonic() < end + 240
            time.sleep(0.1)
        found = read_hang(tmp_path / "run", 2)
        assert found.silent == (1,) and found.first.section in ("step", "save")
    finally:
        os.killpg(stopped, signal.SIGKILL)  # with the process that megatron-core keeps for saves, which outlives it
        said = process.communicate(timeout=60)[0]
    assert process.returncode != 0 and "no answer from rank 1" in said, said


def children(parent: int) -> list[int]:
    listed = Path(f"/proc/{parent}/task/{parent}/children").read_text().split()
    return [int(each) for each in listed]
