"""Checkpoints of a folder or URL as ``toolkit ckpt`` shows them: plain data, and what points to the newest."""

from __future__ import annotations

import contextlib
from fnmatch import fnmatch
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from toolkit.errors import ToolkitError

if TYPE_CHECKING:
    from toolkit.runtime.found import Found
    from toolkit.runtime.manifest import Damage

where = click.argument("directory", metavar="DIR|URL")
as_json = click.option("--json", "as_json", is_flag=True, help="Print JSON.")


class Remote:
    """A checkpoint in durable storage, as :class:`toolkit.runtime.found.Found` is one on a disk."""

    kind = "toolkit"

    def __init__(self, url: str, name: str) -> None:
        self.path, self.name = f"{url.rstrip('/')}/{name}", name
        self.step = int("".join(each for each in name if each.isdigit()))

    def damage(self, deep: bool = True) -> list[Damage]:
        """All that is known to be wrong with it."""
        from toolkit.runtime import storage

        return storage.damage(self.path, deep)

    def discard(self) -> None:
        """Delete it."""
        from toolkit.runtime import storage

        storage.discard(self.path)


def look(directory: str) -> tuple[str, list[Any]]:
    """The checkpoints of a folder or URL, the oldest first, and where they are: also ``run`` in a plan's folder."""
    from toolkit.cli.files import inside
    from toolkit.runtime import folders, found, storage

    if storage.is_url(directory):
        return directory, [Remote(directory, name) for name in storage.names(directory)]
    folders.require(directory)
    there = found.look(Path(directory))
    if not there and (run := inside(directory)) is not None:
        return str(run), list(found.look(run))
    return directory, list(there)


def row(found: Found | Remote, deep: bool) -> dict[str, Any]:
    """One checkpoint as plain data; ``deep``: sums are taken. ``under_way`` names the run that saves or deletes it now.

    Such a one is neither valid nor broken. A run may also have committed it since it was first looked at.
    """
    made = _row(found, deep)
    if made["valid"] or isinstance(found, Remote):
        return made | {"under_way": ""}
    from toolkit.runtime import checkpoint, holder, manifest
    from toolkit.runtime.found import Found

    path, who = found.path, ""
    with contextlib.suppress(OSError):  # told as damage
        if checkpoint.NAME.fullmatch(path.name):
            if not (path / manifest.MANIFEST).exists():
                who = holder.whose(path.parent)
            elif not made["committed"]:
                made = _row(Found(path, "toolkit", found.step), deep)
    return made | {"under_way": who}


def _row(found: Found | Remote, deep: bool) -> dict[str, Any]:
    from toolkit.runtime import manifest, storage
    from toolkit.units import format_bytes

    damage = found.damage(deep)
    sizes: dict[str, int] = {}
    saved_at = None
    try:
        if found.kind == "toolkit":
            path = found.path
            known = storage.read(path) if isinstance(path, str) else manifest.read(path)
            sizes, saved_at = {name: each.bytes for name, each in known.files.items()}, known.saved_at
        elif isinstance(found.path, Path):
            sizes = manifest.file_names(found.path)
    except (OSError, ToolkitError):
        pass  # told as damage
    total = sum(sizes.values())
    return {
        "name": found.name,
        "path": str(found.path),
        "step": found.step,
        "kind": found.kind,
        "committed": found.kind == "toolkit",
        "valid": not any(each.fatal for each in damage),
        "sums_taken": deep and found.kind == "toolkit",
        "files": len(sizes),
        "bytes": total,
        "size": format_bytes(total),
        "saved_at": saved_at,
        "damage": [{"file": d.file, "kind": d.kind, "text": d.text, "fatal": d.fatal} for d in damage],
    }


def plain(row: dict[str, Any]) -> dict[str, Any]:
    """The same for a terminal, each name on one line whatever characters it has."""
    from toolkit.runtime.folders import shown

    damage = [each | {"file": shown(each["file"]), "text": shown(each["text"])} for each in row["damage"]]
    return row | {"name": shown(row["name"]), "damage": damage}


def loading(found: Found | Remote, ranks_per_node: int) -> dict[str, Any]:
    """What it takes to load the shards of DeepSpeed's optimizer on another number of ranks (M25)."""
    from toolkit.estimate.loading import OPTIMIZER_BYTES, elastic_loading_bytes
    from toolkit.runtime import manifest
    from toolkit.units import format_bytes

    sizes: list[int] = []
    with contextlib.suppress(OSError):  # told as damage
        files = manifest.file_names(found.path) if isinstance(found.path, Path) else {}
        sizes = [size for name, size in files.items() if fnmatch(name, "*zero_pp_rank_*_optim_states.pt")]
    total = 1.0 * sum(sizes)
    if not total:
        return {"notes": []}
    node = elastic_loading_bytes(1.0 * ranks_per_node, total / OPTIMIZER_BYTES)
    text = (
        f"{format_bytes(total)} of optimizer states in {len(sizes)} shards: with elastic_checkpoint every rank reads"
        f" all of them, {format_bytes(node)} of host memory on a node of {ranks_per_node}; toolkit ckpt convert --to"
        " deepspeed-universal reads a shard at a time"
    )
    return {"notes": [text], "optimizer_bytes": total, "elastic_bytes_per_node": node}


def _write(file: Path, wanted: str) -> None:
    from toolkit.errors import reason
    from toolkit.runtime import durable

    try:
        durable.replace(file, f"{wanted}\n".encode())
    except OSError as error:
        raise ToolkitError(
            f"cannot write {file}: {reason(error)}", remedy="ask for the right to write there, or write it as its owner"
        ) from error


def pointer(directory: str, chosen: Any, broken: list[str], write: bool) -> dict[str, Any]:
    """Whether the framework would find the same one, and what to do where not."""
    import shlex

    from toolkit.runtime import found, storage

    if storage.is_url(directory):
        return {"file": None, "holds": None, "should_hold": None, "text": []}
    place = found.pointer(Path(directory), chosen)
    if place is None:
        text = []
        if broken and chosen.kind in ("huggingface", "torch"):
            base = directory.rstrip("/")
            pairs = [(shlex.quote(f"{base}/{each}"), shlex.quote(f"{base}/incomplete-{each}")) for each in broken]
            moves = "; ".join(f"mv {old} {new}" for old, new in pairs)
            text = [f"its framework takes the one with the highest number: {moves}"]
        return {"file": None, "holds": None, "should_hold": None, "text": text}
    file, wanted = place
    holds = found.held(file)
    text = []
    if holds != wanted and write:
        _write(file, wanted)
        text = [f"{file} now holds {wanted!r}" + (f", it held {holds!r}" if holds is not None else ", it was missing")]
    elif holds != wanted:
        state = "is missing" if holds is None else f"holds {holds!r}"
        text = [
            f"{file} {state}, and the framework looks there: it should hold {wanted!r}",
            f"  echo {shlex.quote(wanted)} > {shlex.quote(str(file))}",
            f"  or: toolkit ckpt latest {shlex.quote(directory)} --write",
        ]
    return {
        "file": str(file),
        "holds": wanted if holds != wanted and write else holds,
        "should_hold": wanted,
        "text": text,
    }
