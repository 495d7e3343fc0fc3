"""Models by name, by path or by size: everything becomes a ModelSpec through the same decoder."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from toolkit.decode import decode_config
from toolkit.errors import ToolkitError
from toolkit.model import ModelSpec
from toolkit.registry import files

KIND = "models"
# words of hub names that do not change the shape
_SAME_SHAPE = {
    "hf",
    "instruct",
    "chat",
    "it",
    "pt",
    "base",
    "meta",
    "bf16",
    "fp8",
    "awq",
    "gptq",
    "gguf",
    "bnb",
    "4bit",
}


def load_model(text: str) -> ModelSpec:
    """A registered name (case does not matter, hub names too), a ``config.json``, or a folder that holds one.

    Raises ToolkitError: unknown name (with the nearest), unreadable file, not JSON, not a config, and
    whatever the decoder finds wrong in it.
    """
    text = text.strip()
    if not text:
        raise ToolkitError("the model's name is empty", remedy="toolkit models lists the names")
    path = _path(text)
    looks_like_path = bool(re.search(r"^[~.]|[/\\]|\.json$", text))
    if looks_like_path and path is not None and path.exists():
        return _from_path(path)
    entry = find(text)
    if entry is not None:
        return _decode(entry)
    if path is not None and path.exists():
        return _from_path(path)
    if text.endswith(".json") or re.match(r"[~./\\]", text):
        raise ToolkitError(f"{text}: no such file or folder", remedy="give a config.json, or a folder that holds one")
    raise ToolkitError(files.unknown(KIND, text), remedy=files.remedy(KIND, text.split("/")[-1]))


def find(text: str) -> files.Entry | None:
    """The registered model that a name means: as it is, or without owner and words like -hf and -Instruct."""
    name = re.split(r"[/\\]", text.strip().rstrip("/\\"))[-1]
    name = name.replace(":", "-")  # ollama's llama3:8b
    words = files.normal(name).split("-")
    return files.find(KIND, name) or files.find(KIND, "-".join(word for word in words if word not in _SAME_SHAPE))


def names() -> list[str]:
    """Every registered name, in the order of the files."""
    return [entry.name for entry in files.entries(KIND).values()]


def _decode(entry: files.Entry) -> ModelSpec:
    config = {key: value for key, value in entry.values.items() if key not in ("name", "aliases", "source")}
    source = entry.values.get("source", "")
    try:
        return decode_config(config, entry.name, source if isinstance(source, str) else "")
    except ToolkitError as error:
        raise ToolkitError(f"{entry.name} in {entry.path}: {error.problems[0].message}", *error.problems[1:]) from error


def _path(text: str) -> Path | None:
    try:
        path = Path(text).expanduser()
        path.exists()
    except (OSError, ValueError, RuntimeError):  # too long, a null byte, no home
        return None
    return path


def _from_path(path: Path) -> ModelSpec:
    if path.is_dir():
        if not (path / "config.json").exists():
            raise ToolkitError(f"{path} holds no config.json", remedy="give the folder of a Hugging Face model")
        path = path / "config.json"
    name = path.resolve().parent.name if path.name == "config.json" else path.stem
    return decode_config(_read_json(path), name or "model", str(path))


def _read_json(path: Path) -> dict[str, Any]:
    import json

    remedy = "give the config.json of a Hugging Face model"
    try:
        # the standard parser: saved configs hold Infinity, which strict JSON refuses
        values = json.loads(files.contents(path).decode("utf-8-sig"))
    except OSError as error:
        raise ToolkitError(f"{path} cannot be read: {error.strerror or error}", remedy=remedy) from error
    except (ValueError, RecursionError) as error:
        raise ToolkitError(f"{path} is not JSON: {str(error)[:200]}", remedy=remedy) from error
    if not isinstance(values, dict):
        raise ToolkitError(f"{path} holds JSON, but not an object of keys and values", remedy=remedy)
    return values


def model_from_text(text: str) -> ModelSpec:
    """What ``--params`` means: a registered model if the text names one exactly, else the size in it."""
    import msgspec

    from toolkit.model_sizes import read_size
    from toolkit.registry.sizes import shape_of_size

    entry = find(text)
    if entry is not None:
        return _decode(entry)
    size = read_size(text)
    model = shape_of_size(size.parameters)
    return msgspec.structs.replace(model, notes=(*size.notes, *model.notes))
