"""One rank works, for hours if need be, and the others wait without a collective, whose time-out would end the job.

A collective gives up after the time-out of its process group (600 s is NCCL's default, 1,800 s that of gloo and of the
Trainer), however healthy the rank is that it waits for. Here nobody is in one: rank 0 writes to the
key-value store through which the ranks meet, every :data:`BEAT` seconds, that it is at work; the
others look at it. They give up only where rank 0 has not been heard of for :data:`PATIENCE` seconds, or is gone.
"""

from __future__ import annotations

import contextlib
import datetime
import json
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from toolkit.errors import Problem, ToolkitError

SHARED = 60.0  # seconds that a file system may take to show what another node wrote
JOIN = datetime.timedelta(minutes=30)  # until the last node has begun
BEAT, PATIENCE = 10.0, 600.0  # seconds
MOST_QUESTIONS = 200.0  # a second, of all ranks together: one store answers them all

_open: list[Any] = []  # rank 0 may be the store's server: it stays until the process ends


def first_rank_works(function: Callable[[], None], rank: int, world_size: int) -> None:
    """Run a function on rank 0 while the others wait; all ranks call it.

    What is wrong on rank 0 (ToolkitError) is raised on every rank. Raises ToolkitError on the others where rank 0 ends
    or is silent. Imports torch.
    """
    if world_size == 1:
        function()
        return
    store = _store(rank, world_size)
    if rank == 0:
        _work(function, store)
    else:
        _wait(store, rank, max(1.0, world_size / MOST_QUESTIONS))


def _store(rank: int, world_size: int) -> Any:
    from torch import distributed

    store, _, _ = next(distributed.rendezvous("env://", rank, world_size, timeout=JOIN))
    _open.append(store)
    return distributed.PrefixStore("first_rank_works", store)


def _work(function: Callable[[], None], store: Any) -> None:
    over = threading.Event()

    def beat() -> None:
        count = 0
        while not over.is_set():
            with contextlib.suppress(RuntimeError):  # the store is gone: the others have noticed too
                store.set("beat", str(count))
            count += 1
            over.wait(BEAT)

    thread = threading.Thread(target=beat, daemon=True)
    thread.start()
    outcome: list[tuple[str, str]] = [("rank 0 has failed, for the reason that it tells", "")]
    try:
        function()
        outcome = []
    except ToolkitError as error:
        outcome = [(problem.message, problem.remedy) for problem in error.problems]
        raise
    finally:
        over.set()
        thread.join()
        store.set("outcome", json.dumps(outcome))


def _wait(store: Any, rank: int, every: float) -> None:
    last, heard = b"", time.monotonic()
    try:
        while not store.check(["outcome"]):
            found = store.get("beat") if store.check(["beat"]) else b""
            if found != last:
                last, heard = found, time.monotonic()
            elif time.monotonic() - heard > PATIENCE:
                raise ToolkitError(
                    f"rank {rank} has not heard of rank 0 for {PATIENCE:,.0f} s",
                    remedy="see what rank 0 wrote last, and prepare the data before the job",
                )
            time.sleep(every)
        outcome = json.loads(store.get("outcome"))
    except RuntimeError as error:  # torch's errors of stores and networks
        raise ToolkitError(
            f"rank 0 is gone while rank {rank} waited for it: {error}", remedy="see what rank 0 wrote last"
        ) from error
    if outcome:
        raise ToolkitError(*(Problem(message, remedy) for message, remedy in outcome))


def until_there(path: Path) -> None:
    """Wait for a file that rank 0 wrote: a network file system may show it later than the news of it comes."""
    until = time.monotonic() + SHARED
    while not path.is_file():
        if time.monotonic() > until:
            raise ToolkitError(
                f"rank 0 wrote {path}, and this node does not see it",
                remedy="the output directory must be on storage that all nodes share",
            )
        time.sleep(0.5)
