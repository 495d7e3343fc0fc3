"""Accelerators by the names people give them: ``h100``, ``A100 80GB``, ``NVIDIA H100 80GB HBM3``, ``4090``.

A shipped file is named family-form-memory (``a100-sxm4-40gb``). A name is cut into words, words that tell
nothing (vendor, memory type) are dropped, and each of the rest must be a part of the file's name. What more
than one accelerator answers to is settled to the safe side, least memory first, and said; what none answers
to is an error that lists what there is. There is no default.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

from toolkit.cluster import Accelerator
from toolkit.errors import ToolkitError
from toolkit.registry import files
from toolkit.registry.conversion import to_accelerator
from toolkit.registry.hardware import AcceleratorFile
from toolkit.registry.strict import decode

KIND = "accelerators"

_VENDOR_WORDS = frozenset(
    ("nvidia", "amd", "intel", "habana", "geforce", "tesla", "quadro", "instinct", "gpu", "gpus", "generation")
)
_NOISE = frozenset(
    ("accelerator", "oam", "hgx", "grace", "hopper", "superchip", "hbm", "hbm2", "hbm2e", "hbm3", "hbm3e")
    + ("gddr6", "gddr6x", "nvl72", "gcd")
)
_FORMS = ("sxm", "pcie", "nvl")  # in the order of preference where memory is equal
_PREFIXES = frozenset(("rtx", "ada"))  # parts of a name that alone do not say which card
_REQUIRED = frozenset(("ada",))  # parts without which it is another card: RTX 6000 came three times


class Match(NamedTuple):
    """An accelerator's name, and a note when the words given could mean others too."""

    name: str
    note: str = ""


def load_accelerator(name: str) -> Accelerator:
    """The accelerator of a name, an alias, or a TOML file; an assumption about a name is in ``notes``.

    Raises ToolkitError for unknown names, with the list, and for unsound files with all their problems.
    """
    file, where, note = read_accelerator(name)
    accelerator = to_accelerator(file, where)
    if note:
        import msgspec

        accelerator = msgspec.structs.replace(accelerator, notes=f"{note} {accelerator.notes}".strip())
    return accelerator


def read_accelerator(name: str, folder: Path | None = None) -> tuple[AcceleratorFile, str, str]:
    """The file behind a name or path (relative to ``folder``), what to call it in messages, and a note."""
    if is_path(name):
        path = (folder or Path()) / files.expanded(name)
        return decode(read_toml(path, "accelerator"), AcceleratorFile, str(path)), str(path), ""
    match = match_accelerator(name)
    entry = files.get(KIND, match.name)
    shipped = files.SHIPPED in entry.path.parents
    where = f"data/{KIND}/{entry.path.name}" if shipped else str(entry.path)
    return decode(entry.values | {"name": entry.name}, AcceleratorFile, where), where, match.note


def match_accelerator(name: str) -> Match:
    """The one accelerator meant by a name; raises ToolkitError where there is none."""
    names = accelerator_names()
    if files.normal(name) in names:
        return Match(files.normal(name))
    words = _words(name) if re.fullmatch(r"[\w\s.,/+()\-]{1,80}", name) else []
    telling = [word for word in words if word not in _NOISE]
    found = [each for each in names if _answers(telling, each.casefold().split("-"))]
    found = found or [each for each in names if _answers(["".join(telling)], each.casefold().split("-"))]
    if len(found) == 1:
        return Match(found[0])
    alias = files.find(KIND, "-".join(words)) or files.find(KIND, name)
    if alias is not None:
        return Match(alias.name)
    if not found:
        raise ToolkitError(f"unknown accelerator {name[:80]!r}", remedy=_remedy(name[:80], telling))
    found.sort(key=_safe_first)
    equal = len({_memory(each) for each in found}) == 1
    reason = "the usual form" if equal else "the least memory"
    others = ", ".join(found[1:])
    return Match(found[0], f"{name.strip()!r} is taken as {found[0]} ({reason}); name {others} if you mean that.")


def could_mean(words: str, name: str) -> bool:
    """Whether the words could be a name for this accelerator, also where they are ambiguous."""
    if match_accelerator(words).name == name:
        return True
    telling = [word for word in _words(words) if word not in _NOISE]
    return _answers(telling, name.casefold().split("-"))


def accelerator_names() -> list[str]:
    """Names of all accelerators; shipped files are not opened for it."""
    shipped = {path.stem for path in (files.SHIPPED / KIND).glob("*.toml")}
    return sorted(shipped | {entry.name for entry in files.own(KIND).values()})


def is_path(name: str) -> bool:
    """Whether a name is meant as a file: it ends in ``.toml`` or begins like a path."""
    return name.casefold().endswith(".toml") or name.startswith(("/", "./", "../", "~/"))


def read_toml(path: Path, what: str) -> dict[str, object]:
    """The values of a TOML file; raises ToolkitError when it is not one."""
    import tomllib

    try:
        if not path.is_file():
            kind = "a folder" if path.is_dir() else "not there" if not path.exists() else "not a regular file"
            raise ToolkitError(
                f"{what} file {str(path)!r} is {kind}", remedy=f"toolkit {what}s lists those with a name"
            )
        if path.stat().st_size > 1_000_000:
            raise ToolkitError(
                f"{what} file {str(path)!r} is larger than 1 MB", remedy="it should be a short TOML file"
            )
        return tomllib.loads(files.contents(path, 1_000_000).decode("utf-8-sig"))
    except (OSError, ValueError, RecursionError) as error:  # a TOML error and a NUL in a name are ValueErrors
        reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
        raise ToolkitError(
            f"{what} file {str(path)!r}: {reason}", remedy="it must be readable TOML, see docs/clusters.md"
        ) from error


def _words(name: str) -> list[str]:
    text = re.sub(r"(?<![a-z0-9])([0-9]+)\s*(?:gib|gb|g)\b", r" \1gb ", name.casefold())
    return [word for word in re.split(r"[^a-z0-9]+", text) if word and word not in _VENDOR_WORDS]


def _answers(words: list[str], parts: list[str]) -> bool:
    """Whether every word is a part of the name, at least one says which card it is, and none needed is missing."""
    said: list[str] = []
    for word in words:
        hit = _parts_of(word, parts)
        if hit is None:
            return False
        said += hit
    identifying = [
        part for part in said if part not in _PREFIXES and not part.startswith(_FORMS) and not _is_memory(part)
    ]
    return bool(identifying) and _REQUIRED.intersection(parts) <= set(said)


def _parts_of(word: str, parts: list[str]) -> list[str] | None:
    """The parts that a word spells: one, or several written together (``h100sxm5``, ``a10080gb``)."""
    for part in parts:
        if word == part or _same_memory(word, part) or _same_form(word, part):
            return [part]
    for part in parts:
        if word.startswith(part) and len(word) > len(part):
            rest = _parts_of(word[len(part) :], parts)
            if rest is not None:
                return [part, *rest]
    return None


def _same_memory(word: str, part: str) -> bool:
    return _is_memory(part) and re.sub("(gib|gb|g)$", "", word) == part.removesuffix("gb")


def _same_form(word: str, part: str) -> bool:
    return part.startswith(_FORMS) and re.sub("[0-9]", "", part) == re.sub("^pci$", "pcie", word)


def _is_memory(part: str) -> bool:
    return re.fullmatch("[0-9]+gb", part) is not None


def _memory(name: str) -> int:
    return next((int(part[:-2]) for part in name.casefold().split("-") if _is_memory(part)), 0)


def _safe_first(name: str) -> tuple[int, int, str]:
    forms = [index for index, form in enumerate(_FORMS) if any(part.startswith(form) for part in name.split("-"))]
    return _memory(name), forms[0] if forms else 0, name


def _remedy(name: str, words: list[str]) -> str:
    """Relatives of the card where there are some, near spellings, a cluster of that name, and the list."""
    names = accelerator_names()
    hints = []
    kin = [each for each in names if any(word in each.casefold().split("-") for word in words if word not in _PREFIXES)]
    near = kin or files.nearest(KIND, name)
    if near:
        hints.append(f"did you mean {', '.join(near[:6])}?")
    if files.find("clusters", name) is not None:
        hints.append(f"{name!r} is a cluster: --cluster {name}.")
    hints.append(f"known: {', '.join(names)}; or describe your own in {files.user_folder() / KIND}/NAME.toml")
    return " ".join(hints)
