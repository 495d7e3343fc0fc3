"""The nodes of a job meet at one address and tell one another what they found. Plain sockets, no torch.

The first node listens where the training's rendezvous will be, so that a connection proves that this name resolves and
this port can be reached. Lines of JSON go over one connection for each node:

    node -> first   {"run": ID, "node": 2, "host": "n2"}          hello
    node -> first   {"ping": true}    first -> node {"time": T}   eight times, for the clock
    then rounds of :meth:`Meeting.exchange`: every node gives a value and gets those of all nodes

Clock: a node sends at ``a``, gets the first node's time ``T``, and has its answer at ``b``; the first node's clock is
ahead by ``T - (a + b)/2``, wrong by at most ``(b - a)/2``. The exchange with the smallest ``b - a`` counts.
Source: the offset of NTP, RFC 5905, section 8.
"""

from __future__ import annotations

import contextlib
import json
import resource
import socket
import threading
import time
from typing import Any

PINGS = 8
RETRY_SECONDS = 0.25
MOST_BYTES, MOST_BYTES_OF_A_NODE = 2**22, 2**16  # of one line: of a stranger's, and in what a round passes on


class Unreachable(Exception):
    """The first node could not be reached in time; the text says why."""


class PortTaken(Exception):
    """Another program has the port of the rendezvous on the first node."""


class Line:
    """Lines of JSON over a socket, each with its own limit of time."""

    def __init__(self, connection: socket.socket) -> None:
        self._socket, self._rest = connection, bytearray()
        self.most_bytes = MOST_BYTES

    def send(self, value: Any, seconds: float) -> None:
        """One line; OSError where the other side does not take it in time."""
        self._socket.settimeout(max(seconds, 0.01))
        self._socket.sendall(json.dumps(value).encode() + b"\n")

    def receive(self, seconds: float) -> Any:
        """The next line; OSError where none comes in time, or the other side has gone."""
        end = time.monotonic() + seconds
        seen = 0
        while (place := self._rest.find(b"\n", seen)) < 0:
            seen = len(self._rest)
            self._socket.settimeout(max(end - time.monotonic(), 0.01))
            piece = self._socket.recv(2**16)
            if not piece or seen > self.most_bytes:
                raise ConnectionResetError("the connection was closed")
            self._rest += piece
        line = bytes(self._rest[:place])
        del self._rest[: place + 1]
        try:
            return json.loads(line)
        except ValueError as error:
            raise ConnectionResetError(f"not a message of preflight: {error}") from error

    def of_a_round(self, nodes: int) -> None:
        """From here on lines hold what all nodes say: of thousands that is more than a stranger may send."""
        self.most_bytes = max(MOST_BYTES, MOST_BYTES_OF_A_NODE * nodes)

    def close(self) -> None:
        """No more lines."""
        self._socket.close()


class Meeting:
    """What the nodes of one job exchange. ``hosts[i]`` is node i's name, empty while it has not come."""

    def __init__(self, node: int, hosts: list[str]) -> None:
        self.node, self.hosts = node, hosts
        self.clock_seconds = 0.0  # of the first node, minus this node's own
        self.clock_error_seconds = 0.0

    @property
    def missing(self) -> list[int]:
        """Nodes that have not come, or have gone."""
        return [number for number, host in enumerate(self.hosts) if not host]

    def exchange(self, value: Any, seconds: float) -> list[Any]:
        """What every node gave; None of one that is missing or too late."""
        return [value]

    def close(self) -> None:
        """Part."""


class First(Meeting):
    """Node 0: it listens, waits for the others, and passes on what all say."""

    def __init__(self, run: str, host: str, nodes: int, port: int, seconds: float) -> None:
        super().__init__(0, [host] + [""] * (nodes - 1))
        self._lines: dict[int, Line] = {}
        self._changed = threading.Condition()
        self._run, self._open = run, True
        _raise_limit(nodes)
        self._socket = _listen(port)
        threading.Thread(target=self._accept, daemon=True).start()
        end = time.monotonic() + seconds
        with self._changed:
            while self.missing and (left := end - time.monotonic()) > 0:
                self._changed.wait(left)
            self._open = False

    def _accept(self) -> None:
        """Until the socket is closed; a connection that is gone again, or has no descriptor yet, is not the end."""
        while self._socket.fileno() >= 0:
            try:
                connection, _ = self._socket.accept()
            except OSError:
                time.sleep(0.05)
            else:
                threading.Thread(target=self._greet, args=(Line(connection),), daemon=True).start()

    def _greet(self, line: Line) -> None:
        with contextlib.suppress(OSError, KeyError, TypeError):
            hello = line.receive(5.0)
            if hello["run"] != self._run or not 0 < hello["node"] < len(self.hosts):
                line.send({"refused": f"this is the meeting of {self._run}"}, 5.0)
                line.close()
                return
            line.send({"welcome": self._run}, 5.0)
            for _ in range(PINGS):
                line.receive(5.0)
                line.send({"time": time.time()}, 5.0)
            with self._changed:
                if self._open:  # one that comes later is counted as missing
                    self.hosts[hello["node"]] = str(hello["host"])
                    self._lines[hello["node"]] = line
                    line.of_a_round(len(self.hosts))
                    self._changed.notify()

    def exchange(self, value: Any, seconds: float) -> list[Any]:
        """Gather within ``seconds``, and give it to all that are still there."""
        found, end = [value] + [None] * (len(self.hosts) - 1), time.monotonic() + seconds
        for number, line in list(self._lines.items()):
            try:
                found[number] = line.receive(end - time.monotonic())
            except OSError:
                self._lines.pop(number).close()
        for number, line in list(self._lines.items()):
            try:
                line.send(found, 5.0)
            except OSError:
                self._lines.pop(number).close()
        return found

    def close(self) -> None:
        """The other side closes first: it, and not this port, then waits out TCP's last state."""
        for line in self._lines.values():
            with contextlib.suppress(OSError):
                line.receive(1.0)
            line.close()
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)  # wakes the thread that accepts
        self._socket.close()


def _raise_limit(nodes: int) -> None:
    """A descriptor for each node: the usual limit of 1,024 is a wish that a process may change up to the hard one."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = nodes + 256 if hard == resource.RLIM_INFINITY else min(nodes + 256, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def _listen(port: int) -> socket.socket:
    """On every address, IPv6 too where the machine has it."""
    try:
        if socket.has_dualstack_ipv6():
            return socket.create_server(("", port), family=socket.AF_INET6, dualstack_ipv6=True, backlog=1024)
    except OSError:
        pass  # the machine has IPv6 switched off
    try:
        return socket.create_server(("", port), backlog=1024)
    except OSError as error:
        raise PortTaken(f"cannot listen on port {port}: {error}") from error


class Other(Meeting):
    """Any other node: it connects to the first one."""

    def __init__(self, run: str, node: int, host: str, nodes: int, place: tuple[str, int], seconds: float) -> None:
        super().__init__(node, [""] * nodes)
        self._line = _connect(run, node, host, place, seconds)
        self._line.of_a_round(nodes)
        best = float("inf")
        for _ in range(PINGS):
            before = time.time()
            since = time.perf_counter()
            try:
                self._line.send({"ping": True}, 5.0)
                told = self._line.receive(5.0)["time"]
            except (OSError, KeyError, TypeError) as error:
                raise Unreachable(f"{place[0]}:{place[1]} answers no more: {error}") from error
            took = time.perf_counter() - since
            if took < best:
                best, self.clock_seconds = took, told - (before + 0.5 * took)
        self.clock_error_seconds = 0.5 * best

    def exchange(self, value: Any, seconds: float) -> list[Any]:
        """Give, and wait for what the first node passes on; raises Unreachable."""
        try:
            self._line.send(value, seconds)
            return list(self._line.receive(seconds + 5.0))
        except (OSError, TypeError) as error:
            raise Unreachable(f"the first node answers no more: {error}") from error

    def close(self) -> None:
        """The first to close is on our side: see :meth:`First.close`."""
        self._line.close()


def _connect(run: str, node: int, host: str, place: tuple[str, int], seconds: float) -> Line:
    end, reason = time.monotonic() + seconds, "no time was given"
    while (left := end - time.monotonic()) > 0:
        try:
            line = Line(socket.create_connection(place, timeout=min(left, 3.0)))
            line.send({"run": run, "node": node, "host": host}, left)
            answer = line.receive(min(left, 5.0))
            if "welcome" in answer:
                return line
            reason = str(answer.get("refused", "it is no meeting of preflight"))
            line.close()
        except socket.gaierror as error:
            reason = f"the name {place[0]} does not resolve here ({error.strerror})"
        except (OSError, AttributeError, TypeError) as error:
            reason = str(error) or type(error).__name__
        time.sleep(RETRY_SECONDS)
    raise Unreachable(f"cannot reach {place[0]}:{place[1]}: {reason}")
