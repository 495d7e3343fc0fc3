"""Two jobs and one directory: the second refuses, whatever the clocks say; a requeued one goes on at once."""

import errno
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import msgspec
import pytest

from toolkit.errors import ToolkitError
from toolkit.record import EventRecord, StepRecord
from toolkit.runtime import checkpoint, lease, telemetry
from toolkit.runtime.heartbeat import FIRST_BEAT
from toolkit.runtime.lease import Holder, Lease
from toolkit.runtime.outcome import Presence
from toolkit.runtime.save_failed import SaveFailed
from toolkit.runtime.signals import StopRequest

FAST = {"heartbeat_seconds": 0.1, "stale_seconds": 0.6}


def foreign(folder: Path, age: float, job_id: str = "7", generation: int = 3) -> Path:
    """The lease of a job on another machine that gave its last sign ``age`` seconds ago, by the server's clock."""
    path = folder / f".lease.{generation}"
    path.write_bytes(msgspec.json.encode(Holder(host="another", pid=1, born="1 boot pid", job_id=job_id)))
    then = time.time() - age
    os.utime(path, (then, then))
    return path


def test_the_second_of_two_refuses_and_names_the_first(tmp_path: Path) -> None:
    with Lease(tmp_path, {"SLURM_JOB_ID": "41"}):
        with pytest.raises(
            ToolkitError, match=rf"process {os.getpid()} .* \(job 41\) since 2.* UTC, which gave a sign"
        ) as error:
            Lease(tmp_path, {"SLURM_JOB_ID": "42"}).__enter__()
        assert "--output-dir" in error.value.problems[0].remedy
    with Lease(tmp_path, {"SLURM_JOB_ID": "42"}):
        assert [path.name for path in tmp_path.iterdir()] == [".lease.1"]
    assert list(tmp_path.iterdir()) == []


def test_a_live_one_elsewhere_is_refused_and_a_requeued_job_takes_over_at_once(tmp_path: Path) -> None:
    foreign(tmp_path, age=5)
    with pytest.raises(ToolkitError, match=r"process 1 on another \(job 7\)"):
        Lease(tmp_path, {"SLURM_JOB_ID": "8"}).__enter__()
    started = time.monotonic()
    with Lease(tmp_path, {"SLURM_JOB_ID": "7", "SLURM_RESTART_COUNT": "1"}) as mine:
        assert time.monotonic() - started < 10  # it did not watch
        assert [path.name for path in tmp_path.iterdir()] == [".lease.4"]
        mine.check()


def test_a_stale_one_is_watched_then_taken(tmp_path: Path) -> None:
    foreign(tmp_path, age=1)
    with Lease(tmp_path, {}, **FAST) as mine:
        mine.check()
        assert [path.name for path in tmp_path.iterdir()] == [".lease.4"]


def test_one_that_looks_stale_and_beats_is_alive(tmp_path: Path) -> None:
    """A node whose writes carry a clock that is an hour behind."""
    path = foreign(tmp_path, age=3600)
    beating = (
        "import os, sys, time, msgspec\n"
        "from toolkit.runtime.lease import Holder\n"
        "for beats in range(1, 60):\n"
        "    holder = Holder(host='another', pid=1, born='1 boot pid', job_id='7', beats=beats)\n"
        "    open(sys.argv[1], 'wb').write(msgspec.json.encode(holder)); then = time.time() - 3600\n"
        "    os.utime(sys.argv[1], (then, then)); time.sleep(0.1)\n"
    )
    with subprocess.Popen([sys.executable, "-c", beating, str(path)]) as process:
        try:
            with pytest.raises(ToolkitError, match="its heartbeat goes on"):
                Lease(tmp_path, {}, heartbeat_seconds=2, stale_seconds=10).__enter__()
        finally:
            process.kill()


@pytest.mark.parametrize("skew", [-7200.0, 7200.0])
def test_the_clock_of_this_machine_does_not_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, skew: float) -> None:
    """A node two hours ahead or behind must neither take a live lease nor wait for ever for a dead one."""
    now = time.time
    monkeypatch.setattr(time, "time", lambda: now() + skew)
    monkeypatch.setattr(lease.time, "time", lambda: now() + skew)
    path = foreign(tmp_path, age=0)
    os.utime(path, (now() - 5, now() - 5))
    with pytest.raises(ToolkitError, match="gave a sign 5 s ago"):
        Lease(tmp_path, {}).__enter__()
    os.utime(path, (now() - 500, now() - 500))
    with Lease(tmp_path, {}, heartbeat_seconds=0.1):
        pass


def test_a_lease_from_a_clock_ahead_is_watched_for_long(tmp_path: Path) -> None:
    foreign(tmp_path, age=-3600)
    started = time.monotonic()
    with Lease(tmp_path, {}, **FAST):
        assert time.monotonic() - started >= FAST["stale_seconds"]


def test_a_killed_process_of_this_machine_leaves_nothing_to_wait_for(tmp_path: Path) -> None:
    code = (
        "import os, sys\nfrom toolkit.runtime.lease import Lease\n"
        "Lease(sys.argv[1], {}).__enter__()\nos.kill(os.getpid(), 9)\n"
    )
    assert subprocess.run([sys.executable, "-c", code, str(tmp_path)], check=False).returncode == -9
    assert [path.name for path in tmp_path.iterdir()] == [".lease.1"]
    started = time.monotonic()
    with Lease(tmp_path, {}):
        assert time.monotonic() - started < 10  # it did not watch


def test_the_sleeper_that_was_overtaken_must_not_commit(tmp_path: Path) -> None:
    sleeper = Lease(tmp_path, {"SLURM_JOB_ID": "1"}, heartbeat_seconds=1000)
    sleeper.__enter__()
    sleeper.check()
    foreign(tmp_path, age=0, generation=2)
    with pytest.raises(ToolkitError, match="took over"):
        sleeper.check()
    for path in tmp_path.iterdir():
        path.unlink()  # the other came and went, and another began again at 1
    foreign(tmp_path, age=0, generation=1)
    with pytest.raises(ToolkitError, match="took over"):
        sleeper.check()
    sleeper.__exit__(None, None, None)
    assert (tmp_path / ".lease.1").exists()  # not its own to give back


def test_where_there_are_no_hard_links(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def link(source: Path, target: Path) -> None:
        raise PermissionError(errno.EPERM, "Operation not permitted", str(source), None, str(target))

    monkeypatch.setattr(os, "link", link)  # as Linux says it of such file systems
    with Lease(tmp_path, {"SLURM_JOB_ID": "1"}, **FAST) as first:
        first.check()
        with pytest.raises(ToolkitError, match="job 1"), Lease(tmp_path, {"SLURM_JOB_ID": "2"}, **FAST):
            pass
    assert not list(tmp_path.iterdir())


def _step(number: int) -> StepRecord:
    return StepRecord(step=number, seconds=1.0, tokens=1, loss=1.0, learning_rate=1.0)


@pytest.mark.parametrize("heartbeat, stale", [(0.05, 100.0), (1000.0, 0.0)], ids=["awake", "just thawed"])
def test_one_that_was_overtaken_ends_after_its_step_and_writes_nothing(
    tmp_path: Path, heartbeat: float, stale: float
) -> None:
    with Lease(tmp_path, {}, heartbeat_seconds=heartbeat, stale_seconds=stale) as mine:
        written = telemetry.Telemetry(tmp_path, telemetry.run_record("a", b"plan", 1, "cpu"))
        written.step(_step(1))
        (tmp_path / ".lease.2").write_bytes(b"{ half of one")  # what cannot be read tells nothing
        time.sleep(0.3)
        assert not lease.is_lost(tmp_path)
        foreign(tmp_path, age=0, generation=2)
        end = time.monotonic() + 60
        while not lease.is_lost(tmp_path):
            assert time.monotonic() < end
            time.sleep(0.01)
        before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
        with StopRequest(tmp_path) as stop, pytest.raises(ToolkitError, match="process 1 on another .* took over"):
            stop.agreed()
        written.step(_step(2))
        written.event(EventRecord(kind="spike", step=2, text=""))
        written.close()
        Presence(tmp_path).failed("input", "taken over")
        for write in (lambda: checkpoint.mark_finished(tmp_path, {}), mine.check):
            with pytest.raises(ToolkitError, match="took over"):
                write()
        assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before
    assert [each.step for each in telemetry.read_steps(tmp_path)] == [1]


def test_before_the_first_step_one_that_was_overtaken_ends(tmp_path: Path) -> None:
    code = (
        "import sys, time\nfrom pathlib import Path\nfrom toolkit.runtime.lease import Lease\n"
        "from toolkit.runtime.signals import StopRequest\nfolder = Path(sys.argv[1])\n"
        "with Lease(folder, {}, stale_seconds=0), StopRequest(folder):\n"
        "    (folder / '.lease.9').write_bytes(sys.stdin.buffer.read())\n    time.sleep(100)\n"
    )
    other = msgspec.json.encode(Holder(host="another", pid=1, born="1 boot pid"))
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path)], input=other, capture_output=True, check=False)
    assert (done.returncode, b"took over" in done.stderr, b"Traceback" in done.stderr) == (2, True, False)


def test_of_many_that_find_a_dead_one_exactly_one_gets_it(tmp_path: Path) -> None:
    foreign(tmp_path, age=1000)
    code = (
        "import sys, time\nfrom toolkit.runtime.lease import Lease\nfrom toolkit.errors import ToolkitError\n"
        "try:\n    Lease(sys.argv[1], {}, heartbeat_seconds=0.2, stale_seconds=5).__enter__()\n"
        "except ToolkitError:\n    sys.exit(2)\n"
        "sys.stdin.read()\n"
    )
    command = [sys.executable, "-c", code, str(tmp_path)]
    racers = [subprocess.Popen(command, stdin=subprocess.PIPE) for _ in range(6)]
    end = time.monotonic() + 120
    while sum(each.poll() is None for each in racers) > 1 and time.monotonic() < end:
        time.sleep(0.05)
    for each in racers:  # who has it keeps it until all others have given up
        assert each.stdin is not None
        each.stdin.close()
    assert sorted(each.wait() for each in racers) == [0, 2, 2, 2, 2, 2]
    assert [path.name for path in tmp_path.iterdir()] == [".lease.4"]


def test_heartbeats_are_written(tmp_path: Path) -> None:
    with Lease(tmp_path, {}, heartbeat_seconds=0.02):
        before = (tmp_path / ".lease.1").read_bytes()
        assert msgspec.json.decode(before, type=Holder).beats == FIRST_BEAT
        time.sleep(0.8)
        after = (tmp_path / ".lease.1").read_bytes()
    assert msgspec.json.decode(after, type=Holder).beats >= FIRST_BEAT + 10
    assert len(before) == len(after)  # a file that grows is torn to who reads it in that moment


def test_one_that_is_torn_for_a_moment_is_held(tmp_path: Path) -> None:
    """A client of NFS may have the old size of a file and its new content: the last brace is not there."""
    with Lease(tmp_path, {}, heartbeat_seconds=1000):
        path = tmp_path / ".lease.1"
        whole = path.read_bytes()
        path.write_bytes(whole[:-1])
        threading.Timer(0.15, path.write_bytes, [whole]).start()
        with pytest.raises(ToolkitError, match="gave a sign"):
            Lease(tmp_path, {}).look()
        path.write_bytes(whole[:-1])
        threading.Timer(0.15, path.write_bytes, [whole]).start()
        lease.require(tmp_path)


def test_one_that_cannot_be_read_has_not_been_taken_by_another(tmp_path: Path) -> None:
    with Lease(tmp_path, {}, heartbeat_seconds=1000):
        path = tmp_path / ".lease.1"
        path.rename(tmp_path / "aside")
        path.mkdir()
        with pytest.raises(SaveFailed, match="Is a directory"):
            checkpoint.begin(tmp_path, 1, require=lambda: lease.require(tmp_path))
        path.rmdir()
        (tmp_path / "aside").rename(path)
        lease.require(tmp_path)


@pytest.mark.parametrize("action", ["full", "unreadable"])
def test_storage_that_refuses_the_lease_is_a_sentence(tmp_path: Path, action: str) -> None:
    """A job that is started again on the disk that it has filled: as little a traceback as at the save."""
    if action == "unreadable":
        (tmp_path / ".lease.3").mkdir()
    program = (
        "import resource, sys\nfrom toolkit.runtime.lease import Lease\n"
        "from toolkit.runtime.save_failed import SaveFailed\n"
        "if sys.argv[2] == 'full':\n    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))\n"
        "try:\n    Lease(sys.argv[1], {}).__enter__()\n"
        "except SaveFailed as error:\n    print(error.kind, error.exit_code, error)\n"
    )
    command = [sys.executable, "-c", program, str(tmp_path), action]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    said = {"full": "File too large", "unreadable": "Is a directory"}[action]
    assert done.stdout.startswith(f"storage 1 cannot take the lease of {tmp_path}: {said}"), done.stderr
    assert [path.name for path in tmp_path.iterdir()] == [".lease.3"] * (action == "unreadable")
