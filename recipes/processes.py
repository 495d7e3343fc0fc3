"""Processes that work for this one: a killed one is noticed at once, and none outlives the one that it works for.

The standard library's pools (Python 3.11) are not used. ``multiprocessing.Pool`` replaces a process that was killed,
say by the kernel when memory runs out, and waits for ever for what that one was doing. ``concurrent.futures`` waits for
ever where it was killed while it wrote a result, since all write into one pipe; and its processes stay, waiting for
work, where their parent is killed.

Here each has a pipe of its own, which ends with whoever is at the other end. They are spawned, not forked: a fork would
copy the locks of the threads of this process.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import multiprocessing.connection
import os
import queue
import signal
import threading
from collections.abc import Callable
from typing import Any

FOR_THE_PARENT = (signal.SIGINT, signal.SIGUSR1)  # of a terminal or a job, to all processes: it decides
SECONDS = 5.0  # for a process that is told to end


class Killed(Exception):
    """One of the processes is gone, and with it what it was doing."""


class Crew:
    """``count`` processes that call ``begin(*given)`` first, and then ``work`` for each argument that is sent to them.

    At the end of the ``with`` block what is on its way is given up.
    """

    def __init__(self, count: int, work: Callable[[Any], Any], begin: Callable[..., None], *given: Any) -> None:
        spawn = multiprocessing.get_context("spawn")
        self._on_their_way: dict[Any, int] = {}  # by connection
        self._processes = []
        for _ in range(count):
            ours, theirs = spawn.Pipe()
            process = spawn.Process(target=_serve, args=(theirs, work, begin, given), daemon=True)
            process.start()
            theirs.close()  # only the process holds it now: it ends with it
            self._on_their_way[ours] = 0
            self._processes.append(process)

    def __enter__(self) -> Crew:
        return self

    def __exit__(self, *_: object) -> None:
        for connection in self._on_their_way:
            connection.close()
        for process in self._processes:
            process.terminate()
        for process in self._processes:
            process.join(SECONDS)

    def send(self, number: int, argument: Any) -> None:
        """To the one that has least to do; raises Killed where it is gone."""
        connection = min(self._on_their_way, key=lambda each: self._on_their_way[each])
        try:
            connection.send((number, argument))
        except OSError as error:
            raise Killed from error
        self._on_their_way[connection] += 1

    def receive(self) -> tuple[int, Any]:
        """The number and the result of one that is done; raises what was raised there, and Killed where one is gone."""
        connection: Any = multiprocessing.connection.wait(list(self._on_their_way))[0]
        try:
            number, result, error = connection.recv()
        except (EOFError, OSError) as gone:
            raise Killed from gone
        self._on_their_way[connection] -= 1
        if error is not None:
            raise error
        return number, result


def _serve(connection: Any, work: Callable[[Any], Any], begin: Callable[..., None], given: tuple[Any, ...]) -> None:
    for each in FOR_THE_PARENT:
        signal.signal(each, signal.SIG_IGN)
    arrived: queue.SimpleQueue[tuple[int, Any]] = queue.SimpleQueue()
    threading.Thread(target=_read, args=(connection, arrived), daemon=True).start()
    begin(*given)
    while True:
        number, argument = arrived.get()
        answer: tuple[int, Any, Exception | None]
        try:
            answer = (number, work(argument), None)
        except Exception as error:
            answer = (number, None, error)
        with contextlib.suppress(OSError):  # the parent has gone, as the thread notices
            connection.send(answer)


def _read(connection: Any, arrived: queue.SimpleQueue[tuple[int, Any]]) -> None:
    """Whatever comes, also while a result is being written: two that write to one another would wait for ever."""
    try:
        while True:
            arrived.put(connection.recv())
    except (EOFError, OSError):
        os._exit(1)
