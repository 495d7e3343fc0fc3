"""The training program in small: a state per rank that only the right predecessor leads to, saved by the protocol.

    state(0, r) = SHA-256("r"),  state(k, r) = SHA-256(state(k - 1, r), k)

A run that resumed from a wrong, torn or mixed-up state ends with another one than :func:`state` gives.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

from toolkit.errors import ToolkitError
from toolkit.runtime import checkpoint, durable
from toolkit.runtime.together import Group

KEEP = 2
BYTES = 3000  # of a shard


def state(step: int, rank: int) -> bytes:
    """What a rank holds after ``step`` steps."""
    value = hashlib.sha256(str(rank).encode()).digest()
    for number in range(1, step + 1):
        value = _next(value, number)
    return value


def _next(value: bytes, step: int) -> bytes:
    return hashlib.sha256(value + step.to_bytes(4, "big")).digest()


def shard(value: bytes) -> bytes:
    """The file of a state."""
    return (value * (BYTES // len(value) + 1))[:BYTES]


def train(folder: Path, group: Group, saves: tuple[int, ...], resume: bool = True) -> None:
    """Go on from the newest valid checkpoint and save after each of ``saves``."""
    if group.rank == 0:
        checkpoint.set_aside_incomplete(folder)
    group.share(None)
    start = checkpoint.newest_valid(folder, group) if resume else None
    step, value = 0, state(0, group.rank)
    if start is not None:
        step = checkpoint.facts(start)["step"]
        value = (start / f"part_{group.rank}" / "state.bin").read_bytes()[: len(value)]
    while step < saves[-1]:
        step += 1
        value = _next(value, step)
        if step in saves:
            save(folder, group, step, value)


def save(folder: Path, group: Group, step: int, value: bytes) -> None:
    """As the training programs do; the framework's own writes are announced too, and not fsynced."""
    path = checkpoint.begin(folder, step, group)
    part = path / f"part_{group.rank}"
    durable.announce("mkdir", part)
    part.mkdir()
    written = part / "state.bin"
    durable.announce("open", written)
    with written.open("wb", buffering=0) as file:
        for half in (shard(value)[: BYTES // 2], shard(value)[BYTES // 2 :]):
            piece = half
            durable.announce("write", written)
            while piece:  # a disk that gets full takes a part first
                piece = piece[file.write(piece) :]
    checkpoint.commit(path, {"step": step, "world_size": group.size}, group)
    if group.rank == 0:
        checkpoint.prune(folder, KEEP)
    group.share(None)


def right(path: Path, ranks: int) -> bool:
    """Whether a checkpoint holds the state of each rank after its step."""
    try:
        step = checkpoint.facts(path)["step"]
        return all(
            (path / f"part_{rank}" / "state.bin").read_bytes() == shard(state(step, rank)) for rank in range(ranks)
        )
    except (OSError, ToolkitError):
        return False
