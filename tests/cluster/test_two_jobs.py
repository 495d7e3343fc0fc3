"""Two jobs of a real Slurm and one output directory: whoever runs has it, the other one is refused in a sentence."""

import time

import pytest

from tests.cluster import slurm
from tests.cluster.test_launch_forms import shell_job

pytestmark = pytest.mark.cluster
# instead of the program: says that it is there, and ends the run where it is told to
PROGRAM = """#!/bin/bash
case $* in *"-m toolkit preflight"*) touch plan/run/preflight.json; exit 0 ;; esac
touch "began-$SLURM_JOB_ID-$SLURM_RESTART_COUNT"
until [ -e "end-$SLURM_JOB_ID" ]; do sleep 0.1; done
touch plan/run/FINISHED
"""


def until(condition, timeout=150):
    end = time.monotonic() + timeout
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.1)


def submit(cluster, folder):
    return cluster.run("sbatch", "--parsable", "train.sbatch", cwd=folder).strip()


def refused(cluster, number, holder, why):
    job = cluster.wait(number)
    said = slurm.output(job)
    assert (job["JobState"], job["ExitCode"]) == ("FAILED", "2:0"), said
    assert (
        said.count("\nerror: ") + said.startswith("error: ") == 1
        and f"error: plan/run belongs to job {holder} on n" in said
    ), said
    assert f" UTC, which {why}; this job, {number}, ends\n  wait for its end (squeue -j {holder})" in said
    return True


def test_whoever_runs_has_the_directory(cluster, tmp_path):
    cluster.run("scancel", shell_job(cluster, tmp_path, directives=("--hold",)))  # writes the files
    for name in ("torchrun", "python3"):
        (tmp_path / "bin" / name).write_text(PROGRAM)
    run = tmp_path / "plan" / "run"

    first = submit(cluster, tmp_path)
    until((tmp_path / f"began-{first}-").exists)
    before = {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}
    assert run / ".job.1" in before
    refused(cluster, submit(cluster, tmp_path), first, "is running")
    assert {path: path.read_bytes() for path in run.rglob("*") if path.is_file()} == before

    # while it waits to be started again, another one goes on; it is not to come back to that one
    cluster.run("scontrol", "requeuehold", first)
    cluster.wait(first, states={"PENDING"})
    second = submit(cluster, tmp_path)
    until((tmp_path / f"began-{second}-").exists)
    cluster.run("scontrol", "release", first)
    cluster.run("scontrol", "update", f"JobId={first}", "StartTime=now")
    refused(cluster, first, second, "is running")
    assert cluster.job(first)["Restarts"] == "1" and cluster.job(second)["JobState"] == "RUNNING"

    # a power cut: its file stays, and Slurm knows that nobody is there
    host = cluster.job(second)["BatchHost"]
    cluster.kill_node(host)
    cluster.run("scontrol", "update", f"NodeName={host}", "State=DOWN", "Reason=test")
    cluster.run("scontrol", "hold", second)
    assert (run / ".job.2").exists() or (run / ".job.1").exists()
    third = submit(cluster, tmp_path)
    (tmp_path / f"end-{third}").touch()
    job = cluster.wait(third)
    assert job["JobState"] == "COMPLETED", slurm.output(job)
    assert "waiting whether" not in slurm.output(job) and not list(run.glob(".job*"))
