"""Can the other nodes reach a node by its own idea of its address? gloo and torch's stores tell the others that one.

A process of gloo listens on the address of the interface in ``GLOO_SOCKET_IFNAME``, or else on what its own host name
resolves to, and publishes that. Debian's installer writes ``127.0.1.1 NAME`` into /etc/hosts: then the others are sent
to their own loopback interface, and the job ends with "Connection refused, remote=[127.0.1.1]". So each node listens
where gloo would, and the next two nodes try to connect to it.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import socket
import threading
import time

from toolkit.runtime.preflight.verdict import Trouble

VARIABLE = "GLOO_SOCKET_IFNAME"
PROBES = 2  # nodes that try each node: one alone could be the one that is cut off
SECONDS = 3.0
SIOCGIFADDR = 0x8915  # Linux: the IPv4 address of an interface


def own_address(name: str) -> tuple[str, str]:
    """The address that gloo would publish here, and why it is that one. Raises OSError where there is none."""
    interface = os.environ.get(VARIABLE, "").split(",")[0]
    if interface:
        import fcntl

        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
            try:
                answer = fcntl.ioctl(any_socket.fileno(), SIOCGIFADDR, interface.encode()[:15].ljust(256, b"\0"))
            except OSError as error:
                raise OSError(f"{VARIABLE} is {interface}, and there is no such interface with an address") from error
        return socket.inet_ntoa(answer[20:24]), f"the address of {interface} ({VARIABLE})"
    try:
        found = socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)
    except OSError as error:
        raise OSError(f"its own name {name} does not resolve ({error.strerror})") from error
    return str(found[0][4][0]), f"what its own name {name} resolves to"


class Listener:
    """Listens on this node's own address and answers everyone with a word that only it knows."""

    def __init__(self, name: str) -> None:
        self.word, self.error, self.address, self.why, self.port = secrets.token_hex(8), "", "", "", 0
        self._socket: socket.socket | None = None
        try:
            self.address, self.why = own_address(name)
            family = socket.AF_INET6 if ":" in self.address else socket.AF_INET
            self._socket = socket.create_server((self.address, 0), family=family)
            self.port = self._socket.getsockname()[1]
            threading.Thread(target=self._answer, daemon=True).start()
        except OSError as error:
            self.error = str(error)

    def _answer(self) -> None:
        """Until the socket is closed; who has gone again before the answer is not the end of it."""
        while self._socket is not None and self._socket.fileno() >= 0:
            try:
                connection, _ = self._socket.accept()
                with connection:
                    connection.sendall(self.word.encode())
            except OSError:
                time.sleep(0.01)

    def facts(self) -> dict[str, str | int]:
        """For the others."""
        return {name: getattr(self, name) for name in ("address", "why", "port", "word", "error")}

    def close(self) -> None:
        """Stop."""
        if self._socket is not None:
            with contextlib.suppress(OSError):
                self._socket.shutdown(socket.SHUT_RDWR)  # wakes the thread that accepts
            self._socket.close()


def probe(facts: dict[str, str | int]) -> str:
    """Empty where the listener with these facts answers with its word, else what happened."""
    try:
        with socket.create_connection((str(facts["address"]), int(facts["port"])), timeout=SECONDS) as connection:
            connection.settimeout(SECONDS)
            said = connection.recv(64).decode(errors="replace")
        return "" if said == facts["word"] else "somebody else answers there"
    except OSError as error:
        return str(error)


def tried_by(node: int, nodes: int) -> list[int]:
    """Which nodes this one tries: the next two."""
    return [(node + step) % nodes for step in range(1, min(PROBES, nodes - 1) + 1)]


def judge(hosts: list[str], facts: list[dict[str, str | int]], tries: dict[int, dict[int, str]]) -> list[Trouble]:
    """A node is in trouble where nobody who tried reached it. ``tries[i][j]`` is what node i met when it tried j."""
    troubles = []
    remedy = f"set {VARIABLE} to the interface between the nodes (network_interface of the site), or mend /etc/hosts"
    for node, host in enumerate(hosts):
        found = facts[node] if node < len(facts) else None
        if not host or not found:
            continue
        if found["error"]:
            troubles.append(Trouble(check="name", nodes=(host,), message=str(found["error"]), remedy=remedy))
            continue
        met = {hosts[other]: tried[node] for other, tried in tries.items() if node in tried}
        failed = {other: text for other, text in met.items() if text}
        if failed:
            whom, text = next(iter(failed.items()))
            every = len(failed) == len(met)
            message = f"{whom} cannot reach {found['address']}, {found['why']}: {text}"
            severity = "error" if every else "warning"
            troubles.append(Trouble(check="name", nodes=(host,), message=message, remedy=remedy, severity=severity))
    return troubles
