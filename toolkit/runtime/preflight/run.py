"""The sequence of checks on one node; all nodes run it at the same time and come to the same verdict.

Cheap checks first, then the meeting, then what needs it. The all-reduces, which import torch, are left out where
something is wrong already. A node that cannot reach the first one leaves a note in the output directory: where most
others do, it is the first node that is cut off.
"""

from __future__ import annotations

import time
from typing import Any

import msgspec

from toolkit.runtime.preflight import alone, collective, meeting, names, result, storage
from toolkit.runtime.preflight.request import Request
from toolkit.runtime.preflight.together import compared, expected_name, storage_of
from toolkit.runtime.preflight.verdict import Trouble, Verdict, judge

CHECKS = ("versions", "storage", "clock", "name", "gpus", "collective")


def run(request: Request, node: int, host: str) -> Verdict:
    """All checks; the first node writes ``preflight.json``, and ``preflight.bad`` where nodes are (one name a line)."""
    since = time.monotonic()
    if node == 0:
        alone.prepare(request)
    facts = alone.look(request, node, host)
    listener = names.Listener(host) if request.nodes > 1 and "name" not in request.skip else None
    try:
        met = _meet(request, node, host)
    except meeting.Unreachable as error:
        return result.cut_off(request, node, host, str(error), since)
    except meeting.PortTaken as error:
        return result.of_one(request, host, host, str(error), "end it, or leave out the node", since)
    try:
        if request.nodes > 1 and "storage" in facts and not facts["storage"].get("error"):
            facts["storage"]["shared"] = alone.limited(lambda: storage.sees_first(request), "the shared folder") is True
        facts["clock"] = [met.clock_seconds, met.clock_error_seconds]
        facts["name"] = listener.facts() if listener else None
        verdict = _together(request, node, met, facts, since)
        final: Verdict = msgspec.convert(met.exchange(msgspec.to_builtins(verdict), 20.0)[0], Verdict)
    except meeting.Unreachable as error:
        return result.cut_off(request, node, host, str(error), since)
    finally:
        met.close()
        if listener:
            listener.close()
    if node == 0:
        result.write(request, final)
    return final


def _meet(request: Request, node: int, host: str) -> meeting.Meeting:
    if request.nodes == 1:
        return meeting.Meeting(0, [host])
    if node == 0:
        return meeting.First(request.run_id, host, request.nodes, request.port, request.meeting_seconds)
    place = (request.address, request.port)
    return meeting.Other(request.run_id, node, host, request.nodes, place, 0.8 * request.meeting_seconds)


def _together(request: Request, node: int, met: meeting.Meeting, facts: dict[str, Any], since: float) -> Verdict:
    """What needs the others. Only the first node's verdict counts; every node makes one."""
    told: list[dict[str, Any] | None] = met.exchange(facts, 2.0 * alone.LOCAL_SECONDS)
    hosts = [each["host"] if each else expected_name(request, number) for number, each in enumerate(told)]
    probed = None
    if request.nodes > 1 and "name" not in request.skip:
        mine = {
            other: names.probe(found["name"])
            for other in names.tried_by(node, request.nodes)
            if (found := told[other]) and found["name"] and not found["name"]["error"]
        }
        probed = met.exchange(mine, names.PROBES * names.SECONDS + 10.0)
    earlier = result.earlier_versions(request)
    troubles, skipped = compared(request, met, hosts, told, probed, earlier)
    measured: dict[str, Any] = {
        "earlier_versions": earlier,
        "hosts": {hosts[number]: each for number, each in enumerate(told) if each},
        "save_seconds": storage.save_seconds(request, storage_of(hosts, told)),
    }
    several = request.nodes * max(request.gpus_per_node, 1) > 1
    go_on = several and not any(each.severity == "error" for each in troubles)
    port = met.exchange(collective.free_port() if go_on and "collective" not in request.skip else 0, 10.0)[0]
    if port:
        more, measured["collective"] = _all_reduces(request, node, met, hosts, port)
        troubles += more
    elif several:  # one process has nobody to reduce with
        skipped.append("collective: left out" if go_on else "collective: not with the troubles above")
    code, bad = judge(troubles, tuple(hosts))
    return Verdict(
        run_id=request.run_id,
        exit_code=code,
        bad_nodes=bad,
        nodes=tuple(hosts),
        troubles=tuple(troubles),
        measured=measured,
        skipped=tuple(skipped),
        assumed=(f"what an all-reduce over {request.link} should take",) if request.link_assumed and port else (),
        seconds=time.monotonic() - since,
    )


def _all_reduces(
    request: Request, node: int, met: meeting.Meeting, hosts: list[str], port: int
) -> tuple[list[Trouble], list[dict[str, Any]]]:
    """What pairs of nodes found; before a node is called bad for being slow once, all measure again."""
    seconds, again = 0.5 * request.time_limit, True
    while True:
        results = met.exchange(collective.measure(request, node, port, seconds), seconds + 10.0)
        troubles, measured = collective.judge(request, hosts, results)
        again = again and any(each.severity == "error" for each in troubles)
        port = met.exchange(collective.free_port() if again else 0, 10.0)[0]
        if not port:
            return troubles, measured
        again = False
