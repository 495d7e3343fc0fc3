"""Entries of ``data/<kind>/*.toml`` by name: the user's folder first, with did-you-mean.

A file holds one entry (then it has a top-level ``name``) or one table per entry (then the table's key is the
name). ``aliases = [...]`` gives an entry more names. Names compare without case, and blanks and underscores
count as hyphens. The user's folder is ``$TOOLKIT_DATA``, else ``~/.config/toolkit``; it has the same
sub-folders, and an entry there hides a shipped one of the same name.
"""

from __future__ import annotations

import functools
import os
import re
from pathlib import Path
from typing import Any, NamedTuple

from toolkit.errors import Problems, ToolkitError

SHIPPED = Path(__file__).parent.parent / "data"
LARGEST_FILE = 16 * 2**20  # bytes; a config.json or a plan.json has a few thousand


class Entry(NamedTuple):
    """One entry as it was written; ``path`` is the file that it comes from."""

    name: str
    values: dict[str, Any]
    path: Path


def user_folder() -> Path:
    """Where the user keeps their own entries: ``$TOOLKIT_DATA`` or ``~/.config/toolkit``."""
    chosen = os.environ.get("TOOLKIT_DATA")
    return Path(chosen) if chosen else Path("~/.config/toolkit").expanduser()


def expanded(name: str) -> Path:
    """A path with its ``~``; as it stands where there is no such user."""
    try:
        return Path(name).expanduser()
    except RuntimeError:
        return Path(name)


def is_there(path: Path) -> bool:
    """Whether there is such a file or folder; not where its name is too long for one, or it may not be looked at."""
    try:
        return path.exists()
    except OSError:
        return False


def is_named(path: Path) -> bool:
    """Whether a path means something that is there: a file, a folder, or an indexed data set by its prefix."""
    return is_there(path) or is_there(path.with_name(path.name + ".idx")) if path.name else is_there(path)


def contents(path: str | Path, most: int = LARGEST_FILE) -> bytes:
    """The bytes of a file that a user named; raises OSError where reading could wait or fill the memory.

    That is for what is no regular file (a pipe, a terminal, /dev/zero) and for more than ``most`` bytes.
    """
    import errno

    path = Path(path)
    if "\0" in str(path):
        raise OSError(errno.EINVAL, "no file has a null byte in its name", str(path))
    if path.exists() and not path.is_file() and not path.is_dir():
        raise OSError(errno.EINVAL, "it is not a regular file", str(path))
    with path.open("rb") as file:
        read = file.read(most + 1)
    if len(read) > most:
        raise OSError(errno.EFBIG, f"it is larger than {most:,} bytes", str(path))
    return read


def normal(name: str) -> str:
    """The form in which names are compared."""
    return re.sub(r"[\s_]+", "-", name.strip()).casefold()


def entries(kind: str) -> dict[str, Entry]:
    """Every entry of a kind by its normal name, aliases left out; raises ToolkitError for broken files."""
    return _load(kind, user_folder())[0]


def own(kind: str) -> dict[str, Entry]:
    """The user's entries of a kind by their normal name."""
    return _load(kind, user_folder(), shipped=False)[0]


def find(kind: str, name: str) -> Entry | None:
    """The entry with that name or alias, or None.

    Only the shipped files in whose text the name stands are parsed: parsing all of them would cost more than
    planning does.
    """
    key = normal(name)
    own, aliases = _load(kind, user_folder(), shipped=False)
    found = own.get(key) or own.get(aliases.get(key, ""))
    return found or _find_shipped(kind, key)


@functools.lru_cache(maxsize=64)
def _find_shipped(kind: str, key: str) -> Entry | None:
    written = tuple(mark.format(key) for mark in ('"{}"', "'{}'", "[{}]"))
    aliased = None
    for path in sorted((SHIPPED / kind).glob("*.toml")):
        text = normal(path.read_text(encoding="utf-8"))
        if not (path.stem.casefold() == key or any(word in text for word in written)):
            continue
        for entry in _read(path):
            if normal(entry.name) == key:
                return entry
            given = entry.values.get("aliases", [])
            if isinstance(given, list) and any(normal(str(alias)) == key for alias in given):
                aliased = entry
    return aliased


def get(kind: str, name: str) -> Entry:
    """The entry with that name or alias; raises ToolkitError with the nearest names when there is none."""
    entry = find(kind, name)
    if entry is None:
        raise ToolkitError(unknown(kind, name), remedy=remedy(kind, name))
    return entry


def unknown(kind: str, name: str) -> str:
    """The sentence for a name that is not there."""
    return f"unknown {kind.removesuffix('s')} {name!r}"


def remedy(kind: str, name: str) -> str:
    """The nearest names, or where the list is."""
    near = nearest(kind, name)
    if kind == "calibration":  # few, and no command lists them
        listing = f"known: {', '.join(entry.name for entry in entries(kind).values())}"
    else:
        listing = f"toolkit {kind} lists all"
    listing += f"; your own go into {user_folder() / kind}/*.toml"
    return f"did you mean {', '.join(near)}? {listing}" if near else listing


def nearest(kind: str, name: str, number: int = 3) -> list[str]:
    """Names that look like this one, the nearest first."""
    import difflib

    found, aliases = _load(kind, user_folder())
    close = difflib.get_close_matches(normal(name), [*found, *aliases], n=2 * number, cutoff=0.6)
    return list(dict.fromkeys(found[aliases.get(key, key)].name for key in close))[:number]


@functools.lru_cache(maxsize=32)
def _load(kind: str, folder: Path, shipped: bool = True) -> tuple[dict[str, Entry], dict[str, str]]:
    found: dict[str, Entry] = {}
    aliases: dict[str, str] = {}
    with Problems() as problems:
        for source in (SHIPPED / kind, folder / kind) if shipped else (folder / kind,):  # later ones hide earlier ones
            here: dict[str, Entry] = {}
            for path in sorted(source.glob("*.toml")):
                try:
                    read = _read(path)
                except ToolkitError as error:
                    problems.absorb(error)
                    continue
                for entry in read:
                    if normal(entry.name) in here:
                        problems.add(f"{path}: {entry.name!r} is also in {here[normal(entry.name)].path}", "rename one")
                    here[normal(entry.name)] = entry
            found |= here
            for key, entry in here.items():
                aliases.pop(key, None)
                given = entry.values.get("aliases", [])
                if isinstance(given, list):  # what else it may be is for the reader of the entry to refuse
                    aliases |= {normal(alias): key for alias in given if isinstance(alias, str)}
    return found, aliases


def _read(path: Path) -> list[Entry]:
    import tomllib

    try:
        values = tomllib.loads(contents(path).decode("utf-8-sig"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError, RecursionError) as error:
        raise ToolkitError(f"{path}: {error}", remedy="correct the file, or move it away") from error
    if isinstance(values.get("name"), str):
        return [Entry(values["name"], values, path)]
    wrong = [key for key, value in values.items() if not isinstance(value, dict)]
    if wrong:
        raise ToolkitError(
            f"{path}: {', '.join(wrong)} outside any table",
            remedy='give the file a top-level name = "..." or put every entry into its own [table]',
        )
    return [Entry(name, value, path) for name, value in values.items()]
