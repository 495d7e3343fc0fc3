"""Processes of a crew that are killed are noticed; none outlives the one that it works for."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from recipes.byte_tokenizer import ByteTokenizer
from recipes.finetune import tokenise
from recipes.finetune.documents import Document, Segment
from recipes.processes import Crew, Killed
from toolkit.errors import ToolkitError

LARGE = 2**22  # bytes: more than a pipe holds, so that both ends write at once


def nothing() -> None:
    """What a process begins with."""


def echo(argument: Any) -> Any:
    if argument == "die":
        os.kill(os.getpid(), signal.SIGKILL)
    if argument == "fail":
        raise ValueError("no such row")
    return argument


@pytest.mark.slow
def test_results_errors_and_the_end_of_a_process() -> None:
    with Crew(2, echo, nothing) as crew:
        for number in range(8):
            crew.send(number, bytes([number]) * LARGE)
        assert dict(crew.receive() for _ in range(8)) == {n: bytes([n]) * LARGE for n in range(8)}
        crew.send(9, "fail")
        with pytest.raises(ValueError, match="no such row"):
            crew.receive()
        crew.send(10, "die")
        with pytest.raises(Killed):
            crew.receive()
    assert not multiprocessing.active_children()


def rows(count: int, kill_at: tuple[int, ...] = ()) -> Iterator[Document]:
    """Read by the process itself, which kills one that works for it on its way."""
    for number in range(count):
        if number in kill_at:
            os.kill(multiprocessing.active_children()[0].pid or 0, signal.SIGKILL)
        yield Document((Segment(f"row {number} " * (number % 50), True),))


@pytest.mark.slow
def test_a_killed_process_costs_no_row(capsys: pytest.CaptureFixture[str]) -> None:
    """Rank 0 waited for ever for what that process was doing, and all other ranks for rank 0."""
    count, at = tokenise.FIRST + 20 * tokenise.CHUNK, tokenise.FIRST + 5 * tokenise.CHUNK
    one, several = (
        [
            (piece.tokens.tolist(), piece.trained.tolist())
            for piece in tokenise.pieces(rows(count, kill_at), ByteTokenizer(), False, workers)
        ]
        for kill_at, workers in (((), 1), ((at,), 2))
    )
    assert one == several and len(one) == count
    assert capsys.readouterr().out == "warning: a process that tokenises was killed; going on with 1\n"


class Deadly(ByteTokenizer):
    """Its native code fails at one text, in the processes."""

    def encode(self, text: str, *given: Any, **named: Any) -> list[int]:
        if text.startswith(f"row {tokenise.FIRST + 300} ") and multiprocessing.parent_process():
            os.kill(os.getpid(), signal.SIGSEGV)
        return super().encode(text, *given, **named)


@pytest.mark.slow
def test_a_row_that_kills_every_process_is_told() -> None:
    with pytest.raises(ToolkitError, match=f"killed each time, near row {tokenise.FIRST + 2 * tokenise.CHUNK + 1} of"):
        list(tokenise.pieces(rows(tokenise.FIRST + 1000), Deadly(), False, 2))


@pytest.mark.slow
def test_the_processes_of_a_killed_one_end() -> None:
    code = (
        "import multiprocessing, time\nfrom tests.recipes.test_processes import *\n"
        "if __name__ == '__main__':\n    with Crew(1, echo, nothing) as crew:\n"
        "        crew.send(1, 1)\n        crew.receive()\n"
        "        print(multiprocessing.active_children()[0].pid, flush=True)\n        time.sleep(60)\n"
    )
    parent = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    child = int(parent.stdout.readline())
    parent.kill()
    parent.wait()
    until = time.monotonic() + 30
    while _lives(child) and time.monotonic() < until:
        time.sleep(0.1)
    assert not _lives(child)


def _lives(process: int) -> bool:
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
