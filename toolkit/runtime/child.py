"""A program that is started and waited for: nothing of it outlives the one who waits.

A time limit, Ctrl-C, SIGTERM or SIGHUP end it with all that it has started, also what torchrun puts into sessions of
its own; should this process be killed, the kernel kills the program (Linux), and its ranks see that their parent is
gone.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import FrameType

from toolkit.errors import Problem, ToolkitError

ASKED_TO_END = (signal.SIGTERM, signal.SIGHUP)
WITH_PARENT = 1  # PR_SET_PDEATHSIG of prctl(2)
TOLD = "error: "
ROUNDS = 5  # of looking for what was started while the others were killed
LAST_WORDS = 10.0  # seconds for the pipes of what was killed to close


def run(command: Sequence[str], environment: Mapping[str, str], limit: float) -> subprocess.CompletedProcess[str]:
    """Start ``command``, wait for at most ``limit`` seconds, and return its exit code and what it wrote.

    Raises subprocess.TimeoutExpired after that time; by then it is gone, as it is after any other exception.
    """
    with _ends_are_exceptions():
        started = subprocess.Popen(
            command,
            env=dict(environment),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            encoding="utf-8",
            errors="replace",
            start_new_session=True,  # Ctrl-C is for this process to handle
            preexec_fn=_with_its_parent(),
        )
        try:
            out, err = started.communicate(timeout=limit)
        except BaseException:
            end(started.pid)
            with contextlib.suppress(subprocess.TimeoutExpired):
                started.communicate(timeout=LAST_WORDS)
            raise
    return subprocess.CompletedProcess(command, started.returncode, out, err)


def failure(what: str, code: int, said: str) -> ToolkitError:
    """The error for ``what`` that ended with ``code`` and wrote ``said`` to stderr.

    Its own problems where it has told some (``error: ...``, and how to mend it in an indented line), each once however
    many ranks said it; else its last lines, and the signal that has killed it or a rank of torchrun.
    """
    lines = [line for line in said.splitlines() if line.strip()]
    told: dict[str, str] = {}
    for line, following in itertools.pairwise([*lines, ""]):
        if line.startswith(TOLD):
            told.setdefault(line.removeprefix(TOLD), following.strip() if following.startswith("  ") else "")
    if told:
        return ToolkitError(*(Problem(f"{what}: {message}", remedy) for message, remedy in told.items()))
    killed = re.search(r"Signal \d+ \((SIG\w+)\)", said)
    name = signal.Signals(-code).name if code < 0 else killed[1] if killed else ""
    if name == "SIGKILL":
        return ToolkitError(f"{what} was killed (SIGKILL)", remedy="most often the memory of the machine was used up")
    last = next((line for line in reversed(lines) if "Error" in line), lines[-1] if lines else f"exit code {code}")
    remedy = "its last lines:\n" + "\n".join(lines[-12:]) if lines else ""
    return ToolkitError(f"{what} " + (f"was ended by {name}" if name else f"failed: {last}"), remedy=remedy)


def end(process: int) -> None:
    """Kill a process and all that it has started, as far as that can be seen."""
    for _ in range(ROUNDS):
        family = [process, *descendants(process)]
        for each in family:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(each, signal.SIGKILL)
        if len(family) == 1:
            return


def descendants(process: int) -> list[int]:
    """Children and their children that run, by ``/proc/PID/stat``; none where there is no /proc."""
    children: dict[int, list[int]] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError, ValueError, IndexError):
            state, parent = path.read_text(errors="replace").rpartition(")")[2].split()[:2]
            if state not in "ZX":
                children.setdefault(int(parent), []).append(int(path.parent.name))
    found, further = [], [process]
    while further:
        own = children.get(further.pop(), [])
        found += own
        further += own
    return found


def _with_its_parent() -> Callable[[], object] | None:
    """What the child does before it becomes the program: one call of C, since the parent may have threads."""
    if sys.platform != "linux":
        return None
    import ctypes

    return functools.partial(ctypes.CDLL(None).prctl, WITH_PARENT, int(signal.SIGKILL))


@contextlib.contextmanager
def _ends_are_exceptions() -> Iterator[None]:
    """SIGTERM and SIGHUP unwind as Ctrl-C does, so that temporary folders go too; not in a thread, which gets none."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {}
    try:
        for number in ASKED_TO_END:
            if signal.getsignal(number) is signal.SIG_DFL:
                before[number] = signal.signal(number, _leave)
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _leave(number: int, frame: FrameType | None) -> None:
    raise SystemExit(128 + number)
