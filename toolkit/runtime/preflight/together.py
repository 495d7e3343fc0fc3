"""Troubles from the facts of all nodes: each check's own judgement, and who has not come."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from toolkit.runtime.preflight import clocks, gpus, meeting, names, storage, versions
from toolkit.runtime.preflight.request import Request
from toolkit.runtime.preflight.verdict import Trouble


def compared(
    request: Request,
    met: meeting.Meeting,
    hosts: list[str],
    told: list[dict[str, Any] | None],
    probed: list[dict[str, str] | None] | None,
    earlier: dict[str, dict[str, str]],
) -> tuple[list[Trouble], list[str]]:
    """Troubles, and checks that were not made; ``told`` and ``probed`` have None for a node that did not answer."""
    troubles, skipped = missing(request, hosts, told), [f"{each}: left out" for each in request.skip]
    there = {hosts[number]: each for number, each in enumerate(told) if each}
    troubles += versions.compare({host: each["plan"] for host, each in there.items()}, hosts[0], "the plan's ")
    for check in ("versions", "gpus"):
        for host, each in there.items():
            if isinstance(each.get(check), dict) and "error" in each[check]:
                troubles.append(
                    Trouble(
                        check=check, nodes=(host,), message=each[check]["error"], remedy=each[check].get("remedy", "")
                    )
                )
    software = {host: each["versions"] for host, each in there.items() if "error" not in each.get("versions", {})}
    troubles += versions.compare({host: each for host, each in software.items() if each}, hosts[0], "", earlier)
    if "storage" not in request.skip:
        troubles += storage.judge(request, storage_of(hosts, told))
    if "clock" not in request.skip:
        found = clocks.judge({host: (each["clock"][0], each["clock"][1]) for host, each in there.items()})
        named = any(each.check == "clock" for each in troubles)  # by the file server's clock
        troubles += [each for each in found if each.nodes or not named]
    if request.gpus_per_node and "gpus" not in request.skip:
        cards = {host: each["gpus"] for host, each in there.items() if isinstance(each["gpus"], list)}
        troubles += gpus.judge(cards, request.gpus_per_node, hosts[0])
        why = {each["gpus"]["skipped"] for each in there.values() if "skipped" in each["gpus"]}
        skipped += [f"gpus: {text}" for text in sorted(why)]
    if probed is not None:
        tries = {n: {int(k): v for k, v in tried.items()} for n, tried in enumerate(probed) if tried}
        troubles += names.judge(hosts, [each["name"] if each else {} for each in told], tries)
    return troubles, skipped


def missing(request: Request, hosts: list[str], told: list[dict[str, Any] | None]) -> list[Trouble]:
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


def storage_of(hosts: list[str], told: list[dict[str, Any] | None]) -> dict[str, storage.StorageFacts]:
    """What each node that has come says of its storage."""
    return {
        hosts[number]: msgspec.convert(each["storage"], storage.StorageFacts)
        for number, each in enumerate(told)
        if each and "storage" in each
    }


def expected_name(request: Request, number: int) -> str:
    """A node's name before it has come."""
    return request.hosts[number] if number < len(request.hosts) else f"node {number}"
