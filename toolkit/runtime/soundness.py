"""Whether one file of a checkpoint can be read, by its own format and without torch: what a framework never checks.

    torch.save      a zip archive: its directory lies at the end, so that a truncated one has none; with ``deep`` the
                    CRC-32 of every record (torch 2.13 ``PyTorchFileWriter`` writes them); the older format is a pickle
    safetensors     eight bytes with the length of a JSON header, the header, and as many bytes as it promises
    .metadata       of torch's distributed checkpoints: a pickle that says which bytes of which file hold what
    JSON            parses

Nothing is executed: pickles are read with every class replaced by an empty one.
"""

from __future__ import annotations

import io
import json
import pickle
import zipfile
import zlib
from pathlib import Path
from typing import Any

from toolkit.runtime.manifest import Damage

TORCH = {".pt", ".pth", ".bin", ".ckpt", ".distcp"}
READABLE = {*TORCH, ".safetensors", ".json", ".metadata"}
MOST_HEADER_BYTES = 100 * 2**20  # safetensors' own limit


def check(root: Path, name: str, deep: bool = True) -> Damage | None:
    """What is wrong with the file ``name`` below ``root``, by its format; None where nothing is known to be."""
    path = root / name
    suffix = ".metadata" if path.name == ".metadata" else path.suffix
    try:
        size = path.stat().st_size
        if size == 0:
            return Damage(name, "truncated", "0 bytes") if suffix in READABLE or path.name == "latest" else None
        if suffix in READABLE and _only_zeros(path, size):
            return Damage(name, "truncated", f"{size:,} bytes, all of them zero, as a power cut leaves them")
        if suffix == ".distcp":
            return None  # many archives one after another; .metadata says where, see shards_of
        if suffix in TORCH:
            return _torch(path, name, size, deep)
        if suffix == ".safetensors":
            return _safetensors(path, name, size)
        if suffix == ".json":
            json.loads(path.read_bytes())
        elif suffix == ".metadata":
            unpickle(path.read_bytes())
    except FileNotFoundError:
        return Damage(name, "missing", "it is not there")
    except OSError as error:
        return Damage(name, "unreadable", error.strerror or str(error))
    except (ValueError, RecursionError, pickle.UnpicklingError, EOFError) as error:
        return Damage(name, "unreadable", f"no {suffix.lstrip('.')}: {error}"[:200])
    return None


def _only_zeros(path: Path, size: int) -> bool:
    with path.open("rb") as file:
        if any(file.read(4096)):
            return False
        file.seek(max(0, size - 4096))
        return not any(file.read(4096))


def _torch(path: Path, name: str, size: int, deep: bool) -> Damage | None:
    with path.open("rb") as file:
        start = file.read(2)
        file.seek(max(0, size - 66_000))  # the end record, behind a comment of 65,535 bytes at most
        archive = b"PK\x05\x06" in file.read()
    if start != b"PK" and not archive:
        if start[:1] == b"\x80":
            return None  # the format before torch 1.6: a row of pickles, then bare numbers
        return Damage(name, "unknown", "neither an archive nor a pickle of torch.save: not checked")
    try:
        with zipfile.ZipFile(path) as opened:
            last = max((each.header_offset + each.compress_size for each in opened.infolist()), default=0)
            if last > size:
                return Damage(name, "truncated", f"{size:,} bytes, its directory names {last:,}")
            broken = opened.testzip() if deep and any(each.CRC for each in opened.infolist()) else None
    except (zipfile.BadZipFile, zlib.error, NotImplementedError, RuntimeError) as error:
        kind = "flipped" if archive else "truncated"
        return Damage(name, kind, f"no archive of torch.save: {error}")
    return Damage(name, "flipped", f"the CRC-32 of {broken} is another") if broken else None


def _safetensors(path: Path, name: str, size: int) -> Damage | None:
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        if length > MOST_HEADER_BYTES:
            return Damage(name, "flipped", f"its header would have {length:,} bytes")
        if size < 8 + length:
            return Damage(name, "truncated", f"{size:,} bytes, its header alone has {8 + length:,}")
        header = json.loads(file.read(length))
    ends = [each["data_offsets"][1] for key, each in header.items() if key != "__metadata__"]
    wanted = 8 + length + max(ends, default=0)
    if size != wanted:
        return Damage(name, "truncated" if size < wanted else "flipped", f"{size:,} bytes, its header says {wanted:,}")
    return None


class _Empty:
    """Takes the place of every class."""

    def __init__(self, *positional: Any, **keywords: Any) -> None:
        self.positional = positional

    def __setstate__(self, state: Any) -> None:
        self.state = state

    def __hash__(self) -> int:
        return id(self)

    def __setitem__(self, key: Any, value: Any) -> None: ...

    def append(self, value: Any) -> None:
        """Of list-like classes."""

    def extend(self, values: Any) -> None:
        """Of list-like classes."""


class _Harmless(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if (module, name) == ("collections", "OrderedDict"):
            return dict
        return type(name, (_Empty,), {})

    def persistent_load(self, pid: Any) -> Any:
        return None


def unpickle(content: bytes) -> Any:
    """A pickle with every class replaced by an empty one; raises ValueError where it cannot be read."""
    try:
        return _Harmless(io.BytesIO(content)).load()
    except (pickle.UnpicklingError, EOFError, OSError, MemoryError, RecursionError) as error:
        raise ValueError(str(error) or "it ends too early") from error
    except Exception as error:  # any of a broken pickle's
        raise ValueError(f"{type(error).__name__}: {error}") from error


def facts_in(path: Path) -> dict[str, Any]:
    """Plain numbers at the top of a file of torch.save, such as ``dp_world_size``; {} where it cannot be read."""
    try:
        with zipfile.ZipFile(path) as opened:
            inner = next(each for each in opened.namelist() if each.endswith("data.pkl"))
            found = unpickle(opened.read(inner))
    except (OSError, zipfile.BadZipFile, StopIteration, ValueError):
        return {}
    return {key: value for key, value in found.items() if type(value) is int} if isinstance(found, dict) else {}


def shards_of(root: Path, name: str) -> dict[str, int]:
    """The files that a ``.metadata`` of torch's distributed checkpoints names, and how long each must be at least."""
    found = unpickle((root / name).read_bytes())
    state = getattr(found, "state", None)
    places = state.get("storage_data") if isinstance(state, dict) else None
    lengths: dict[str, int] = {}
    for place in (places or {}).values():
        fields = getattr(place, "state", None)
        if isinstance(fields, dict) and isinstance(fields.get("relative_path"), str):
            end = int(fields.get("offset", 0)) + int(fields.get("length", 0))
            lengths[fields["relative_path"]] = max(lengths.get(fields["relative_path"], 0), end)
    return lengths
