"""A request to stop is remembered, seen once per step, and does not outlive its start."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from toolkit.runtime.signals import STOP_FILE, STOPPED, StopRequest, stopped_exit_code


@pytest.mark.parametrize("number", [signal.SIGUSR1, signal.SIGUSR2, signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_signal_is_a_request(number: signal.Signals, tmp_path: Path) -> None:
    before = signal.getsignal(number)
    with StopRequest(tmp_path) as stop:
        assert not stop.agreed()
        os.kill(os.getpid(), number)
        assert stop.agreed() and stop.agreed()
        assert stop.reason == number.name
    assert signal.getsignal(number) is before


def test_under_nohup_a_terminal_that_closes_is_no_request(tmp_path: Path) -> None:
    """Nor one to a loader's process."""
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with StopRequest(tmp_path) as stop:
            os.kill(os.getpid(), signal.SIGHUP)
            assert not stop.agreed()
            if (child := os.fork()) == 0:
                os.kill(os.getpid(), signal.SIGHUP)
                os._exit(7)
            assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    finally:
        signal.signal(signal.SIGHUP, before)


def test_the_file_is_a_request_that_only_rank_0_sees_at_a_step(tmp_path: Path) -> None:
    with StopRequest(tmp_path, rank=0) as first, StopRequest(tmp_path, rank=1) as second:
        first.begun = second.begun = True  # or this process would end
        (tmp_path / STOP_FILE).touch()
        assert first.agreed() and STOP_FILE in first.reason
        assert not second.agreed()


def test_a_request_to_an_earlier_start_is_void(tmp_path: Path) -> None:
    (tmp_path / STOP_FILE).touch()
    with StopRequest(tmp_path) as stop:
        assert not stop.agreed()


@pytest.mark.parametrize(("rank", "age"), [(0, 10**9), (1, 10**9), (1, -7200.0)])
def test_before_the_first_step_every_rank_sees_the_file_of_its_own_start(tmp_path: Path, rank: int, age: float) -> None:
    """Rank 1 would wait for rank 0 without an end: under torchrun a rank that leaves with 0 ends no other."""
    old = tmp_path / STOP_FILE
    old.touch()
    then = time.time() - age  # by the file server's clock; this node's may be hours behind it
    os.utime(old, (then, then))
    code = (
        "import sys, time\nfrom toolkit.runtime.signals import StopRequest\n"
        "with StopRequest(sys.argv[1], int(sys.argv[2])):\n    print('in', flush=True)\n    time.sleep(60)"
    )
    started = subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path), str(rank)], stdout=subprocess.PIPE, text=True
    )
    assert started.stdout is not None and started.stdout.readline() == "in\n"
    with pytest.raises(subprocess.TimeoutExpired):
        started.wait(timeout=2.5)  # the file of an earlier start
    old.touch()
    said, _ = started.communicate(timeout=50)
    assert started.returncode == STOPPED and "nothing is lost" in said


def _waits(folder: Path, rank: int, attempt: str) -> subprocess.Popen[str]:
    """A rank of a job script's attempt, before its first step."""
    code = (
        "import sys, time\nfrom toolkit.runtime.signals import attended\n"
        "with attended(sys.argv[1], int(sys.argv[2])):\n    print('in', flush=True)\n    time.sleep(60)"
    )
    environment = os.environ | {"TOOLKIT_ATTEMPT": attempt}
    command = [sys.executable, "-c", code, str(folder), str(rank)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)


def test_a_rank_that_starts_later_than_the_file_was_written_sees_it(tmp_path: Path) -> None:
    """The job script has removed what was there before its ranks start."""
    (tmp_path / ".attempt" / "7-0-0").mkdir(parents=True)
    (tmp_path / STOP_FILE).touch()
    started = _waits(tmp_path, 1, "7-0-0")
    assert "nothing is lost" in started.communicate(timeout=50)[0] and started.returncode == STOPPED


def test_before_the_first_step_one_rank_that_is_asked_takes_the_others_along(tmp_path: Path) -> None:
    (tmp_path / ".attempt" / "7-0-0").mkdir(parents=True)
    (tmp_path / ".attempt" / "8-0-0").mkdir(parents=True)
    ranks = [_waits(tmp_path, rank, "7-0-0") for rank in range(2)]
    other = _waits(tmp_path, 1, "8-0-0")  # of another job, which has not been asked
    for each in (*ranks, other):
        assert each.stdout is not None and each.stdout.readline() == "in\n"
    ranks[1].send_signal(signal.SIGUSR1)
    assert [each.wait(timeout=50) for each in ranks] == [STOPPED, STOPPED]
    assert other.poll() is None and not (tmp_path / STOP_FILE).exists()
    other.kill()
    other.wait()


def test_torchrun_must_not_take_a_stop_for_a_crash(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TORCHELASTIC_RUN_ID", raising=False)
    assert stopped_exit_code() == STOPPED == os.EX_TEMPFAIL
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "7")
    assert stopped_exit_code() == 0


@pytest.mark.slow
def test_one_rank_that_is_asked_stops_them_all(tmp_path: Path) -> None:
    """Two real processes: only rank 1 gets the signal, only rank 0 loses its lease, and both learn of it together."""
    code = """
import os, signal, sys
from datetime import timedelta
from pathlib import Path
import msgspec
import torch.distributed as distributed
from toolkit.errors import ToolkitError
from toolkit.runtime.lease import Holder, Lease
from toolkit.runtime.signals import StopRequest
rank = int(sys.argv[1])
distributed.init_process_group("gloo", init_method="file://" + sys.argv[2], rank=rank, world_size=2,
    timeout=timedelta(seconds=60))
with StopRequest(os.path.dirname(sys.argv[2]), rank) as stop:
    first = stop.agreed()
    if rank == 1:
        os.kill(os.getpid(), signal.SIGUSR1)
    print(first, stop.agreed(), stop.reason, flush=True)
folder = Path(sys.argv[2]).parent
if rank == 0:  # only it has the lease, which another job takes
    Lease(folder, {}, stale_seconds=0).__enter__()
    (folder / ".lease.9").write_bytes(msgspec.json.encode(Holder(host="another", pid=1)))
with StopRequest(folder, rank) as stop:
    try:
        stop.agreed()
    except ToolkitError as error:
        print("took over" in str(error), flush=True)
os._exit(0)
"""
    started = [
        subprocess.Popen(
            [sys.executable, "-c", code, str(rank), str(tmp_path / "meeting")], stdout=subprocess.PIPE, text=True
        )
        for rank in range(2)
    ]
    said = [process.communicate(timeout=120)[0].strip() for process in started]
    assert said == ["False True another rank\nTrue", "False True SIGUSR1\nTrue"]


def test_a_second_ctrl_c_interrupts_at_once_where_no_launcher_is_in_between(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("TORCHELASTIC_RUN_ID", raising=False)
    with pytest.raises(KeyboardInterrupt), StopRequest(tmp_path) as stop:
        stop.agreed()
        os.kill(os.getpid(), signal.SIGINT)
        assert stop.agreed() and stop.reason == "SIGINT"
        os.kill(os.getpid(), signal.SIGINT)
