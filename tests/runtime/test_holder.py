"""Who holds a directory: batch scripts too, and what Slurm says of their jobs."""

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner

from tests.plans import all_plans
from tests.runtime.test_lease import FAST
from toolkit.cli.files import write_files
from toolkit.cli.preflight import command as preflight
from toolkit.errors import ToolkitError
from toolkit.plan import dump
from toolkit.runtime import failures, holder, outcome
from toolkit.runtime.holder import JOB, LEASE, Holder
from toolkit.runtime.lease import Lease
from toolkit.runtime.outcome import Outcome, Presence

SLURM = """#!/bin/bash
case $* in
  "show config") echo "ClusterName             = here" ;;
  "show job -o 7") {say} ;;
  *) echo "slurm_load_jobs error: Invalid job id specified" >&2; exit 1 ;;
esac
"""
LINES = "echo 'JobId=8 JobName=x JobState=RUNNING'; echo 'JobId=7 ArrayJobId=8 JobName=x JobState={} Reason=None'"
MINE = {"SLURM_JOB_ID": "9", "SLURM_CLUSTER_NAME": "here", "TOOLKIT_ATTEMPT": "9-0-1"}


def held(directory: Path, kind: str, age: float = 5, **more: object) -> Path:
    """The file of a holder on another machine."""
    facts = {"host": "another", "pid": 1, "born": "1 boot pid", "job_id": "7", "cluster": "here", "since": "noon"}
    path = directory / f"{kind}.3"
    path.write_bytes(msgspec.json.encode(msgspec.convert(facts | more, Holder)))
    os.utime(path, (time.time() - age,) * 2)
    return path


@pytest.fixture
def slurm(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch):
    """What ``scontrol`` says of job 7."""
    folder = tmp_path_factory.mktemp("bin")
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")

    def says(text: str) -> None:
        (folder / "scontrol").write_text(SLURM.replace("{say}", text))
        (folder / "scontrol").chmod(0o755)

    return says


@pytest.mark.parametrize("known", [{}, {"SLURM_CLUSTER_NAME": "here"}])  # on a login node; in a job
def test_the_states_of_slurm(slurm, tmp_path: Path, known: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    found, path = Holder(host="n1", pid=1, job_id="7", cluster="here"), tmp_path / ".job.1"
    path.touch()
    for state, said in {"RUNNING": "running", "SUSPENDED": "suspended", "COMPLETING": "ending"}.items():
        slurm(LINES.format(state))
        assert holder.slurm_says(found, path, known) == said
    for state in ("PENDING", "COMPLETED", "NODE_FAIL", "TIMEOUT", "REQUEUE_HOLD"):
        slurm(LINES.format(state))
        assert holder.slurm_says(found, path, known) == "over"
    slurm("echo 'slurm_load_jobs error: Unable to contact slurm controller' >&2; exit 1")
    assert holder.slurm_says(found, path, known) == ""
    assert holder.slurm_says(msgspec.structs.replace(found, job_id="6"), path, known) == "over"  # forgotten
    for other in ({"cluster": "there"}, {"cluster": ""}, {"job_id": ""}, {"job_id": "-h"}):
        assert holder.slurm_says(msgspec.structs.replace(found, **other), path, known) == ""
    owner = os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: owner + 1)
    assert holder.slurm_says(msgspec.structs.replace(found, job_id="6"), path, known) == ""  # it may be hidden


@pytest.mark.parametrize(
    ("kind", "state", "age", "why"),
    [
        (JOB, "RUNNING", 5000, "is running"),
        (JOB, "SUSPENDED", 5000, "is suspended"),
        (JOB, "COMPLETED", 5, ""),
        (LEASE, "RUNNING", 5, "gave a sign 5 s ago"),
        (LEASE, "SUSPENDED", 5000, "is suspended"),
        (LEASE, "PENDING", 5, ""),
        (LEASE, "FAILED", -5000, ""),
    ],
)
def test_slurms_word_comes_before_signs_of_life(
    slurm, tmp_path: Path, kind: str, state: str, age: float, why: str
) -> None:
    held(tmp_path, kind, age=age)
    slurm(LINES.format(state))
    started = time.monotonic()
    if why:
        with pytest.raises(ToolkitError, match=rf"process 1 on another \(job 7\) since noon, which {why}") as error:
            Lease(tmp_path, MINE).__enter__()
        assert error.value.problems[0].remedy.startswith("wait for its end (squeue -j 7), or end it (scancel 7), or")
        assert [path.name for path in tmp_path.iterdir()] == [f"{kind}.3"]
    else:
        with Lease(tmp_path, MINE):
            assert time.monotonic() - started < 25  # it did not watch
    assert bool(holder.whose(tmp_path)) == bool(why)


def test_a_copy_of_the_directory_of_a_running_job_is_free(slurm, tmp_path: Path) -> None:
    slurm(LINES.format("RUNNING"))
    for kind in (JOB, LEASE):
        held(tmp_path, kind, folder=tmp_path.stat().st_ino)
        with pytest.raises(ToolkitError, match="which "):
            Lease(tmp_path, MINE).__enter__()
        held(tmp_path, kind, folder=1)
        assert holder.whose(tmp_path) == "" and not holder.is_of_another_run(tmp_path, "mine")
        with Lease(tmp_path, MINE, **FAST):
            pass
        (tmp_path / f"{kind}.3").unlink(missing_ok=True)


def test_a_script_without_slurm_is_believed_by_its_signs(tmp_path: Path) -> None:
    path = held(tmp_path, JOB, cluster="")
    with pytest.raises(ToolkitError, match="gave a sign 5 s ago"):
        Lease(tmp_path, {}).__enter__()
    os.utime(path, (time.time() - 2,) * 2)
    with Lease(tmp_path, {}, **FAST) as mine:
        mine.check()


def test_ranks_of_the_script_that_holds_the_directory(tmp_path: Path) -> None:
    """It has looked before: what is left of others is that of the dead."""
    held(tmp_path, JOB, job_id="9", cluster="here")
    held(tmp_path, LEASE, job_id="", cluster="")
    with pytest.raises(ToolkitError, match="process 1 on another since noon, which gave a sign"):
        Lease(tmp_path, {"SLURM_JOB_ID": "9"}).__enter__()  # not started by the script
    with Lease(tmp_path, MINE):
        assert (tmp_path / ".lease.4").exists()


@pytest.mark.parametrize(
    ("before", "follows"),
    [
        ({"restart_count": 0, "run": "7-0-3"}, True),
        ({"restart_count": 1, "run": "7-1-0"}, True),
        ({"restart_count": 1, "run": "7-1-1"}, False),
        ({"restart_count": 1, "run": ""}, True),
    ],
)
def test_attempts_of_one_job_follow_each_other(tmp_path: Path, before: dict[str, object], follows: bool) -> None:
    held(tmp_path, LEASE, cluster="", **before)
    lease = Lease(tmp_path, {"TOOLKIT_ATTEMPT": "7-1-1"})  # all that gets into some containers
    if follows:
        with lease:
            assert (tmp_path / ".lease.4").exists()
    else:
        with pytest.raises(ToolkitError, match="gave a sign"):
            lease.__enter__()


def test_two_starts_by_hand_in_one_allocation_are_two(tmp_path: Path) -> None:
    held(tmp_path, LEASE, cluster="")
    with pytest.raises(ToolkitError, match="gave a sign"):
        Lease(tmp_path, {"SLURM_JOB_ID": "7"}).__enter__()


def test_a_sleeper_does_not_write_over_the_file_of_the_next(tmp_path: Path) -> None:
    with Lease(tmp_path, {}, heartbeat_seconds=0.05):
        (tmp_path / ".lease.1").unlink()
        path = held(tmp_path, LEASE).rename(tmp_path / ".lease.1")
        there = path.read_bytes()
        time.sleep(0.5)
        assert path.read_bytes() == there
    assert path.read_bytes() == there


def test_a_rank_of_a_refused_run_leaves_the_outcome_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TOOLKIT_ATTEMPT", raising=False)
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "first")
    with Lease(tmp_path):
        outcome.replace(tmp_path, Outcome(state="ended"), "first")
        Presence(tmp_path, 1).failed("peer", "of the same run")
        monkeypatch.setenv("TORCHELASTIC_RUN_ID", "second")
        Presence(tmp_path, 1).failed("code", "of another one")
        monkeypatch.setattr(tempfile, "tempdir", str(tmp_path.parent))
        path = failures.write(tmp_path, 1, ValueError("of another one"))
        assert path.is_file() and path.parent == tmp_path.parent
        found = outcome.read(tmp_path)
        assert found is not None and (found.state, found.attempt) == ("ended", "first")
    Presence(tmp_path, 1).failed("code", "now it is free")
    found = outcome.read(tmp_path)
    assert found is not None and found.attempt == "second"


def test_a_look_changes_nothing(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "toolkit.runtime.lease"]
    (tmp_path / "run").mkdir()
    with Lease(tmp_path / "run", {}):
        before = {path: path.read_bytes() for path in (tmp_path / "run").iterdir()}
        done = subprocess.run([*command, str(tmp_path / "run")], capture_output=True, text=True, timeout=120)
        message, remedy = done.stderr.splitlines()
        assert done.returncode == 2 and f"belongs to process {os.getpid()} on " in message and " UTC, which" in message
        assert remedy.startswith("  give another --output-dir, or stop that process")
        assert {path: path.read_bytes() for path in (tmp_path / "run").iterdir()} == before
    for free in (tmp_path / "run", tmp_path / "none"):
        done = subprocess.run([*command, str(free)], capture_output=True, text=True, timeout=120)
        assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_preflight_by_hand_leaves_a_running_run_alone(tmp_path: Path) -> None:
    (tmp_path / "plan.json").write_text(dump(all_plans()["tiny"]))
    run = tmp_path / "run"
    run.mkdir()
    asked = [str(tmp_path / "plan.json"), "--nodes", "1", "--skip", "collective", "--skip", "storage"]
    with Lease(run, {"SLURM_JOB_ID": "41"}):
        error = CliRunner().invoke(preflight, asked).exception
        assert isinstance(error, ToolkitError) and "(job 41)" in str(error)
        assert [path.name for path in run.iterdir()] == [".lease.1"]


def test_files_that_a_run_reads_when_it_starts_again_stay(tmp_path: Path) -> None:
    write_files(tmp_path, {"plan.json": "1"})
    (tmp_path / "run").mkdir()
    with Lease(tmp_path / "run", {"SLURM_JOB_ID": "41"}):
        write_files(tmp_path, {"plan.json": "1", "notes": ""}, force=True)  # nothing changes
        with pytest.raises(ToolkitError, match=r"\(job 41\).*, which reads plan.json again when it is started again"):
            write_files(tmp_path, {"plan.json": "2", "other": ""}, force=True)
        assert sorted(path.name for path in tmp_path.iterdir()) == ["notes", "plan.json", "run"]
    write_files(tmp_path, {"plan.json": "2"}, force=True)
