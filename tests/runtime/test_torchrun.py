"""The launcher of launch.sh: exit codes and last words of a run's ends, with torchrun's own processes."""

import logging
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from toolkit.runtime import divergence, hang, native_log, outcome, signals, torchrun
from toolkit.runtime.outcome import Outcome

# a rank of a run: it says that it is there, and ends as it is told
PROGRAM = """
import os, signal, sys, time
from pathlib import Path
from toolkit.errors import ToolkitError
from toolkit.runtime import signals
folder, ending = Path(sys.argv[1]), sys.argv[2]
if ending == "refused":
    print("error: the inputs cannot be right", file=sys.stderr, flush=True)
    sys.exit(2)
try:
    with signals.attended(folder, 0) as stop:
        stop.agreed()
        (folder / "ready").touch()
        if ending == "raised":
            raise ValueError("of the program itself")
        if ending == "refused-later":
            raise ToolkitError("no such data")
        if ending == "killed":
            os.kill(os.getpid(), signal.SIGKILL)
        while ending == "stopped" and not stop.agreed(step=3):
            time.sleep(0.02)
        if ending == "stopped":
            time.sleep(1.5)  # saving
except ToolkitError as error:
    print(f"error: {error}", file=sys.stderr, flush=True)
    sys.exit(error.exit_code)
print("left by itself", flush=True)
"""

# all endings in one process, which imports torch once
ENDINGS = """
import sys
from toolkit.runtime import torchrun
folder, program, *endings = sys.argv[1:]
for ending in endings:
    words = ["--standalone", "--nproc-per-node=1", "--max-restarts=0", program, folder, ending]
    code = torchrun.main([folder, *words])
    print(f"\\n{ending} {code}", flush=True)
    print(f"\\n{ending} {code}", file=sys.stderr, flush=True)
"""


@pytest.fixture
def program(tmp_path: Path) -> Path:
    path = tmp_path / "program.py"
    path.write_text(PROGRAM)
    (tmp_path / "run").mkdir()
    return path


def environment(**more: str) -> dict[str, str]:
    root = str(Path(__file__).resolve().parents[2])
    return os.environ | {"PYTHONPATH": root, "OMP_NUM_THREADS": "1"} | more


@pytest.mark.slow
def test_ends_of_a_run_and_what_is_said_of_them(program: Path, tmp_path: Path) -> None:
    endings = ("ended", "refused", "refused-later", "raised", "killed")
    done = subprocess.run(
        [sys.executable, "-c", ENDINGS, str(tmp_path / "run"), str(program), *endings],
        capture_output=True,
        text=True,
        env=environment(TMPDIR=str(tmp_path), PET_NO_PYTHON="1", PET_MODULE="1", PET_MAX_RESTARTS="x"),
        timeout=300,
    )
    codes = [line.split() for line in done.stdout.splitlines() if line.split()[:1] and line.split()[0] in endings]
    assert codes == [["ended", "0"], ["refused", "2"], ["refused-later", "2"], ["raised", "1"], ["killed", "1"]], (
        done.stdout + done.stderr
    )
    said, rest = {}, done.stderr
    for ending, (_, code) in zip(endings, codes, strict=True):
        said[ending], _, rest = rest.partition(f"\n{ending} {code}\n")
    assert said["ended"].strip() == ""
    assert said["refused"].strip() == "error: the inputs cannot be right"
    assert said["refused-later"].strip() == "error: no such data"
    assert said["raised"].count("Traceback") == 1  # the program's own
    assert "after step 0: ValueError: of the program itself" in said["raised"]
    assert "ChildFailedError" not in done.stderr and "torch/distributed" not in said["raised"]
    why = "killed by SIGKILL (out of memory of the host, or somebody's kill)"
    assert said["killed"].startswith(f"error: rank 0 was {why}: process ")
    assert said["killed"].endswith("  the same command goes on from the newest checkpoint\n")
    found = outcome.read(tmp_path / "run")
    assert found is not None and (found.state, found.kind, found.rank, found.reason) == ("failed", "peer", 0, why)
    assert not list(tmp_path.glob("torch*"))  # torchrun by itself leaves a folder for each start


@pytest.mark.slow
def test_one_ctrl_c_or_two_stop_and_save_once(program: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    words = ["--standalone", "--nproc-per-node=1", "--max-restarts=0", str(program), str(folder), "stopped"]
    started = subprocess.Popen(
        [sys.executable, "-m", "toolkit.runtime.torchrun", str(folder), *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment(),
        start_new_session=True,
    )
    deadline = time.monotonic() + 120
    while not (folder / "ready").exists():
        assert time.monotonic() < deadline and started.poll() is None
        time.sleep(0.02)
    for _ in range(2):
        os.killpg(started.pid, signal.SIGINT)  # as a terminal does
        time.sleep(0.3)
    out, err = started.communicate(timeout=120)
    assert started.returncode == signals.STOPPED, out + err
    assert out.splitlines() == ["left by itself"]
    assert err.splitlines() == ["still stopping: the step ends and is saved; Ctrl-C once more ends it without"]
    found = outcome.read(folder)
    assert found is not None and (found.state, found.reason, found.step) == ("stopped", "SIGINT", 3)


def test_a_request_before_there_are_processes_ends_at_once() -> None:
    code = "from toolkit.runtime.torchrun import Requests; import os; each = Requests(); each.listen();"
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR2):
        run = f"{code} os.kill(os.getpid(), {int(number)}); print('not ended')"
        done = subprocess.run([sys.executable, "-c", run], capture_output=True, text=True)
        assert done.returncode == signals.STOPPED
        assert done.stdout == "" and f"stopped before the start ({number.name})" in done.stderr


def test_nohup_keeps_its_meaning() -> None:
    code = (
        "import os, signal; signal.signal(signal.SIGHUP, signal.SIG_IGN);"
        "from toolkit.runtime.torchrun import Requests; each = Requests(); each.listen();"
        "os.kill(os.getpid(), signal.SIGHUP); print(each.handled())"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout.strip() == "SIGTERM,SIGINT,SIGQUIT,SIGUSR1,SIGUSR2", done.stderr


@pytest.mark.parametrize(
    ("state", "kind", "code"),
    [
        ("finished", "", 0),
        ("ended", "", 0),
        ("stopped", "", signals.STOPPED),
        ("failed", "input", 2),
        ("failed", "code", 1),
        ("failed", "memory", 1),
        ("failed", "hang", hang.HUNG),
        ("failed", "diverged", divergence.DIVERGED),
    ],
)
def test_the_exit_code_is_that_of_the_outcome(state: str, kind: str, code: int, capfd: pytest.CaptureFixture) -> None:
    found = Outcome(state=state, kind=kind, step=7, node="n1", reason="ValueError: x", attempt="a")
    assert torchrun._ended(found, None, torchrun.Requests(), torchrun.Held()) == code
    said = capfd.readouterr().err
    assert ("error: rank 0 on n1, after step 7: ValueError: x" in said) == (kind in ("code", "memory", "hang"))


def test_in_a_job_a_stop_ends_no_task_of_another_node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """srun ends all tasks where one ends with another code than 0, and the job script tells what there is to tell."""
    monkeypatch.setenv(outcome.ATTEMPT_VARIABLE, "7-0-0")
    asked, held = torchrun.Requests(), torchrun.Held()
    asked.first = signal.SIGUSR1
    found = Outcome(state="stopped", step=7, attempt="7-0-0")
    assert torchrun._ended(found, None, asked, held, str(tmp_path)) == 0
    assert torchrun._ended(None, None, asked, held, str(tmp_path)) == signals.STOPPED  # no rank has begun
    (tmp_path / outcome.ATTEMPTS / "7-0-0").mkdir(parents=True)
    outcome.Presence(tmp_path, 1).here()
    assert torchrun._ended(None, None, asked, held, str(tmp_path)) == 0  # rank 0 tells, on another node


def test_in_a_job_a_failure_is_told_once(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv(outcome.ATTEMPT_VARIABLE, "7-0-0")
    found = Outcome(state="failed", kind="code", step=7, node="n1", reason="ValueError: x", attempt="7-0-0")
    assert torchrun._ended(found, None, torchrun.Requests(), torchrun.Held()) == 1
    held, asked = torchrun.Held(), torchrun.Requests()
    held.records.append(logging.makeLogRecord({"name": "x", "levelno": logging.WARNING, "msg": "Received 15"}))
    asked.first = signal.SIGTERM  # of srun, after a failure on another node, of which this one has seen the end
    witness = Outcome(state="failed", kind="peer", reason="reset by peer", attempt="7-0-0")
    assert torchrun._ended(witness, None, asked, held) == 1
    assert capfd.readouterr().err == caplog.text == ""
    held.release()
    assert "Received 15" in caplog.text


@pytest.mark.parametrize(
    ("asked", "level"),
    [({}, "ERROR"), ({"TORCH_CPP_LOG_LEVEL": "INFO"}, "INFO"), ({"TORCH_DISTRIBUTED_DEBUG": "DETAIL"}, None)],
)
def test_native_warnings_are_shown_where_they_are_asked_for(
    asked: dict[str, str], level: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in (native_log.LEVEL, native_log.DETAIL):
        monkeypatch.delenv(name, raising=False)
    for name, value in asked.items():
        monkeypatch.setenv(name, value)
    native_log.errors_only()
    assert os.environ.get(native_log.LEVEL) == level
    os.environ.pop(native_log.LEVEL, None)


@pytest.mark.parametrize(("asked", "level"), [("debug", "DEBUG"), ("INFO", "INFO"), ("trace", None), ("10", None)])
def test_a_level_that_the_launcher_does_not_know_ends_no_start(
    asked: str, level: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """torch 2.13 ends at its import over another name than Python's own, in capitals."""
    monkeypatch.setenv(native_log.LAUNCHER, asked)
    native_log.errors_only()
    assert os.environ.get(native_log.LAUNCHER) == level


def test_what_another_start_wrote_is_not_this_ones(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(outcome.ATTEMPT_VARIABLE, "earlier")
    outcome.Presence(tmp_path).left("stopped", 75, "SIGTERM")
    monkeypatch.delenv(outcome.ATTEMPT_VARIABLE)
    assert torchrun._of_this_start(str(tmp_path), "now") is None
    assert torchrun._of_this_start(str(tmp_path), "earlier") is not None
