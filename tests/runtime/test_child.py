"""Nothing that was started outlives the one who waits for it, however that ends."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from toolkit.runtime import child

# a program with a child in a session of its own, as torchrun starts its workers; both leave their numbers in a folder
FAMILY = """
import os, pathlib, subprocess, sys, time
folder = pathlib.Path(sys.argv[1])
(folder / f"parent-{os.getpid()}").touch()
code = "import os, pathlib, sys, time; pathlib.Path(sys.argv[1], f'child-{os.getpid()}').touch(); time.sleep(600)"
subprocess.Popen([sys.executable, "-c", code, str(folder)], start_new_session=True)
time.sleep(600)
"""
WAITS = """
import os, sys, tempfile
from toolkit.runtime import child
with tempfile.TemporaryDirectory(dir=sys.argv[1]) as folder:
    child.run([sys.executable, "-c", sys.argv[2], sys.argv[1]], os.environ, 600.0)
"""


def family(folder: Path) -> list[int]:
    """Numbers of both, once both are there."""
    deadline = time.monotonic() + 60
    while len(found := [int(path.name.partition("-")[2]) for path in folder.glob("*-[0-9]*")]) < 2:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    return found


def gone(number: int) -> bool:
    """Ended, or a zombie that nobody has asked for yet."""
    try:
        return Path(f"/proc/{number}/stat").read_text().rpartition(")")[2].split()[0] in "ZX"
    except FileNotFoundError:
        return True


def all_gone(numbers: list[int]) -> bool:
    deadline = time.monotonic() + 30
    while not all(map(gone, numbers)) and time.monotonic() < deadline:
        time.sleep(0.01)
    left = [number for number in numbers if not gone(number)]
    for number in left:
        os.kill(number, signal.SIGKILL)
    return not left


def test_what_it_wrote_and_its_code() -> None:
    program = "import sys; print('out'); sys.stderr.buffer.write(b'\\xff err'); sys.exit(3)"
    done = child.run([sys.executable, "-c", program], os.environ, 60.0)
    assert (done.returncode, done.stdout, done.stderr) == (3, "out\n", "\ufffd err")


def test_a_time_limit_ends_the_whole_family(tmp_path: Path) -> None:
    for limit in (2.0, 10.0, 60.0):  # the first that lets both begin, on a busy machine
        with pytest.raises(subprocess.TimeoutExpired):
            child.run([sys.executable, "-c", FAMILY, str(tmp_path)], os.environ, limit)
        numbers = [int(path.name.partition("-")[2]) for path in tmp_path.glob("*-[0-9]*")]
        assert all_gone(numbers)
        if len(numbers) >= 2:
            return
    pytest.fail("the two processes have not begun within a minute")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_requests_end_it_too_and_folders_are_cleaned(tmp_path: Path, number: signal.Signals) -> None:
    waiting = subprocess.Popen(
        [sys.executable, "-c", WAITS, str(tmp_path), FAMILY], stderr=subprocess.DEVNULL, start_new_session=True
    )
    numbers = family(tmp_path)
    os.killpg(waiting.pid, number)
    assert waiting.wait(timeout=60) != 0
    assert all_gone(numbers)
    assert not [path for path in tmp_path.iterdir() if path.is_dir()]


def test_it_dies_with_a_parent_that_is_killed(tmp_path: Path) -> None:
    waiting = subprocess.Popen([sys.executable, "-c", WAITS, str(tmp_path), FAMILY])
    numbers = family(tmp_path)
    (parent,) = [int(path.name.partition("-")[2]) for path in tmp_path.glob("parent-*")]
    waiting.kill()
    waiting.wait()
    assert all_gone([parent])  # a rank of torchrun sees by itself that its parent is gone
    for number in set(numbers) - {parent}:
        os.kill(number, signal.SIGKILL)


def test_a_failure_is_what_the_program_told_or_its_last_lines() -> None:
    told = "error: no such data\n  give another\nerror: no such data\n  give another\nerror: a second\nW torchrun\n"
    assert str(child.failure("1 process", 2, told)) == ("1 process: no such data\n  give another\n1 process: a second")
    raised = "Traceback ...\nValueError: x\nsomething after\n"
    assert str(child.failure("it", 1, raised)).startswith("it failed: ValueError: x\n  its last lines:\nTraceback")
    assert "it was killed (SIGKILL)" in str(child.failure("it", -9, ""))
    assert "it was killed (SIGKILL)" in str(child.failure("it", 1, "traceback : Signal 9 (SIGKILL) received by PID 7"))
    assert "it was ended by SIGSEGV" in str(child.failure("it", -11, "")) and "exit code 3" in str(
        child.failure("it", 3, "")
    )
