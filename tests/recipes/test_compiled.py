"""The lock of a compilation that was killed holds up no later one, and that of one under way does."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest

START = """
import sys, time
from recipes.finetune import compiled
compiled.locks_end_with_their_process()
compiled.locks_end_with_their_process()
from torch.utils import cpp_extension
baton = cpp_extension.FileBaton(sys.argv[1])
mine = baton.try_acquire()
print(mine, flush=True)
"""
HOLD, WAIT = (
    "time.sleep(120)\n",
    "if not mine:\n    baton.wait()\n    print('through', flush=True)\nelse:\n    baton.release()\n",
)


def start(lock: Path, code: str) -> subprocess.Popen[str]:
    return subprocess.Popen([sys.executable, "-c", START + code, str(lock)], stdout=subprocess.PIPE, text=True)


@pytest.mark.slow
def test_a_lock_ends_with_its_process(tmp_path: Path) -> None:
    """torch's own was there for ever: a job that was stopped in its first minutes held up all later ones."""
    lock = tmp_path / "lock"
    lock.touch()  # as a killed start of an earlier version has left it
    holder = start(lock, HOLD)
    assert holder.stdout is not None and holder.stdout.readline() == "True\n"
    other = start(lock, WAIT)
    assert other.stdout is not None and other.stdout.readline() == "False\n"
    time.sleep(1.0)
    assert other.poll() is None  # it waits for the one that compiles
    holder.kill()
    assert other.stdout.readline() == "through\n" and other.wait(timeout=60) == 0
    last = start(lock, WAIT)
    assert last.communicate(timeout=60)[0] == "True\n" and last.returncode == 0
    holder.wait()
