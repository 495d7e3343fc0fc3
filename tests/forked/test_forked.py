"""A forked program is one of its own: output, environment, arguments, end, signals; it ends with who asked for it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.forked import descendants

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("forked")]
PROGRAM = """
import json, os, signal, sys, time
assert __name__ == "__main__"
if sys.argv[1] == "wait":
    signal.signal(signal.SIGUSR1, lambda *_: sys.exit(75))
    print("ready", flush=True)
    time.sleep(600)
told = {"pid": os.getpid(), "argv": sys.argv[1:], "mark": os.environ.get("MARK"), "cwd": os.getcwd()}
print(json.dumps(told | {"torch": "torch" in sys.modules, "home": "HOME" in os.environ, "executable": sys.executable}))
print("problem", file=sys.stderr)
sys.exit(int(sys.argv[2]))
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "its_program.py").write_text(PROGRAM)
    return tmp_path


def started(folder: Path, *words: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "its_program", *words], cwd=folder, stdout=subprocess.PIPE, text=True
    )


def test_it_is_a_process_of_its_own(folder: Path) -> None:
    command = [sys.executable, "-u", "-m", "its_program", "tell", "3"]
    done = subprocess.run(command, cwd=folder, env={"MARK": "x", "PATH": ""}, capture_output=True, text=True)
    told = json.loads(done.stdout)
    assert done.returncode == 3 and done.stderr == "problem\n"
    assert told["pid"] != os.getpid() and told["argv"] == ["tell", "3"] and told["cwd"] == str(folder)
    assert told["mark"] == "x" and not told["home"] and told["torch"]
    assert told["executable"] == sys.executable  # what it starts is forked too


@pytest.mark.parametrize(("number", "code"), [(signal.SIGUSR1, 75), (signal.SIGTERM, -signal.SIGTERM)])
def test_signals_reach_it_and_its_end_is_told(folder: Path, number: int, code: int) -> None:
    with started(folder, "wait") as process:
        assert process.stdout is not None and process.stdout.readline() == "ready\n"
        process.send_signal(number)
        assert process.wait(timeout=60) == code


def test_it_ends_with_who_asked_for_it(folder: Path) -> None:
    with started(folder, "wait") as process:
        assert process.stdout is not None and process.stdout.readline() == "ready\n"
        (own,) = descendants(process.pid)
        process.kill()
        end = time.monotonic() + 60
        while Path(f"/proc/{own}").exists():
            assert time.monotonic() < end
            time.sleep(0.01)


def test_what_is_no_module_is_for_the_interpreter(folder: Path) -> None:
    code = "import sys; print('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "False\n"
