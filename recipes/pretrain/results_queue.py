"""The process through which megatron-core's writers report, so that it ends with the rank that needs it.

The library (0.16.1, ``dist_checkpointing/strategies/filesystem_async.py``) starts a server process for a queue at the
first save and leaves it to an exit handler. A rank that is killed, or ended by torchrun, runs none: the process stays
behind for ever, with what it has imported (200 MB) and with the rank's output open. Here the kernel ends it with its
parent (Linux; elsewhere it is the library's own).
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import sys
from multiprocessing import get_context
from multiprocessing.managers import SyncManager

PR_SET_PDEATHSIG = 1  # prctl(2)


def start() -> None:
    """Give the library such a queue, once for each process."""
    if not sys.platform.startswith("linux"):
        return
    # here, since the server imports this module too, and has no use for torch: 0.2 s instead of 4 s of a core
    from megatron.core.dist_checkpointing.strategies import filesystem_async as library

    if library._results_queue is not None:
        return
    manager = SyncManager(ctx=get_context("spawn"))
    manager.start(_end_with, (os.getpid(),))
    library._results_queue = manager.Queue()


def _end_with(parent: int) -> None:
    """In the server: SIGKILL as soon as the thread that started it is gone, which is the main one."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it has ended already
        os._exit(1)
