"""Saves of the real pretraining program: in the background, killed in the middle, in durable storage, by two jobs."""

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.recipes.test_pretrain import ROOT, pretrain_plan, start, write
from toolkit.runtime import checkpoint, storage, telemetry
from toolkit.runtime.lease import Lease
from toolkit.runtime.manifest import read

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("forked")]


def test_in_the_background_and_copied_away(tmp_path: Path) -> None:
    made, far = pretrain_plan(zero_stage=1), f"file://{tmp_path}/far"
    arguments = ["--save-steps", "1", "--keep", "2", "--async-save", "--durable", far]
    start(tmp_path, made, 2, *arguments, "--max-steps", "3")
    run = tmp_path / "run"
    assert [path.name for path in checkpoint.complete(run)] == ["checkpoint-2", "checkpoint-3"]
    assert all(checkpoint.verify(path) == [] for path in checkpoint.complete(run))
    known = read(run / "checkpoint-3")
    assert (known.step, known.samples_seen, known.tokens) == (3, 24, 24 * 32)
    assert (known.world_size, known.degrees["dp"], known.framework) == (2, 2, "megatron")
    assert known.data is not None and known.data.sha256 and known.learning_rate and known.versions["megatron-core"]
    assert {"rng_state_0.pth", "rng_state_1.pth", ".metadata", "common.pt"} <= set(known.files)
    stalls = [step.save_stall_seconds for step in telemetry.read_steps(run)]
    assert stalls[0] < stalls[1] and stalls[2] > 0  # of the save after step 1, told with step 2
    # the local disk is lost: the run goes on from the copy, as if nothing had happened
    assert storage.newest(far, deep=True) == "checkpoint-3"
    shutil.rmtree(run)
    said = start(tmp_path, made, 2, *arguments, "--max-steps", "4")
    assert "resuming from checkpoint-3" in said and "step 4/" in said and "step 3/" not in said
    assert storage.names(far) == ["checkpoint-3", "checkpoint-4"]


def test_killed_while_a_save_is_under_way_the_older_one_counts(tmp_path: Path) -> None:
    made, run = pretrain_plan(processes=1), tmp_path / "run"
    plain = [*write(tmp_path, made), "--save-steps", "1", "--async-save", "--output-dir", str(run)]
    start(tmp_path, made, 1, "--save-steps", "1", "--max-steps", "1")
    command = [sys.executable, "-m", "tests.killing.slow_writer", *plain]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "SLOW_SECONDS": "120"}
    with subprocess.Popen(command, cwd=ROOT, env=environment, start_new_session=True) as process:
        deadline = time.monotonic() + 120
        while not (run / "checkpoint-2").exists():
            assert process.poll() is None and time.monotonic() < deadline
            time.sleep(0.05)
        time.sleep(0.5)  # the process that writes has been forked by then, and sleeps
        os.killpg(process.pid, signal.SIGKILL)
    assert not (run / "checkpoint-2" / checkpoint.MANIFEST).exists()
    assert checkpoint.newest_valid(run) == run / "checkpoint-1"
    assert "resuming from checkpoint-1" in start(tmp_path, made, 1, "--max-steps", "3")
    assert [path.name for path in checkpoint.complete(run)] == ["checkpoint-1", "checkpoint-3"]
    assert not (run / "incomplete-2").exists()


def test_training_goes_on_while_a_save_is_written(tmp_path: Path) -> None:
    made, run = pretrain_plan(processes=1), tmp_path / "run"
    plain = [*write(tmp_path, made), "--save-steps", "2", "--async-save", "--max-steps", "3"]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "SLOW_SECONDS": "12"}
    command = [sys.executable, "-m", "tests.killing.slow_writer", *plain]
    subprocess.run(command, cwd=ROOT, env=environment, check=True, timeout=240)
    steps = telemetry.read_steps(run)
    assert steps[2].save_stall_seconds < 12  # of the save after step 2: its writing took longer than step 3 waited
    assert read(run / "checkpoint-2").save_seconds > 12
    assert checkpoint.newest_valid(run) == run / "checkpoint-3"


def test_the_second_of_two_jobs_writes_nothing(tmp_path: Path) -> None:
    made, run = pretrain_plan(processes=1), tmp_path / "run"
    run.mkdir()
    command = [sys.executable, "-m", "recipes.pretrain.train", *write(tmp_path, made)]
    with Lease(run, {"SLURM_JOB_ID": "41"}):
        before = sorted(path.name for path in run.iterdir())
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120)
        assert done.returncode == 2
        assert f"error: {run} belongs to process {os.getpid()} on " in done.stderr and "(job 41)" in done.stderr
        assert sorted(path.name for path in run.iterdir()) == before


def test_random_states_are_taken_up_again(tmp_path: Path) -> None:
    import random

    import numpy as np
    import torch
    from megatron.core import tensor_parallel

    from recipes.pretrain import random_states

    def draw() -> tuple[float, float, float]:
        return random.random(), float(np.random.rand()), float(torch.rand(1))

    tracker = tensor_parallel.get_cuda_rng_tracker()
    tracker.reset()
    random_states.save(tmp_path, 3)
    expected = draw()
    assert draw() != expected
    assert random_states.load(tmp_path, 3)
    assert draw() == expected
    assert not random_states.load(tmp_path, 0)  # of another rank there is none
