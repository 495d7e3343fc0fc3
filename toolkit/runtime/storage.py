"""Copies of committed checkpoints in durable storage: any URL that fsspec knows (``s3://``, ``gs://``, ``file://``).

The order is that of the protocol: all files, each by the rank that its share falls to, then the manifest, last. An
object store has no rename and needs none: an object is there whole or not at all. What has no manifest there is no
checkpoint; of what is deleted the manifest goes first. Sums are taken while reading, so that a file that changed
under way, or came back different, is told.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from toolkit.errors import ToolkitError
from toolkit.runtime import checkpoint, manifest, retention, shares, sums
from toolkit.runtime.manifest import CHUNK_BYTES, MANIFEST, Damage, Manifest
from toolkit.runtime.together import ALONE, Group

REMEDY = "install what the message names, or give a URL such as s3://bucket/folder or file:///folder"


class NotThere(ToolkitError):
    """No manifest: an upload that was cut off, or a deletion."""


class Unreachable(ToolkitError):
    """The storage has refused, or did not answer: nothing is known of what it holds."""


def is_url(text: str) -> bool:
    """Whether this names durable storage and not a local folder."""
    return "://" in text


def require_protocol(url: str) -> None:
    """Raise ToolkitError unless fsspec has the package for a URL of this kind; nothing is connected to."""
    try:
        import fsspec

        for part in url.partition("://")[0].split("::"):
            fsspec.get_filesystem_class(part)
    except (ImportError, ValueError) as error:
        raise ToolkitError(f"cannot use {url}: {error}", remedy=REMEDY) from error


def upload(path: Path, url: str, group: Group = ALONE) -> None:
    """Copy a committed checkpoint below ``url``; every rank calls it. Raises ToolkitError on all where one fails."""
    target, read = f"{url.rstrip('/')}/{path.name}", list[Manifest]()
    sums.on_first(lambda: read.append(manifest.read(path)), group, target)
    known: Manifest = group.share(read)[0][0]
    mine = shares.to_hash({name: each.bytes for name, each in known.files.items()}, group.hosts)[group.rank]

    def prepare() -> None:
        with opened(target) as (system, root):
            if system.exists(f"{root}/{MANIFEST}"):
                system.rm_file(f"{root}/{MANIFEST}")

    def copy() -> None:
        with opened(target) as (system, root):
            for name in mine:
                system.makedirs(_parent(f"{root}/{name}"), exist_ok=True)
                with (path / name).open("rb", buffering=0) as source, system.open(f"{root}/{name}", "wb") as sink:
                    total = _pump(source, sink)
                if total != known.files[name].sha256:
                    raise OSError(f"{path / name} is not what was committed (SHA-256 {total[:12]})")

    def declare() -> None:
        with opened(target) as (system, root), system.open(f"{root}/{MANIFEST}", "wb") as sink:
            sink.write(manifest.encode(known))

    sums.on_first(prepare, group, target)
    sums.raise_any(target, _on_all(copy, group), group)
    sums.on_first(declare, group, target)


def fetch(url: str, name: str, directory: Path, group: Group = ALONE) -> Path:
    """Copy a checkpoint of durable storage into the run's own folder and commit it there; every rank calls it.

    Raises on all ranks ToolkitError for a damaged one; Unreachable, or SaveFailed, where it could not be copied.
    """
    source = f"{url.rstrip('/')}/{name}"
    found: list[Manifest] = []
    sums.on_first(lambda: found.append(read(source)), group, source)
    known = group.share(found)[0][0]
    path = checkpoint.begin(directory, known.step, group)
    mine = shares.to_hash({each: entry.bytes for each, entry in known.files.items()}, group.hosts)[group.rank]

    spoiled: list[str] = []

    def copy() -> None:
        with opened(source) as (system, root):
            for each in mine:
                (path / each).parent.mkdir(parents=True, exist_ok=True)
                try:
                    origin = system.open(f"{root}/{each}", "rb")
                except FileNotFoundError:
                    spoiled.append(f"rank {group.rank}: {source}/{each} is not there")
                    continue
                with origin, (path / each).open("wb") as sink:
                    total = _pump(origin, sink)
                if total != known.files[each].sha256:
                    said = f"{source}/{each} is not what was committed (SHA-256 {total[:12]})"
                    spoiled.append(f"rank {group.rank}: {said}")

    errors = _on_all(copy, group)
    if wrong := [text for part in group.share(spoiled) for text in part]:
        raise ToolkitError(f"{source} could not be fetched: {'; '.join(wrong)}", remedy="the one before it is taken")
    if errors:
        raise Unreachable(
            f"{source} could not be fetched: {'; '.join(errors)}",
            remedy=f"it may be whole: look whether it can be reached and {directory} has room, then start again",
        )
    checkpoint.commit(path, manifest.flat(known), group)
    return path


def read(target: str) -> Manifest:
    """The manifest of a checkpoint in durable storage; raises NotThere, NoManifest, OfAnotherVersion, Unreachable."""
    with opened(target) as (system, root):
        try:
            content = system.cat_file(f"{root}/{MANIFEST}")
        except FileNotFoundError as error:
            raise NotThere(f"{target} has no {MANIFEST}", remedy="toolkit ckpt list shows what is valid") from error
    return manifest.decode(content, f"{target}/{MANIFEST}")


def names(url: str) -> list[str]:
    """The names of what could be checkpoints, oldest step first."""
    with opened(url) as (system, root):
        try:
            found = [str(each).rstrip("/").rpartition("/")[2] for each in system.ls(root, detail=False)]
        except FileNotFoundError:
            return []
    return sorted((each for each in found if checkpoint.NAME.fullmatch(each)), key=step_of)


def damage(target: str, deep: bool = False) -> list[Damage]:
    """What is wrong with a checkpoint in durable storage: sizes; with ``deep`` every byte is read."""
    try:
        known = read(target)
    except ToolkitError as error:
        kind = "later" if isinstance(error, manifest.OfAnotherVersion) else "unreadable"
        kind = "missing" if isinstance(error, NotThere) else kind
        return [Damage(MANIFEST, kind, error.problems[0].message)]
    found = []
    with opened(target) as (system, root):
        there = _sizes(system, root)
        for name, wanted in known.files.items():
            try:
                size = there.get(name)
                if size is None:
                    found.append(Damage(name, "missing", "it is not there"))
                elif size != wanted.bytes:
                    kind = "truncated" if size < wanted.bytes else "flipped"
                    found.append(Damage(name, kind, f"{size:,} bytes, the manifest has {wanted.bytes:,}"))
                elif deep:
                    with system.open(f"{root}/{name}", "rb") as source:
                        total = _pump(source, None)
                    if total != wanted.sha256:
                        found.append(
                            Damage(name, "flipped", f"SHA-256 {total[:12]}, the manifest has {wanted.sha256[:12]}")
                        )
            except FileNotFoundError:
                found.append(Damage(name, "missing", "it is not there"))
            except OSError as error:
                found.append(Damage(name, "unreadable", str(error)))
    return found


def _sizes(system: Any, root: str) -> dict[str, int]:
    """Of all files below a folder, in one listing: a request for each would take minutes of every save."""
    return {
        str(path).removeprefix(root).lstrip("/"): int(each["size"] or 0)
        for path, each in system.find(root, detail=True).items()
    }


def newest(url: str, deep: bool = False) -> str | None:
    """The name of the newest valid checkpoint below a URL."""
    base = url.rstrip("/")
    return next((name for name in reversed(names(url)) if not damage(f"{base}/{name}", deep)), None)


def prune(url: str, keep: int = 2, keep_every: int = 0, saved: int | None = None) -> list[str]:
    """Delete what need not stay of the valid ones, the manifest first; returns the names. For one rank to call.

    ``saved`` is the step of the last save, as for :func:`toolkit.runtime.checkpoint.prune`.
    """
    base = url.rstrip("/")
    found = [(name, step_of(name)) for name in names(url) if saved is None or step_of(name) <= saved]
    valid = retention.looked_at(found, lambda name: not damage(f"{base}/{name}"), keep, keep_every)
    gone = retention.doomed(valid, keep, keep_every)
    for name in gone:
        discard(f"{base}/{name}")
    return gone


def discard(target: str) -> None:
    """Delete a checkpoint of durable storage: its manifest first."""
    with opened(target) as (system, root):
        if system.exists(f"{root}/{MANIFEST}"):
            system.rm_file(f"{root}/{MANIFEST}")
        if system.exists(root):  # a folder of an object store is gone with its last object
            system.rm(root, recursive=True)


@contextmanager
def opened(url: str) -> Iterator[tuple[Any, str]]:
    """The file system of a URL and the path in it; whatever goes wrong there is a ToolkitError.

    Each storage has exceptions of its own, of which few are OSErrors (botocore's for a server that is not there, or
    for missing credentials, are not). What another process did since is seen: listings that were kept are dropped.
    """
    try:
        import fsspec
    except ImportError as error:
        raise ToolkitError(
            f"{url} needs fsspec, not installed", remedy="pip install fsspec (torch brings it)"
        ) from error
    try:
        system, root = fsspec.core.url_to_fs(url)
        system.invalidate_cache()
        yield system, root
    except ToolkitError:
        raise
    except (ImportError, ValueError) as error:  # a protocol whose package is missing, or no protocol
        raise ToolkitError(f"cannot use {url}: {error}", remedy=REMEDY) from error
    except Exception as error:
        name = "" if isinstance(error, OSError) else f"{type(error).__name__}: "
        raise Unreachable(
            f"{url}: {name}{error}",
            remedy="look whether the storage can be reached, whether the credentials are right, and whether it is full",
        ) from error


def _pump(source: Any, sink: Any) -> str:
    """Copy in pieces, to nowhere if there is no sink; the SHA-256 of what went through."""
    total = hashlib.sha256()
    while piece := source.read(CHUNK_BYTES):
        total.update(piece)
        if sink is not None:
            sink.write(piece)
    return total.hexdigest()


def _on_all(action: Callable[[], None], group: Group) -> list[str]:
    """Run on every rank; what went wrong on any of them, the same on all."""
    error = ""
    try:
        action()
    except ToolkitError as problem:
        error = f"rank {group.rank}: {problem.problems[0].message}"
    return [text for text in group.share(error) if text]


def _parent(path: str) -> str:
    return path.rpartition("/")[0]


def step_of(name: str) -> int:
    """The step in a name."""
    return int("".join(each for each in name if each.isdigit()))
