"""The emitted train.sbatch of the recipe ``tiny``, submitted as it is to a real Slurm of two nodes, really trains."""

import json
import sys
import time

import pytest

from tests.cluster import runs, slurm
from tests.cluster.conftest import started
from toolkit.runtime import telemetry

pytestmark = pytest.mark.cluster
ZERO_2 = ("--framework", "deepspeed", "--zero", "2", "--offload", "none")


@pytest.fixture(scope="module")
def cluster():
    """Two nodes without GPUs."""
    running = started(gres="")
    yield running
    slurm.stop(running)


def submit(cluster, folder, *arguments, check="--skip collective"):
    """Submit the script as it was written; ``arguments`` are the program's, ``check`` options of toolkit preflight."""
    words = ("env", f"PREFLIGHT_OPTIONS={check}", "sbatch", "--parsable", "out/train.sbatch", *arguments)
    return cluster.run(*words, cwd=folder).strip()


def test_train_sbatch_trains_on_two_nodes(cluster, tmp_path):
    out = runs.emit(tmp_path, "tiny", *ZERO_2)
    job = cluster.wait(submit(cluster, tmp_path, check=""), timeout=300)
    said = slurm.output(job)
    assert job["JobState"] == "COMPLETED", said
    assert job["NumNodes"] == "2" and "preflight: 2 nodes, fit" in said
    assert "node 0 is n1" in said and "node 1 is n2" in said, said
    assert (out / "run" / "FINISHED").is_file()
    run, steps = telemetry.read_run(out / "run"), telemetry.read_steps(out / "run")
    assert (run.world_size, run.slurm_job_id, run.hostname) == (2, job["JobId"], "n1")
    assert [step.step for step in steps] == list(range(1, 61))
    assert steps[0].loss > 5.3  # ln 260 = 5.56: nothing is known yet
    assert sum(step.loss for step in steps[-5:]) / 5 < 3.1


def test_launch_plans_submits_and_trains_at_another_batch_by_rule(cluster, tmp_path):
    (tmp_path / "site.toml").write_text(runs.site())
    asked = ("tiny", "--cluster", "site.toml", "--gpus", "2x1", *ZERO_2, "--global-batch", "32")
    start = (sys.executable, "-m", "toolkit", "launch", *asked, "--submit", "--json", "--out", "out", "--")
    said = json.loads(cluster.run(*start, "--max-steps", "3", cwd=tmp_path))
    assert said["started"], said
    job = cluster.wait(said["output"].split()[-1], timeout=300)
    assert job["JobState"] == "COMPLETED", slurm.output(job)
    steps = telemetry.read_steps(tmp_path / "out" / "run")
    assert [step.tokens for step in steps] == [32 * 128] * 3
    assert steps[2].learning_rate == pytest.approx(3e-3 * 2**0.5 * 2 / 5)  # of 5 steps of warm-up


def test_usr1_saves_requeues_and_finishes(cluster, tmp_path):
    out = runs.emit(tmp_path, "tiny", *ZERO_2)
    number = submit(cluster, tmp_path)
    wait_for_step(cluster, number, out / "run" / "steps.jsonl", 8)
    cluster.run("scancel", "--signal=USR1", "--batch", number)
    job = cluster.wait(number, timeout=300)
    said = slurm.output(job)
    assert (job["JobState"], job["Restarts"]) == ("COMPLETED", "1"), said
    assert telemetry.read_run(out / "run").restart_count == 1
    lines = [json.loads(line)["step"] for line in (out / "run" / "steps.jsonl").read_text().splitlines()]
    assert lines == list(range(1, 61)), "the second start did not go on where the first had saved"
    assert (out / "run" / "FINISHED").is_file()


def test_megatron_pipeline_over_two_nodes(cluster, tmp_path):
    out = runs.emit(tmp_path, "tiny-pretrain", "--pp", "2", "--vpp", "1", "--micro-batch", "4")
    job = cluster.wait(submit(cluster, tmp_path, "--max-steps", "5"), timeout=300)
    said = slurm.output(job)
    assert job["JobState"] == "COMPLETED", said
    assert "node 0 is n1" in said and "node 1 is n2" in said, said
    assert telemetry.read_run(out / "run").world_size == 2
    steps = telemetry.read_steps(out / "run")
    assert [step.step for step in steps] == [1, 2, 3, 4, 5]
    assert steps[-1].loss < steps[0].loss - 0.5


def wait_for_step(cluster, number, steps, wanted, timeout=400):
    end = time.monotonic() + timeout
    while not (steps.is_file() and steps.read_bytes().count(b"\n") >= wanted):
        job = cluster.job(number)
        assert job["JobState"] in ("PENDING", "RUNNING", "CONFIGURING"), slurm.output(job)
        assert time.monotonic() < end, slurm.output(job)
        time.sleep(0.1)


def test_a_finished_run_is_not_trained_again(cluster, tmp_path):
    out = runs.emit(tmp_path, "tiny", *ZERO_2)
    (out / "run").mkdir()
    (out / "run" / "FINISHED").write_text("{}")
    job = cluster.wait(submit(cluster, tmp_path))
    assert job["JobState"] == "COMPLETED"
    assert "already finished" in slurm.output(job)
    assert [path.name for path in (out / "run").iterdir()] == ["FINISHED"]
