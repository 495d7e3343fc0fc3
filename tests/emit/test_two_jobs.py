"""Two jobs and one output directory: the second disturbs nothing of the first, says who is there, and ends with 2."""

import json
import os
import signal
import subprocess
import time
from pathlib import Path

import pytest

from tests import plans
from tests.emit.fake_cluster import FakeCluster
from tests.emit.test_attempts import RUN, WORDS, requeued, restarts, run
from tests.emit.test_slurm import written
from toolkit.emit.bundle import bundle

PLAN = plans.all_plans()["zero3"]
UNTIL_THE_END = 'until [ -e "$RECORD/end" ]; do sleep 0.1; done\n'
HERE = {"SLURM_CLUSTER_NAME": "here"}


@pytest.fixture
def cluster(tmp_path: Path) -> FakeCluster:
    return FakeCluster(tmp_path / "cluster", dict(HERE))


def held(made: FakeCluster, kind: str, job: str = "41", age: float = 5, **more: object) -> Path:
    """A holder's file, whose last sign is so old."""
    folder = made.submit / RUN
    folder.mkdir(parents=True, exist_ok=True)
    since = "2026-11-30 12:00:00 UTC"
    facts = {"host": "n7", "pid": 1, "born": "1 boot pid", "job_id": job, "cluster": "here", "since": since}
    path = folder / f"{kind}.3"
    path.write_text(json.dumps(facts | {"restart_count": 0} | more, separators=(",", ":")))
    os.utime(path, (time.time() - age,) * 2)
    return path


def states(cluster: FakeCluster, **of_jobs: str) -> None:
    (cluster.directory / "states").write_text("".join(f"{job[1:]} {state}\n" for job, state in of_jobs.items()))


def content(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def test_the_second_job_leaves_everything_of_the_first_as_it_is(cluster: FakeCluster) -> None:
    text = WORDS + "mkdir -p plan/run/stacks; saved 7; say failed code; outcome failed code ours\n"
    text += f'touch "$RECORD/ready.$node" plan/run/stacks/HANG; {UNTIL_THE_END}'
    (cluster.directory / "script").write_text(text)
    (cluster.directory / "check").write_text('echo \'{"run_id": "41-0"}\' >plan/run/preflight.json\n')
    first = cluster.start(written(cluster, PLAN), SLURM_JOB_ID="41", FAKE_TORCHRUN="script")
    try:
        for node in range(2):
            cluster.wait_for(f"ready.{node}")
        states(cluster, _41="RUNNING")
        (cluster.submit / RUN / "restarts.jsonl").write_text('{"job": "41"}\n')
        before = content(cluster.submit / RUN)
        assert {".job.1", "outcome.json", "latest", "preflight.json", "stacks/HANG", ".attempt/41-0-0/1"} <= set(before)
        (cluster.directory / "check").write_text("echo mine >plan/run/preflight.json\n")
        done = cluster.run(written(cluster, PLAN), SLURM_JOB_ID="42", FAKE_TORCHRUN="script")
        assert done.returncode == 2
        message, remedy = done.stderr.splitlines()
        host = os.uname().nodename
        assert message.startswith(f"error: plan/run belongs to job 41 on {host} since 2")
        assert message.endswith(" UTC, which is running; this job, 42, ends")
        assert remedy == ("  wait for its end (squeue -j 41), or end it (scancel 41), or give another --output-dir")
        assert done.stdout == "" and content(cluster.submit / RUN) == before and first.poll() is None
    finally:
        first.terminate()
        (cluster.record / "end").touch()
        first.communicate(timeout=120)
    assert not list((cluster.submit / RUN).glob(".job*"))  # given back, also when Slurm ends the script


@pytest.mark.parametrize(
    ("kind", "state", "age", "why"),
    [
        (".job", "RUNNING", 5, "is running"),
        (".job", "RUNNING", 5000, "is running"),  # whatever clocks say
        (".job", "SUSPENDED", 5000, "is suspended"),
        (".job", "", 5, "gave a sign of life 5 s ago"),  # Slurm does not answer
        (".job", "COMPLETED", 5, ""),
        (".job", "PENDING", 5, ""),  # requeued: whoever runs has it
        (".job", "FORGOTTEN", 5, ""),
        (".job", "NODE_FAIL", -5000, ""),
        (".lease", "RUNNING", 5, "gave a sign of life 5 s ago"),
        (".lease", "SUSPENDED", 5000, "is suspended"),
        (".lease", "CANCELLED", 5, ""),
        (".lease", "FORGOTTEN", 5, ""),
        (".lease", "REQUEUED", -5000, ""),
    ],
)
def test_slurm_says_whether_the_holder_is_there(
    cluster: FakeCluster, kind: str, state: str, age: float, why: str
) -> None:
    path = held(cluster, kind, age=age)
    if state:
        states(cluster, _41=state)
    before = content(cluster.submit / RUN)
    done = run(cluster, "finish")
    assert done.returncode == (2 if why else 0), done.stderr
    assert (cluster.record / "torchrun.0").exists() == (not why)
    if why:
        # seconds may have passed
        assert "belongs to job 41 on n7 since 2026-11-30 12:00:00 UTC, which " in done.stderr
        assert why.split(" 5 ")[0] in done.stderr and content(cluster.submit / RUN) == before
    elif kind == ".job":
        assert not path.exists()


@pytest.mark.parametrize(
    ("kind", "more", "refused"),
    [
        (".job", {"job": "1234567"}, True),  # srun has started the script twice
        (".job", {"job": "1234567", "restart_count": 1}, False),  # before the requeue
        (".lease", {"job": "1234567"}, False),  # of the last attempt
        (".job", {"cluster": "there"}, True),  # job 41 of this cluster has ended, that of the other one has not
        (".lease", {"job": "", "cluster": ""}, True),  # launch.sh somewhere
        (".lease", {"job": "", "cluster": "", "host": os.uname().nodename, "pid": 2**22 + 1}, True),  # in a container
    ],
)
def test_signs_of_life_decide_where_slurm_cannot_tell(
    cluster: FakeCluster, kind: str, more: dict[str, str], refused: bool
) -> None:
    held(cluster, kind, **more)
    states(cluster, _41="COMPLETED")
    done = run(cluster, "finish")
    assert done.returncode == (2 if refused else 0), done.stderr
    assert ("which gave a sign of life" in done.stderr) == refused and not requeued(cluster)


@pytest.mark.parametrize(("then", "code"), [("RUNNING", 2), ("COMPLETED", 0)])
def test_a_job_that_is_about_to_end_is_waited_for(cluster: FakeCluster, then: str, code: int) -> None:
    held(cluster, ".job", age=5000)
    states(cluster, _41="COMPLETING")
    (cluster.directory / "script").write_text(f"{WORDS}finish")
    process = cluster.start(written(cluster, PLAN), FAKE_TORCHRUN="script")
    assert process.stdout is not None
    assert "waiting for the end of job 41 on n7" in process.stdout.readline()
    states(cluster, _41=then)
    _, err = process.communicate(timeout=120)
    assert process.returncode == code, err


@pytest.mark.parametrize("alive", [False, True])
def test_a_copy_of_the_directory_of_a_running_job_is_free(cluster: FakeCluster, alive: bool) -> None:
    """Its holders' files were copied as well; on file systems that number folders anew there are signs of life."""
    path = held(cluster, ".job", folder=1)
    states(cluster, _41="RUNNING")
    (cluster.directory / "script").write_text(f"{WORDS}finish")
    # the clock of the shell, 30 s in a few: bash's own
    text = written(cluster, PLAN).replace(
        "    sleep 1\n    age=", "    SECONDS=$((SECONDS + 9))\n    sleep 1\n    age="
    )
    process = cluster.start(text, FAKE_TORCHRUN="script")
    assert process.stdout is not None
    assert "waiting whether there is another" in process.stdout.readline()
    if alive:
        os.utime(path)
    _, err = process.communicate(timeout=120)
    assert process.returncode == (2 if alive else 0), err
    assert ("which gives signs of life" in err) == alive


def test_a_process_of_this_machine_that_is_gone_holds_nothing(cluster: FakeCluster) -> None:
    space = f"{Path('/proc/sys/kernel/random/boot_id').read_text().strip()} {Path('/proc/self/ns/pid').readlink()}"
    held(cluster, ".lease", job="", host=os.uname().nodename, pid=2**22 + 1, born=f"7 {space}")
    assert run(cluster, "finish").returncode == 0


def test_a_requested_stop_of_the_second_job_does_not_stop_the_first(cluster: FakeCluster) -> None:
    path = held(cluster, ".lease", cluster="there", age=1000)
    process = cluster.start(written(cluster, PLAN))
    assert process.stdout is not None
    assert "waiting whether there is another" in process.stdout.readline()
    process.send_signal(signal.SIGUSR1)
    time.sleep(1.5)
    path.write_text(path.read_text())  # it is alive: its clock was wrong
    _, err = process.communicate(timeout=120)
    assert process.returncode == 2 and "which gives signs of life" in err
    assert not (cluster.submit / RUN / "STOP").exists() and not requeued(cluster)


@pytest.mark.parametrize("links", [True, False], ids=["", "no hard links"])
def test_one_of_many_that_start_together_trains(cluster: FakeCluster, links: bool) -> None:
    """As the tasks of an array do."""
    if not links:
        (cluster.directory / "bin" / "ln").write_text("#!/bin/bash\necho 'ln: Operation not permitted' >&2\nexit 1\n")
        (cluster.directory / "bin" / "ln").chmod(0o755)
    jobs = [str(number) for number in range(41, 47)]
    states(cluster, **{f"_{job}": "RUNNING" for job in jobs})
    (cluster.directory / "script").write_text(f'{WORDS}: >"$RECORD/ran.$SLURM_JOB_ID"; {UNTIL_THE_END}finish\n')
    text = written(cluster, PLAN)
    started = [cluster.start(text, SLURM_JOB_ID=job, FAKE_TORCHRUN="script") for job in jobs]
    end = time.monotonic() + 200
    while sum(each.poll() is None for each in started) > 1 and time.monotonic() < end:
        time.sleep(0.05)
    (cluster.record / "end").touch()
    said = [each.communicate(timeout=100)[1] for each in started]
    assert sorted(each.returncode for each in started) == [0] + [2] * 5, said
    assert len(list(cluster.record.glob("ran.*"))) == 1
    assert all("belongs to job 4" in text for each, text in zip(started, said, strict=True) if each.returncode)


def test_a_job_that_was_given_up_for_lost_changes_nothing_of_the_next(cluster: FakeCluster) -> None:
    """Its node was cut off; meanwhile another job has taken over, and has an outcome of its own."""
    taken = '{"host":"n7","pid":1,"job_id":"99","restart_count":0,"cluster":"here","since":"noon"}'
    text = f"rm plan/run/.job.*; echo '{taken}' >plan/run/.job.2; echo other >plan/run/outcome.json"
    done = run(cluster, f"[ $node = 1 ] || {{ {text}; }}; killed")
    assert done.returncode == 2 and "belongs to job 99 on n7 since noon, which took it over" in done.stderr
    assert (cluster.submit / RUN / "outcome.json").read_text() == "other\n"
    assert (cluster.submit / RUN / ".job.2").read_text() == f"{taken}\n"
    assert not restarts(cluster) and not requeued(cluster)


def test_a_directory_that_was_emptied_is_taken_again(cluster: FakeCluster) -> None:
    done = run(cluster, "[ $attempt = 1 ] && finish; [ $node = 1 ] || rm -f plan/run/.job.*; killed")
    assert done.returncode == 0 and "attempt 1" in done.stdout, done.stderr


def test_the_program_is_refused(cluster: FakeCluster) -> None:
    """A run by hand took the lease between the script's look and the program's own."""
    sentence = "plan/run belongs to process 7 on login since noon, which gave a sign 3 s ago"
    done = run(cluster, f'[ $node = 1 ] && {{ sleep 0.2; exit 1; }}; echo "refused {sentence}" >>"$folder/0"; exit 1')
    assert done.returncode == 2 and not requeued(cluster) and not restarts(cluster)
    assert f"error: {sentence}\n" in done.stderr and "code 1" not in done.stderr


def test_the_outcome_of_another_start_is_not_this_ones(cluster: FakeCluster) -> None:
    other = 'TOOLKIT_ATTEMPT=x; outcome failed code "ValueError: another"'
    done = run(cluster, f"[ $attempt = 1 ] && finish; [ $node = 1 ] && killed; {other}; peer")
    assert done.returncode == 0 and "rank 1 on n2 was killed" in done.stdout, done.stderr
    assert "another" not in done.stdout


def test_launch_sh_asks_before_anything_else(cluster: FakeCluster) -> None:
    plan = plans.all_plans()["tiny"]
    folder = cluster.directory / "here"
    for name, text in bundle(plan, str(folder), "torchrun").items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    start = ["bash", str(folder / "launch.sh")]
    for code in (2, 0):
        environment = cluster.environment | {"FAKE_HELD": str(code)}
        done = subprocess.run(start, env=environment, capture_output=True, text=True, timeout=120)
        assert done.returncode == code, done.stderr
        assert (
            (cluster.record / "preflight.local").exists() == (cluster.record / "torchrun.local").exists() == (not code)
        )
