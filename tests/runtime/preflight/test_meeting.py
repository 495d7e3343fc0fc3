"""Nodes meet whatever strangers, limits and large clusters do to the sockets."""

import contextlib
import os
import resource
import socket
import struct
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from toolkit.errors import ToolkitError
from toolkit.runtime.preflight import alone, meeting, names, smi

ROOT = Path(__file__).parents[3]


def free_port() -> int:
    with socket.create_server(("", 0)) as server:
        return int(server.getsockname()[1])


def reset(address: str, port: int, times: int) -> None:
    """Connections that are reset at once, as those of a port scanner are."""
    for _ in range(times):
        with socket.create_connection((address, port)) as stranger:
            stranger.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


def test_a_stranger_that_hangs_up_does_not_end_the_listener() -> None:
    listener = names.Listener("localhost")
    try:
        facts = listener.facts()
        reset(str(facts["address"]), int(facts["port"]), 30)
        assert names.probe(facts) == ""
    finally:
        listener.close()


def met(port: int, nodes: int, value: str) -> tuple[list[str | None], list[str | None]]:
    """What the first and the second of so many nodes get in a round."""
    found: list[list[str | None]] = []

    def first() -> None:
        held = meeting.First("run", "n0", nodes, port, 2.0 if nodes > 2 else 10.0)
        found.append(held.exchange(value, 10.0))
        held.close()

    thread = threading.Thread(target=first)
    thread.start()
    other = meeting.Other("run", 1, "n1", nodes, ("127.0.0.1", port), 8.0)
    got = other.exchange("of n1", 15.0)
    other.close()
    thread.join()
    return found[0], got


def test_what_thousands_of_nodes_say_is_passed_on() -> None:
    """About 3 KB each: of 2,000 nodes more than a stranger may send."""
    value = "x" * (6 * 2**20)
    told, got = met(free_port(), 200, value)
    assert told[:2] == got[:2] == [value, "of n1"]


def test_a_stranger_may_not_send_as_much() -> None:
    ours, theirs = socket.socketpair()
    line = meeting.Line(ours)

    def talk() -> None:
        with contextlib.suppress(OSError):
            theirs.sendall(b"x" * (5 * 2**20))

    threading.Thread(target=talk, daemon=True).start()
    with pytest.raises(ConnectionResetError):
        line.receive(10.0)
    line.close()
    theirs.close()


MANY = """
import os, resource, sys
from toolkit.runtime.preflight import meeting
nodes, port = 60, int(sys.argv[1])
for node in range(1, nodes):
    if os.fork() == 0:
        held = meeting.Other("run", node, f"n{node}", nodes, ("127.0.0.1", port), 25.0)
        held.exchange("here", 25.0)
        os._exit(0)
_, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, (32, hard))
held = meeting.First("run", "n0", nodes, port, 30.0)
print(len(held.missing), held.exchange("here", 10.0).count("here"))
"""


def test_more_nodes_than_the_usual_limit_of_descriptors() -> None:
    """60 and a limit of 32, as 2,000 and the usual one of 1,024."""
    assert resource.getrlimit(resource.RLIMIT_NOFILE)[1] > 400
    done = subprocess.run(
        [sys.executable, "-c", MANY, str(free_port())], cwd=ROOT, capture_output=True, text=True, timeout=60
    )
    assert done.stdout.split() == ["0", "60"], done.stderr


def failing(error: Exception) -> None:
    raise error


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (ValueError("no number"), "the check of gpus failed: ValueError: no number ("),
        (ToolkitError("cannot read run: Input/output error", remedy="ask"), "cannot read run: Input/output error"),
        (OSError(5, "Input/output error"), "[Errno 5] Input/output error"),
    ],
)
def test_a_check_that_fails_is_not_one_that_hangs(error: Exception, said: str) -> None:
    since = time.monotonic()
    found = alone.limited(lambda: failing(error), "gpus")
    assert found["error"].startswith(said) and "kind" not in found
    assert time.monotonic() - since < alone.LOCAL_SECONDS / 5.0


def test_a_process_with_a_strange_name_is_no_fault_of_the_driver(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Command lines are bytes: one in Latin-1 among those of other users."""
    program = tmp_path / "nvidia-smi"
    program.write_bytes(b"#!/bin/sh\nprintf '<nvidia_smi_log><!-- caf\\351 --></nvidia_smi_log>'\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    assert smi.read(str(smi.log(5.0))) == []
