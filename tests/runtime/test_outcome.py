"""Whoever reads the output directory learns how a start ended, also where exit codes do not tell."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from toolkit.errors import ToolkitError
from toolkit.runtime import failures, outcome, signals
from toolkit.runtime.lease import Lease
from toolkit.runtime.outcome import Presence

GLOO = RuntimeError("Connection closed by peer")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An output directory as a job script prepares it."""
    monkeypatch.setenv("TOOLKIT_ATTEMPT", "7-0-0")
    monkeypatch.setenv("SLURMD_NODENAME", "n3")
    (tmp_path / ".attempt" / "7-0-0").mkdir(parents=True)
    return tmp_path


def words(folder: Path, rank: int) -> list[str]:
    return (folder / ".attempt" / "7-0-0" / str(rank)).read_text().splitlines()


def test_a_run_that_ends_by_its_arguments(folder: Path) -> None:
    with signals.attended(folder, 0) as stop:
        assert not stop.agreed(step=5)
    found = outcome.read(folder)
    assert found is not None and (found.state, found.step, found.node, found.attempt) == ("ended", 5, "n3", "7-0-0")
    assert words(folder, 0) == ["here n3", "left 0"]


def test_a_finished_run(folder: Path) -> None:
    with signals.attended(folder, 0):
        (folder / "FINISHED").write_text("{}")
    found = outcome.read(folder)
    assert found is not None and found.state == "finished"


def test_a_stop_on_request(folder: Path) -> None:
    with signals.attended(folder, 0) as stop:
        assert not stop.agreed(step=1)
        os.kill(os.getpid(), signal.SIGTERM)
        assert stop.agreed(step=2)
    found = outcome.read(folder)
    assert found is not None and (found.state, found.step, found.reason) == ("stopped", 2, "SIGTERM")
    time.sleep(0.1)
    assert words(folder, 0)[0] == "here n3" and set(words(folder, 0)[1:]) == {"asked SIGTERM", "left 75"}


@pytest.mark.parametrize("rank", [0, 3])
def test_an_exception_of_any_rank(folder: Path, rank: int) -> None:
    with pytest.raises(ZeroDivisionError), signals.attended(folder, rank) as stop:
        stop.agreed(step=4)
        1 / 0  # noqa: B018
    found = outcome.read(folder)
    assert found is not None and (found.state, found.kind, found.rank, found.step) == ("failed", "code", rank, 4)
    assert found.reason == "ZeroDivisionError: division by zero"
    assert words(folder, rank) == ["here n3", "failed code"]


def test_the_cause_stays_whatever_the_witnesses_say_before_or_after(folder: Path) -> None:
    for order in ((GLOO, ValueError("cause"), GLOO), (ValueError("cause"), GLOO, TypeError("later"))):
        (folder / "outcome.json").unlink(missing_ok=True)
        for rank, error in enumerate(order):
            with pytest.raises(type(error)), signals.attended(folder, rank):
                raise error
        found = outcome.read(folder)
        assert found is not None and (found.kind, found.reason) == ("code", "ValueError: cause")


def test_what_an_earlier_start_left_is_not_about_this_one(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ToolkitError), signals.attended(folder, 0):
        raise ToolkitError("no", remedy="yes")
    found = outcome.read(folder)
    assert found is not None and (found.kind, found.reason) == ("input", "no; yes")
    monkeypatch.setenv("TOOLKIT_ATTEMPT", "7-0-1")
    Presence(folder, 0).here()
    assert outcome.read(folder) is None


@pytest.mark.slow
def test_torchrun_is_told_the_first_failure(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from torch.distributed.elastic.multiprocessing.errors import ProcessFailure

    monkeypatch.setenv("TORCHELASTIC_ERROR_FILE", str(folder / "error.json"))
    with pytest.raises(ValueError, match="why"), signals.attended(folder, 0):
        raise ValueError("why")
    failure = ProcessFailure(local_rank=0, pid=1, exitcode=1, error_file=str(folder / "error.json"))
    assert failure.message["message"] == "ValueError: why"
    assert failure.timestamp == pytest.approx(time.time(), abs=60)


def test_a_full_disk_does_not_hide_the_failure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOOLKIT_ATTEMPT", "nowhere")
    with pytest.raises(ValueError, match="why"), signals.attended(tmp_path / "absent", 0):
        raise ValueError("why")


@pytest.mark.parametrize("way", ["SIGTERM", "SIGUSR1", "file"])
def test_before_the_first_step_it_leaves_at_once(folder: Path, way: str) -> None:
    code = "import sys, time\nfrom toolkit.runtime import signals\n"
    code += "with signals.attended(sys.argv[1], 0) as stop:\n    print('ready', flush=True)\n    "
    # as in a collective: a call of C, in which the interpreter runs no handler before it is over
    code += (
        "import ctypes\n    while True: ctypes.CDLL(None).sem_wait(ctypes.create_string_buffer(64)) and time.sleep(0)\n"
    )
    process = subprocess.Popen([sys.executable, "-c", code, str(folder)], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None and process.stdout.readline() == "ready\n"
    if way == "file":
        (folder / "STOP").touch()
    else:
        process.send_signal(signal.Signals[way])
    said, _ = process.communicate(timeout=20)
    assert process.returncode == signals.STOPPED
    assert "stopped before the first step" in said and "nothing is lost" in said
    found = json.loads((folder / "outcome.json").read_text())
    assert (found["state"], found["step"]) == ("stopped", 0) and way.removeprefix("file") in found["reason"]


def test_a_forked_process_that_is_ended_is_no_request(folder: Path) -> None:
    with signals.attended(folder, 0) as stop:
        child = os.fork()
        if child == 0:
            signal.pause()
            os._exit(0)
        time.sleep(0.2)
        os.kill(child, signal.SIGTERM)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGTERM
        time.sleep(0.2)
        assert not stop.reason
    assert words(folder, 0) == ["here n3", "left 0"]


def test_a_worker_ends_when_torchrun_is_gone(folder: Path) -> None:
    code = "import sys, time\nfrom toolkit.runtime import signals\n"
    code += "with signals.attended(sys.argv[1], 1) as stop:\n    stop.agreed(step=6)\n"
    code += "    print('ready', flush=True)\n    time.sleep(100)\n"
    parent = "import subprocess, sys, time\nsubprocess.Popen([sys.executable, '-c', sys.argv[2], sys.argv[1]])\n"
    parent += "time.sleep(100)\n"
    agent = subprocess.Popen(
        [sys.executable, "-c", parent, str(folder), code],
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | {"TORCHELASTIC_RUN_ID": "x"},
    )
    assert agent.stdout is not None and agent.stdout.readline() == "ready\n"
    agent.kill()
    agent.stdout.read()  # until the worker has closed it too
    assert words(folder, 1) == ["here n3", "failed agent"]
    found = outcome.read(folder)
    assert found is not None and (found.kind, found.node, found.step) == ("agent", "n3", 6)


def test_storage_that_is_away_hides_no_failure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every look at the folder fails by then, with an error that is none of "not there": a link to itself."""
    monkeypatch.setenv("TOOLKIT_ATTEMPT", "7-0-0")
    run = tmp_path / "run"
    (run / ".attempt" / "7-0-0").mkdir(parents=True)
    with pytest.raises(ZeroDivisionError) as found, Lease(run):
        failure = failures.Failure(run, 0)
        with signals.attended(run, 0) as stop, failure.kept():
            assert not stop.agreed(step=4)
            run.rename(tmp_path / "away")
            run.symlink_to(run)
            with pytest.raises(OSError, match="Too many levels"):
                list(run.iterdir())
            assert not stop.agreed(step=5)
            raise ZeroDivisionError("the cause")
    assert found.value.__context__ is None
    assert failure.path.read_text().endswith("ZeroDivisionError: the cause\n")  # among the temporary files
    failure.path.unlink()
