"""Real processes that talk over pipes, or over gloo: one that dies takes the others with it at the next exchange."""

from __future__ import annotations

import os
import sys
import tempfile
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection, Pipe
from pathlib import Path
from typing import Any

from toolkit.runtime.together import Group, TorchGroup


class PipeGroup:
    """``share`` through rank 0; a peer that is gone ends in EOFError or BrokenPipeError."""

    def __init__(self, rank: int, hosts: list[str], pipes: list[tuple[Connection, Connection]]) -> None:
        self.rank, self.size, self.hosts = rank, len(hosts), hosts
        for number, (hub, spoke) in enumerate(pipes, start=1):
            if rank != 0:
                hub.close()
            if rank != number:
                spoke.close()
        self._peers = [hub for hub, _ in pipes] if rank == 0 else [pipes[rank - 1][1]]

    def share(self, value: Any) -> list[Any]:
        if self.rank != 0:
            self._peers[0].send(value)
            return self._peers[0].recv()  # type: ignore[no-any-return]
        found = [value, *(peer.recv() for peer in self._peers)]
        for peer in self._peers:
            peer.send(found)
        return found


def run(work: Callable[[Group], None], hosts: list[str], gloo: bool = False) -> list[int]:
    """Fork one process per entry of ``hosts`` and wait for all; their exit codes, negative for a signal."""
    pipes = [Pipe() for _ in hosts[1:]]
    store = tempfile.mktemp(prefix="killing-store-") if gloo else ""
    children = []
    for rank in range(len(hosts)):
        child = os.fork()
        if child == 0:
            code = 70
            try:
                work(_gloo(rank, hosts, store) if gloo else PipeGroup(rank, hosts, pipes))
                code = 0
            except (EOFError, ConnectionError):
                code = 71  # a peer is gone
            except BaseException as error:
                code = 72
                if os.environ.get("KILLING_SHOW"):
                    traceback.print_exception(error)
            finally:
                sys.stderr.flush()
                os._exit(code)
        children.append(child)
    for hub, spoke in pipes:
        hub.close()
        spoke.close()
    codes = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
    if gloo:
        Path(store).unlink(missing_ok=True)
    return codes


def _gloo(rank: int, hosts: list[str], store: str) -> Group:
    from torch import distributed

    distributed.init_process_group(
        "gloo", init_method=f"file://{store}", rank=rank, world_size=len(hosts), timeout=_seconds(20)
    )
    group = TorchGroup()
    group.hosts = hosts
    return group


def _seconds(number: int) -> Any:
    import datetime

    return datetime.timedelta(seconds=number)
