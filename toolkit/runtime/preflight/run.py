"""The sequence of checks on one node; all nodes run it at the same time and come to the same verdict.

Cheap checks first, then the meeting, then what needs it. The all-reduces, which import torch, are left out where
something is wrong already. A node that cannot reach the first one leaves a note in the output directory: where most
others do, it is the first node that is cut off.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from toolkit.runtime import durable
from toolkit.runtime.preflight import clocks, collective, gpus, meeting, names, storage, versions
from toolkit.runtime.preflight.request import Request
from toolkit.runtime.preflight.verdict import BAD_NODE, Trouble, Verdict, judge

RESULT, BAD = "preflight.json", "preflight.bad"
CHECKS = ("versions", "storage", "clock", "name", "gpus", "collective")
LOCAL_SECONDS = 15.0  # for each check of one node by itself


def run(request: Request, node: int, host: str) -> Verdict:
    """All checks; the first node writes ``preflight.json``, and ``preflight.bad`` where nodes are (one name a line)."""
    since = time.monotonic()
    if node == 0:
        _prepare(request)
    facts: dict[str, Any] = {"host": host, "plan": {"plan.json": request.plan_sha256}}
    facts["plan"]["contract"] = request.contract_sha256
    if "versions" not in request.skip:
        facts["versions"] = _limited(versions.facts, "versions")
    if "storage" not in request.skip:
        facts["storage"] = _limited(lambda: msgspec.to_builtins(storage.facts(request, node)), "storage")
    if request.gpus_per_node and "gpus" not in request.skip:
        facts["gpus"] = _limited(_gpu_facts, "gpus")
    listener = names.Listener(host) if request.nodes > 1 and "name" not in request.skip else None
    try:
        met = _meet(request, node, host)
    except meeting.Unreachable as error:
        return _cut_off(request, node, host, str(error), since)
    except meeting.PortTaken as error:
        return _alone(request, host, host, str(error), "end it, or leave out the node", since)
    try:
        if request.nodes > 1 and "storage" in facts and not facts["storage"].get("error"):
            facts["storage"]["shared"] = _limited(lambda: storage.sees_first(request), "the shared folder") is True
        facts["clock"] = [met.clock_seconds, met.clock_error_seconds]
        facts["name"] = listener.facts() if listener else None
        verdict = _together(request, node, met, facts, since)
        final: Verdict = msgspec.convert(met.exchange(msgspec.to_builtins(verdict), 20.0)[0], Verdict)
    except meeting.Unreachable as error:
        return _cut_off(request, node, host, str(error), since)
    finally:
        met.close()
        if listener:
            listener.close()
    if node == 0:
        _write(request, final)
    return final


def _prepare(request: Request) -> None:
    folder = Path(request.output_directory) / storage.FOLDER
    with contextlib.suppress(OSError):  # the check of the storage tells
        folder.mkdir(parents=True, exist_ok=True)
        for path in folder.iterdir():
            path.unlink()
        storage.token_file(request).touch()


def _earlier(request: Request) -> dict[str, dict[str, str]]:
    """Versions by node, of all nodes that earlier starts have looked at."""
    try:
        found = msgspec.json.decode((Path(request.output_directory) / RESULT).read_bytes(), type=Verdict).measured
        before: dict[str, Any] = msgspec.convert(found.get("earlier_versions", {}), dict[str, dict[str, str]])
        for host, facts in msgspec.convert(found.get("hosts", {}), dict[str, dict[str, Any]]).items():
            if "error" not in (seen := facts.get("versions", {"error": ""})):
                before[host] = seen
    except (OSError, msgspec.MsgspecError):
        return {}
    return before


def _limited(check: Callable[[], Any], name: str) -> Any:
    """The check's result, or ``{"error": ...}`` where it does not come in time: a file system may hang for ever."""
    found: list[Any] = []

    def work() -> None:
        try:
            found.append(check())
        except OSError as error:
            found.append({"error": str(error)})

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    thread.join(LOCAL_SECONDS)
    return found[0] if found else {"error": f"the check of {name} has not ended within {LOCAL_SECONDS:.0f} s"}


def _gpu_facts() -> Any:
    text = gpus.log(LOCAL_SECONDS)
    return None if text is None else gpus.read(text)


def _meet(request: Request, node: int, host: str) -> meeting.Meeting:
    if request.nodes == 1:
        return meeting.Meeting(0, [host])
    if node == 0:
        return meeting.First(request.run_id, host, request.nodes, request.port, request.meeting_seconds)
    place = (request.address, request.port)
    return meeting.Other(request.run_id, node, host, request.nodes, place, 0.8 * request.meeting_seconds)


def _together(request: Request, node: int, met: meeting.Meeting, facts: dict[str, Any], since: float) -> Verdict:
    """What needs the others. Only the first node's verdict counts; every node makes one."""
    told: list[dict[str, Any] | None] = met.exchange(facts, 2.0 * LOCAL_SECONDS)
    hosts = [each["host"] if each else _expected_name(request, number) for number, each in enumerate(told)]
    probed = None
    if request.nodes > 1 and "name" not in request.skip:
        mine = {
            other: names.probe(found["name"])
            for other in names.tried_by(node, request.nodes)
            if (found := told[other]) and found["name"] and not found["name"]["error"]
        }
        probed = met.exchange(mine, names.PROBES * names.SECONDS + 10.0)
    earlier = _earlier(request)
    troubles, skipped = _judge(request, met, hosts, told, probed, earlier)
    measured: dict[str, Any] = {
        "earlier_versions": earlier,
        "hosts": {hosts[number]: each for number, each in enumerate(told) if each},
        "save_seconds": storage.save_seconds(request, _storage(hosts, told)),
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


def _judge(
    request: Request,
    met: meeting.Meeting,
    hosts: list[str],
    told: list[dict[str, Any] | None],
    probed: list[dict[str, str] | None] | None,
    earlier: dict[str, dict[str, str]],
) -> tuple[list[Trouble], list[str]]:
    troubles, skipped = _missing(request, hosts, told), [f"{each}: left out" for each in request.skip]
    there = {hosts[number]: each for number, each in enumerate(told) if each}
    troubles += versions.compare({host: each["plan"] for host, each in there.items()}, hosts[0], "the plan's ")
    for check in ("versions", "gpus"):
        for host, each in there.items():
            if isinstance(each.get(check), dict) and "error" in each[check]:
                troubles.append(Trouble(check=check, nodes=(host,), message=each[check]["error"]))
    software = {host: each["versions"] for host, each in there.items() if "error" not in each.get("versions", {})}
    troubles += versions.compare({host: each for host, each in software.items() if each}, hosts[0], "", earlier)
    if "storage" not in request.skip:
        troubles += storage.judge(request, _storage(hosts, told))
    if "clock" not in request.skip:
        found = clocks.judge({host: (each["clock"][0], each["clock"][1]) for host, each in there.items()})
        named = any(each.check == "clock" for each in troubles)  # by the file server's clock
        troubles += [each for each in found if each.nodes or not named]
    if request.gpus_per_node and "gpus" not in request.skip:
        cards = {host: each["gpus"] for host, each in there.items() if isinstance(each["gpus"], list)}
        troubles += gpus.judge(cards, request.gpus_per_node, hosts[0])
        if any(each["gpus"] is None for each in there.values()):
            skipped.append("gpus: there is no nvidia-smi")
    if probed is not None:
        tries = {n: {int(k): v for k, v in tried.items()} for n, tried in enumerate(probed) if tried}
        troubles += names.judge(hosts, [each["name"] if each else {} for each in told], tries)
    return troubles, skipped


def _storage(hosts: list[str], told: list[dict[str, Any] | None]) -> dict[str, storage.StorageFacts]:
    return {
        hosts[number]: msgspec.convert(each["storage"], storage.StorageFacts)
        for number, each in enumerate(told)
        if each and "storage" in each
    }


def _expected_name(request: Request, number: int) -> str:
    return request.hosts[number] if number < len(request.hosts) else f"node {number}"


def _missing(request: Request, hosts: list[str], told: list[dict[str, Any] | None]) -> list[Trouble]:
    """Who has not come. Where most others have not, and tell in the output directory that they tried, it is me."""
    missing = [number for number, each in enumerate(told) if each is None]
    place = f"{request.address}:{request.port}"
    folder = Path(request.output_directory) / storage.FOLDER
    tried = [number for number in missing if (folder / f"unreached-{number}").exists()]
    if request.nodes > 2 and len(tried) > (request.nodes - 1) / 2:
        text = f"{len(tried)} of {request.nodes - 1} other nodes cannot reach {place}"
        return [Trouble(check="reach", nodes=(hosts[0],), message=text, remedy="look at its network and firewall")]
    return [
        Trouble(
            check="reach",
            nodes=(hosts[number],),
            message=f"it has not come to {place} within {request.meeting_seconds:.0f} s"
            + (" and says that it cannot reach it" if number in tried else ""),
            remedy="look whether it is up, and at its network and firewall",
        )
        for number in missing
    ]


def _cut_off(request: Request, node: int, host: str, reason: str, since: float) -> Verdict:
    """The first node's verdict where it can still tell it through the storage, else that the first node is bad."""
    folder = Path(request.output_directory)
    with contextlib.suppress(OSError):
        (folder / storage.FOLDER).mkdir(parents=True, exist_ok=True)
        (folder / storage.FOLDER / f"unreached-{node}").write_text(f"{host}: {reason}\n")
    end = time.monotonic() + 0.2 * request.meeting_seconds + 10.0
    while time.monotonic() < end:
        with contextlib.suppress(OSError, msgspec.MsgspecError):
            found = msgspec.json.decode((folder / RESULT).read_bytes(), type=Verdict)
            if found.run_id == request.run_id:
                return found
        time.sleep(0.2)
    return _alone(request, _expected_name(request, 0), host, f"{host} {reason}", "look whether it is up", since)


def _alone(request: Request, bad: str, host: str, text: str, remedy: str, since: float) -> Verdict:
    """The verdict of one node that could not meet the others: the first one is bad."""
    verdict = Verdict(
        run_id=request.run_id,
        exit_code=BAD_NODE,
        bad_nodes=(bad,),
        nodes=tuple(dict.fromkeys((bad, host))),
        troubles=(Trouble(check="reach", nodes=(bad,), message=text, remedy=remedy),),
        seconds=time.monotonic() - since,
    )
    with contextlib.suppress(OSError):
        _write(request, verdict)
    return verdict


def _write(request: Request, verdict: Verdict) -> None:
    folder = Path(request.output_directory)
    with contextlib.suppress(OSError):  # a full disk is in the verdict, and on stderr
        durable.replace(folder / RESULT, msgspec.json.format(msgspec.json.encode(verdict), indent=2) + b"\n")
        if verdict.bad_nodes:
            durable.replace(folder / BAD, "".join(f"{name}\n" for name in verdict.bad_nodes).encode())
        else:
            (folder / BAD).unlink(missing_ok=True)
        for path in (folder / storage.FOLDER).iterdir():
            path.unlink()
