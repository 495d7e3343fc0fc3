"""Nodes that are network namespaces on one bridge, each with its own host name, /etc/hosts and address 10.78.0.N."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

PLAN_OF_A_NODE = """
hostname n$1; echo $$ > "$0/node-$1.pid"; ip link set lo up; mount --bind "$0/hosts-$1" /etc/hosts
until ip link show eth0 >/dev/null 2>&1; do sleep 0.02; done
ip addr add 10.78.0.$1/24 dev eth0; ip link set eth0 up; touch "$0/up-$1"; exec sleep 600
"""
INIT = """
set -e
ip link set lo up; ip link add br0 type bridge; ip link set br0 up
for i in $(seq "$2"); do
  unshare --uts --net --mount bash -c "$3" "$1" "$i" &
  until [ -s "$1/node-$i.pid" ]; do sleep 0.02; done
  ip link add "veth$i" type veth peer name eth0 netns "$(cat "$1/node-$i.pid")"
  ip link set "veth$i" master br0 up
done
wait
"""


class Nodes:
    """``count`` nodes n1, n2, ...; all end with this object's :meth:`close`."""

    def __init__(self, folder: Path, count: int, own_name: str = "") -> None:
        self.folder, self.count = folder, count
        for node in range(1, count + 1):
            lines = ["127.0.0.1 localhost"]
            for other in range(1, count + 1):
                lines.append(f"{own_name if own_name and other == node == 2 else f'10.78.0.{other}'} n{other}")
            (folder / f"hosts-{node}").write_text("\n".join(lines) + "\n")
        flags = ["--net", "--mount", "--pid", "--fork", "--kill-child", "--uts"]
        if os.getuid():
            flags = ["--user", "--map-root-user", *flags]
        words = ["unshare", *flags, "bash", "-c", INIT, "init", str(folder), str(count), PLAN_OF_A_NODE]
        # without a PID namespace of /proc's own: pids written by the nodes are of the inner one, so nsenter goes by it
        self.process = subprocess.Popen(words)
        end = time.monotonic() + 20
        while not all((folder / f"up-{node}").exists() for node in range(1, count + 1)):
            assert time.monotonic() < end and self.process.poll() is None, "the nodes did not start"
            time.sleep(0.02)
        self.pids = self._outer_pids()

    def _outer_pids(self) -> dict[int, int]:
        found = {}
        for status in Path("/proc").glob("[0-9]*/cmdline"):
            try:
                words = status.read_bytes().split(b"\0")
                name = (
                    subprocess.run(
                        ["nsenter", "-t", status.parent.name, "-u", "hostname"], capture_output=True, text=True
                    ).stdout.strip()
                    if words[:2] == [b"sleep", b"600"]
                    else ""
                )
            except OSError:
                continue
            if name.startswith("n") and self._ours(status.parent):
                found[int(name[1:])] = int(status.parent.name)
        assert len(found) == self.count, found
        return found

    def _ours(self, process: Path) -> bool:
        while True:
            parent = int((process / "stat").read_text().rpartition(")")[2].split()[1])
            if parent == self.process.pid:
                return True
            if parent <= 1:
                return False
            process = Path(f"/proc/{parent}")

    def inside(self, node: int, *words: str) -> list[str]:
        user = ["-U", "--preserve-credentials"] if os.getuid() else []
        return ["nsenter", "-t", str(self.pids[node]), *user, "-n", "-u", "-m", f"--wdns={Path.cwd()}", "--", *words]

    def run(self, node: int, *words: str) -> None:
        subprocess.run(self.inside(node, *words), check=True)

    def preflight(self, plan: Path, *options: str, absent=(), environment=None, at="n1:23500"):
        """Exit code and stderr of each node, and ``preflight.json``; a busy machine has all the time it needs."""
        if "--time-limit" not in options:
            options = (*options, "--time-limit", "240")
        command = [sys.executable, "-m", "toolkit", "preflight", str(plan), "--nodes", str(self.count)]
        command += ["--rendezvous", at, "--hosts", ",".join(f"n{node}" for node in range(1, self.count + 1)), *options]
        started = {
            node: subprocess.Popen(
                self.inside(node, *command, "--node", str(node - 1)),
                env=os.environ | {"OMP_NUM_THREADS": "1"} | (environment or {}).get(node, {}),
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
            for node in range(1, self.count + 1)
            if node not in absent
        }
        said = {node: process.communicate(timeout=500) for node, process in started.items()}
        codes = {node: process.returncode for node, process in started.items()}
        result = plan.parent / "run" / "preflight.json"
        found = json.loads(result.read_text()) if result.exists() else None
        return codes, {node: err for node, (_, err) in said.items()}, found

    def close(self) -> None:
        self.process.kill()  # unshare --kill-child: everything inside ends with it
        self.process.wait()
