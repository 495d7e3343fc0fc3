"""The output directory as one node sees it: shared, room for the checkpoints, speed of a durable write, its clock.

    bytes needed   = checkpoint * max(1, keep + 1 - those that are there)
                                                          one more is there while the next is being written
    bytes free     = those of the file system, and those of torn checkpoints, which the next save deletes
    seconds of a save = checkpoint / (sum over nodes of measured bytes/s)    all nodes write at the same time
    of a node's share = checkpoint / nodes / measured bytes/s

The speed is the best of a few durable writes (:mod:`toolkit.runtime.preflight.probe`): what else uses the storage at
the moment only ever makes a write slower. A node that writes ``SLOW`` times slower than the median one is bad only
where its share would take much longer than the plan has for a save: a small checkpoint is no reason to do without a
node. A short write cannot tell what caches and quotas do to a long one. Left out: the room that a quota leaves, which
no portable call tells. :mod:`toolkit.runtime.preflight.folder` says why a folder cannot be written.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec

from toolkit.runtime import checkpoint
from toolkit.runtime.preflight import probe
from toolkit.runtime.preflight.folder import ROOM, refusal
from toolkit.runtime.preflight.request import Request
from toolkit.runtime.preflight.verdict import Trouble
from toolkit.units import format_bytes, format_seconds

FOLDER = "preflight"  # inside the output directory
SLOW = 4.0  # times slower than the plan, or than the median node, before it is said
SHORT_SAVE_SECONDS = 10.0  # whatever the plan has: so long a save may take
SHARED_SECONDS = 3.0  # an attribute cache may hide a new file for so long
CLOCK_WARNING, CLOCK_ERROR = 1.0, 30.0


class StorageFacts(msgspec.Struct, frozen=True, kw_only=True):
    """One node's view; ``error`` is what the file system said if it refused, ``kind`` whose matter that is."""

    free_bytes: float = 0.0
    free_inodes: int = -1  # -1: the file system has no fixed number
    bytes_per_second: float = 0.0
    server_clock_seconds: float = 0.0  # of the file server, minus this node's own
    shared: bool = True
    checkpoints: int = 0  # whole ones, of earlier starts
    error: str = ""
    remedy: str = ""
    kind: str = ""  # of the folder's refusal


def token_file(request: Request) -> Path:
    """What the first node writes and the others must see; its name is new for each start, whatever that is called."""
    name = hashlib.sha256(request.run_id.encode(errors="surrogateescape")).hexdigest()[:16]
    return Path(request.output_directory) / FOLDER / f"token-{name}"


def facts(request: Request, node: int) -> StorageFacts:
    """Look and measure; removes what it wrote. Whether the folder is shared is :func:`sees_first`'s to tell."""
    folder = Path(request.output_directory) / FOLDER
    try:
        folder.mkdir(parents=True, exist_ok=True)
        space = os.statvfs(folder)
        free = 1.0 * space.f_bavail * space.f_frsize
        speed, clock = probe.measure(folder, node, free)
        whole = checkpoint.newest_complete(request.output_directory, request.keep)
        inodes = space.f_favail if space.f_files else -1
        more = max(1, request.keep + 1 - len(whole))
        if whole and (free < request.checkpoint_bytes * more or 0 <= inodes < request.files_of_a_checkpoint * more):
            for size in _set_aside(Path(request.output_directory), checkpoint.complete(request.output_directory)):
                free += size
                inodes += inodes >= 0
        return StorageFacts(
            free_bytes=free,
            free_inodes=inodes,
            bytes_per_second=speed,
            server_clock_seconds=clock,
            checkpoints=len(whole),
        )
    except OSError as error:
        told = refusal(error, Path(request.output_directory))
        return StorageFacts(error=told.text, remedy=told.remedy, kind=told.kind)


def _set_aside(folder: Path, whole: list[Path]) -> Iterator[float]:
    """Bytes of each file of torn checkpoints, which the next save deletes where there is a whole one."""
    torn = [path for path in folder.glob("checkpoint-*") if path not in whole]
    for path in (*torn, *folder.glob("incomplete-*")):
        for inside, _, names in os.walk(path):
            for name in names:
                with contextlib.suppress(OSError):  # it is being deleted
                    yield 512.0 * (Path(inside) / name).lstat().st_blocks


def sees_first(request: Request) -> bool:
    """Whether the first node's token is here; it has written it once the nodes have met, however late it started."""
    path = token_file(request)
    end = time.monotonic() + SHARED_SECONDS
    while not path.exists():
        if time.monotonic() > end:
            return False
        time.sleep(0.1)
    return True


def judge(request: Request, by_node: dict[str, StorageFacts]) -> list[Trouble]:
    """Troubles of the nodes, and of the storage that they share."""
    troubles: list[Trouble] = []
    apart = [node for node, found in by_node.items() if not found.error and not found.shared]
    nobody = 0 < len(apart) == len(by_node) - 1  # then it is no node's fault; of two it may be the first one's
    text = f"{request.output_directory} is not the folder that the first node writes to"
    mounts = "give an --output-dir on storage that all nodes mount"
    if nobody:
        names = ", ".join(apart) if len(apart) == 1 else "the other nodes"
        troubles.append(Trouble(check="shared", nodes=(), message=f"on {names} {text}", remedy=mounts))
    for node, found in by_node.items():
        problems: list[tuple[str, str, str]] = []
        if found.error:
            text = f"cannot write to {request.output_directory}: {found.error}"
            problems.append(("mount" if found.kind == "mount" else "disk", text, found.remedy))
        elif not found.shared and not nobody:
            problems.append(("shared", text, mounts))
        more = max(1, request.keep + 1 - found.checkpoints)
        needed, inodes = request.checkpoint_bytes * more, request.files_of_a_checkpoint * more
        what = "one more checkpoint" if more == 1 else f"{more} checkpoints"
        if not found.error and found.free_bytes < needed:
            room = f"{format_bytes(found.free_bytes)} free in {request.output_directory}"
            each = "" if more == 1 else f" of {format_bytes(request.checkpoint_bytes)}"
            verb = "needs" if more == 1 else "need"
            problems.append(("disk", f"{room}, {what}{each} {verb} {format_bytes(needed)}", ROOM))
        if not found.error and 0 <= found.free_inodes < inodes:
            room = f"{found.free_inodes:,} more files can be made in {request.output_directory}"
            problems.append(("disk", f"{room}, {what} may have {inodes:,}", ROOM))
        wrong = found.kind == "input"
        troubles += [
            Trouble(check=check, nodes=(node,), message=said, remedy=help_, is_input=wrong)
            for check, said, help_ in problems
        ]
        troubles += clock_troubles(node, found.server_clock_seconds, "the file server's")
    timed = {node: found for node, found in by_node.items() if not found.error and found.bytes_per_second}
    return troubles + _speed(request, timed)


def clock_troubles(node: str, seconds: float, whose: str) -> list[Trouble]:
    """A clock that is off by seconds makes logs and file times of a run contradict one another."""
    if abs(seconds) < CLOCK_WARNING:
        return []
    return [
        Trouble(
            check="clock",
            nodes=(node,),
            message=f"its clock is {format_seconds(abs(seconds))} {'behind' if seconds > 0 else 'ahead of'} {whose}",
            remedy="synchronise it (chrony, ntpd)",
            severity="error" if abs(seconds) >= CLOCK_ERROR else "warning",
        )
    ]


def save_seconds(request: Request, by_node: dict[str, StorageFacts]) -> float:
    """Seconds that a save would take at the speed that all nodes had together; 0 where nothing was measured."""
    together = sum(found.bytes_per_second for found in by_node.values())
    return request.checkpoint_bytes / together if together else 0.0


def _speed(request: Request, by_node: dict[str, StorageFacts]) -> list[Trouble]:
    troubles = []
    speeds = sorted(found.bytes_per_second for found in by_node.values())
    usual = speeds[(len(speeds) - 1) // 2] if speeds else 0.0
    for node, found in by_node.items():
        if len(speeds) > 2 and found.bytes_per_second * SLOW < usual:
            share = request.checkpoint_bytes / request.nodes / max(found.bytes_per_second, 1.0)
            message = f"writes {format_bytes(found.bytes_per_second)}/s, the other nodes {format_bytes(usual)}/s"
            troubles.append(
                Trouble(
                    check="storage",
                    nodes=(node,),
                    message=f"{message}; its share of a save would take {format_seconds(share)}",
                    remedy="look at its mount and network",
                    severity="error"
                    if share > max(SHORT_SAVE_SECONDS, SLOW * request.checkpoint_seconds)
                    else "warning",
                )
            )
    seconds = save_seconds(request, by_node)
    if request.stop_seconds and seconds > request.stop_seconds:
        troubles.append(
            Trouble(
                check="storage",
                nodes=(),
                message=f"a save of {format_bytes(request.checkpoint_bytes)} would take {format_seconds(seconds)} at "
                f"the speed measured; a job that is asked to stop has {format_seconds(request.stop_seconds)}",
                remedy="give another --output-dir, or plan with the storage's real bandwidth",
            )
        )
    elif request.checkpoint_seconds and seconds > SLOW * request.checkpoint_seconds:
        troubles.append(
            Trouble(
                check="storage",
                nodes=(),
                message=f"a save would take {format_seconds(seconds)}, the plan has "
                f"{format_seconds(request.checkpoint_seconds)}",
                remedy="plan with the storage's real bandwidth: the best interval between saves depends on it",
                severity="warning",
            )
        )
    return troubles
