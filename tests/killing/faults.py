"""Observers that stop a process at one numbered operation, and what a power cut leaves of what was not fsynced."""

from __future__ import annotations

import errno
import os
import random
import shutil
import signal
import threading
from dataclasses import dataclass, field
from pathlib import Path

from toolkit.runtime import durable

SPACE = ("open", "write", "mkdir", "rename")  # operations that a full disk stops
KINDS = ("kill", "power: contents lost", "power: names lost", "power: some lost", "disk full", "fsync fails")


@dataclass
class Journal:
    """Every operation of every rank, in one file, with hard links to what each of them takes away."""

    folder: Path

    def record(self, rank: int, operation: str, path: Path) -> None:
        line = f"{rank}\t{operation}\t{path}\n"
        descriptor = os.open(self.folder / "journal", os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        try:
            os.write(descriptor, line.encode())
            position = os.lseek(descriptor, 0, os.SEEK_CUR)
        finally:
            os.close(descriptor)
        if operation == "unlink" and path.is_file():
            os.link(path, self.folder / f"{position - len(line)}")
        if operation == "rename" and path.is_file():  # what is replaced
            os.link(path, self.folder / f"{position - len(line)}")

    def read(self) -> list[tuple[int, int, str, Path]]:
        """(position, rank, operation, path) in order; a rank has one operation under way at a time."""
        found, position = [], 0
        for line in (self.folder / "journal").read_bytes().splitlines(keepends=True):
            rank, operation, path = line.decode().rstrip("\n").split("\t")
            found.append((position, int(rank), operation, Path(path)))
            position += len(line)
        return found


@dataclass
class Fault:
    """At operation ``number`` of ``rank`` (from 1; 0: nowhere) something of ``kind`` happens."""

    rank: int = 0
    number: int = 0
    kind: str = "kill"
    journal: Journal | None = None
    count: int = 0
    log: list[tuple[str, Path]] = field(default_factory=list)

    def install(self, rank: int) -> None:
        """In the process of ``rank``."""
        lock = threading.Lock()

        def observe(operation: str, path: Path) -> None:
            with lock:
                self.count += 1
                self.log.append((operation, path))
                if self.journal is not None:
                    self.journal.record(rank, operation, path)
                if rank == self.rank and self.count == self.number:
                    self._strike(operation, path)

        durable.observers.append(observe)

    def _strike(self, operation: str, path: Path) -> None:
        if self.kind == "disk full":
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
        if self.kind == "fsync fails":
            raise OSError(errno.EIO, os.strerror(errno.EIO), str(path))
        os.kill(os.getpid(), signal.SIGKILL)


def cut_power(journal: Journal, hosts: list[str], kind: str, killed: int, seed: int) -> None:
    """Take back what no fsync has made durable by the end of the journal.

    A file's content needs an fsync by a process of the machine that wrote it, a name one of its folder. The last
    operation of the rank that was ``killed`` did not happen; the others went on until they missed it.
    """
    chance, operations = random.Random(seed), journal.read()
    last = max((position for position, rank, _, _ in operations if rank == killed), default=-1)
    dirty: dict[Path, str] = {}  # file: machine
    pending: dict[Path, list[tuple[int, str, Path, Path | None]]] = {}  # folder: what is not durable in it
    opened: dict[int, Path] = {}
    for position, rank, operation, path in operations:
        over = position != last
        names = pending.setdefault(path.parent, [])
        if operation == "open":
            opened[rank] = path
            dirty[path] = hosts[rank]
            names.append((position, operation, path, None))
        elif operation == "mkdir":
            names.append((position, operation, path, None))
        elif operation == "fsync" and over and dirty.get(path) == hosts[rank]:
            del dirty[path]
        elif operation == "fsync-directory" and over:
            pending.pop(path, None)
        elif operation == "rename":
            source = opened.get(rank)
            source = source if source and source.name.startswith(f".{path.name}.") else _old_name(path)
            names.append((position, operation, path, source))
            if source in dirty and over:
                dirty[path] = dirty.pop(source)
        elif operation in ("unlink", "rmdir"):
            names.append((position, operation, path, None))
            dirty.pop(path, None)
    for path in dirty:
        if path.is_file() and (kind != "power: some lost" or chance.random() < 0.5):
            path.unlink()  # a new file, so that hard links to the old content keep it
            path.touch()
    if kind == "power: contents lost":
        return
    doomed = [each for folder, names in pending.items() if _lost(kind, chance) for each in names]
    for position, operation, path, source in sorted(doomed, reverse=True):
        _undo(journal, position, operation, path, source)


def _lost(kind: str, chance: random.Random) -> bool:
    return kind == "power: names lost" or chance.random() < 0.5


def _old_name(path: Path) -> Path:
    """Where a folder that was renamed lay before."""
    return path.with_name(path.name.replace("incomplete", "checkpoint").removesuffix(".old"))


def _undo(journal: Journal, position: int, operation: str, path: Path, source: Path | None) -> None:
    grave = journal.folder / str(position)
    if operation in ("open", "mkdir"):
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)
    elif operation == "rename" and source is not None and path.exists() and not source.exists():
        path.rename(source)
        if grave.exists():
            os.link(grave, path)
    elif operation == "unlink" and grave.exists() and not path.exists() and path.parent.is_dir():
        os.link(grave, path)
    elif operation == "rmdir":
        path.mkdir(parents=True, exist_ok=True)
