"""The verdict as a file in the output directory, and the verdict of a node that could not meet the others."""

from __future__ import annotations

import contextlib
import time
from pathlib import Path
from typing import Any

import msgspec

from toolkit.runtime import durable
from toolkit.runtime.preflight import storage
from toolkit.runtime.preflight.request import Request
from toolkit.runtime.preflight.together import expected_name
from toolkit.runtime.preflight.verdict import BAD_NODE, Trouble, Verdict

RESULT, BAD = "preflight.json", "preflight.bad"


def write(request: Request, verdict: Verdict) -> None:
    """``preflight.json``, and ``preflight.bad`` where nodes are (one name a line)."""
    folder = Path(request.output_directory)
    with contextlib.suppress(OSError):  # a full disk is in the verdict, and on stderr
        durable.replace(folder / RESULT, msgspec.json.format(msgspec.json.encode(verdict), indent=2) + b"\n")
        if verdict.bad_nodes:
            durable.replace(folder / BAD, "".join(f"{name}\n" for name in verdict.bad_nodes).encode())
        else:
            (folder / BAD).unlink(missing_ok=True)
        for path in (folder / storage.FOLDER).iterdir():
            path.unlink()


def earlier_versions(request: Request) -> dict[str, dict[str, str]]:
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


def cut_off(request: Request, node: int, host: str, reason: str, since: float) -> Verdict:
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
    return of_one(request, expected_name(request, 0), host, f"{host} {reason}", "look whether it is up", since)


def of_one(request: Request, bad: str, host: str, text: str, remedy: str, since: float) -> Verdict:
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
        write(request, verdict)
    return verdict
