"""All-reduces of pairs of nodes, run in processes of their own that end with their time."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
from typing import Any

from toolkit.runtime.preflight import pairs
from toolkit.runtime.preflight.request import Request
from toolkit.runtime.preflight.verdict import Trouble


def free_port() -> int:
    """A port that nobody has now."""
    with socket.create_server(("", 0)) as server:
        return int(server.getsockname()[1])


def measure(request: Request, node: int, port: int, seconds: float) -> list[dict[str, Any]]:
    """What this node's processes found, round by round; an ``error`` in place of what did not work."""
    ranks = max(request.gpus_per_node, 1)
    asked = {
        "node": node,
        "ranks": ranks,
        "nodes": request.nodes,
        "address": request.address or "127.0.0.1",
        "port": port,
        "cuda": request.gpus_per_node > 0,
        "seconds": 0.5 * seconds,  # of one group: another pair must have its turn
    }
    started = [
        subprocess.Popen(
            [sys.executable, "-m", "toolkit.runtime.preflight.worker", json.dumps(asked | {"local": local})],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        for local in range(ranks)
    ]
    results: list[dict[str, Any]] = []
    for local, process in enumerate(started):
        try:
            out, err = process.communicate(timeout=seconds)
            if local == 0:
                lines = out.strip().splitlines()
                last = (err.strip().splitlines() or [f"exit code {process.returncode}"])[-1][:300]
                results = json.loads(lines[-1]) if lines else [{"members": [node], "error": last}]
        except subprocess.TimeoutExpired:
            results = [{"members": [node], "error": f"no answer within {seconds:.0f} s"}]
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    return results


def judge(
    request: Request, hosts: list[str], by_node: list[list[dict[str, Any]] | None]
) -> tuple[list[Trouble], list[dict[str, Any]]]:
    """Troubles, and what was measured: of each pair its bytes, seconds and the seconds expected."""
    measured: dict[tuple[int, ...], dict[str, Any]] = {}
    troubles = []
    for node, results in enumerate(by_node):
        for each in results or [{"members": [node], "error": "it told no result"}]:
            members = tuple(each["members"])
            if len(members) == 1 and each.get("error"):
                troubles.append(
                    Trouble(check="collective", nodes=(hosts[node],), message=f"its all-reduce failed: {each['error']}")
                )
            known = measured.get(members)
            if known is None or each["error"] or (not known["error"] and each["seconds"] > known["seconds"]):
                measured[members] = each
    ratios, what, rows = {}, {}, []
    for members, each in sorted(measured.items()):
        table = request.pair_seconds if len(members) == 2 else request.alone_seconds
        expected = table.get(each.get("bytes", 0), 0.0)
        rows.append({"nodes": [hosts[node] for node in members], "expected_seconds": expected} | each)
        if len(members) == 2:
            pair = (members[0], members[1])
            failed = bool(each["error"]) or not expected
            ratios[pair] = float("inf") if failed else each["seconds"] / expected
            what[pair] = pairs.sentence(
                hosts, pair, each.get("bytes", 0), each.get("seconds", 0.0), expected, each["error"]
            )
        elif expected and not each["error"] and each["seconds"] > pairs.FACTOR * expected and not request.link_assumed:
            text = f"the all-reduce of its own GPUs took {each['seconds'] / expected:.1f} times the planned time"
            troubles.append(Trouble(check="collective", nodes=(hosts[members[0]],), message=text))
    return (
        troubles + pairs.judge(hosts, ratios, what, request.link_assumed, not request.gpus_per_node),
        rows,
    )
