"""All ranks together bring the files of a checkpoint to the disk and sum them up."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path

from toolkit.errors import ToolkitError
from toolkit.runtime import durable, manifest, shares
from toolkit.runtime.manifest import FileEntry
from toolkit.runtime.save_failed import SaveFailed, kind_of, rank_of
from toolkit.runtime.together import ALONE, Group

VISIBLE_SECONDS = 60.0  # NFS clients may show a directory as it was a minute ago


def of_all(path: Path, group: Group) -> dict[str, FileEntry]:
    """Size and SHA-256 of each file, which is on the disk by then; every rank calls it and gets all of them.

    Raises ToolkitError on every rank where one of them failed.
    """
    first = group.hosts.index(group.hosts[group.rank]) == group.rank
    listed, error = {}, ""
    try:
        listed = manifest.file_names(path) if first else {}
    except OSError as problem:
        error = f"rank {group.rank}: {problem}"
    found = group.share((listed, error))
    raise_any(path, [text for _, text in found if text], group)
    seen = {host: found[group.hosts.index(host)][0] for host in group.hosts}
    sizes = {name: size for names in seen.values() for name, size in names.items()}
    on_first(lambda: _wait_until_visible(path, set(sizes)), group, path)
    mine = shares.to_hash(sizes, group.hosts, seen)[group.rank]
    names = sorted(seen[group.hosts[group.rank]])
    done = group.share(_sync_and_hash(path, shares.to_fsync(names, group.hosts, group.rank), mine, group.rank))
    raise_any(path, [text for _, text in done if text], group)
    entries = {name: each for part, _ in done for name, each in part.items()}
    growing = [name for name, each in entries.items() if each.bytes != sizes[name]]
    raise_any(path, [f"{name} is still being written" for name in growing])
    return dict(sorted(entries.items()))


def _sync_and_hash(path: Path, to_fsync: list[str], to_hash: list[str], rank: int) -> tuple[dict[str, FileEntry], str]:
    """Both at once: the one waits for the disk, the other for the processor, and neither holds Python's lock."""
    errors: list[str] = []
    entries: dict[str, FileEntry] = {}

    def synced() -> None:
        try:
            for name in to_fsync:
                durable.sync(path / name)
        except OSError as problem:
            errors.append(f"rank {rank}: {problem}")

    thread = threading.Thread(target=synced, name="fsync")
    thread.start()
    try:
        for name in to_hash:
            entries[name] = manifest.entry(path / name)
    except OSError as problem:
        errors.append(f"rank {rank}: {problem}")
    thread.join()
    return entries, "; ".join(errors)


def _wait_until_visible(path: Path, names: set[str]) -> None:
    until = time.monotonic() + VISIBLE_SECONDS
    while missing := names - set(manifest.file_names(path)):
        if time.monotonic() > until:
            raise ToolkitError(
                f"rank 0 does not see {sorted(missing)[0]} in {path}, which another node has written",
                remedy="the output directory must be on storage that all nodes share",
            )
        time.sleep(0.5)


def on_first(action: Callable[[], None], group: Group, what: Path | str) -> None:
    """Run on rank 0; its failure is everybody's."""
    error: ToolkitError | str = ""
    if group.rank == 0:
        try:
            action()
        except OSError as problem:
            error = f"rank 0: {problem}"
        except ToolkitError as problem:
            error = problem
    told = group.share(error)[0]
    if isinstance(told, ToolkitError):
        raise told
    raise_any(what, [told] if told else [], group)


def raise_any(what: Path | str, errors: list[str], group: Group = ALONE) -> None:
    """Raise a SaveFailed, which is a ToolkitError, with all of them, if there are any."""
    if errors:
        rank = rank_of(errors)
        raise SaveFailed(
            f"{what} could not be saved: {'; '.join(errors)}",
            remedy="the older checkpoints are as they were: make room or mend the storage, then start again",
            kind=kind_of(errors),
            rank=rank,
            host="" if rank is None else group.hosts[rank],
        )
