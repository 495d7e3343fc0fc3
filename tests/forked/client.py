"""Stands for one forked process: same signals, same output, same end. ``client.py SOCKET SELF PYTHON -m MODULE ...``.

Imports next to nothing. A command that is not ``[-u] -m MODULE`` is for the interpreter itself.
"""

import contextlib
import json
import os
import signal
import socket
import sys
import time

FORWARDED = ("SIGTERM", "SIGINT", "SIGHUP", "SIGQUIT", "SIGUSR1", "SIGUSR2")
PATIENCE = 600.0  # seconds until the server has imported everything


def main() -> None:
    """Ask for the process, pass signals on to it, end as it ended."""
    door, own, python, *words = sys.argv[1:]
    if words[:2] == ["-u", "-m"]:
        words = words[1:]
    if words[:1] != ["-m"]:
        os.execv(python, [python, *words])
    connection = connect(door)
    folder = os.getcwd()  # noqa: PTH109  # pathlib is slow to import
    asked = {"words": words[1:], "environment": dict(os.environ), "folder": folder, "self": own}
    text = json.dumps(asked).encode()
    signal.pthread_sigmask(signal.SIG_BLOCK, [getattr(signal, name) for name in FORWARDED])
    socket.send_fds(connection, [len(text).to_bytes(8, "big")], [0, 1, 2])
    connection.sendall(text)
    lines = connection.makefile("r")
    process = int(lines.readline())

    def forward(number: int, _: object) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(process, number)

    for name in FORWARDED:
        signal.signal(getattr(signal, name), forward)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [getattr(signal, name) for name in FORWARDED])
    status = int(lines.readline())
    if status < 0:
        with contextlib.suppress(OSError):  # SIGKILL has no handler
            signal.signal(-status, signal.SIG_DFL)
        os.kill(os.getpid(), -status)
    os._exit(status)


def connect(door: str) -> socket.socket:
    """The server may still be importing."""
    end = time.monotonic() + PATIENCE
    while True:
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            connection.connect(door)
            return connection
        except OSError as error:
            connection.close()
            if isinstance(error, ConnectionRefusedError) or time.monotonic() > end:
                raise
            time.sleep(0.05)


main()
