"""What ``toolkit ckpt convert`` is given: a checkpoint to read and a place for the result, or why it is neither."""

from __future__ import annotations

import shlex
from pathlib import Path

from toolkit.errors import ToolkitError, reason

KINDS = {
    "deepspeed": "a checkpoint of DeepSpeed",
    "universal": "a universal checkpoint of DeepSpeed",
    "megatron": "a distributed checkpoint of megatron-core",
    "fsdp": "a sharded checkpoint of FSDP",
    "adapters": "a folder of adapters",
    "hugging-face": "a Hugging Face folder, or a checkpoint of DDP",
}
GIVE = "give the checkpoint-N of a run, or a Hugging Face folder"


def of_conversion(source: str, target: str) -> tuple[Path, Path, str]:
    """Both as paths, and the kind of checkpoint; raises ToolkitError for what cannot be read, or written to."""
    from toolkit.runtime import folders, storage

    for name in (source, target):
        if storage.is_url(name):
            raise ToolkitError(
                f"{name} is a URL, and only what lies on a disk is converted",
                remedy="copy the checkpoint-N to a folder first, or give what the run has kept of it",
            )
    folders.require(source, GIVE)
    kind = _kind(Path(source))
    folders.require_place(target)
    return Path(source), Path(target), kind


def _kind(source: Path) -> str:
    from toolkit.runtime import folders
    from toolkit.runtime.weights import kind_of

    try:
        kind = kind_of(source)
    except OSError as error:
        raise ToolkitError(f"cannot read {folders.shown(source)}: {reason(error)}", remedy=GIVE) from error
    newest = None if kind in ("universal", "megatron", "fsdp", "adapters", "hugging-face") else _newest(source)
    if newest is not None:
        raise ToolkitError(
            f"{folders.shown(source)} holds checkpoints, and one is converted; the newest valid one is {newest.name}",
            remedy=f"give it: toolkit ckpt convert {shlex.quote(str(newest))} DST --to FORM",
        )
    if not kind:
        raise ToolkitError(
            f"{folders.shown(source)} is no checkpoint that can be converted: none of {', '.join(KINDS.values())}",
            remedy="toolkit ckpt list DIR shows the checkpoints of a run",
        )
    return kind


def _newest(source: Path) -> Path | None:
    """Of a run's output directory, also where that is ``run`` in what was given: the newest that looks valid."""
    from toolkit.runtime import found

    for folder in (source, source / "run"):
        if not folder.is_dir():
            continue
        below = [each for each in found.look(folder) if each.path != folder and each.kind != "deepspeed"]
        newest = found.newest_valid(below, deep=False)
        if newest is not None:
            return newest.path
    return None
