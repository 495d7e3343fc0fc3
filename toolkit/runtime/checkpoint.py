"""Which checkpoints are whole: a marker written last, removed first.

The frameworks name their newest checkpoint before every rank has written its part, or find it by the
directory's name alone; a job killed in between resumes from a torn one. Here a directory counts only
once it holds ``COMPLETE``, written after all ranks have passed a barrier, and this marker is the first
thing to go when a directory is deleted. (What this does not do: check sums, fsync of the framework's
own files.)

``FINISHED`` in the output directory says that the whole run is done; a job that is requeued after its
end finds it and leaves at once.
"""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import Any

import msgspec

from toolkit.errors import ToolkitError
from toolkit.runtime.telemetry import write_durably

COMPLETE, FINISHED = "COMPLETE", "FINISHED"
NAME = re.compile(r"checkpoint-(\d+)")  # the name that the Hugging Face Trainer gives


def commit(checkpoint: str | Path, facts: dict[str, Any]) -> None:
    """Declare a checkpoint whole; call on one rank, after a barrier that follows every rank's last write."""
    write_durably(Path(checkpoint) / COMPLETE, msgspec.json.encode(facts) + b"\n")


def facts(checkpoint: str | Path) -> dict[str, Any]:
    """What :func:`commit` was given."""
    return _read(Path(checkpoint) / COMPLETE)


def complete(directory: str | Path) -> list[Path]:
    """The whole checkpoints of a run, oldest step first."""
    return [path for path in _all(directory) if (path / COMPLETE).is_file()]


def set_aside_incomplete(directory: str | Path) -> list[Path]:
    """Rename torn checkpoints to ``incomplete-N``, so that no file of theirs gets into a new ``checkpoint-N``."""
    moved = []
    for path in _all(directory):
        if not (path / COMPLETE).is_file():
            target = path.with_name(path.name.replace("checkpoint", "incomplete"))
            if target.exists():
                shutil.rmtree(target)  # an older torn one of the same step
            moved.append(path.rename(target))
    return moved


def prune(directory: str | Path, keep: int) -> list[Path]:
    """Delete all but the newest ``keep`` whole checkpoints (at least one stays); returns what went."""
    doomed = complete(directory)[: -max(1, keep)]
    for path in doomed:
        (path / COMPLETE).unlink()
        shutil.rmtree(path)
    return doomed


def mark_finished(directory: str | Path, facts: dict[str, Any]) -> None:
    """Declare the whole run done."""
    write_durably(Path(directory) / FINISHED, msgspec.json.format(msgspec.json.encode(facts), indent=2) + b"\n")


def finished(directory: str | Path) -> dict[str, Any] | None:
    """What :func:`mark_finished` was given, or None while the run is not done."""
    path = Path(directory) / FINISHED
    return _read(path) if path.is_file() else None


def _all(directory: str | Path) -> list[Path]:
    folder = Path(directory)
    if not folder.is_dir():
        return []
    found = [(int(match[1]), path) for path in folder.iterdir() if (match := NAME.fullmatch(path.name))]
    return [path for _, path in sorted(found)]


def _read(path: Path) -> dict[str, Any]:
    try:
        return msgspec.json.decode(path.read_bytes(), type=dict[str, Any])
    except (OSError, msgspec.MsgspecError) as error:
        raise ToolkitError(f"cannot read {path}: {error}", remedy="choose another --output-dir") from error
