"""Imports what the training programs import, then forks one process for each that is asked for.

``python -m tests.forked.server SOCKET``; ends, with all that it started, when its standard input does. It has one
thread and has computed nothing, so a fork of it is as good as new. A client that is gone (SIGKILL cannot be passed on)
takes its process with it, and what that one started.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import os
import runpy
import selectors
import signal
import socket
import struct
import sys
import warnings
from pathlib import Path
from typing import Any

# In the order in which the programs do it: what is decorated for torch.compile while the CPU shim is being imported
# stays plain, as in the pretraining program; what comes after is as in the fine-tuning program.
OF_PRETRAINING = ("recipes.pretrain.cpu_shim", "recipes.pretrain.loop", "recipes.pretrain.trace")
OF_FINE_TUNING = (
    "deepspeed",
    "deepspeed.runtime.zero.muon.muon_optimizer",  # imported by every sharded optimizer; compiles at import
    "recipes.finetune.trainer",
    "recipes.finetune.trace",
    "transformers.models.llama.modeling_llama",
    "transformers.models.auto.modeling_auto",
)
OF_TORCHRUN = (
    "torch.distributed.run",
    "torch.distributed.elastic.agent.server.local_elastic_agent",
    "torch.distributed.elastic.rendezvous.c10d_rendezvous_backend",
)


def load() -> None:
    """Everything once."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name in OF_PRETRAINING:
            importlib.import_module(name)
        os.environ.pop("TORCHDYNAMO_DISABLE")
        for name in (*OF_FINE_TUNING, *OF_TORCHRUN):
            importlib.import_module(name)
    gc.collect()
    gc.freeze()
    threads = [(each / "comm").read_text().strip() for each in Path("/proc/self/task").iterdir()]
    lost = [name for name in threads[1:] if name != "jemalloc_bg_thd"]  # jemalloc (pyarrow's) starts it again itself
    assert not lost, f"a fork would lose threads: {lost}"


class Server:
    """The processes that run, each with the connection on which its client waits for its end."""

    def __init__(self, door: str) -> None:
        self.folder = Path(door).parent
        self.clients: dict[int, socket.socket] = {}
        self.notes: dict[int, Path] = {}  # named by the pid of the client, with that of the process
        self.selector = selectors.DefaultSelector()
        self.listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.listener.bind(door)
        self.listener.listen(64)
        self.ended, write = os.pipe()
        for each in (self.ended, write):
            os.set_blocking(each, False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(write, warn_on_full_buffer=False)
        for each in (self.listener.fileno(), self.ended, 0):
            self.selector.register(each, selectors.EVENT_READ)

    def serve(self) -> dict[str, Any] | None:
        """Returns in each fork what it has to run; None in the server, at its end."""
        while True:
            for key, _ in self.selector.select():
                if key.fd == 0:
                    for process in list(self.clients):
                        end(process)
                    return None
                if key.fd == self.listener.fileno():
                    asked = self.accept()
                    if asked is not None:
                        return asked
                elif key.fd == self.ended:
                    os.read(self.ended, 4096)
                    self.reap()
                elif key.data in self.clients:  # a client says nothing more: it is gone
                    self.selector.unregister(self.clients[key.data])
                    end(key.data)

    def accept(self) -> dict[str, Any] | None:
        """Fork; what to run, in the fork."""
        connection, _ = self.listener.accept()
        try:
            size, descriptors, _, _ = socket.recv_fds(connection, 8, 3)
            with connection.makefile("rb") as lines:
                asked: dict[str, Any] = json.loads(lines.read(int.from_bytes(size, "big")))
        except (OSError, ValueError):  # killed while it asked
            connection.close()
            return None
        process = os.fork()
        if process == 0:
            self.leave(connection)
            for number, each in enumerate(descriptors):
                os.dup2(each, number)
                os.close(each)
            return asked
        for each in descriptors:
            os.close(each)
        self.clients[process] = connection
        self.selector.register(connection, selectors.EVENT_READ, process)
        peer = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
        self.notes[process] = self.folder / f"of-{struct.unpack('3i', peer)[0]}"
        self.notes[process].write_text(str(process))
        with contextlib.suppress(OSError):
            connection.sendall(f"{process}\n".encode())
        return None

    def leave(self, connection: socket.socket) -> None:
        """In a fork: what is the server's alone."""
        os.close(signal.set_wakeup_fd(-1))
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        self.selector.close()
        os.close(self.ended)
        for each in (self.listener, connection, *self.clients.values()):
            each.close()
        os.setsid()

    def reap(self) -> None:
        """Tell the clients of those that have ended how they did."""
        while self.clients:
            process, status = os.waitpid(-1, os.WNOHANG)
            if process == 0:
                return
            connection = self.clients.pop(process)
            self.notes.pop(process).unlink(missing_ok=True)
            with contextlib.suppress(KeyError):  # of a client that is gone
                self.selector.unregister(connection)
            with contextlib.suppress(OSError):
                connection.sendall(f"{os.waitstatus_to_exitcode(status)}\n".encode())
            connection.close()


def end(process: int) -> None:
    """Kill a process and what it started."""
    from tests.forked import descendants

    for each in [process, *descendants(process)]:
        with contextlib.suppress(ProcessLookupError):
            os.kill(each, signal.SIGKILL)


def become(asked: dict[str, Any]) -> None:
    """Run the module as ``python -u -m`` does."""
    os.chdir(asked["folder"])
    os.environ.clear()
    os.environ.update(asked["environment"])
    first = asked["environment"].get("PYTHONPATH", "").split(os.pathsep)
    sys.path[:0] = [asked["folder"], *filter(None, first)]
    for name, number in (("stdout", 1), ("stderr", 2)):
        setattr(sys, name, open(number, "w", buffering=1, closefd=False))  # noqa: SIM115, PTH123
    module, *arguments = asked["words"]
    sys.argv = [module, *arguments]
    sys.executable = asked["self"]  # with which torchrun starts the ranks
    sys.modules.pop(module, None)
    runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    try:
        load()
    except BaseException:
        Path(sys.argv[1]).touch()  # nobody listens there: clients end at once
        raise
    told = Server(sys.argv[1]).serve()
    if told is not None:
        become(told)
