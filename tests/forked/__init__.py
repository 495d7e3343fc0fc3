"""Starting Python programs that are already imported.

A training program spends five seconds of processor time on importing torch, transformers and DeepSpeed, on every rank,
before it does anything; a test that starts it four times on two ranks waits for little else. Here one process imports
them once and then forks: each fork is a process of its own that runs the module under ``__main__`` as ``python -m``
does, with its own arguments, environment, folder and output, and torchrun starts its ranks through the same door. What
runs is the same program on the same libraries; what is not shown is that a fresh interpreter can import it, which the
tests of starts, stops, kills, hangs and of Slurm show with ordinary processes.

:func:`python` is the path to put in the place of ``sys.executable``.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
SERVER, CLIENT = HERE / "server.py", HERE / "client.py"
_started: dict[str, str] = {}


def python() -> str:
    """A program that starts ``-m MODULE ARGUMENTS`` as the interpreter does, from a process that has it imported."""
    if "python" not in _started:
        folder = Path(tempfile.mkdtemp(prefix="forked-"))
        server = subprocess.Popen(
            [sys.executable, "-m", "tests.forked.server", str(folder / "door")],
            stdin=subprocess.PIPE,  # its end is the server's end
            cwd=HERE.parents[1],
            env=os.environ | {"OMP_NUM_THREADS": "1", "DS_ACCELERATOR": "cpu", "HF_HUB_OFFLINE": "1"},
        )
        door = folder / "python"
        door.write_text(
            f'#!/bin/sh\nexec {sys.executable} -I -S {CLIENT} {folder / "door"} "$0" {sys.executable} "$@"\n'
        )
        door.chmod(0o755)
        atexit.register(_end, server, folder)
        _started["python"] = str(door)
    return _started["python"]


def descendants(pid: int) -> list[int]:
    """Processes that this one started, and those that they started; forked ones count as started by their client."""
    parents: dict[int, list[int]] = {}
    for entry in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = entry.read_text().rpartition(")")[2].split()
        except OSError:
            continue  # it has just ended
        parents.setdefault(int(fields[1]), []).append(int(entry.parent.name))
    for note in Path(tempfile.gettempdir()).glob("forked-*/of-*"):
        with contextlib.suppress(OSError, ValueError):
            parents.setdefault(int(note.name[3:]), []).append(int(note.read_text()))
    found, queue = [], [pid]
    while queue:
        queue = [child for parent in queue for child in parents.get(parent, [])]
        found += queue
    return found


def _end(server: subprocess.Popen[bytes], folder: Path) -> None:
    if server.stdin is not None:
        server.stdin.close()
    server.wait(timeout=60)
    shutil.rmtree(folder, ignore_errors=True)
