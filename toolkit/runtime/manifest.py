"""Manifest: what a checkpoint is and which files it consists of. Written last, so that it says "all this is there".

A checkpoint is valid where each file of its manifest is there with the size and SHA-256 written in it. SHA-256,
since it is in Python's own library, can be checked by hand (``sha256sum``), and is no bottleneck: processors with
SHA instructions (x86-64 servers from 2019 on, and 64-bit ARM) do about 2 GB/s on a core, and the files are shared
out over all ranks. docs/checkpoints.md has what was measured, also for other sums.
"""

from __future__ import annotations

import datetime
import errno
import hashlib
import os
import stat
from collections.abc import Iterable
from pathlib import Path, PurePosixPath
from typing import Annotated, Any

import msgspec

from toolkit.errors import ToolkitError, reason

MANIFEST = "manifest.json"
SCHEMA = 1
AXES = ("tp", "pp", "cp", "ep", "etp", "dp")
CHUNK_BYTES = 8 * 2**20  # of one read: large enough for parallel file systems, small enough for many threads


Count = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]


class FileEntry(msgspec.Struct, frozen=True):
    """One file: its size and the SHA-256 of its content."""

    bytes: Count
    sha256: str


class DataPosition(msgspec.Struct, frozen=True, kw_only=True):
    """Where in which data a run stands: ``position`` samples into ``epoch``, in the order that ``seed`` gives."""

    sha256: str = ""  # of the tokens, or of what they are made from
    epoch: int = 0
    position: int = 0
    seed: int = 0


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """All that a later start must know before it reads a tensor."""

    schema: int = SCHEMA
    step: Count  # optimizer steps done
    tokens: int = 0  # seen so far
    samples_seen: int = 0
    data: DataPosition | None = None
    learning_rate: float | None = None  # of the last step
    wandb_run_id: str = ""
    contract_sha256: str = ""
    contract: dict[str, Any] = {}  # its settings; of manifests of before only the fingerprint is known
    framework: str = ""  # ddp | fsdp | deepspeed | megatron
    zero_stage: int = 0
    world_size: int = 1
    degrees: dict[str, int] = {}  # of AXES
    versions: dict[str, str] = {}  # of the libraries
    saved_at: str = ""  # ISO 8601, UTC
    save_seconds: float = 0.0  # from the first write to the commit
    commit_seconds: float = 0.0  # of fsync and hashing, all ranks together at once
    more: dict[str, Any] = {}  # what one program alone needs
    files: dict[str, FileEntry] = {}  # by path relative to the checkpoint


class _Schema(msgspec.Struct):
    schema: int = SCHEMA  # what else there is may have another form


class OfAnotherVersion(ToolkitError):
    """A manifest that another version of this toolkit wrote: nothing is known of it, so nothing is wrong with it."""


class NoManifest(ToolkitError):
    """What stands there is not what :func:`encode` wrote."""


class Damage(msgspec.Struct, frozen=True):
    """What is wrong with one file of a checkpoint."""

    file: str
    kind: str  # missing | truncated | flipped | unreadable | later | inconsistent; extra | unknown | pointer | contract
    text: str

    @property
    def fatal(self) -> bool:
        """Whether it keeps the checkpoint from being used; the last four kinds are told and do no harm to it."""
        return self.kind not in ("extra", "unknown", "pointer", "contract")


def make(facts: dict[str, Any], files: dict[str, FileEntry]) -> Manifest:
    """A manifest from plain facts; those it has no field for go to ``more``."""
    known = {name: value for name, value in facts.items() if name in Manifest.__struct_fields__}
    known["degrees"] = {axis: facts[axis] for axis in AXES if axis in facts} | known.get("degrees", {})
    more = {name: value for name, value in facts.items() if name not in known and name not in AXES}
    known.setdefault("saved_at", datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"))
    return msgspec.convert(known | {"more": known.get("more", {}) | more, "files": files}, Manifest)


def flat(manifest: Manifest) -> dict[str, Any]:
    """The facts without the files, as :func:`make` took them."""
    values: dict[str, Any] = msgspec.to_builtins(manifest)
    values.pop("files")
    found: dict[str, Any] = values.pop("more") | values["degrees"] | values
    return found


def encode(manifest: Manifest) -> bytes:
    """The text of ``manifest.json``."""
    return msgspec.json.format(msgspec.json.encode(manifest), indent=1) + b"\n"


def decode(content: bytes, where: str | Path) -> Manifest:
    """Read it back; raises NoManifest for what is none, OfAnotherVersion for another schema.

    A name that leads out of the checkpoint is of no save: who copies its files would write there.
    """
    try:
        schema = msgspec.json.decode(content, type=_Schema).schema
        if schema != SCHEMA:
            raise OfAnotherVersion(
                f"{where} has schema {schema}, this toolkit reads {SCHEMA}", remedy="use a newer one"
            )
        found = msgspec.json.decode(content, type=Manifest)
        for name in found.files:
            if not _is_inside(name):
                raise ValueError(f"it names {name!r}, which is no file of a checkpoint")
        return found
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise NoManifest(
            f"{where} is no manifest: {error}", remedy="toolkit ckpt verify names what is damaged"
        ) from error


def _is_inside(name: str) -> bool:
    path = PurePosixPath(name)
    plain = path.as_posix() == name and not path.is_absolute() and path.parts != () and "\0" not in name
    return plain and ".." not in path.parts and name != MANIFEST


def read(checkpoint: str | Path) -> Manifest:
    """The manifest of a checkpoint; raises ToolkitError where it has none that can be read."""
    path = Path(checkpoint) / MANIFEST
    try:
        if path.exists() and not path.is_file():  # a pipe would never end
            raise OSError(errno.EINVAL, "not a file")
        content = path.read_bytes()
    except OSError as error:
        raise ToolkitError(
            f"cannot read {path}: {reason(error)}", remedy="toolkit ckpt list shows what is valid"
        ) from error
    return decode(content, path)


def file_names(checkpoint: Path) -> dict[str, int]:
    """Sizes of all files below a checkpoint, by relative path, but for the manifest and what is not finished of it."""
    found = {}
    for folder, folders, names in os.walk(checkpoint, onerror=_raise):
        folders.sort()
        for name in names:
            path = Path(folder, name)
            relative = path.relative_to(checkpoint).as_posix()
            if relative != MANIFEST and not relative.startswith(f".{MANIFEST}."):
                found[relative] = _size(path)
    return dict(sorted(found.items()))


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        if path.is_symlink():  # to nothing, or to itself: there as an extra, if nobody asks for it
            return path.lstat().st_size
        raise


def _raise(error: OSError) -> None:
    raise error


def entry(path: Path) -> FileEntry:
    """Size and sum of a file as it is now, read in pieces."""
    total, seen = hashlib.sha256(), 0
    with path.open("rb", buffering=0) as file:
        while piece := file.read(CHUNK_BYTES):
            total.update(piece)
            seen += len(piece)
    return FileEntry(seen, total.hexdigest())


def damage(checkpoint: Path, manifest: Manifest, names: Iterable[str] | None = None, deep: bool = True) -> list[Damage]:
    """What is wrong with the files of a manifest, or those of ``names``; without ``deep`` only sizes are compared."""
    found = []
    for name in manifest.files if names is None else names:
        wanted, path = manifest.files[name], checkpoint / name
        try:
            now = path.stat()
            size = now.st_size
            if not stat.S_ISREG(now.st_mode):
                found.append(Damage(name, "unreadable", "it is not a file"))
            elif size != wanted.bytes:
                kind = "truncated" if size < wanted.bytes else "flipped"
                found.append(Damage(name, kind, f"{size:,} bytes, the manifest has {wanted.bytes:,}"))
            elif deep and (sum_now := entry(path).sha256) != wanted.sha256:
                found.append(Damage(name, "flipped", f"SHA-256 {sum_now[:12]}, the manifest has {wanted.sha256[:12]}"))
        except FileNotFoundError:
            found.append(Damage(name, "missing", "it is not there"))
        except OSError as error:
            found.append(Damage(name, "unreadable", error.strerror or str(error)))
    return found
